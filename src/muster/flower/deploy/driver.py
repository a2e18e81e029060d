"""Runs an experiment on a federation with this process as the server: store, checkpoints and result are here."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from muster.config.experiment import Experiment, load
from muster.config.flower import FlowerOptions
from muster.core.errors import EngineError
from muster.core.registry import build
from muster.experiment.parts import Ingredients
from muster.experiment.runner import checked_folder, run
from muster.flower.deploy.link import Link
from muster.flower.deploy.version import check_version
from muster.flower.engine import FlowerEngine
from muster.flower.new_app import write_app
from muster.server.loop import Observer
from muster.server.result import Result

if TYPE_CHECKING:
    from muster.flower.deploy.flower_internals.driving import DrivenRun

#: Where a run's folder remembers which Flower run it was.
NOTES = "flower.json"
#: Room in an answer for records besides its vectors.
_ROOM = 2**20


@dataclass(frozen=True)
class Task:
    """An experiment as given on the command line, and where its results go."""

    config: Path
    out: Path
    settings: list[str] = field(default_factory=list)
    #: The folder of the results store; None: the one of `out`.
    store: Path | None = None
    resume: bool = False

    @property
    def experiment(self) -> Experiment:
        return load(self.config, self.settings)

    def write_app(self, folder: Path) -> Path:
        """The Flower app with this experiment."""
        text = self.config.read_text(encoding="utf-8")
        return write_app(folder / "muster_experiment", text, self.settings, self.store or self.out)


def run_on_link(
    task: Task, link: Link, observers: Sequence[Observer] = (), *, allow_list: Path | None = None
) -> Result:
    """Run an experiment on the nodes of a SuperLink: like `muster.run`, with clients elsewhere.

    A Flower run cannot be resumed: to continue, a new one of the same series is started, so that nodes find what
    their clients remember, and the old one is ended, so that they stop working for it. `allow_list` replaces that
    of the experiment.
    """
    experiment = task.experiment
    options: FlowerOptions = build(FlowerOptions, experiment.flower, "flower")
    if allow_list is not None:
        options = replace(options, allow_list=str(allow_list))
    options.check()
    notes = checked_folder(task.out) / NOTES
    with _driven(task, link, notes) as driven:
        ids = {"superlink": link.address, "run": driven.run_id, "series": driven.series_id}
        notes.write_text(json.dumps(ids))

        def make_engine(ingredients: Ingredients) -> FlowerEngine:
            driven.grid.max_reply_bytes = largest_answer(ingredients)
            driven.grid.patience = min(driven.grid.patience, options.deadline / 4)
            return FlowerEngine(driven.grid, ingredients, options)

        return run(
            experiment,
            out=task.out,
            store=task.store,
            resume=task.resume,
            observers=observers,
            make_engine=make_engine,
        )


def largest_answer(ingredients: Ingredients) -> int:
    """Bytes that an honest answer can have: the model, what the algorithm adds, signals, and room for records."""
    # The widest signal is a gradient, in double precision.
    return (3 + len(ingredients.algorithm.extra)) * 4 * _numbers(ingredients.module) + _ROOM


def _numbers(module: nn.Module) -> int:
    return sum(value.numel() for value in module.state_dict().values())


@contextmanager
def _driven(task: Task, link: Link, notes: Path) -> Iterator[DrivenRun]:
    check_version()
    from muster.flower.deploy.flower_internals.control import stop_run
    from muster.flower.deploy.flower_internals.driving import drive_run

    series = None
    if task.resume and (earlier := _read(notes)).get("superlink") == link.address:
        stop_run(link, earlier["run"])
        series = earlier["series"]
    with ExitStack() as stack:
        with tempfile.TemporaryDirectory(prefix="muster-app-") as folder:  # the SuperLink keeps the app
            driven = stack.enter_context(drive_run(link, task.write_app(Path(folder)), {}, series_id=series))
        yield driven


def _read(notes: Path) -> dict[str, Any]:
    if not notes.exists():
        return {}
    try:
        values: dict[str, Any] = json.loads(notes.read_text())
    except ValueError as error:
        raise EngineError(f"{notes} is damaged", fix="delete it; the store is what counts") from error
    return values
