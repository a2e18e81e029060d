"""A node's own account: disclosures add up over answers, runs and restarts, and the node's owner sets the limit.

Noise of a small ε protects one answer. Whoever gets a hundred of them can average the noise away, and the server's
ledger is the server's. So the node counts for itself (basic composition), in a file, before anything is measured.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.core.errors import ConfigError
from muster.core.registry import build
from muster.flower.limits import Limits, check_amounts
from muster.flower.wire import WireError
from muster.privacy.noise import Private
from muster.results.checkpoint import sync_folder
from muster.signals.base import Signal
from muster.updates.update_noise import UpdateNoise

#: ε of an answer → how many of them have left.
Book = dict[float, int]

#: Sums of many small numbers may be off by so much, relative to the budget.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class EpsilonBudget:
    """The entries `epsilon-budget` and `epsilon-book` of a node's configuration."""

    #: What all answers together may spend. None: nothing is counted.
    epsilon_budget: float | None = None
    #: The file of the account; it must outlive the node's process.
    epsilon_book: str = ""

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> EpsilonBudget:
        keys = {"epsilon_budget": "epsilon-budget", "epsilon_book": "epsilon-book"}
        given = {name: node_config[key] for name, key in keys.items() if key in node_config}
        budget: EpsilonBudget = build(cls, given, "node-config")
        check_amounts({"epsilon-budget": budget.epsilon_budget})
        if (budget.epsilon_budget is None) != (budget.epsilon_book == ""):
            raise ConfigError(
                f"the node's configuration has only {', '.join(keys[name] for name in given)} of a budget",
                expected="epsilon-budget and epsilon-book: how much may be told, and the file where it is counted",
            )
        return budget

    def demands(self, limits: Limits) -> Limits:
        """With a budget nothing leaves without noise, whatever else the owner says."""
        if self.epsilon_budget is None or limits.max_epsilon is not None:
            return limits
        return replace(limits, max_epsilon=self.epsilon_budget)

    def spend(self, signals: Sequence[Signal], updates: Sequence[UpdateNoise] = ()) -> None:
        """Book the answer that is about to be made; refuse it where the owner's budget does not reach.

        `updates`: the noise on the update that is a part of it.
        """
        if self.epsilon_budget is None or not (signals or updates):
            return
        with self._alone():
            self._book_all(signals, updates, self.epsilon_budget)

    def _book_all(self, signals: Sequence[Signal], updates: Sequence[UpdateNoise], most: float) -> None:
        book = self._read()
        for signal in signals:
            # Written so that numbers that are none are refused too.
            if not isinstance(signal, Private) or not 0 < signal.epsilon < math.inf:
                raise WireError(
                    f"the node's owner counts what is told, and '{signal.name}' is asked for without noise",
                    expected="noise with a finite epsilon",
                )
            book[signal.epsilon] = book.get(signal.epsilon, 0) + 1
        for noise in updates:
            noise.check_amounts()
            book[noise.epsilon] = book.get(noise.epsilon, 0) + 1
        if total(book) > most * (1 + _ROUNDING):
            raise WireError(
                f"the node has told all that its owner allows: with this answer epsilon would be {total(book):g}",
                expected=f"at most {most:g} (epsilon-budget)",
            )
        self._write(book)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps two processes of one node from both reading the account before either has written it."""
        path = Path(f"{self.epsilon_book}.lock")
        try:
            file = path.open("a")
        except OSError as error:
            raise _unwritable(Path(self.epsilon_book), error) from error
        with file:  # closing it gives the lock back
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self) -> Book:
        path = Path(self.epsilon_book)
        try:
            if not path.exists():
                return {}
            book = {float(epsilon): count for epsilon, count in json.loads(path.read_text("utf-8")).items()}
            if not all(0 < epsilon < math.inf and type(n) is int and n > 0 for epsilon, n in book.items()):
                raise ValueError("it holds numbers that are no account")
        except (OSError, ValueError, AttributeError) as error:
            # Beginning anew would forget what has been told.
            raise ConfigError(f"the node's account {path} cannot be read: {error}") from error
        return book

    def _write(self, book: Book) -> None:
        path = Path(self.epsilon_book)
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump({repr(epsilon): count for epsilon, count in sorted(book.items())}, file)
                file.flush()
                os.fsync(file.fileno())  # what was told must not be forgotten with the power
            temporary.replace(path)
            sync_folder(path.parent)  # nor which of the two files has the name
        except OSError as error:
            raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the node's account {path} cannot be written: {error.strerror}")


def total(book: Book) -> float:
    """ε of all answers together, by basic composition."""
    return math.fsum(epsilon * count for epsilon, count in book.items())
