"""Inspect what an experiment's clients have, or counts from elsewhere: a table, or files in folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from muster.config.experiment import Experiment, Section, load
from muster.core.errors import ConfigError
from muster.experiment.components import build_data
from muster.heterogeneity.folders import count_files
from muster.heterogeneity.inspection import Inspection, inspect
from muster.heterogeneity.tables import FORMATS, ColumnNames, Counts, read_counts
from muster.selection.base import Selector


def inspect_source(
    path: Path, settings: Sequence[str] = (), cohort: int | None = None, names: ColumnNames | None = None
) -> Inspection:
    """Inspect an experiment (.toml), a table (.csv, .parquet, .json, .npy) or a folder (CLIENT/CLASS/files).

    `names`: what the columns of a table are called.
    """
    names = names or ColumnNames()
    if names.given and path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"{path} is not a table: it has no columns", fix="leave --client, --label and --attribute out"
        )
    if path.is_dir() or path.suffix.lower() in FORMATS:
        if settings:
            raise ConfigError(f"{path} is not an experiment: it has no settings", fix="leave --set out")
        return inspect(count_files(path) if path.is_dir() else read_counts(path, names), cohort)
    if path.suffix.lower() != ".toml":
        raise ConfigError(
            f"cannot inspect {path}",
            expected=f"an experiment (.toml), a table ({', '.join(FORMATS)}) or a folder",
        )
    return inspect_experiment(load(path, settings), cohort)


def inspect_experiment(experiment: Experiment, cohort: int | None = None) -> Inspection:
    """Inspect what the experiment's clients have; cohorts are as large as its selection says."""
    data = build_data(experiment)
    return inspect(Counts.of(data), cohort or _cohort(experiment.selection, data.clients))


def _cohort(section: Selector | Section, clients: int) -> int | None:
    """What the selection says about a round's size; it need not name a method yet."""
    options = section if isinstance(section, dict) else section.get_params()
    size = options.get("clients_per_round")
    if isinstance(fraction := options.get("fraction"), float) and 0 < fraction <= 1:
        size = max(1, math.floor(fraction * clients))
    return min(size, clients) if isinstance(size, int) and size > 0 else None
