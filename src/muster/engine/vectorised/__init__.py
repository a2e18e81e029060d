"""Trains many clients of a dense model as one batched computation."""

from muster.engine.vectorised.engine import VectorisedEngine
from muster.engine.vectorised.support import why_not

__all__ = ["VectorisedEngine", "why_not"]
