"""`muster.run` and `muster.sweep`: who sees progress, what comes back, and how failures are told."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import muster
from muster.console import watched
from muster.core.errors import ConfigError, SweepError
from muster.report.page import report_page
from muster.results.store import Store
from muster.selection import Selector, Train
from muster.selection.base import Plan
from muster.selection.oort import Oort


class First(Selector):
    """The first clients; keeps a count that one run must not hand to the next."""

    def __init__(self, count: int) -> None:
        self.count, self.rounds = count, 0

    def round(self, fed) -> Plan:
        self.rounds += 1
        yield Train(fed.available[: self.count * self.rounds])


# --- progress --------------------------------------------------------------------------------------------


def test_nothing_is_said_where_nobody_looks(tiny, capfd):
    muster.run(tiny(rounds=1))
    muster.sweep([tiny(rounds=1)])
    assert capfd.readouterr() == ("", "")


def test_lines_where_they_are_asked_for(tiny, capfd):
    muster.run(tiny(rounds=2), progress=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert "random: round 2/2" in said.err
    muster.sweep([tiny(rounds=1)], progress=True)
    assert "[1/1] random, seed 0: complete" in capfd.readouterr().err


@pytest.fixture
def terminal(monkeypatch):
    """Standard error is a terminal."""

    def made(**options) -> Console:
        return Console(**options, force_terminal=True, width=100)

    monkeypatch.setattr(watched, "Console", made)


def test_a_bar_in_a_terminal_unless_it_is_not_wanted(tiny, terminal, capfd):
    muster.run(tiny(rounds=2))
    assert "2/2" in capfd.readouterr().err
    muster.run(tiny(rounds=2), progress=False)
    assert capfd.readouterr().err == ""


def test_two_runs_at_once_do_not_quarrel_about_the_terminal(tiny, terminal):
    made: list[muster.Result] = []
    threads = [
        threading.Thread(target=lambda seed=seed: made.append(muster.run(tiny(seed=seed), 0))) for seed in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2


def test_things_are_handed_on_with_and_without_a_bar(terminal, capfd):
    assert list(watched.tracked([3, 1, 2], "pictures")) == [3, 1, 2]
    assert "3/3" in capfd.readouterr().err
    assert list(watched.tracked([3, 1, 2], "pictures", progress=False)) == [3, 1, 2]
    assert capfd.readouterr().err == ""


# --- sweeps ----------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_experiments_under_their_names(tiny, tmp_path):
    experiments = [tiny(rounds=rounds, name=f"{rounds} rounds", seed=rounds % 2) for rounds in (3, 1, 2)]
    results = muster.sweep(experiments, tmp_path)
    assert [result.name for result in results] == ["3 rounds", "1 rounds", "2 rounds"]
    assert [len(result.records) for result in results] == [3, 1, 2]
    # Under another name it is the same run, and is called as it was asked for.
    renamed = tiny(rounds=1, name="once", seed=1)
    (again,) = muster.sweep([renamed], tmp_path)
    assert again.name == "once"
    assert again.provenance.ended == results[1].provenance.ended


def test_a_sweep_has_the_bits_of_its_runs(tiny):
    experiment = tiny()
    (together,), alone = muster.sweep([experiment], workers=2), muster.run(experiment, 0)
    assert together.parameters.tobytes() == alone.parameters.tobytes()


def test_a_sweep_may_be_a_file_and_is_found_by_its_name(tmp_path):
    (tmp_path / "pair.toml").write_text('seeds = [0, 1]\n[base]\nrounds = 1\n[[cases]]\nname = "only"\n')
    assert len(muster.sweep(tmp_path / "pair.toml", tmp_path)) == 2
    with Store(tmp_path) as store:
        assert store.sweep_names() == ["pair"]


def test_the_network_that_was_handed_over_is_at_hand(tiny):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    (result,) = muster.sweep([tiny(model=network, rounds=1)])
    assert result.model() is not network
    assert not np.array_equal(result.model()[1].weight.detach().numpy(), network[1].weight.detach().numpy())


def test_failures_are_raised_and_what_is_complete_is_there(tiny, tmp_path):
    bad = tiny(name="bad", partition={"alpha": 0.001, "min_size": 200})
    with pytest.raises(SweepError, match="1 of 2 runs failed\nbad, seed 0: ") as raised:
        muster.sweep([tiny(name="good"), bad], tmp_path)
    assert [result.name for result in raised.value.results] == ["good"]


def test_what_cannot_be_sent_is_said_and_the_others_are_run(tiny):
    class Locked(First):
        def __init__(self) -> None:
            super().__init__(3)
            self.lock = threading.Lock()

    with pytest.raises(
        SweepError, match=r"cannot be sent to a process of its own: TypeError: cannot pickle"
    ) as raised:
        muster.sweep([tiny(selection=Locked()), tiny()])
    assert len(raised.value.results) == 1


def test_a_script_needs_no_guard_and_is_run_once(tmp_path):
    """Its class goes by value, and the processes of its runs do not run it again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import muster\n"
        "print('started')\n"
        "class Half(muster.selection.Selector):\n"
        "    def round(self, fed):\n"
        "        yield muster.selection.Train(fed.available[::2])\n"
        "experiments = [muster.Experiment(rounds=1, seed=seed, selection=Half()) for seed in (0, 1)]\n"
        "print(len(muster.sweep(experiments)[1].selections[0][0]))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["started", "20"]


