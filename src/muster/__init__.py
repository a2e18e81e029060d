"""Muster decides who trains next, and how much each answer counts, in federated learning on heterogeneous data."""

from typing import TYPE_CHECKING

from muster._version import __version__
from muster.core.errors import MusterError
from muster.core.modules import imported_when_used

__all__ = [
    "Experiment",
    "MusterError",
    "Result",
    "Server",
    "Sweep",
    "__version__",
    "compare",
    "load",
    "run",
    "sweep",
]

if TYPE_CHECKING:
    from muster import aggregation as aggregation
    from muster import data as data
    from muster import experiment as experiment
    from muster import heterogeneity as heterogeneity
    from muster import models as models
    from muster import selection as selection
    from muster import server as server
    from muster import signals as signals
    from muster import training as training
    from muster.config.experiment import Experiment, load
    from muster.console.watched import run, sweep
    from muster.experiment.sweep import Sweep
    from muster.report.compare import compare
    from muster.server.loop import Server
    from muster.server.result import Result
else:
    # Names are looked up when they are used: `import muster` alone does not load PyTorch.
    __getattr__, __dir__ = imported_when_used(
        __name__,
        Experiment="muster.config.experiment",
        Result="muster.server.result",
        Server="muster.server.loop",
        Sweep="muster.experiment.sweep",
        compare="muster.report.compare",
        load="muster.config.experiment",
        run="muster.console.watched",
        sweep="muster.console.watched",
    )
