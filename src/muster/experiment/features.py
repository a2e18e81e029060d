"""What the frozen part of a network makes of the samples: computed once, kept on disk, trained on from there."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from muster.core.errors import EngineError
from muster.data.cache import Arrays, NewArray, cached
from muster.data.federated import Dataset, FederatedData, Normalisation, Samples
from muster.engine.device import available_cores, single_threaded
from muster.engine.pool import Crashed, Handler, Pool
from muster.models.freezing import Split, agrees, split

log = logging.getLogger(__name__)

#: Samples that run through the network together: fixed, so that features do not depend on how work is divided.
BLOCK = 32
#: More than this is not kept on disk.
MAX_BYTES = 4 * 1024**3
_SPLITS = ("train", "test")


def with_features(
    data: FederatedData, module: nn.Module, *, obstacle: str = "", workers: int | None = None
) -> tuple[FederatedData, nn.Module]:
    """The data as features of the network's frozen part, and the rest of the network that is trained on them.

    Both are what they were where nothing is frozen, where the network cannot be taken apart, or where samples must
    stay what they are (`obstacle` says why). Clients then run the frozen part themselves, which is slower.
    """
    parts = split(module)
    if parts is None:
        return data, module
    if obstacle := obstacle or _obstacle(data, module, parts):
        log.info("the frozen part of the model is computed again in every training: %s", obstacle)
        return data, module
    arrays = cached(
        f"features-{data.dataset.name}",
        [],
        lambda new: _computed(data, parts.backbone, new, workers),
        backbone=_digest_of_network(data, parts.backbone),
        data=_digest_of_data(data.dataset),
        block=BLOCK,
    )
    made = {
        name: dataclasses.replace(getattr(data.dataset, name), features=arrays[name])
        for name in _SPLITS
        if len(getattr(data.dataset, name))
    }
    dataset = dataclasses.replace(data.dataset, normalisation=Normalisation(), tokens=False, picture=None, **made)
    log.info("the frozen part of the model is computed once: samples are its features, %s", dataset.sample_shape)
    return dataclasses.replace(data, dataset=dataset), parts.rest


@torch.no_grad()
def _obstacle(data: FederatedData, module: nn.Module, parts: Split) -> str:
    """Why features cannot stand for samples; "" where they can."""
    few, _ = data.tensors(data.dataset.train, np.arange(min(4, len(data.dataset.train))))
    with single_threaded():
        if not agrees(module, parts, few):
            return "something follows the classification layer or goes around it, or it takes more than a tensor"
        width = parts.backbone.eval()(few[:1]).numel()
    size = 4 * width * (len(data.dataset.train) + len(data.dataset.test))
    return f"features would take {size / 1e9:.1f} GB" if size > MAX_BYTES else ""


def _digest_of_network(data: FederatedData, module: nn.Module) -> str:
    """Of its classes, shapes and numbers, and of what it makes of some samples.

    Neither names nor numbers tell what a network computes: how many heads its attention has, what its code does.
    """
    digest = hashlib.blake2b(repr(module).encode(), digest_size=16)
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor):  # what a module keeps as its extra state may be anything
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    with single_threaded():
        made = _block(data, module, data.dataset.train, 0)
    digest.update(str(made.shape).encode())
    digest.update(made.data)
    return digest.hexdigest()


def _digest_of_data(dataset: Dataset) -> str:
    """Of what the network sees of it: all features and how they are normalised."""
    digest = hashlib.blake2b(f"{dataset.normalisation} {dataset.tokens}".encode(), digest_size=16)
    for name in _SPLITS:
        features = getattr(dataset, name).features
        digest.update(f"{features.shape} {features.dtype}".encode())
        for start in range(0, len(features), 1024):
            digest.update(np.ascontiguousarray(features[start : start + 1024]).view(np.uint8).data)
    return digest.hexdigest()


def _computed(data: FederatedData, backbone: nn.Module, new: NewArray, workers: int | None) -> Arrays:
    made: Arrays = {}
    for name in _SPLITS:
        samples = getattr(data.dataset, name)
        if len(samples):
            made[name] = _features(data, backbone, samples, partial(new, name), workers)
    return made


def _features(
    data: FederatedData,
    backbone: nn.Module,
    samples: Samples,
    new: Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[np.float32]],
    workers: int | None,
) -> npt.NDArray[np.float32]:
    starts = range(0, len(samples), BLOCK)
    compute = partial(_block, data, backbone, samples)
    with single_threaded():
        first = compute(0)
    result = new((len(samples), *first.shape[1:]), np.float32)
    result[: len(first)] = first
    rest = starts[1:]
    count = min(available_cores() if workers is None else workers, len(rest))
    if not count:
        with single_threaded():
            for start in rest:
                result[start : start + BLOCK] = compute(start)
        return result
    # Forked where that is safe, as the engine's workers are.
    pool = Pool(count, partial(_itself, compute), "fork" if sys.platform != "darwin" else "spawn")
    try:
        for task, block in pool.run(len(rest), lambda task: rest[task], window=4 * count):
            if isinstance(block, Crashed):
                raise EngineError(f"the features of samples cannot be computed: {block.reason}")
            result[rest[task] : rest[task] + BLOCK] = block
    finally:
        pool.close()
    return result


def _itself(compute: Handler) -> Handler:
    return compute


@torch.no_grad()
def _block(data: FederatedData, backbone: nn.Module, samples: Samples, start: int) -> npt.NDArray[np.float32]:
    positions = np.arange(start, min(start + BLOCK, len(samples)))
    features, _ = data.tensors(samples, positions)
    made: npt.NDArray[np.float32] = backbone.eval()(features).float().contiguous().numpy()
    return made
