"""Asking a run from another process to stop after its round: a file beside the store, which the run looks for.

A file and not a row: asking needs no write access to the database, and a request can neither wait for a round's
transaction nor hold one up. A request that is older than the run's process was meant for an earlier one, and is
dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import OutputError
from muster.server.loop import Observer

if TYPE_CHECKING:
    from muster.server.loop import Server

STOPS = "stops"
#: File names consist only of these.
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


def is_fingerprint(word: str) -> bool:
    """Whether a word can be a run's fingerprint."""
    return _FINGERPRINT.fullmatch(word) is not None


def stop_file(folder: Path, fingerprint: str) -> Path:
    """Where a request to stop a run of a workspace is."""
    if not is_fingerprint(fingerprint):
        raise OutputError(f"'{fingerprint}' is not a fingerprint", expected="8 to 64 hexadecimal digits")
    return folder / STOPS / fingerprint


def request_stop(folder: Path, fingerprint: str) -> None:
    """Ask the run to stop after its current round; no effect if it is not running."""
    path = stop_file(folder, fingerprint)
    try:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    except OSError as error:
        raise OutputError(
            f"cannot ask the run to stop: {path}: {error.strerror}", fix="press Ctrl-C where it runs"
        ) from error


def stop_requested(folder: Path, fingerprint: str) -> bool:
    """Whether a request waits to be seen."""
    return stop_file(folder, fingerprint).exists()


class StopOnRequest(Observer):
    """Checks once a round whether a stop was requested."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._path = stop_file(folder, fingerprint)

    def started(self, server: Server, rounds: int, done: int) -> None:
        self._path.unlink(missing_ok=True)

    def wants_stop(self) -> bool:
        try:
            self._path.unlink()
        except OSError:  # no request
            return False
        return True
