"""The page's own files, read once: what is not among them cannot be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from muster.report.style import page_palette

_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class File:
    """What is sent for a name."""

    content: bytes
    kind: str


@cache
def static_files() -> dict[str, File]:
    """By name, as in addresses; colours, type and tables are those of reports."""
    found = dict(_below(files("muster.ui") / "static", ""))
    found["palette.css"] = File(page_palette().encode(), _KINDS["css"])
    found["common.css"] = File((files("muster.report") / "templates" / "common.css").read_bytes(), _KINDS["css"])
    return found


def _below(folder: Traversable, prefix: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found += _below(item, f"{prefix}{item.name}/")
        elif (kind := _KINDS.get(item.name.rpartition(".")[2])) is not None:
            found.append((f"{prefix}{item.name}", File(item.read_bytes(), kind)))
    return found
