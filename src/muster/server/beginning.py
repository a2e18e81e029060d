"""The rounds of one run as the beginning of another that differs from it in the number of rounds alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from muster.core.errors import CheckpointError
from muster.server.loop import MANY_CLIENTS, UNMEASURED
from muster.server.persistence import Saved
from muster.server.record import RoundRecord

if TYPE_CHECKING:
    from muster.server.loop import Server

#: What a checkpoint must hold for a run to go on; a finished run may have kept less.
NEEDED = ("parameters", "selector", "aggregator", "engine", "history", "privacy", "time")


def as_beginning(saved: Saved, planned: int, server: Server, rounds: int) -> Saved:
    """What a run that was `planned` for some rounds has left, as a run of `rounds` rounds would have left it.

    Two things in a record follow from the number of rounds: what is said before round 1, and the evaluation after
    the last round, which is made whether or not one is due. It must go: a schedule may follow the losses measured.
    """
    records = list(saved.records)
    before = server.cautions(planned)
    first = records[0]
    if first.events[: len(before)] != before:
        raise CheckpointError(
            "the rounds of the shorter run cannot be continued: before round 1 it said something else than this "
            "experiment would say",
            fix="begin at round 1: without extend and resume, or in another output folder",
        )
    records[0] = replace(first, events=server.cautions(rounds) + first.events[len(before) :])
    if len(records) == planned:
        records[-1] = as_not_last(records[-1], server.evaluate_every)
    return replace(saved, records=records)


def as_not_last(record: RoundRecord, evaluate_every: int) -> RoundRecord:
    """A run's last round as it would be recorded if others followed."""
    if record.round % evaluate_every:
        return replace(record, metrics=dict(UNMEASURED), groups=[], client_accuracy=None)
    if record.client_accuracy is not None and len(record.client_accuracy) > MANY_CLIENTS:
        return replace(record, client_accuracy=None)
    return record
