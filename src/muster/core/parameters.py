"""A model's parameters as one flat float32 vector, and the spec that describes its layout.

Order: trainable parameters, then float buffers (running means), then counters (integer buffers). Aggregation
averages the first two; counters are copied from one client, because a mean of counters means nothing. What is
frozen is not in the vector: all sides have it already, so it neither travels nor counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Ints, State, Vector
from muster.core.errors import ConfigError

#: float32 holds integers exactly below this; larger counters cannot travel in the flat vector.
LARGEST_COUNTER = 2**24

#: The fields of a spec that hold tensors.
_GROUPS = ("parameters", "buffers", "counters")


@dataclass(frozen=True)
class SpecEntry:
    """One tensor of the model and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class ParameterSpec:
    """The layout of the flat vector."""

    parameters: tuple[SpecEntry, ...]
    buffers: tuple[SpecEntry, ...] = ()
    counters: tuple[SpecEntry, ...] = ()
    #: Name of the classification layer, e.g. "fc2"; its weight has one row per class. "" is the model itself.
    final_layer_name: str = ""
    has_final_layer: bool = True
    #: A digest of what is frozen, which all sides must have alike; "": everything is trained.
    frozen: str = ""

    @cached_property
    def entries(self) -> tuple[SpecEntry, ...]:
        return (*self.parameters, *self.buffers, *self.counters)

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.entries[-1].stop if self.entries else 0

    @cached_property
    def trainable(self) -> slice:
        return slice(0, self.parameters[-1].stop if self.parameters else 0)

    @cached_property
    def averaged(self) -> slice:
        """Everything that aggregation may average: all but the counters."""
        return slice(0, self.counters[0].start if self.counters else self.size)

    @cached_property
    def counted(self) -> slice:
        return slice(self.averaged.stop, self.size)

    @cached_property
    def variances(self) -> Ints:
        """Where running variances are, by the name that PyTorch's normalisation layers give them."""
        return _places_of("running_var", self.buffers)

    @cached_property
    def batch_counts(self) -> Ints:
        """Where normalisation layers count their mini-batches."""
        return _places_of("num_batches_tracked", self.counters)

    def entry(self, name: str) -> SpecEntry:
        return next(entry for entry in self.entries if entry.name == name)

    def _final(self, part: str) -> SpecEntry | None:
        if not self.has_final_layer:
            return None
        name = f"{self.final_layer_name}.{part}" if self.final_layer_name else part
        return next((entry for entry in self.parameters if entry.name == name), None)

    @property
    def final_outputs(self) -> int | None:
        """The classification layer's number of outputs; None when no such layer is recognisable."""
        entry = self._final("weight")
        return None if entry is None else entry.shape[0]

    @cached_property
    def final_weight(self) -> SpecEntry:
        entry = self._final("weight")
        if entry is None:
            raise ConfigError(
                "the model has no recognisable classification layer",
                expected="a last nn.Linear (or convolution) with a weight",
                fix="give the model an attribute `final_layer = 'name of the layer'`",
            )
        return entry

    @cached_property
    def final_bias(self) -> SpecEntry | None:
        return self._final("bias")

    @cached_property
    def final_layer(self) -> slice:
        """The classification layer's weight and bias: neighbours in the vector."""
        weight, bias = self.final_weight, self.final_bias
        if bias is None:
            return weight.slice
        return slice(min(weight.start, bias.start), max(weight.stop, bias.stop))

    @property
    def bytes(self) -> int:
        return 4 * self.size

    def state_dict(self) -> State:
        return self._state

    @cached_property
    def _state(self) -> State:
        return asdict(self)

    @classmethod
    def from_state(cls, values: State) -> ParameterSpec:
        groups = {name: tuple(SpecEntry(**row) for row in values[name]) for name in _GROUPS}
        return cls(**{**values, **groups})


