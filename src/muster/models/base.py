"""Models by name. A model is built for a data set's sample shape and number of classes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from muster import randomness
from muster.errors import ConfigError
from muster.parameters import spec_of
from muster.registry import Registry, build

#: Entries are callables `(input_shape: tuple[int, ...], classes: int, **options) -> nn.Module`.
models: Registry[nn.Module] = Registry("model", "muster.models")


def build_model(
    model: str | nn.Module | Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> nn.Module:
    """The model, initialised from the seed alone; PyTorch's global generator is left as it was.

    `model` is a registered name, a module (a copy of it is used, with the parameters it has), or a class or
    function that makes one. A class or function gets `input_shape` and `classes` when it has parameters of
    these names.
    """
    given = dict(options or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.torch_seed(seed, "model"))
        module = _make(model, input_shape, classes, given)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the model is a {type(module).__name__}", expected="a torch.nn.Module")
    spec_of(module)  # refuses what the flat vector cannot hold
    return module


def _make(model: object, input_shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> object:
    if isinstance(model, nn.Module):
        if options:
            raise ConfigError(
                f"options for a model that is made already: {', '.join(sorted(options))}",
                fix="hand over the class or a function instead, or leave the options out",
            )
        return copy.deepcopy(model)
    known = {"input_shape": input_shape, "classes": classes}
    if isinstance(model, str):
        return models.build(model, known | options)
    if callable(model):
        wanted = inspect.signature(model).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
        fitting = {name: value for name, value in known.items() if name in wanted or open_ended}
        return model(**fitting, **options) if open_ended else build(model, fitting | options, "model")
    raise ConfigError(f"the model is a {type(model).__name__}", expected="a name, a torch.nn.Module or a callable")


def image_size(name: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """(channels, height, width) of the samples, or a ConfigError when model `name` cannot take them."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ConfigError(
            f"the model '{name}' does not fit samples of shape {input_shape}",
            expected=f"images of shape (channels, height, width), at least {smallest}×{smallest}",
            fix="choose another model for this data; 'mlp' and 'logistic' take samples of any shape",
        )
    channels, height, width = input_shape
    return channels, height, width
