"""Fed-Heart-Disease: the UCI layout, what becomes of missing numbers, and files that are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import muster
from muster.core.errors import ConfigError, DataError
from muster.core.randomness import generator
from muster.data.federated import Normalisation
from muster.data.partition import schemes
from muster.data.sources import sources
from muster.data.sources.heart_disease import HOSPITALS, complete, features_of
from muster.experiment import from_dict

PATIENT = [63.0, 1.0, 1.0, 145.0, 233.0, 1.0, 2.0, 150.0, 0.0, 2.3, 3.0, 0.0, 6.0, 0.0]


def line(*, age: float = 50, cp: object = 1, chol: object = 200, num: object = 0, slope: object = "?") -> str:
    return f"{age},1,{cp},120,{chol},0,0,150,0,.5,{slope},?,?,{num}"


@pytest.fixture
def hospitals(isolated):
    """Writes the files of four hospitals: 9 healthy and 6 ill patients each, whose ages tell the hospital."""
    folder = isolated / "heart-disease"
    folder.mkdir()

    def write(**changes: str) -> Path:
        for number, name in enumerate(HOSPITALS):
            healthy = [line(age=30 + number, cp=1 + k % 4) for k in range(9)]
            ill = [line(age=30 + number, num=1 + k % 4) for k in range(6)]
            text = changes.get(name, "\n".join([*healthy, *ill]) + "\n")
            (folder / f"processed.{name}.data").write_text(text)
        return folder

    return write


def test_a_patient_by_hand():
    """Amounts keep their order; chest pain 1 and electrocardiogram 0 are what the others are told from."""
    rows = np.array([PATIENT, [*PATIENT[:2], 3.0, *PATIENT[3:6], 0.0, *PATIENT[7:]]])
    found = features_of(rows)
    assert found[0].tolist() == [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1]
    assert found[1].tolist() == [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 1, 0, 0, 0]


def test_only_patients_with_gaps_elsewhere_are_left_out():
    rows = np.array([PATIENT] * 3)
    rows[0, 10:13] = np.nan  # slope, ca and thal are left out for everybody
    rows[1, 4] = np.nan
    assert complete(rows).tolist()[1:] == [PATIENT]
    assert len(complete(rows)) == 2


def test_hospitals_are_clients(hospitals):
    hospitals(
        va="\n".join([line(age=33), line(age=99, chol="?"), line(age=33, num=2), *[line(age=33)] * 4]) + "\n"
    )
    data = sources.build("heart-disease", {"test_fraction": 0.34, "standardise": "none"})
    assert (data.classes, data.class_names, data.sample_shape) == (2, ("healthy", "ill"), (13,))
    assert data.owner_names == HOSPITALS
    # ⌊0.34 · 9⌋ healthy and ⌊0.34 · 6⌋ ill of each are for testing; of the last, ⌊0.34 · 5⌋ and none.
    assert np.bincount(data.test.owners * 2 + data.test.labels, minlength=8).tolist() == [3, 2] * 3 + [1, 0]
    assert np.bincount(data.train.owners * 2 + data.train.labels).tolist() == [6, 4] * 3 + [4, 1]
    for part in (data.train, data.test):
        assert part.features[:, 0].tolist() == (30 + part.owners).tolist()  # nobody of 99 years
    partition = schemes.build("natural", {}).divide(data, generator(0, "partition"))
    assert partition.train.sizes.tolist() == [10, 10, 10, 5]


def test_columns_have_mean_0_and_spread_1_over_all_training_patients(hospitals):
    hospitals()
    data = sources.build("heart-disease", {"standardise": "all"})
    found = data.normalisation.apply(torch.from_numpy(np.array(data.train.features))).double()
    assert found.mean(dim=0).abs().max() < 1e-5
    varied = data.train.features.std(axis=0) > 0
    np.testing.assert_allclose(found.std(dim=0)[torch.from_numpy(varied)], 1.0, rtol=1e-4)
    assert not found[:, torch.from_numpy(~varied)].any()


def test_columns_are_standardised_hospital_by_hospital_as_in_flamby(hospitals):
    """By its own training patients, with the deviation of a sample; what all have in common becomes 0."""
    hospitals(
        hungarian="\n".join(line(age=30 + k, chol=100 + 3 * k, num=k % 2) for k in range(12)) + "\n",
        switzerland="\n".join(line(age=60 + 2 * k, chol=0, num=k % 2) for k in range(12)) + "\n",
    )
    data, raw = sources.build("heart-disease", {}), sources.build("heart-disease", {"standardise": "none"})
    assert data.normalisation == raw.normalisation == Normalisation()
    for number in range(len(HOSPITALS)):
        own = torch.from_numpy(np.array(raw.train.features[raw.train.owners == number]))
        mean, spread = own.mean(dim=0), own.std(dim=0)
        spread[spread == 0] = 1
        for found, given in ((data.train, raw.train), (data.test, raw.test)):
            expected = (torch.from_numpy(np.array(given.features[given.owners == number])) - mean) / spread
            np.testing.assert_allclose(found.features[found.owners == number], expected, atol=1e-5)
    assert not data.train.features[data.train.owners == 2, 3].any()  # cholesterol in Switzerland
    assert data.train.features[data.train.owners == 1, 3].any()


def test_it_trains(hospitals):
    hospitals()
    settings = {
        "rounds": 2,
        "data": {"source": "heart-disease"},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "selection": {"method": "random", "clients_per_round": 4},
    }
    result = muster.run(from_dict(settings), workers=0)
    assert np.isfinite(result.metrics[-1]["loss"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (line() + "\n" + line()[:20], "line 2 has 8 columns"),
        (line().replace(",", " "), "line 1 has 1 columns"),
        (line() + ",1", "line 1 has 15 columns"),
        (line(chol="high"), "line 1: 'high' is not a number"),
        (line(cp=7), "line 1: 'cp' is 7"),
        (line() + "\n" + line(num=9), "line 2: 'num' is 9"),
        (line(slope=-9), "line 1: 'slope' is -9"),
        (line().replace(",1,", ",3,", 1), "line 1: 'sex' is 3"),
        (line(chol="inf"), "line 1: 'chol' is inf"),
        (line(chol="?"), "no patient of whom enough is known"),
    ],
)
def test_bad_files_are_named_with_their_line(hospitals, text, words):
    hospitals(hungarian=text)
    with pytest.raises(DataError, match=words) as caught:
        sources.build("heart-disease", {})
    assert "processed.hungarian.data" in str(caught.value)
    assert caught.value.expected


def test_pictures_are_not_tables(hospitals):
    (hospitals() / "processed.va.data").write_bytes(b"\x89PNG\xff\x00")
    with pytest.raises(DataError, match=r"processed\.va\.data is not a table"):
        sources.build("heart-disease", {})


def test_every_hospital_is_needed(hospitals):
    (hospitals() / "processed.switzerland.data").unlink()
    with pytest.raises(DataError, match=r"has no file processed\.switzerland\.data"):
        sources.build("heart-disease", {})


def test_absent_data_and_bad_options(isolated):
    with pytest.raises(
        DataError, match=r"is not here(.|\n)*processed\.cleveland\.data(.|\n)*archive\.ics\.uci\.edu"
    ):
        sources.build("heart-disease", {})
    for option, value in (("test_fraction", 1.0), ("standardise", "client")):
        with pytest.raises(ConfigError, match=option):
            sources.build("heart-disease", {option: value})


@pytest.mark.realdata
def test_the_real_patients(monkeypatch, tmp_path):
    root = os.environ.get("MUSTER_DATA")
    if not root or not (Path(root) / "heart-disease").is_dir():
        pytest.skip("the real data set heart-disease is not in MUSTER_DATA")
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    data = sources.build("heart-disease", {})
    owners = np.concatenate([data.train.owners, data.test.owners])
    assert np.bincount(owners).tolist() == [303, 261, 46, 130]  # as in FLamby
