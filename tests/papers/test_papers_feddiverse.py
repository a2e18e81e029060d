"""How FedDiverse's tables are run: the options of its baselines, and models that fit their data at every scale."""

import pytest
import torch

from muster.models.base import models
from muster.papers.entries import SCALES, entries
from muster.papers.planning import as_published, plan
from muster.papers.report import heading

ENTRIES = {
    name: entry for name, entry in entries().items() if entry.paper == "feddiverse" and entry.kind == "runs"
}
SHAPES = {"spawrious": 224, "waterbirds": 224, "cmnist": 28}


@pytest.mark.parametrize("row", list(ENTRIES["feddiverse/table1"].rows))
def test_all_rows_of_table_1_have_the_same_server_step(row):
    aggregation = as_published(ENTRIES["feddiverse/table1"], "CMNIST GSC", row)["aggregation"]
    assert (aggregation["server_lr"], aggregation["momentum"], aggregation["weights"]) == (0.1, 0.95, "equal")


def test_power_of_choice_looks_at_all_clients():
    entry = ENTRIES["feddiverse/table1"]
    for cell in entry.cells:
        assert as_published(entry, cell, "pow-d")["selection"]["d"] == "all"


def test_known_matrices_are_pretrained_with_fedavg_too():
    entry = ENTRIES["feddiverse/table4"]
    rows = {row: as_published(entry, "FedAvgM", row)["selection"] for row in entry.rows}
    assert {row: section.get("pretraining_rounds", 1) for row, section in rows.items()} == {
        row: int(row.split()[0]) for row in rows
    }
    assert {section["method"] for section in rows.values()} == {"feddiverse", "feddiverse-qp"}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("here", [(), ("cmnist",), tuple(SHAPES)])
@pytest.mark.parametrize("name", ENTRIES)
def test_models_fit_what_they_run_on(name, here, scale):
    """Also where nothing but generated pictures is here."""
    planned = plan(ENTRIES[name], scale, here=lambda source: source in (*here, "spurious-shapes"))
    kinds = {}
    for run in planned.runs:
        data = dict(run.experiment.data)
        side = SHAPES.get(data["source"], data.get("size", 28))
        kinds[str(run.experiment.model), side] = (run.experiment.model, side)
    assert kinds
    for section, side in kinds.values():
        options = {key: value for key, value in section.items() if key != "name"}
        with torch.device("meta"):
            models.get(section["name"])((3, side, side), 2, **options)


def test_at_the_small_scale_the_network_sees_where_things_are():
    """Pooled to one cell it learns the colour alone, and the worst group stays at 0 %."""
    for run in plan(ENTRIES["feddiverse/table1"], "small", here=lambda _: True).runs:
        assert run.experiment.model["grid"] > 1


def test_what_the_paper_states_of_spawrious_is_not_called_our_default():
    for cell in (cell for cell in ENTRIES["feddiverse/table1"].cells if cell.startswith("Spawrious")):
        made = plan(ENTRIES["feddiverse/table1"], "paper", cells=cell, rows="FedDiverse", here=lambda source: True)
        defaults = next(line for line in heading(made) if line.startswith("left at our defaults"))
        assert not [name for name in ("breeds", "backgrounds", "test_fraction") if f"data.{name}" in defaults]


def test_fednovas_weights_are_a_choice_between_two_statements():
    made = plan(ENTRIES["feddiverse/table1"], "paper", cells="CMNIST GSC", here=lambda source: True)
    assert any(
        "section V.C weights by samples): aggregation.weights equal (FedNova)" in line for line in heading(made)
    )
