"""Who decided each value of the presets: the paper, public code, or we."""

from __future__ import annotations

import dataclasses

import pytest

from fixtures.papers import undecided
from muster.config.provenance import Provenance, Sources, leaves
from muster.config.workloads import workload, workload_sources, workload_summaries
from muster.core.errors import ConfigError
from muster.papers.entries import Decided, PaperEntry, Scale, Value, entries
from muster.papers.planning import decisions, plan
from muster.papers.published import PAPERS, Published
from muster.papers.report import heading
from muster.papers.settings import (
    Difference,
    decisions_told,
    defaults_of,
    differences_told,
    left_open,
    options_told,
)


def everything(source: str) -> bool:
    return True


def table(**names: str) -> dict[str, str]:
    return {name.replace("__", "."): text for name, text in names.items()}


# --- tables ------------------------------------------------------------------------------------------------------


def test_a_kind_and_where_or_why():
    assert Provenance.read("paper", "") == Provenance("paper")
    assert Provenance.read("code: HiCS-FL: options.py", "") == Provenance("code", "HiCS-FL: options.py")
    with pytest.raises(ConfigError, match=r"bad provenance of training.lr in x: 'guess'"):
        Sources().within({"training.lr": "guess"}, "x")


def test_the_nearest_table_counts_and_in_it_the_name_before_the_longest_pattern():
    base = Sources().within({"training.lr": "paper", "training.*": "code", "*": "ours"}, "base")
    assert base.of("training.lr") == Provenance("paper")
    assert base.of("training.momentum") == Provenance("code")
    assert base.of("rounds") == Provenance("ours")
    nearer = base.within({"training.*": "ours: smaller"}, "row")
    assert nearer.of("training.lr") == Provenance("ours", "smaller"), "a nearer pattern before a farther name"
    assert nearer.of("rounds") == Provenance("ours")
    assert Sources().of("rounds") is None


def test_names_may_be_quoted_or_nested():
    assert Sources().within({"training": {"lr": "paper"}}, "x").of("training.lr") == Provenance("paper")


# --- entries -----------------------------------------------------------------------------------------------------


@pytest.fixture
def example() -> PaperEntry:
    """One cell, two rows; the second row replaces the aggregation that all rows have."""
    around = Sources().within({"*.method": "paper", "seeds": "ours"}, "file")
    return PaperEntry(
        id="example/table1",
        published=Published("An example"),
        kind="runs",
        cells={"A": {"rounds": 10, "data": {"source": "digits"}, "training": {"lr": 0.1, "momentum": 0.9}}},
        rows={"one": {}, "two": {"aggregation": {"method": "fednova", "momentum": 0.5}}},
        values=(Value("accuracy"),),
        row="{row}",
        column="{cell}",
        scales={"paper": Scale(seeds=1, sources=around), "small": Scale(changes={"training": {"lr": 0.2}})},
        base={
            "partition": {"scheme": "iid", "clients": 4},
            "model": {"name": "mlp"},
            "selection": {"method": "random", "clients_per_round": 2},
            "aggregation": {"method": "fedavg", "weights": "equal"},
        },
        decided=Decided(
            base=around.within({"partition.*": "ours: not stated", "aggregation.weights": "paper"}, "base"),
            cells={"A": around.within({"training.lr": "paper", "training.momentum": "code: theirs"}, "A")},
            rows={"one": around, "two": around.within({"aggregation.momentum": "ours: a guess"}, "two")},
        ),
    )


def test_every_value_of_an_experiment_is_traced_to_who_decided_it(example):
    found = decisions(example, "A", "two")
    assert found["training.lr"] == Provenance("paper")
    assert found["training.momentum"] == Provenance("code", "theirs")
    assert found["partition.clients"] == Provenance("ours", "not stated")
    assert found["aggregation.momentum"] == Provenance("ours", "a guess")
    assert found["aggregation.method"] == Provenance("paper")
    assert found["data.source"] is None
    assert undecided(example) == [
        "example/table1: rounds (A / one, 2 in all)",
        "example/table1: data.source (A / one, 2 in all)",
        "example/table1: model.name (A / one, 2 in all)",
        "example/table1: selection.clients_per_round (A / one, 2 in all)",
    ]
    unsaid = dataclasses.replace(example, scales=example.scales | {"paper": Scale(seeds=1)})
    assert undecided(unsaid)[-1] == "example/table1: seeds (scale paper, 1 in all)"


def test_a_workload_answers_for_its_own_values(example):
    on = dataclasses.replace(example, cells={"A": {"workload": "simprox-cifar10-resnet18"}}, base={})
    assert "data.source" in decisions(on, "A", "one")


def test_differences_say_from_whom(example):
    lines = differences_told([(run, run.differences) for run in plan(example, "small", here=everything).runs])
    assert lines == [
        "differs from the paper: training.lr: 0.2 instead of 0.1",
        "differs from our choice at full size: seeds: 3 instead of 1",
    ]
    run = plan(example, "paper", here=everything).runs[0]
    of_code, of_us = Difference("a", "1", "2", "code"), Difference("b", "none", "3", "default")
    assert differences_told([(run, [of_code, of_us])]) == [
        "differs from public code: a: 2 instead of 1",
        "differs from our default: b: 3 instead of none",
    ]


