"""One name, one class: a reader who meets a class in one room is not misled by another one elsewhere."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import muster

#: Methods with a half on the server and a half on clients, both named as in their paper.
HALVES = {"FedDyn", "Scaffold"}


def test_no_two_classes_have_the_same_name():
    root = Path(muster.__file__).parent
    places = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(root)))
    assert len(places) > 400
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in HALVES} == {}
    assert all(len(places[name]) == 2 for name in HALVES)
