"""The form with which a visitor logs in."""

from .layout import Flash, csrf_field, document
from .markup import h
from .visitors import Visitor


def sign_in_form(visitor: Visitor, problem: str | None = None) -> str:
    """The page that asks for a token. `problem`: the reason why it asks again."""
    form = h(
        "form",
        csrf_field(visitor),
        h("label", "Token", for_="token"),
        h("input", id="token", name="token", type="password", autocomplete="current-password", required=True),
        h("button", "Log in"),
        method="post",
        action="/ui/login",
        class_="field",
    )
    about = h(
        "p",
        "This gateway asks for a token of its token file. ",
        h("code", "--allow /ui"),
        " lets a token look, ",
        h("code", "--allow /ui/act"),
        " lets it act.",
        class_="quiet",
    )
    return document("Log in", visitor, about, form, flash=None if problem is None else Flash(problem, good=False))
