"""Live progress: a bar in a terminal or a notebook, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from muster.console.notebook import bars
from muster.console.times import readable_time
from muster.engine.base import Failed
from muster.results.files import to_json
from muster.server.ledger import Ledger
from muster.server.loop import Observer, Server
from muster.server.record import RoundRecord
from muster.updates.table import Updates


class _Rate:
    """How fast it goes since the run began or was resumed.

    The first round, in which worker processes start, counts only until there is a second.
    """

    def __init__(self) -> None:
        self._begun = False
        self._begin()

    def _begin(self) -> None:
        self._start, self._samples, self._rounds = time.monotonic(), 0, 0

    def add(self, answers: Updates | Failed) -> None:
        if isinstance(answers, Updates):
            self._samples += int(answers.numbers["samples"].sum())

    def round_ended(self, left: int) -> tuple[float, float]:
        """Samples per second, and the seconds that the rounds that are left will take."""
        self._rounds += 1
        passed = max(1e-9, time.monotonic() - self._start)
        told = self._samples / passed, passed / self._rounds * left
        if not self._begun:
            self._begun = True
            self._begin()
        return told


class BarProgress(Observer):
    """A progress bar with round, accuracy, samples per second and time left."""

    def __init__(self, console: Console, title: str) -> None:
        self._title, self._rate, self._said = title, _Rate(), list[str]()
        self._bar = bars(
            console,
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(title, total=None, facts="starting")

    def __enter__(self) -> BarProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, server: Server, rounds: int, done: int) -> None:
        self._bar.console.print(f"{self._title}: {server.engine.describe()}", style="dim", markup=False)
        self._said = _cautions(server, rounds, done)
        for text in self._said:
            self._bar.console.print(f"caution: {text}", style="yellow", markup=False, soft_wrap=True)
        self._bar.update(self._task, total=rounds, completed=done)
        self._rate = _Rate()

    def answered(self, answers: Updates | Failed) -> None:
        self._rate.add(answers)

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        accuracy, loss = record.metrics["accuracy"], record.metrics["loss"]
        shown = "" if math.isnan(loss) else f"loss {loss:.4g}  "
        if not math.isnan(accuracy):
            shown = f"accuracy {accuracy:.1%}  "
        speed, _ = self._rate.round_ended(0)  # the bar has a clock of its own
        self._bar.update(self._task, advance=1, facts=f"{shown}{speed:,.0f} samples/s")
        for line in warnings(record, self._said):
            self._bar.console.print(line, style="yellow", markup=False)


class LineProgress(Observer):
    """One plain line per round, for logs and pipes."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._rate, self._rounds = console, title, _Rate(), 0
        self._said: list[str] = []

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def started(self, server: Server, rounds: int, done: int) -> None:
        self._rounds, self._rate = rounds, _Rate()
        self._console.print(f"{self._title}: {server.engine.describe()}", markup=False, soft_wrap=True)
        self._said = _cautions(server, rounds, done)
        for text in self._said:
            self._console.print(f"caution: {text}", markup=False, soft_wrap=True)

    def answered(self, answers: Updates | Failed) -> None:
        self._rate.add(answers)

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        accuracy, loss = record.metrics["accuracy"], record.metrics["loss"]
        shown = "" if math.isnan(loss) else f"  loss {loss:.4g}"
        if not math.isnan(accuracy):
            shown = f"  accuracy {accuracy:.4f}"
        speed, left = self._rate.round_ended(self._rounds - record.round)
        self._console.print(
            f"{self._title}: round {record.round}/{self._rounds}{shown}"
            f"  {speed:,.0f} samples/s  {readable_time(left)} left",
            markup=False,
            soft_wrap=True,
        )
        for line in warnings(record, self._said):
            self._console.print(line, markup=False, soft_wrap=True)


class JsonProgress(Observer):
    """One JSON object per round on standard output."""

    def __enter__(self) -> JsonProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        row: dict[str, Any] = {"event": "round", **record.state_dict()}
        print(to_json(row), flush=True)


#: What time alone decides, in words.
TIMELY = {"left": "left before they answered", "late": "were late", "stale": "answered too late to be used"}


def _cautions(server: Server, rounds: int, done: int) -> list[str]:
    """What to know before round 1; a resumed run has already said it."""
    return [] if done else server.cautions(rounds)


def warnings(record: RoundRecord, said: Sequence[str] = ()) -> list[str]:
    """What went wrong or was unusual in a round, in words, except what was already `said`."""
    lines = [f"  round {record.round}: {event}" for event in record.events if event not in said]
    for training in record.trainings:
        # Clients that left, were late or too stale are expected with a pacing: they are counted, not named one by
        # one.
        counts = Counter(how for how in training.flown.outcome if how in TIMELY)
        if counts:
            told = ", ".join(f"{number} {TIMELY[how]}" for how, number in counts.items())
            lines.append(f"  round {record.round}: {told}")
        expected = {
            c for c, how in zip(training.flown.clients, training.flown.outcome, strict=True) if how in TIMELY
        }
        for verb, reasons in (("refused", training.rejected), ("failed", training.failed)):
            lines += [
                f"  round {record.round}: client {c} {verb}: {why}"
                for c, why in reasons.items()
                if c not in expected
            ]
    if record.failed:
        lines.append(f"  round {record.round} failed: no valid update, the model stays as it was")
    return lines


def progress_for(console: Console, title: str, json_lines: bool) -> BarProgress | LineProgress | JsonProgress:
    if json_lines:
        return JsonProgress()
    return BarProgress(console, title) if console.is_terminal else LineProgress(console, title)


class StopAfterRound(Observer):
    """The first Ctrl-C lets the round end and a checkpoint be written; the second stops immediately."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> StopAfterRound:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this round (press Ctrl-C again to stop immediately)", file=sys.stderr)

    def wants_stop(self) -> bool:
        return self.asked
