"""The probing-and-diversity paper's entries: complete, with the numbers of its text and of its public code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fixtures.papers import undecided
from muster.config.provenance import leaves
from muster.config.workloads import workload, workload_sources, workload_summaries
from muster.papers.entries import entries, entry
from muster.papers.outcome import outcome
from muster.papers.planning import as_published, decisions, plan
from muster.papers.published import Number, PublishedRange, paper
from muster.papers.report import heading, page
from muster.training.base import LocalTraining


def test_every_value_says_who_decided_it():
    lacking = [line for one in entries().values() if one.paper == "probing" for line in undecided(one)]
    for name in workload_summaries():
        if name.startswith("probing"):
            lacking += [
                f"{name}: {key}" for key, _ in leaves(workload(name)) if not workload_sources(name).of(key)
            ]
    assert not lacking


PRINTED = {
    ("figure1", "OneCycleLR", "best"): 56.46,
    ("figure1", "CosineAnnealingLR", "best"): 55.09,
    ("figure1", "CosineAnnealingWarmRestarts", "best"): 54.67,
    ("figure1", "ExponentialLR", "best"): 54.34,
    ("figure1", "StepLR", "best"): 53.16,
    ("figure1", "ReduceLROnPlateau", "best"): 53.07,
    ("figure2", "ReduceLROnPlateau", "best"): 61.81,
    ("figure2", "StepLR", "best"): 60.28,
    ("figure4", "γ = 0.01", "final"): 44.23,
    ("figure4", "γ = 0.01", "best"): 45.02,
    ("figure4", "γ = 10", "final"): 44.20,
    ("figure4", "γ = 10", "best"): 45.56,
    ("figure5", "J = 4", "IID, the end"): 44.92,
    ("figure5", "J = 8", "IID, the end"): 39.40,
    ("figure5", "J = 16", "IID, the end"): 35.76,
    ("figure5", "J = 16", "N_c = 1, the end"): 19.49,
    ("figure7", "J = 4", "N_c = 1, accuracy, %"): 27.88,
    ("figure7", "J = 8", "N_c = 1, accuracy, %"): 25.59,
    ("figure9", "β = 0", "the end"): 40.57,
    ("figure9", "β = 0.3", "the end"): 42.80,
    ("figure9", "β = 0.6", "the end"): 41.52,
    # Of 400 rounds, although the record ends after 391.
    ("figure10", "ε = 0.2", "half"): 40.07,
    ("figure13", "α = 0.8", "final"): 40.06,
    ("figure13", "α = 1", "best"): 42.58,
    ("figure14", "N_c = 1", "the end"): 15.80,
    ("figure14", "N_c = 50", "the end"): 43.44,
}


@pytest.mark.parametrize("place", PRINTED)
def test_published_numbers(place):
    figure, row, column = place
    assert paper("probing").parts[figure].at(row, column) == Number(PRINTED[place])


def test_ranges_of_the_text_are_ranges():
    figure = paper("probing").parts["figure8"]
    assert figure.at("accuracy, %", "final") == PublishedRange(37, 38)
    assert figure.at("loss", "final") == PublishedRange(2.3, 2.4)


@pytest.mark.parametrize("figure", [f"figure{number}" for number in range(1, 15) if number not in (8, 12)])
def test_every_published_number_has_its_place_among_ours(figure):
    """A misspelt row or column would leave the published number beside nothing."""
    found = entry(f"probing/{figure}")
    ours = {
        found.printed_at(cell, row, value) for cell in found.cells for row in found.rows for value in found.values
    }
    printed = {(row, column) for row in found.published.rows for column in found.published.columns}
    assert printed
    assert printed <= ours


#: As in the notebooks of the public code (500 and 50 epochs); it has no MultiStepLR.
SCHEDULES: dict[str, dict[str, dict[str, Any]]] = {
    "figure1": {
        "StepLR": {"schedule": "step", "decay_every": 166, "decay": 0.1},
        "MultiStepLR": {"schedule": "multistep"},
        "ReduceLROnPlateau": {"schedule": "plateau", "patience": 10, "decay": 0.5},
        "ExponentialLR": {"schedule": "exponential", "decay": pytest.approx(0.01 ** (1 / 500))},
        "CosineAnnealingLR": {"schedule": "cosine", "period": 500},
        "CosineAnnealingWarmRestarts": {"schedule": "warm-restarts", "period": 50, "period_growth": 2},
        "OneCycleLR": {"schedule": "one-cycle"},
    },
    "figure2": {
        "StepLR": {"schedule": "step", "decay_every": 10, "decay": 0.1},
        "MultiStepLR": {"schedule": "multistep"},
        "ReduceLROnPlateau": {"schedule": "plateau", "patience": 3, "decay": 0.5},
        "ExponentialLR": {"schedule": "exponential", "decay": 0.95},
        "CosineAnnealingLR": {"schedule": "cosine", "period": 50},
        "CosineAnnealingWarmRestarts": {"schedule": "warm-restarts", "period": 10, "period_growth": 2},
        "OneCycleLR": {"schedule": "one-cycle"},
    },
}


@pytest.mark.parametrize("figure", ["figure1", "figure2"])
def test_centralised_settings_are_those_of_the_code(figure):
    found = entry(f"probing/{figure}")
    for row in found.rows:
        training = as_published(found, next(iter(found.cells)), row)["training"]
        assert (training["lr"], training["momentum"], training["mode"]) == (0.1, 0.9, "centralised")
        assert training["batch_size"] == {"figure1": 128, "figure2": 1024}[figure]
        assert training.get("augmentation") == (["crop", "flip"] if figure == "figure1" else None)
        LocalTraining(**training).check()
    published = {row: as_published(found, next(iter(found.cells)), row)["training"] for row in found.rows}
    stated = {row: {key: training[key] for key in SCHEDULES[figure][row]} for row, training in published.items()}
    assert stated == SCHEDULES[figure]
    cycle = published["OneCycleLR"]
    assert (cycle["schedule_per"], cycle["momentum_range"]) == ("batch", [0.85, 0.95])
    model = as_published(found, next(iter(found.cells)), "StepLR")["model"]
    if figure == "figure2":
        assert (model["embedding"], model["hidden"], model["layers"], model["dropout"]) == (8, 256, 2, 0.1)


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_plateaus_have_validation_data_to_follow(scale):
    for figure in ("figure1", "figure2"):
        for here in (lambda source: True, lambda source: source == "digits"):
            for run in plan(entry(f"probing/{figure}"), scale, here=here).runs:
                assert 0 < run.experiment.data["validation"] < 1


@pytest.mark.parametrize("figure", ["figure9", "figure10", "figure11", "figure12"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_who_was_probed_trains_on(figure, scale):
    """A probe counts as an epoch there: with one epoch nothing would follow it."""
    for run in plan(entry(f"probing/{figure}"), scale, here=lambda source: True).runs:
        assert run.experiment.training["epochs"] >= 2


def test_claims_of_the_text_are_there():
    wanted = {
        "figure9": "some fairness beats pure probing",
        "figure12": "pure probing starves clients: the fewest trainings of a client",
        "figure14": "the diversity score is slightly above N_c = 10",
    }
    for figure, text in wanted.items():
        assert text in [claim.text for claim in entry(f"probing/{figure}").claims]
    assert all(entry(f"probing/figure{number}").claims for number in range(4, 15))


def test_provenance_names_its_places():
    """Abbreviations of the files' own would tell a reader nothing."""
    for one in entries().values():
        if one.paper == "probing":
            for cell in one.cells:
                for row in one.rows:
                    notes = {name: told.note for name, told in decisions(one, cell, row).items() if told}
                    short = {name: note for name, note in notes.items() if re.search(r"\b[BCDPRS]\b", note)}
                    assert not short, one.id


