"""Changes single places of the source at random, one at a time, and looks whether the package's tests notice.

    python tools/mutants.py                              # 22 mutants of each of five packages
    python tools/mutants.py --sample 50 --minutes 240
    python tools/mutants.py --packages privacy --seed 1
    python tools/mutants.py --files selection/oort.py    # of the same sample, those of some files
    python tools/mutants.py --each 600                   # more of the slow tests
    python tools/mutants.py --near                       # quick: begins with the test files next to the module

The changes are those of Cosmic Ray (`pip install cosmic-ray`). Which places are changed follows from the seed and
from each place itself, so that work on one part of the source leaves the sample of the others as it was.

A package's tests, and a few files elsewhere that are about its modules, are run once without a mutant, to learn
which of them reach which lines and how long they take. A mutant is shown to the tests that reach its statement,
quick ones first, then to the others of the same files; one whose statement is executed by imports, or reached by
none, to all of them. After `--each` seconds of tests a mutant has survived: the slowest are left out, and the
score is a lower bound. With `--near` nothing is learnt: a mutant is shown to the test files of the package that
carry the name of its module, to those that import it, and to the others, short files first, until `--each` seconds
of the processor are spent. A mutant is noticed by a test that fails with it and passes without it. Survivors are
printed as a diff; `tools/mutants.toml` lists those that change nothing, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import difflib
import hashlib
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest
import scipy.stats  # noqa: F401  imported once, here, instead of in every process that runs tests
import sklearn.cluster  # noqa: F401
import torch._dynamo  # noqa: F401
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "muster"
PACKAGES = ("selection", "aggregation", "updates", "server", "privacy")
#: Test files elsewhere that are about a package's modules: defaults, ranges of options and cautions; time; lies;
#: filters; runs that are extended.
_OPTIONS = (
    "conformance/test_published_constants.py",
    "conformance/test_option_ranges.py",
    "conformance/test_values.py",
    "docs/test_defaults.py",
)
BESIDE = {
    "selection": (*_OPTIONS, "server/test_cautions.py"),
    "aggregation": (*_OPTIONS, "server/test_cautions.py"),
    "updates": (*_OPTIONS, "integration/test_filters.py", "server/test_lies.py"),
    "server": (
        "pacing",
        "experiment/test_replay.py",
        "experiment/test_extension.py",
        "integration/test_filters.py",
        "integration/test_planted_bugs.py",
    ),
}
EQUIVALENT = ROOT / "tools" / "mutants.toml"
#: Operators without options; the others need names of variables.
OPERATORS = {name: get_operator(name)() for name in operator_names() if not get_operator(name).arguments()}
#: Plugins that tests of the five packages do not need.
QUIET = [word for name in ("cacheprovider", "xdist", "anyio", "cov") for word in ("-p", f"no:{name}")]
#: A mutant that makes a test hang counts as noticed: after so many times what its slowest test takes without it, …
SLOWER = 10
#: … and after this many seconds at least, of the clock for one test, of the processor for all.
PATIENCE = 180


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    file: str
    line: int
    diff: str
    source: str

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True)
class Place:
    """Where a file can be changed, and with which operators, each with the number of its occurrence."""

    file: Path
    line: int
    #: What stands there, with a number where the same stands in several places.
    text: str
    changes: list[tuple[str, int]]


# --- which mutants there are -----------------------------------------------------------------------------------


def places(file: Path) -> list[Place]:
    source = file.read_text(encoding="utf-8")
    lines, counts, alike = source.splitlines(), Counter[str](), Counter[str]()
    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for node in ast_nodes(get_ast(source)):
        for name, operator in OPERATORS.items():
            for start, _ in operator.mutation_positions(node):
                found[start].append((name, counts[name]))
                counts[name] += 1
    result = []
    for (line, _), changes in sorted(found.items()):
        text = lines[line - 1].strip()
        alike[text] += 1
        result.append(Place(file, line, f"{text} {alike[text]}", changes))
    return result


def lot(seed: int, place: Place, more: str = "") -> str:
    """What decides whether a place is drawn: as good as random, and the same as long as the place is the same."""
    words = f"{seed} {place.file.relative_to(SOURCE)} {place.text} {more}"
    return hashlib.sha256(words.encode()).hexdigest()


def drawn(package: str, sample: int, seed: int) -> list[Mutant]:
    """A random sample of a package's mutants."""
    files = [path for path in sorted((SOURCE / package).rglob("*.py")) if path.name != "__init__.py"]
    every = sorted((place for file in files for place in places(file)), key=lambda place: lot(seed, place))
    made: list[Mutant] = []
    for place in every:
        mutant = changed(place, seed)
        if mutant is not None:
            made.append(mutant)
        if len(made) == sample:
            break
    return made


