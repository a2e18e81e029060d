"""A node counts what it tells: over answers, runs and restarts, and stops where its owner says."""

from __future__ import annotations

import json
import threading
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.flower.budget import EpsilonBudget, total
from muster.flower.limits import Limits
from muster.flower.server_app import run_on_grid
from muster.flower.wire import WireError
from muster.privacy.noise import private
from muster.signals.labels import LabelEntropy, LabelHistogram
from muster.signals.losses import Loss


def noisy(epsilon: float, signal=None):
    return private(signal or LabelHistogram(), "laplace", epsilon, 0.0, 10)


@pytest.fixture
def budget(tmp_path):
    return lambda epsilon: EpsilonBudget.of(
        {"epsilon-budget": epsilon, "epsilon-book": str(tmp_path / "book.json")}
    )


def test_answers_add_up_also_over_restarts(budget):
    for _ in range(10):
        budget(1.0).spend([noisy(0.1)])  # read from the file each time
    with pytest.raises(WireError, match=r"all that its owner allows: with this answer epsilon would be 1\.1"):
        budget(1.0).spend([noisy(0.1)])
    budget(1.1).spend([noisy(0.1)])  # the owner allows more


def test_signals_of_one_order_count_each_and_a_refused_order_costs_nothing(budget, tmp_path):
    with pytest.raises(WireError, match=r"epsilon would be 1\.2"):
        budget(1.0).spend([noisy(0.6), noisy(0.6, LabelEntropy())])
    assert not (tmp_path / "book.json").exists()
    budget(1.0).spend([noisy(0.6)])
    assert json.loads((tmp_path / "book.json").read_text()) == {"0.6": 1}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.3, 1 / 3, 0.7, 2.0]), max_size=30), st.floats(0.1, 5.0))
def test_it_lets_through_what_the_textbook_does(tmp_path_factory, spent, limit):
    """One sum, one comparison."""
    book = tmp_path_factory.mktemp("book") / "book.json"
    told: list[float] = []
    for epsilon in spent:
        within = sum([*told, epsilon]) <= limit * (1 + 1e-9)
        try:
            EpsilonBudget(limit, str(book)).spend([noisy(epsilon)])
            told.append(epsilon)
            passed = True
        except WireError:
            passed = False
        assert passed == within
    if told:
        read = {float(epsilon): count for epsilon, count in json.loads(book.read_text()).items()}
        assert total(read) == pytest.approx(sum(told))


@pytest.mark.parametrize(
    "signal",
    [Loss(), LabelHistogram(), noisy(float("inf")), noisy(float("nan")), noisy(-1.0), noisy(0.0)],
    ids=["loss", "histogram", "infinite", "nan", "negative", "zero"],
)
def test_what_has_no_noise_cannot_be_counted_and_is_refused(budget, signal):
    with pytest.raises(WireError, match="without noise"):
        budget(100.0).spend([signal])


