"""PACS: Parquet in the hub's layout; classes and domains, whole or joined; one domain left out."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import muster
from muster.config.workloads import workload
from muster.core.errors import ConfigError, DataError
from muster.core.randomness import generator
from muster.data.partition import schemes
from muster.data.sources import sources
from muster.data.sources.pacs import CLASSES, DOMAINS
from muster.experiment import from_dict
from muster.experiment.components import build_data

COPIES = 5


@pytest.fixture
def pacs(isolated, write_parquet):
    """Five pictures of each class in each domain; red tells the class, green the domain, blue the copy."""
    cells = list(itertools.product(range(7), range(4), range(COPIES)))
    pictures = [np.full((10, 10, 3), (20 * y, 50 * d, 9 * copy), dtype=np.uint8) for y, d, copy in cells]
    write_parquet(
        isolated / "pacs/data/train-00000-of-00001.parquet",
        pictures,
        domain=[DOMAINS[d] for _, d, _ in cells],
        label=[y for y, _, _ in cells],
    )

    def build(**options):
        return sources.build("pacs", {"image_size": 8} | options)

    return build


def test_classes_and_domains(pacs):
    data = pacs()
    assert (len(data.train), len(data.test), data.sample_shape) == (7 * 4 * 4, 7 * 4, (3, 8, 8))
    assert (data.class_names, data.attribute_names, data.owner_names) == (CLASSES, DOMAINS, DOMAINS)
    for part, copies in ((data.train, 4), (data.test, 1)):
        assert np.bincount(part.labels * 4 + part.attributes).tolist() == [copies] * 28
        assert part.features[:, 0, 4, 4].tolist() == (20 * part.labels).tolist()
        assert part.features[:, 1, 4, 4].tolist() == (50 * part.attributes).tolist()
        assert part.owners.tolist() == part.attributes.tolist()


def test_some_classes_and_joined_domains(pacs):
    data = pacs(classes=["horse+dog", "person"], domains=["photo", "cartoon+sketch"], test_fraction=0.4)
    assert data.class_names == ("horse+dog", "person")
    assert data.attribute_names == ("photo", "cartoon+sketch")
    assert np.bincount(data.train.labels * 2 + data.train.attributes).tolist() == [6, 12, 3, 6]
    assert np.bincount(data.test.labels * 2 + data.test.attributes).tolist() == [4, 8, 2, 4]
    assert set(data.train.owners.tolist()) == {1, 2, 3}, "the domains themselves stay known"


def test_one_domain_left_out(pacs):
    data = pacs(test_domain="sketch")
    assert np.bincount(data.train.attributes, minlength=4).tolist() == [35, 35, 35, 0]
    assert np.bincount(data.test.attributes, minlength=4).tolist() == [0, 0, 0, 35]


def test_three_domains_train_and_the_fourth_tests(pacs):
    """Nobody has samples of the domain that is left out: there are three clients, and the server tests."""
    settings = {
        "rounds": 2,
        "data": {"source": "pacs", "image_size": 8, "test_domain": "photo"},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "selection": {"method": "random", "clients_per_round": 3},
    }
    result = muster.run(from_dict(settings), workers=0)
    assert result.selections[0] == [[0, 1, 2]]
    assert np.isfinite(result.metrics[-1]["accuracy"])
    data = pacs(test_domain="photo")
    partition = schemes.build("natural", {}).divide(data, generator(0, "partition"))
    assert [set(data.train.owners[partition.train[k]].tolist()) for k in range(3)] == [{0}, {1}, {3}]
    assert partition.test.sizes.tolist() == [0, 0, 0]


@pytest.mark.parametrize("domain", DOMAINS)
def test_leaving_a_domain_out_is_a_federation_by_name(pacs, domain):
    preset = workload(f"pacs-without-{domain.replace('_', '-')}")
    preset["data"] |= {"image_size": 8}
    data = build_data(from_dict(preset))
    names = [DOMAINS[owner] for owner in np.unique(data.dataset.train.owners)]
    assert names == [name for name in DOMAINS if name != domain]
    assert data.clients == preset["selection"]["clients_per_round"] == 3
    assert np.unique(data.dataset.test.owners).tolist() == [DOMAINS.index(domain)]


def test_domains_as_clients(pacs):
    partition = schemes.build("natural", {}).divide(pacs(), generator(0, "partition"))
    assert partition.train.sizes.tolist() == [28] * 4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"classes": ["dog", "cat"]}, "data.classes"),
        ({"classes": ["dog"]}, "data.classes"),
        ({"domains": ["photo", "photo+sketch"]}, "data.domains"),
        ({"domains": ["photo", "cartoon"], "test_domain": "sketch"}, "data.test_domain"),
        ({"test_fraction": 1.0}, "data.test_fraction"),
    ],
)
def test_refuses_bad_options(pacs, options, problem):
    with pytest.raises(ConfigError, match=problem):
        pacs(**options)


def test_unknown_domains_and_missing_files(isolated, write_parquet):
    with pytest.raises(DataError, match="is not here"):
        sources.build("pacs", {})
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    write_parquet(isolated / "pacs/train-0.parquet", [picture], domain=["clay"], label=[0])
    with pytest.raises(DataError, match="clay"):
        sources.build("pacs", {})


@pytest.mark.parametrize(
    ("label", "message"), [(-1, "goes from -1 to 0"), (7, "goes from 0 to 7"), (None, "sample 1 has no 'label'")]
)
def test_a_label_that_is_none_is_no_class(isolated, write_parquet, label, message):
    """Labels are places in a list of classes: −1 would be its last one."""
    pictures = [np.zeros((4, 4, 3), dtype=np.uint8)] * 2
    write_parquet(isolated / "pacs/train-0.parquet", pictures, domain=["photo"] * 2, label=[0, label])
    with pytest.raises(DataError, match=message):
        sources.build("pacs", {})


def test_whole_numbers_are_not_rounded(isolated, write_parquet):
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    write_parquet(isolated / "pacs/train-0.parquet", [picture], domain=["photo"], label=[1.5])
    with pytest.raises(DataError, match="whole numbers"):
        sources.build("pacs", {})


@pytest.mark.parametrize(("content", "said"), [(b"no picture", "it is no picture"), (None, "there is none")])
def test_a_picture_that_is_none_is_named(isolated, encoded, content, said):
    good = encoded(np.zeros((4, 4, 3), dtype=np.uint8))
    contents = [good] * 9 + [content]
    (isolated / "pacs").mkdir()
    table = {
        "image": [{"bytes": one, "path": None} for one in contents],
        "domain": ["photo"] * 10,
        "label": [0] * 10,
    }
    pq.write_table(pa.table(table), isolated / "pacs/train-0.parquet")
    with pytest.raises(DataError, match=rf"cannot decode picture 9 of .*pacs: {said}"):
        sources.build("pacs", {})
