"""Serving the page on this machine, for its user."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from muster.core.errors import OutputError
from muster.ui.app import PageSettings, make_app

_LOOPBACK = "127.0.0.1"


def serve(
    page: PageSettings, port: int = 0, *, announce: Callable[[str], None] = print, open_browser: bool = False
) -> None:
    """Serve until interrupted; `announce` gets the address, with its token. Port 0: one that is free."""
    listener = listening(port)
    address = f"http://{_LOOPBACK}:{listener.getsockname()[1]}/?token={page.token}"
    config = uvicorn.Config(
        make_app(page),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        # Pages that watch never hang up by themselves.
        timeout_graceful_shutdown=1,
    )

    def ready() -> None:
        announce(address)
        if open_browser:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        _Server(config, ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Says when it answers: an address that is told earlier is opened before it does."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def listening(port: int) -> socket.socket:
    """A socket on the loopback address: no other machine can reach it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
        listener.listen(128)  # whoever is quicker than the server waits, and is not turned away
    except OSError as error:
        listener.close()
        raise OutputError(
            f"cannot listen on port {port}: {error.strerror}", fix="choose another --port; 0 takes a free one"
        ) from error
    return listener


def checked_workspace(folder: Path) -> Path:
    """The workspace; it may still be empty, but must be a folder if it is there."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", expected="a workspace", fix="name it with --workspace")
    return folder
