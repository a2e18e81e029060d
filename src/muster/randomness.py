"""Every random draw in Muster comes from a generator that is derived here.

A generator is a pure function of (seed, purpose, coordinates), where the coordinates are round, iteration,
client, whatever the purpose needs. So a draw does not depend on which worker makes it, on what was drawn
before, or on whether the run was interrupted.
"""

from __future__ import annotations

import zlib

import numpy as np


def _sequence(seed: int, purpose: str, coordinates: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *coordinates])


def generator(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """The NumPy generator for one purpose at one place of the run."""
    return np.random.default_rng(_sequence(seed, purpose, coordinates))


def torch_seed(seed: int, purpose: str, *coordinates: int) -> int:
    """A 63-bit seed for PyTorch's generators (initialisation, dropout), derived in the same way."""
    return int(_sequence(seed, purpose, coordinates).generate_state(1, np.uint64)[0] >> np.uint64(1))
