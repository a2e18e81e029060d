"""Filters: what happens to updates on their way, in a stated order, and what is booked of it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.signals.losses import Loss
from muster.updates.attacks.sign_flip import SignFlip
from muster.updates.clip import Clip
from muster.updates.filters import (
    Filter,
    Filtered,
    Tally,
    as_sent,
    named,
    passed_through,
    streams,
    without,
    working,
)
from muster.updates.guard import Guard
from muster.updates.table import Updates

SPEC = ParameterSpec((SpecEntry("weight", (4,), 0, 4),), buffers=(SpecEntry("mean", (2,), 4, 6),))


def no_draws(name):
    raise AssertionError(f"{name} drew")


def through(updates: Updates, *steps: Filter, draws=lambda name: no_draws) -> tuple[Filtered, Tally]:
    tally = Tally()
    return passed_through(tuple(named(steps)), updates, SPEC, draws, tally), tally


def test_clip_shortens_the_trainable_part_only():
    sent = Updates.from_movements([[30, 40, 0, 0, 100, 100], [3, 4, 0, 0, 100, 100], [0, 0, 0, 0, 1, 1]])
    result, tally = through(sent, Clip(10))
    expected = [[6, 8, 0, 0, 100, 100], [3, 4, 0, 0, 100, 100], [0, 0, 0, 0, 1, 1]]
    np.testing.assert_allclose(result.updates.movements, expected)
    assert tally.summary() == {"clip": {"seen": 3, "changed": 1, "refused": 0}}


@given(hnp.arrays(np.float32, (3, 6), elements=st.floats(-1e6, 1e6, width=32)), st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_clipped_movements_keep_their_direction(movements, norm):
    before = movements[:, :4].astype(np.float64)
    clipped = through(Updates.from_movements(movements.copy()), Clip(norm))[0].updates.movements[:, :4]
    lengths = np.linalg.norm(before, axis=1)
    wanted = before * np.minimum(1, norm / np.maximum(lengths, 1e-300))[:, None]
    np.testing.assert_allclose(clipped, wanted, rtol=1e-5, atol=1e-6 * norm)


def test_a_row_that_one_filter_refuses_is_not_shown_to_the_next():
    movements = np.zeros((3, 6), dtype=np.float32)
    movements[1, 0], movements[2, 0] = np.nan, 50
    result, tally = through(Updates.from_movements(movements, clients=np.array([7, 3, 5])), Guard(), Clip(10))
    assert result.refused == {3: "non-finite values"}
    assert result.updates.clients.tolist() == [7, 5]
    assert tally.summary() == {
        "Guard": {"seen": 3, "changed": 0, "refused": 1},
        "clip": {"seen": 2, "changed": 1, "refused": 0},
    }


def test_a_second_filter_of_a_kind_is_booked_apart_and_nothing_is_booked_for_what_did_nothing():
    _, tally = through(Updates.from_movements([[30, 40, 0, 0, 0, 0]]), Clip(20), Clip(10), Clip(15))
    assert list(tally.summary()) == ["clip", "clip 2"]


def test_draws_come_from_the_clients_own_stream():
    @dataclass(frozen=True)
    class Noise(Filter):
        def apply(self, updates, spec, draws):
            for row, client in enumerate(updates.clients.tolist()):
                updates.movements[row, spec.trainable] += draws(client).normal(size=4)
            return Filtered(updates, changed=len(updates))

    def noisy(clients):
        zeros = np.zeros((len(clients), 6), dtype=np.float32)
        sent = Updates.from_movements(zeros, clients=np.array(clients))
        made = through(sent, Noise(), draws=lambda name: np.random.default_rng)[0]
        return dict(zip(clients, made.updates.movements, strict=True))

    together, apart = noisy([4, 9]), noisy([9]) | noisy([4])
    for client, movement in together.items():
        assert np.array_equal(movement, apart[client])


def test_without_objections_nothing_is_copied():
    sent = Updates.from_movements(np.zeros((2, 6)))
    assert without(sent, {}).updates is sent


@pytest.mark.parametrize("norm", [0.0, -1.0, np.nan])
def test_bad_norms_are_named(norm):
    with pytest.raises(ConfigError, match=f"norm is {norm}"):
        Clip(norm).check(None)


def test_a_movement_as_long_as_the_bound_is_not_changed():
    sent = Updates.from_movements([[3, 4, 0, 0, 9, 9]])
    result, tally = through(sent, Clip(5))
    assert tally.summary() == {}
    assert tally.seen == {"clip": 1}
    assert result.updates.movements.tolist() == [[3, 4, 0, 0, 9, 9]]


@dataclass(frozen=True)
class Refuses(Filter):
    """Refuses clients, by id."""

    clients: tuple[int, ...]

    def apply(self, updates, spec, draws):
        rows = np.flatnonzero(np.isin(updates.clients, self.clients)).tolist()
        return without(updates, dict.fromkeys(rows, f"by {self.clients}"))


def test_refusals_and_changes_of_several_filters_are_put_together():
    sent = Updates.from_movements(np.full((4, 6), 50), clients=np.array([2, 4, 6, 8]))
    result, tally = through(sent, Refuses((4,)), Clip(10), Refuses((8, 4)), Clip(5))
    assert result.refused == {4: "by (4,)", 8: "by (8, 4)"}
    assert result.updates.clients.tolist() == [2, 6]
    assert result.changed == 3 + 2
    assert tally.summary()["Refuses 2"] == {"seen": 3, "changed": 0, "refused": 1}


def test_where_nobody_is_left_the_rest_of_the_chain_is_not_asked():
    @dataclass(frozen=True)
    class Never(Filter):
        def apply(self, updates, spec, draws):
            raise AssertionError

    result, tally = through(Updates.from_movements(np.zeros((1, 6))), Refuses((0,)), Never())
    assert (len(result.updates), list(tally.seen)) == (0, ["Refuses"])


def test_a_filter_that_changes_although_it_says_that_it_does_not_is_found_out():
    @dataclass(frozen=True)
    class Secret(Filter):
        changes = False

        def apply(self, updates, spec, draws):
            return Filtered(updates, changed=1)

    with pytest.raises(ConfigError, match="'Secret' changed updates, but declares that it does not"):
        through(Updates.from_movements(np.zeros((1, 6))), Secret())


def test_an_attack_begins_in_its_first_round():
    chain = tuple(named([SignFlip(clients=(0,), from_round=3), Clip(1)]))
    assert [[name for name, _ in working(chain, round)] for round in (0, 1, 2, 3)] == [
        ["clip"],
        ["clip"],
        ["client sign-flip", "clip"],
        ["client sign-flip", "clip"],
    ]


def client_answer(*steps: Filter, round: int = 0) -> Updates:
    sent = Updates.from_movements([[30, 40, 0, 0, 0, 0]], clients=np.array([7]))
    return as_sent(tuple(named(steps)), sent, SPEC, streams(0, round, 0), round)


def test_a_client_says_which_filter_changed_its_answer():
    flip = SignFlip(clients=(7,), from_round=2)
    first, second = (client_answer(Clip(10, side="client"), flip, round=round) for round in (0, 1))
    assert {name: rows.tolist() for name, rows in first.changed.items()} == {
        "client clip": [1],
        "client sign-flip": [0],
    }
    assert {name: rows.tolist() for name, rows in second.changed.items()} == {
        "client clip": [1],
        "client sign-flip": [1],
    }
    np.testing.assert_allclose(second.movements, [[-6, -8, 0, 0, 0, 0]])


def test_on_its_own_side_a_filter_may_not_refuse_nor_lose_an_answer():
    with pytest.raises(ConfigError, match=r"'Refuses' refused an update on the client's side: by \(7,\)"):
        client_answer(Clip(10), Refuses((7,)), Clip(5))

    @dataclass(frozen=True)
    class Loses(Filter):
        def apply(self, updates, spec, draws):
            return Filtered(updates.rows(slice(0, 0)))

    with pytest.raises(ConfigError, match="'Loses' refused an update on the client's side: its row is gone"):
        client_answer(Clip(10), Loses())


def test_every_filter_client_round_and_iteration_has_a_stream_of_its_own():
    def first(seed=0, round=0, iteration=0, name="clip", client=1):
        return streams(seed, round, iteration)(name)(client).random()

    assert first() == first()
    others = [first(seed=1), first(round=1), first(iteration=1), first(name="clip 2"), first(client=2)]
    assert len({first(), *others}) == 6


def test_what_a_filter_does_unless_it_says_otherwise():
    """It acts on the server from round 1 on, may change movements, and tells, costs and knows nothing more."""
    step = Refuses(())
    assert (step.side, step.from_round, step.changes) == ("server", 1, True)
    assert (step.discloses, step.whole, step.lies, step.poisons) == ("", False, False, False)
    assert step.sent_bytes(123, SPEC) == 123
    assert step.settled(5, 0) is step
    assert step.on_node() is step
    values = np.array([1.0])
    assert step.told(0, Loss(), values, np.random.default_rng(0)) is values
    assert step.poisoned(None) is None


@pytest.mark.parametrize(
    "step", [Clip(1.0), Guard(), SignFlip(clients=(1,))], ids=lambda step: type(step).__name__
)
def test_options_cannot_be_changed_once_they_have_been_checked(step):
    for name in step.get_params():
        with pytest.raises(FrozenInstanceError):
            setattr(step, name, 5)
