"""The papers' tables and figures: published numbers as printed, entries that cover them, plans, stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.errors import ConfigError, DataError
from muster.experiment.components import build_selector
from muster.papers.entries import SCALES, chosen, entries, entry, fits
from muster.papers.planning import Plan, as_published, plan
from muster.papers.published import PAPERS, Number, paper
from muster.papers.report import heading
from muster.papers.settings import differences_told
from muster.papers.stand_ins import ALWAYS_HERE, assigned, is_here, on_data, wanted_data

WANTED = {
    "terraform": ["table1", "table2", "table3", "figure2", "figure3", "figure4"],
    "astrafl": ["table1", "table3", "table4", "figure3", "figure4", "figure5", "figure6"],
    "probing": [f"figure{number}" for number in range(1, 15)],
    "feddiverse": ["table1", "table2", "table3", "table4", "figure3"],
    "simprox": ["figure2", "figure3", "figure4", "figure5", "table2", "table3", "table4", "lambda"],
}
IDS = [f"{name}/{part}" for name, parts in WANTED.items() for part in parts]


def everything(source: str) -> bool:
    return True


def only_what_ships(source: str) -> bool:
    return source in ALWAYS_HERE


def differing(made: Plan) -> list[str]:
    """The differences without who decided how it would have been."""
    lines = differences_told([(run, run.differences) for run in made.runs])
    return [line.partition(": ")[2] for line in lines]


def numbers(name: str, part: str, row: str) -> list[float]:
    return [cell.value for cell in paper(name).parts[part].rows[row] if isinstance(cell, Number)]


# --- published numbers -------------------------------------------------------------------------------------------


def test_every_table_and_figure_has_published_text_and_an_entry():
    assert {name: sorted(paper(name).parts) for name in PAPERS} == {k: sorted(v) for k, v in WANTED.items()}
    # One table has a second entry: with the settings of the public code that the paper builds on.
    assert sorted(entries()) == sorted([*IDS, "terraform/table2-code"])
    assert entry("terraform/table2-code").published is entry("terraform/table2").published


@pytest.mark.parametrize("id", IDS)
def test_published_tables_are_whole_and_plausible(id):
    published = entry(id).published
    assert published.caption
    assert published.rows or published.says, "a figure without numbers says what it shows"
    for row, cells in published.rows.items():
        assert len(cells) == len(published.columns), row
        for cell, column in zip(cells, published.columns, strict=True):
            if isinstance(cell, Number) and published.unit == "%":
                assert 0 < cell.value < 100, (row, column)
                assert 0 <= cell.std < 15, (row, column)


def test_numbers_that_the_papers_print_twice_agree():
    two, three = paper("terraform").parts["table2"], paper("terraform").parts["table3"]
    assert three.at("FMNIST 1*", "η = 4") == two.at("FedProx / Terraform", "1*")
    assert three.at("FMNIST 4", "η = 4") == two.at("FedProx / Terraform", "4")
    assert three.at("FEMNIST", "η = 4") == paper("terraform").parts["table1"].at("FedProx / Terraform", "FEMNIST")
    for column in ("1", "2", "3"):  # five clients a round: Terraform is random selection
        assert two.at("FedAvg / Terraform", column) == two.at("FedAvg / Random", column)
        assert two.at("FedProx / Terraform", column) == two.at("FedProx / Random", column)

    one, three, four = (paper("feddiverse").parts[part] for part in ("table1", "table3", "table4"))
    for data in one.columns[:-1]:
        assert three.at("FedAvgM", f"{data} / FedDiverse") == one.at("FedDiverse", data)
        assert three.at("FedAvgM", f"{data} / Random") == one.at("Uniform random", data)
    for aggregation in ("FedAvg", "FedAvgM"):
        same = three.at(aggregation, "WaterBirds / FedDiverse")
        assert four.at("1 round · estimated · triplets", aggregation) == same
    figure, table = paper("simprox").parts["figure5"], paper("simprox").parts["table3"]
    assert figure.at("SimProx", "round 50") == table.at("SimProx", "Accuracy")


@pytest.mark.parametrize("part", ["table1", "table3", "table4"])
def test_astrafl_means_lie_between_the_extremes(part):
    for row in paper("astrafl").parts[part].rows:
        smallest, largest, mean, std = numbers("astrafl", part, row)
        assert smallest < mean < largest, row
        # A standard deviation is at most half of the range; it is printed in thousandths of a share.
        assert std / 10 <= (largest - smallest) / 2, row


def test_corners_of_the_large_tables():
    assert numbers("terraform", "table1", "FedAvg / Random")[0] == 67.76
    assert numbers("terraform", "table1", "FedProx / Terraform")[-1] == 83.52
    assert numbers("terraform", "table2", "FedAvg / Oort") == [
        89.01, 85.42, 59.52, 83.21, 84.75, 57.39, 85.09, 85.79,
    ]  # fmt: skip
    assert paper("feddiverse").parts["table1"].at("FedPNS", "WaterBirds") == Number(48.75, 12.14)
    assert paper("feddiverse").parts["table1"].at("FedPNS", "Spawrious GCI-100") == "not scalable"
    assert numbers("simprox", "table2", "CIFAR-100 / DenseNet-121") == [47.1, 49.4, 47.1, 47.4]
    assert paper("terraform").parts["table2"].at("FedAvg / Random", "6") is None


def test_unknown_papers_and_entries_are_named():
    with pytest.raises(ConfigError, match="unknown paper 'terrafrom'"):
        paper("terrafrom")
    with pytest.raises(ConfigError, match="did you mean 'terraform/table2'"):
        entry("terraform/tabel2")


# --- entries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", IDS)
def test_every_published_number_has_a_run_beside_it(id):
    found = entry(id)
    reached = {
        found.printed_at(cell, row, value) for cell in found.cells for row in found.rows for value in found.values
    }
    printed = {(row, column) for row in found.published.rows for column in found.published.columns}
    assert printed <= reached


@pytest.mark.parametrize("id", IDS)
def test_claims_name_rows_cells_and_values_that_exist(id):
    found = entry(id)
    names = {"rows": found.rows, "cells": found.cells, "values": {value.name for value in found.values}}
    for claim in found.claims:
        named = {name for name in (*claim.winners, claim.worst, *claim.order) if name is not None}
        assert named <= set(names[claim.over]), claim.text
        assert named or claim.spread is not None, claim.text
        assert any(fits(cell, claim.cells) for cell in found.cells), claim.text
        assert any(fits(row, claim.rows) for row in found.rows), claim.text
        assert claim.value in {"", *names["values"]}, claim.text


@pytest.mark.parametrize("id", IDS)
def test_the_papers_scale_is_the_papers_setting(id):
    made = plan(entry(id), "paper", here=everything)
    runs = made.runs
    assert differing(made) == []
    assert len({run.experiment.fingerprint for run in runs}) == len(runs), "every run differs from the others"


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("scale", SCALES)
def test_plans_are_made_with_and_without_data(id, scale):
    for here in (everything, only_what_ships):
        made = plan(entry(id), scale, here=here)
        assert set(made.cells) <= set(entry(id).cells)
        expected = len(made.cells) * len(made.rows) * made.seeds if entry(id).kind == "runs" else 0
        assert len(made.runs) == expected
        sources = {run.experiment.data["source"] for run in made.runs}
        assert here is everything or sources <= set(ALWAYS_HERE)


def test_smoke_is_small():
    runs = {run.experiment.fingerprint: run for id in IDS for run in plan(entry(id), "smoke").runs}
    assert len(runs) < 400
    assert max(run.experiment.rounds for run in runs.values()) <= 4


# --- patterns ----------------------------------------------------------------------------------------------------


def test_cells_with_a_star_in_their_name():
    cells = entry("terraform/table2").cells
    assert chosen("1*,4", cells, "cell") == ["1*", "4"]
    assert chosen(" 4 , 1* ", cells, "cell") == ["1*", "4"], "in the table's own order"
    assert chosen("?[*]", cells, "cell") == ["1*", "2*", "3*"]
    assert chosen("*", cells, "cell") == chosen(None, cells, "cell") == list(cells)
    with pytest.raises(ConfigError, match="unknown cell '6'"):
        chosen("1*,6", cells, "cell")


def test_rows_by_pattern():
    rows = chosen("FedProx / *", entry("terraform/table2").rows, "row")
    assert len(rows) == 6
    assert all(row.startswith("FedProx / ") for row in rows)


def test_the_must_show_plan():
    made = plan(entry("terraform/table2"), "small", cells="1*,4", here=everything)
    assert made.cells == ("1*", "4")
    assert made.seeds == 3
    assert len(made.runs) == 36
    methods = ["random", "size-weighted", "power-of-choice", "hics", "oort", "terraform"]
    assert [run.experiment.selection["method"] for run in made.runs[::3][:6]] == methods
    assert {run.experiment.data["source"] for run in made.runs} == {"fashion-mnist"}
    assert {run.experiment.algorithm["method"] for run in made.runs} == {"plain"}
    more = plan(entry("terraform/table2"), "small", cells="1*", seeds=5, here=everything)
    assert {run.experiment.fingerprint for run in made.runs if run.cell == "1*"} < {
        run.experiment.fingerprint for run in more.runs
    }, "more seeds add to what is there"


@pytest.mark.parametrize("part", ["table2", "table2-code", "table3"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_terraforms_scales_keep_the_learning_rate_and_its_schedule(part, scale):
    for run in plan(entry(f"terraform/{part}"), scale, here=everything).runs:
        training = run.experiment.training
        lr, schedule = (
            (0.01, None) if run.cell == "FEMNIST" else (0.001, "step" if part != "table2-code" else "constant")
        )
        assert (training["lr"], training.get("schedule")) == (lr, schedule)


def test_the_table_with_the_codes_settings_has_its_options():
    made = plan(entry("terraform/table2-code"), "paper", cells="4", here=everything)
    runs = {run.row: run.experiment for run in made.runs}
    assert runs["FedProx / Terraform"].algorithm == {"method": "continued", "mu": 0.1}
    assert runs["FedAvg / HiCS-FL"].selection["temperature"] == 0.001
    oort = runs["FedProx / Oort"].selection
    assert (oort["warmup"], oort["cut_off"], oort["exploration_decay"], oort["util"]) == (
        25,
        0.7,
        0.8,
        "sqrt_loss",
    )
    for experiment in runs.values():
        build_selector(experiment.selection, 100)
        assert experiment.model == {"name": "fmnist-cnn", "init": "xavier"}
    # What no row sets is the code's too where the code has it.
    told = "\n".join(heading(made))
    assert (
        "from public code (HiCS-FL, server_poc.py; none is twice the clients of a round): selection.d none" in told
    )
    assert "selection.groups none" in told
    assert "our choice (T is not stated): selection.max_iterations 8" in told
    assert told.count("our choice") == 1


def test_numbers_of_seeds_and_scales_are_checked():
    with pytest.raises(ConfigError, match="seeds"):
        plan(entry("terraform/table2"), "small", seeds=0)
    with pytest.raises(ConfigError, match="unknown scale 'tiny'"):
        plan(entry("terraform/table2"), "tiny")


# --- stand-ins ---------------------------------------------------------------------------------------------------


def on_available_data(sections: dict, here) -> dict:
    """One experiment alone, on the nearest data that is here."""
    name = wanted_data(sections)
    return on_data(sections, assigned([name], here)[name])


def sections(source: str, **partition: object) -> dict[str, dict[str, object]]:
    return {
        "data": {"source": source},
        "partition": {"scheme": "iid", "clients": 100} | partition,
        "model": {"name": "lenet"},
        "selection": {"method": "random", "clients_per_round": 10},
    }


def test_data_that_is_here_is_used():
    before = sections("cifar100")
    assert on_available_data(before, everything) == before


def test_the_nearest_data_stands_in():
    moved = on_available_data(
        sections("cifar100", scheme="classes-per-client", classes=50),
        lambda source: source in ("cifar10", "digits"),
    )
    assert moved["data"] == {"source": "cifar10"}
    assert moved["model"] == {"name": "lenet"}
    assert moved["partition"] == {"scheme": "classes-per-client", "clients": 100, "classes": 5}


def test_digits_serve_fewer_clients_in_the_same_proportion():
    moved = on_available_data(sections("cifar100"), only_what_ships)
    assert moved["data"] == {"source": "digits"}
    assert moved["model"]["name"] == "mlp"
    assert moved["partition"]["clients"] == 20
    assert moved["selection"]["clients_per_round"] == 2


def test_clients_by_nature_become_clients_by_labels():
    speakers = on_available_data(sections("shakespeare", scheme="natural", keys_per_client=10), only_what_ships)
    assert speakers["partition"] == {"scheme": "classes-per-client", "classes": 3, "clients": 20}
    writers = sections("femnist")
    writers["partition"] = {"scheme": "natural"}
    moved = on_available_data(writers, lambda source: source == "mnist")
    assert moved["partition"]["scheme"] == "dirichlet"


def test_a_stand_in_keeps_the_share_of_clients_that_train():
    """39 of FEMNIST's 3,597 writers are 1.1 %, not 39 %."""
    made = plan(entry("terraform/table1"), "paper", cells="FEMNIST", here=lambda source: source == "mnist")
    experiment = made.runs[0].experiment
    share = experiment.selection["clients_per_round"] / experiment.partition["clients"]
    assert share == pytest.approx(39 / 3597, rel=0.05)
    combined = sections("cifar100")
    combined["selection"] = {"method": "warmup", "first": {"method": "random", "clients_per_round": 50}}
    moved = on_available_data(combined, only_what_ships)
    assert moved["selection"]["first"]["clients_per_round"] == 10, "in combined methods, too"


