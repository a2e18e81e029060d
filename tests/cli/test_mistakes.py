"""What people get wrong, in one table: each mistake has a message that helps, its exit code, and costs nothing.

A message says what was wrong and what was expected or what to do; there is no traceback; and everything that was
there before (results, files, other runs) is there afterwards. Mistakes through Python go the same way, with the
error that the command line would have shown.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.cli.main import main
from muster.console.output import complain
from muster.core.errors import MusterError
from muster.data import from_arrays, from_pandas
from muster.results.store import Store
from muster.server.loop import Observer
from muster.signals.losses import Loss

CONFIG = """
rounds = 2
[partition]
scheme = "dirichlet"
clients = 10
alpha = 0.5
[selection]
method = "random"
clients_per_round = 3
"""
#: What the command line's parser says by itself: usage and a pointer to --help.
USAGE = "--help"

FEATURES = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
LABELS = np.arange(60) % 3
CLIENTS = np.arange(60) // 12


@dataclass
class Mistake:
    """One mistake: what is done in a folder with config.toml and a finished run, and what comes of it."""

    name: str
    #: Words of the command; or something to do in Python.
    does: list[str] | Callable[[], object]
    code: int
    #: What the message says, beside the advice that every message has.
    says: list[str]
    #: Makes the situation: files, stores, missing packages.
    before: Callable[[pytest.MonkeyPatch], object] = field(default=lambda monkeypatch: None)


def run(*settings: str) -> list[str]:
    """The command that runs the config with settings."""
    return ["run", "config.toml", "-w", "0", "--workspace", "new", *(w for s in settings for w in ("--set", s))]


def wrote(name: str, content: str | bytes) -> Callable[[pytest.MonkeyPatch], object]:
    """The situation: a file."""
    whole = content.encode() if isinstance(content, str) else content

    def write(monkeypatch: pytest.MonkeyPatch) -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(whole)

    return write


def without(package: str) -> Callable[[pytest.MonkeyPatch], object]:
    """The situation: a package that is not installed."""

    def hide(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def trained(**changes: Any) -> Callable[[], Any]:
    """Training in Python."""

    def do() -> Any:
        sections = {
            "rounds": 2,
            "data": from_arrays(FEATURES, LABELS, clients=CLIENTS),
            "selection": {"method": "random", "clients_per_round": 2},
            "guard": {"max_failed_rounds": 2},
            "engine": "inline",
        }
        return muster.run(muster.Experiment(**(sections | changes)), workers=0)

    return do


class TupleOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x), x


class NoInit(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(4, 3)


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Misspelt(muster.selection.Selector):
    def round(self, fed):
        replies = yield muster.selection.Ask(fed.available, (Loss(),))
        yield muster.selection.Train(replies.clients[replies["lss"] > 0])


def twice() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame([[1.0, 2.0, 0]] * 4, columns=["a", "a", "y"])


def with_nan() -> np.ndarray:
    features = FEATURES.copy()
    features[7, 2] = np.nan
    return features


def newer_store(monkeypatch: pytest.MonkeyPatch) -> None:
    Store("new").close()
    connection = sqlite3.connect("new/muster.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def foreign_database(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("new").mkdir()
    connection = sqlite3.connect("new/muster.db")
    connection.execute("CREATE TABLE recipes (name)")
    connection.close()


def lost_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in Path("runs/checkpoints").glob("*/*.muster"):
        path.unlink()


class AfterOne(Observer):
    """Whoever stops a run after its first round."""

    def wants_stop(self) -> bool:
        return True


def claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same experiment is being run, with two rounds to go."""
    store = Store("new")
    monkeypatch.setattr("muster.results.store.claims.Claims.take", lambda self, run: False)
    store.close()


