"""What the shell completes besides commands, options and files.

It is asked at every press of Tab, so it looks names up in small files, and loads neither PyTorch nor the methods.
"""

from __future__ import annotations

import json
import tomllib
from importlib import resources

#: Kinds of pictures, in the order of `muster plot --help`.
PICTURES = (
    "curves",
    "curves-apart",
    "selection-map",
    "selection-frequency",
    "client-accuracy",
    "clusters",
    "cluster-numbers",
    "fairness",
    "time-to-target",
    "sensitivity",
    "ranks",
    "weights",
    "timeline",
    "staleness",
)


def methods(incomplete: str) -> list[str]:
    """Muster's own methods."""
    notes = json.loads((resources.files("muster.cli") / "method_notes.json").read_text("utf-8"))
    return [name for name in notes if name.startswith(incomplete)]


def pictures(incomplete: str) -> list[str]:
    return [name for name in PICTURES if name.startswith(incomplete)]


def entries_of_papers(incomplete: str) -> list[str]:
    """Tables and figures, such as terraform/table2."""
    found = [
        f"{paper.name}/{entry}"
        for paper in resources.files("muster.papers").iterdir()
        if (file := paper / "entries.toml").is_file()
        for entry in tomllib.loads(file.read_text("utf-8"))
        if entry != "shared"
    ]
    return [name for name in sorted(found) if name.startswith(incomplete)]
