"""Looking whether a folder can be written into: runs side by side do not get into each other's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.errors import OutputError
from muster.experiment.runner import checked_folder

LOOK_OFTEN = """
import sys
import time
from pathlib import Path
from muster.experiment.runner import checked_folder

folder, go = map(Path, sys.argv[1:])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
for _ in range(1000):
    checked_folder(folder)
"""


def test_a_folder_is_made_and_left_empty(tmp_path):
    folder = tmp_path / "new" / "deeper"
    assert checked_folder(folder) == folder
    assert list(folder.iterdir()) == []


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(OutputError, match="cannot write into"):
        checked_folder(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_what_another_process_left_is_not_touched(tmp_path):
    theirs = tmp_path / f".muster-write-test-{os.getpid() + 1}"
    theirs.write_bytes(b"theirs")
    checked_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [theirs.name]
    assert theirs.read_bytes() == b"theirs"


def test_another_process_may_look_in_the_middle(tmp_path, monkeypatch):
    """The worst moment: it writes and deletes its file between our writing and our deleting."""
    write, looked = Path.write_bytes, []

    def interrupted(path, data):
        count = write(path, data)
        if not looked:
            looked.append(path)
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1)
                checked_folder(tmp_path)
        return count

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    checked_folder(tmp_path)
    assert looked
    assert list(tmp_path.iterdir()) == []


def test_two_processes_look_at_once(tmp_path):
    folder, go = tmp_path / "shared", tmp_path / "go"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOOK_OFTEN, str(folder), str(go)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.touch()
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert list(folder.iterdir()) == []
