"""ASTraFL's entries: what stands beside the paper's rows."""

import pytest

from muster.papers.entries import entries


@pytest.mark.parametrize("part", ["table3", "table4", "figure4"])
def test_astrafl_has_the_literal_ceiling_and_random_selection_of_as_many(part):
    entry = entries()[f"astrafl/{part}"]
    chosen = {row: changes["selection"] for row, changes in entry.rows.items()}
    assert chosen["ASTraFL"] == {"method": "astrafl"}
    assert chosen["ASTraFL (literal ceiling)"] == {"method": "astrafl", "budget": "ceil"}
    control = chosen["Random (8 clients, as many as the ceiling)"]
    assert control == {"method": "random", "clients_per_round": 8}
    # The paper's claims are about half of the clients: the rows with more take no part.
    assert all("ceiling" not in str(claim.rows) and claim.rows for claim in entry.claims)
