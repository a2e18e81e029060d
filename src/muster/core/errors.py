"""Errors a user can act on. Each says what was wrong, what was expected and what to do.

The command line turns them into one message and the exit code of their class (see docs/exit-codes.md).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

#: What a reader of plain data raises where they are of another shape or type than expected.
UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


class MusterError(Exception):
    """Base of all errors that Muster raises on purpose."""

    exit_code = 1
    #: The rounds that were done before a run failed (a `muster.Result`), where there was a run.
    result: Any = None

    def __init__(self, problem: str, *, expected: str = "", fix: str = "") -> None:
        self.problem, self.expected, self.fix = problem, expected, fix
        parts = [problem]
        if expected:
            parts.append(f"Expected: {expected}")
        if fix:
            parts.append(f"What to do: {fix}")
        super().__init__("\n".join(parts))


class ConfigError(MusterError):
    """The experiment's description is wrong: unknown key or method, value out of range, parts that do not fit."""

    exit_code = 2


class DataError(MusterError):
    """Data is missing, damaged, or cannot be partitioned as asked."""

    exit_code = 3


class CheckpointError(MusterError):
    """A checkpoint is damaged, or belongs to another experiment."""

    exit_code = 4


class OutputError(MusterError):
    """Results cannot be written: read-only folder, full disk."""

    exit_code = 5


class TrainingError(MusterError):
    """The federation cannot continue: every update was refused, or no client answered, for too long."""

    exit_code = 6


class EngineError(MusterError):
    """The engine itself failed: workers cannot start, a device is missing."""

    exit_code = 7


class StoreError(MusterError):
    """A results store is missing, damaged, or written by a newer version."""

    exit_code = 8


class SweepError(MusterError):
    """Some runs of a sweep failed; the others are complete."""

    exit_code = 9
    #: The results of those (`muster.Result`), where the sweep was run from Python.
    results: Sequence[Any] = ()


#: What others call an option → what it is called here, where no letters are alike.
ELSEWHERE = {"learning_rate": "lr", "eta": "lr"}


def nearest(word: str, options: Iterable[str]) -> str:
    """A sentence with the closest option and all of them, for messages about unknown names."""
    options = sorted(set(options))
    known, hint = ", ".join(options), meant(word, options)
    return f"{hint} Possible: {known}" if hint else f"one of {known}"


def meant(word: str, options: Iterable[str]) -> str:
    """A question with the closest option; empty where none is close."""
    alike = {option.lower(): option for option in options}
    known = ELSEWHERE.get(word.lower())
    close = [known] if known in alike else difflib.get_close_matches(word.lower(), alike, n=1, cutoff=0.5)
    return f"did you mean '{alike[close[0]]}'?" if close else ""
