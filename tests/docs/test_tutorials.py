"""The tutorials run from top to bottom in a kernel of their own, and show what they promise.

As executed notebooks they are kept in build/notebooks (MUSTER_NOTEBOOKS names another folder), and in the cache
from which the site takes their outputs: so `make docs` runs each of them once.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
NOTEBOOKS = Path(os.environ.get("MUSTER_NOTEBOOKS", "build/notebooks"))
TUTORIALS = sorted(path for path in FOLDER.glob("*.md") if path.stem != "index")

#: What must be seen in a tutorial's outputs, by its name: its point, in words that only a right run gives.
SHOWN = {
    "own-selector": ["36/36 runs", "36 runs, 36 complete", "mine", "power-of-choice"],
    "flower": ["need the signal 'loss'", "the disk is full", "terraform"],
    "own-data": ["'mean area'", "12 clients, 2 classes", "label_histogram", "ε = 0.05"],
    "reviewer": ["not judged", "the same parameters: True", "differences: []", "round 12: the metrics"],
}


def read(path: Path):
    return jupytext.read(path, fmt="md:myst")


def keep_for_the_site(book, path: Path) -> None:
    """Puts an executed tutorial where the site's build looks for it."""
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    cache = get_cache(runpy.run_path(str(ROOT / "docs" / "conf.py"))["nb_execution_cache_path"])
    cache.cache_notebook_bundle(CacheBundleIn(book, str(path)), check_validity=False, overwrite=True)
    assert cache.match_cache_notebook(read(path))


def test_every_tutorial_is_listed_and_has_something_to_show():
    assert {path.stem for path in TUTORIALS} == set(SHOWN)
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [path.stem for path in TUTORIALS if f"({path.name})" not in index] == []


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_cells_are_formatted_and_say_no_numbers_in_advance(path):
    """What a run gives stands in its output; prose that repeats it would be out of date one day."""
    book = read(path)
    assert [cell.source for cell in book.cells if cell.cell_type == "code" and not cell.source.strip()] == []
    prose = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert re.findall(r"\d[\d.]* ?%", prose) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path, monkeypatch):
    if path.stem == "flower":
        pytest.importorskip("flwr")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    book = read(path)
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=600, kernel_name="python3", record_timing=False, resources=folder).execute()
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    jupytext.write(book, NOTEBOOKS / f"{path.stem}.ipynb")
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "\n".join(
        output.text if output.output_type == "stream" else "\n".join(map(str, output.data.values()))
        for output in outputs
    )
    assert [words for words in SHOWN[path.stem] if words not in text] == []
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert pictures >= 2
    assert "Traceback" not in text
    # Nothing goes to standard error that a reader would take for a mistake.
    assert [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"] == []
    keep_for_the_site(book, path)
