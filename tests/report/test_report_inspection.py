"""The inspection for people: text, pictures in which nothing overlaps, and a page that needs nothing else."""

import dataclasses
import io
import itertools
import re

import numpy as np
import pytest
from rich.console import Console

import muster
from muster.core.errors import ConfigError, OutputError
from muster.data.federated import Index
from muster.data.partition.group_skew import named_tables
from muster.heterogeneity.inspection import inspect
from muster.heterogeneity.tables import Counts
from muster.report.html import marked
from muster.report.inspection import (
    inspection_page,
    inspection_text,
    plot_divergence,
    plot_kinds,
    plot_sizes,
    save_inspection,
)

WATERBIRDS = Counts("birds", named_tables("waterbirds-dist"), attributes=("land", "water"))


def labels_only(clients, spread=10) -> Counts:
    rng = np.random.default_rng(0)
    table = rng.integers(0, spread, (clients, 4, 1)) + 1
    return Counts("labels", table, has_attributes=False)


def test_the_text_has_all_numbers():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(inspection_text(inspect(WATERBIRDS)))
    text = console.export_text()
    for row in (
        "class imbalance 0.218 0.262",
        "attribute imbalance 0.175 0.256",
        "spurious correlation 0.670 0.761",
    ):
        assert row in re.sub(" +", " ", text)
    assert "birds: 30 clients, 2 classes, 2 attribute values" in text
    assert "effective number of clients" in text
    assert "Strong spurious correlation in 83% of clients" in text
    assert "`" not in text


def test_the_triangle_shows_every_client_once():
    figure = plot_kinds(inspect(WATERBIRDS))
    (dots,) = [c for c in figure.axes[0].collections if len(c.get_offsets())]
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"class imbalance", "attribute imbalance", "spurious correlation"} <= texts
    assert len(dots.get_offsets()) < 30, "identical clients share a circle"
    inside = dots.get_offsets()
    assert (inside[:, 1] >= -1e-9).all()
    assert (inside[:, 1] <= np.sqrt(0.75) + 1e-9).all()


@pytest.mark.parametrize(
    ("table", "corner"),
    [([[90, 90], [10, 10]], (0, 0)), ([[90, 10], [90, 10]], (1, 0)), ([[90, 10], [10, 90]], (0.5, np.sqrt(0.75)))],
)
def test_pure_skews_are_in_the_corners(table, corner):
    figure = plot_kinds(inspect(Counts("made", np.array([table, [[5, 5], [5, 5]]]))))
    (dots,) = figure.axes[0].collections
    np.testing.assert_allclose(dots.get_offsets(), [corner], atol=1e-9)
    assert "1 of 2 clients have no skew" in " ".join(text.get_text() for text in figure.axes[0].texts)


def test_nobody_with_any_skew():
    figure = plot_kinds(inspect(Counts("made", np.full((3, 2, 2), 5))))
    assert "3 of 3 clients have no skew" in " ".join(text.get_text() for text in figure.axes[0].texts)


@pytest.mark.parametrize(("clients", "hexagons"), [(30, False), (3000, True)])
def test_without_attributes_imbalance_is_over_size(clients, hexagons):
    axes = plot_kinds(inspect(labels_only(clients))).axes[0]
    assert axes.get_xlabel() == "samples of the client"
    assert (len(axes.collections[0].get_offsets()) != clients) == hexagons


@pytest.mark.parametrize(("clients", "note"), [(24, "24 clients,"), (300, "200 drawn of 300 clients,")])
def test_the_heat_map_says_whom_it_shows(clients, note):
    axes = plot_divergence(inspect(labels_only(clients))).axes[0]
    assert axes.get_xlabel().startswith(note)
    assert axes.images[0].get_array().shape == (min(clients, 200),) * 2


def test_clients_with_long_names_are_told_apart():
    names = tuple(f"hospital north, scanner {number}" for number in range(6))
    axes = plot_divergence(inspect(dataclasses.replace(labels_only(6), clients=names))).axes[0]
    assert len({label.get_text() for label in axes.get_yticklabels()}) == 6


@pytest.mark.parametrize("draw", [plot_kinds, plot_divergence, plot_sizes])
@pytest.mark.parametrize(
    "counts", [WATERBIRDS, labels_only(25), labels_only(5, 4000)], ids=["groups", "labels", "few"]
)
def test_labels_do_not_overlap(draw, counts):
    figure = draw(inspect(counts))
    figure.canvas.draw()
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts):
            shown = [label for label in labels if label.get_text() and label.get_visible()]
            for one, other in itertools.pairwise(label.get_window_extent() for label in shown):
                assert not one.overlaps(other)


def test_the_page_stands_alone_and_has_both_versions(tmp_path):
    counts = Counts("<b>mine</b>", WATERBIRDS.table, clients=tuple(f"a&{k}" for k in range(30)))
    written = save_inspection(inspect(counts), tmp_path / "look")
    assert [path.name for path in written] == ["inspection.html", "kinds.png", "divergence.png", "sizes.png"]
    page = written[0].read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;mine" in page
    assert "a&amp;" in page
    assert not re.findall(r'(?:src|href|srcset)="(?!data:)', page)
    assert "<script" not in page
    light = re.findall(r'<img class="light" src="(data:image/png[^"]+)"', page)
    dark = re.findall(r'<img class="dark" src="(data:image/png[^"]+)"', page)
    assert len(light) == len(dark) == 3
    assert not set(light) & set(dark)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[1:])


def test_one_client_is_enough_for_a_page():
    assert "one: 1 client, 2 classes" in inspection_page(
        inspect(Counts("one", np.array([[[3], [4]]]), has_attributes=False))
    )


def test_marked_text():
    assert marked("use `a<b` & c") == "use <code>a&lt;b</code> &amp; c"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        save_inspection(inspect(WATERBIRDS), tmp_path / "file")


# --- in Python -------------------------------------------------------------------------------------------


def test_a_federation_is_inspected_as_it_is_with_its_clients_names():
    rng = np.random.default_rng(0)
    owners = np.repeat(["north", "south", "west"], 40)
    labels = np.concatenate([np.zeros(40, dtype=int), np.ones(40, dtype=int), rng.integers(0, 2, 40)])
    data = muster.data.from_arrays(rng.normal(size=(120, 2)), labels, clients=owners)
    found = inspect(data)
    assert found.counts.clients == ("north", "south", "west")
    assert found.metrics == inspect(Counts.of(data)).metrics
    shown = found._repr_html_()
    assert "3 clients, 2 classes" in shown
    assert found.advice[0].finding in shown
    assert found.plot("divergence")._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="unknown picture 'divergnce'"):
        found.plot("divergnce")


def test_clients_of_another_division_do_not_get_the_names_of_owners():
    owners = np.repeat([0, 1], 30)
    data = muster.data.from_arrays(np.zeros((60, 2)), np.arange(60) % 2, clients=owners)
    mixed = dataclasses.replace(data, train_index=Index.from_owners(np.arange(len(data.dataset.train)) % 2, 2))
    assert Counts.of(mixed).clients == ()
