"""What a model costs: floating point operations of one training sample, as PyTorch counts them."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from muster.core.errors import ConfigError
from muster.core.parameters import in_training

#: A batch of one has no spread, which batch normalisation refuses.
_BATCH = 2
_counted: WeakKeyDictionary[nn.Module, dict[tuple[torch.Size, torch.dtype], float]] = WeakKeyDictionary()


def training_flops(module: nn.Module, features: torch.Tensor) -> float:
    """FLOPs of a forward and a backward pass for one sample like those in `features` (one or more of them).

    Counted once for a model and a shape. Nothing is computed: shapes alone pass through a copy of the model on
    PyTorch's device `meta`. There recurrent layers are single products, which the counter sees; on a CPU they are
    one opaque call, which it would miss. As everywhere in PyTorch, products and convolutions count, and a
    multiplication with its addition are two; element-wise operations do not count.
    """
    key = (features.shape[1:], features.dtype)
    known = _counted.setdefault(module, {})
    if key not in known:
        known[key] = _count(module, features)
    return known[key]


def _count(module: nn.Module, features: torch.Tensor) -> float:
    fix = "say what a training sample costs: devices.flops_per_sample = …"
    batch = torch.empty((_BATCH, *features.shape[1:]), dtype=features.dtype, device="meta")
    try:
        abstract = in_training(copy.deepcopy(module).to("meta"))
        with FlopCounterMode(display=False) as counter:
            abstract(batch).sum().backward()
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise ConfigError(
            f"cannot count the FLOPs of {type(module).__name__}: {str(error).splitlines()[0]}", fix=fix
        ) from error
    if not counter.get_total_flops():
        raise ConfigError(
            f"{type(module).__name__} has no matrix product and no convolution: its FLOPs count as zero", fix=fix
        )
    return float(counter.get_total_flops() / _BATCH)
