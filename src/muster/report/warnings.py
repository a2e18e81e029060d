"""What to know before believing a report: refused updates, failed clients, runs that did not finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from muster.results.cases import seed_of
from muster.results.store import Run
from muster.server.result import Result

_MAX_REASONS, _MAX_NAMES = 3, 6


def warnings(results: Sequence[Result]) -> list[str]:
    """One sentence or two for each thing that went wrong or does not fit together."""
    return [*_unfinished(results), *_refused(results), *_empty_rounds(results), *_events(results), *_code(results)]


def without_rounds(runs: Sequence[Run]) -> list[str]:
    """Runs of a store that have left nothing to report."""
    return [
        f"{run.name}, seed {run.seed}: {run.status} without a round. {' '.join(run.error.split())}".strip()
        for run in runs
    ]


def run_name(result: Result) -> str:
    return f"{result.name or 'run'}, seed {seed_of(result)}"


def _unfinished(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if not result.complete:
            planned = result.config.get("rounds", "?")
            status = result.provenance.status or "not complete"
            text = f"{run_name(result)}: {status} after {len(result.records)} of {planned} rounds."
            yield f"{text} {result.provenance.error}".strip()


def _refused(results: Sequence[Result]) -> Iterator[str]:
    """Updates that were refused, and clients that did not answer, by run, with the most frequent reasons."""
    for result in results:
        trainings = [training for record in result.records for training in record.trainings]
        rejected = [reason for training in trainings for reason in training.rejected.values()]
        failed = [reason for training in trainings for reason in training.failed.values()]
        used = sum(len(training.clients) for training in trainings)
        for reasons, one, many in (
            (rejected, "update was refused", "updates were refused"),
            (failed, "client failed to answer", "answers of clients did not come"),
        ):
            if reasons:
                share = len(reasons) / (used + len(rejected) + len(failed))
                what = one if len(reasons) == 1 else many
                text = f"{len(reasons):,} {what} ({share:.1%} of all trainings)"
                yield f"{run_name(result)}: {text}: {_most(reasons)}."


def _most(reasons: Sequence[str]) -> str:
    frequent = Counter(reasons).most_common(_MAX_REASONS)
    others = len(reasons) - sum(times for _, times in frequent)
    words = [f"{reason} ({times:,} ×)" for reason, times in frequent]
    return "; ".join([*words, f"{others:,} others"] if others else words)


def _empty_rounds(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        empty = [record.round for record in result.records if record.failed]
        if empty:
            yield f"{run_name(result)}: the model stayed as it was in {_listed(empty, 'round', 'rounds')}."


def _events(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        told = [f"round {record.round}: {event}" for record in result.records for event in record.events]
        if told:
            more = f"; and {len(told) - _MAX_NAMES:,} more" if len(told) > _MAX_NAMES else ""
            yield f"{run_name(result)}: {'; '.join(told[:_MAX_NAMES])}{more}."


def _code(results: Sequence[Result]) -> Iterator[str]:
    versions = sorted({result.provenance.code_version for result in results} - {""})
    if len(versions) > 1:
        yield f"The runs were made with different versions of the code: {', '.join(versions)}."
    if any("dirty" in version for version in versions):
        yield "Some runs were made with code that was not committed: the version alone does not bring it back."
    machines = {tuple(sorted(r.provenance.environment.items())) for r in results if r.provenance.environment}
    if len(machines) > 1:
        yield "The runs were made in different environments (below): last digits may differ between them."


def _listed(numbers: Sequence[int], one: str, many: str) -> str:
    shown = ", ".join(f"{number:,}" for number in numbers[:_MAX_NAMES])
    more = f" and {len(numbers) - _MAX_NAMES:,} more" if len(numbers) > _MAX_NAMES else ""
    return f"{one if len(numbers) == 1 else many} {shown}{more}"
