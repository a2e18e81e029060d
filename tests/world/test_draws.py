"""Random numbers for many clients: each client's own, whoever else is looked at."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from muster.core.randomness import generator
from muster.world import draws

MASK = (1 << 64) - 1


def textbook_splitmix(key: int, count: int) -> list[int]:
    """The generator as its authors write it: a counter that is advanced and mixed."""
    state, found = key, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        found.append(z ^ (z >> 31))
    return found


@settings(deadline=None)
@given(key=st.integers(0, MASK), count=st.integers(1, 30))
def test_any_word_of_the_stream_without_those_before_it(key, count):
    keys = np.full(count, key, dtype=np.uint64)
    assert draws.nth(keys, np.arange(count, dtype=np.uint64)).tolist() == textbook_splitmix(key, count)


def test_the_published_stream_of_seed_zero():
    assert draws.nth(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64)) == 0xE220A8397B1DCDAF


def test_words_are_those_of_the_derived_generators():
    clients = np.array([7, 0, 123_456])
    found = draws.words(3, "anything", 5, clients=clients)
    for client, row in zip(clients.tolist(), found, strict=True):
        expected = generator(3, "anything", 5, client).bit_generator.seed_seq.generate_state(4, np.uint64)
        np.testing.assert_array_equal(row, expected)
    np.testing.assert_array_equal(draws.words(3, "anything", 5, clients=clients, count=2), found[:, :2])


def test_pieces_do_not_show(monkeypatch):
    whole = draws.words(1, "x", clients=np.arange(100))
    monkeypatch.setattr(draws, "AT_ONCE", 7)
    np.testing.assert_array_equal(draws.words(1, "x", clients=np.arange(100)), whole)


def test_uniform_and_never_at_the_ends():
    numbers = draws.uniform(draws.words(0, "x", clients=np.arange(20_000)))
    assert kstest(numbers.ravel(), "uniform").pvalue > 1e-4
    ends = draws.uniform(np.array([0, MASK], dtype=np.uint64))
    assert 0 < ends[0] < ends[1] < 1