def test_no_data_set_stands_in_two_columns():
    """CIFAR-10 is in the table itself, and digits can stand for one of the others."""
    made = plan(entry("terraform/table1"), "smoke", here=lambda source: source in ("cifar10", "digits"))
    by_cell = {run.cell: run.experiment.data["source"] for run in made.runs}
    assert by_cell == {
        "CIFAR-10 1": "cifar10",
        "CIFAR-10 2": "cifar10",
        "CIFAR-10 3": "cifar10",
        "CIFAR-100": "digits",
    }
    assert set(made.left_out) == {"Tiny ImageNet", "FEMNIST"}
    assert "'femnist' is not here, and what could stand in is in another column" in made.left_out["FEMNIST"]
    alone = plan(entry("terraform/table1"), "smoke", cells="FEMNIST", here=lambda source: source == "digits")
    assert not alone.left_out
    assert all(run.stand_in for run in alone.runs)
    with pytest.raises(DataError, match="neither the data set 'femnist' is here"):
        plan(entry("terraform/table1"), "smoke", cells="FEMNIST", here=lambda source: False)


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize(
    "here", [only_what_ships, lambda source: source in ("mnist", "cmnist", "cifar10", "digits")]
)
def test_different_data_sets_never_run_on_the_same_one(id, here):
    found = entry(id)
    if found.kind == "runs":
        runs = plan(found, "small", here=here).runs
        wanted: dict[str, set[str]] = {}
        for run in runs:
            published = as_published(found, run.cell, run.row)
            wanted.setdefault(run.experiment.data["source"], set()).add(wanted_data(published))
        assert all(len(names) == 1 for names in wanted.values()), wanted


