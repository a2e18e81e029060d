"""Checksums of users' own code and objects, from a notebook, a script or a module.

A store knows runs by their settings, and a selector that was changed in its cell has the same name and the same
options as before. With the checksum of its code it is another run, and not taken for done. The same goes for
objects that are not settings: a loss with other arguments is another loss.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import nn

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
    "__orig_bases__",
    "__abstractmethods__",
    "_abc_impl",
}
#: Where a network has its numbers and its parts.
_OF_MODULE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, slice)


def own_code(value: object) -> str:
    """Identifies the code behind a class, a function, or an object; "" where none of it is the user's own.

    Counted are instructions, constants, defaults, and what they name: functions and classes of one's own, numbers,
    texts and arrays. Comments and the place in a file are not. Another version of Python compiles to other
    instructions, and so gives another checksum.

    >>> own_code(len), own_code(hashlib.sha256)
    ('', '')
    """
    behind: object = value if isinstance(value, type | types.FunctionType) else type(value)
    if isinstance(value, functools.partial):
        behind = value.func
    if not is_own(behind):
        return ""
    walk = _Walk()
    walk.take(behind)
    return walk.check()


def content(value: object, numbers: bool = True) -> str:
    """Identifies an object by all that it has, and by the code of its class where that is the user's own.

    Without `numbers`, the parameters and buffers of a network do not count, only how it is built.

    >>> content(nn.CrossEntropyLoss()) == content(nn.CrossEntropyLoss(label_smoothing=0.5))
    False
    """
    walk = _Walk(numbers)
    if _has_own_case(value) or is_own(type(value)):
        walk.take(value)
    else:
        # What an installed package's object has counts here; further inside, its class has to do: such objects may
        # have locks, files and half of their package.
        walk.take((type(value), _attributes(value)))
    return walk.check()


def _has_own_case(value: object) -> bool:
    cases = (*_PLAIN, nn.Module, torch.Tensor, np.ndarray, np.generic, functools.partial, types.MethodType)
    return isinstance(value, (*cases, tuple, list, set, frozenset, dict)) or dataclasses.is_dataclass(value)


def _attributes(thing: object) -> dict[str, Any]:
    """What an object has, in its slots, too."""
    slots = [name for cls in type(thing).__mro__ for name in _as_names(vars(cls).get("__slots__", ()))]
    inside = {name: getattr(thing, name) for name in slots if not name.startswith("__") and hasattr(thing, name)}
    return inside | getattr(thing, "__dict__", {})


def _as_names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def is_own(thing: object) -> bool:
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

    def __init__(self, numbers: bool = True) -> None:
        self._hash = hashlib.sha256()
        self._numbers = numbers
        #: By id, with the thing itself, so that an id is not given to another meanwhile.
        self._seen: dict[int, object] = {}

    def check(self) -> str:
        return self._hash.hexdigest()[:16]

    def _note(self, *words: object) -> None:
        self._hash.update(repr(words).encode())

    def take(self, thing: Any) -> None:  # noqa: PLR0912 (a case for each kind)
        if isinstance(thing, enum.Enum):
            self._note("enum", type(thing).__qualname__, thing.name)
            return
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
            case staticmethod() | classmethod():
                self._note(type(thing).__name__)
                self.take(thing.__func__)
            case types.MethodType():
                self._each("method", (thing.__func__, thing.__self__))
            case types.BuiltinFunctionType() | np.ufunc():
                self._note("builtin", getattr(thing, "__module__", ""), thing.__name__)
            case property():
                self._each("property", (thing.fget, thing.fset, thing.fdel))
            case functools.partial():
                self._each("partial", (thing.func, thing.args, thing.keywords))
            case tuple():
                self._each("tuple", thing)
            case list() | deque():
                self._once(thing, lambda values: self._each("list", values))
            case set() | frozenset():
                self._each("set", sorted(thing, key=self._rank))
            case dict() | types.MappingProxyType():
                self._once(thing, self._dict)
            case np.ndarray() | np.generic():
                self._array(np.asarray(thing))
            case torch.Tensor():
                self._tensor(thing)
            case nn.Module():
                self._once(thing, self._module)
            case torch.dtype() | torch.device() | np.dtype() | PurePath():
                self._note(type(thing).__name__, str(thing))
            case _:
                self._once(thing, self._object)

    def _rank(self, thing: Any) -> tuple[str, str]:
        """Where an entry of a set or a key comes, whatever its address and its hash are."""
        if isinstance(thing, _PLAIN):
            return type(thing).__name__, repr(thing)
        aside = _Walk(self._numbers)
        aside._seen = dict(self._seen)  # what we are inside of is not gone into again
        aside.take(thing)
        return "", aside.check()

    def _dict(self, values: Mapping[Any, Any]) -> None:
        self._note("dict", len(values))
        for key in sorted(values, key=self._rank):
            self.take(key)
            self.take(values[key])

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self._note("array", array.shape, str(array.dtype))
        if array.dtype.hasobject:
            self.take(array.tolist())
        else:
            self._hash.update(np.ascontiguousarray(array).tobytes())

    def _tensor(self, tensor: torch.Tensor, numbers: bool = True) -> None:
        self._note("tensor", tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        if numbers and tensor.device.type != "meta":
            dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
            flat = dense.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            self._hash.update(flat.view(torch.uint8).numpy().tobytes())

    def _module(self, module: nn.Module) -> None:
        self.take(type(module))
        inside = vars(module)
        rest = {name: value for name, value in inside.items() if name not in _OF_MODULE}
        # Hooks are kept under numbers that say only how many were made before.
        hooks = {
            name: list(value.values()) for name, value in rest.items() if name.endswith(("_hooks", "_kwargs"))
        }
        self._named("attributes", rest | hooks)
        passing = inside["_non_persistent_buffers_set"]
        for name, tensor in (*inside["_parameters"].items(), *inside["_buffers"].items()):
            self._note("tensor of", name, name in passing)
            if tensor is not None:
                self._tensor(tensor, self._numbers or name in passing)
        for name, part in inside["_modules"].items():  # in the order in which they may be applied
            self._note("part", name)
            self.take(part)

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
        if not is_own(function):
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
        if is_own(type(thing)):
            self._named("attributes", _attributes(thing))
        elif dataclasses.is_dataclass(thing):
            self._named("fields", {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)})


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
