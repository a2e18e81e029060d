"""ASTraFL's entries: what stands beside the paper's rows."""

import pytest

from muster.papers.entries import chosen, entries
from muster.papers.planning import plan
from muster.papers.published import Number
from muster.papers.report import heading
from muster.papers.verdicts import Ours, exactly


@pytest.mark.parametrize("part", ["table3", "table4", "figure4"])
def test_astrafl_has_the_literal_ceiling_and_random_selection_of_as_many(part):
    entry = entries()[f"astrafl/{part}"]
    selections = {row: changes["selection"] for row, changes in entry.rows.items()}
    assert selections["ASTraFL"] == {"method": "astrafl"}
    assert selections["ASTraFL (literal ceiling)"] == {"method": "astrafl", "budget": "ceil"}
    control = selections["Random (8 clients, as many as the ceiling)"]
    assert control == {"method": "random", "clients_per_round": 8}
    # The paper's claims are about half of the clients: the rows with more take no part.
    assert all("ceiling" not in str(claim.rows) and claim.rows for claim in entry.claims)


def test_the_text_about_w3_and_w4_is_claimed_and_is_so_in_the_printed_table():
    entry = entries()["astrafl/table3"]
    about_cells = [claim for claim in entry.claims if claim.over == "cells"]
    assert [claim.text[:2] for claim in about_cells] == ["W3", "W3", "W4", "W4"]
    for claim in about_cells:
        cells, rows = chosen(claim.cells, entry.cells, "cell"), chosen(claim.rows, entry.rows, "row")
        column = next(value for value in entry.values if value.name == claim.value)
        sign = -1 if claim.lower else 1
        for row in rows:
            printed = {cell: entry.published.at(*entry.printed_at(cell, row, column)) for cell in cells}
            numbers = {cell: sign * number.value for cell, number in printed.items() if isinstance(number, Number)}
            assert len(numbers) == len(cells), f"only the paper's own policies: {claim.text}, {row}"
            pick = max if claim.best else min
            assert pick(numbers, key=lambda cell: numbers[cell]) == (claim.best or claim.worst)


@pytest.mark.parametrize("part", ["table3", "table4", "figure4", "figure5", "figure6"])
def test_the_heading_tells_what_astrafls_paper_leaves_open(part):
    lines = heading(plan(entries()[f"astrafl/{part}"], "small", here=lambda source: True))
    open_options = ("homogeneity", "threshold", "features", "max_clusters", "emb", "loss", "homogeneity_weight")
    ours = [line for line in lines if line.startswith("our choice")]
    assert [name for name in open_options if not any(f"selection.{name} " in line for line in ours)] == []
    assert any("Everybody trains once" in line for line in lines)


def test_that_the_number_of_clusters_changes_is_claimed():
    """Figure 6's point; which number it has in which round is an example."""
    (claim,) = entries()["astrafl/figure6"].claims
    changing = {
        "round 2": Ours({0: 2.0, 1: 3.0, 2: 2.0}),
        "round 48": Ours({0: 6.0, 1: 3.0, 2: 2.0}),
        "fewest": Ours({0: 2.0, 1: 3.0, 2: 2.0}),
        "most": Ours({0: 6.0, 1: 6.0, 2: 5.0}),
    }
    assert exactly(claim, changing) == "holds"
    assert exactly(claim, changing | {"most": changing["fewest"]}) == "does not hold"


def test_at_the_small_scale_only_network_and_local_training_are_ours():
    """Clients, samples and rounds are those of the full size; the narrow network learns within them."""
    (run,) = plan(
        entries()["astrafl/table3"], "small", cells="W1", rows="Random", seeds=1, here=lambda _: True
    ).runs
    assert run.experiment.rounds == 50
    assert run.experiment.partition["size"] == 2000
    assert run.experiment.model == {"name": "conv3", "filters": [8, 16, 32], "hidden": [64, 32]}
    assert run.experiment.training["momentum"] == 0.9, "what the scale does not change stays"
