"""Experiments: their description and how they are run."""

from muster.experiment.config import Experiment, from_dict, load
from muster.experiment.runner import build_parts, run

__all__ = ["Experiment", "build_parts", "from_dict", "load", "run"]
