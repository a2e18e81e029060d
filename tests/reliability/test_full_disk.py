"""A disk that is really full: one message, the last round is intact, and the run goes on when there is space."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster.core.errors import OutputError
from muster.results.store import Store
from muster.server.ledger import Ledger
from muster.server.loop import Observer
from muster.server.record import RoundRecord


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Fill(Observer):
    """Takes all space there is, after the second round."""

    def __init__(self, filler: Path, left: int) -> None:
        self._filler, self._left = filler, left

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        if record.round != 2:
            return
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - self._left))


@pytest.mark.parametrize("left", [0, 8192, 40_960, 81_920])
def test_a_full_file_system_ends_the_run_with_a_message_and_space_lets_it_go_on(
    tiny: Any, small_disk: Path, left: int
) -> None:
    """With some bytes left it is another file that does not fit: the checkpoint, the database's log."""
    made, out = tiny(rounds=40), small_disk / "out"
    with pytest.raises(OutputError, match="No space left on device") as caught:
        muster.run(made, workers=0, out=out, observers=[Fill(small_disk / "filler", left)])
    assert "--resume" in caught.value.fix
    (small_disk / "filler").unlink()
    with Store(out) as store:
        (run,) = store.runs()
        assert run.done >= 2
        assert [record.round for record in store.result(run).records] == list(range(1, run.done + 1))
    rest = muster.run(made, workers=0, out=out, resume=True)
    whole = muster.run(made, workers=0)
    assert np.array_equal(rest.parameters, whole.parameters)
    assert rest.selections == whole.selections


SCRIPT = """
import resource, signal, sys
import muster
from muster.core.errors import MusterError
from muster.experiment import load

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    muster.run(load(sys.argv[1]), workers=0, out=sys.argv[2])
except MusterError as error:
    print(error.exit_code, error.problem)
"""


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_one_message(tiny: Any, tmp_path: Path) -> None:
    """As a quota has it: the database's log may not grow any more."""
    from muster.config.toml import to_toml

    assert resource.RLIMIT_FSIZE
    made, out = tiny(rounds=40), tmp_path / "out"
    config = tmp_path / "experiment.toml"
    config.write_text(to_toml({key: value for key, value in made.to_dict().items() if value not in ({}, [])}))
    command = [sys.executable, "-c", SCRIPT, str(config), str(out), str(200_000)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("5 ", "8 ")), done.stdout
    assert "Traceback" not in done.stderr
    rest = muster.run(made, workers=0, out=out, resume=True)
    assert np.array_equal(rest.parameters, muster.run(made, workers=0).parameters)
