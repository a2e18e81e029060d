"""Frozen parts of a network: they neither train nor travel, and what they compute need be computed only once."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster.core.errors import ConfigError, nearest
from muster.core.parameters import FROZEN_ELSEWHERE, head_name, spec_of

#: The value of `model.freeze` for everything but the classification layer.
BACKBONE = "backbone"
#: How far a network and its two halves may differ, relative to its outputs: rounding, nothing else.
_ROUNDING = 1e-4


def freeze(module: nn.Module, what: str | Sequence[str]) -> None:
    """Let some parts of a network stay as they are: all but its head (`"backbone"`), or those of these names."""
    if option := getattr(module, "frozen_by", ""):
        raise ConfigError(f"model.freeze and {option} both say what is trained", fix="keep one of them")
    if what == BACKBONE and (declared := getattr(module, "backbone_parts", ())):
        what = declared
    if what == BACKBONE:
        _freeze_backbone(module)
        return
    if isinstance(what, str):
        what = [what]
    parts = dict(module.named_modules())
    del parts[""]
    for name in what:
        if name not in parts:
            known = [part for part in parts if part.count(".") < 2]
            raise ConfigError(
                f"model.freeze: the model has no part '{name}'", expected=nearest(name, [BACKBONE, *known])
            )
        if not any(True for _ in parts[name].parameters()):
            raise ConfigError(
                f"model.freeze: the part '{name}' has no parameters that could be frozen",
                fix="leave it out, or name a part with layers that are trained",
            )
        parts[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(
            "model.freeze leaves nothing to train", fix="leave a part out, such as the classification layer"
        )


def _freeze_backbone(module: nn.Module) -> None:
    head = module.get_submodule(head_of(module))
    trained = {id(parameter) for parameter in head.parameters()}
    frozen = [parameter for parameter in module.parameters() if id(parameter) not in trained]
    if not frozen:
        raise ConfigError(
            "model.freeze = 'backbone': the model is a classification layer and nothing else",
            fix="leave model.freeze out",
        )
    for parameter in frozen:
        parameter.requires_grad_(False)


def head_of(module: nn.Module) -> str:
    """The name of the part that classifies: what the model calls `head_part`, or its classification layer."""
    name = head_name(module)
    if not name:
        raise ConfigError(
            "the model has no recognisable part that classifies",
            expected="a last nn.Linear (or convolution) inside of it",
            fix="give the model an attribute `head_part = 'name of the part'`",
        )
    return name


@dataclass(frozen=True)
class Split:
    """A network as two that follow one another."""

    #: Frozen: gives the features of samples.
    backbone: nn.Module
    #: Trained: takes features. Its tensors have the names that they have in the network.
    rest: nn.Module


def split(module: nn.Module) -> Split | None:
    """A network with frozen parts as a frozen and a trained one; None where it cannot be taken apart.

    A model with a method `split_frozen` takes itself apart. Others are cut where their head begins, if all before
    it is frozen.
    """
    spec = spec_of(module)
    if not spec.frozen:
        return None
    own = getattr(module, "split_frozen", None)
    parts = own() if callable(own) else before_head(module)
    if parts is None:
        return None
    setattr(parts.rest, FROZEN_ELSEWHERE, spec.frozen)
    # What travels must be the same, or the result would not fit the network.
    return parts if spec_of(parts.rest).entries == spec.entries else None


def before_head(module: nn.Module) -> Split | None:
    """Cut where the head begins; None where something before it is trained."""
    name = head_of(module)
    named = module.named_parameters(remove_duplicate=False)  # tied ones may be in the head and before it
    if any(parameter.requires_grad and not part.startswith(f"{name}.") for part, parameter in named):
        return None
    rest: nn.Module = copy.deepcopy(module.get_submodule(name))
    for part in reversed(name.split(".")):
        rest = nn.Sequential(OrderedDict({part: rest}))
    rest.final_layer, rest.head_part = spec_of(module).final_layer_name, name  # type: ignore[assignment]
    return Split(UpToHead(copy.deepcopy(module), name), rest)


class NotCut(Exception):
    """Why a network cannot be cut before its head."""


class UpToHead(nn.Module):
    """What enters the head of a network."""

    def __init__(self, network: nn.Module, head: str) -> None:
        super().__init__()
        self.network, self._head = network, head
        # What enters the head does not depend on its numbers: features are the same, whatever they start from.
        blank = copy.deepcopy(network.get_submodule(head))
        with torch.no_grad():
            for parameter in blank.parameters():
                parameter.zero_()
        parent, _, child = head.rpartition(".")
        setattr(network.get_submodule(parent), child, blank)

    def extra_repr(self) -> str:
        return f"head={self._head}"

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        entering: list[torch.Tensor] = []

        def enter(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            if named or len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
                raise NotCut(f"the part '{self._head}' takes other things than one tensor")
            entering.append(inputs[0])

        hook = self.network.get_submodule(self._head).register_forward_pre_hook(enter, with_kwargs=True)
        try:
            self.network(samples)
        finally:
            hook.remove()
        if len(entering) != 1:
            raise NotCut(f"the part '{self._head}' is used {len(entering)} times for a sample")
        return entering[0]


@torch.no_grad()
def agrees(module: nn.Module, parts: Split, samples: torch.Tensor) -> bool:
    """Whether the two halves compute what the network computes: nothing may follow its head or go around it."""
    whole = copy.deepcopy(module).eval()(samples)
    try:
        entering = parts.backbone.eval()(samples)
    except NotCut:
        return False
    halves = parts.rest.eval()(entering)
    scale = max(1.0, float(whole.abs().max()))
    return bool(halves.shape == whole.shape and ((halves - whole).abs() <= _ROUNDING * scale).all())
