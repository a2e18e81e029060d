"""From a module to a chain of layers that know how to train many clients at once, or the reason why not."""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn

from muster.core.parameters import ParameterSpec, SpecEntry, frozen_parts, spec_of
from muster.engine.vectorised import layers, norms
from muster.engine.vectorised.layers import Batch, Layer
from muster.engine.vectorised.stack import Stack, StackLayout, Step

#: Functions of single numbers without parameters.
POINTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU6,
    nn.SELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
)
_FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    torch.relu: nn.ReLU,
    nn.functional.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    nn.functional.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    nn.functional.sigmoid: nn.Sigmoid,
    nn.functional.gelu: nn.GELU,
    nn.functional.silu: nn.SiLU,
    nn.functional.elu: nn.ELU,
    nn.functional.leaky_relu: nn.LeakyReLU,
    torch.flatten: nn.Flatten,
}
_METHODS: dict[Any, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "flatten": nn.Flatten,
}


class Unsupported(Exception):
    """Why a module cannot be trained for many clients at once; the message completes a sentence."""


@dataclass(frozen=True)
class Chain:
    """A model as a chain of layers."""

    layers: tuple[Layer, ...]
    layout: StackLayout
    #: The first layer with trained parameters: gradients need not go further back.
    first: int
    draws: bool

    def bind(self, stack: Stack) -> None:
        for layer in self.layers:
            layer.bind(stack)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in self.layers:
            x = layer.forward(x, batch)
        return x

    def backward(self, gradient: torch.Tensor, step: Step) -> None:
        for number in range(len(self.layers) - 1, self.first - 1, -1):
            inner = self.layers[number].backward(gradient, step, inward=number > self.first)
            if inner is not None:
                gradient = inner


def chain_of(module: nn.Module) -> Chain:
    """The chain that computes what `module` computes in training; `Unsupported` where there is none."""
    spec, named = spec_of(module), dict(module.named_parameters())
    still = tuple(f"{name}." for name, _ in frozen_parts(module))
    parts: list[Layer] = []
    for name, part in _steps(module):
        if f"{name}.".startswith(still) and isinstance(part, nn.Dropout):
            continue  # frozen parts compute as in evaluation
        if f"{name}.".startswith(still) and any(True for _ in part.buffers()):
            raise Unsupported(f"{_called(name, part)} is frozen")
        layer = _layer(name, part, spec, follows=parts[-1] if parts else None)
        if layer is not None:
            parts.append(layer)
    used = {entry.name for layer in parts for entry in layer.entries}
    if len(used) < sum(len(layer.entries) for layer in parts):
        raise Unsupported("two of its layers share parameters")
    trained = {name for name, parameter in named.items() if parameter.requires_grad}
    constants = {name: named[name].detach().clone() for name in used - trained}
    layout = StackLayout(spec, frozenset(trained & used), constants)
    first = next((n for n, layer in enumerate(parts) if any(e.name in trained for e in layer.entries)), None)
    if first is None:
        raise Unsupported("none of its layers is trained")
    return Chain(tuple(parts), layout, first, draws=any(isinstance(part, layers.Dropout) for part in parts))


#: Tracing replaces `nn.Module.__call__` in the whole process: one at a time, or the wrong one is put back.
_TRACING = threading.Lock()


class _OneThread(fx.Tracer):
    """Follows the calls of its own thread; those of others, where another run computes, go through untouched."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)


def _steps(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that `forward` calls, in order, with their names; functions as modules without a name."""
    if _has_hooks(module):
        raise Unsupported("it has hooks")
    leaf = fx.Tracer().is_leaf_module(module, "") and not isinstance(module, nn.Sequential)
    if leaf:
        return [("", module)]
    try:
        with _TRACING:
            graph = _OneThread().trace(module)
    except Exception as error:  # a user's forward may raise anything when it is run on symbols
        raise Unsupported(f"its forward cannot be followed ({type(error).__name__}: {error})") from error
    nodes = list(graph.nodes)
    if [node.op for node in nodes].count("placeholder") != 1:
        raise Unsupported("its forward takes more than one input")
    found = []
    for before, node in pairwise(nodes):
        if node.all_input_nodes != [before] or len(before.users) != 1:
            raise Unsupported("its layers do not form a chain")
        if node.op == "call_module":
            found.append((str(node.target), module.get_submodule(str(node.target))))
        elif node.op != "output":
            found.append(("", _function(node)))
    return found


