"""Sweeps: what they consist of, and how a batch of runs is worked off."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from muster.config.identity import pace_kind
from muster.core.errors import ConfigError
from muster.experiment import Experiment, from_dict
from muster.experiment.estimate import Pace, calibrate, known_paces, seconds_left
from muster.experiment.jobs import JobObserver, run_experiments, share_of_cores, workers_of
from muster.experiment.sweep import Sweep, load_sweep
from muster.results.store import Store
from muster.updates.filters import Filter, Filtered, Side

BASE = """
name = "small"
rounds = 2
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = 12
alpha = 0.5
[model]
name = "mlp"
hidden = [8]
[selection]
method = "random"
clients_per_round = 4
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base.toml").write_text(BASE)
    return tmp_path


def loaded(folder, text: str) -> Sweep:
    (folder / "sweep.toml").write_text(text)
    return load_sweep(folder / "sweep.toml")


# --- what a sweep consists of ----------------------------------------------------------------------------


def test_cases_grid_and_seeds_are_multiplied(folder):
    sweep = loaded(
        folder,
        """
        base = "base.toml"
        seeds = [3, 5]
        [grid]
        partition.alpha = [0.1, 1.0]
        "training.lr" = [0.1, 0.2, 0.3]
        [[cases]]
        name = "a"
        [[cases]]
        name = "b"
        selection = { method = "terraform", clients_per_round = 6 }
        """,
    )
    made = sweep.experiments()
    assert sweep.name == "sweep"
    assert len(made) == 2 * 2 * 3 * 2
    assert len({experiment.fingerprint for experiment in made}) == len(made)
    assert [experiment.seed for experiment in made] == [3] * 12 + [5] * 12
    first, last = made[0], made[-1]
    assert (first.title, last.title) == ("a, alpha=0.1, lr=0.1", "b, alpha=1.0, lr=0.3")
    assert first.partition == {"scheme": "dirichlet", "clients": 12, "alpha": 0.1}
    assert last.selection == {"method": "terraform", "clients_per_round": 6}
    assert (last.training, last.rounds) == ({"lr": 0.3}, 2)


def test_a_grid_over_methods_keeps_the_other_options_and_names_runs_after_them(folder):
    sweep = loaded(folder, 'base = "base.toml"\n[grid]\nselection.method = ["random", "terraform"]\n')
    made = sweep.experiments()
    assert [experiment.title for experiment in made] == ["random", "terraform"]
    assert made[1].selection == {"method": "terraform", "clients_per_round": 4}


def test_a_grid_changes_one_key_of_a_section_that_the_base_leaves_as_it_is_by_default():
    usual = Experiment()
    first, second = Sweep("s", {"rounds": 1}, grid={"partition.alpha": (0.1, 1.0)}).experiments()
    assert first.partition == usual.partition | {"alpha": 0.1}
    assert (second.partition["alpha"], second.selection) == (1.0, usual.selection)
    # Another component does not get the options of the usual one.
    (third,) = Sweep("s", {}, grid={"partition.scheme": ("iid",)}).experiments()
    assert third.partition == {"scheme": "iid"}


def test_a_grid_over_whole_sections_replaces_them_and_names_runs_after_their_components():
    sections = ({"method": "fedavg"}, {"method": "trimmed-mean", "ratio": 0.2}, {"server_lr": 0.5})
    base = {"aggregation": {"method": "fedavgm", "momentum": 0.5}}
    runs = Sweep("sections", base=base, grid={"aggregation": sections}).experiments()
    assert [run.title for run in runs] == ["fedavg", "trimmed-mean", "aggregation={'server_lr': 0.5}"]
    assert [run.aggregation for run in runs] == list(sections)


def test_a_case_that_names_another_component_starts_that_section_afresh(folder):
    text = 'base = "base.toml"\n[[cases]]\nname = "iid"\npartition = { scheme = "iid", clients = 5 }\n'
    (made,) = loaded(folder, text).experiments()
    assert made.partition == {"scheme": "iid", "clients": 5}


def test_a_base_may_be_inline_or_a_workload(folder):
    (made,) = loaded(folder, '[base]\nworkload = "terraform-fmnist-4"\nrounds = 7\n').experiments()
    assert (made.rounds, made.data["source"]) == (7, "fashion-mnist")


