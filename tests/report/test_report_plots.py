"""Pictures: what stands where, that nothing covers anything, and errors that help."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import StepPatch

from muster.core.errors import ConfigError, OutputError
from muster.report.compare import compare
from muster.report.plots import KINDS, draw
from muster.report.plots.canvas import amount, labels, spread, time_unit
from muster.report.plots.clusters import NOBODY, aligned, depths
from muster.report.plots.data import averaged
from muster.report.plots.histograms import whole_edges
from muster.report.plots.participation import Events, binned
from muster.report.style import muster_style


@pytest.fixture
def pair(made):
    """Two cases, two seeds each."""
    runs = [
        made(name, seed, [0.2, 0.4 + 0.1 * seed, 0.6 + 0.2 * seed], selection={"method": name}, seconds=90.0)
        for name in ("random", "oort")
        for seed in (0, 1)
    ]
    for run in runs:
        run.records[-1].client_accuracy = np.array([0.5, 0.7, np.nan, 1.0, 1.0, 0.9], dtype=np.float32)
    return runs


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


# --- curves ----------------------------------------------------------------------------------------------


def test_seeds_measured_at_the_same_work_are_averaged_there():
    x = np.array([1.0, 2.0, 3.0])
    axis, mean, deviation = averaged([(x, np.array([0.0, 1.0, 2.0])), (x, np.array([2.0, 1.0, 4.0]))])
    assert axis.tolist() == [1, 2, 3]
    assert mean.tolist() == [1, 1, 3]
    np.testing.assert_allclose(deviation, [np.sqrt(2), 0, np.sqrt(2)])


def test_many_cases_get_a_panel_each_best_first_over_random(made):
    runs = [made(name, 0, [0.1, end]) for name, end in (("oort", 0.5), ("random", 0.3), ("fedcs", 0.7))]
    figure = draw("curves-apart", runs)
    assert [axes.get_title(loc="left").strip() for axes in figure.axes] == ["fedcs", "oort", "random"]
    assert texts(figure) == ["70.0%", "50.0%", "30.0%"]
    for axes, end in zip(figure.axes, (0.7, 0.5, 0.3), strict=True):
        assert [line.get_ydata()[-1] for line in axes.lines] == [0.3, end], "random behind the case itself"
    first, *_ = draw("curves-apart", runs, metric="loss", behind="oort").axes
    assert first.get_title(loc="left").strip() == "fedcs", "a small loss is good"
    assert [line.get_ydata()[-1] for line in first.lines] == pytest.approx([0.5, 0.3])


def test_seeds_measured_elsewhere_are_compared_where_both_were():
    one = (np.array([0.0, 10.0]), np.array([0.0, 1.0]))
    two = (np.array([5.0, 20.0]), np.array([0.0, 1.5]))
    axis, mean, _ = averaged([one, two], points=3)
    assert axis.tolist() == [5, 7.5, 10]
    np.testing.assert_allclose(mean, [0.25, 0.5, 0.75])
    with pytest.raises(ConfigError, match="no amount of work in common"):
        averaged([one, (np.array([11.0]), np.array([1.0]))])


def test_curves_have_a_line_a_case_and_a_band_over_seeds(pair):
    figure = draw("curves", pair, per=["round", "client_trainings", "bytes", "virtual_seconds"])
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["round", "client trainings", "bytes sent, up and down", "virtual time, minutes"]
    first = figure.axes[0]
    assert [line.get_label() for line in first.lines] == ["random", "oort"]
    np.testing.assert_allclose(first.lines[0].get_ydata(), [0.2, 0.45, 0.7])
    assert len(first.collections) == 2
    np.testing.assert_allclose(figure.axes[2].lines[0].get_xdata(), [160, 320, 480])
    np.testing.assert_allclose(figure.axes[3].lines[0].get_xdata(), [1.5, 3.0, 4.5])
    assert figure.legends[0].get_title().get_text() == "mean and its 95 % interval over 2 seeds"


def test_problems_have_panels_of_their_own_and_a_method_looks_the_same_in_all(made):
    skews = {alpha: {"scheme": "dirichlet", "alpha": alpha} for alpha in (0.1, 1.0)}
    runs = [
        made(f"{name}, alpha={alpha}", 0, selection={"method": name}, partition=skew)
        for alpha, skew in skews.items()
        for name in ("random", "oort")
    ]
    one = draw("curves", runs, per="round")
    assert [axes.get_title("left") for axes in one.axes] == ["alpha=0.1", "alpha=1.0"]
    colours = [{line.get_label(): line.get_color() for line in axes.lines} for axes in one.axes]
    assert list(colours[0]) == ["random", "oort"]
    assert colours[0] == colours[1]
    assert colours[0]["random"] != colours[0]["oort"]
    assert [text.get_text() for text in one.legends[0].get_texts()] == ["random", "oort"]
    two = draw("curves", runs, per=["round", "client_trainings"])
    titles = [(axes.get_title("left"), axes.get_xlabel()) for axes in two.axes]
    assert titles == [(f"alpha={alpha}", work) for alpha in (0.1, 1.0) for work in ("round", "client trainings")]


def test_one_run_has_neither_band_nor_legend(made):
    figure = made().plot("curves", metric="loss", per="round")
    assert not figure.axes[0].collections
    assert not figure.legends
    assert figure.axes[0].get_ylabel() == "loss, global test set"


def test_a_legend_of_many_long_names_covers_no_panel(made):
    runs = [made(f"a-method-with-quite-a-long-name-{n}", training={"lr": n}) for n in range(12)]
    figure = draw("curves", runs, per="round")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    legend, panel = figure.legends[0].get_window_extent(renderer), figure.axes[0].get_window_extent(renderer)
    assert not legend.overlaps(panel)
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
    assert panel.height > 200


# --- participation ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 40),
    rounds=st.integers(1, 30),
    rows=st.integers(1, 40),
    columns=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_bins_are_means_over_neighbours(clients, rounds, rows, columns, seed):
    rows, columns = min(rows, clients), min(columns, rounds)
    rng = np.random.default_rng(seed)
    events = Events(rng.integers(0, clients, 60), rng.integers(0, rounds, 60), rng.random(60))
    dense = np.zeros((clients, rounds))
    np.add.at(dense, (events.clients, events.rounds), events.weights)
    slow = np.array(
        [
            [
                dense[
                    np.ix_(np.arange(clients) * rows // clients == r, np.arange(rounds) * columns // rounds == c)
                ].mean()
                for c in range(columns)
            ]
            for r in range(rows)
        ]
    )
    np.testing.assert_allclose(binned(events, (clients, rounds), (rows, columns)), slow, atol=1e-12)


def test_a_map_of_few_clients_shows_each_of_them(made):
    figure = draw("selection-map", [made(selections=[[[0, 1]], [[1, 2], [2]], [[5]]])])
    values = figure.axes[0].images[0].get_array()
    assert values.shape == (6, 3)
    assert values[2].tolist() == [0, 2, 0]
    assert figure.axes[0].get_title(loc="left") == "a, seed 0"


def test_a_map_of_ten_thousand_clients_shows_means(made):
    rng = np.random.default_rng(0)
    chosen = [[np.sort(rng.choice(10_000, 100, replace=False)).tolist()] for _ in range(400)]
    run = made(accuracies=[0.5] * 400, selections=chosen, clients=10_000)
    figure = draw("selection-map", [run], order="count")
    values = figure.axes[0].images[0].get_array()
    assert values.shape == (100, 150)
    assert values.mean() == pytest.approx(0.01, rel=0.01)
    assert values[:10].sum() > values[-10:].sum(), "the clients that trained most are on top"


def test_frequencies_are_shares_of_clients(made):
    figure = draw("selection-frequency", [made(selections=[[[0, 1]], [[0, 1]], [[0, 2]]])])
    (bars,) = figure.axes[0].patches
    assert isinstance(bars, StepPatch)
    assert bars.get_data()[0].tolist() == pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6])
    assert texts(figure) == ["Gini 0.61"]


def test_training_twice_in_a_round_is_taking_part_once(made):
    """The picture's Gini is that of the table of participation."""
    run = made(selections=[[[0, 1], [0]], [[0, 1], [0]], [[0, 2], [0]]])
    figure = draw("selection-frequency", [run])
    (gini,) = compare([run]).tables["participation"].column("Gini")
    assert texts(figure) == [f"Gini {gini.value:.2f}"] == ["Gini 0.61"]