def test_rows_that_name_another_method_keep_the_servers_learning_rate():
    runs = plan(entry("feddiverse/table1"), "paper", cells="CMNIST GSC", here=everything).runs
    assert {run.experiment.aggregation.get("server_lr") for run in runs} == {0.1}
    assert "fednova" in {run.experiment.aggregation["method"] for run in runs}


def test_four_breeds_need_four_classes():
    moved = on_available_data(
        sections("spawrious", scheme="group-skew", table="spawrious-4"), lambda source: source != "spawrious"
    )
    assert moved["data"]["source"] == "spurious-shapes"
    assert moved["data"]["classes"] == 4


def test_what_ships_is_always_here(monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    assert is_here("digits")
    assert is_here("spurious-shapes")
    assert not is_here("cmnist")
    assert not is_here("cifar100")


# --- differences -------------------------------------------------------------------------------------------------


def test_differences_say_what_where_and_from_what():
    lines = differing(plan(entry("simprox/figure3"), "small", here=everything))
    assert lines == [
        "model: lenet instead of resnet18 (stem cifar, our choice)",
        "rounds: 40 instead of 100",
        "training.lr: 0.05 instead of 0.01",
        "training: 2 epochs instead of 20 epochs",
        "seeds: 5 instead of 1",
    ]
    lines = differing(
        plan(entry("terraform/table1"), "smoke", here=lambda source: source in ("digits", "cifar100"))
    )
    assert lines[0] == "data: digits instead of cifar10 (CIFAR-10 1; CIFAR-10 2; CIFAR-10 3)"


# --- SimProx -----------------------------------------------------------------------------------------------------


def of_simprox(id: str, scale: str = "paper") -> Plan:
    return plan(entry(f"simprox/{id}"), scale, here=everything)


@pytest.mark.parametrize("id", ["figure3", "figure4", "figure5", "table3", "table4"])
def test_simprox_is_compared_with_an_equal_average(id):
    """Equation 1 of the paper; weights by samples would decide the outcome on their own."""
    averaged = [run for run in of_simprox(id).runs if run.experiment.aggregation["method"] == "fedavg"]
    assert {run.row for run in averaged} <= {"FedAvg", "FedProx"}
    assert averaged
    assert all(run.experiment.aggregation["weights"] == "equal" for run in averaged)


@pytest.mark.parametrize("id", ["figure3", "figure5", "table2", "table3", "table4", "lambda"])
def test_simprox_trains_as_section_4a_says(id):
    wanted = {"optimizer": "sgd", "lr": 0.01, "weight_decay": 0.001, "batch_size": 64, "epochs": 20}
    for run in of_simprox(id).runs:
        # What pictures go through is section IV.D's.
        assert {key: value for key, value in run.experiment.training.items() if key != "augmentation"} == wanted


def test_banking77_is_divided_as_section_4c_says():
    (partition,) = [run.experiment.partition for run in of_simprox("table3").runs if run.row == "FedAvg"]
    assert partition["scheme"] == "class-subsets"
    assert partition["min_classes"] < partition["max_classes"] < 77
    assert partition["spread"] > 0


def test_table4_is_the_mean_of_all_31_rounds():
    assert {value.pick for value in entry("simprox/table4").values} == {"overall"}
    assert {run.experiment.rounds for run in of_simprox("table4").runs} == {31}


def test_the_stem_is_a_guess_and_says_so():
    settings = {one.name: one.provenance for one in of_simprox("figure3").runs[0].settings}
    assert settings["model.stem"].kind == "ours"
    assert settings["model.name"].kind == "paper"


def test_the_claims_of_the_text_are_there():
    texts = " ".join(
        claim.text for id in ("figure2", "figure3", "lambda") for claim in entry(f"simprox/{id}").claims
    )
    for words in ("FedProx is above FedAvg and SimAgg", "5 to 6 points", "λ from 0.6 to 0.7", "lack classes"):
        assert words in texts


def test_other_networks_than_those_compared_are_not_judged():
    assert of_simprox("table2", "small").unfit("CIFAR-10", "ResNet-18") == "other networks than those compared"


def test_the_docs_count_the_entries():
    text = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert f"the list: {len(entries())} tables, figures and claims" in text


def test_femnists_cohort_is_a_rounded_rate():
    lines = heading(plan(entry("terraform/table1"), "paper", cells="FEMNIST", here=lambda source: True))
    assert any(
        line.startswith("our choice (the stated rate 0.011") and "clients_per_round 39" in line for line in lines
    )


@pytest.mark.parametrize(
    ("id", "option"),
    [
        ("terraform/table2", "selection.max_iterations 8"),
        ("simprox/figure3", "aggregation.threshold 0.9"),
        ("feddiverse/table1", "selection.degenerate skip"),
    ],
)
def test_what_a_paper_leaves_open_of_its_own_method_is_our_choice(id, option):
    lines = heading(plan(entry(id), "paper", here=lambda source: True))
    assert any(line.startswith("our choice") and option in line for line in lines)


def test_a_default_is_not_explained_by_what_other_rows_set():
    lines = heading(plan(entry("feddiverse/table4"), "paper", here=lambda source: True))
    assert not any("aggregation.server_lr 1 " in line for line in lines if not line.startswith("options"))


@pytest.mark.parametrize(
    "name", [f"probing/figure{number}" for number in (3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14)] + ["terraform/table1"]
)
def test_on_cifar100_the_small_scale_trains_what_two_cores_can_train(name):
    """Networks of convolutions had learned next to nothing in so few rounds; a layer on frozen filters has."""
    made = plan(entry(name), "small", here=everything)
    runs = [run.experiment for run in made.runs if run.experiment.data["source"] == "cifar100"]
    assert runs
    for experiment in runs:
        assert experiment.model["freeze"] == "backbone"
        assert not experiment.training.get("augmentation"), "features of pictures that change are not kept"
    assert any("instead of" in line and "freeze backbone" in line for line in heading(made))
    # It says what that is, of which federations, and nothing of it where the network is the paper's.
    (told,) = [line for line in heading(made) if "random, not pre-trained" in line]
    assert told.endswith("learns (CIFAR-100)." if name == "terraform/table1" else "learns.")
    full = heading(plan(entry(name), "paper", here=everything))
    assert not any("random, not pre-trained" in line for line in full)


def test_medic_selects_by_the_window_of_the_other_experiments_and_says_so():
    """Section IV.D says "randomly selecting clients", and "similar to the CIFAR experimental setup"."""
    lines = heading(plan(entry("simprox/table4"), "paper", here=lambda source: True))
    assert any("section IV.D says" in line and "selection.method sliding-window" in line for line in lines)
