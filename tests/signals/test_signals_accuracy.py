"""How often the global model is right, as a signal."""

import numpy as np
import torch

from muster.signals._evaluation import EVALUATION_BATCH
from muster.signals.accuracy import Accuracy


def test_accuracy_is_the_share_of_hits_and_leaves_the_model_alone(make_client):
    client = make_client(size=EVALUATION_BATCH + 9)
    before = client.model.vector()
    with torch.no_grad():
        scores = client.model.module.eval()(client.features).numpy()
    hits = [int(np.argmax(row)) == label for row, label in zip(scores, client.labels.tolist(), strict=True)]
    assert 0 < sum(hits) < len(hits)
    assert Accuracy().measure(client).tolist() == [sum(hits) / len(hits)]
    np.testing.assert_array_equal(client.model.vector(), before)


def test_it_is_measured_in_evaluation_mode(make_client):
    client = make_client()
    client.model.module.train()
    Accuracy().measure(client)
    assert not client.model.module.training


def test_it_costs_all_samples_and_a_download():
    assert Accuracy().samples(30, 8) == 30
    assert Accuracy.uses_model
    assert not Accuracy.reportable
