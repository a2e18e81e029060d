"""Whether a database is still the file that it was: deleted, replaced and overwritten ones are seen.

SQLite's locks are POSIX locks, of which a process loses all that it has on a file when it closes *any* descriptor
of that file. Whoever then ends last but one takes itself for the last, deletes the log that others are still
writing to, and their rounds are lost. So the descriptor with which a process looks at a database is shared by all
its stores, and closed after the last of their connections.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: The first bytes of a database file.
_MAGIC = b"SQLite format 3\0"


@dataclass
class _Open:
    descriptor: int
    users: int = 0


#: By process, device and inode: as long as a file is open, no other one gets its number.
_open: dict[tuple[int, int, int], _Open] = {}


class FileWatch:
    """Looks at the database at a path; to be closed after the connection to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = os.stat(path)
        self._key = os.getpid(), found.st_dev, found.st_ino
        if self._key not in _open:
            _open[self._key] = _Open(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self._file = _open[self._key]
        self._file.users += 1

    def sound(self) -> bool:
        """The path still leads to the file that was opened, and it is a database."""
        try:
            found = os.stat(self._path)
            begin = os.pread(self._file.descriptor, len(_MAGIC), 0)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._key[1:] and begin == _MAGIC

    def close(self) -> None:
        self._file.users -= 1
        if self._file.users == 0:
            os.close(self._file.descriptor)
            del _open[self._key]
