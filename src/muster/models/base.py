"""Models by name. A model is built for a data set's sample shape and number of classes."""

from __future__ import annotations

import copy
import inspect
import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from muster.core import randomness
from muster.core.errors import ConfigError, MusterError
from muster.core.parameters import spec_of
from muster.core.registry import Registry, build
from muster.models.initialisation import DEFAULT, initialise

log = logging.getLogger(__name__)

#: Entries are callables `(input_shape: tuple[int, ...], classes: int, **options) -> nn.Module`.
models: Registry[nn.Module] = Registry("model", "muster.models", "muster.models")


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
    these names. For any of them the option `init` chooses how a model that is built here is initialised (see
    `muster.models.initialisation`), `weights` names pretrained weights (see `muster.models.weights`), and `freeze`
    says which parts are not trained (see `muster.models.freezing`).
    """
    own = dict(options or {})
    weights, init, frozen = own.pop("weights", None), own.pop("init", DEFAULT), own.pop("freeze", None)
    if init != DEFAULT and isinstance(model, nn.Module):
        raise ConfigError(
            f"model.init = {init!r} for a model that already exists",
            fix="pass the class or a function instead, or leave the option out",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.torch_seed(seed, "model"))
        try:
            module = _make(model, input_shape, classes, own)
        except (RuntimeError, MemoryError) as error:  # PyTorch has no error of its own for it
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            raise ConfigError(
                "the model needs more memory than this machine has", fix="make it smaller, see [model]"
            ) from error
        if isinstance(module, nn.Module):
            if init != DEFAULT and getattr(module, "pretrained_inside", False):
                raise ConfigError(
                    f"model.init = {init!r} would draw the pretrained weights of the model again",
                    fix="leave model.init out",
                )
            initialise(module, init)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the model is of type {type(module).__name__}", expected="a torch.nn.Module")
    _check_outputs(module, classes)
    if weights is not None:
        from muster.models.weights import load_weights

        load_weights(module, str(weights))
    if frozen is not None:
        from muster.models.freezing import freeze

        freeze(module, _part_names(frozen))
        # Models of others may load weights by themselves.
        of_muster = isinstance(model, str) and models.get(model).__module__.startswith("muster.")
        if of_muster and weights is None and _random_and_frozen(module):
            log.warning("model.freeze, but no pretrained weights: what is frozen stays as it was drawn at random")
    return module


def _random_and_frozen(module: nn.Module) -> bool:
    """Whether a model of Muster's that was given no weights has parts that are neither pretrained nor trained."""
    parts = getattr(module, "random_parts", ()) if getattr(module, "pretrained_inside", False) else ("",)
    return any(not p.requires_grad for part in parts for p in module.get_submodule(part).parameters())


def _part_names(frozen: object) -> str | list[str]:
    names = [frozen] if isinstance(frozen, str) else frozen
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"bad value for 'model.freeze': {frozen!r}",
            expected='"backbone" (all but the classification layer), or a list of names of parts',
        )
    return frozen if isinstance(frozen, str) else list(names)


def _make(model: object, input_shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> object:
    if isinstance(model, nn.Module):
        if options:
            raise ConfigError(
                f"options for a model that already exists: {', '.join(sorted(options))}",
                fix="pass the class or a function instead, or leave the options out",
            )
        return copy.deepcopy(model)
    known = {"input_shape": input_shape, "classes": classes}
    if isinstance(model, str):
        return models.build(model, known | options)
    if not callable(model):
        raise ConfigError(
            f"the model is of type {type(model).__name__}", expected="a name, a torch.nn.Module or a callable"
        )
    wanted = inspect.signature(model).parameters
    try:
        if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
            return model(**known, **options)
        return build(model, {k: v for k, v in known.items() if k in wanted} | options, "model")
    except MusterError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise _not_made(model, error) from error


def _not_made(model: Callable[..., Any], error: Exception) -> ConfigError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    forgotten = "before Module.__init__() call" in str(error)
    return ConfigError(
        f"the model {getattr(model, '__name__', type(model).__name__)} cannot be made: "
        f"{type(error).__name__}: {error}",
        fix="call super().__init__() first in its __init__"
        if forgotten
        else f"look at {last.filename}:{last.lineno}",
    )


def _check_outputs(module: nn.Module, classes: int) -> None:
    """Refuse what the flat vector cannot hold, and a classification layer of the wrong width."""
    spec = spec_of(module)
    outputs = spec.final_outputs
    if outputs is not None and outputs != classes:
        raise ConfigError(
            f"the model's last layer '{spec.final_layer_name}' has {outputs} outputs",
            expected=f"{classes}: one for each class, label or number to predict",
            fix="change its width; if another layer is the last one, name it in the model's "
            "attribute `final_layer`",
        )


def image_size(name: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """(channels, height, width) of the samples, or a ConfigError when the model `name` cannot take them."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise unfit(name, input_shape, f"images (channels, height, width) of at least {smallest}×{smallest}")
    channels, height, width = input_shape
    return channels, height, width


def vector_width(name: str, input_shape: tuple[int, ...], what: str) -> int:
    """The length of samples that are vectors, or a ConfigError when the model `name` cannot take them."""
    if len(input_shape) != 1:
        raise unfit(name, input_shape, what)
    return input_shape[0]


def unfit(name: str, input_shape: tuple[int, ...], expected: str) -> ConfigError:
    """The error for samples that a model cannot take."""
    return ConfigError(
        f"the model '{name}' does not fit samples of shape {input_shape}",
        expected=expected,
        fix="choose a model for this data; 'mlp' and 'logistic' take numbers of any shape",
    )
