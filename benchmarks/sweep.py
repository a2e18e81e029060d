"""What a short run costs beyond its training, in a sweep and alone; and what five kill -9 do to a sweep.

A run has 20 rounds of 8 clients with a small perceptron on digits: little training, so that everything else shows
(interpreter, imports, data, workers, evaluation, store). All times are the processor's, of all processes together,
because other work on the machine changes them least.

    python benchmarks/sweep.py                    everything, with 1,000 runs that are killed
    python benchmarks/sweep.py --before COMMIT    the same runs with an earlier state as well, in turn
    python benchmarks/sweep.py --parts cost       one part: cost, evaluation or kills
    python benchmarks/sweep.py --parts            nothing: docs/sweeps.md from what is there

The cost of one more run is the difference between a long sweep and a short one, divided by the runs that it has
more: starting a sweep is paid once. Training is what the engine takes to answer. Numbers are medians over repeats.

What was measured is kept in benchmarks/results/sweep.json, and docs/sweeps.md is written from it.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from muster.config.experiment import Experiment
from muster.core.arrays import Vector
from muster.engine.base import Evaluation, Failed
from muster.engine.wrapped import WrappedEngine
from muster.experiment.runner import run
from muster.experiment.sweep import load_sweep
from muster.results.store import Store
from muster.server.result import Result
from muster.updates.table import Updates

try:
    from muster.experiment.parts import Ingredients, local_engine
except ImportError:  # earlier states have them elsewhere
    from muster.experiment.runner import Ingredients, local_engine  # type: ignore[attr-defined, no-redef]

_Measured = TypeVar("_Measured", "Cost", "Shares")

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "sweep.json"
PAGE = REPOSITORY / "docs" / "sweeps.md"
NOW = "now"
PARTS = ("cost", "evaluation", "kills")
#: Of Linux: orphans of our children become ours, so that their time is counted.
_SUBREAPER = 36
AIM = 0.3
KILLS = 5
RUN = """
name = "short"
repeats = {runs}
[base]
rounds = 20
[base.data]
source = "digits"
[base.partition]
scheme = "dirichlet"
clients = 40
alpha = 0.3
[base.model]
name = "mlp"
hidden = [32]
[base.training]
lr = 0.1
batch_size = 8
[base.selection]
method = "random"
clients_per_round = 8
"""
#: What a run of the evaluation's part has: data source, clients, hidden units, batch.
PROBLEMS: dict[str, tuple[str, int, int, int]] = {
    "digits": ("digits", 40, 32, 8),
    "Fashion-MNIST": ("fashion-mnist", 100, 64, 64),
    "CIFAR-10": ("cifar10", 100, 64, 64),
}


# --- processor time of commands ----------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """From now on processes that lose their parent are ours to wait for: the one that runs are forked from."""
    if ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("this kernel does not hand over orphans: the benchmark needs Linux")


def command(folder: Path, runs: int) -> list[str]:
    file = folder / "sweep.toml"
    file.write_text(RUN.format(runs=runs), encoding="utf-8")
    words = ["sweep", str(file), "--workspace", str(folder / "workspace")]
    return [sys.executable, "-m", "muster.cli.main", *words]


def started(words: Sequence[str], source: Path) -> subprocess.Popen[bytes]:
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a command and all that it left behind; its exit code."""
    code = process.wait()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return code


def processor_seconds(words: Sequence[str], source: Path) -> float:
    """Of a command and all of its processes."""
    before = _used()
    if (code := ended(started(words, source))) != 0:
        raise RuntimeError(f"{' '.join(words)} ended with code {code}")
    return _used() - before


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


# --- what a run costs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Seconds of the processor: one more run of a sweep, its training, the sweep itself, and a run alone."""

    a_run: float
    training: float
    the_sweep: float
    alone: float


