"""Where data sets are looked for, and what is said when they are nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from muster.core.errors import DataError
from muster.data import locate
from muster.data.locate import DataFiles, FileLayout, places
from muster.data.sources import sources


@pytest.fixture
def thing(monkeypatch):
    monkeypatch.setattr(locate, "known", {})

    def find(folder):
        return sorted(folder.glob("*.thing"))

    def read(files, new):
        return {"value": np.array([int(files[0].read_text())])}

    return DataFiles("thing", needs="a file *.thing", layouts={"plain": FileLayout(find, read)}, home="the shop")


def put(folder, value):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.thing").write_text(str(value))


def test_order_of_places(thing, isolated, tmp_path, monkeypatch):
    system, chosen = tmp_path / "system", tmp_path / "chosen"
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", {"thing": system})
    chosen.mkdir()
    found = []
    for folder in [locate.fetched_dir() / "thing", system, isolated / "thing", chosen, chosen / "thing"]:
        put(folder, len(found))
        found.append(thing.arrays(chosen)[0]["value"][0])
    assert found == [0, 1, 2, 3, 4]
    assert [place.why for place in places("thing", chosen)] == [
        "data_dir",
        "data_dir",
        "MUSTER_DATA",
        "system package",
        "fetched",
    ]


def test_missing_data_says_where_and_how(thing, isolated):
    with pytest.raises(DataError) as error:
        thing.arrays()
    message = str(error.value)
    assert str(isolated / "thing") in message
    assert str(locate.fetched_dir() / "thing") in message
    assert "a file *.thing" in message
    assert "by hand: the shop" in message
    assert "MUSTER_DATA" in message


def test_named_folder_must_exist(thing, isolated, tmp_path):
    put(isolated / "thing", 1)
    with pytest.raises(DataError, match=r"data\.data_dir"):
        thing.arrays(tmp_path / "typo")


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("name", sources.names())
def test_no_source_makes_up_data(name):
    if name in ("digits", "synthetic", "spurious-shapes"):
        assert len(sources.build(name, {}).train) > 0
        return
    with pytest.raises(DataError, match=r"is not here|no folder is named"):
        sources.build(name, {})


@pytest.mark.parametrize("name", sources.names())
def test_every_source_takes_a_folder_and_has_a_summary(name):
    from muster.core.registry import parameters_of

    assert parameters_of(sources.get(name))["data_dir"].default is None
    assert sources.summary(name).endswith(".")


def test_another_data_sets_files_are_not_taken(isolated, write_parquet):
    # A folder of many data sets as data_dir: mnist is not there, cifar10's Parquet files must not stand in for it.
    for split in ("train", "test"):
        write_parquet(
            isolated / f"cifar10/{split}-0.parquet", np.zeros((1, 32, 32, 3), np.uint8), "img", label=[0]
        )
    with pytest.raises(DataError, match="'mnist' is not here"):
        sources.build("mnist", {"data_dir": str(isolated)})
    assert sources.build("cifar10", {"data_dir": str(isolated)}).train.features.shape == (1, 3, 32, 32)
