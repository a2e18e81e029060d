"""Update filters in runs: by name or as objects, on either side, on every engine, and what is booked of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import muster
from muster.aggregation.base import Aggregated, Aggregator
from muster.aggregation.scaffold import Scaffold
from muster.core.arrays import Vector
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.selection.base import Plan, Selector, Train, View
from muster.server.loop import Observer
from muster.signals.updates import WholeUpdate
from muster.updates.clip import Clip
from muster.updates.filters import Draws, Filter, Filtered, Side, without
from muster.updates.table import Updates

CLIP = {"method": "clip", "norm": 0.05}
ENGINES = ["inline", "processes", "vectorised"]


@dataclass(frozen=True)
class Noise(Filter):
    """Adds noise to every movement."""

    scale: float = 0.01
    side: Side = "client"

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        moved = updates.movements.copy()  # not in place: a filter may also give another table back
        for row, client in enumerate(updates.clients.tolist()):
            moved[row, spec.trainable] += draws(client).normal(0, self.scale, spec.trainable.stop)
        return Filtered(replace(updates, movements=moved), changed=len(updates))


@dataclass(frozen=True)
class Refuse(Filter):
    """Lets nothing through."""

    side: Side = "client"

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        return without(updates, dict.fromkeys(range(len(updates)), "not today"))


@dataclass(frozen=True)
class Halved(Filter):
    """Sends half of the bytes."""

    side: Side = "client"

    def sent_bytes(self, before: int, spec: ParameterSpec) -> int:
        return before // 2

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        return Filtered(updates)


@dataclass(frozen=True)
class Measured(Selector):
    """Five clients that report their movements."""

    def needs(self) -> tuple[WholeUpdate, ...]:
        return (WholeUpdate(),)

    def round(self, fed: View) -> Plan:
        told = yield Train(fed.sample(5), report=[WholeUpdate()])
        seen.append(told["update"].astype(np.float32))


@dataclass(kw_only=True)
class Kept(Aggregator):
    """A mean that remembers what it got."""

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        seen.append(updates.movements.copy())
        return self.averaged(current, updates, updates.shares("equal"), spec)


seen: list[Vector] = []


def norms(rows: Vector) -> Any:
    return np.linalg.norm(rows, axis=1)


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("kind", ENGINES)
def test_a_filter_of_the_config_bounds_what_is_aggregated(tiny, kind, side):
    seen.clear()
    filters = [CLIP | {"side": side}]
    result = muster.run(tiny(filters=filters, aggregation=Kept(), engine={"kind": kind}, rounds=2), workers=None)
    assert len(seen) == 2
    assert all((norms(rows) <= 0.05 * (1 + 1e-5)).all() for rows in seen)
    name = "client clip" if side == "client" else "clip"
    for record in result.records:
        (training,) = record.trainings
        assert training.filtered == {name: {"seen": 5, "changed": 5, "refused": 0}}
    disclosed = Clip.discloses in result.ledger.total_disclosed()
    assert disclosed == (side == "client"), "what happens on the server tells nothing"


@pytest.mark.parametrize("kind", ["inline", "vectorised"])
def test_reports_are_measured_on_what_is_sent(tiny, kind):
    experiment = tiny(selection=Measured(), filters=[CLIP | {"side": "client"}], engine={"kind": kind}, rounds=2)
    seen.clear()
    muster.run(experiment, workers=0)
    assert len(seen) == 2
    for rows in seen:
        np.testing.assert_allclose(norms(rows), 0.05, rtol=1e-4)


@pytest.mark.parametrize("kind", ["processes", "vectorised"])
@pytest.mark.parametrize("side", ["client", "server"])
def test_random_draws_do_not_depend_on_workers_or_a_stop(tiny, tmp_path, kind, side):
    class StopAfterOne(Observer):
        def wants_stop(self) -> bool:
            return True

    def experiment() -> muster.Experiment:
        steps = [Noise(side=side), Noise(0.02, side=side)]
        made: muster.Experiment = tiny(filters=steps, engine={"kind": kind}, rounds=3)
        return made

    alone = muster.run(experiment(), workers=0)
    assert np.array_equal(muster.run(experiment(), workers=2).parameters, alone.parameters)
    muster.run(experiment(), workers=0, out=tmp_path, observers=[StopAfterOne()])
    resumed = muster.run(experiment(), workers=2, out=tmp_path, resume=True)
    assert np.array_equal(resumed.parameters, alone.parameters)
    assert [r.trainings[0].filtered for r in resumed.records] == [r.trainings[0].filtered for r in alone.records]
    without_noise = muster.run(replace(experiment(), filters=[]), workers=0)
    assert not np.array_equal(without_noise.parameters, alone.parameters)


def test_the_two_sides_and_two_of_a_kind_draw_from_streams_of_their_own(tiny):
    chains: list[list[Filter]] = [[Noise(side="client")], [Noise(side="server")]]
    one, other = (muster.run(tiny(filters=chain, rounds=1), workers=0).parameters for chain in chains)
    assert not np.array_equal(one, other)


def test_a_client_may_not_refuse(tiny):
    with pytest.raises(ConfigError, match="'client Refuse' refused an update on the client's side: not today"):
        muster.run(tiny(filters=[Refuse()]), workers=2)


def test_what_the_server_refuses_is_booked_and_comes_back_from_the_store(tiny, tmp_path):
    experiment = tiny(guard={"max_norm": 1e-3}, filters=[CLIP | {"side": "client"}], rounds=2)
    result = muster.run(experiment, workers=0, out=tmp_path)
    expected = {
        "client clip": {"seen": 5, "changed": 5, "refused": 0},
        "Guard": {"seen": 5, "changed": 0, "refused": 5},
    }
    assert [record.trainings[0].filtered for record in result.records] == [expected, expected]
    again = muster.run(experiment, workers=0, out=tmp_path, resume=True)
    assert [record.trainings[0].filtered for record in again.records] == [expected, expected]


def test_a_filter_says_how_many_bytes_a_movement_takes(tiny):
    plain, halved = (muster.run(tiny(filters=chain), workers=0).ledger.total() for chain in ([], [Halved()]))
    assert halved.bytes_up == plain.bytes_up // 2
    assert halved.bytes_down == plain.bytes_down


@pytest.mark.parametrize("side", ["client", "server"])
def test_feddyn_refuses_what_changes_movements_before_round_one(tiny, side):
    feddyn = {"algorithm": {"method": "feddyn"}, "aggregation": {"method": "feddyn"}}
    with pytest.raises(ConfigError, match="clip' changes movements on their way, but with feddyn"):
        muster.run(tiny(filters=[CLIP | {"side": side}], **feddyn), workers=0)
    muster.run(tiny(guard={"max_norm": 50.0}, rounds=1, **feddyn), workers=0)


def test_a_filter_that_changes_in_secret_is_found_out(tiny):
    class Secret(Noise):
        changes = False

    with pytest.raises(ConfigError, match="changed updates, but declares that it does not"):
        muster.run(tiny(filters=[Secret(side="server")]), workers=0)


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ({"method": "clip"}, "bad value for 'filters'"),
        ("clip", "bad value for 'filters'"),
        ([{"norm": 1.0}], r"missing key 'filters\[0\].method'"),
        ([{"method": "clop"}], "unknown update filter 'clop'"),
        ([CLIP, {"method": "clip"}], r"missing key 'filters\[1\].norm'"),
        ([CLIP | {"nrom": 1}], r"unknown key 'filters\[0\].nrom'"),
        ([CLIP | {"side": "both"}], r"bad value for 'filters\[0\].side'"),
        ([CLIP | {"norm": -1.0}], "norm is -1"),
        ([Noise(side="nowhere")], "side is 'nowhere'"),
    ],
    ids=str,
)
def test_mistakes_name_the_key(tiny, filters, problem):
    with pytest.raises(ConfigError, match=problem):
        muster.run(replace(tiny(), filters=filters), workers=0)


def test_a_client_side_filter_belongs_to_the_engine(tiny):
    from muster.experiment.parts import build_parts

    parts = replace(build_parts(tiny(), workers=0), filters=(Clip(1.0, "client"),))
    with parts.engine, pytest.raises(ConfigError, match="pass it to the engine"):
        parts.server().run(1)


def test_fingerprints_of_runs_without_filters_stay_as_they_were():
    told = muster.Experiment(training={"lr": 0.01, "batch_size": 64})
    assert told.fingerprint == "49e1b301c1b7bfe3"
    assert "filters" not in muster.Experiment().described()
    with_one = muster.Experiment(filters=[dict(CLIP)])
    assert with_one.fingerprint != muster.Experiment().fingerprint
    assert with_one.described()["filters"] == [CLIP]


def test_filters_on_the_command_line():
    changed = muster.Experiment().with_options(['filters=[{method="clip", norm=2.0, side="client"}]'])
    assert changed.filters == [{"method": "clip", "norm": 2.0, "side": "client"}]


@pytest.mark.parametrize("kind", ["inline", "vectorised"])
@pytest.mark.parametrize("step", [Clip(1e-3), Noise(10.0, "server")], ids=["in place", "another table"])
def test_aggregators_of_the_whole_matrix_get_what_filters_made_although_a_neighbour_was_refused(tiny, kind, step):
    everybody = {"method": "random", "clients_per_round": 12}

    def experiment(**changes: Any) -> muster.Experiment:
        made: muster.Experiment = tiny(
            selection=everybody, aggregation=Kept(), engine={"kind": kind}, rounds=1, **changes
        )
        return made

    seen.clear()
    muster.run(experiment(), workers=0)
    longest = norms(seen.pop()).max()
    muster.run(experiment(guard={"max_norm": float(longest) * 0.9999}, filters=[step]), workers=0)
    (rows,) = seen
    assert len(rows) == 11, "the longest one was refused"
    assert (norms(rows) < 1.01e-3).all() if isinstance(step, Clip) else (norms(rows) > 2 * longest).all()


@dataclass(frozen=True)
class Silent(Filter):
    """Tells the server nothing of control variates."""

    side: Side = "client"

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        nothing = {name: np.zeros_like(rows) for name, rows in updates.extra.items()}
        return Filtered(replace(updates, extra=nothing), changed=len(updates))


@pytest.mark.parametrize("kind", ["inline", "vectorised"])
def test_filters_of_clients_see_further_vectors_too(tiny, kind, monkeypatch):
    controls, finish = [], Scaffold.finish

    def watched(self: Scaffold) -> Any:
        """A run works on a copy of the aggregator that it is given: this one says what it has."""
        found = finish(self)
        controls.append(self.control)
        return found

    monkeypatch.setattr(Scaffold, "finish", watched)

    def control(*steps: Filter) -> Any:
        pair = {"algorithm": {"method": "scaffold"}, "aggregation": {"method": "scaffold"}}
        muster.run(tiny(filters=list(steps), engine={"kind": kind}, rounds=2, **pair), workers=0)
        return controls[-1]

    assert np.any(control(Clip(1e-3, "client"))), "clipping is for movements"
    assert not np.any(control(Silent()))
