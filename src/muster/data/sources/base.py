"""Data sources: one file per data set, each a function that finds and decodes it."""

from __future__ import annotations

from muster.core.registry import Registry
from muster.data.federated import Dataset

#: A source takes its own options and `data_dir` (None: look in the usual places) and gives the data set.
sources: Registry[Dataset] = Registry("data source", "muster.data.sources", "muster.sources")