@pytest.mark.parametrize(
    ("values", "most", "edges"), [([0, 3], 30, [-0.5, 0.5, 1.5, 2.5, 3.5]), ([1, 9], 3, [0.5, 3.5, 6.5, 9.5])]
)
def test_bars_cover_equally_many_whole_numbers(values, most, edges):
    assert whole_edges(np.array(values), most) == edges


def test_accuracies_of_clients_without_test_data_are_left_out(pair):
    figure = draw("client-accuracy", pair[:2])
    (bars,) = figure.axes[0].patches
    assert isinstance(bars, StepPatch)
    assert bars.get_data()[0].sum() == pytest.approx(1)
    assert texts(figure) == ["mean 82%, std 19%, worst 50%"]


# --- clusters --------------------------------------------------------------------------------------------


def test_clusters_keep_their_numbers_when_methods_renumber_them():
    labels = np.array([[0, 1, 2], [0, 1, 2], [1, 0, 0], [1, 0, 0], [2, 2, 1]])
    assert (aligned(labels) == aligned(labels)[:, :1]).all()


def test_a_client_without_a_cluster_is_remembered_with_its_last_one():
    labels = np.array([[0, NOBODY, 1], [0, NOBODY, 1], [1, 0, 0]])
    result = aligned(labels)
    assert result[:, 0].tolist() == result[:, 2].tolist()
    assert result[:, 1].tolist() == [NOBODY, NOBODY, result[2, 0]]


