from .access import Access, Principal, Refused
from .approval import Unattended
from .gateway import Gateway, open_gateway
from .http import HttpApplication, open_http
from .http_limits import HttpLimits
from .oauth import OAuthResource
from .offers import gateway_callbacks
from .stdio import serve_stdio

__all__ = [
    "Access",
    "Gateway",
    "HttpApplication",
    "HttpLimits",
    "OAuthResource",
    "Principal",
    "Refused",
    "Unattended",
    "gateway_callbacks",
    "open_gateway",
    "open_http",
    "serve_stdio",
]
