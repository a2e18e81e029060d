"""The server: the loop, one round, its checks and its records."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used

__all__ = ["Observer", "Result", "Server"]

if TYPE_CHECKING:
    from muster.server.loop import Observer, Server
    from muster.server.result import Result
else:
    __getattr__, __dir__ = imported_when_used(
        __name__, Observer="muster.server.loop", Server="muster.server.loop", Result="muster.server.result"
    )
