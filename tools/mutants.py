"""Changes single places of the source at random, one at a time, and looks whether the package's tests notice.

    python tools/mutants.py                              # 20 mutants of each of five packages, one hour at most
    python tools/mutants.py --sample 50 --minutes 120
    python tools/mutants.py --packages privacy --seed 1

The changes are those of Cosmic Ray (`pip install cosmic-ray`). Places are drawn with the seed, then one change of
each. Tests run in the order "those of the module, then those of its package", and stop at the first failure.
Survivors are printed as a diff; `tools/mutants.toml` lists those that change nothing, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import difflib
import itertools
import os
import resource
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sklearn.cluster  # noqa: F401  imported once, here, instead of in every process that runs tests
import torch  # noqa: F401
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "muster"
PACKAGES = ("selection", "aggregation", "updates", "server", "privacy")
EQUIVALENT = ROOT / "tools" / "mutants.toml"
#: Processor seconds that a mutant's tests may take: a mutant that loops forever counts as noticed.
PATIENCE = 240
#: Operators without options; the others need names of variables.
OPERATORS = {name: get_operator(name)() for name in operator_names() if not get_operator(name).arguments()}


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
    changes: list[tuple[str, int]]


def places(file: Path) -> list[Place]:
    counts: Counter[str] = Counter()
    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for node in ast_nodes(get_ast(file.read_text(encoding="utf-8"))):
        for name, operator in OPERATORS.items():
            for start, _ in operator.mutation_positions(node):
                found[start].append((name, counts[name]))
                counts[name] += 1
    return [Place(file, line, changes) for (line, _), changes in sorted(found.items())]


def changed(place: Place, rng: np.random.Generator) -> Mutant | None:
    """One random change of a place; None where it changes only annotations."""
    before = place.file.read_text(encoding="utf-8")
    name, occurrence = place.changes[rng.integers(len(place.changes))]
    after = mutate_code(before, OPERATORS[name], occurrence)
    if after is None or meaning(after) == meaning(before):
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


def drawn(package: str, sample: int, seed: int) -> list[Mutant]:
    """A random sample of a package's mutants, the same for the same seed and source."""
    rng = np.random.default_rng([seed, PACKAGES.index(package)])
    files = [path for path in sorted((SOURCE / package).rglob("*.py")) if path.name != "__init__.py"]
    every = [place for file in files for place in places(file)]
    made = (changed(every[number], rng) for number in rng.permutation(len(every)))
    return list(itertools.islice((mutant for mutant in made if mutant is not None), sample))


def stages(mutant: Mutant) -> list[list[str]]:
    """The test files that carry the module's name, if there are any, and then all of the package."""
    tests = ROOT / "tests" / mutant.package
    named = sorted(tests.glob(f"test_*{Path(mutant.file).stem.strip('_')}*.py"))
    return [[str(path) for path in named], [str(tests)]] if named else [[str(tests)]]


def is_noticed(mutant: Mutant, folder: Path) -> bool:
    with planted(mutant, folder / "src" / "muster" / mutant.file):
        return any(outcome(tests, folder) != 0 for tests in stages(mutant))


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


def outcome(tests: list[str], folder: Path) -> int:
    """0 where all tests pass, in a fork of this process, which has imported all but the mutant already."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(ROOT)
        sys.path.insert(0, str(folder / "src"))
        os.environ["PYTHONPATH"] = str(folder / "src")
        os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])))
    return os.waitpid(child, 0)[1]


def equivalents() -> set[str]:
    """Diffs of survivors that change nothing."""
    return {entry["diff"].strip() for entry in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--sample", type=int, default=20, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    samples = [drawn(package, chosen.sample, chosen.seed) for package in chosen.packages]
    counts: Counter[tuple[str, str]] = Counter()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder / "src", quiet=1)
        for sample in samples:
            if outcome(stages(sample[0])[0], folder) != 0:
                raise SystemExit(f"the tests of {sample[0].file} fail without a mutant")
        # One of each package in turn: where the time ends, all have equally many.
        for mutant in (one for turn in zip(*samples, strict=False) for one in turn):
            if time.monotonic() > end:
                break
            verdict = judged(mutant, folder)
            counts[mutant.package, verdict] += 1
            print(f"{verdict:10} {mutant.file}:{mutant.line}", flush=True)
            if verdict == "SURVIVED":
                print(mutant.diff, flush=True)
    return summed_up(counts)


def judged(mutant: Mutant, folder: Path) -> str:
    if mutant.diff.strip() in equivalents():
        return "equivalent"
    return "noticed" if is_noticed(mutant, folder) else "SURVIVED"


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
