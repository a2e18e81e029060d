"""The engine benchmark: its parts on tiny sizes; the targets themselves under the mark `bench`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import engine as benchmark
from harness import side_muster, startup
from harness.processes import SideFailed, environment, peak_memory, run_side
from harness.report import Rates, Target, as_markdown, as_text, paired_ratio, plot_rates, rate_table, verdict
from harness.workload import CLASSES, SIDE, Workload, client_tensors, network, train_plainly
from muster.data.sources._idx import read_idx
from muster.models.base import build_model

TINY = Workload(clients=4, samples=20, cohort=2, batch=8, rounds=1)


def test_peers_train_the_same_network_as_muster() -> None:
    ours = build_model("femnist-cnn", (1, SIDE, SIDE), CLASSES, seed=0)
    assert str(ours) == str(network())
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in network().state_dict().items()
    }


def test_peers_see_the_same_numbers_as_muster() -> None:
    data = side_muster.federation(TINY)
    for client, (features, labels) in enumerate(client_tensors(TINY)):
        ours, our_labels = data.client(client)
        torch.testing.assert_close(ours, features)
        assert torch.equal(our_labels, labels)


def test_the_bare_loop_goes_through_every_sample_and_learns() -> None:
    torch.manual_seed(0)
    features, labels = client_tensors(TINY)[0]
    model = network()
    before = model[-1].bias.detach().clone()
    assert train_plainly(model, features, labels, TINY) == TINY.samples
    assert not torch.equal(model[-1].bias, before)


def test_muster_side_counts_the_timed_rounds_only() -> None:
    workload = Workload(clients=4, samples=20, cohort=2, batch=8, rounds=2, workers=0)
    answer = side_muster.measure(workload)
    assert answer["samples"] == workload.timed_samples == 2 * 2 * 20
    assert answer["seconds"] > 0


@pytest.mark.slow
def test_bare_side_divides_the_same_work_over_its_processes() -> None:
    workload = Workload(clients=4, samples=20, cohort=3, batch=8, rounds=1)
    answer = run_side("harness.side_bare", [workload.to_json()])
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


def test_table_and_picture(tmp_path: Path) -> None:
    rates = {"muster": Rates("Muster", [2000.0, 3000.0, 2500.0]), "bare": Rates("bare", [2000.0, 3000.0, 2500.0])}
    rows = rate_table(rates)
    assert rows[1:] == [["Muster", "2,500", "2,000 – 3,000", ""], ["bare", "2,500", "2,000 – 3,000", "1.00"]]
    assert as_markdown(rows).splitlines()[1] == "|---|---|---|---|"
    assert len({len(line) for line in as_text(rows).splitlines()}) == 1
    plot_rates(rates, tmp_path / "speed.png", "title")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("load", "busy"), [(0.2, False), (7.0, True)])
def test_page_has_the_command_the_numbers_and_says_when_the_machine_was_busy(load: float, busy: bool) -> None:
    rates = {name: Rates(title, [1000.0] * 5) for name, title in benchmark.TITLES.items()}
    memories = [
        benchmark.Memory("fedavg", {6: 500 * 2**20, 50: 501 * 2**20}),
        benchmark.Memory("median", {6: 500 * 2**20, 50: 780 * 2**20}),
    ]
    findings = benchmark.Findings(Workload(), rates, [5.0, 2.0, 3.0], memories, load, {"torch": "2.13.0"})
    text = benchmark.page(findings, "python benchmarks/engine.py --repeats 5")
    assert "```sh\npython benchmarks/engine.py --repeats 5\n```" in text
    assert "| Muster | 1,000 | 1,000 – 1,000 |  |" in text
    assert "1.00 × bare PyTorch, tuned (target ≥ 0.93): reached" in text
    assert "1.00 × Flower (target ≥ 1.8): NOT reached" in text
    assert "5.0 s the first time (data files are decoded), then 2.5 s" in text
    assert "| median (needs all updates at once) | 500 | 780 | +280 |" in text
    assert ("The machine was busy" in text) is busy


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_speed_targets() -> None:
    rates = benchmark.measure_speed(Workload(rounds=3), repeats=5, with_flower=True)
    for target in benchmark.TARGETS:
        assert paired_ratio(rates["muster"], rates[target.against]) >= target.at_least, verdict(target, rates)


@pytest.mark.bench
def test_start_up_target() -> None:
    starts = startup.measure(Workload(), repeats=3)
    assert max(starts) < benchmark.STARTUP_SECONDS


@pytest.mark.bench
def test_streaming_memory_does_not_grow_with_the_cohort() -> None:
    streaming, whole = benchmark.measure_memory(Workload(samples=128))
    assert streaming.growth < 3 * benchmark.update_size()
    assert whole.growth > 30 * benchmark.update_size(), "else this measure could not see growth"
