"""Running experiments: one by one, in sweeps, several side by side."""

from muster.config.experiment import Experiment, from_dict, load
from muster.experiment.jobs import run_experiments
from muster.experiment.parts import build_parts
from muster.experiment.repetition import replay
from muster.experiment.runner import run
from muster.experiment.sweep import Sweep, load_sweep
from muster.results.store import Store

__all__ = [
    "Experiment",
    "Store",
    "Sweep",
    "build_parts",
    "from_dict",
    "load",
    "load_sweep",
    "replay",
    "run",
    "run_experiments",
]
