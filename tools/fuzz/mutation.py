"""Inputs that are almost valid: valid examples with something changed in them, drawn from a seed."""

from __future__ import annotations

import copy
import random
from typing import Any

#: What programs like to trip over, of every type that TOML, JSON and a database know.
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 255, 65_536, 2**31, 2**63, 2**64, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "x", "\x00", "𝔘\ud800", "-1", "nan", "1e999", "../../etc/passwd", "%s%n", "a" * 5000, "\n[x]\n"),
    *(
        [],
        {},
        [[]],
        [None],
        [1, "a"],
        {"": 0},
        {"method": {}},
        {"a": {"b": {"c": []}}},
        b"",
        b"\x80\x04c",
        b"\xff" * 9,
    ),
)
#: As NASTY, but no number that asks for a lot of memory: what an experiment says is what it gets.
SMALL = tuple(v for v in NASTY if not isinstance(v, bytes) and (type(v) is not int or abs(v) <= 255))


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut out, repeated, swapped or put in, at up to eight places."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, length = rng.randrange(len(found) + 1), rng.choice((1, 1, 2, 4, 16, 200))
        match rng.randrange(6):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = found[at : at + length] * rng.choice((1, 1, 50))
            case 3:
                found[at:at] = rng.choice((b"\x00", b"\xff\xff\xff\x7f", b'"', b"[", b"=", b"1e999", b"\n", b"{}"))
            case 4:
                del found[at:]
            case 5 if found:
                found[at : at + 1] = bytes([found[at % len(found)] ^ (1 << rng.randrange(8))])
    return bytes(found)


def changed_tree(rng: random.Random, tree: Any, nasty: tuple[Any, ...] = NASTY) -> Any:
    """A copy of nested dicts and lists in which up to three values or keys are others, missing or in excess."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = [(tree, key) for key in _keys(tree)]
        for holder, key in places:
            inner = holder[key]
            places += [(inner, each) for each in _keys(inner)]
        if not places:
            return rng.choice(nasty)
        holder, key = rng.choice(places)
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("method", "x", "", key if isinstance(key, str) else "y"))] = rng.choice(nasty)
            case 2:
                holder[key] = copy.deepcopy(rng.choice(places)[0])
            case 3 if isinstance(holder, list):
                holder.insert(key, rng.choice(nasty))
            case 4 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
                holder[key] = rng.choice((-holder[key], holder[key] + 1, float(holder[key]), str(holder[key])))
            case _:
                holder[key] = copy.deepcopy(rng.choice(nasty))
    return tree


def deep(kind: str, levels: int = 20_000) -> str:
    """Brackets in brackets: too deep for a parser that calls itself."""
    return kind * levels


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []
