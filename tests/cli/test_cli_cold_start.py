"""What costs nothing to start: `import muster`, help, version and completion load no numerical library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Top-level packages that a command may load only when it does something.
HEAVY = {"flwr", "matplotlib", "numpy", "pandas", "pyarrow", "pydantic", "scipy", "sklearn", "torch"}
#: The command line brings about 350 modules; any package of `HEAVY` would at least double that.
MAX_MODULES = 500
#: Seconds of processor time, user and system.
MAX_SECONDS = 0.35

#: Runs `muster ARGUMENTS` and writes what it cost to the file that COST names.
MAIN = """
import atexit, os, resource, sys

def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(os.environ["COST"], "w") as file:
        print(used.ru_utime + used.ru_stime, *sys.modules, sep="\\n", file=file)

atexit.register(tell)
sys.argv[0] = "muster"
from muster.cli.main import main
main()
"""
#: The same for all commands in one process: the first that loads something heavy is named.
ALL_HELP = f"""
import sys
import typer
from typer.testing import CliRunner
from muster.cli.app import app

def paths(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {{}}).items():
        yield from paths(inner, (*path, name))

for path in paths(typer.main.get_command(app)):
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output, (path, result.output)
    loaded = set(sys.modules) & {HEAVY!r}
    assert not loaded, f"`muster {{' '.join(path)}} --help` loads {{loaded}}"
    print(*path)
"""

COMPLETION = {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": "muster ru", "COMP_CWORD": "1"}
COMMANDS = [
    pytest.param(["--help"], {}, "quickstart", id="help"),
    pytest.param(["run", "--help"], {}, "--workers", id="help of a command"),
    pytest.param(["--version"], {}, ".", id="version"),
    pytest.param([], COMPLETION, "run\nruns", id="completion"),
]


def _cost(arguments, environment, folder):
    """What it printed, how much processor time it took, and what it imported."""
    file = folder / "cost.txt"
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env=os.environ | environment | {"COST": str(file)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, *modules = file.read_text().split()
    return done.stdout, float(seconds), set(modules)


@pytest.mark.parametrize(("arguments", "environment", "shown"), COMMANDS)
def test_the_command_line_starts_without_numerical_libraries(arguments, environment, shown, tmp_path):
    printed, _, modules = _cost(arguments, environment, tmp_path)
    assert shown in printed
    assert not modules & HEAVY
    assert len(modules) < MAX_MODULES


def test_importing_the_package_loads_no_numerical_library():
    code = f"import sys, muster; print(muster.__version__, *set(sys.modules) & {HEAVY!r})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert len(printed.split()) == 1


def test_no_help_page_loads_a_numerical_library():
    done = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"run", "deploy run", "data fetch", "node"} <= set(done.stdout.split("\n"))


@pytest.mark.bench
@pytest.mark.parametrize(("arguments", "environment", "shown"), COMMANDS)
def test_the_command_line_starts_quickly(arguments, environment, shown, tmp_path):
    # The least of three: the first start compiles to byte code and reads from disk.
    assert min(_cost(arguments, environment, tmp_path)[1] for _ in range(3)) <= MAX_SECONDS