def test_repeats_are_seeds(folder):
    (folder / "base.toml").write_text("seed = 4\n" + BASE)
    made = loaded(folder, 'base = "base.toml"\nrepeats = 3\n').experiments()
    assert [experiment.seed for experiment in made] == [4, 5, 6]
    assert {experiment.title for experiment in made} == {"small"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 1", "unknown key 'nmae'"),
        ("seeds = [1]\nrepeats = 2", "both seeds and repeats"),
        ("seeds = 3", "bad value for 'seeds'"),
        ("repeats = 2\n[base]\nseed = 'x'", "bad value for 'base.seed'"),
        ("[grid]\nseed = [1, 2]\n[base]\nrounds = 1", "sets the seed"),
        ("[[cases]]\nname = 'a'\nseed = 1", "sets the seed"),
        ("repeats = 0", "bad value for 'repeats'"),
        ("[grid]\nrounds = 3", "bad value for 'grid.rounds'"),
        ("[[cases]]\nrounds = 3", "a case has no name"),
        ('[[cases]]\nname = "a"\n[[cases]]\nname = "a"', "two cases are called 'a'"),
        ('[[cases]]\nname = "a"\n[[cases]]\nname = "b"', "the same run twice"),
        ('base = "missing.toml"', "cannot read"),
        ("base = 3", "bad value for 'base'"),
        ("grid = [1]", "bad \\[grid\\]"),
        ("[grid]\nseed.x = [1]\n[base]\nseed = 1", "'seed' is not a section"),
        ("this is no TOML", "not valid TOML"),
        ("[base]\nroundz = 3", "unknown key or section 'roundz'"),
    ],
)
def test_mistakes_are_named(folder, text, message):
    with pytest.raises(ConfigError, match=message):
        loaded(folder, text).experiments()


# --- how it is worked off --------------------------------------------------------------------------------


class Watching(JobObserver):
    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: dict[str, str] = {}
        self.rounds: dict[str, list[int]] = {}

    def run_began(self, experiment) -> None:
        self.began.append(experiment.title)

    def rounds_done(self, experiment, done) -> None:
        self.rounds.setdefault(experiment.title, []).append(done)

    def run_ended(self, experiment, error) -> None:
        self.ended[experiment.title] = error


def test_a_failing_run_does_not_stop_the_others_and_what_is_done_is_skipped(tiny, tmp_path):
    good = [tiny(name=f"good {seed}", seed=seed) for seed in (0, 1)]
    bad = tiny(name="bad", partition={"alpha": 0.001, "min_size": 200})
    watching = Watching()
    with Store(tmp_path) as store:
        outcome = run_experiments([good[0], bad, good[1], good[0]], store, sweep_name="s", observer=watching)
        assert sorted(outcome.complete) == sorted(experiment.fingerprint for experiment in good)
        assert list(outcome.failed) == [bad.fingerprint]
        assert watching.rounds["good 0"] == [0, 1, 2, 3]
        assert watching.ended == {"good 0": "", "good 1": "", "bad": outcome.failed[bad.fingerprint]}
        assert store.runs(status="failed", sweep="s")[0].error
        assert len(store.results(sweep="s")) == 2
        again = Watching()
        second = run_experiments([*good, bad], store, sweep_name="s", observer=again)
        assert again.began == ["bad"]
        assert sorted(second.skipped) == sorted(outcome.complete)


