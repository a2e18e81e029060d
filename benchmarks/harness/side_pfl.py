"""pfl-research's side: its simulated backend and FederatedAveraging, one process; timed from the end of round 1.

Users' samples come in their stored order, which saves pfl the shuffling that all other sides do.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

from harness.workload import ClientTensors, Workload, network


class Classifier(nn.Module):
    """The network with the two methods that pfl asks for; counts the samples that it trains on."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.seen = 0

    def loss(self, features: torch.Tensor, labels: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        self.train(not is_eval)
        self.seen += 0 if is_eval else len(labels)
        return nn.functional.cross_entropy(self.body(features), labels)

    @torch.no_grad()
    def metrics(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(features, labels, is_eval=True)) * len(labels), len(labels))}


class Stopwatch(TrainingProcessCallback):  # type: ignore[misc, unused-ignore]
    """Notes when central iterations end and how many samples had been trained on."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self.marks: list[tuple[float, int]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.marks.append((time.perf_counter(), self.classifier.seen))
        return False, Metrics()


def measure(workload: Workload, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    torch.manual_seed(workload.seed)
    classifier = Classifier(network(workload, pool_first=False))
    watch = Stopwatch(classifier)
    tensors = ClientTensors(workload)
    users = FederatedDataset(
        lambda user: Dataset(tensors[user], user_id=str(user)),
        get_user_sampler("random", range(workload.clients)),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=workload.rounds + 1,
            # Never within this run, but for iteration 0, which is the one that warms up.
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=None, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=workload.lr, local_batch_size=workload.batch),
        NNEvalHyperParams(local_batch_size=500),
        [watch],
    )
    (begin, before), (end, after) = watch.marks[0], watch.marks[-1]
    return {"samples": after - before, "seconds": end - begin}


if __name__ == "__main__":
    print(json.dumps(measure(Workload.from_json(sys.argv[1]), int(sys.argv[2]))))