@pytest.mark.parametrize("figure", ["figure3", "figure4"])
def test_epochs_where_the_text_says_steps_are_the_codes(figure):
    lines = heading(plan(entry(f"probing/{figure}"), "paper", here=lambda source: True))
    assert any(line.startswith("from public code") and "training.epochs 4" in line for line in lines)


@pytest.mark.parametrize("figure", [f"figure{number}" for number in (3, 4, 5, 6, 7)])
def test_what_the_text_states_of_another_experiment_is_the_codes(figure):
    """Section 4.2 states the optimiser for the diversity score, and for nothing before it."""
    lines = heading(plan(entry(f"probing/{figure}"), "paper", here=lambda source: True))
    (told,) = [line for line in lines if "training.lr 0.01, training.momentum 0.9" in line]
    assert told.startswith("from public code (Cifar_100_Federated;")
    stated = heading(plan(entry("probing/figure13"), "paper", here=lambda source: True))
    assert not any("training.momentum 0.9" in line for line in stated)


@pytest.mark.parametrize("number", [3, 5, 9, 13])
def test_sizes_of_the_codes_network_and_shards_are_the_codes(number):
    lines = heading(plan(entry(f"probing/figure{number}"), "paper", here=lambda source: True))
    names = ["model.filters 64/64", "model.hidden 384/192", "model.padding 2"]
    names += ["partition.sampler uniform", "partition.allocation equal"] if number > 8 else []
    for name in names:
        assert any(line.startswith("from public code") and name in line for line in lines), name
        assert not any(line.startswith("left at our defaults") and name in line for line in lines), name


