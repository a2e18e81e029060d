"""The engine benchmark: its parts on tiny sizes; the targets themselves under the mark `bench`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import engine as benchmark
from harness import page, side_muster, side_profile, startup
from harness.cases import CASES, TITLES
from harness.processes import SideFailed, environment, peak_memory, run_side
from harness.report import Rates, Target, as_markdown, as_text, paired_ratio, plot_ratios, rate_table, verdict
from harness.workload import SHAPES, ClientTensors, Workload, network, operations, train_plainly
from muster.data.sources._idx import read_idx
from muster.models.base import build_model

TINY = Workload(clients=4, samples=20, cohort=2, batch=8, rounds=1)


def tiny(name: str) -> Workload:
    return replace(TINY, network=name)


def test_peers_train_the_same_network_as_muster() -> None:
    ours, theirs = build_model("femnist-cnn", (1, 28, 28), 10, seed=0), network(TINY)
    assert str(ours) == str(theirs)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }


@pytest.mark.parametrize("name", SHAPES)
def test_peers_see_the_same_numbers_as_muster(name: str) -> None:
    data, tensors = side_muster.federation(tiny(name)), ClientTensors(tiny(name))
    for client in range(TINY.clients):
        ours, our_labels = data.client(client)
        torch.testing.assert_close(ours, tensors[client][0])
        assert torch.equal(our_labels, tensors[client][1])


@pytest.mark.parametrize("name", SHAPES)
def test_the_order_of_pooling_and_relu_does_not_change_the_function(name: str) -> None:
    first, second = network(tiny(name)), network(tiny(name), pool_first=False)
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        theirs.data.copy_(mine.data)
    features, _ = ClientTensors(tiny(name))[0]
    torch.testing.assert_close(first(features), second(features))


@pytest.mark.parametrize("name", SHAPES)
def test_the_bare_loop_goes_through_every_sample_and_learns(name: str) -> None:
    torch.manual_seed(0)
    features, labels = ClientTensors(tiny(name))[0]
    model = network(tiny(name))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert train_plainly(model, features, labels, TINY) == TINY.samples
    assert not torch.equal(list(model.parameters())[-1], before[-1])


def test_muster_side_counts_the_timed_rounds_only() -> None:
    workload = Workload(clients=4, samples=20, cohort=2, batch=8, rounds=2, workers=0)
    answer = side_muster.measure(workload)
    assert answer["samples"] == workload.timed_samples == 2 * 2 * 20
    assert answer["seconds"] > 0


@pytest.mark.slow
def test_bare_side_divides_the_same_work_over_its_processes() -> None:
    workload = Workload(clients=4, samples=20, cohort=3, batch=8, rounds=1)
    answer = run_side("harness.side_bare", [workload.to_json(), "tuned"])
    assert answer["samples"] == workload.timed_samples == 60


def test_a_side_that_fails_is_no_measurement() -> None:
    with pytest.raises(SideFailed, match="ended with code"):
        run_side("json.tool", ["a file that does not exist"])


def test_workload_survives_the_way_to_another_process() -> None:
    assert Workload.from_json(TINY.to_json()) == TINY


def test_peak_memory_sees_what_a_process_held() -> None:
    hold = "import time; block = b'x' * {megabytes} * 2**20; time.sleep(0.5)"
    small, large = (peak_memory([sys.executable, "-c", hold.format(megabytes=m)], environment()) for m in (1, 101))
    assert 90 < (large - small) / 2**20 < 110


def test_data_files_of_the_start_up_test_are_read_back(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    startup.write_idx(tmp_path / "a.gz", array)
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz"), array)


def test_ratios_are_paired_so_that_a_slow_spell_cancels() -> None:
    muster, bare = Rates("Muster", [95, 190, 47.5]), Rates("bare", [100, 200, 50])
    assert paired_ratio(muster, bare) == pytest.approx(0.95)
    rates = {"muster": muster, "bare": bare}
    assert "0.95 × bare (target ≥ 0.93): reached" in verdict(Target("bare", 0.93), rates)
    assert "NOT reached" in verdict(Target("bare", 0.96), rates)


def test_table() -> None:
    rates = {"muster": Rates("Muster", [2000.0, 3000.0, 2500.0]), "bare": Rates("bare", [2000.0, 3000.0, 2500.0])}
    rows = rate_table(rates)
    assert rows[1:] == [["Muster", "2,500", "2,000 – 3,000", ""], ["bare", "2,500", "2,000 – 3,000", "1.00"]]
    assert as_markdown(rows).splitlines()[1] == "|---|---|---|---|"
    assert len({len(line) for line in as_text(rows).splitlines()}) == 1


def test_picture(tmp_path: Path) -> None:
    plot_ratios({"MLP": {"Flower": 60.0, "bare PyTorch": 0.9}}, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_every_target_is_against_a_side_that_is_run() -> None:
    for case in CASES.values():
        assert set(case.sides()) <= set(TITLES)
        assert {target.against for target in case.targets} <= set(case.sides())
        assert case.sides(without=("flower", "pfl"))[0] == "muster"


@pytest.mark.parametrize(("others", "busy"), [(0.02, False), (0.7, True)])
def test_page_has_commands_and_numbers_and_says_when_the_machine_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: float, busy: bool
) -> None:
    monkeypatch.setattr(page, "DOCS", tmp_path)
    (tmp_path / "images").mkdir()
    where = {
        "date": "1 May",
        "machine": "M",
        "packages": {"torch": "2"},
        "others": others,
        "command": "python b.py",
    }
    rates = {side: [1000.0 if side == "muster" else 500.0] * 3 for side in CASES["mlp"].sides()}
    workload = asdict(CASES["mlp"].workload)
    entry = {"conditions": where, "workload": workload, "clients": {"flower": 7}, "values": rates}
    limits = {"machine": {"convolution": 4e9, "matrix product": 2e9}, "operations": {"mlp": 2e6}}
    scaling = [{"changed": "", "to": None, "rate": 10.0}, {"changed": "workers", "to": 1, "rate": 5.0}]
    page.write_page(
        {
            "speed": {"mlp": entry},
            "scaling": {"mlp": {"conditions": where, "values": scaling}},
            "limits": {name: {"conditions": where, "values": values} for name, values in limits.items()},
            "profile": {"femnist-cnn": {"conditions": where, "values": {"pooling": 0.25}}},
            "startup": {"femnist-cnn": {"conditions": where, "values": [5.0, 2.0, 3.0]}},
            "memory": {"femnist-cnn": {"conditions": where, "values": {"median": {"6": 2**20, "50": 3 * 2**20}}}},
        }
    )
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| MLP, cross-device | plain loop, one process | 2.00 | ≥ 4 | **not reached** |" in text
    assert "| Flower | 500 | 500 – 500 | 2.00 |" in text
    assert "| 1 worker | 5 | 0.50 |" in text
    assert "Flower had 7 clients in all." in text
    assert "| MLP, cross-device | 2.00 | 2,000 | 1,000 (50 %) | 25,000 |" in text
    assert "| pooling | 25.0 % |" in text
    assert "5.0 s the first time (data files are decoded), then 2.5 s" in text
    assert "| median | 1 | 3 | +2 |" in text
    assert "`python b.py`, 1 May" in text
    assert ("The machine was busy" in text) is busy


def test_operators_are_told_apart() -> None:
    assert side_profile.kind_of("aten::mkldnn_convolution") == "matrix multiplication and convolution"
    assert side_profile.kind_of("aten::max_pool2d_with_indices_backward") == "pooling"
    assert side_profile.kind_of("aten::threshold_backward") == "activation and loss"
    assert side_profile.kind_of("aten::fill_") == side_profile.OTHER
    assert side_profile.kind_of("autograd::engine::evaluate_function: ConvolutionBackward0") == side_profile.OTHER


def test_what_a_kernel_calls_belongs_to_it() -> None:
    pooling = SimpleNamespace(name="aten::max_pool2d_with_indices_backward", cpu_parent=None)
    filling = SimpleNamespace(
        name="aten::fill_", cpu_parent=SimpleNamespace(name="aten::zero_", cpu_parent=pooling)
    )
    assert side_profile.kind_of_event(filling) == "pooling"
    assert side_profile.kind_of_event(SimpleNamespace(name="aten::fill_", cpu_parent=None)) == side_profile.OTHER


def test_operations_are_those_of_a_step() -> None:
    # 60 × 10 multiplications and additions forward, and as many for the gradient of the weights.
    assert operations(tiny("logistic")) == 2 * 2 * 60 * 10


@pytest.mark.bench
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_speed_targets(name: str) -> None:
    rates = benchmark.measure_speed(CASES[name], repeats=3, without=())
    titled = {side: Rates(TITLES[side], values) for side, values in rates.items()}
    for target in CASES[name].targets:
        assert paired_ratio(titled["muster"], titled[target.against]) >= target.at_least, verdict(target, titled)


@pytest.mark.bench
def test_start_up_target() -> None:
    starts = startup.measure(Workload(), repeats=3)
    assert max(starts) < page.STARTUP_SECONDS


@pytest.mark.bench
def test_streaming_memory_does_not_grow_with_the_cohort() -> None:
    peaks = benchmark.measure_memory(Workload(samples=128))
    update = 4 * sum(parameter.numel() for parameter in network(Workload()).parameters())
    assert peaks["fedavg"][50] - peaks["fedavg"][6] < 3 * update
    assert peaks["median"][50] - peaks["median"][6] > 30 * update, "else this measure could not see growth"


def test_a_run_without_other_systems_stands_beside_the_table_that_has_them() -> None:
    def entry(**values: list[float]) -> dict[str, object]:
        where = {"command": "c", "date": "d", "machine": "m", "packages": {}}
        return {"conditions": where, "workload": asdict(CASES["mlp"].workload), "clients": {}, "values": values}

    complete = {"mlp": entry(muster=[40.0], plain=[10.0], pfl=[8.0])}
    later = {"mlp": entry(muster=[60.0], plain=[10.0])}
    summary = page._summary(complete, later)
    assert "| plain loop, one process | 6.00 |" in summary
    assert "| pfl-research | 5.00 |" in summary
    section = page._speed(CASES["mlp"], complete["mlp"], {"speed": complete, page.PARTIAL: later})
    assert section.index("pfl-research") < section.index("Measured again, without other systems")


def test_the_page_says_where_speed_has_fallen() -> None:
    def entry(date: str, **values: list[float]) -> dict[str, object]:
        return {"conditions": {"date": date}, "values": values}

    before = {
        "mlp": entry("then", muster=[40.0], plain=[10.0], bare=[20.0]),
        "logistic": entry("then", muster=[1.0]),
    }
    after = {"mlp": entry("now", muster=[39.5], plain=[10.0], bare=[20.5])}
    section = page._change(before, after)
    assert "| plain loop, one process | 4.000 (4.00 – 4.00; 1 repeats) |" in section
    assert "| 3.950 (3.95 – 3.95; 1 repeats) | -1.2 % | yes |" in section
    assert "| 1.927 (1.93 – 1.93; 1 repeats) | -3.7 % | **no** |" in section
    assert "Before: then; after: now." in section
    assert page._change(before, {}) == ""
