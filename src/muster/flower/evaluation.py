"""Evaluation on the server of a Flower federation: on its test data, and on samples that are held out."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from muster.config.flower import FlowerOptions
from muster.core.arrays import Floats, Vector
from muster.core.errors import ConfigError
from muster.data.federated import FederatedData
from muster.engine.base import Evaluation
from muster.engine.device import single_threaded
from muster.engine.evaluation import classes_suffice, summarise, summarise_validation
from muster.engine.runtime import ClientRuntime
from muster.flower.client import predictions


def check_evaluation(options: FlowerOptions, data: FederatedData) -> None:
    """Refuse to evaluate on the server where it has no data for it."""
    if options.evaluate == "server" and not len(data.dataset.test):
        raise ConfigError(
            "the server has no test data to evaluate on",
            fix='set evaluate = "clients" in the section [flower], or give the server app test_data',
        )


def evaluate_here(runtime: ClientRuntime, parameters: Vector, clients: int) -> Evaluation:
    """A model's scores on the server's test data; of clients that bring their own data nothing is known."""
    data = runtime.data
    with single_threaded():
        predicted = predictions(runtime, torch.from_numpy(parameters))
    sums = summarise(data, predicted, runtime.objective)
    if data.clients:
        return sums
    correct, count = np.zeros((2, clients), dtype=np.int64)
    loss: Floats = np.zeros(clients)
    row_sums = sums.row_sums
    if row_sums is not None:
        row_sums = replace(row_sums, clients=np.zeros((clients, len(row_sums.total))))
    return replace(sums, client_correct=correct, client_loss_sum=loss, client_count=count, row_sums=row_sums)


def with_validation(evaluation: Evaluation, runtime: ClientRuntime, parameters: Vector) -> Evaluation:
    """The same with the scores on held-out samples: they belong to no client, so they are evaluated here."""
    data = runtime.data
    if data.validation is None:
        return evaluation
    with single_threaded():
        predicted = predictions(runtime, torch.from_numpy(parameters), data.validation)
    labels = data.dataset.train.labels[data.validation]
    return replace(evaluation, validation=summarise_validation(labels, predicted))


def row_width(runtime: ClientRuntime, module: nn.Module) -> int:
    """How many numbers a row of the objective has; 0 where predicted classes say it all."""
    data, objective = runtime.data, runtime.objective
    if classes_suffice(objective):
        return 0
    test = data.dataset.test
    features, targets = data.tensors(test, np.arange(min(1, len(test))))
    if not len(features):
        raise ConfigError(
            f"the server has no sample to tell what the metrics of {type(objective).__name__} look like",
            fix='set evaluate = "server" in the section [flower], and give the server app test_data',
        )
    with single_threaded(), torch.no_grad():
        return int(objective.rows(copy.deepcopy(module).eval()(features), targets).shape[1])
