"""group-skew: the published tables with their published strengths, the general construction, short supply."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from muster.core.errors import ConfigError, DataError
from muster.data.partition._group_tables import blueprints
from muster.data.partition.group_skew import GroupSkew, named_tables, skewed_table
from muster.heterogeneity.metrics import triplets

PUBLISHED = {
    # clients, sizes, pooled table, global triplet, mean client triplet, clients with most CI / AI / SC
    "spawrious-gsc": (24, {200}, [[1760, 640], [640, 1760]], (0, 0, 0.1634), (0.0885, 0.0885, 0.3540), (4, 4, 16)),
    "cmnist-gsc": (24, {200}, [[1760, 640], [640, 1760]], (0, 0, 0.1634), (0.0885, 0.0885, 0.3540), (4, 4, 16)),
    # Ours: the same mix on fewer samples.
    "pacs-gsc": (24, {140}, [[1232, 448], [448, 1232]], (0, 0, 0.1634), (0.0885, 0.0885, 0.3540), (4, 4, 16)),
    "spawrious-gci": (24, {200}, [[1760, 1760], [640, 640]], (0.1634, 0, 0), (0.3540, 0.0885, 0.0885), (16, 4, 4)),
    "spawrious-gai": (
        25,
        {155, 175, 185, 170, 182, 187, 208},
        [[2000, 500], [2000, 100]],
        (0.0055, 0.4414, 0.0517),
        (0.2011, 0.4966, 0.1189),
        (7, 16, 2),
    ),
    "waterbirds-dist": (
        30,
        {166, 158, 156, 159, 160},
        [[3498, 184], [56, 1057]],
        (0.2183, 0.1751, 0.6701),
        (0.2617, 0.2563, 0.7610),
        (3, 2, 25),
    ),
    "spawrious-4": (
        25,
        {100, 496, 492},
        [[2000, 200], [2000, 200], [200, 2000], [200, 2000]],
        (0, 0, 0.3737),
        (0.0222, 0.0445, 0.3297),
        (4, 4, 17),
    ),
    "spawrious-gci-100": (
        100,
        {156},
        [[5640, 5640], [2160, 2160]],
        (0.1488, 0, 0),
        (0.3043, 0.0716, 0.0716),
        (68, 16, 16),
    ),
}


def test_every_published_table_is_checked():
    assert set(PUBLISHED) == set(blueprints)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_federations(name):
    clients, sizes, pooled, strengths, of_clients, dominant = PUBLISHED[name]
    tables = named_tables(name)
    assert len(tables) == clients
    assert set(tables.sum(axis=(1, 2)).tolist()) == sizes
    assert tables.sum(axis=0).tolist() == pooled
    np.testing.assert_allclose(triplets(tables.sum(axis=0)[None])[0], strengths, atol=5e-5)
    weighted = triplets(tables)
    np.testing.assert_allclose(weighted.mean(axis=0), of_clients, atol=5e-5)
    assert tuple(np.bincount(weighted.argmax(axis=1), minlength=3)) == dominant


def grouped(make_dataset, per_cell, classes=2, values=2, test_per_cell=20):
    def cells(count):
        cell = np.repeat(np.arange(classes * values), count)
        return cell // values, cell % values

    (labels, attributes), (test_labels, test_attributes) = cells(per_cell), cells(test_per_cell)
    return make_dataset(labels, test_labels, classes, attributes=(attributes, test_attributes), values=values)


def test_clients_have_exactly_their_tables(make_dataset, check_partition):
    dataset = grouped(make_dataset, 1800)
    scheme = GroupSkew(table="spawrious-gsc")
    one, two = (scheme.divide(dataset, np.random.default_rng(0)) for _ in range(2))
    fed = check_partition(one, dataset, 24, complete=False)
    np.testing.assert_array_equal(fed.group_counts, named_tables("spawrious-gsc"))
    assert fed.unassigned().sum() == 4 * 1800 - 4800
    np.testing.assert_array_equal(one.train.samples, two.train.samples)


def test_test_samples_match_group_by_group(make_dataset, check_partition):
    dataset = grouped(make_dataset, 1000, test_per_cell=1000)
    fed = check_partition(
        GroupSkew(correlation=(3, 1), size=200).divide(dataset, np.random.default_rng(0)),
        dataset,
        4,
        complete=False,
    )
    cell = dataset.test.labels * 2 + dataset.test.attributes
    for k in range(4):
        counts = np.bincount(cell[fed.test_index[k]], minlength=4)
        assert (np.abs(counts - fed.group_counts[k].ravel()) <= 1).all()


@pytest.mark.parametrize(
    ("skew", "reverse", "expected"),
    [
        ("class", False, [[90, 90], [10, 10]]),
        ("class", True, [[10, 10], [90, 90]]),
        ("attribute", False, [[90, 10], [90, 10]]),
        ("attribute", True, [[10, 90], [10, 90]]),
        ("correlation", False, [[90, 10], [10, 90]]),
        ("correlation", True, [[10, 90], [90, 10]]),
    ],
)
def test_templates_of_the_paper(skew, reverse, expected):
    assert skewed_table(skew, 2, 2, 200, 0.9, reverse=reverse).tolist() == expected


def test_templates_with_four_classes():
    assert skewed_table("class", 4, 2, 100, 0.8).tolist() == [[20, 20], [20, 20], [5, 5], [5, 5]]
    assert skewed_table("correlation", 4, 2, 100, 0.8, reverse=True).tolist() == [
        [5, 20],
        [5, 20],
        [20, 5],
        [20, 5],
    ]


@pytest.mark.parametrize(("share", "size", "strength"), [(0.9, 200, 0.5310), (68 / 78, 156, 0.4475)])
@pytest.mark.parametrize(("position", "skew"), list(enumerate(["class", "attribute", "correlation"])))
def test_strength_of_a_template(*, share, size, strength, position, skew):
    found = triplets(skewed_table(skew, 2, 2, size, share)[None])[0]
    assert found[position] == pytest.approx(strength, abs=5e-5)
    assert found[position] == pytest.approx(1 - entropy([share, 1 - share], base=2))
    assert np.delete(found, position) == pytest.approx([0, 0], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    numbers=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=3).filter(
        lambda pairs: any(map(any, pairs))
    ),
    shape=st.tuples(st.integers(2, 5), st.integers(2, 4)),
    size=st.integers(1, 60),
    share=st.floats(0.5, 1.0),
)
def test_constructed_clients_have_their_size(*, numbers, shape, size, share, make_dataset, check_partition):
    dataset = grouped(make_dataset, 18 * 60, *shape)
    scheme = GroupSkew(None, None, *numbers, size=size, share=share)  # type: ignore[misc]
    clients = sum(map(sum, numbers))
    fed = check_partition(scheme.divide(dataset, np.random.default_rng(0)), dataset, clients, complete=False)
    assert (fed.sizes == size).all()
    np.testing.assert_array_equal(fed.group_counts, scheme.tables(*shape))


def test_too_little_of_a_group_is_named(make_dataset):
    with pytest.raises(DataError, match="class 0, attribute 0: 1760 wanted, 700 there; class 1, attribute 1"):
        GroupSkew(table="spawrious-gsc").divide(grouped(make_dataset, 700), np.random.default_rng(0))


def test_data_without_attributes_is_refused(make_dataset):
    with pytest.raises(DataError, match="no group attributes"):
        GroupSkew(table="spawrious-gsc").divide(make_dataset([0, 1] * 10), np.random.default_rng(0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"table": "no-such"},
        {"table": "spawrious-4"},
        {"table": "spawrious-gsc", "clients": 25},
        {"correlation": (1, 0), "share": 0.4},
        {"correlation": (1, 0), "size": 0},
        {"correlation": (-1, 2)},
    ],
)
def test_impossible_options_are_refused(options, make_dataset):
    with pytest.raises(ConfigError):
        GroupSkew(**options).divide(grouped(make_dataset, 2000), np.random.default_rng(0))
