"""Frozen parts of a network: they neither train nor travel, and what they compute need be computed only once."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from muster.core.errors import ConfigError, nearest
from muster.core.parameters import FROZEN_ELSEWHERE, spec_of

#: The value of `model.freeze` for everything but the classification layer.
BACKBONE = "backbone"
#: How far a network and its two halves may differ, relative to its outputs: rounding, nothing else.
_ROUNDING = 1e-4


def freeze(module: nn.Module, what: str | Sequence[str]) -> None:
    """Let some parts of a network stay as they are: all but its head (`"backbone"`), or those of these names."""
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
    declared = getattr(module, "head_part", None)
    if isinstance(declared, str):
        return declared
    spec = spec_of(module)
    if not spec.has_final_layer or not spec.final_layer_name:
        raise ConfigError(
            "the model has no recognisable part that classifies",
            expected="a last nn.Linear (or convolution) inside of it",
            fix="give the model an attribute `head_part = 'name of the part'`",
        )
    return spec.final_layer_name


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
    if not spec_of(module).frozen:
        return None
    own = getattr(module, "split_frozen", None)
    parts = own() if callable(own) else before_head(module)
    if parts is not None:
        setattr(parts.rest, FROZEN_ELSEWHERE, spec_of(module).frozen)
    return parts


def before_head(module: nn.Module) -> Split | None:
    """Cut where the head begins; None where something before it is trained."""
    name = head_of(module)
    within = tuple(f"{name}.{part}" for part, _ in module.get_submodule(name).named_parameters())
    if any(parameter.requires_grad and part not in within for part, parameter in module.named_parameters()):
        return None
    rest: nn.Module = copy.deepcopy(module.get_submodule(name))
    for part in reversed(name.split(".")):
        rest = nn.Sequential(OrderedDict({part: rest}))
    rest.final_layer = spec_of(module).final_layer_name  # type: ignore[assignment]
    return Split(UpToHead(copy.deepcopy(module), name), rest)


class UpToHead(nn.Module):
    """What enters the head of a network."""

    def __init__(self, network: nn.Module, head: str) -> None:
        super().__init__()
        self.network, self._head = network, head

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        entering: list[torch.Tensor] = []
        hook = self.network.get_submodule(self._head).register_forward_pre_hook(
            lambda _, inputs: entering.append(inputs[0])
        )
        try:
            self.network(samples)
        finally:
            hook.remove()
        if len(entering) != 1:
            raise ConfigError(
                f"the part '{self._head}' is used {len(entering)} times for a sample", fix="leave model.freeze out"
            )
        return entering[0]


@torch.no_grad()
def agrees(module: nn.Module, parts: Split, samples: torch.Tensor) -> bool:
    """Whether the two halves compute what the network computes: nothing may follow its head or go around it."""
    whole = copy.deepcopy(module).eval()(samples)
    halves = parts.rest.eval()(parts.backbone.eval()(samples))
    scale = max(1.0, float(whole.abs().max()))
    return bool(halves.shape == whole.shape and ((halves - whole).abs() <= _ROUNDING * scale).all())
