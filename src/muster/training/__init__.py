"""Local training on clients."""

from muster.training.base import Job, LocalAlgorithm, LocalTraining, algorithms

__all__ = ["Job", "LocalAlgorithm", "LocalTraining", "algorithms"]
