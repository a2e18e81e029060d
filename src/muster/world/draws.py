"""Random numbers for very many clients at once, each client's from its own stream.

What a client draws depends on the seed, the purpose and the client alone: not on how many others there are, nor on
what has been drawn before. So a population of millions needs no stored streams, and any part of it can be looked
at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.randomness import Words, seeds

#: Clients that are looked at together: bounds the memory of temporary arrays, and keeps them in the cache.
AT_ONCE = 1 << 17

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def slices(count: int) -> Iterator[slice]:
    """`range(count)` in pieces of bounded size."""
    return (slice(start, min(start + AT_ONCE, count)) for start in range(0, count, AT_ONCE))


def uniform(words: Words) -> Floats:
    """Numbers between 0 and 1, never 0 or 1 themselves, from words of 64 random bits."""
    # 52 bits and a half: with one bit more, the largest would be rounded to 1.
    numbers: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def words(seed: int, purpose: str, *coordinates: int, clients: Ints, count: int = 4) -> Words:
    """clients × `count` words of random bits, four at most: the state of each client's derived seed sequence."""
    drawn = np.empty((len(clients), count), dtype=np.uint64)
    for part in slices(len(clients)):
        drawn[part] = seeds(seed, purpose, *coordinates, clients=clients[part], count=count)
    return drawn


def nth(keys: Words, index: npt.NDArray[np.uint64]) -> Words:
    """Word number `index` of the SplitMix64 generators that start at `keys` (Steele, Lea and Flood, 2014)."""
    word: Words = (keys + _GOLDEN) + index * _GOLDEN
    word ^= word >> np.uint64(30)
    word *= _FIRST
    word ^= word >> np.uint64(27)
    word *= _SECOND
    word ^= word >> np.uint64(31)
    return word
