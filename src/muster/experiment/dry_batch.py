"""One small batch through model, loss and metrics before round 1, so that a mistake is named where it is."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, MusterError
from muster.core.parameters import in_training
from muster.data.federated import FederatedData
from muster.engine.device import single_threaded
from muster.training.base import LocalTraining
from muster.training.objectives import Objective

#: Samples of the batch: what fails with many fails with a few.
SAMPLES = 4
_HERE = Path(__file__).parents[1]


def check_dry_batch(module: nn.Module, data: FederatedData, training: LocalTraining, objective: Objective) -> None:
    """Refuse a model, a loss or metrics that do not work on the data.

    The model is not changed and no random number of the run is used up.
    """
    if not data.clients:  # clients bring their own
        return
    largest = int(np.argmax(data.sizes))
    features, targets = data.tensors(data.dataset.train, data.train_index[largest][:SAMPLES])
    copied = copy.deepcopy(module)
    # Gradients are on whatever the caller's setting: clients train with them.
    with torch.random.fork_rng(devices=[]), single_threaded(), torch.enable_grad():
        outputs = _outputs(in_training(copied) if len(features) > 1 else copied.eval(), features)
        if obstacle := objective.obstacle(outputs, targets, data.classes):
            raise ConfigError(
                f"model and data do not fit: {obstacle}",
                expected=f"outputs for the task {objective.task}",
                fix="change the model's last layer, or name the task of the data: from_arrays(…, task=…)",
            )
        _check_loss(objective, outputs, targets)
        _attempt("a metric", lambda: objective.rows(outputs.detach(), targets), outputs, targets)
        _check_single_samples(copied, features[:1], data.sizes, training)


def _outputs(module: nn.Module, features: torch.Tensor) -> torch.Tensor:
    count, shape = len(features), tuple(features.shape[1:])
    try:
        outputs = module(features)
    except MusterError:
        raise
    except Exception as error:
        layer = failed_layer(module, error)
        raise ConfigError(
            f"the model {type(module).__name__} fails on {count} samples of shape {shape}"
            f"{f', in its layer {layer}' if layer else ''}: {said(error)}",
            expected=f"a model that takes a batch of shape {(count, *shape)}, {_kind(features)}",
            fix=f"look at {place(error)}" if is_own(error) else "see that every layer fits what comes into it",
        ) from error
    if not isinstance(outputs, torch.Tensor):
        raise ConfigError(
            f"the model {type(module).__name__} gives a {type(outputs).__name__}",
            expected="one tensor: the outputs that the loss takes",
            fix="return only the outputs from forward, or wrap the model in one that does",
        )
    if not outputs.requires_grad:
        raise ConfigError(
            f"the outputs of the model {type(module).__name__} do not depend on its trainable parameters",
            expected="outputs that can be differentiated",
            fix="use no detach(), torch.no_grad(), item(), argmax() or NumPy in forward",
        )
    if outputs.dim() == 0 or len(outputs) != count:
        raise ConfigError(
            f"the model {type(module).__name__} gives the shape {tuple(outputs.shape)} for {count} samples",
            expected=f"outputs for each sample: ({count}, …)",
            fix="keep the first axis, which counts samples, as it is in forward",
        )
    return outputs


def _check_loss(objective: Objective, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    loss = _attempt(objective.loss_name, lambda: objective.mean_loss(outputs, targets), outputs, targets)
    if not torch.isfinite(loss):
        raise ConfigError(
            f"{objective.loss_name} of the first {len(targets)} samples is {float(loss.detach())}",
            expected="a finite number",
            fix="look at the model's outputs and the range of the targets",
        )
    if not loss.requires_grad:
        raise ConfigError(
            f"{objective.loss_name} does not depend on the model's parameters",
            expected="a function of the outputs that can be differentiated",
            fix="use no detach(), item(), argmax() or NumPy in it",
        )


def _attempt(
    what: str, compute: Callable[[], torch.Tensor], outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    try:
        return compute()
    except MusterError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{what} fails: {said(error)}",
            expected=f"a function of outputs of shape {tuple(outputs.shape)} ({_kind(outputs)}) "
            f"and targets of shape {tuple(targets.shape)} ({_kind(targets)})",
            fix=f"look at {place(error)}",
        ) from error


def _check_single_samples(module: nn.Module, sample: torch.Tensor, sizes: Ints, training: LocalTraining) -> None:
    """Refuse mini-batches of one sample where batch normalisation cannot handle them."""
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        return
    left = single_leftovers(sizes, training)
    if not len(left):
        return
    try:
        in_training(module)(sample)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        some = ", ".join(map(str, left[:3].tolist())) + (", …" if len(left) > 3 else "")
        always = training.batch_size == 1 or bool((sizes[left] == 1).any())
        dropping = "" if always else "set training.drop_last = true, change training.batch_size, or "
        raise ConfigError(
            f"batch normalisation cannot train on a mini-batch of one sample, which {len(left)} of {len(sizes)} "
            f"clients would have (client {some})",
            expected="two samples or more in every mini-batch",
            fix=f'{dropping}use group normalisation (model.norm = "group")'
            + (", and leave out clients with one sample" if always else ""),
        ) from None


def single_leftovers(sizes: Ints, training: LocalTraining) -> Ints:
    """The clients that train on a mini-batch of one sample."""
    batch = training.batch_size
    used = np.array([training.epoch_samples(size) for size in sizes.tolist()])
    last = np.where(used % batch == 0, batch, used % batch)
    reached = np.array([training.steps_for(size) >= training.epoch_for(size) for size in sizes.tolist()])
    return np.flatnonzero((last == 1) & (reached | (batch == 1)))


def said(error: Exception) -> str:
    """What an error says, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def place(error: Exception) -> str:
    """Where in the user's code an error comes from: the last line that is neither PyTorch's nor Muster's."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not _is_library(frame.filename)]
    last = (others or frames)[-1]
    return f"{last.filename}:{last.lineno} ({last.name})"


def is_own(error: Exception) -> bool:
    """Whether the user's code had a part in an error: a model of PyTorch's layers alone has no line to look at."""
    return any(not _is_library(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def failed_layer(module: nn.Module, error: Exception) -> str:
    """The innermost layer that was being computed when an error occurred, by name; empty: the model itself."""
    names = {id(layer): name for name, layer in module.named_modules()}
    calls = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [layer for layer in calls if isinstance(layer, nn.Module) and names.get(id(layer))]
    if not inside:
        return ""
    described = repr(inside[-1])
    return f"'{names[id(inside[-1])]}'" + (f", {described}" if "\n" not in described else "")


def _is_library(filename: str) -> bool:
    path = Path(filename)
    return path.is_relative_to(_HERE) or path.is_relative_to(Path(torch.__file__).parent)


def _kind(tensor: torch.Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")
