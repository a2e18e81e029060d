"""Every example on every page runs, page by page in an empty folder, or says why it cannot (tools/doc_blocks.py).

Only the size is cut: two rounds, one seed, no worker processes. Everything else is as the page has it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import click
import cloudpickle
import pytest
import typer
from typer.testing import CliRunner

from muster.cli.app import app
from muster.results.store import DATABASE, Store

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("doc_blocks", ROOT / "tools" / "doc_blocks.py")
doc_blocks = importlib.util.module_from_spec(_SPEC)
sys.modules["doc_blocks"] = doc_blocks
_SPEC.loader.exec_module(doc_blocks)

PAGES = doc_blocks.pages()
WITH_EXAMPLES = [page for page in PAGES if any(example.is_run for example in doc_blocks.examples(page))]
FINGERPRINT = re.compile(r"[0-9a-f]{8}")
#: What only runs with the extra `flower`, as tests/flower does.
OF_FLOWER = re.compile(r"^muster flower |^from flwr|^from muster\.flower", re.MULTILINE)
HAS_FLOWER = importlib.util.find_spec("flwr") is not None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def in_small(words: list[str]) -> list[str]:
    """A command with less to do."""
    command, *given = words
    said = " ".join(given)
    more = []
    if command in ("run", "sweep") and "rounds" not in said:
        more += ["--set", "rounds=2"]
    if command == "run" and "--workers" not in given:
        more += ["--workers", "0"]
    if command == "sweep" and "--seed" not in given:
        more += ["--seed", "0"]
    if command == "quickstart":
        more += ["--rounds", "2"]
    return [command, *given, *more]


def with_real_runs(words: list[str]) -> list[str]:
    """Fingerprints that a page shows stand for that of the first run there is."""
    if not (Path("runs") / DATABASE).exists():
        return words
    with Store("runs") as store:
        known = [run.fingerprint[:8] for run in store.runs() if run.done]
    return [known[0] if FINGERPRINT.fullmatch(word) and known else word for word in words]


def parsed(words: list[str]) -> None:
    """Refuse a command that does not exist, or has an option that does not; run nothing."""
    command: click.Command = typer.main.get_command(app)
    context = None
    while isinstance(command, click.Group):
        context = command.make_context("muster", list(words), parent=context, resilient_parsing=False)
        _, command, words = command.resolve_command(context, [*context.protected_args, *context.args])
        assert command is not None
        if isinstance(command, click.Group) and not words:
            return
    command.make_context("muster", list(words), parent=context)


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a machine that has other things to do
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_examples_run(page, tmp_path, monkeypatch):
    for folder in ("examples", "studies"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_DATA", raising=False)
    monkeypatch.delenv("MUSTER_WORKSPACE", raising=False)
    for example in doc_blocks.examples(page):
        if example.language == "sh":
            for words, why in example.commands():
                if not why and runs_here(" ".join(words)):
                    run_command(with_real_runs(in_small(words[1:])))
        elif example.is_run and runs_here(example.text):
            # Its classes go to workers and runs by value, as those of a notebook do.
            module = ModuleType("example")
            monkeypatch.setitem(sys.modules, "example", module)
            cloudpickle.register_pickle_by_value(module)
            exec(compile(example.text, f"{page}:{example.line}", "exec", dont_inherit=True), vars(module))


def runs_here(text: str) -> bool:
    return HAS_FLOWER or not OF_FLOWER.search(text)


def run_command(words: list[str]) -> None:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, f"muster {' '.join(words)}\n{result.output}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist_and_have_their_options(page):
    for example in doc_blocks.examples(page):
        if example.language == "sh":
            for words, _ in example.commands():
                parsed(words[1:])
                missing = [word for word in words if word.startswith(("examples/", "studies/"))]
                assert [word for word in missing if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_command_hides_in_a_block_that_nobody_runs(page):
    assert doc_blocks.hidden_commands(page) == []


def test_most_examples_are_run():
    every = [example for page in PAGES for example in doc_blocks.examples(page)]
    python = [example for example in every if example.language == "python"]
    assert sum(example.is_run for example in python) / len(python) >= 0.8
    assert all(why for example in every for why in example.not_run.values())