# --- objects that were handed over -----------------------------------------------------------------------


@pytest.mark.parametrize("selector", [Oort(clients_per_round=4), First(2)], ids=["declared state", "attributes"])
def test_a_selector_that_is_run_twice_does_the_same_twice(tiny, selector):
    experiment = tiny(selection=selector)
    before = experiment.fingerprint
    first, second = muster.run(experiment, 0), muster.run(experiment, 0)
    assert first.selections == second.selections
    assert first.parameters.tobytes() == second.parameters.tobytes()
    assert experiment.fingerprint == before == first.provenance.fingerprint


def test_options_that_a_constructor_only_stores_tell_runs_apart(tiny):
    assert tiny(selection=First(2)).fingerprint == tiny(selection=First(2)).fingerprint
    assert tiny(selection=First(2)).fingerprint != tiny(selection=First(3)).fingerprint


def test_networks_that_start_from_other_numbers_are_other_runs_of_one_problem(tiny):
    one, other = (tiny(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) for _ in range(2))
    assert one.fingerprint == tiny(model=one.model).fingerprint
    assert one.fingerprint != other.fingerprint
    assert one.described() == other.described()


def test_the_runs_of_a_sweep_share_their_data():
    data = muster.data.from_arrays(np.zeros((40, 2)), np.arange(40) % 2, clients=np.arange(40) % 4)
    made = muster.Sweep("own", {"data": data, "rounds": 1}, seeds=(0, 1)).experiments()
    assert made[0].data is made[1].data is data
    assert made[0].selection is not made[1].selection


def test_a_report_counts_its_pictures_and_is_the_same_without(tiny, terminal, capfd):
    results = [muster.run(tiny(rounds=2), 0, progress=False)]
    capfd.readouterr()
    pages = [report_page(results, progress=progress) for progress in (None, False)]
    said = capfd.readouterr().err
    assert said.count("pictures") >= 1
    without_date = [re.sub(r"Written [^<]*", "", page) for page in pages]
    assert without_date[0] == without_date[1]


def test_what_a_script_registers_caches_and_keys_by_functions_reaches_its_sweep(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import functools
        import muster
        from muster.selection import Selector, Train, selectors

        @functools.cache
        def fibonacci(n):
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        def few(fed):
            return fed.available[: COUNTS[few]]

        COUNTS = {few: fibonacci(3)}

        @selectors.register("mine")
        class Mine(Selector):
            def round(self, fed):
                assert fibonacci(4) == 3
                yield Train(few(fed))

        inner = {"method": "limit-gap", "rounds": 5, "selector": {"method": "mine"}}
        results = muster.sweep(
            [muster.Experiment(rounds=1, selection=one) for one in ({"method": "mine"}, inner)], workers=0
        )
        print([result.history.trainings.sum() for result in results])
        """)
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("np.int64", "") in ("[(2), (2)]\n", "[2, 2]\n")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (muster.Experiment(), "the plan of a sweep is a Experiment"),
        ({"rounds": 1}, "the plan of a sweep is a dict"),
        (3, "the plan of a sweep is a int"),
        ([{"rounds": 1}], "the experiment is a dict"),
    ],
)
def test_what_is_no_plan_is_refused_in_words(plan, said):
    with pytest.raises(ConfigError, match=said):
        muster.sweep(plan)


def test_what_is_no_experiment_is_refused_in_words_with_progress_too():
    with pytest.raises(ConfigError, match="the experiment is a dict"):
        muster.run({"rounds": 1}, progress=True)