TABLE = [
    # --- the command itself
    Mistake("unknown command", ["rn", "config.toml"], 2, ["rn", USAGE]),
    Mistake("unknown option", ["run", "config.toml", "--round", "3"], 2, ["--round", USAGE]),
    Mistake("no config", ["run"], 2, ["CONFIG.toml", USAGE]),
    Mistake("a word for a number", ["run", "config.toml", "--rounds", "many"], 2, ["many", USAGE]),
    # --- the config file
    Mistake("wrong path", ["run", "confg.toml"], 2, ["confg.toml", "No such file"]),
    Mistake("a folder for a config", ["run", "runs"], 2, ["runs", "directory"]),
    Mistake("not TOML", ["run", "c.toml"], 2, ["c.toml", "line 1"], wrote("c.toml", "rounds = = 3")),
    Mistake("a key twice", ["run", "c.toml"], 2, ["c.toml"], wrote("c.toml", "rounds = 3\nrounds = 4\n")),
    Mistake("Latin-1", ["run", "c.toml"], 2, ["c.toml", "UTF-8"], wrote("c.toml", 'name = "é"'.encode("latin-1"))),
    Mistake("a picture", ["run", "c.toml"], 2, ["c.toml"], wrote("c.toml", b"\x89PNG\r\n\x1a\n\x00\x00")),
    Mistake("typo in a section", run("selecton.method=random"), 2, ["selecton", "did you mean 'selection'"]),
    Mistake("typo in a key", run("training.leraning_rate=0.1"), 2, ["training.leraning_rate", "lr"]),
    Mistake("typo in a method", run("selection.method=terrafrom"), 2, ["did you mean 'terraform'"]),
    Mistake("typo in a data set", run("data.source=digit"), 2, ["did you mean 'digits'"]),
    Mistake("typo in a model", run("model.name=mpl"), 2, ["mpl", "did you mean 'mlp'"]),
    Mistake("typo in a partition", run("partition.scheme=dirichelt"), 2, ["did you mean 'dirichlet'"]),
    Mistake("unknown workload", run("workload=nothing"), 2, ["nothing"]),
    Mistake("key of another section", run("lr=0.1"), 2, ["did you mean 'training.lr'"]),
    Mistake("wrong type", run("training.lr=fast"), 2, ["training.lr", "'fast'", "number"]),
    Mistake("true for a number", run("rounds=true"), 2, ["rounds"]),
    Mistake("a fraction of a round", run("rounds=2.5"), 2, ["rounds", "2.5"]),
    Mistake("a list for a word", run("selection.method=['random']"), 2, ["selection"]),
    Mistake("a number for a section", run("training=3"), 2, ["training", "section"]),
    Mistake("a setting without a value", run("training.lr"), 2, ["section.key=value"]),
    Mistake(
        "negative rounds", ["run", "config.toml", "--rounds", "-3", "--workspace", "new"], 2, ["rounds", "-3"]
    ),
    Mistake("negative seed", run("seed=-1"), 2, ["seed", "-1"]),
    Mistake("a date for a seed", run("seed=2024-01-01"), 2, ["'seed'", "2024-01-01", "an integer"]),
    Mistake("more rounds than can be counted", run("rounds=99999999999999999999"), 2, ["rounds", "at most"]),
    Mistake("decimal comma", run("training.lr=0,1"), 2, ["training.lr", "'0,1'", "a number"]),
    Mistake("half an epoch", run("training.epochs=0.5"), 2, ["training.epochs", "an integer"]),
    Mistake("typo in one of few words", run("training.optimizer=adm"), 2, ["did you mean 'adam'"]),
    Mistake("capitals", run("selection.method=Terraform"), 2, ["did you mean 'terraform'"]),
    Mistake("option without its method", run("aggregation.server_lr=0.5"), 2, ["aggregation.method", "fedavg"]),
    Mistake("a learning rate of zero", run("training.lr=0"), 2, ["training.lr", "positive"]),
    Mistake("fraction and number", run("selection.fraction=0.3"), 2, ["fraction", "clients_per_round"]),
    Mistake("time without devices", run("availability.method=rhythm"), 2, ["[devices]"]),
    Mistake("a million workers", ["run", "config.toml", "-w", "1000000", "--out", "o"], 2, ["workers is 1000000"]),
    Mistake("negative workers", ["run", "config.toml", "-w", "-2", "--out", "o"], 2, ["workers is -2"]),
    Mistake("NaN", run("training.lr=nan"), 2, ["training.lr"]),
    Mistake("too large for a float", run("training.lr=1e999"), 2, ["training.lr", "inf"]),
    Mistake("more clients than samples", run("partition.clients=1000000000"), 2, ["1000000000", "samples"]),
    Mistake("more clients a round than clients", run("selection.clients_per_round=11"), 2, ["11", "10 clients"]),
    Mistake("nobody a round", run("selection.clients_per_round=0"), 2, ["at least 1"]),
    Mistake("a model beyond all memory", run("model.name=mlp", "model.hidden=[10000000000000]"), 2, ["memory"]),
    Mistake("a seed beyond 64 bits", run("seed=99999999999999999999999"), 2, ["seed"]),
    Mistake("checkpoint every 0 rounds", run("checkpoint.every=0"), 2, ["checkpoint.every", "at least 1"]),
    Mistake("evaluation every 0 rounds", run("evaluation.every=0"), 2, ["every", "at least 1"]),
    Mistake("parts that do not fit", run("aggregation.method=scaffold"), 2, ["scaffold", "[algorithm]"]),
    Mistake("weights that are not there", run("model.name=mlp", "model.weights=/nowhere.pt"), 2, ["/nowhere.pt"]),
    # --- the machine
    Mistake("no GPU", run("engine.device=cuda"), 2, ["cuda", "not available here"]),
    Mistake("unknown device", run("engine.device=tpu"), 2, ["tpu"]),
    Mistake(
        "missing extra, tracking",
        [*run(), "--track", "tensorboard"],
        2,
        ["muster-fl[tensorboard]"],
        without("tensorboard"),
    ),
    Mistake("missing extra, page", ["ui", "--workspace", "runs"], 2, ["muster-fl[ui]"], without("starlette")),
    Mistake("unknown tracker", [*run(), "--track", "tensorbord"], 2, ["did you mean 'tensorboard'"]),
    # --- data
    Mistake("no data there", run("data.source=mnist", "data.data_dir=/nowhere"), 3, ["mnist", "/nowhere"]),
    Mistake("lengths that differ", lambda: from_arrays(FEATURES, LABELS[:50]), 3, ["60", "50"]),
    Mistake("no samples", lambda: from_arrays(FEATURES[:0], LABELS[:0]), 3, ["there are no training samples"]),
    Mistake("NaN in features", lambda: from_arrays(with_nan(), LABELS), 3, ["sample 7, position 2"]),
    Mistake("labels from 1", lambda: from_arrays(FEATURES, LABELS + 1), 3, ["labels - 1"]),
    Mistake("label out of range", lambda: from_arrays(FEATURES, LABELS, classes=2), 3, ["first: 2 in sample 2"]),
    Mistake("a label missing", lambda: from_arrays(FEATURES, ["a", None, "b"] * 20), 3, ["sample 1 is None"]),
    Mistake("masked features", lambda: from_arrays(np.ma.masked_less(FEATURES, 0), LABELS), 3, ["masked"]),
    Mistake("one-hot labels", lambda: from_arrays(FEATURES, np.eye(3)[LABELS]), 3, ["argmax(axis=1)"]),
    Mistake("float labels", lambda: from_arrays(FEATURES, LABELS * 1.0), 3, ["regression"]),
    Mistake(
        "unknown word as a label",
        lambda: from_arrays(FEATURES, np.array(["a", "b", "c"])[LABELS], class_names=["a", "b"]),
        3,
        ["'c'"],
    ),
    Mistake("a path for a table", lambda: from_pandas("x.csv", label="y"), 3, ["pandas.read_csv"]),
    Mistake("a column twice", lambda: from_pandas(twice(), label="y"), 3, ["two columns 'a'"]),
    Mistake(
        "too large for single precision", lambda: from_arrays(FEATURES * np.float64(1e300), LABELS), 3, ["inf"]
    ),
    Mistake("words as features", lambda: from_arrays(FEATURES.astype(str), LABELS), 3, ["numbers"]),
    # --- models
    Mistake("tuple output", trained(model=TupleOutput), 2, ["tuple"]),
    Mistake("no constructor", trained(model=NoInit), 2, ["super().__init__() first"]),
    Mistake("outputs without gradient", trained(model=lambda: Detached(4, 3)), 2, ["detach()"]),
    Mistake("a lazy layer", trained(model=nn.LazyLinear(3)), 2, ["shape is not known yet"]),
    Mistake("outputs that do not fit", trained(model=nn.Linear(4, 7)), 2, ["7 outputs"]),
    Mistake("inputs that do not fit", trained(model=nn.Linear(5, 3)), 2, ["fails on"]),
    Mistake(
        "batch norm, single leftovers", trained(model=batch_norm, training={"batch_size": 3}), 2, ["drop_last"]
    ),
    Mistake("NaN loss", trained(objective=lambda y, t: y.sum(1) * torch.nan), 2, ["nan"]),
    Mistake("training that diverges", trained(training={"lr": 1e30}, rounds=5), 6, ["no valid update"]),
    Mistake("no experiment at all", lambda: muster.run(3), 2, ["Experiment"]),
    Mistake("a name for a section", trained(selection="random"), 2, ['{"method": "random"}']),
    Mistake("a signal that was not asked for", trained(selection=Misspelt()), 2, ["did you mean 'loss'"]),
    Mistake("one result to compare", lambda: muster.compare(trained()()), 2, ["list of results"]),
    Mistake("a path for an experiment", lambda: muster.run("config.toml"), 2, ["muster.load"]),
    # --- where results go
    Mistake("a file for a folder", ["run", "config.toml", "--out", "config.toml/in"], 5, ["config.toml", "--out"]),
    Mistake("a file for a workspace", ["run", "config.toml", "--workspace", "config.toml"], 5, ["config.toml"]),
    Mistake("an unwritable folder", ["run", "config.toml", "--out", "/proc/muster"], 5, ["cannot write"]),
    Mistake(
        "run twice",
        ["run", "config.toml", "-w", "0"],
        5,
        ["holds this run", "--resume", "more --rounds"],
    ),
    Mistake(
        "a run that was stopped, anew",
        ["run", "config.toml", "-w", "0", "--workspace", "new"],
        5,
        ["a part of this run", "1 of 2 rounds", "continue it with --resume"],
        lambda monkeypatch: muster.run(muster.load("config.toml"), 0, store="new", observers=[AfterOne()]),
    ),
    Mistake("run by two at once", run(), 5, ["being run by another process"], claimed),
    Mistake("newer store", run(), 8, ["newer version of Muster", "update Muster"], newer_store),
    Mistake("database of another program", run(), 8, ["another program"], foreign_database),
    Mistake("no database", run(), 8, ["not a database"], wrote("new/muster.db", "just words " * 500)),
    Mistake("no workspace", ["runs", "--workspace", "nowhere"], 8, ["nowhere", "--workspace"]),
    Mistake("checkpoint lost", ["run", "config.toml", "-w", "0", "--resume"], 4, ["checkpoint"], lost_checkpoint),
    Mistake(
        "resume of another experiment",
        ["run", "config.toml", "--out", "mine", "--resume", "--set", "seed=3"],
        4,
        ["another experiment"],
        lambda monkeypatch: muster.run(muster.load("config.toml"), 0, out="mine"),
    ),
    # --- looking at results
    Mistake("unknown run", ["runs", "show", "123456"], 2, ["123456"]),
    Mistake("replay of an unknown run", ["replay", "nothing"], 2, ["nothing", "muster runs"]),
    Mistake("unknown metric", ["compare", "--metric", "acuracy"], 2, ["acuracy", "accuracy"]),
    Mistake("unknown sweep", ["compare", "nothing"], 2, ["nothing"]),
    Mistake("unknown kind of picture", ["plot", "curve"], 2, ["curves"]),
    Mistake("a picture as .bmp", ["plot", "curves", "-o", "x.bmp"], 2, [".bmp", "png"]),
    Mistake("a table as .docx", ["compare", "-o", "x.docx"], 2, [".docx", ".md"]),
    Mistake("unknown component", ["show", "terrafrom"], 2, ["terraform"]),
    Mistake("a component in capitals", ["show", "MLP"], 2, ["did you mean 'mlp'"]),
    Mistake("typo in a paper", ["reproduce", "terrafrom"], 2, ["did you mean 'terraform'"]),
    Mistake("an empty name of a run", ["runs", "delete", "", "--yes"], 2, ["no run begins with ''"]),
    Mistake("unknown list", ["list", "method"], 2, ["methods"]),
    Mistake("nothing that is near", run("selection.method=zzz"), 2, ["'zzz'", "Expected: one of astrafl, "]),
    Mistake(
        "a model of several runs",
        ["export", "--model", "model.pt"],
        2,
        ["2 runs match", "seed 4, 2 rounds", "--run "],
        lambda monkeypatch: muster.run(muster.load("config.toml", ["seed=4"]), 0, store="runs"),
    ),
    Mistake("init over a file", ["init", "."], 2, ["nothing was written"], wrote("experiment.toml", "mine = 1")),
    Mistake("an app in place of a file", ["flower", "new", "config.toml"], 5, ["is a file"]),
    # --- inspect
    Mistake("counts without rows", ["inspect", "c.csv"], 3, ["c.csv"], wrote("c.csv", "client,class,count\n")),
    Mistake("an empty file", ["inspect", "c.csv"], 3, ["c.csv"], wrote("c.csv", "")),
    Mistake("a file of another kind", ["inspect", "c.xlsx"], 2, ["c.xlsx", ".csv"], wrote("c.xlsx", "PK")),
    Mistake(
        "counts that are words",
        ["inspect", "c.csv"],
        3,
        ["many"],
        wrote("c.csv", "client,class,count\na,b,many\n"),
    ),
    Mistake("nothing to inspect", ["inspect", "nowhere"], 2, ["nowhere"]),
    Mistake(
        "samples without their columns",
        ["inspect", "c.csv"],
        3,
        ["'yes' is not a number", "--client and --label", "clinic, smoker"],
        wrote("c.csv", "clinic;smoker\nA;yes\n"),
    ),
    # --- sweeps
    Mistake(
        "a sweep that is run", ["run", "s.toml"], 2, ["muster sweep"], wrote("s.toml", "seeds = [1]\n[base]\n")
    ),
    Mistake("an experiment that is swept", ["sweep", "config.toml"], 2, ["muster run", "[base]"]),
    Mistake("a number of seeds", ["sweep", "s.toml"], 2, ["repeats = 3"], wrote("s.toml", "seeds = 3")),
    Mistake(
        "sweep with a typo", ["sweep", "s.toml"], 2, ["did you mean 'grid'"], wrote("s.toml", "[gird]\nseed = [1]")
    ),
    Mistake("sweep without its base", ["sweep", "s.toml"], 2, ["b.toml"], wrote("s.toml", 'base = "b.toml"')),
    Mistake(
        "sweep with seeds and repeats",
        ["sweep", "s.toml"],
        2,
        ["repeats"],
        wrote("s.toml", "seeds=[1]\nrepeats=2"),
    ),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a config and a finished run of it."""
    folder: Path = tmp_path_factory.mktemp("finished")
    (folder / "config.toml").write_text(CONFIG)
    muster.run(muster.load(folder / "config.toml"), 0, store=folder / "runs")
    return folder


@pytest.fixture
def here(finished, tmp_path, monkeypatch) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_WORKSPACE", raising=False)
    return Path(tmp_path)


def contents(folder: Path) -> dict[str, str]:
    """What every file holds, but for what a database keeps beside itself while it is open."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".db-wal", ".db-shm"))
    return {str(path): _rounds(path) or hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _rounds(path: Path) -> str:
    """The rounds of a store of this version: how the file looks may change, what it holds may not."""
    if path.name != "muster.db":
        return ""
    try:
        with Store(path.parent) as store:
            return repr([store.rows_of_run(run.id, run.done).records() for run in store.runs()])
    except MusterError:
        return ""


@pytest.mark.parametrize("mistake", TABLE, ids=lambda mistake: mistake.name)
def test_a_mistake_is_told_and_costs_nothing(mistake: Mistake, here, monkeypatch, capsys):
    mistake.before(monkeypatch)
    kept, there = contents(here), set(here.rglob("*"))
    if callable(mistake.does):
        with pytest.raises(MusterError) as caught:
            mistake.does()
        complain(caught.value)
        code = caught.value.exit_code
    else:
        monkeypatch.setattr(sys, "argv", ["muster", *mistake.does])
        with pytest.raises(SystemExit) as left:
            main()
        code = int(left.value.code or 0)
    message = capsys.readouterr().err
    assert code == mistake.code, message
    assert "Traceback" not in message
    for words in mistake.says:
        assert words in message
    assert "Expected:" in message or "What to do:" in message or USAGE in message, message
    now = contents(here)
    assert {name: now.get(name) for name in kept} == kept
    if mistake.code == 2:  # nothing was begun, so nothing is left behind
        assert set(here.rglob("*")) - there == set()


def test_no_mistake_is_told_twice():
    assert len({mistake.name for mistake in TABLE}) == len(TABLE)


# --- what looks like a mistake and is none ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        ("with spaces and ü.toml", "höme of results"),
        ("'quoted'.toml", "100% [bold]"),
        ("-dash.toml", "-out"),
    ],
)
def test_paths_may_have_any_characters(here, monkeypatch, capsys, config, folder):
    Path(config).write_text(CONFIG)
    monkeypatch.setattr(sys, "argv", ["muster", "run", "-w", "0", f"--workspace={folder}", "--", config])
    main_ends_well()
    assert (Path(folder) / "muster.db").exists()
    assert folder in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../../elsewhere", "x" * 300, "a/b", "a\\u0000b", "..", "[/bold] [red"])
def test_a_name_is_a_label_and_no_path(here, monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", ["muster", *run(f'name="{name}"')])
    main_ends_well()
    (folder,) = [path for path in Path("new").iterdir() if path.is_dir() and path.name != "checkpoints"]
    assert (folder / "metrics.csv").exists()
    assert not list(here.parent.glob("elsewhere*"))
    for look in (["runs"], ["compare"], ["runs", "show", Store("new").runs()[0].fingerprint]):
        monkeypatch.setattr(sys, "argv", ["muster", *look, "--workspace", "new"])
        main_ends_well()


def test_a_sweep_may_have_any_name(here, monkeypatch, capsys):
    Path("s.toml").write_text('name = "[/s]"\nbase = "config.toml"\nseeds = [5]\n[[cases]]\nname = "[/c] [red"\n')
    for more in (["--dry-run"], ["-j", "1"]):
        monkeypatch.setattr(sys, "argv", ["muster", "sweep", "s.toml", "--workspace", "new", *more])
        main_ends_well()
        assert "[/c] [red" in "".join(capsys.readouterr())


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbfrounds = 1\r\n"], ids=["empty", "from Windows"])
def test_configs_that_are_fine(here, monkeypatch, content):
    Path("c.toml").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["muster", "run", "c.toml", "-w", "0", "--rounds", "1", "--workspace", "new"])
    main_ends_well()


def main_ends_well() -> None:
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code


@pytest.mark.parametrize(
    "labels", [LABELS.astype(np.uint8), LABELS == 1, np.array(["a", "b", "c"])[LABELS], LABELS.tolist()]
)
def test_labels_of_many_kinds_are_classes(labels):
    data = from_arrays(FEATURES, labels, clients=CLIENTS)
    assert trained(data=data)().complete


# --- two at once, and nobody who reads -------------------------------------------------------------------


def test_of_two_runs_that_begin_in_one_folder_the_second_is_refused(here, monkeypatch, capsys):
    """Before either has a round by which the other could know it."""

    class Second(Observer):
        code: object = None

        def started(self, server, rounds, done):
            monkeypatch.setattr(sys, "argv", ["muster", "run", "config.toml", "-o", "one", "--set", "seed=4"])
            with pytest.raises(SystemExit) as left:
                main()
            self.code = left.value.code

    second = Second()
    assert muster.run(muster.load("config.toml"), 0, out="one", observers=[second]).complete
    assert second.code == 5
    assert "another process is running an experiment into one" in capsys.readouterr().err
    with Store("one") as store:
        assert [(run.seed, run.status) for run in store.runs()] == [(0, "complete")]
    # The folder is free again for more of the same.
    assert muster.run(muster.load("config.toml", ["rounds=3"]), 0, out="one", extend=True).complete


def test_a_run_that_nobody_reads_any_more_is_stopped_and_can_be_resumed(here):
    """As with `muster run … | head -2`."""
    process = started(here, "--rounds", "100000")
    process.stderr.readline()
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=120) != 0
    with Store("runs") as store:
        (run,) = store.runs(seed=7)
    assert (run.status, run.error) == ("stopped", "")
    assert run.done > 0


