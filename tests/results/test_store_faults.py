"""A full disk, a deleted or damaged store in the middle of a run: one message, and nothing complete is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster.core.errors import MusterError, OutputError
from muster.results import checkpoint
from muster.results.store import Store, recorder
from muster.server.ledger import Ledger
from muster.server.loop import Observer
from muster.server.record import RoundRecord


class After(Observer):
    """Does something once a round is complete and saved."""

    def __init__(self, round: int, deed: Any) -> None:
        self._round, self._deed = round, deed

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        if record.round == self._round:
            self._deed()


def complete_rounds(folder: Path) -> int:
    with Store(folder) as store:
        (run,) = store.runs()
        return run.done


class FullFile:
    """A file that opens and takes no byte."""

    def __init__(self, path: Path, code: int) -> None:
        self._file, self._code = path.open("wb"), code

    def write(self, _: Any) -> int:
        raise OSError(self._code, os.strerror(self._code))

    def __enter__(self) -> FullFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_the_last_round_and_the_run_goes_on_when_there_is_space(
    tiny: Any, tmp_path: Path, monkeypatch: Any, code: int, call: str
) -> None:
    made = tiny(rounds=5)
    whole = muster.run(made, workers=0)

    def fails(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    def fill() -> None:
        match call:
            case "write":
                monkeypatch.setattr(checkpoint, "_opened", lambda path: FullFile(path, code))
            case "fsync":
                # Every checkpoint is durable from here on.
                monkeypatch.setattr(recorder, "DURABLE_SECONDS", -1.0)
                monkeypatch.setattr(os, "fsync", fails)
            case "replace":
                monkeypatch.setattr(Path, "replace", fails)

    with pytest.raises(OutputError) as caught:
        muster.run(made, workers=0, out=tmp_path, observers=[After(2, fill)])
    assert os.strerror(code) in str(caught.value)
    assert "continue with --resume" in caught.value.fix
    monkeypatch.undo()
    assert complete_rounds(tmp_path) == 2
    assert not list(tmp_path.rglob("*.tmp"))
    rest = muster.run(made, workers=0, out=tmp_path, resume=True)
    assert np.array_equal(rest.parameters, whole.parameters)
    assert rest.selections == whole.selections


def test_a_store_that_is_deleted_in_the_middle_is_one_message(tiny: Any, tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    with pytest.raises(MusterError) as caught:
        muster.run(tiny(rounds=5), workers=0, out=folder, observers=[After(2, lambda: shutil.rmtree(folder))])
    assert "was deleted, replaced or overwritten" in caught.value.problem
    assert caught.value.fix


def test_checkpoints_that_are_deleted_in_the_middle_are_written_again(tiny: Any, tmp_path: Path) -> None:
    made = tiny(rounds=5)
    checkpoints = tmp_path / "checkpoints"
    result = muster.run(made, workers=0, out=tmp_path, observers=[After(2, lambda: shutil.rmtree(checkpoints))])
    assert result.complete
    with Store(tmp_path) as store:
        (again,) = store.results()
    assert np.array_equal(again.parameters, result.parameters)


def test_a_database_that_is_damaged_in_the_middle_is_one_message(tiny: Any, tmp_path: Path) -> None:
    def damage() -> None:
        for name in ("muster.db", "muster.db-wal"):
            path = tmp_path / name
            if path.exists():
                path.write_bytes(os.urandom(max(8192, path.stat().st_size)))

    with pytest.raises(MusterError) as caught:
        muster.run(tiny(rounds=30), workers=0, out=tmp_path, observers=[After(2, damage)])
    assert "muster.db" in str(caught.value)
    with pytest.raises(MusterError, match=r"muster\.db"):
        muster.run(tiny(rounds=30), workers=0, out=tmp_path, resume=True)


SCRIPT = """
import sys, time
import muster
from muster.core.errors import MusterError
from muster.experiment import from_dict
from muster.server.loop import Observer

class Slow(Observer):
    def round_ended(self, record, ledger):
        time.sleep(0.4)

try:
    muster.run(from_dict({values}), workers=0, out={folder!r}, resume=True, observers=[Slow()])
    print("complete")
except MusterError as error:
    print("refused:", error.problem)
"""


def test_of_two_resumes_at_once_one_wins_and_the_other_says_so(tiny: Any, tmp_path: Path) -> None:
    made = tiny(rounds=8)

    class Stop(Observer):
        def wants_stop(self) -> bool:
            return True

    muster.run(made, workers=0, out=tmp_path, observers=[Stop()])
    values = {key: value for key, value in made.to_dict().items() if value not in ({}, [])}
    script = SCRIPT.format(values=repr(values), folder=str(tmp_path))
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].strip() for process in both)
    assert said[0] == "complete"
    assert said[1].startswith("refused:")
    whole = muster.run(made, workers=0)
    assert np.array_equal(muster.run(made, workers=0, out=tmp_path, resume=True).parameters, whole.parameters)
