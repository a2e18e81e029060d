"""The docs' table of FedDiverse's federations says what their tables of counts reach."""

from pathlib import Path

import numpy as np
import pytest

from muster.config.workloads import workload, workload_summaries
from muster.data.partition.group_skew import named_tables
from muster.heterogeneity.metrics import summary, triplets

PAGE = Path(__file__).parents[2] / "docs" / "feddiverse-data.md"
ROWS = {
    cells[0].strip("`"): cells[1:]
    for cells in (
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `feddiverse-")
    )
}


def test_every_federation_of_the_paper_is_there():
    assert set(ROWS) == {name for name in workload_summaries() if name.startswith("feddiverse-")}
    assert len(ROWS) == 7 + 1, "the paper's seven, and ours"


@pytest.mark.parametrize("name", ROWS)
def test_the_page_has_the_metrics_that_the_tables_reach(name):
    tables = named_tables(workload(name)["partition"]["table"])
    clients, *metrics, mostly = ROWS[name]
    assert int(clients) == len(tables)
    assert metrics == [f"{value:.3f}" for value in summary(tables).values()]
    assert mostly == ", ".join(map(str, np.bincount(triplets(tables).argmax(axis=1), minlength=3)))


def test_waterbirds_has_the_groups_that_the_paper_describes():
    """Three clients mostly with class imbalance, two with attribute imbalance, the rest with correlation."""
    assert ROWS["feddiverse-waterbirds"][-1] == "3, 2, 25"