# --- Ctrl-C ----------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-c", "from muster.cli.main import main; main()"]


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "run", "config.toml", "-w", "0", "--set", "seed=7", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130, message
    assert "Traceback" not in message
    return message


def at_round(folder: Path, round: int) -> None:
    """Waits until the run with seed 7 has so many rounds."""
    end = time.monotonic() + 120
    with Store(folder / "runs") as store:
        while not any(run.seed == 7 and run.done >= round for run in store.runs()):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_ctrl_c_while_libraries_are_loaded(here):
    """Before anything has begun: wherever in the imports it falls, also where an exception would be swallowed."""
    for delay in (0.05, 0.4):
        # Who starts the tests in the background of a shell has interrupts ignored, here and in every child.
        heard = "import os, signal, threading; signal.signal(2, signal.default_int_handler)"
        interrupt = f"{heard}; threading.Timer({delay}, os.kill, (os.getpid(), 2)).start()"
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from muster.cli.main import main; {interrupt}; main()",
                *run(),
                "--rounds",
                "9999",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        message = ended(process)
        assert message.splitlines()[-1] == "stopped" or "continue with:" in message


@pytest.mark.slow
def test_ctrl_c_while_training_and_twice(here):
    """Once lets the round end; twice stops at once. In both cases every round that was done is kept."""
    process = started(here, "--rounds", "3000")
    at_round(here, 2)
    process.send_signal(signal.SIGINT)
    assert "continue with: muster run config.toml --rounds 3000 --set seed=7 --resume" in ended(process)
    # Rounds take milliseconds: interrupts fall anywhere in them, also into the store's transactions.
    for _ in range(4):
        with Store(here / "runs") as store:
            (before,) = [run.done for run in store.runs(seed=7)]
        process = started(here, "--rounds", "3000", "--resume")
        at_round(here, before + 5)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        ended(process)
        with Store(here / "runs") as store:
            (run,) = store.runs(seed=7)
            assert run.status == "stopped"
            assert run.done >= before + 5
            assert len(store.result(run).records) == run.done
            assert store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
