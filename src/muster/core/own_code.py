"""A check sum of code that people bring themselves: classes and functions of a notebook, a script, a module.

A store knows runs by their settings, and a selector that was changed in its cell has the same name and the same
options as before. With the check sum of its code it is another run, and not taken for done.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: Of a class: what Python notes about it, and what says nothing about what it does.
_NOT_CODE = {
    "__module__",
    "__qualname__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__slotnames__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__match_args__",
    "__parameters__",
    "__abstractmethods__",
    "_abc_impl",
}
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, slice)


def own_code(value: object) -> str:
    """Identifies the code behind a class, a function, or an object; "" where none of it is the user's own.

    Counted are instructions, constants, defaults, and what they name: functions and classes of one's own, numbers,
    texts and arrays. Comments and the place in a file are not. Another version of Python compiles to other
    instructions, and so gives another check sum.

    >>> own_code(len), own_code(hashlib.sha256)
    ('', '')
    """
    behind: object = value if isinstance(value, type | types.FunctionType) else type(value)
    if isinstance(value, functools.partial):
        behind = value.func
    if not _is_own(behind):
        return ""
    walk = _Walk()
    walk.take(behind)
    return walk.check()


def _is_own(thing: object) -> bool:
    """Whether a function, or a class or one of its bases, is neither Muster's nor an installed package's."""
    if isinstance(thing, type):
        return any(_is_own_module(base.__module__) for base in thing.__mro__)
    return isinstance(thing, types.FunctionType) and _is_own_module(thing.__module__)


def _is_own_module(name: str | None) -> bool:
    top = (name or "__main__").partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return True
    if top == "muster" or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is None or not _is_installed(Path(file))


def _is_installed(file: Path) -> bool:
    folders = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    return any(map(file.is_relative_to, folders)) or bool({"site-packages", "dist-packages"} & set(file.parts))


class _Walk:
    """Goes through code and what it names, everything once, in an order that follows from the code alone."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        #: By id, with the thing itself, so that an id is not given to another meanwhile.
        self._seen: dict[int, object] = {}

    def check(self) -> str:
        return self._hash.hexdigest()[:16]

    def _note(self, *words: object) -> None:
        self._hash.update(repr(words).encode())

    def take(self, thing: Any) -> None:  # noqa: PLR0912 (a case for each kind)
        if isinstance(thing, _PLAIN):
            self._note(type(thing).__name__, thing)
            return
        match thing:
            case types.CodeType():
                self._code(thing)
            case types.FunctionType():
                self._once(thing, self._function)
            case type():
                self._once(thing, self._class)
            case types.ModuleType():
                self._note("module", thing.__name__)
            case staticmethod() | classmethod() | types.MethodType():
                self._note(type(thing).__name__)
                self.take(thing.__func__)
            case property():
                self._each("property", (thing.fget, thing.fset, thing.fdel))
            case functools.partial():
                self._each("partial", (thing.func, thing.args, thing.keywords))
            case tuple():
                self._each("tuple", thing)
            case list():
                self._once(thing, lambda values: self._each("list", values))
            case set() | frozenset():
                self._each("set", sorted(thing, key=repr))
            case dict():
                self._once(thing, lambda values: self._named("dict", {repr(k): v for k, v in values.items()}))
            case np.ndarray() | np.generic():
                self._note("array", thing.shape, str(thing.dtype), np.ascontiguousarray(thing).tobytes())
            case _:
                self._once(thing, self._object)

    def _once(self, thing: Any, go_into: Callable[[Any], None]) -> None:
        if id(thing) in self._seen:
            self._note("seen", list(self._seen).index(id(thing)))
            return
        self._seen[id(thing)] = thing
        go_into(thing)

    def _each(self, kind: str, things: Iterable[Any]) -> None:
        things = list(things)
        self._note(kind, len(things))
        for thing in things:
            self.take(thing)

    def _named(self, kind: str, things: Mapping[str, Any]) -> None:
        self._note(kind, len(things))
        for name in sorted(things):
            self._note(name)
            self.take(things[name])

    def _code(self, code: types.CodeType) -> None:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._note("code", code.co_code, names, counts)
        self._each("constants", code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        if not _is_own(function):
            self._note("function", function.__module__, function.__qualname__)
            self.take(getattr(function, "__wrapped__", None))
            return
        self.take(function.__code__)
        self.take(function.__defaults__)
        self.take(function.__kwdefaults__)
        self._each("closure", map(_content, function.__closure__ or ()))
        known = function.__globals__
        self._named("globals", {name: known[name] for name in _global_names(function.__code__) if name in known})

    def _class(self, cls: type) -> None:
        if not _is_own_module(cls.__module__):
            self._note("class", cls.__module__, cls.__qualname__)
            return
        self._each(f"class {cls.__qualname__}", cls.__bases__)
        self._named("body", {name: part for name, part in vars(cls).items() if name not in _NOT_CODE})

    def _object(self, thing: Any) -> None:
        self.take(type(thing))
        self.take(getattr(thing, "__wrapped__", None))  # of functools.cache
        if _is_own(type(thing)):
            self._named("attributes", getattr(thing, "__dict__", {}))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _global_names(code: types.CodeType) -> set[str]:
    """What code looks up among the names of its module, functions inside it included; attributes are not."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    looked_up = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return looked_up.union(*map(_global_names, inner))