@pytest.mark.parametrize("figure", ["figure1", "figure2"])
@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_centralised_training_has_no_clients(figure, scale):
    lines = heading(plan(entry(f"probing/{figure}"), scale, here=lambda source: True))
    assert not [line for line in lines if re.search(r"aggregation|selection|partition|clients", line)]


@pytest.mark.parametrize("number", [9, 10, 11, 12])
def test_what_the_code_decides_of_fairness_and_fedprox_is_said(number):
    notes = " ".join(entry(f"probing/figure{number}").notes)
    assert "0.6 of fairness" in notes
    assert "FedProx" in notes


def test_numbers_say_where_they_come_from():
    made = plan(entry("probing/figure4"), "small", here=lambda source: True)
    assert {figure: paper("probing").parts[f"figure{figure}"].whose for figure in (4, 8, 13)} == {
        4: "public code",
        8: "paper",
        13: "public code",
    }
    lines = heading(made)
    assert "published numbers: from its public code (graphs/gamma_results_cifar.csv)" in lines
    assert any(line.startswith("our remark: The text's 45.02 %") for line in lines)
    header = page(outcome(made, {})).tables[0][1]
    assert header[1:4] == ["final: public code", "ours", "place: public code, ours"]
    printed = plan(entry("probing/figure3"), "small", here=lambda source: True)
    assert "published numbers: from the paper's text (section 3.2)" in heading(printed)
    assert page(outcome(printed, {})).tables[0][1][1] == "final: paper"


def test_what_the_paper_says_is_only_what_it_says():
    for one in paper("probing").parts.values():
        assert "recorded" not in one.says


@pytest.mark.parametrize("figure", ["figure5", "figure7", "figure8"])
def test_the_end_is_the_same_part_of_every_run(figure):
    """Rows with more local work have fewer rounds: the mean of the last evaluations reaches as far back."""
    made = plan(entry(f"probing/{figure}"), "small", seeds=1, here=lambda source: True)
    last = made.size.last
    parts = {
        run.row: last * run.experiment.evaluation.get("every", 1) / run.experiment.rounds for run in made.runs
    }
    assert parts["J = 4"] == pytest.approx(0.15)
    assert max(parts.values()) <= 0.2
