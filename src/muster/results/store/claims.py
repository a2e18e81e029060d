"""Which process runs what right now: a lock for each run, which the kernel releases when its process dies.

A claim is a POSIX lock on one byte of a file beside the database; the run's id is the byte's position. Unlike a
process id in a table it cannot be left behind, and cannot be mistaken for another process's.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from muster.core.errors import OutputError

#: The claim on a folder as a whole: ids of runs begin with 1.
WHOLE = 0
#: How long to try while others only look: one of them may have been put to sleep at that moment.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


@dataclass
class _File:
    """The file as this process knows it. Closing it would lose all of the process's locks, so it is shared."""

    descriptor: int
    users: int = 0
    #: What this process holds: its own locks do not stop it.
    held: set[int] = field(default_factory=set)


#: By process and path: a forked child inherits descriptors, but no locks.
_files: dict[tuple[int, Path], _File] = {}


class Claims:
    """The claims on the runs of one workspace."""

    def __init__(self, path: Path) -> None:
        self._key = os.getpid(), path.resolve()
        if self._key not in _files:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise OutputError(
                    f"cannot open {path}: {error.strerror}", fix="choose another workspace"
                ) from error
            _files[self._key] = _File(descriptor)
        self._file = _files[self._key]
        self._file.users += 1

    def close(self) -> None:
        """Let go of it; the last one of a process releases what the process holds."""
        self._file.users -= 1
        if self._file.users == 0:
            os.close(self._file.descriptor)
            del _files[self._key]

    def take(self, run: int) -> bool:
        """Claim a run; False when it is claimed already, in this process or another."""
        if run in self._file.held:
            return False
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            if self._lock(run, fcntl.LOCK_EX):
                self._file.held.add(run)
                return True
            if self.taken(run):
                return False
            time.sleep(_PAUSE_SECONDS)
        return False

    def release(self, run: int) -> None:
        if run in self._file.held:
            self._file.held.remove(run)
            self._unlock(run)

    def taken(self, run: int) -> bool:
        """Whether it is claimed. Looking takes a shared lock for a moment, so lookers do not see each other."""
        if run in self._file.held or not self._lock(run, fcntl.LOCK_SH):
            return True
        self._unlock(run)
        return False

    def _lock(self, run: int, kind: int) -> bool:
        try:
            fcntl.lockf(self._file.descriptor, kind | fcntl.LOCK_NB, 1, run)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, run: int) -> None:
        fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, run)
