"""The look at a partition: what the table says, and pictures that stay readable for any number of clients."""

import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from muster.core.errors import OutputError
from muster.data.federated import Dataset, FederatedData, Index, Normalisation, Samples
from muster.data.partition.iid import iid
from muster.report.partition import partition_summary, partition_table, plot_partition


def federation(clients, *, classes=10, per_client=6, shape=(5,), attributes=None, test=True) -> FederatedData:
    rng = np.random.default_rng(0)
    count = clients * per_client
    samples = Samples(
        rng.random((count, *shape), dtype=np.float32),
        rng.integers(classes, size=count),
        None if attributes is None else rng.integers(attributes, size=count),
    )
    dataset = Dataset("made", samples, samples, classes, attribute_values=attributes)
    index = iid(count, clients, rng)
    return FederatedData(dataset, index, index if test else None)


def printed(fed) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(partition_table(fed))
    return console.export_text()


def by_hand(features=np.zeros((9, 2), np.uint8)) -> FederatedData:
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    samples = Samples(features, labels)
    dataset = Dataset("made", samples, samples, 3, class_names=("ant", "bee", "cat"))
    train = Index.from_lists([[0, 1, 2, 3], [5, 6, 7]])
    return FederatedData(dataset, train, Index.from_lists([[0], []]))


def test_the_table_says_who_has_what():
    text = printed(by_hand())
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    # Client 0: three ants and a bee. Evenness: (0.75 ln(4/3) + 0.25 ln 4) / ln 3.
    assert cells[0] == ["0", "4", "1", "2", "0.51", "ant (75%)", "█▃"]
    assert cells[1] == ["1", "3", "0", "1", "0.00", "cat (100%)", "█"]


def test_the_summary_counts_what_nobody_has():
    lines = partition_summary(by_hand())
    assert lines[0] == "samples per client: 3 to 4, median 4; 2 of 9 training samples belong to no client"
    assert lines[1].startswith("classes per client: 1 to 2, mean 1.5 of 3; mean evenness 0.26")
    assert lines[2] == "1 of 2 clients have no test samples"


def test_missing_tests_and_groups_are_mentioned():
    lines = partition_summary(federation(4, attributes=2, test=False))
    assert "no test samples of their own" in lines[2]
    assert "GSC" in lines[3]
    assert "CSC" in lines[3]


@pytest.mark.parametrize(("clients", "rows"), [(1, 1), (30, 30), (31, 30), (5000, 30)])
def test_the_table_stays_short(clients, rows):
    fed = federation(clients)
    assert partition_table(fed).row_count == rows
    assert ("30 clients shown" in printed(fed)) == (clients > 30)


def test_many_classes_have_no_bars():
    assert "each class" not in printed(federation(3, classes=100))


@pytest.mark.parametrize(
    ("clients", "classes", "kind", "title"),
    [
        (1, 2, "bubbles", "largest circle"),
        (10, 10, "bubbles", "largest circle"),
        (100, 10, "heat map", "clients in their order"),
        (10, 100, "heat map", "clients in their order"),
        (10_000, 10, "heat map", "400 of 10,000 clients, by most frequent class"),
    ],
)
def test_the_kind_of_picture_follows_the_numbers(tmp_path, *, clients, classes, kind, title):
    path = tmp_path / "look" / "partition.png"
    figure = plot_partition(federation(clients, classes=classes), path)
    assert path.stat().st_size > 10_000
    main = figure.axes[0]
    assert title in main.get_title(loc="left")
    assert bool(main.images) == (kind == "heat map")
    if kind == "heat map":
        assert main.images[0].get_array().shape == (classes, min(clients, 400))
        np.testing.assert_allclose(main.images[0].get_array().sum(axis=0), 1)


def test_groups_are_shown_where_there_are_few():
    main = plot_partition(federation(5, classes=2, attributes=2)).axes[0]
    assert [label.get_text() for label in main.get_yticklabels()] == ["0, 0", "0, 1", "1, 0", "1, 1"]


@pytest.mark.parametrize("clients", [10, 100, 10_000])
@pytest.mark.parametrize("classes", [10, 100])
def test_labels_do_not_overlap(clients, classes):
    figure = plot_partition(federation(clients, classes=classes, per_client=3))
    figure.canvas.draw()
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            for one, other in itertools.pairwise(boxes):
                assert not one.overlaps(other)


def test_pictures_are_shown_for_a_few_clients():
    figure = plot_partition(federation(40, shape=(3, 8, 8)))
    wall = figure.axes[-1]
    assert [label.get_text() for label in wall.get_yticklabels()] == [f"client {k}" for k in (0, 10, 20, 29, 39)]
    assert len(plot_partition(federation(40)).axes) == len(figure.axes) - 1


def test_pictures_are_scaled_as_the_data_says():
    fed = by_hand(np.full((9, 1, 4, 4), 8, np.uint8))
    dataset = Dataset("made", fed.dataset.train, fed.dataset.test, 3, Normalisation(scale=1 / 16))
    wall = plot_partition(FederatedData(dataset, fed.train_index)).axes[-1].images[0].get_array()
    assert wall[0, 0].tolist() == [0.5, 0.5, 0.5]


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        plot_partition(by_hand(), tmp_path / "file" / "partition.png")
