"""Partition schemes: how a data set is divided among clients."""

from muster.data.partition.base import Partition, Scheme, schemes

__all__ = ["Partition", "Scheme", "schemes"]
