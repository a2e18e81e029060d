"""Completion in a real bash: what Tab offers after the words typed so far."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import completion
from muster.papers.entries import entries
from muster.report.plots import KINDS

#: The shell finds `muster` where the tests' Python is, whether or not it is installed there.
COMMAND = f'#!{sys.executable}\nimport sys\nfrom muster.cli.main import main\nsys.argv[0] = "muster"\nmain()\n'
#: Press Tab at the end of a line: bash calls the function that was installed, with the words and the place.
TAB = """
source completion.sh
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_muster_completion muster
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    home = tmp_path_factory.mktemp("home")
    (home / "muster").write_text(COMMAND, encoding="utf-8")
    (home / "muster").chmod(0o755)
    source = Path(completion.__file__).parents[2]
    path = f"{home}:{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(home), "PATH": path, "PYTHONPATH": str(source)}

    def run(*command: str, **variables: str) -> str:
        done = subprocess.run(
            command,
            cwd=home,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not done.returncode, done.stderr
        return done.stdout

    # As --show-completion does, which asks which shell it was called from: tests may be called from none.
    (home / "completion.sh").write_text(run("muster", _MUSTER_COMPLETE="source_bash"), encoding="utf-8")
    return lambda words: run(bash, "--norc", "-c", TAB.format(words=words)).split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("muster re", {"reproduce", "report", "replay"}),
        ("muster data ''", {"list", "fetch", "show"}),
        ("muster run x.toml --wo", {"--workers", "--workspace"}),
        ("muster runs list --status com", {"complete"}),
        ("muster show terra", {"terraform"}),
        ("muster plot curves", {"curves", "curves-apart"}),
        ("muster reproduce terraform/table", {f"terraform/table{end}" for end in ("1", "2", "2-code", "3")}),
        # Nothing of Muster's: bash falls back on the names of files.
        ("muster run exp", set()),
    ],
)
def test_tab_offers(tab, words, offered):
    assert set(tab(words)) == offered


def test_names_that_are_offered_are_all_that_there_are():
    assert set(completion.entries_of_papers("")) == set(entries())
    assert set(completion.pictures("")) == set(KINDS)
    assert {"terraform", "simprox", "oort", "fedprox"} <= set(completion.methods(""))