def test_the_heading_lists_what_is_not_from_the_paper(example):
    runs = plan(example, "paper", here=everything).runs
    lines = decisions_told([(run, run.settings) for run in runs])
    assert "from public code (theirs): training.momentum 0.9" in lines
    assert "our choice (not stated): partition.scheme iid, partition.clients 4" in lines
    assert "our choice (a guess): aggregation.momentum 0.5 (two)" in lines
    assert any(line.startswith("no source says who decided: ") and "rounds 10" in line for line in lines)
    assert not any("training.lr" in line for line in lines), "what the paper states is not listed"


def test_the_heading_lists_all_options_of_every_row(example):
    runs = plan(example, "paper", here=everything).runs
    lines = options_told([(run, run.experiment.as_run().to_dict()) for run in runs])
    fedavg = next(line for line in lines if line.startswith("options: aggregation fedavg (one): weights equal; "))
    assert "by default clip_norm none, server_lr 1" in fedavg
    assert "max_weight none" in fedavg
    assert "staleness" not in fedavg, "no answer of a synchronous run is late"
    nova = next(line for line in lines if "fednova" in line)
    assert "momentum 0.5" in nova
    assert "effective normalisers" in nova
    defaults = next(line for line in lines if line.startswith("left at our defaults: "))
    assert "training.weight_decay 0" in defaults
    assert "training.momentum" not in defaults


def test_defaults_that_a_table_names_are_told_too(example):
    row = example.decided.rows["one"].within({"aggregation.server_lr": "ours: a whole step"}, "")
    named = dataclasses.replace(
        example, decided=dataclasses.replace(example.decided, rows={**example.decided.rows, "one": row})
    )
    lines = decisions_told([(run, run.settings) for run in plan(named, "paper", here=everything).runs])
    assert "our choice (a whole step): aggregation.server_lr 1 (one)" in lines
    # What another row sets is what the word is about; the default of this one is nobody's statement.
    setting = dict(named.rows) | {"two": {"aggregation": {"method": "fednova", "server_lr": 0.5}}}
    lines = decisions_told(
        [
            (run, run.settings)
            for run in plan(dataclasses.replace(named, rows=setting), "paper", here=everything).runs
        ]
    )
    assert not any("aggregation.server_lr 1" in line for line in lines)


@pytest.mark.parametrize(
    ("section", "values", "idle"),
    [
        ("partition", {"scheme": "group-skew", "table": "cmnist-gsc"}, {"size", "share", "clients"}),
        ("model", {"name": "text-classifier"}, {"vocabulary", "width", "layers", "heads", "dropout"}),
        ("model", {"name": "resnet18"}, {"groups"}),
        ("data", {"source": "banking77"}, {"width", "length", "vocabulary"}),
        ("training", {"optimizer": "adam"}, {"momentum", "nesterov"}),
        ("aggregation", {"method": "fedavg"}, {"staleness", "staleness_a", "staleness_b"}),
        ("selection", {"method": "feddiverse", "estimate": "true"}, {"biased_steps", "gce_q", "degenerate"}),
    ],
)
def test_options_that_do_nothing_are_not_told(section, values, idle):
    assert idle <= set(defaults_of(section, values))
    assert not idle & set(left_open(section, values))


def test_every_entry_is_synchronous_so_no_answer_is_late():
    for entry in entries().values():
        for run in plan(entry, "smoke", seeds=1, here=everything).runs:
            assert "pacing" not in run.experiment.described(), entry.id


def test_options_that_act_are_told():
    assert "size" in left_open("partition", {"scheme": "group-skew"})
    assert "groups" in left_open("model", {"name": "resnet18", "norm": "group"})
    assert "momentum" in left_open("training", {"optimizer": "sgd"})
    assert {"length", "vocabulary"} <= set(left_open("data", {"source": "banking77", "encoder": "wordpiece"}))


def test_sizes_that_a_name_stands_for_are_not_left_open():
    assert "filters" not in left_open("model", {"name": "cifar100-cnn"})
    assert left_open("model", {"name": "conv3"}) == {"padding": 0}
    assert "filters" in left_open("model", {"name": "lenet"}), "of which there are many"


def test_tables_of_counts_need_no_data():
    lines = heading(plan(entries()["feddiverse/figure3"], "paper", here=everything))
    assert not [line for line in lines if "image_size" in line]


# --- the presets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPERS)
def test_every_value_that_a_preset_sets_says_who_decided_it(name):
    lacking = [line for one in entries().values() if one.paper == name for line in undecided(one)]
    assert not lacking, f"{name}: {len(lacking)} values without provenance:\n" + "\n".join(lacking)


def test_every_value_of_a_workload_says_who_decided_it():
    lacking = [line for name in workload_summaries() for line in _undecided_in_workload(name)]
    assert not lacking, f"{len(lacking)} values without provenance:\n" + "\n".join(lacking)


def _undecided_in_workload(name: str) -> list[str]:
    sources = workload_sources(name)
    return [f"workload {name}: {key}" for key, _ in leaves(workload(name)) if sources.of(key) is None]


@pytest.mark.parametrize("name", PAPERS)
def test_the_heading_never_leaves_open_who_decided(name):
    for one in entries().values():
        if one.paper == name:
            assert not [line for line in heading(plan(one, "paper", here=everything)) if "no source says" in line]
