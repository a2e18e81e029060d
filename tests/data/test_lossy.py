"""Copies of CIFAR whose pictures are JPEG files are told from exact ones."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from muster.data.lossy import lossy
from muster.papers.entries import entry
from muster.papers.planning import plan
from muster.papers.report import heading


def write(folder, kind: str) -> None:
    """Four pictures in the hub's layout."""
    folder.mkdir(parents=True)
    pictures = []
    for number in range(4):
        content = io.BytesIO()
        Image.fromarray(np.full((32, 32, 3), 60 * number, np.uint8)).save(content, kind)
        pictures.append({"bytes": content.getvalue()})
    for split in ("train", "test"):
        pq.write_table(pa.table({"img": pictures, "label": [0, 1, 2, 3]}), folder / f"{split}-0.parquet")


@pytest.mark.parametrize(("kind", "expected"), [("JPEG", True), ("PNG", False)])
def test_pictures_that_lost_something_are_told(tmp_path, monkeypatch, kind, expected):
    write(tmp_path / "cifar10", kind)
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    assert lossy("cifar10") is expected
    assert not lossy("cifar100"), "which is not there"
    lines = heading(plan(entry("astrafl/table1"), "small"))
    assert expected == any("cifar10 are JPEG files here" in line for line in lines)


def test_data_sets_that_are_jpeg_files_themselves_lost_nothing_here():
    assert not lossy("pacs")
    assert not lossy("digits")
