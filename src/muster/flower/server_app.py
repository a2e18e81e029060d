"""The server app: the usual server loop with store and checkpoints, on a Flower engine.

A shim package needs one line: `from muster.flower.server_app import app`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from muster.config.experiment import Experiment
from muster.config.flower import FlowerOptions
from muster.console.output import err
from muster.console.progress import LineProgress
from muster.core.errors import ConfigError
from muster.core.registry import build
from muster.data.own import without_clients
from muster.experiment.parts import Ingredients
from muster.experiment.runner import run
from muster.flower.client_app import experiment_of
from muster.flower.engine import FlowerEngine

if TYPE_CHECKING:
    from muster.data.federated import Samples
    from muster.results.store import Store
    from muster.server.loop import Observer
    from muster.server.result import Result


def run_on_grid(
    grid: Grid,
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    store: Store | Path | str | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    test_data: Samples | None = None,
) -> Result:
    """Run an experiment on the nodes behind a grid: like `muster.run`, with other clients.

    `test_data`: what the server evaluates on, where clients bring their own data.
    """
    options: FlowerOptions = build(FlowerOptions, experiment.flower, "flower")
    options.check()

    def make_engine(ingredients: Ingredients) -> FlowerEngine:
        return FlowerEngine(grid, _with_test_data(ingredients, test_data), options)

    return run(experiment, out=out, store=store, resume=resume, observers=observers, make_engine=make_engine)


def _with_test_data(ingredients: Ingredients, test_data: Samples | None) -> Ingredients:
    if test_data is None:
        return ingredients
    if ingredients.data.clients:
        raise ConfigError(
            "the experiment's data set has test data of its own",
            fix='leave test_data out, or use data.source = "own"',
        )
    dataset = replace(ingredients.data.dataset, test=test_data)
    return replace(ingredients, data=without_clients(dataset))


def make_server_app(experiment: Experiment | None = None, test_data: Samples | None = None) -> ServerApp:
    """A Flower server app for an experiment; None: the one that the run's configuration holds.

    The run's configuration may also name the folder of a results `store` (an absolute path, because the app runs
    wherever the SuperLink does), and say whether to `resume` a run that is there.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        mine = experiment or experiment_of(context.run_config)
        run_on_grid(
            grid,
            mine,
            store=_store(context.run_config),
            resume=bool(context.run_config.get("resume", False)),
            observers=[LineProgress(err, mine.title)],
            test_data=test_data,
        )

    return app


def _store(run_config: dict[str, Any]) -> Path | None:
    text = str(run_config.get("store", ""))
    if text and not Path(text).is_absolute():
        raise ConfigError(
            f"the run's store '{text}' is not an absolute path",
            expected="a folder on the server's machine, from the root",
        )
    return Path(text) if text else None


app = make_server_app()
