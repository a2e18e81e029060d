"""Every random draw in Muster comes from a generator that is derived here.

A generator is a pure function of (seed, purpose, coordinates), where the coordinates are round, iteration,
client, whatever the purpose needs. So a draw does not depend on which worker makes it, on what was drawn
before, or on whether the run was interrupted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]


def _sequence(seed: int, purpose: str, coordinates: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *coordinates])


def generator(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """The NumPy generator for one purpose at one place of the run."""
    return np.random.default_rng(_sequence(seed, purpose, coordinates))


def torch_seed(seed: int, purpose: str, *coordinates: int) -> int:
    """A 63-bit seed for PyTorch's generators (initialisation, dropout), derived in the same way."""
    return int(_sequence(seed, purpose, coordinates).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seeds(
    seed: int, purpose: str, *coordinates: int, clients: Ids, steps: Ids | None = None, count: int = 4
) -> Words:
    """clients × 4: with what `generator(seed, purpose, *coordinates, client)` is seeded, for many clients at once.

    `steps`: a further coordinate of each client. `count`: how many of the four words are wanted.

    This is NumPy's SeedSequence for sequences that differ in their last numbers. It is part of NumPy's promise
    that seeded streams stay the same, and the tests compare them.
    """
    known = [word for number in (seed, zlib.crc32(purpose.encode()), *coordinates) for word in _words(number)]
    # What all clients have in common is a plain number, until it is mixed with what they have not.
    own = [clients] if steps is None else [clients, steps]
    entropy: list[_Word] = [*known, *(numbers.astype(np.uint32) for numbers in own)]
    hashed = _Hash(0x43B0D7E5, 0x931E8875)
    mixed = [hashed(entropy[position] if position < len(entropy) else 0) for position in range(_POOL)]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                mixed[target] = _mix(mixed[target], hashed(mixed[source]))
    for word in entropy[_POOL:]:
        for target in range(_POOL):
            mixed[target] = _mix(mixed[target], hashed(word))
    hashed, drawn = _Hash(0x8B51F9DD, 0x58F38DED), np.empty((len(clients), count), dtype=np.uint64)
    for number in range(count):
        low, high = (hashed(mixed[position % _POOL]) for position in (2 * number, 2 * number + 1))
        drawn[:, number] = high
        drawn[:, number] <<= np.uint64(32)
        drawn[:, number] |= low
    return drawn


def seeded(words: Words) -> Iterator[np.random.Generator]:
    """The generators that have these seeds, at a fraction of the cost of making them.

    One object is seeded again and again: finish with each before taking the next.
    """
    bits = np.random.PCG64(0)
    stream, layout = np.random.Generator(bits), bits.state
    for high, low, step_high, step_low in words.tolist():
        increment = ((((step_high << 64) | step_low) << 1) | 1) & _MASK_128
        state = ((increment + ((high << 64) | low)) * _PCG_MULTIPLIER + increment) & _MASK_128
        bits.state = layout | {"state": {"state": state, "inc": increment}}
        yield stream


_POOL = 4
_MASK_32 = (1 << 32) - 1
_MASK_128 = (1 << 128) - 1
_PCG_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
#: One 32-bit word as an int, or one for each client as an array of uint32.
_Word: TypeAlias = Any


class _Hash:
    """SeedSequence's hash, whose constant changes with every use."""

    def __init__(self, constant: int, multiplier: int) -> None:
        self._constant, self._multiplier = constant, multiplier

    def __call__(self, value: _Word) -> _Word:
        value = value ^ self._constant
        self._constant = _low(self._constant * self._multiplier)
        value *= self._constant
        return _folded(_low(value))


def _mix(left: _Word, right: _Word) -> _Word:
    mixed = _low(left * 0xCA01F9DD) - _low(right * 0x4973F715)
    return _folded(_low(mixed))


def _folded(value: _Word) -> _Word:
    value ^= value >> 16
    return value


def _low(value: _Word) -> _Word:
    """The lowest 32 bits; arrays of words have no others."""
    return value & _MASK_32 if isinstance(value, int) else value


def _words(number: int) -> list[int]:
    """The number in 32-bit words, lowest first."""
    words = [_low(number)]
    while number := number >> 32:
        words.append(_low(number))
    return words