@settings(max_examples=30, deadline=None)
@given(npst.arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.integers(-1, 4)))
def test_renumbering_never_changes_who_is_together(labels):
    result = aligned(labels)
    for before, after in zip(labels.T, result.T, strict=True):
        assert ((before == NOBODY) == (after == NOBODY)).all()
        assert ((before[:, None] == before) == (after[:, None] == after)).all()
    assert result.max(initial=0) <= 4


def test_clusters_and_their_sizes(made):
    labels = [[0, 0, 1, 1, 1, NOBODY]] * 3
    figure = draw("clusters", [made(clusters=labels)])
    shown = figure.axes[0].images[0].get_array()
    assert isinstance(shown, np.ma.MaskedArray)
    assert sorted(shown[:, 0].compressed().tolist()) == [0, 0, 1, 1, 1]
    assert shown.mask.sum() == 3
    assert figure.axes[1].get_title(loc="left") == "clients in each cluster"


def test_iterations_show_who_stayed(made):
    selections = [[[0, 1, 2, 3], [1, 3], [3]], [[4, 5]], [[0, 1], [0]]]
    events = depths(selections)
    seen = {(client, round): last for client, round, last in zip(*map(np.ndarray.tolist, events), strict=True)}
    assert seen[3, 0] == 3
    assert seen[1, 0] == 2
    assert seen[0, 2] == 2
    assert seen[5, 1] == 1
    figure = draw("clusters", [made(selections=selections)])
    line = figure.axes[1].lines[0]
    np.testing.assert_allclose(line.get_ydata(), [8 / 3, 1.5, 1])
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["1\n100%", "2\n67%", "3\n33%"]


def test_numbers_of_clusters_are_a_row_a_run_and_a_column_a_round(made):
    falling = [[0, 1, 2, 3, 4, NOBODY], [0, 0, 1, 1, 2, 2], [NOBODY] * 6]
    runs = [
        made("b", 1, clusters=falling, selection={"method": "b"}),
        made("a", 0, clusters=[[0] * 6] * 3, selection={"method": "a"}),
        made("b", 0, clusters=[*falling[:2], [0, 1] * 3], selection={"method": "b"}),
        made("none", 0, selection={"method": "none"}),
    ]
    figure = draw("cluster-numbers", runs)
    axes = figure.axes[0]
    rows = [tick.get_text() for tick in axes.get_yticklabels()]
    assert rows == ["b, seed 0", "b, seed 1", "a, seed 0"]
    shown = axes.images[0].get_array()
    assert shown.tolist() == [[5, 3, 2], [5, 3, None], [1, 1, 1]]
    assert texts(figure) == ["5", "3", "2", "5", "3", "1", "1", "1"]


# --- bands -----------------------------------------------------------------------------------------------


def test_bands_of_a_selection_map_are_the_groups_with_one_beta(made):
    partition = {"scheme": "fixed-size-dirichlet", "betas": [0.1, 0.4, 0.8], "group_sizes": [1, 3, 2]}
    selections = [[[0, 1]], [[0, 2]], [[0, 5]]]
    axes = draw("selection-map", [made(selections=selections, partition=partition)]).axes[0]
    assert [line.get_ydata()[0] for line in axes.lines] == [0.5, 3.5]
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    assert ticks == ["β = 0.1\n50%", "β = 0.4\n33%", "β = 0.8\n17%"]
    assert axes.get_yticks().tolist() == [0, 2, 4.5]
    equal = {"betas": [0.1, 0.8]}
    assert [line.get_ydata()[0] for line in draw("selection-map", [made(partition=equal)]).axes[0].lines] == [2.5]


