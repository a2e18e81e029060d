"""Data sources by name."""

from muster.data.sources.base import sources

__all__ = ["sources"]
