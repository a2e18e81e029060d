"""A training on the server's own data, for methods that compare clients with it."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Vector
from muster.core.randomness import torch_seed
from muster.data.federated import FederatedData, Index
from muster.engine.base import no_root_data
from muster.engine.device import single_threaded
from muster.engine.runtime import ClientRuntime
from muster.engine.task import ClientTask, Place
from muster.training.base import LocalTraining, Plain


class RootTrainer:
    """Trains on the samples that are held out (`data.validation`) as a client would, with the same settings."""

    def __init__(self, data: FederatedData, module: nn.Module, training: LocalTraining, seed: int) -> None:
        if data.validation is None:
            raise no_root_data()
        own = FederatedData(data.dataset, Index.from_lists([data.validation]))
        # A separate seed: the server is not a client, and must not draw what client 0 draws.
        self._runtime = ClientRuntime(own, copy.deepcopy(module), training, Plain(), seed=torch_seed(seed, "root"))

    def movement(self, parameters: Vector, place: Place, lr: float) -> Vector:
        """How far the model moves in one local training on these samples."""
        out = torch.empty(len(parameters))
        with single_threaded():
            self._runtime.train(ClientTask.of("train", 0, place, lr=lr), torch.from_numpy(parameters), out, {})
        return np.asarray(out.numpy())