@pytest.mark.parametrize("options", [{"bands": False}, {"order": "count"}])
def test_a_selection_map_without_bands(made, options):
    partition = {"betas": [0.1, 0.4]}
    assert not draw("selection-map", [made(partition=partition)], **options).axes[0].lines


# --- fairness, targets, sensitivity ----------------------------------------------------------------------


def test_fairness_has_a_mean_and_a_dot_a_seed(pair):
    axes = draw("fairness", pair, x="gini").axes[0]
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    assert [line.get_label() for line in named] == ["random", "oort"]
    assert named[0].get_ydata()[0] == pytest.approx(0.7)
    assert axes.get_xlabel().startswith("participation, Gini")


def test_bars_of_runs_that_never_get_there_are_marked(pair):
    figure = draw("time-to-target", pair, target=0.7, per="round")
    assert texts(figure) == ["≥ 3, 1 of 2 never"] * 2
    assert all(bar.get_hatch() for bar in figure.axes[0].patches)
    assert figure.get_suptitle() == "until 70.0% accuracy, global test set"
    reached = draw("time-to-target", pair, target=0.5, per="client_trainings")
    assert texts(reached) == ["5", "5"]
    assert not any(bar.get_hatch() for bar in reached.axes[0].patches)


def test_without_a_target_it_is_one_that_all_reach(pair):
    figure = draw("time-to-target", pair)
    assert figure.get_suptitle() == "until 60.0% accuracy, global test set"
    assert not any("never" in text for text in texts(figure))


def test_of_a_loss_less_is_better(pair):
    figure = draw("time-to-target", pair, target=0.3, metric="loss", per="round")
    assert texts(figure) == ["≥ 3, 1 of 2 never"] * 2


def sweep_over(made, values, key="min_clients"):
    return [
        made(f"t-{value}", seed, [0.1, 0.5 + number / 10 + seed / 50], selection={"method": "t", key: value})
        for number, value in enumerate(values)
        for seed in (0, 1)
    ]


def test_sensitivity_is_in_the_order_of_the_parameter(made):
    axes = draw("sensitivity", sweep_over(made, [4, 2, 8]), key="selection.min_clients").axes[0]
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [2, 4, 8]
    np.testing.assert_allclose(line.get_ydata(), [0.61, 0.51, 0.71])
    assert axes.get_xscale() == "linear"


def test_wide_parameters_are_on_a_logarithmic_axis_and_words_on_their_own(made):
    wide = draw("sensitivity", sweep_over(made, [0.001, 0.1]), key="selection.min_clients").axes[0]
    assert wide.get_xscale() == "log"
    words = draw("sensitivity", sweep_over(made, ["loss", "norm"], "by"), key="selection.by").axes[0]
    assert [tick.get_text() for tick in words.get_xticklabels()] == ["loss", "norm"]


def test_sensitivity_has_a_line_for_each_other_setting(made):
    runs = [
        made(f"{method}-{value}", 0, [0.1, value / 10], selection={"method": method, "n": value})
        for method in ("oort", "hics")
        for value in (1, 2)
    ]
    axes = draw("sensitivity", runs, key="selection.n").axes[0]
    assert [line.get_label() for line in axes.lines] == ["oort", "hics"]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("selection.eta", "no run has a setting"),
        ("selection.method", "in all runs"),
        ("selection.only", "does not set"),
    ],
)
def test_parameters_that_no_line_can_be_drawn_over(made, key, problem):
    runs = sweep_over(made, [1, 2])
    runs[0].config["selection"]["only"] = 1
    with pytest.raises(ConfigError, match=problem):
        draw("sensitivity", runs, key=key)


# --- weights ---------------------------------------------------------------------------------------------


def test_weights_are_shown_as_parts_of_an_equal_share(made):
    runs = [made("a", seed, [0.1, 0.2], selections=[[[0, 1, 2, 3]], [[0, 1]]]) for seed in (0, 1)]
    runs[0].records[0].trainings[0].weights[:] = [0.125, 0.25, 0.25, 0.375]
    figure = draw("weights", runs)
    equal, low, high = figure.axes[0].lines
    assert set(equal.get_ydata()) == {1.0}
    assert low.get_ydata().tolist() == [0.75, 1.0], "mean of 4 · 0.125 and of equal weights, over two seeds"
    assert high.get_ydata().tolist() == [1.25, 1.0]


def test_runs_without_weights_have_no_such_picture(made):
    run = made("a", 0, [0.5])
    run.records[0].trainings.clear()
    with pytest.raises(ConfigError, match="no weights of clients"):
        draw("weights", [run])


