"""Settings as TOML text that `tomllib` reads back as they were."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(values: Mapping[str, Any]) -> str:
    """A document: plain keys first, then one table per section. None, which TOML does not have, is left out."""
    return "\n".join(_lines(values, ())).strip() + "\n"


def toml_value(value: Any) -> str:
    """One value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's strings are TOML's, except for DEL, which TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            inside = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in values_of(value))
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case float() | int():
            return repr(value)
    raise TypeError(f"TOML has no {type(value).__name__}")


def values_of(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in values.items() if value is not None]


def _lines(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    kept = values_of(values)
    plain = [(key, value) for key, value in kept if not isinstance(value, Mapping) and not _is_rows(value)]
    if path and (plain or not kept):
        yield f"[{_joined(path)}]"
    yield from (f"{_key(key)} = {toml_value(value)}" for key, value in plain)
    yield ""
    for key, value in kept:
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, key))
        elif _is_rows(value):
            for row in value:
                yield f"[[{_joined((*path, key))}]]"
                yield from (f"{_key(name)} = {toml_value(item)}" for name, item in values_of(row))
                yield ""


def _is_rows(value: Any) -> bool:
    """A list of tables."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _joined(path: tuple[str, ...]) -> str:
    return ".".join(map(_key, path))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)
