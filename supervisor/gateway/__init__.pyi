from .auth.jwt import OAuthResource
from .auth.principal import Access, Principal, Refused
from .gateway import Gateway, open_gateway
from .http.application import HttpApplication, open_http
from .http.request_limits import HttpLimits
from .sealing import SessionKeys
from .stdio.stdio_gateway import serve_stdio
from .upstream.ask_client import Unattended, gateway_callbacks

__all__ = [
    "Access",
    "Gateway",
    "HttpApplication",
    "HttpLimits",
    "OAuthResource",
    "Principal",
    "Refused",
    "SessionKeys",
    "Unattended",
    "gateway_callbacks",
    "open_gateway",
    "open_http",
    "serve_stdio",
]