def test_orders_that_ask_for_nothing_cost_nothing(budget, tmp_path):
    budget(0.0).spend([])
    assert not (tmp_path / "book.json").exists()
    EpsilonBudget.of({}).spend([Loss()])  # nobody counts


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"a": 1}', '{"1.0": -1}', '{"1.0": 1.5}', '{"nan": 1}', '{"inf": 1}']
)
def test_a_damaged_account_is_not_begun_anew(budget, tmp_path, text):
    (tmp_path / "book.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        budget(10.0).spend([noisy(1.0)])
    assert (tmp_path / "book.json").read_text() == text


def test_a_power_cut_does_not_bring_back_an_older_account(budget, tmp_path, monkeypatch):
    """The new file's name must be on the disk too, before anything is told."""
    synced: list[dict[str, int]] = []
    monkeypatch.setattr(
        "muster.flower.budget.sync_folder",
        lambda folder: synced.append(json.loads((folder / "book.json").read_text())),
    )
    budget(1.0).spend([noisy(0.5)])
    assert synced == [{"0.5": 1}]


def test_an_account_that_cannot_be_written_lets_nothing_out(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        EpsilonBudget(1.0, str(tmp_path / "nowhere" / "book.json")).spend([noisy(1.0)])


@pytest.mark.parametrize("half", [{"epsilon-budget": 1.0}, {"epsilon-book": "book.json"}])
def test_half_of_a_budget_is_said_to_be_so(half):
    with pytest.raises(ConfigError, match="has only epsilon-"):
        EpsilonBudget.of(half)


def test_a_budget_demands_noise_and_a_small_delta():
    """Gaussian noise of any size can have a small epsilon, if delta is large."""
    budget = EpsilonBudget(5.0, "book.json")
    limits = budget.demands(Limits.of({}))
    assert (limits.max_epsilon, limits.max_delta) == (5.0, 1e-5)
    assert budget.demands(Limits.of({"max-epsilon": 1.0})).max_epsilon == 1.0
    assert EpsilonBudget().demands(Limits.of({})) == Limits()


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("key", ["epsilon-budget", "max-epsilon", "max-delta"])
def test_amounts_that_limit_nothing_are_refused(key, amount):
    made = EpsilonBudget if key == "epsilon-budget" else Limits
    with pytest.raises(ConfigError, match=f"has {key} = "):
        made.of({key: amount, "epsilon-book": "book.json"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("max_epsilon", "max-epsilon"),
        ("Max-Epsilon", "max-epsilon"),
        ("max-epsilom", "max-epsilon"),
        ("maxepsilon", "max-epsilon"),
        ("epsilon", "max-epsilon"),
        ("epsilon_budget", "epsilon-budget"),
        ("epsilon-buget", "epsilon-budget"),
        ("signal", "signals"),
        ("partition_id", "partition-id"),
        ("identity_key", "identity-key"),
    ],
)
def test_a_misspelt_limit_is_refused_instead_of_ignored(key, meant):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'") as refused:
        Limits.of({key: 1})
    assert f"'{meant}'" in refused.value.expected


def test_entries_of_the_apps_own_are_left_alone():
    mine = ["data-path", "seed", "site", "hospital_name", "port", "max-length", "batch", "num-workers"]
    assert Limits.of(dict.fromkeys(mine, 1)) == Limits()
    known = {"partition-id": 0, "num-partitions": 3, "name": "a", "device": "cpu", "identity-key": "k"}
    budget = {field.name.replace("_", "-"): 1 for field in fields(EpsilonBudget)}
    assert Limits.of(known | budget) == Limits()


def test_processes_of_one_node_do_not_book_past_each_other(budget, tmp_path):
    """Between reading the account and writing it nobody else reads it."""
    first, second = budget(1.0), budget(1.0)
    read, told = first._read, []

    def read_while_another_tries():
        other.start()
        other.join(0.3)  # it must still be waiting
        return read()

    def spend():
        try:
            second.spend([noisy(1.0)])
            told.append("second")
        except WireError:
            told.append("refused")

    other = threading.Thread(target=spend)
    object.__setattr__(first, "_read", read_while_another_tries)
    first.spend([noisy(1.0)])
    other.join()
    assert told == ["refused"]


def test_a_node_stops_telling_when_its_budget_is_spent(six, grid_of, tmp_path):
    """Two runs ask each node once; the third is refused."""
    experiment = six(
        rounds=1, selection={"method": "diversity-score", "clients_per_round": 3}, privacy={"epsilon": 0.5}
    )
    refused = []
    for _ in range(3):
        grid = grid_of(experiment)
        for context in grid.contexts.values():
            book = tmp_path / f"book-{context.node_config['partition-id']}.json"
            context.node_config |= {"epsilon-budget": 1.0, "epsilon-book": str(book)}
        result = run_on_grid(grid, experiment)
        said = [event for record in result.records for event in record.events]
        refused.append(sum("told all that its owner allows" in event for event in said))
    assert refused == [0, 0, 6]
