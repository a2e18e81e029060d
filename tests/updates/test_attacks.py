"""Attacks: who attacks, from when on, and what each of them sends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import muster
from muster.aggregation.krum import krum_scores
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.core.randomness import generator
from muster.engine.trial import TrialEngine
from muster.experiment.backdoor import success_rate
from muster.experiment.components import build_data
from muster.experiment.parts import build_parts
from muster.server.loop import Observer
from muster.signals.losses import Loss, TrainLoss
from muster.updates.attacks.alie import Alie, hidden_deviations
from muster.updates.attacks.backdoor import Backdoor, marked
from muster.updates.attacks.base import attack_names, attackers_of
from muster.updates.attacks.fang import Fang, beyond_extremes, largest_accepted, nearest_sums
from muster.updates.attacks.free_rider import FreeRider
from muster.updates.attacks.gaussian_noise import GaussianNoise
from muster.updates.attacks.ipm import InnerProductManipulation
from muster.updates.attacks.label_flip import LabelFlip
from muster.updates.attacks.lying_signals import LyingSignals
from muster.updates.attacks.scaled_update import ScaledUpdate
from muster.updates.attacks.sign_flip import SignFlip
from muster.updates.attacks.stale_reply import StaleReply
from muster.updates.filters import filters
from muster.updates.table import Updates

SPEC = ParameterSpec(
    (SpecEntry("w", (4,), 0, 4),), (SpecEntry("mean", (2,), 4, 6),), (SpecEntry("n", (1,), 6, 7),)
)
EVERYBODY = {"method": "random", "clients_per_round": 12}


def movements(clients: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, SPEC.size)).astype(np.float32)


def attacked(step: Any, rows: np.ndarray) -> np.ndarray:
    table = Updates.from_movements(rows.copy())
    result = step.apply(table, SPEC, lambda client: generator(1, "test", client))
    assert result.changed == len(step.attackers(table))
    return result.updates.movements


# --- who, and when ---------------------------------------------------------------------------------------


def test_a_share_is_drawn_with_the_seed_and_larger_shares_hold_smaller_ones():
    assert len(attackers_of(40, 0.25, 0)) == 10
    assert attackers_of(40, 0.25, 0) != attackers_of(40, 0.25, 1)
    assert set(attackers_of(40, 0.1, 3)) < set(attackers_of(40, 0.5, 3))
    assert len(attackers_of(40, 0.001, 0)) == 1
    assert SignFlip(share=0.25).settled(40, 0).clients == ScaledUpdate(share=0.25).settled(40, 0).clients


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "one of the two"),
        ({"share": 0.1, "clients": [1]}, "one of the two"),
        ({"share": 1.5}, "share"),
        ({"clients": [99]}, "clients names 99"),
        ({"clients": [1], "from_round": 0}, "from_round"),
        ({"clients": [1], "scale": 0.0}, "scale"),
        ({"clients": [1], "side": "server"}, "side"),
    ],
)
def test_mistakes_are_named(tiny, options, why):
    with pytest.raises(ConfigError, match=why):
        muster.run(tiny(filters=[{"method": "sign-flip", **options}]), workers=0)


@pytest.mark.parametrize("method", attack_names())
def test_every_attack_runs_from_its_first_round_on_and_resumes_with_the_same_bits(tiny, tmp_path, method):
    """Before its first round an attack leaves no trace; after a stop it goes on as if there had been none."""

    class StopAfterTwo(Observer):
        def __init__(self) -> None:
            self.rounds = 0

        def wants_stop(self) -> bool:
            self.rounds += 1
            return self.rounds == 2

    selection = {"method": "high-loss", "clients_per_round": 8}
    section = {"method": method, "clients": [0, 1, 2, 3], "from_round": 2}
    options = {"rounds": 4, "selection": selection, "filters": [section]}
    result = muster.run(tiny(**options), workers=0)
    honest = muster.run(tiny(rounds=4, selection=selection), workers=0)
    assert result.metrics[0] == honest.metrics[0]
    assert np.isfinite(result.parameters).all()
    assert not np.array_equal(result.parameters, honest.parameters)
    muster.run(tiny(**options), workers=0, out=tmp_path, observers=[StopAfterTwo()])
    rest = muster.run(tiny(**options), workers=2, out=tmp_path, resume=True)
    assert np.array_equal(rest.parameters, result.parameters)
    assert rest.selections == result.selections


@pytest.mark.parametrize("method", attack_names())
def test_engines_agree_on_every_attack(tiny, method):
    section = {"method": method, "clients": [0, 1, 2, 3]}
    selection = {"method": "high-loss", "clients_per_round": 8}
    both = [
        muster.run(tiny(rounds=2, selection=selection, filters=[section], engine={"kind": kind}), workers=0)
        for kind in ("inline", "vectorised")
    ]
    np.testing.assert_allclose(both[0].parameters, both[1].parameters, atol=1e-4)
    assert both[0].selections == both[1].selections


@pytest.mark.parametrize("method", attack_names())
def test_attacks_go_with_exact_movements_exactly_if_they_send_what_they_trained(tiny, method):
    """FedDyn refuses what changes movements on their way; wrong data and wrong reports change none."""
    feddyn = {"aggregation": {"method": "feddyn"}, "algorithm": {"method": "feddyn"}}
    made = tiny(rounds=1, filters=[{"method": method, "clients": [0, 1]}], **feddyn)
    if method in {"backdoor", "label-flip", "lying-signals"}:
        muster.run(made, workers=0)
    else:
        with pytest.raises(ConfigError, match="changes movements on their way"):
            muster.run(made, workers=0)


def test_what_attackers_did_is_booked(tiny):
    made = tiny(rounds=1, selection=EVERYBODY, filters=[{"method": "sign-flip", "share": 0.25}])
    filtered = muster.run(made, workers=0).records[0].trainings[0].filtered
    assert filtered == {"client sign-flip": {"seen": 12, "changed": 3, "refused": 0}}
    made = tiny(rounds=1, selection=EVERYBODY, filters=[{"method": "ipm", "share": 0.25}])
    filtered = muster.run(made, workers=0).records[0].trainings[0].filtered
    assert filtered == {"ipm": {"seen": 12, "changed": 3, "refused": 0}}


def test_signals_that_the_server_computes_are_those_of_what_attackers_sent(tiny):
    """Terraform looks at the length of the last layer's movement: IPM's is that of its own."""
    selection = {"method": "terraform", "clients_per_round": 12, "max_iterations": 1}
    made = tiny(rounds=1, selection=selection, filters=[{"method": "ipm", "clients": [4], "epsilon": 1000.0}])
    (report,) = muster.run(made, workers=0).records[0].reports
    norms = dict(zip(report.clients.tolist(), report.values["final_layer_norm"].tolist(), strict=True))
    assert norms[4] > 100 * max(value for client, value in norms.items() if client != 4)


def refused(step: Any, why: str, clients: int = 5, classes: int = 3) -> None:
    with pytest.raises(ConfigError, match=why):
        step.check(TrialEngine(clients, classes=classes).population)


def allowed(step: Any, clients: int = 5, classes: int = 3) -> None:
    step.check(TrialEngine(clients, classes=classes).population)


def test_attackers_are_clients_of_the_federation():
    allowed(SignFlip(clients=(0, 4)))
    allowed(SignFlip(share=1.0))
    refused(SignFlip(clients=(0, 5)), r"clients names 5.*\n.*0 to 4")
    refused(SignFlip(clients=(-1,)), "clients names -1")
    refused(SignFlip(share=-0.1), "share is -0.1")
    refused(SignFlip(share=1.01), "share is 1.01")
    refused(SignFlip(clients=(1,), from_round=0), "from_round is 0")
    allowed(SignFlip(clients=(1,), from_round=1))


def test_a_share_of_nobody_knows_how_many_is_refused():
    with pytest.raises(ConfigError, match="the number of clients is not known yet"):
        SignFlip(share=0.5).settled(0, 0)
    named = SignFlip(clients=(3,))
    assert named.settled(0, 0) is named
    settled = SignFlip(share=0.5, scale=3.0, from_round=2).settled(4, 0)
    assert isinstance(settled, SignFlip)
    assert (len(settled.clients), settled.share, settled.scale, settled.from_round) == (2, 0.0, 3.0, 2)
    assert list(settled.clients) == sorted(settled.clients)
    with pytest.raises(ConfigError, match="one of the two"):
        SignFlip(share=0.5, clients=(1,)).settled(4, 0)


@pytest.mark.parametrize(
    ("make", "option", "good", "bad"),
    [
        (SignFlip, "scale", [1e-6, 1e6], [0.0, -1.0, np.inf, np.nan]),
        (ScaledUpdate, "factor", [1e-6, 1e6], [0.0, -1.0, np.inf, np.nan]),
        (GaussianNoise, "scale", [1e-6, 1e6], [0.0, -1.0, np.inf, np.nan]),
        (InnerProductManipulation, "epsilon", [1e-6, 1e6], [0.0, -1.0, np.inf, np.nan]),
        (FreeRider, "noise", [0.0, 1e6], [-1e-6, np.inf, np.nan]),
        (Fang, "spread", [1.000001, 1e6], [1.0, np.nan]),
        (Alie, "deviations", [None, -3.0, 0.0, 1e6], [np.inf, -np.inf, np.nan]),
        (LyingSignals, "factor", [-3.0, 0.0, 1e6], [np.inf, -np.inf, np.nan]),
        (LabelFlip, "source", [None, 0, 2], [-1, 3]),
        (LabelFlip, "target", [None, 0, 2], [-1, 3]),
        (Backdoor, "target", [0, 2], [-1, 3]),
        (Backdoor, "poisoned_share", [1e-6, 1.0], [0.0, 1.01, np.nan]),
        (Backdoor, "size", [1, 9], [0, -1]),
    ],
)
def test_options_of_attacks_have_their_range(make, option, good, bad):
    for value in good:
        allowed(make(clients=(1,), **{option: value}))
    for value in bad:
        refused(make(clients=(1,), **{option: value}), f"{option} is")


def test_an_attack_that_relabels_needs_two_classes():
    refused(LabelFlip(clients=(1,), source=2, target=2), "source and target are both 2")
    allowed(LabelFlip(clients=(1,), source=2, target=1))


@pytest.mark.parametrize("method", attack_names())
def test_only_wrong_labels_need_classes(method):
    assert filters.build(method, {"clients": [1]}).needs_classes() == (method in {"backdoor", "label-flip"})


# --- what is sent ----------------------------------------------------------------------------------------


def test_updates_are_flipped_scaled_and_replaced():
    rows = movements()
    for step, expected in (
        (SignFlip(clients=(1, 4), scale=2.0), -2 * rows[:, :4]),
        (ScaledUpdate(clients=(1, 4), factor=3.0), 3 * rows[:, :4]),
        (FreeRider(clients=(1, 4)), 0 * rows[:, :4]),
    ):
        got = attacked(step, rows)
        np.testing.assert_allclose(got[[1, 4], :4], expected[[1, 4]])
        np.testing.assert_array_equal(got[[0, 2, 3, 5]], rows[[0, 2, 3, 5]])
        np.testing.assert_array_equal(got[:, 6], rows[:, 6])  # counters stay
    assert not attacked(FreeRider(clients=(1,)), rows)[1, 4:6].any()


def test_noise_has_its_scale_and_is_the_clients_own():
    spec = ParameterSpec((SpecEntry("w", (20_000,), 0, 20_000),))
    rows = np.full((3, 20_000), 5.0, dtype=np.float32)
    for mode, mean in (("replace", 0.0), ("add", 5.0)):
        table = Updates.from_movements(rows.copy())
        step = GaussianNoise(clients=(0, 2), scale=0.5, mode=mode)
        got = step.apply(table, spec, lambda client: generator(1, "test", client)).updates.movements
        assert got[0].std() == pytest.approx(0.5, rel=0.03)
        assert got[0].mean() == pytest.approx(mean, abs=0.02)
        assert not np.array_equal(got[0], got[2])
        np.testing.assert_array_equal(got[1], rows[1])
    disguised = FreeRider(clients=(0,), noise=0.1)
    table = Updates.from_movements(rows.copy())
    assert disguised.apply(table, spec, lambda c: generator(1, "t", c)).updates.movements[0].std() < 0.12


def test_a_stale_reply_is_the_first_one():
    step, first, second = StaleReply(clients=(1,)), movements(seed=1), movements(seed=2)
    table = Updates.from_movements(first.copy())
    np.testing.assert_array_equal(step.apply(table, SPEC, None).updates.movements, first)
    got = step.apply(Updates.from_movements(second.copy()), SPEC, None)
    np.testing.assert_array_equal(got.updates.movements[1, :4], first[1, :4])
    np.testing.assert_array_equal(got.updates.movements[1, 4:], second[1, 4:], "statistics are of today")
    np.testing.assert_array_equal(got.updates.movements[[0, 2]], second[[0, 2]])
    assert got.changed == 1
    assert step == StaleReply(clients=(1,)), "what it has seen is not among its options"


def test_alie_is_the_honest_mean_moved_by_z_deviations():
    assert hidden_deviations(50, 24) == pytest.approx(norm.ppf((26 - 2) / 26))
    assert hidden_deviations(10, 2) == pytest.approx(max(0.0, norm.ppf((8 - 4) / 8)))
    assert hidden_deviations(3, 2) >= 0
    rows = movements(8)
    got = attacked(Alie(clients=(0, 3), deviations=1.5), rows)
    honest = rows[[1, 2, 4, 5, 6, 7], :4].astype(float)
    expected = honest.mean(axis=0) - 1.5 * honest.std(axis=0, ddof=1)
    np.testing.assert_allclose(got[0, :4], expected, rtol=1e-5)
    np.testing.assert_array_equal(got[0, :4], got[3, :4])


def test_ipm_turns_the_mean_around():
    rows = movements(8)
    got = attacked(InnerProductManipulation(clients=(0, 3), epsilon=4.0), rows)[:, :4]
    honest = rows[[1, 2, 4, 5, 6, 7], :4].mean(axis=0)
    np.testing.assert_allclose(got[3], -4 * honest, rtol=1e-5)
    assert got.mean(axis=0) @ honest < 0


def test_fangs_values_lie_just_beyond_the_honest_extreme_on_the_wrong_side():
    honest = np.array([[1.0, -2.0, 1.0, -3.0], [3.0, -1.0, -0.5, 1.0], [2.0, -3.0, 1.0, -0.5]])
    got = beyond_extremes(honest, 50, 2.0, np.random.default_rng(0))
    # Column by column: mean 2 (up, smallest 1), mean −2 (down, largest −1), mean 0.5, mean −0.83.
    low, high = got.min(axis=0), got.max(axis=0)
    assert (low >= [0.5, -1.0, -1.0, 1.0]).all()
    assert (high <= [1.0, -0.5, -0.5, 2.0]).all()


@pytest.mark.parametrize(
    ("honest", "ends"),
    [
        ([-1.0, 3.0], (-2.0, -1.0)),  # honest clients go up: below the smallest
        ([1.0, 3.0], (0.5, 1.0)),
        ([-3.0, 1.0], (1.0, 2.0)),  # down: above the largest
        ([-3.0, -1.0], (-1.0, -0.5)),
    ],
)
def test_fangs_values_fill_the_room_that_the_spread_gives(honest, ends):
    values = beyond_extremes(np.array(honest)[:, None], 4000, 2.0, np.random.default_rng(0))
    assert (values.min(), values.max()) == pytest.approx(ends, abs=0.01)


def test_fangs_values_are_finite():
    with pytest.raises(ConfigError, match="spread is inf"):
        Fang(clients=(1,), spread=np.inf).check(TrialEngine(4).population)


def test_against_krum_the_largest_step_that_krum_takes():
    rng = np.random.default_rng(4)
    honest, attackers = rng.normal(size=(12, 30)) * 0.1 + 0.05, 4
    step = largest_accepted(honest, attackers)
    assert step > 0

    def winner(length: float) -> int:
        crafted = np.tile(-length * np.sign(honest.mean(axis=0)), (attackers, 1))
        rows = np.vstack([crafted, honest])
        squared = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
        return int(np.argmin(krum_scores(squared, attackers)))

    assert winner(step) < attackers
    assert winner(2 * step) >= attackers, "twice as far is seen"
    crafted = Fang(clients=(0,), against="krum").crafted(honest, attackers, rng)
    np.testing.assert_allclose(crafted, -step * np.sign(honest.mean(axis=0)))


def test_colluders_without_honest_clients_send_what_they_have_trained():
    rows = movements(2)
    table = Updates.from_movements(rows.copy())
    result = Alie(clients=(0, 1)).apply(table, SPEC, lambda client: generator(1, "test", client))
    np.testing.assert_array_equal(result.updates.movements, rows)


# --- what is trained on ----------------------------------------------------------------------------------


def test_labels_of_attackers_are_flipped_and_nobody_elses(tiny):
    data = build_data(tiny())
    labels, index = data.dataset.train.labels, data.train_index
    flipped = LabelFlip(clients=(2, 5)).poisoned(data).dataset.train.labels
    theirs = np.concatenate([index[2], index[5]])
    others = np.setdiff1d(np.arange(len(labels)), theirs)
    np.testing.assert_array_equal(flipped[theirs], 9 - labels[theirs])
    np.testing.assert_array_equal(flipped[others], labels[others])
    one = LabelFlip(clients=(2, 5), source=3, target=7).poisoned(data).dataset.train.labels
    np.testing.assert_array_equal(one[theirs], np.where(labels[theirs] == 3, 7, labels[theirs]))
    assert data.dataset.train.labels is labels


def test_a_mark_is_in_the_corner():
    pictures = np.zeros((2, 1, 5, 5))
    assert marked(pictures, 2, 9.0).sum() == 2 * 4 * 9.0
    assert (marked(pictures, 2, 9.0)[:, :, 3:, 3:] == 9.0).all()
    assert marked(np.zeros((1, 10)), 2, 1.0).tolist() == [[0.0] * 6 + [1.0] * 4]


def test_a_backdoor_opens_and_the_model_stays_good_elsewhere(tiny):
    data = {"source": "digits"}
    attack = {"method": "backdoor", "clients": [0, 1, 2, 3, 4], "target": 7, "size": 2}
    common = {"rounds": 15, "selection": EVERYBODY, "training": {"lr": 0.1, "batch_size": 16, "epochs": 2}}
    made = tiny(data=data, filters=[attack], **common)
    result, clean = muster.run(made, workers=0), muster.run(tiny(data=data, **common), workers=0)
    rates = [success_rate(made, run.parameters) for run in (result, clean)]
    assert rates[0] > 0.7
    assert rates[1] < 0.3
    assert result.final() > clean.final() - 0.15


def test_the_server_evaluates_on_clean_data(tiny):
    """Also samples that are kept back, which lie in the training split that attackers have spoilt."""
    kept = {"source": "digits", "validation": 100}
    made = tiny(data=kept, filters=[{"method": "label-flip", "share": 1}])
    with build_parts(made, workers=0).engine as engine:
        spoilt = engine.evaluate(engine.initial_parameters())
    with build_parts(tiny(data=kept), workers=0).engine as engine:
        assert engine.evaluate(engine.initial_parameters()).validation == spoilt.validation


def test_the_list_of_attacks_is_complete():
    assert attack_names() == [
        "alie",
        "backdoor",
        "fang",
        "free-rider",
        "gaussian-noise",
        "ipm",
        "label-flip",
        "lying-signals",
        "scaled-update",
        "sign-flip",
        "stale-reply",
    ]
    assert all(filters.summary(name).startswith("Attack: ") for name in attack_names())
    pages = Path(__file__).parents[2] / "docs" / "attacks"
    listed = (pages / "README.md").read_text(encoding="utf-8")
    assert [name for name in attack_names() if f"({name}.md)" not in listed] == []
    assert {page.stem for page in pages.glob("*.md")} == {"README", *attack_names()}
    with pytest.raises(ConfigError, match="target"):
        Backdoor(clients=(0,), target=10).check(TrialEngine(5, classes=10).population)


# --- the finer points ------------------------------------------------------------------------------------


def test_z_is_found_for_any_number_of_attackers():
    # Six of ten attack: more than a majority, and nobody honest has to be further out.
    assert hidden_deviations(10, 6) > 5
    # None attacks: six of ten would have to be further out than the attackers, which is below the mean.
    assert hidden_deviations(10, 0) == 0.0
    assert hidden_deviations(5, 2) == pytest.approx(norm.ppf(2 / 3))
    assert hidden_deviations(2, 1) == 0.0


def test_alie_takes_the_deviations_that_the_numbers_allow():
    rows = movements(9)
    got = attacked(Alie(clients=(0, 1, 2, 3)), rows)[:, :4]
    honest = rows[4:, :4].astype(float)
    expected = honest.mean(axis=0) - hidden_deviations(9, 4) * honest.std(axis=0, ddof=1)
    np.testing.assert_allclose(got[0], expected, rtol=1e-5)
    alone = attacked(Alie(clients=(0,), deviations=2.0), rows[:2])
    np.testing.assert_allclose(alone[0, :4], rows[1, :4], rtol=1e-6)


def test_krums_scores_are_those_of_the_nearest_others():
    points = np.array([0.0, 1.0, 3.0, 7.0, 20.0])
    squared = (points[:, None] - points[None]) ** 2
    # n − f − 2 = 2 others each.
    assert nearest_sums(squared, 1).tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36, 169 + 289]
    # At least one, however many attack.
    assert nearest_sums(squared, 4).tolist() == [1, 1, 4, 16, 169]
    np.testing.assert_allclose(nearest_sums(squared, 1), krum_scores(squared, 1))


@pytest.mark.parametrize(("honest", "bound", "halvings"), [(2, 5 + 5, 0), (3, 5 + 10, 0), (4, 10 + 15, 2)])
def test_against_krum_the_papers_bound_is_halved_until_krum_takes_the_step(honest, bound, halvings):
    """Two attackers are each other's neighbours: among very few honest clients any step is taken.

    Honest clients are 5 apart on a line. The bound has the distances to the nearest m − c − 2 of them (at least
    one), divided by m − 2c − 1 (at least one), and that of the one furthest out.
    """
    rows = np.outer(np.arange(honest), [3.0, 4.0])
    assert largest_accepted(rows, 2) == pytest.approx(bound / np.sqrt(2) / 2**halvings)


def test_where_no_step_is_accepted_colluders_stay_where_they_are():
    """One attacker among many that agree to the bit: every step away is further than they are apart."""
    assert largest_accepted(np.full((6, 3), 0.5), 1) == 0.0
    crafted = Fang(clients=(0,), against="krum").crafted(np.full((6, 3), 0.5), 1, np.random.default_rng(0))
    assert not crafted.any()


def test_colluders_draw_from_the_stream_of_the_first_of_them():
    drawn = []

    def draws(client):
        drawn.append(client)
        return generator(1, "test", client)

    table = Updates.from_movements(movements(5), clients=np.array([2, 4, 6, 8, 9]))
    result = Fang(clients=(9, 4)).apply(table, SPEC, draws)
    assert (drawn, result.changed) == ([4], 2)
    nobody = Updates.from_movements(movements(2), clients=np.array([2, 6]))
    assert Fang(clients=(9, 4)).apply(nobody, SPEC, draws).changed == 0
    assert drawn == [4]


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("factor", [-30.0, 60.0]),
        ("huge", [1e300, 1e300]),
        ("infinite", [np.inf, np.inf]),
        ("minus-infinite", [-np.inf, -np.inf]),
        ("nan", [np.nan, np.nan]),
        ("negative", [-11.0, -21.0]),
        ("zero", [0.0, 0.0]),
    ],
)
def test_every_lie_is_what_it_is_called(lie, expected):
    true = np.array([-10.0, 20.0])
    step = LyingSignals(clients=(1,), lie=lie, factor=3.0, signals=("loss",))
    np.testing.assert_array_equal(step.told(1, Loss(), true, None), expected)
    assert step.told(2, Loss(), true, None) is true
    assert step.told(1, TrainLoss(), true, None) is true
    assert LyingSignals(clients=(1,), lie="zero").told(1, TrainLoss(), true, None).tolist() == [0.0, 0.0]


def test_the_disguise_of_a_free_rider_is_as_wide_as_it_says():
    spec = ParameterSpec((SpecEntry("w", (20_000,), 0, 20_000),), (SpecEntry("mean", (2,), 20_000, 20_002),))
    table = Updates.from_movements(np.full((1, 20_002), 5.0))
    sent = FreeRider(clients=(0,), noise=0.1).apply(table, spec, lambda c: generator(1, "t", c)).updates.movements
    assert sent[0, :20_000].std() == pytest.approx(0.1, rel=0.03)
    assert sent[0, :20_000].mean() == pytest.approx(0.0, abs=0.005)
    assert not sent[0, 20_000:].any()


def test_a_stale_replys_memory_is_saved_and_restored():
    step = StaleReply(clients=(1, 3))
    step.apply(Updates.from_movements(movements(seed=1)), SPEC, None)
    again = StaleReply(clients=(1, 3))
    again.apply(Updates.from_movements(movements(seed=5)), SPEC, None)
    again.load_state_dict(step.state_dict())
    got = again.apply(Updates.from_movements(movements(seed=2)), SPEC, None).updates.movements
    np.testing.assert_array_equal(got[[1, 3], :4], movements(seed=1)[[1, 3], :4])
    assert step.state_dict()["clients"].tolist() == [1, 3]


# --- the backdoor ----------------------------------------------------------------------------------------


def test_a_backdoor_marks_the_share_of_each_attackers_samples_and_relabels_them(tiny):
    data = build_data(tiny())
    blank = replace(data.dataset.train, features=0 * data.dataset.train.features - 1.0)
    blank.features[0] = 1.0  # the brightest value
    data = replace(data, dataset=replace(data.dataset, train=blank))
    attackers = [client for client in range(12) if 0 not in data.train_index[client]][:2]
    step = Backdoor(clients=tuple(attackers), target=7, poisoned_share=0.25, size=2)
    after = step.poisoned(data).dataset.train
    has_mark = (after.features == marked(blank.features, 2, 1.0)).reshape(len(blank.labels), -1).all(axis=1)
    has_mark[0] = False
    for client in range(12):
        theirs = data.train_index[client]
        count = max(1, round(0.25 * len(theirs))) if client in attackers else 0
        assert has_mark[theirs].sum() == count
    assert (after.labels[has_mark] == 7).all()
    np.testing.assert_array_equal(after.labels[~has_mark], blank.labels[~has_mark])
    np.testing.assert_array_equal(after.features[~has_mark], blank.features[~has_mark])


def test_pictures_that_are_tested_are_those_of_all_other_classes_with_the_mark(tiny):
    data = build_data(tiny())
    step = Backdoor(clients=(0,), target=7, size=2)
    features, labels = step.triggered(data)
    test = data.dataset.test
    assert 7 not in labels
    assert len(labels) == np.count_nonzero(test.labels != 7)
    np.testing.assert_array_equal(
        features, marked(np.asarray(test.features)[test.labels != 7], 2, step.mark(data))
    )
    assert step.mark(data) == np.max(data.dataset.train.features)


@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 8)], ids=["channels", "no channels"])
@pytest.mark.parametrize(("size", "fits"), [(7, True), (8, True), (9, False)])
def test_a_mark_must_fit_the_picture(tiny, size, fits, shape):
    data = build_data(tiny())
    pictures = np.asarray(data.dataset.train.features).reshape(-1, *shape)
    data = replace(data, dataset=replace(data.dataset, train=replace(data.dataset.train, features=pictures)))
    step = Backdoor(clients=(0,), size=size)
    if fits:
        assert step.poisoned(data).dataset.train.features.shape == pictures.shape
    else:
        with pytest.raises(ConfigError, match="a mark of 9 pixels does not fit"):
            step.poisoned(data)


@pytest.mark.parametrize(("size", "fits"), [(7, True), (8, False)])
def test_a_mark_leaves_something_of_a_vector(tiny, size, fits):
    data = build_data(tiny())
    flat = np.asarray(data.dataset.train.features).reshape(-1, 64)
    data = replace(data, dataset=replace(data.dataset, train=replace(data.dataset.train, features=flat)))
    step = Backdoor(clients=(0,), size=size)
    if fits:
        step.poisoned(data)
    else:
        with pytest.raises(ConfigError, match="does not fit"):
            step.poisoned(data)
