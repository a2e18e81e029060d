"""Finding runs in a store: by the beginning of a fingerprint, quickly, among many."""

from __future__ import annotations

import pytest

from muster.results.store import Store

NAMES = ("ab", "abc", "abcd", "abd", "b", "a_c")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "ws") as opened:
        yield opened


@pytest.mark.parametrize("beginning", ["", "a", "ab", "abc", "abcde", "b", "a%", "a_", "a*", "A"])
def test_beginnings_of_fingerprints(store, beginning):
    for fingerprint in NAMES:
        with store.claim(fingerprint, {"name": "made up", "seed": 0, "rounds": 1, "config": {}}):
            pass
    expected = [name for name in NAMES if name.startswith(beginning)]
    assert [run.fingerprint for run in store.runs(fingerprint=beginning)] == expected


def test_sweeps_and_fingerprints_together(tiny, store):
    first, second, third = (tiny(seed=seed) for seed in range(3))
    store.plan([first, second], "mine")
    store.plan([second, third], "other")
    assert [run.seed for run in store.runs(sweep="other")] == [1, 2]
    assert store.run(second.fingerprint).sweeps == ["mine", "other"]
    assert [run.sweeps for run in store.runs()] == [["mine"], ["mine", "other"], ["other"]]
    assert not store.runs(sweep="mine", fingerprint=third.fingerprint)
    assert not store.runs(sweep="nothing")


def test_one_run_among_many_is_found_with_an_index(tiny, store):
    """A sweep looks up every one of its runs: going through all of them each time would be quadratic."""
    store.plan([tiny(seed=seed) for seed in range(4)], "mine")
    statements: list[str] = []
    store.connection.set_trace_callback(statements.append)
    store.run(tiny(seed=2).fingerprint)
    store.connection.set_trace_callback(None)
    steps = [row[3] for text in statements for row in store.connection.execute(f"EXPLAIN QUERY PLAN {text}")]
    assert [step for step in steps if step.startswith("SEARCH")]
    assert not [step for step in steps if step.startswith("SCAN")]


def test_runs_of_another_length(tiny, store):
    store.plan([tiny(rounds=rounds, seed=seed) for rounds in (9, 4, 6) for seed in (0, 1)])
    assert [(run.rounds, run.seed) for run in store.other_lengths(tiny(rounds=6, seed=1))] == [(4, 1), (9, 1)]
    assert not store.other_lengths(tiny(rounds=5, seed=2))
