"""A run that is asked to stop does so after its round, once, and goes on to the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import muster
from muster.core.errors import OutputError
from muster.results.store.stops import StopOnRequest, request_stop, stop_file, stop_requested
from muster.server.loop import Observer


class AskAfter(Observer):
    """Asks from inside, as the page does from outside."""

    def __init__(self, folder, fingerprint, rounds) -> None:
        self.folder, self.fingerprint, self.rounds, self.seen = folder, fingerprint, rounds, 0

    def wants_stop(self) -> bool:
        self.seen += 1
        if self.seen == self.rounds:
            request_stop(self.folder, self.fingerprint)
        return False


def test_stopped_after_the_round_and_resumed_to_the_same_bits(tiny, tmp_path):
    experiment = tiny(rounds=6)
    asking = AskAfter(tmp_path, experiment.fingerprint, 2)
    stopped = muster.run(experiment, 0, store=tmp_path, observers=[asking])
    assert (len(stopped.records), stopped.complete) == (2, False)
    assert not stop_requested(tmp_path, experiment.fingerprint), "the request is taken"
    whole = muster.run(experiment, 0, store=tmp_path, resume=True)
    assert whole.complete
    assert np.array_equal(whole.parameters, muster.run(experiment, 0).parameters)


def test_an_old_request_stops_nobody(tiny, tmp_path):
    experiment = tiny(rounds=2)
    request_stop(tmp_path, experiment.fingerprint)
    assert muster.run(experiment, 0, store=tmp_path).complete


def test_a_request_is_for_one_run(tmp_path):
    request_stop(tmp_path, "a" * 16)
    assert not StopOnRequest(tmp_path, "b" * 16).wants_stop()
    observer = StopOnRequest(tmp_path, "a" * 16)
    assert observer.wants_stop()
    assert not observer.wants_stop()


@pytest.mark.parametrize("word", ["", "..", "../../etc/passwd", "abc", "A" * 16, "a" * 16 + "/x", "a" * 65])
def test_no_name_leads_out_of_the_workspace(tmp_path, word):
    with pytest.raises(OutputError, match="is not a fingerprint"):
        stop_file(tmp_path, word)


def test_a_workspace_that_cannot_be_written(tmp_path):
    (tmp_path / "stops").write_text("in the way")
    with pytest.raises(OutputError, match="cannot ask"):
        request_stop(tmp_path, "a" * 16)
