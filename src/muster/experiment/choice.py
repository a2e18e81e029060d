"""Results by the words of a command line: sweeps, names and fingerprints of a store, or folders of plain files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from muster.config.experiment import apply_setting
from muster.core.errors import ConfigError, nearest
from muster.results.cases import flat
from muster.results.files import holds_result, load_result
from muster.results.store import DATABASE, Run, Store, workspace
from muster.results.store.runs import fits
from muster.server.result import Result

#: A shorter prefix of a fingerprint is more likely a misspelt name.
_SHORTEST_PREFIX = 4


def chosen_results(
    words: Sequence[str] = (), where: Iterable[str] = (), *, folder: Path | None = None
) -> list[Result]:
    """The results that any of the words names and that fit all conditions; without words all of the workspace.

    A word is a folder with plain result files (or of such folders, or with a store), a sweep, the name of runs, or
    the beginning of a fingerprint. Conditions are `section.key=value`; `folder` is the workspace. Models are not
    read from a store. Unfinished runs are among the results, runs without a round are not.
    """
    wanted = conditions(where)
    found: dict[str, Result] = {}
    for word in words:
        found |= _from_folder(Path(word)) or _from_store(word, folder)
    if not words:
        with Store(workspace(folder), create=False) as store:
            found = _read(store, store.runs(where=wanted))
    results = [result for result in found.values() if fits(result.config, wanted)]
    if not results:
        asked = " ".join([*words, *where])
        raise ConfigError(
            f"no run matches: {asked}" if asked else "there are no runs yet", fix="see `muster runs`"
        )
    return results


def runs_without_rounds(
    words: Sequence[str] = (), where: Iterable[str] = (), *, folder: Path | None = None
) -> list[Run]:
    """The runs of the same choice that `chosen_results` leaves out: planned only, or failed at once."""
    wanted = conditions(where)
    found: list[Run] = []
    for word in words or ("",):
        whole = not word or (Path(word) / DATABASE).exists()
        place = Path(word) if word and whole else workspace(folder)
        if (place / DATABASE).exists():
            with Store(place, create=False) as store:
                runs = store.runs() if whole else _named(store, word)
            found += [run for run in runs if not run.done and fits(run.config, wanted)]
    return found


def conditions(settings: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` settings as dotted keys and values."""
    values: dict[str, Any] = {}
    for setting in settings:
        apply_setting(values, setting)
    return flat(values)


def _from_folder(path: Path) -> dict[str, Result]:
    """By path, or by fingerprint where the folder has a store; nothing where it has neither, or is none."""
    if (path / DATABASE).exists():
        with Store(path, create=False) as store:
            return _read(store, store.runs())
    return {str(place.resolve()): load_result(place) for place in _places(path)}


def _places(path: Path) -> Iterator[Path]:
    if holds_result(path):
        yield path
    elif path.is_dir():
        yield from (place for place in sorted(path.iterdir()) if holds_result(place))


def _from_store(word: str, folder: Path | None) -> dict[str, Result]:
    with Store(workspace(folder), create=False) as store:
        if runs := _named(store, word):
            return _read(store, runs)
        known = [*store.sweep_names(), *{run.name for run in store.runs()}]
        problem = f"'{word}' is neither a folder with results nor a sweep or run in {store.path}"
        raise ConfigError(problem, expected=nearest(word, known))


def _named(store: Store, word: str) -> list[Run]:
    runs = store.runs(sweep=word) or store.runs(name=word)
    if not runs and len(word) >= _SHORTEST_PREFIX:
        runs = store.runs(fingerprint=word)
    return runs


def _read(store: Store, runs: Sequence[Run]) -> dict[str, Result]:
    return {run.fingerprint: store.result(run, parameters=False) for run in runs if run.done}
