"""An experiment on real processes: SuperLink with TLS and node authentication, six nodes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")
from muster.experiment import run
from muster.flower.deploy.driver import run_on_link

pytestmark = pytest.mark.flower


def test_the_result_is_that_of_the_local_engine(federation, task, without_time):
    result = run_on_link(task(), federation.link)
    local = run(task().experiment)
    assert np.array_equal(result.parameters, local.parameters)
    assert without_time(result) == without_time(local)
    assert [record.metrics for record in result.records] == [record.metrics for record in local.records]
