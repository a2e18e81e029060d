"""Settings from TOML files, with errors that help, and as TOML text that is read back as it was."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from muster.core.errors import ConfigError


def read_toml(path: Path, what: str, *, fix: str = "check the path") -> dict[str, Any]:
    """The content of a file; `what` it is meant to be, and what to do when it is not there, for messages."""
    try:
        # Some editors put a mark before the text, which TOML does not have.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not valid TOML: byte {error.start} is not UTF-8",
            expected=f"the {what} as text in UTF-8",
            fix="save it as UTF-8 in your editor",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            f"{path} is not valid TOML: its lists or tables are too deep", fix="flatten it"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}",
            fix="look at that line: texts need quotes, and a key stands once in its section",
        ) from error


def to_toml(values: Mapping[str, Any]) -> str:
    """A document: plain keys first, then one table per section. None, which TOML does not have, is left out."""
    return _lists_on_one_line(tomli_w.dumps(_without_none(values)))


def toml_value(value: Any) -> str:
    """One value on one line."""
    # In a list of lists nothing becomes a table of its own.
    text = tomli_w.dumps({"x": [[_without_none(value)]]})
    return _lists_on_one_line(text, of_tables=True).removeprefix("x = [[").removesuffix("]]\n")


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def _lists_on_one_line(text: str, of_tables: bool = False) -> str:
    """Lists of numbers and words as people write them, and on request those of tables: tomli-w gives every item
    a line of its own. Only such lines are indented, or begin with `]`."""
    lines: list[str] = []
    # Not `splitlines`, which also splits at characters that texts may have.
    for line in text.split("\n"):
        inner = line.lstrip(" ")
        ends_tables = line.startswith("]") and lines[-1].startswith(" ")
        if not of_tables and (inner.startswith("{") or ends_tables):
            lines.append(line)
        elif inner.startswith("]"):
            lines[-1] = lines[-1].removesuffix(",") + inner
        elif inner != line:
            lines[-1] += inner if lines[-1].endswith("[") else f" {inner}"
        else:
            lines.append(line)
    return "\n".join(lines)