# --- all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_draw(kind):
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw(kind, [], **({"key": "selection.n"} if kind == "sensitivity" else {}))


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        ("curves", {"per": "virtual_seconds"}, "no virtual time"),
        ("curves", {"metric": "worst_group_accuracy"}, "unknown metric"),
        ("client-accuracy", {}, "no accuracies of individual clients"),
        ("clusters", {}, "no groups of clients"),
        ("fairness", {"x": "client_accuracy_worst"}, "unknown metric"),
        ("selection-map", {"order": "size"}, "unknown order"),
        ("selection-map", {"bands": True}, "no groups with parameters of their own"),
        ("selection-map", {"bands": True, "order": "count"}, "bands are of neighbouring ids"),
        ("cluster-numbers", {}, "no clusters"),
        ("curves-apart", {"behind": "b"}, "no case is called 'b'"),
        ("curves-apart", {"last": 0}, "bad value for 'last'"),
        ("selektion-map", {}, "unknown picture"),
        ("curves", {"metrik": "loss"}, "has no option 'metrik'"),
        ("sensitivity", {}, "needs the option 'key'"),
    ],
)
def test_what_is_missing_is_said(made, kind, options, problem):
    with pytest.raises(ConfigError, match=problem):
        draw(kind, [made()], **options)


def test_a_run_without_rounds(made):
    with pytest.raises(ConfigError, match="has no rounds yet"):
        draw("curves", [made(accuracies=[])])


@pytest.mark.parametrize("name", ["costs $5 and $6 {", "_hidden", "two\nlines", "x" * 90, "<b>&amp;</b>"])
def test_any_name_can_be_drawn(made, name, tmp_path):
    runs = [made(name, training={"lr": 1}), made("other", training={"lr": 2})]
    figure = draw("curves", runs, path=tmp_path / "a.svg", per="round")
    assert len(figure.legends[0].get_texts()) == 2
    draw("selection-map", runs, path=tmp_path / "b.png")
    draw("time-to-target", runs, path=tmp_path / "c.png")


def test_dark_pictures_have_light_words(pair):
    with muster_style(dark=True):
        dark = draw("curves", pair, per="round")
    light = draw("curves", pair, per="round")
    assert [f.axes[0].yaxis.label.get_color() for f in (dark, light)] == ["#e6e9ec", "black"]


def test_a_folder_that_cannot_be_written(made, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the picture"):
        draw("curves", [made()], path=tmp_path / "file" / "a.png")


def test_amounts_in_words():
    assert amount("bytes", 3_500_000, 1e9) == "3.5 MB"
    assert amount("virtual_seconds", 7200, 86_400) == "2 h"
    assert amount("round", 1234, 0) == "1,234"
    assert time_unit(179) == (1, "seconds")
    assert time_unit(180) == (60, "minutes")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["abcdef", "abcxyz"], ["abcdef", "abcxyz"]),
        (["abcdefghij", "abcdefghiX"], ["abc…hij", "abc…hiX"]),
        (["a" * 20 + "1" + "b" * 20, "a" * 20 + "2" + "b" * 20, "c" * 20], None),
        (["abcdef…", "abcdefgh"], None),
    ],
)
def test_names_are_never_cut_so_that_two_look_the_same(names, shown):
    found = labels(names, 7)
    assert len(set(found)) == len(names)
    if shown is not None:
        assert found == shown


LONG = [f"terraform on Fashion-MNIST, scenario {number}, decaying rate" for number in (3, 4)]


@pytest.mark.parametrize("kind", ["selection-map", "clusters"])
def test_panels_of_runs_with_long_names_are_told_apart(made, kind):
    runs = [made(name, clusters=[[0, 1] * 3] * 3, selection={"method": name}) for name in LONG]
    titles = {axes.get_title(loc="left") for axes in draw(kind, runs).axes}
    assert len([title for title in titles if ", seed 0" in title]) == 2


def test_rows_of_runs_with_long_names_are_told_apart(made):
    runs = [made(name, clusters=[[0, 1] * 3] * 3, selection={"method": name}) for name in LONG]
    shown = [label.get_text() for label in draw("cluster-numbers", runs).axes[0].get_yticklabels()]
    assert len(set(shown)) == 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab…", min_size=1, max_size=12), min_size=1, max_size=6, unique=True), st.integers(3, 9))
def test_different_names_stay_different(names, limit):
    found = labels(names, limit)
    assert len(set(found)) == len(names)
    assert all(len(text) <= limit for name, text in zip(names, found, strict=True) if len(name) <= limit)


def test_spread():
    assert spread(range(100, 110), 3) == [100, 104, 109]
    assert spread([7], 3) == [7]