def _places_of(name: str, entries: tuple[SpecEntry, ...]) -> Ints:
    """The positions of all tensors that their modules call `name`."""
    found = [np.arange(entry.start, entry.stop) for entry in entries if entry.name.rpartition(".")[2] == name]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def spec_of(model: nn.Module) -> ParameterSpec:
    """The layout of `model`, or a ConfigError that says which part of it the flat vector cannot hold."""
    check_can_be_flat(model)
    still = tuple(f"{name}." for name, _ in frozen_parts(model))
    parameters, at = _lay_out([(n, p.shape) for n, p in model.named_parameters() if p.requires_grad], 0)
    persistent = model.state_dict(keep_vars=True).keys()
    kept = {
        name: tensor for name, tensor in model.named_buffers() if name in persistent and not name.startswith(still)
    }
    buffers, at = _lay_out([(n, b.shape) for n, b in kept.items() if b.is_floating_point()], at)
    counters, _ = _lay_out([(n, b.shape) for n, b in kept.items() if not b.is_floating_point()], at)
    final = _final_layer_name(model)
    travelling = {entry.name for entry in (*parameters, *buffers, *counters)}
    return ParameterSpec(
        parameters,
        buffers,
        counters,
        final or "",
        has_final_layer=final is not None,
        frozen=_digest_of_frozen(model, travelling),
    )


def head_name(model: nn.Module) -> str | None:
    """The part that classifies: what the model calls `head_part`, or its classification layer; "" is all of it."""
    declared = getattr(model, "head_part", None)
    return declared if isinstance(declared, str) else _final_layer_name(model)


def _lone_head(model: nn.Module) -> str:
    """The name of the head where there are parameters beside it and none of them is trained; else ""."""
    head = head_name(model)
    if not head:
        return ""
    # Tied parameters have several names, of which one may be in the head.
    named = model.named_parameters(remove_duplicate=False)
    beside = [parameter.requires_grad for name, parameter in named if not name.startswith(f"{head}.")]
    return head if beside and not any(beside) else ""


def frozen_parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The largest parts of a model that have parameters and train none of them, with their names.

    Where nothing but the head is trained, parts without parameters beside it are frozen too.
    """
    return _frozen_within(model, "", _lone_head(model))


def _frozen_within(part: nn.Module, name: str, head: str) -> Iterator[tuple[str, nn.Module]]:
    flags = [parameter.requires_grad for parameter in part.parameters()]
    leads_to_head = bool(head) and f"{head}.".startswith(f"{name}." if name else "")
    beside_head = bool(head) and not leads_to_head and not name.startswith(f"{head}.")
    if not any(flags) and (flags or beside_head):
        yield name, part
    elif not all(flags) or (leads_to_head and name != head):
        for child, inner in part.named_children():
            yield from _frozen_within(inner, f"{name}.{child}" if name else child, head)


def in_training(model: nn.Module) -> nn.Module:
    """The model in training mode, except for its frozen parts, which compute as in evaluation.

    So running statistics and dropout of what is frozen stand still too: its outputs depend on the sample alone.
    Where nothing but the head is trained, all but the head computes as in evaluation.
    """
    _enter_training(model, _trained_part(model), [part for _, part in frozen_parts(model)])
    return model


def _trained_part(model: nn.Module) -> nn.Module:
    return model.get_submodule(_lone_head(model))


def _enter_training(model: nn.Module, trained: nn.Module, still: list[nn.Module]) -> None:
    model.train(trained is model)
    trained.train()
    for part in still:
        part.eval()


#: An attribute of a model whose frozen parts are kept elsewhere: their digest.
FROZEN_ELSEWHERE = "frozen_elsewhere"


def _digest_of_frozen(model: nn.Module, travelling: set[str]) -> str:
    """Of names, shapes and numbers of all tensors that do not travel."""
    elsewhere = getattr(model, FROZEN_ELSEWHERE, "")
    if elsewhere:
        return str(elsewhere)
    trained = {id(p) for p in model.parameters() if p.requires_grad}  # tied ones have several names
    still = {
        name: tensor.detach()
        for name, tensor in model.state_dict(keep_vars=True).items()
        # What a module keeps as its extra state may be anything.
        if isinstance(tensor, torch.Tensor) and name not in travelling and id(tensor) not in trained
    }
    if not any(tensor.numel() for tensor in still.values()):
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(still.items()):
        if tensor.device.type == "meta":  # shapes alone, to count operations
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _lay_out(named: list[tuple[str, torch.Size]], at: int) -> tuple[tuple[SpecEntry, ...], int]:
    entries = []
    for name, shape in named:
        entries.append(SpecEntry(name, tuple(shape), at, at + shape.numel()))
        at += shape.numel()
    return tuple(entries), at


def check_can_be_flat(model: nn.Module) -> None:
    """Refuse a model whose tensors are not plain numbers, or of which nothing can be trained."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ConfigError(
                f"the model's tensor '{name}' is lazy: its shape is not known yet",
                fix="run one batch through the model before you pass it, or give the input sizes",
            )
        if tensor.is_complex():
            raise ConfigError(f"the model's tensor '{name}' is complex", expected="real floating-point parameters")
        if tensor.dtype is torch.bfloat16:
            raise ConfigError(
                f"the model's tensor '{name}' is bfloat16", expected="float32", fix="pass model.float()"
            )
        if tensor.is_sparse or tensor.is_quantized:
            raise ConfigError(f"the model's tensor '{name}' is sparse or quantised", expected="dense tensors")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "the model has no trainable parameters",
            expected="at least one parameter with requires_grad",
            fix="unfreeze the layers that clients should train",
        )
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ConfigError(f"the model's parameter '{name}' is {parameter.dtype}", expected="floating point")


