"""Pacing on real processes, some of them slow on purpose; every run is then repeated on the local engine."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")
from muster.experiment import replay
from muster.flower.deploy.driver import run_on_link
from muster.server.loop import Observer

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]


class Slow(Observer):
    """Keeps clients in the middle of their first training until so many rounds have ended."""

    def __init__(self, folder, clients, rounds: int, place: str) -> None:
        self.holds, self.rounds = [folder / f"hold-{client}-{place}" for client in clients], rounds
        for hold in self.holds:
            hold.touch()

    def round_ended(self, record, ledger) -> None:
        if record.round >= self.rounds:
            self.release()

    def release(self) -> None:
        for hold in self.holds:
            hold.unlink(missing_ok=True)


@pytest.fixture
def run_with_slow(federation, task, mischief):
    """Runs an experiment in which clients are slow, and repeats it."""
    made: list[Slow] = []

    def run_it(*settings: str, clients: tuple[int, ...], rounds: int = 1, place: str = "0.0.0"):
        slow = Slow(mischief, clients, rounds, place)
        made.append(slow)
        mine = task(*settings, out=f"out-{len(made)}")
        result = run_on_link(mine, federation.link, [slow])
        repeated = replay(str(mine.out), workers=0)
        assert repeated.differences == []
        assert repeated.again.parameters.tobytes() == result.parameters.tobytes()
        return result

    yield run_it
    for path in (hold for slow in made for hold in slow.holds):
        path.unlink(missing_ok=True)
    for path in mischief.glob("held-*"):
        path.unlink()


def outcomes(result, round: int) -> dict[int, str]:
    flown = result.records[round - 1].trainings[0].flown
    return dict(zip(flown.clients, flown.outcome, strict=True))


def test_every_pacing_with_slow_clients_and_the_same_bits_when_repeated(run_with_slow):
    # The first four answers, of six.
    result = run_with_slow(
        "pacing.method=over-select",
        *("pacing.factor=1.5", "selection.method=random", "selection.clients_per_round=4", "rounds=4"),
        clients=(4, 5),
    )
    assert result.records[0].trainings[0].clients == [0, 1, 2, 3]
    assert (outcomes(result, 1)[4], outcomes(result, 1)[5]) == ("late", "late")
    assert result.ledger.rounds[0].wasted_trainings == 2
    told = [event for record in result.records for event in record.events]
    assert any("answered exchange 0.0.0 too late: dropped" in event for event in told)

    # A deadline: who is late is given up on, or counts later.
    for late, method, place in (("discard", "power-of-choice", "0.0.1"), ("use", "oort", "0.0.0")):
        result = run_with_slow(
            "pacing.method=deadline",
            *("pacing.seconds=15.0", f"pacing.late={late}", f"selection.method={method}", "rounds=3"),
            clients=(2,),
            place=place,
        )
        first, *others = result.records
        assert 2 not in first.trainings[0].clients
        assert first.trainings[0].clients
        assert first.ended - first.observed.moments[-1] == pytest.approx(15.0)
        if late == "discard":
            assert outcomes(result, 1)[2] == "late"
        else:
            flown = [record.trainings[0].flown for record in others]
            stale = [f.staleness[f.clients.index(2)] for f in flown if 2 in f.clients]
            assert stale[0] >= 1
            assert result.ledger.total().wasted_trainings == 0

    # The next two answers, whoever sends them; two slow clients hold up nobody.
    result = run_with_slow(
        "pacing.method=buffered",
        *("pacing.in_flight=6", "pacing.k=2", "selection.clients_per_round=6", "rounds=5"),
        clients=(0, 1),
        rounds=2,
    )
    used = [client for record in result.records[:2] for client in record.trainings[0].clients]
    assert len(used) == 4
    assert not {0, 1} & set(used)
    stalest = max(s for record in result.records for s in record.trainings[0].flown.staleness)
    assert stalest >= 1
