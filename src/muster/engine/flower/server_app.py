"""The server app: the usual server loop with store and checkpoints, on a Flower engine.

A shim package needs one line: `from muster.engine.flower.server_app import app`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from muster.engine.flower.client_app import experiment_of
from muster.engine.flower.engine import FlowerEngine
from muster.engine.flower.options import FlowerOptions
from muster.experiment.config import Experiment
from muster.experiment.runner import Ingredients, run
from muster.registry import build

if TYPE_CHECKING:
    from muster.result import Result
    from muster.server import Observer


def run_on_grid(
    grid: Grid,
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run an experiment on the nodes behind a grid: like `muster.run`, with other clients."""
    options = build(FlowerOptions, experiment.flower, "flower")
    options.check()

    def make_engine(ingredients: Ingredients) -> FlowerEngine:
        return FlowerEngine(grid, ingredients, options)

    return run(experiment, out=out, resume=resume, observers=observers, make_engine=make_engine)


def make_server_app(
    experiment: Experiment | None = None, observers: Callable[[], Sequence[Observer]] | None = None
) -> ServerApp:
    """A Flower server app for an experiment; None: the one that the run's configuration holds.

    The run's configuration may also say where results go (`out`, an absolute path, because the app runs in the
    SuperLink's folder) and whether to `resume` a run that is there.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        out = str(context.run_config.get("out", ""))
        run_on_grid(
            grid,
            experiment or experiment_of(context.run_config),
            out=Path(out) if out else None,
            resume=bool(context.run_config.get("resume", False)),
            observers=observers() if observers else (),
        )

    return app


app = make_server_app()