def _final_layer_name(model: nn.Module) -> str | None:
    declared = getattr(model, "final_layer", None)
    if isinstance(declared, str):
        return declared
    last = None
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv1d):
            last = name
    return last


class FlatModel:
    """A module whose tensors can be read from and written to a flat vector."""

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.spec = spec_of(module)
        self.device = torch.device(device)
        convolutional = any(isinstance(m, nn.Conv2d) for m in module.modules())
        self.memory_format = torch.channels_last if convolutional else torch.contiguous_format
        self.module = module.to(self.device, torch.float32)
        if convolutional:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        self._tensors = [(entry, tensors[entry.name]) for entry in self.spec.entries]
        self._trained, self._still = _trained_part(module), [part for _, part in frozen_parts(module)]

    def train(self) -> nn.Module:
        """The module in training mode, except for its frozen parts (see `in_training`)."""
        _enter_training(self.module, self._trained, self._still)
        return self.module

    @torch.no_grad()
    def load(self, flat: torch.Tensor) -> None:
        """Copy the flat vector into the model."""
        for entry, tensor in self._tensors:
            tensor.copy_(flat[entry.start : entry.stop].view(entry.shape))

    @torch.no_grad()
    def store(self, out: torch.Tensor) -> None:
        """Copy the model into the flat vector `out`."""
        for entry, tensor in self._tensors:
            out[entry.start : entry.stop].view(entry.shape).copy_(tensor)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat vector that belong to the trainable parameters, in the order of the parameters."""
        return [flat[entry.slice].view(entry.shape) for entry, tensor in self._tensors if tensor.requires_grad]

    @torch.no_grad()
    def store_movement(self, origin: torch.Tensor, out: torch.Tensor) -> None:
        """Write model − origin into `out`; counters are written as they are, not as a difference."""
        for entry, tensor in self._tensors:
            place = out[entry.slice].view(entry.shape)
            if entry.start < self.spec.averaged.stop:
                # One pass over memory: for a large model and a short training two would be noticeable.
                torch.sub(tensor.to(place.device), origin[entry.slice].view(entry.shape), out=place)
            else:
                place.copy_(tensor)

    def vector(self) -> Vector:
        """The model as a new flat NumPy vector."""
        out = torch.empty(self.spec.size)
        self.store(out)
        if bool((out[self.spec.counted].abs() >= LARGEST_COUNTER).any()):
            raise ConfigError("a counter of the model is too large for the flat vector", expected="below 2**24")
        return np.asarray(out.numpy())
