"""Who may see the page: a token, a Host header that is ours, and headers that let nothing in from elsewhere.

The page and its files are the package's and no secret; everything about runs needs the token, which is sent as a
header and never as a cookie, so that no other page can make a browser send it.
"""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.ui.changes import plain_json

#: The server listens on the loopback address alone; another name in the Host header is a rebound domain name.
_HOSTS = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; frame-ancestors {ancestors}"
)
#: Notebooks are served from this machine, and embed the page when they have started it.
_NOTEBOOKS = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*"


def new_token() -> str:
    return secrets.token_urlsafe(24)


class AccessGuard:
    """Wraps the app: checks every request, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, token: str, *, embeddable: bool = False) -> None:
        self._app, self._token = app, token
        policy = _POLICY.format(ancestors=_NOTEBOOKS if embeddable else "'none'")
        self._headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await refusal(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")  # of two, somebody on the way might have believed the other
        if len(hosts) != 1 or host_name(hosts[0]) not in _HOSTS:
            return _answer(400, "this page answers only to 127.0.0.1 and localhost", "use the address as printed")
        if (origin := headers.get("origin")) is not None and urlsplit(origin).netloc != hosts[0]:
            return _answer(403, "requests from other pages are not answered", "")
        if not scope["path"].startswith("/api/"):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secrets.compare_digest(given.encode(), self._token.encode()):
            return _answer(
                401, "the token is missing or wrong", "open the address that `muster ui` printed when it started"
            )
        return None


def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _answer(status: int, problem: str, fix: str) -> PlainTextResponse:
    content = plain_json({"problem": problem, "expected": "", "fix": fix})
    return PlainTextResponse(content, status, media_type="application/json")