def _function(node: fx.Node) -> nn.Module:
    made = (_METHODS if node.op == "call_method" else _FUNCTIONS).get(node.target)
    name = getattr(node.target, "__name__", str(node.target))
    if made is None:
        raise Unsupported(f"it calls {name}")
    options, arguments = dict(node.kwargs), list(node.args[1:])
    options.pop("inplace", None)
    if made is nn.Flatten:
        first = arguments[0] if arguments else options.get("start_dim", 0)
        last = arguments[1] if len(arguments) > 1 else options.get("end_dim", -1)
        return nn.Flatten(operator.index(first), operator.index(last))  # type: ignore[arg-type]
    if arguments or options:
        raise Unsupported(f"it calls {name} with options")
    return made()


def _layer(name: str, part: nn.Module, spec: ParameterSpec, follows: Layer | None) -> Layer | None:
    """The layer for a module; None for one that does nothing."""
    if _has_hooks(part):
        raise Unsupported(f"{_called(name, part)} has hooks")

    def entry(tensor: str) -> SpecEntry:
        values, full = part.get_parameter(tensor), f"{name}.{tensor}" if name else tensor
        # What is frozen has no place in the flat vector, but a name and a shape.
        return spec.entry(full) if values.requires_grad else SpecEntry(full, tuple(values.shape), 0, 0)

    def optional(tensor: str) -> SpecEntry | None:
        return None if getattr(part, tensor) is None else entry(tensor)

    kind = type(part)
    if isinstance(part, nn.Linear) and kind is nn.Linear:
        return layers.Linear(entry("weight"), optional("bias"))
    if isinstance(part, nn.Embedding | nn.EmbeddingBag) and kind in (nn.Embedding, nn.EmbeddingBag):
        return _embedding(name, part, entry("weight"))
    if kind in (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d):
        running = [spec.entry(f"{name}.{tensor}" if name else tensor) for tensor, _ in part.named_buffers()]
        return _normalisation(part, optional("weight"), optional("bias"), running)
    if kind is nn.ReLU:
        return layers.Relu(in_place=follows is not None and follows.gives_away)
    if isinstance(part, nn.Dropout) and kind is nn.Dropout:
        return layers.Dropout(part.p) if part.p > 0 else None
    if isinstance(part, nn.Flatten):
        if part.start_dim < 1:
            raise Unsupported(f"{_called(name, part)} merges samples")
        return layers.Flatten(part.start_dim, part.end_dim)
    if kind is nn.Identity:
        return None
    if kind in POINTWISE:
        return layers.Pointwise(_not_in_place(part))
    raise Unsupported(f"it has the layer {_called(name, part)}")


def _normalisation(
    part: nn.Module, weight: SpecEntry | None, bias: SpecEntry | None, running: list[SpecEntry]
) -> Layer:
    match part:
        case nn.LayerNorm():
            return norms.LayerNorm(weight, bias, tuple(part.normalized_shape), part.eps)
        case nn.GroupNorm():
            return norms.GroupNorm(weight, bias, part.num_groups, part.eps)
        case nn.BatchNorm1d() if part.momentum is not None and part.track_running_stats:
            return norms.BatchNorm(weight, bias, running, part.eps, part.momentum)
    raise Unsupported(f"its {type(part).__name__} keeps no moving averages")


def _embedding(name: str, part: nn.Embedding | nn.EmbeddingBag, weight: SpecEntry) -> Layer:
    if part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
        raise Unsupported(f"{_called(name, part)} has options that change its gradients")
    if isinstance(part, nn.Embedding):
        return layers.Embedding(weight, part.padding_idx)
    if part.mode == "max" or part.include_last_offset:
        raise Unsupported(f"{_called(name, part)} is not a sum or mean")
    return layers.EmbeddingBag(weight, part.padding_idx, mean=part.mode == "mean")


def _not_in_place(part: nn.Module) -> nn.Module:
    if not getattr(part, "inplace", False):
        return part
    changed = copy.copy(part)
    changed.inplace = False  # type: ignore[assignment]
    return changed


def _has_hooks(part: nn.Module) -> bool:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, table) for table in tables)


def _called(name: str, part: nn.Module) -> str:
    return f"{type(part).__name__} '{name}'" if name else type(part).__name__
