"""What a model starts from belongs to a run's fingerprint: the numbers in the files, not the files' names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import muster
from muster.config.experiment import Experiment
from muster.config.identity import fingerprint
from muster.experiment import from_dict
from muster.models import build_model
from muster.results.store import Store


def of(**model: str) -> str:
    return Experiment(model={"name": "resnet20", **model}).fingerprint


@pytest.mark.parametrize("option", ["weights", "image_weights"])
def test_other_numbers_under_the_same_name_are_another_run(tmp_path: Path, option: str) -> None:
    file = tmp_path / "weights.pt"
    file.write_bytes(b"some numbers")
    first = of(**{option: str(file)})
    os.utime(file, (1, 1))
    assert of(**{option: str(file)}) == first, "when it was written does not matter"
    file.write_bytes(b"more numbers")
    assert of(**{option: str(file)}) != first


@pytest.mark.parametrize("option", ["folder", "text_folder"])
@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors", "pytorch_model.bin"])
def test_all_files_of_a_pretrained_model_count_and_no_others(tmp_path: Path, option: str, name: str) -> None:
    (tmp_path / name).write_text("one")
    first = of(**{option: str(tmp_path)})
    (tmp_path / "README.md").write_text("something else")
    assert of(**{option: str(tmp_path)}) == first
    (tmp_path / name).write_text("two")
    assert of(**{option: str(tmp_path)}) != first


@pytest.mark.parametrize(
    "model", [{"weights": "owner/repository"}, {"folder": "minilm"}, {"weights": "/nowhere"}, {}]
)
def test_names_stand_for_themselves_and_runs_without_files_are_those_of_before(model: dict[str, str]) -> None:
    experiment = Experiment(model={"name": "resnet20", **model})
    assert experiment.fingerprint == fingerprint(experiment.described())


def test_a_store_does_not_give_the_result_of_other_weights(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    experiment = from_dict(
        {
            "rounds": 1,
            "data": {"source": "digits"},
            "partition": {"scheme": "iid", "clients": 4},
            "model": {"name": "logistic", "weights": str(file)},
            "selection": {"method": "random", "clients_per_round": 2},
        }
    )
    results = []
    for seed in (1, 2, 1):
        torch.save(build_model("logistic", (1, 8, 8), 10, seed=seed).state_dict(), file)
        results.append(muster.run(experiment, workers=0, store=tmp_path / "store", resume=True))
    assert not np.array_equal(results[0].parameters, results[1].parameters)
    assert np.array_equal(results[0].parameters, results[2].parameters)
    with Store(tmp_path / "store") as store:
        assert len(store.results()) == 2
