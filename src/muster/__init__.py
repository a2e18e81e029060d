"""Muster decides who trains next, and how much each answer counts, in federated learning on heterogeneous data."""

from muster._version import __version__
from muster.errors import MusterError
from muster.experiment import Experiment, load, run
from muster.result import Result
from muster.server import Server

__all__ = ["Experiment", "MusterError", "Result", "Server", "__version__", "load", "run"]