def changed(place: Place, seed: int) -> Mutant | None:
    """One random change of a place; None where it changes only annotations."""
    before = place.file.read_text(encoding="utf-8")
    name, occurrence = min(place.changes, key=lambda change: lot(seed, place, change[0]))
    after = mutate_code(before, OPERATORS[name], occurrence)
    if after is None or meaning(after) in (None, meaning(before)):
        return None
    file = str(place.file.relative_to(SOURCE))
    return Mutant(file, place.line, diff(before, after, file), after)


def meaning(source: str) -> str | None:
    """What is executed: the syntax tree without annotations; None where there is a syntax error."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "\n".join(lines)


def statement(source: str, line: int) -> range:
    """The lines of the innermost statement around a line; of one with a body, those of its head."""
    around = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):  # outer ones come first
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            if first <= line <= (node.end_lineno or first):
                body = getattr(node, "body", None)
                end = body[0].lineno if body else (node.end_lineno or first) + 1
                around = range(first, max(end, first + 1)) if line < end or not body else around
    return around


# --- which tests see them --------------------------------------------------------------------------------------


@dataclass
class Tests:
    """The tests of a package: how long they take, and which lines of the package they execute."""

    seconds: dict[str, float] = field(default_factory=dict)
    #: File of the package → line → tests; the empty name stands for imports.
    reached: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    #: Those that are known to pass without a mutant, and those that are known not to.
    passing: set[str] = field(default_factory=set)
    useless: list[str] = field(default_factory=list)

    def stages(self, mutant: Mutant) -> list[list[str]]:
        """Which tests to run, in which order."""
        lines = self.reached.get(mutant.file, {})
        around = statement((SOURCE / mutant.file).read_text(encoding="utf-8"), mutant.line)
        reaching = {test for line in around for test in lines.get(line, ())}
        stem = Path(mutant.file).stem.strip("_")

        def quick_first(tests: Iterable[str]) -> list[str]:
            own = {test: stem in test.partition("::")[0] for test in tests}
            return sorted(own, key=lambda test: (not own[test], self.seconds.get(test, 0.0)))

        if not reaching or "" in reaching:
            return [quick_first(self.seconds)]
        files = {test.partition("::")[0] for test in reaching}
        rest = [test for test in self.seconds if test not in reaching and test.partition("::")[0] in files]
        return [quick_first(reaching), *([quick_first(rest)] if rest else [])]


class Near(Tests):
    """Without having learnt anything: files that carry the module's name, those that import it, the others."""

    def stages(self, mutant: Mutant) -> list[list[str]]:
        module = Path(mutant.file).with_suffix("").as_posix().replace("/", ".")
        stem = Path(mutant.file).stem.strip("_")
        places = [ROOT / "tests" / name for name in (mutant.package, *BESIDE.get(mutant.package, ()))]
        files = [file for place in places for file in (place.glob("test_*.py") if place.is_dir() else [place])]

        def far(file: Path) -> tuple[bool, bool, int]:
            text = file.read_text(encoding="utf-8")
            return stem not in file.stem, f"muster.{module} " not in text, len(text)

        return [[str(file.relative_to(ROOT))] for file in sorted(files, key=far)]