class KillOnce(JobObserver):
    """Kills the process of a run after its first round, as the kernel does when memory is short."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def rounds_done(self, experiment, done) -> None:
        if done == 1:
            os.kill(self.store.run(experiment.fingerprint).pid, signal.SIGKILL)


def test_a_run_whose_process_dies_is_reported_and_goes_on_next_time(tiny, tmp_path):
    experiment = tiny(rounds=50)
    with Store(tmp_path) as store:
        outcome = run_experiments([experiment], store, observer=KillOnce(store))
        assert outcome.failed == {experiment.fingerprint: "its process died (exit code -9)"}
        (run,) = store.runs(status="interrupted")
        assert run.done >= 1
        assert run_experiments([experiment], store).complete == [experiment.fingerprint]
        kinds = [event.kind for event in store.events(run)]
        assert kinds == ["started", "resumed", "complete"]


class StopSoon(JobObserver):
    def __init__(self) -> None:
        self.seen = 0

    def rounds_done(self, experiment, done) -> None:
        self.seen = max(self.seen, done)

    def wants_stop(self) -> bool:
        return self.seen >= 1


def test_a_batch_can_be_stopped_and_goes_on(tiny, tmp_path):
    experiments = [tiny(rounds=200, seed=seed) for seed in (0, 1)]
    with Store(tmp_path) as store:
        outcome = run_experiments(experiments, store, jobs=1, observer=StopSoon())
        assert (outcome.stopped, outcome.failed, outcome.complete) == (True, {}, [])
        first, second = store.runs()
        assert (first.status, second.status) == ("stopped", "planned")
        assert first.done >= 1


@dataclass(frozen=True)
class Hangs(Filter):
    """One client never comes to an end."""

    side: Side = "client"

    def apply(self, updates, spec, draws):
        while 2 in updates.clients:
            pass
        return Filtered(updates)


def test_a_client_that_loops_for_ever_does_not_hang_a_run_with_a_deadline(tiny, tmp_path):
    """Also where the run has no core left for a worker: the client fails, the run and the others go on."""
    engine = {"kind": "processes", "task_deadline": 4.0}
    everybody = {"method": "random", "clients_per_round": 4}
    four = {"scheme": "dirichlet", "clients": 4, "alpha": 0.5}
    looping = tiny(rounds=1, engine=engine, selection=everybody, partition=four, filters=[Hangs()])
    outcome = run_experiments([looping, tiny(rounds=1)], tmp_path, jobs=1, workers=0)
    assert not outcome.failed
    assert len(outcome.complete) == 2
    with Store(tmp_path) as store:
        hung = next(r for r in store.results() if r.records[0].trainings[0].failed)
    (training,) = hung.records[0].trainings
    assert training.clients == [0, 1, 3]
    assert "hung" in training.failed[2]


def test_a_deadline_needs_a_worker(tiny):
    assert workers_of(tiny(), 0) == 0
    assert workers_of(tiny(engine={"task_deadline": 3.0}), 0) == 1
    assert workers_of(tiny(engine={"task_deadline": 3.0}), 2) == 2
    assert workers_of(tiny(engine={"task_deadline": 3.0, "kind": "inline"}), 0) == 0


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr("muster.experiment.jobs.available_cores", lambda: 8)
    assert share_of_cores(None, None, 24) == (8, 0)
    assert share_of_cores(None, None, 2) == (2, 4)
    assert share_of_cores(4, None, 24) == (4, 2)
    assert share_of_cores(None, 4, 24) == (2, 4)
    assert share_of_cores(3, 5, 24) == (3, 5)
    assert share_of_cores(None, 0, 24) == (8, 0)
    with pytest.raises(ConfigError, match="jobs is 0"):
        share_of_cores(0, None, 1)


# --- estimates -------------------------------------------------------------------------------------------


def test_runs_of_one_kind_differ_in_seed_and_length_only(tiny):
    assert pace_kind(tiny(seed=1).described()) == pace_kind(tiny(seed=2, rounds=9).described())
    assert pace_kind(tiny().described()) != pace_kind(tiny(training={"lr": 0.3}).described())


def test_time_left_is_worked_off_by_the_jobs_in_order():
    paces = {"slow": Pace(10.0, 5.0), "fast": Pace(1.0)}
    kinds = {"a": "slow", "b": "fast", "c": "fast", "d": "new"}
    assert seconds_left({"a": 2, "b": 5, "c": 5}, kinds, paces, jobs=2) == 25
    assert seconds_left({"a": 0, "b": 5, "c": 5}, kinds, paces, jobs=1) == 10
    assert seconds_left({"d": 2}, kinds, paces, jobs=1) == 11  # the mean of what is known
    assert seconds_left({"a": 0}, kinds, {}, jobs=1) == 0
    assert math.isnan(seconds_left({"a": 1}, kinds, {}, jobs=1))


def test_what_was_loaded_is_shared_by_all_runs():
    paces = {"slow": Pace(1.0, 5.0)}
    assert seconds_left({"a": 2, "b": 2, "c": 2}, dict.fromkeys("abc", "slow"), paces, jobs=1) == 11


def test_evaluations_count_as_often_as_there_are(tiny, monkeypatch):
    """The last round of a trial is always evaluated; of a run that evaluates every sixth, only a sixth is."""
    seen = []

    def tried(experiment, workers):
        seen.append(experiment)
        costs = [SimpleNamespace(seconds=seconds) for seconds in (9.0, 1.0, 4.0)]
        return SimpleNamespace(ledger=SimpleNamespace(rounds=costs))

    monkeypatch.setattr("muster.experiment.estimate.run", tried)
    (pace,) = calibrate([tiny(evaluation={"every": 6})], {}, workers=0).values()
    assert pace.seconds_a_round == 1.5
    assert (seen[0].rounds, seen[0].evaluation) == (3, {"every": 3})


def test_a_trial_is_not_tracked(tiny, tmp_path):
    tracked = tiny(tracking={"to": ["tensorboard"], "folder": str(tmp_path / "board")})
    calibrate([tracked], {}, workers=0)
    assert not (tmp_path / "board").exists()


def test_calibration_tries_only_what_the_store_does_not_know(tiny, tmp_path):
    known = tiny()
    with Store(tmp_path) as store:
        run_experiments([known], store, jobs=1, workers=0)
        paces = known_paces(store.runs())
    new, bad = tiny(training={"lr": 0.2}), tiny(selection={"method": "random", "clients_per_round": 99})
    tried: list[str] = []
    experiments = [known, new, bad, from_dict(new.to_dict() | {"seed": 5})]
    found = calibrate(experiments, paces, workers=0, told=lambda experiment: tried.append(experiment.fingerprint))
    assert tried == [new.with_options(["seed=5"]).fingerprint, bad.fingerprint]
    assert found[pace_kind(known.described())].source == "runs in the store"
    assert found[pace_kind(new.described())].seconds_a_round > 0
    assert "clients_per_round is 99" in found[pace_kind(bad.described())].fails
    rest = calibrate([new], paces, workers=0, budget=0.0)
    assert rest[pace_kind(new.described())].source == "a guess from the others"
