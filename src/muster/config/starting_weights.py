"""Files that a model starts from: not their names but what is in them determines a run's result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

#: Options of models that name a file of weights, and those that name a folder with a pretrained model.
FILES, FOLDERS = ("weights", "image_weights"), ("folder", "text_folder")


def content_of_weights(model: Any) -> dict[str, str]:
    """Checksums of the local files that a model section names, by option and file name.

    Names on the hub and of packages stand for themselves, and a file that is missing is the run's own error.
    """
    if not isinstance(model, Mapping):
        return {}
    return {name: _checksum(file, *_stamp(file)) for name, file in _files(model)}


def _files(model: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    from muster.models.bert import USED_FILES

    for option in (*FILES, *FOLDERS):
        if isinstance(said := model.get(option), str):
            place = Path(said).expanduser()
            named = (
                {option: place} if option in FILES else {f"{option}/{name}": place / name for name in USED_FILES}
            )
            yield from ((name, file) for name, file in named.items() if file.is_file())


def _stamp(file: Path) -> tuple[int, int]:
    state = file.stat()
    return state.st_size, state.st_mtime_ns


@lru_cache(maxsize=256)
def _checksum(file: Path, size: int, changed: int) -> str:
    """`size` and `changed` tell a file apart from what had its name before: a sweep of many runs reads it once."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
