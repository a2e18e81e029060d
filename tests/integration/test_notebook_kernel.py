"""Muster in a real Jupyter kernel: classes of cells in sweeps, failures, progress."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SOURCES = Path(__file__).parents[2] / "src"

#: A selector, a signal, a network and a loss that exist only in the cells of a notebook.
OWN = """
import muster, numpy as np, torch
from dataclasses import dataclass
from typing import ClassVar
from torch import nn

FACTOR = 1.0


@dataclass(frozen=True)
class Spread(muster.signals.Signal):
    name: ClassVar[str] = "spread"
    discloses: ClassVar[str] = "how much the features vary"
    draws: ClassVar[bool] = False

    def measure(self, client):
        return np.array([float(client.features.std())])


class MostVaried(muster.selection.Selector):
    def __init__(self, count):
        self.count = count

    def round(self, fed):
        replies = yield muster.selection.Ask(fed.available, (Spread(),))
        yield muster.selection.Train(replies.clients[np.argsort(-FACTOR * replies["spread"])[: self.count]])


class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 12), nn.Linear(12, classes)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x.flatten(1))))


def smooth(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


base = {
    "rounds": 2,
    "partition": {"scheme": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": Network,
    "objective": {"loss": smooth},
    "selection": {"method": "random", "clients_per_round": 3},
    "training": {"lr": 0.1, "batch_size": 16},
}
sweep = muster.Sweep("mine", base, seeds=(0, 1), cases={"random": {}, "mine": {"selection": MostVaried(3)}})
"""


class Notebook:
    """Cells that are run one after the other in one kernel."""

    def __init__(self, folder: Path) -> None:
        self.book = nbformat.v4.new_notebook()
        self.client = NotebookClient(
            self.book, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )

    def __call__(self, text: str) -> dict[str, str]:
        """What the cell showed, by kind."""
        self.book.cells.append(nbformat.v4.new_code_cell(text))
        cell = self.client.execute_cell(self.book.cells[-1], len(self.book.cells) - 1)
        shown: dict[str, str] = {}
        for output in cell.outputs:
            if output.output_type == "stream":
                shown[output.name] = shown.get(output.name, "") + output.text
            else:
                for kind, content in output.data.items():
                    shown[kind] = shown.get(kind, "") + content
        return shown


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{SOURCES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    book = Notebook(tmp_path)
    with book.client.setup_kernel():
        yield book


@pytest.mark.slow
def test_classes_of_cells_work_in_a_sweep_and_give_the_bits_of_a_single_run(notebook):
    notebook(OWN)
    shown = notebook(
        "results = muster.sweep(sweep, 'runs', jobs=2, workers=2)\n"
        "print([(result.name, result.config['seed']) for result in results])"
    )
    assert shown["stdout"].strip() == "[('random', 0), ('mine', 0), ('random', 1), ('mine', 1)]"
    assert "<progress" in shown["text/html"]
    assert "4/4 runs" in shown["text/html"]
    assert "stderr" not in shown
    alone = notebook(
        "alone = [muster.run(one, progress=False) for one in sweep.experiments()]\n"
        "print([a.parameters.tobytes() == b.parameters.tobytes() for a, b in zip(alone, results)],\n"
        "      [a.selections == b.selections for a, b in zip(alone, results)],\n"
        "      results[1].model(Network)(torch.zeros(2, 1, 8, 8)).shape)"
    )
    assert alone["stdout"].strip() == f"{[True] * 4} {[True] * 4} torch.Size([2, 10])"
    assert "text/html" not in alone


@pytest.mark.slow
def test_what_is_done_is_skipped_until_the_code_of_a_cell_changes(notebook):
    notebook(OWN)
    notebook("first = muster.sweep(sweep, 'runs')")
    again = notebook("second = muster.sweep(sweep, 'runs')")
    assert "4 runs, 4 complete" in again["text/html"]
    # The name and the options are the same; what it does is not.
    notebook("FACTOR = -1.0")
    changed = notebook(
        "third = muster.sweep(sweep, 'runs')\n"
        "print([a.selections == b.selections for a, b in zip(first, second)],\n"
        "      [a.selections == b.selections for a, b in zip(first, third)])"
    )
    assert "4 runs, 2 complete" in changed["text/html"]
    assert changed["stdout"].strip() == f"{[True] * 4} {[True, False, True, False]}"


@pytest.mark.slow
def test_failures_are_raised_with_the_line_of_the_cell_and_keep_what_is_complete(notebook):
    notebook(OWN)
    notebook(
        "class Broken(MostVaried):\n"
        "    def round(self, fed):\n"
        "        yield muster.selection.Train(fed.sample(3) + no_such_name)\n"
    )
    with pytest.raises(CellExecutionError) as raised:
        notebook(
            "cases = {'random': {}, 'broken': {'selection': Broken(3)}}\n"
            "muster.sweep(muster.Sweep('mine', base, cases=cases), 'runs')"
        )
    told = str(raised.value)
    assert "1 of 2 runs failed" in told
    assert "broken, seed 0: NameError: name 'no_such_name' is not defined" in told
    assert "yield muster.selection.Train(fed.sample(3) + no_such_name)" in told
    kept = notebook("import sys\nprint(sys.last_value.results)")
    assert "Result('random': 2 rounds" in kept["stdout"]


@pytest.mark.slow
def test_a_single_run_shows_a_bar_and_what_it_warns_of(notebook):
    notebook(OWN)
    shown = notebook("result = muster.run(sweep.experiments()[0])")
    assert 'value="2" max="2"' in shown["text/html"]
    assert "2/2" in shown["text/plain"]
    assert "accuracy" in shown["text/plain"]
    quiet = notebook("result = muster.run(sweep.experiments()[0], progress=False)")
    assert quiet == {}