class Watch:
    """Notes for every test how long it takes, whether it passes, and what it executes."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured, self.seconds, self.failed = measured, Counter[str](), set[str]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.measured.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.measured.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


class Chosen:
    """Runs some tests in a given order for so many seconds, and notes in a file which one is running."""

    def __init__(self, tests: Sequence[str], note: Path, seconds: float) -> None:
        self.rank = {test: number for number, test in enumerate(tests)}
        self.note, self.seconds = note, seconds

    def pytest_runtest_protocol(self) -> bool | None:
        return True if time.process_time() > self.seconds else None  # True: as if it had been run

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note.write_text(nodeid, encoding="utf-8")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if any("::" in test for test in self.rank):  # names of files stand for all that is in them
            kept = [item for item in items if item.nodeid in self.rank]
            items[:] = sorted(kept, key=lambda item: self.rank[item.nodeid])


def learnt(package: str, folder: Path) -> Tests:
    """Run a package's tests on the source as it is."""
    note = folder / f"{package}.json"
    mine = folder / "src" / "muster" / package

    def watched() -> int:
        measured = coverage.Coverage(data_file=None, config_file=False, include=[f"{mine}/*"])
        watch = Watch(measured)
        measured.start()
        tested([f"tests/{name}" for name in (package, *BESIDE.get(package, ()))], watch)
        measured.stop()
        data = measured.get_data()
        reached = {
            str(Path(file).relative_to(folder / "src" / "muster")): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        found = {"seconds": watch.seconds, "failed": sorted(watch.failed), "reached": reached}
        note.write_text(json.dumps(found), encoding="utf-8")
        return 0

    if forked(watched, folder, 3600) != 0:
        raise SystemExit(f"the tests of {package} cannot be run")
    known = json.loads(note.read_text(encoding="utf-8"))
    # Whoever fails without a mutant (a measurement of speed on a busy machine) can judge none.
    useless = set(known["failed"])
    without = ", ".join(sorted(useless)) or "exception"
    print(f"{package}: {len(known['seconds'])} tests, without {without}", flush=True)
    seconds = {test: n for test, n in known["seconds"].items() if test not in useless}
    reached = {
        file: {int(n): [test for test in tests if test not in useless] for n, tests in lines.items()}
        for file, lines in known["reached"].items()
    }
    return Tests(seconds, reached, passing=set(seconds))


def tested(arguments: list[str], plugin: object, *options: str) -> int:
    # A failing example is enough: nobody reads the smallest one, and what was found must not help the next mutant.
    quick = [phase for phase in hypothesis.Phase if phase.name in ("explicit", "generate")]
    hypothesis.settings.register_profile("mutants", phases=quick, database=None, derandomize=True)
    hypothesis.settings.load_profile("mutants")
    return int(pytest.main(["-q", *QUIET, *options, *arguments], plugins=[plugin]))


def forked(work: Callable[[], int], folder: Path, seconds: float) -> int:
    """0 where `work` returns 0, in a fork of this process, which has imported everything but Muster already."""
    child = os.fork()
    if child == 0:
        limit = int(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(ROOT)
        sys.path.insert(0, str(folder / "src"))
        os.environ["PYTHONPATH"] = str(folder / "src")
        os._exit(work())
    return os.waitpid(child, 0)[1]


def is_noticed(mutant: Mutant, tests: Tests, folder: Path, seconds: float) -> bool:
    """Whether some test fails with the mutant and passes without it, of those that fit into so many seconds."""
    end = spent() + seconds if isinstance(tests, Near) else math.inf
    for stage in affordable(tests.stages(mutant), tests, seconds):
        while spent() < end:
            with planted(mutant, folder / "src" / "muster" / mutant.file):
                failing = first_failure(stage, tests, folder, end - spent())
            if failing is None:
                break
            if failing in tests.passing:
                return True
            if first_failure([failing], tests, folder) is None:
                tests.passing.add(failing)
                return True
            print(f"fails without a mutant: {failing}", flush=True)
            tests.useless.append(failing)
            if "::" not in failing:  # a file that cannot even be collected
                break
    return False


def spent() -> float:
    """Seconds of the processor that tests have taken so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def affordable(stages: list[list[str]], tests: Tests, seconds: float) -> list[list[str]]:
    """The stages without the slowest tests, so that the others take so many seconds together (one at least)."""
    kept: set[str] = set()
    for test in sorted(
        (test for stage in stages for test in stage), key=lambda test: tests.seconds.get(test, 0.0)
    ):
        seconds -= tests.seconds.get(test, 0.0)
        if kept and seconds < 0:
            break
        kept.add(test)
    return [left for stage in stages if (left := [test for test in stage if test in kept])]


def first_failure(stage: list[str], tests: Tests, folder: Path, seconds: float = math.inf) -> str | None:
    """The first of some tests that fails or hangs; the name of the file where it cannot be collected."""
    files = sorted({test.partition("::")[0] for test in stage})
    known = [tests.seconds.get(test, PATIENCE) for test in stage]
    one = PATIENCE + SLOWER * max(tests.seconds.get(test, 0.0) for test in stage)
    note = folder / "running"
    note.write_text(files[0], encoding="utf-8")
    useless = [f"--deselect={test}" for test in tests.useless if test.partition("::")[0] in files]
    work = partial(tested, files, Chosen(stage, note, seconds), "-x", f"--timeout={one:.0f}", *useless)
    passed = forked(work, folder, one + sum(known)) == 0
    return None if passed else note.read_text(encoding="utf-8")


@contextmanager
def planted(mutant: Mutant, path: Path) -> Iterator[None]:
    """The mutant in place of its module. Times are put back, so that compiled modules stay valid."""
    original, times = path.read_bytes(), path.stat()
    path.write_text(mutant.source, encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


# --- the score ---------------------------------------------------------------------------------------------------


def equivalents() -> set[str]:
    """Diffs of survivors that change nothing, without the line numbers."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    return {without_numbers(entry["diff"]) for entry in listed}


def without_numbers(diff: str) -> str:
    return "\n".join(line for line in diff.strip().splitlines() if not line.startswith("@@"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--sample", type=int, default=22, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--each", type=float, default=100.0, help="seconds of tests for one mutant")
    parser.add_argument("--files", nargs="+", default=[], help="only mutants of these files")
    parser.add_argument(
        "--near", action="store_true", help="learn nothing, begin with the test files next to the module"
    )
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    sample = [mutant for package in chosen.packages for mutant in drawn(package, chosen.sample, chosen.seed)]
    sample = [mutant for mutant in sample if not chosen.files or mutant.file in chosen.files]
    counts: Counter[tuple[str, str]] = Counter()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder / "src", quiet=1)
        known = equivalents()
        tests: dict[str, Tests] = {}
        for mutant in in_turns(sample):
            if mutant.package not in tests:
                tests[mutant.package] = Near() if chosen.near else learnt(mutant.package, folder)
            if time.monotonic() > end:
                break
            start = time.monotonic()
            verdict = (
                "equivalent"
                if without_numbers(mutant.diff) in known
                else "noticed"
                if is_noticed(mutant, tests[mutant.package], folder, chosen.each)
                else "SURVIVED"
            )
            counts[mutant.package, verdict] += 1
            print(f"{verdict:10} {mutant.file}:{mutant.line} ({time.monotonic() - start:.0f} s)", flush=True)
            if verdict == "SURVIVED":
                print(mutant.diff, flush=True)
    return summed_up(counts)


def in_turns(sample: list[Mutant]) -> list[Mutant]:
    """One of each package in turn: where the time ends, all have equally many."""
    seen: Counter[str] = Counter()
    turns = []
    for mutant in sample:
        turns.append((seen[mutant.package], mutant))
        seen[mutant.package] += 1
    return [mutant for _, mutant in sorted(turns, key=lambda turn: turn[0])]


def summed_up(counts: Counter[tuple[str, str]]) -> int:
    """The score of every package and of all; the exit code is 1 where a mutant survived."""
    print("\n| package | mutants | equivalent | noticed | score |\n|---|---|---|---|---|")
    rows = sorted({package for package, _ in counts})
    total: Counter[str] = Counter()
    for package in [*rows, "all"]:
        own = total if package == "all" else Counter({word: n for (p, word), n in counts.items() if p == package})
        total.update(own if package != "all" else {})
        real = own["noticed"] + own["SURVIVED"]
        score = f"{own['noticed'] / real:.0%}" if real else "–"
        print(f"| {package} | {own.total()} | {own['equivalent']} | {own['noticed']} | {score} |")
    return int(total["SURVIVED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
