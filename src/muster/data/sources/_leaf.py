"""LEAF's JSON files (Caldas et al. 2018): users and, for each, lists `x` and `y`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from muster.core.errors import DataError


def find_leaf(folder: Path) -> Sequence[Path]:
    """The JSON files of LEAF's `train/` and `test/` (under `data/` or not), or of `all_data/`, or nothing."""
    for place in (folder, folder / "data"):
        train, test = sorted(place.glob("train/*.json")), sorted(place.glob("test/*.json"))
        if train and test:
            return [*train, *test]
        everything = sorted(place.glob("all_data/*.json"))
        if everything:
            return everything
    return ()


def leaf_split(file: Path) -> str:
    """`train`, `test`, or `all` for files that are not split yet."""
    return file.parent.name if file.parent.name in ("train", "test") else "all"


def leaf_users(file: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """A file's users with their samples."""
    try:
        content = json.loads(file.read_text())
        for user in content["users"]:
            data = content["user_data"][user]
            if len(data["x"]) != len(data["y"]):
                raise DataError(f"{file}: user {user} has {len(data['x'])} samples and {len(data['y'])} labels")
            yield user, data["x"], data["y"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(
            f"{file} is not one of LEAF's JSON files ({type(problem).__name__}: {problem})",
            expected="an object with 'users' and 'user_data'",
        ) from problem
