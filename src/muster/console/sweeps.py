"""The display of a sweep: one bar for all of its runs in a terminal, a line for each run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from muster.config.experiment import Experiment
from muster.config.identity import pace_kind
from muster.console.notebook import bars
from muster.console.progress import StopAfterRound
from muster.console.times import readable_time
from muster.experiment.estimate import Pace, known_paces, seconds_left
from muster.experiment.jobs import JobObserver, share_of_cores
from muster.results.store import Run


class SweepProgress(JobObserver):
    """Counts rounds over all runs, and says how long the rest will take."""

    def __init__(self, console: Console, name: str, jobs: int | None, workers: int | None) -> None:
        self._console, self._name, self._wanted = console, name, (jobs, workers)
        self._jobs = 1
        self._left: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self._paces: dict[str, Pace] = {}
        #: Of the runs under way: rounds done and time, when they began.
        self._since: dict[str, tuple[int, float]] = {}
        self._ended, self._failed, self._total = 0, 0, 0
        self.stopper = StopAfterRound()
        self.bar = bars(
            console,
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[facts]}"),
        )
        self._task = self.bar.add_task(name, total=None, facts="")

    def planned(self, experiments: Sequence[Experiment], runs: Sequence[Run]) -> None:
        self._left = {e.fingerprint: e.rounds - run.done for e, run in zip(experiments, runs, strict=True)}
        self._kinds = {e.fingerprint: pace_kind(e.described()) for e in experiments}
        self._paces = known_paces(runs)
        self._total = len(runs)
        self._ended = sum(run.status == "complete" for run in runs)
        jobs, workers = share_of_cores(*self._wanted, self._total - self._ended or 1)
        self._jobs = jobs
        cores = f"{jobs} side by side" + (f", {workers} workers each" if workers else "")
        self._console.print(f"{self._name}: {self._total} runs, {self._ended} complete; {cores}", soft_wrap=True)
        rounds = sum(e.rounds for e in experiments)
        self.bar.update(self._task, total=rounds, completed=rounds - sum(self._left.values()))

    def rounds_done(self, experiment: Experiment, done: int) -> None:
        key = experiment.fingerprint
        first, began = self._since.setdefault(key, (done, time.monotonic()))
        if done > first:
            self._paces[self._kinds[key]] = Pace((time.monotonic() - began) / (done - first))
        self._left[key] = experiment.rounds - done
        self._show()

    def run_ended(self, experiment: Experiment, error: str) -> None:
        self._ended += 1
        self._failed += bool(error)
        how = f"failed: {error.splitlines()[0]}" if error else "complete"
        if error:
            self._left[experiment.fingerprint] = 0
        line = (
            f"[{self._ended}/{self._total}] {experiment.title}, seed {experiment.seed}: {how}{self._time_left()}"
        )
        if error or not self._console.is_terminal:
            self._console.print(line, markup=False, soft_wrap=True, style="yellow" if error else None)
        self._show()

    def wants_stop(self) -> bool:
        return self.stopper.asked

    def _show(self) -> None:
        done = (self.bar.tasks[0].total or 0) - sum(self._left.values())
        failed = f", {self._failed} failed" if self._failed else ""
        facts = f"{self._ended}/{self._total} runs{failed}{self._time_left()}"
        self.bar.update(self._task, completed=done, facts=facts)

    def _time_left(self) -> str:
        seconds = seconds_left(self._left, self._kinds, self._paces, self._jobs)
        return f"  {readable_time(seconds)} left" if seconds > 0 else ""

    @contextmanager
    def displayed(self) -> Iterator[SweepProgress]:
        """With the bar where there is one."""
        if self._console.is_terminal:
            with self.bar:
                yield self
        else:
            yield self


@contextmanager
def sweep_progress(console: Console, name: str, jobs: int | None, workers: int | None) -> Iterator[SweepProgress]:
    """The display of a command: Ctrl-C lets the rounds under way end."""
    progress = SweepProgress(console, name, jobs, workers)
    with progress.stopper, progress.displayed():
        yield progress
