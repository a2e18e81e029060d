"""Label histograms and their entropy."""

import numpy as np
import pytest
import torch

from muster.signals.labels import LabelEntropy, LabelHistogram


def test_histogram_counts_all_classes_of_the_federation(make_client):
    client = make_client(size=5)
    client.labels = torch.tensor([0, 2, 2, 0, 0])
    assert LabelHistogram().measure(client).tolist() == [3.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([1, 1, 1], 0.0), ([0, 1, 2], np.log(3)), ([0, 0, 0, 1], 0.75 * np.log(4 / 3) + 0.25 * np.log(4))],
)
def test_entropy_in_nats(make_client, labels, expected):
    client = make_client()
    client.labels = torch.tensor(labels)
    assert LabelEntropy().measure(client) == pytest.approx(expected, abs=1e-12)
