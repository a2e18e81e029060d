"""A run in a notebook: the page's own view, in a frame, served by a process beside the notebook's.

A process and not a thread: a store that the notebook is writing at the same time keeps its claims to itself.
"""

from __future__ import annotations

import atexit
import html
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from muster.core.arrays import State
from muster.core.errors import ConfigError, OutputError
from muster.results.store import DATABASE, Store
from muster.results.store.stops import is_fingerprint
from muster.server.result import Result

#: Of results that were made by hand.
_UNKNOWN = "0" * 16
#: Folder → the process that serves it, and its address.
_servers: dict[Path, tuple[subprocess.Popen[str], str]] = {}
#: Fingerprint, rounds, whether complete, and name of a result → the folder with its store.
_folders: dict[tuple[str, int, bool, str], Path] = {}


@dataclass(frozen=True)
class Frame:
    """What a notebook shows: the page in a frame."""

    address: str
    height: int = 640

    def _repr_html_(self) -> str:
        source = html.escape(self.address, quote=True)
        return (
            f'<iframe src="{source}" width="100%" height="{self.height}" title="Muster" '
            'style="border:1px solid #8888;border-radius:6px"></iframe>'
        )


def embed(shown: Result | Path | str, *, height: int = 640) -> Frame:
    """The page of a result, or of a workspace by its folder; it ends with the notebook."""
    if isinstance(shown, Result):
        if not shown.records:
            raise ConfigError("the result has no round to show", fix="run it first")
        own = shown.provenance.fingerprint
        fingerprint = own if is_fingerprint(own) else _UNKNOWN
        return Frame(f"{served(_folder_of(shown, fingerprint))}#/run/{fingerprint}", height)
    folder = Path(shown)
    if not (folder / DATABASE).exists():
        raise ConfigError(f"there is no store in {folder}", expected="a result, or the folder of a workspace")
    return Frame(served(folder), height)


def served(folder: Path) -> str:
    """The address of a page on a folder; started if need be."""
    folder = folder.resolve()
    known = _servers.get(folder)
    if known is None or known[0].poll() is not None:
        command = [sys.executable, "-m", "muster.cli.main", "ui", "--workspace", str(folder), "--embeddable"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        atexit.register(process.kill)
        address = (process.stdout.readline() if process.stdout else "").strip()
        if "token=" not in address:
            process.kill()
            raise OutputError("the page could not be started", fix="try `muster ui` in a terminal")
        _servers[folder] = process, address
    return _servers[folder][1]


def _folder_of(result: Result, fingerprint: str) -> Path:
    """Where a result is stored, once however often it is shown. Results made by hand cannot be told apart."""
    if fingerprint == _UNKNOWN:
        return _stored(result, fingerprint)
    key = fingerprint, len(result.records), result.complete, result.name
    if key not in _folders:
        _folders[key] = _stored(result, fingerprint)
    return _folders[key]


def _stored(result: Result, fingerprint: str) -> Path:
    """A store with this result alone, in a folder that goes with the notebook."""
    holder = tempfile.TemporaryDirectory(prefix="muster-ui-")
    atexit.register(holder.cleanup)
    folder = Path(holder.name)
    rounds = int(result.config.get("rounds", 0)) or len(result.records)
    description = {
        "name": result.name or "run",
        "seed": int(result.config.get("seed", 0)),
        "rounds": rounds,
        "config": json.loads(json.dumps(result.config, default=str)),
    }

    def state() -> State:
        return {
            "parameters": result.parameters,
            "spec": result.spec.state_dict(),
            "history": result.history.state_dict(),
            "privacy": result.ledger.privacy.state_dict(),
        }

    with Store(folder) as store, store.claim(fingerprint, description, every=len(result.records)) as recorder:
        books = zip(result.records, result.ledger.rounds, result.ledger.disclosed, strict=True)
        for number, (record, costs, disclosed) in enumerate(books, start=1):
            last = number == len(result.records)
            stage = ("complete" if result.complete else "stopped") if last else "running"
            recorder.round_ended(record, costs, disclosed, state, stage)  # type: ignore[arg-type]
    return folder