def cost(source: Path, runs: int) -> Cost:
    """With the code in `source`."""
    few = max(1, runs // 5)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        short = processor_seconds(command(Path(one), few), source)
        long = processor_seconds(command(Path(other), runs), source)
        each = (long - short) / (runs - few)
        single = processor_seconds(_single(Path(one), 0), source)
    return Cost(each, shares_with(source, "digits", 20).training, short - few * each, single)


def _single(folder: Path, seed: int) -> list[str]:
    file = folder / f"run-{seed}.toml"
    lines = RUN.format(runs=1).replace("base.", "").splitlines()
    kept = [line for line in lines if not line.startswith(('name = "short"', "repeats", "[base]"))]
    file.write_text("\n".join([f"seed = {seed}", *kept]), encoding="utf-8")
    return [sys.executable, "-m", "muster.cli.main", "run", str(file), "--workers", "0", "--out", f"{file}.out"]


def timed_engine(ingredients: Ingredients) -> Timed:
    return Timed(local_engine(ingredients, 0))


class Timed(WrappedEngine):
    """Notes how long training and evaluation take, over all engines of this process."""

    training_seconds: ClassVar[float] = 0.0
    evaluation_seconds: ClassVar[float] = 0.0

    def collect(self) -> Iterator[Updates | Failed]:
        answers = super().collect()
        while True:
            begin = time.process_time()
            answer = next(answers, None)
            Timed.training_seconds += time.process_time() - begin
            if answer is None:
                return
            yield answer

    def evaluate(self, parameters: Vector) -> Evaluation:
        begin = time.process_time()
        found = super().evaluate(parameters)
        Timed.evaluation_seconds += time.process_time() - begin
        return found


@dataclass(frozen=True)
class Shares:
    """Seconds of the processor of a run: training, evaluation, and all of it, with everything loaded before."""

    training: float
    evaluation: float
    whole: float


def shares(experiments: Sequence[Experiment]) -> Shares:
    """Means over experiments, without a store, in this process; the first one is run once before."""
    torch.set_num_threads(1)
    run(experiments[0], make_engine=timed_engine)
    Timed.training_seconds = Timed.evaluation_seconds = 0.0
    begin, count = time.process_time(), len(experiments)
    for experiment in experiments:
        run(experiment, make_engine=timed_engine)
    whole = time.process_time() - begin
    return Shares(Timed.training_seconds / count, Timed.evaluation_seconds / count, whole / count)


def problem(name: str, repeats: int) -> list[Experiment]:
    source, clients, hidden, batch = PROBLEMS[name]
    return [
        Experiment(
            seed=seed,
            rounds=20,
            data={"source": source},
            partition={"scheme": "dirichlet", "clients": clients, "alpha": 0.3},
            model={"name": "mlp", "hidden": [hidden]},
            training={"lr": 0.05, "batch_size": batch},
            selection={"method": "random", "clients_per_round": 8},
        )
        for seed in range(repeats)
    ]


def shares_with(source: Path, name: str, repeats: int) -> Shares:
    """The same in a process with the code in `source`."""
    words = [sys.executable, __file__, "--one", name, "--repeats", str(repeats)]
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    return Shares(**json.loads(done.stdout.splitlines()[-1]))


# --- a sweep that is killed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """What became of a sweep that was killed several times."""

    runs: int
    complete: int
    #: Runs that a later process went on with, and rounds in the store that are not exactly 1, 2, …, 20.
    resumed: int
    wrong_rounds: int
    #: Of so many runs, how many have the bits of the same run alone.
    compared: int
    same: int
    seconds: float


def kills(source: Path, runs: int, compared: int) -> Killed:
    rng, before = random.Random(0), _used()
    with tempfile.TemporaryDirectory() as folder:
        words, workspace = command(Path(folder), runs), Path(folder) / "workspace"
        for number in range(1, KILLS + 1):
            process = started(words, source)
            _wait_for(workspace, int(runs * (number - rng.random() / 2) / (KILLS + 1)), process)
            os.killpg(process.pid, signal.SIGKILL)
            ended(process)
        if (code := ended(started(words, source))) != 0:
            raise RuntimeError(f"the sweep ended with code {code}")
        return _looked_at(Path(folder), runs, compared, _used() - before)


def _wait_for(workspace: Path, complete: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        time.sleep(1.0)  # looking takes time from the sweep
        if (workspace / "muster.db").exists():
            with Store(workspace) as store:
                if len(store.runs(status="complete")) >= complete:
                    return
    raise RuntimeError(f"the sweep ended with code {process.returncode} before it could be killed")


def _looked_at(folder: Path, runs: int, compared: int, seconds: float) -> Killed:
    with Store(folder / "workspace") as store:
        found = store.runs(sweep="short")
        resumed = wrong = 0
        for one in found:
            kinds = [event.kind for event in store.events(one)]
            resumed += "resumed" in kinds
            wrong += [record.round for record in store.result(one, parameters=False).records] != [*range(1, 21)]
        alone = {one.fingerprint: one for one in load_sweep(folder / "sweep.toml").experiments()}
        chosen = random.Random(1).sample(found, min(compared, len(found)))
        same = sum(_same(store.result(one), run(alone[one.fingerprint], workers=0)) for one in chosen)
    complete = sum(one.status == "complete" for one in found)
    return Killed(runs, complete, resumed, wrong, len(chosen), same, seconds)


def _same(one: Result, other: Result) -> bool:
    """Parameters, who took part, and every metric of every round."""
    return np.array_equal(one.parameters, other.parameters) and one.records == other.records


# --- the page ----------------------------------------------------------------------------------------------------


def medians(kind: type[_Measured], repeats: Sequence[Mapping[str, float]]) -> _Measured:
    return kind(**{field.name: median(one[field.name] for one in repeats) for field in fields(kind)})


def cost_table(rows: Mapping[str, Cost]) -> str:
    lines = [
        "| code | a run alone (`muster run`), s | one more run of a sweep, s | its training, s "
        f"| beyond training, s | aim ≤ {AIM:g} s | starting a sweep, s |",
        "|---" * 7 + "|",
    ]
    for name, found in rows.items():
        beyond = found.a_run - found.training
        word = "reached" if beyond <= AIM else "**not reached**"
        figures = f"{found.alone:.2f} | {found.a_run:.2f} | {found.training:.2f} | {beyond:.2f}"
        lines.append(f"| {name} | {figures} | {word} | {found.the_sweep:.1f} |")
    return "\n".join(lines)


def evaluation_table(rows: Mapping[tuple[str, str], Shares]) -> str:
    lines = [
        "| problem | code | evaluation, ms a run | of the run | training, ms a run | of the run |",
        "|---" * 6 + "|",
    ]
    for (name, code), found in rows.items():
        figures = [
            f"{1000 * part:,.0f} | {100 * part / found.whole:.0f} %" for part in (found.evaluation, found.training)
        ]
        lines.append(f"| {name} | {code} | {' | '.join(figures)} |")
    return "\n".join(lines)


def kills_text(found: Killed) -> str:
    return (
        f"{found.runs:,} runs, killed {KILLS} times (`kill -9` of all processes) and started again: "
        f"{found.complete:,} complete, {found.wrong_rounds} with a round missing or twice, {found.resumed} went "
        f"on after a kill; {found.same:,} of {found.compared:,} drawn at random have the bits of the same run "
        f"alone. {found.seconds / found.runs:.2f} s of the processor a run, with lost work and {KILLS + 1} starts."
    )


def page(kept: Mapping[str, Any]) -> str:
    """What was measured, part by part, each with its command, day and machine."""
    parts = []
    if "cost" in kept:
        parts.append(cost_table({name: medians(Cost, found) for name, found in kept["cost"]["rows"]}))
        parts.append(_conditions(kept["cost"]))
    if "evaluation" in kept:
        rows = {(name, code): medians(Shares, found) for name, code, found in kept["evaluation"]["rows"]}
        parts += ["### Evaluation's share", evaluation_table(rows), _conditions(kept["evaluation"])]
    if "kills" in kept:
        parts += ["### Five kills", kills_text(Killed(**kept["kills"]["found"])), _conditions(kept["kills"])]
    return "\n\n".join(parts)


def conditions() -> dict[str, Any]:
    from harness.report import machine  # not needed by the processes that are measured

    return {
        "command": " ".join(["python benchmarks/sweep.py", *sys.argv[1:]]),
        "date": f"{datetime.now(UTC):%d %B %Y}",
        "machine": machine(),
        "load": os.getloadavg()[0],
    }


def _conditions(part: Mapping[str, Any]) -> str:
    about = part["conditions"]
    return f"`{about['command']}`, {about['date']}; {about['machine']}; load at the start {about['load']:.1f}."


def source_of(commit: str, folder: Path) -> Path:
    """The package as it was."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=REPOSITORY, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def measured(part: str, codes: Mapping[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """One part, the states in turn in every repeat: what slows the machine for a while slows all of them."""
    if part == "kills":
        return {"found": asdict(kills(codes[NOW], options.killed_runs, options.compared))}
    if part == "cost":
        costs: dict[str, list[dict[str, float]]] = {code: [] for code in codes}
        for _ in range(options.repeats):
            for code, source in codes.items():
                costs[code].append(asdict(cost(source, options.runs)))
        return {"rows": list(costs.items())}
    found: dict[tuple[str, str], list[dict[str, float]]] = {
        (name, code): [] for name in PROBLEMS for code in codes
    }
    for _ in range(options.repeats):
        for (name, code), own in found.items():
            own.append(asdict(shares_with(codes[code], name, 2)))
    return {"rows": [(name, code, own) for (name, code), own in found.items()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--before", metavar="COMMIT", help="measure this earlier state as well")
    parser.add_argument("--runs", type=int, default=60, help="of the sweep whose cost is measured")
    parser.add_argument("--killed-runs", type=int, default=1000, help="of the sweep that is killed")
    parser.add_argument("--compared", type=int, default=100, help="how many of those are run alone, too")
    parser.add_argument("--repeats", type=int, default=3, help="of cost and evaluation")
    parser.add_argument("--print", action="store_true", dest="only_print", help="keep nothing, write no page")
    parser.add_argument("--one", choices=list(PROBLEMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(shares(problem(options.one, options.repeats)))))
        return
    adopt_orphans()
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        codes = {NOW: REPOSITORY / "src"}
        if options.before:
            codes = {options.before: source_of(options.before, Path(folder)), **codes}
        for part in options.parts:
            where = conditions()  # before: afterwards the load is the measurement's own
            found = {"conditions": where, **measured(part, codes, options)}
            print(page({part: found}), end="\n\n", flush=True)
            kept[part] = found
            if not options.only_print:
                RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if not options.only_print:
        from muster.report.measured import write_measured  # earlier states have it elsewhere

        write_measured(PAGE, page(kept))


if __name__ == "__main__":
    main()
