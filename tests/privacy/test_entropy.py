"""Noise from the operating system: of the right distribution, never infinite, and not to be had again."""

import secrets

import numpy as np
import pytest
from scipy.stats import kstest

from muster.privacy.entropy import SystemNoise

#: So unlikely under the right distribution that the tests do not fail by chance in a lifetime.
NEVER = 1e-12
MANY = 100_000


@pytest.mark.parametrize("kind", ["laplace", "normal"])
def test_draws_have_their_distribution(kind):
    drawn = getattr(SystemNoise(), kind)(3.0, 2.0, MANY)
    assert drawn.shape == (MANY,)
    name = {"laplace": "laplace", "normal": "norm"}[kind]
    assert kstest(drawn, name, args=(3.0, 2.0)).pvalue > NEVER
    # The test above would see it if the noise were off by a tenth.
    assert kstest(drawn, name, args=(3.0, 2.2)).pvalue < NEVER
    assert kstest(drawn, name, args=(3.2, 2.0)).pvalue < NEVER


@pytest.mark.parametrize("kind", ["laplace", "normal"])
@pytest.mark.parametrize("word", [0, 2**52 - 1, 2**63, 2**64 - 1])
def test_the_outermost_draws_are_finite(monkeypatch, kind, word):
    monkeypatch.setattr(secrets, "token_bytes", lambda n: np.full(n // 8, word, dtype=np.uint64).tobytes())
    drawn = getattr(SystemNoise(), kind)(0.0, 1.0, 3)
    assert np.isfinite(drawn).all()
    assert np.abs(drawn).max() < 40


def test_the_normal_distribution_is_as_long_on_both_sides(monkeypatch):
    def only(word: int) -> float:
        monkeypatch.setattr(secrets, "token_bytes", lambda n: np.array([word], dtype=np.uint64).tobytes())
        return float(SystemNoise().normal(0.0, 1.0, 1)[0])

    assert only(0) == pytest.approx(-only(2**52 - 1), rel=1e-12)


def test_nothing_comes_twice():
    one, other = (np.concatenate([SystemNoise().laplace(0.0, 1.0, 50) for _ in range(20)]) for _ in range(2))
    assert len(np.unique(np.concatenate([one, other]))) == 2000


def test_seeds_have_no_say():
    def drawn() -> list[float]:
        np.random.seed(7)  # noqa: NPY002 (somebody may have seeded the global generator)
        return SystemNoise().normal(0.0, 1.0, 5).tolist()

    assert drawn() != drawn()
