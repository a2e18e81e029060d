"""Tables as data: means over seeds, marks, and every format that they are written in."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import ttest_1samp

from muster.report.compare import compare
from muster.report.html import parted
from muster.report.render import (
    cell_text,
    escape_latex,
    marked_texts,
    to_csv,
    to_data,
    to_html,
    to_latex,
    to_markdown,
    to_rich,
)
from muster.report.tables import (
    Better,
    Cell,
    Column,
    Mark,
    Table,
    bytes_column,
    from_columns,
    over_seeds,
    ranks,
    text_column,
)

NAN = math.nan
PERCENT = Column("accuracy", "%", 100.0, ".1f", Better.HIGHER)
ROUNDS = Column("rounds", form=".1f", better=Better.LOWER)
shares = st.floats(0, 1, allow_nan=False)


def numbers(*values: float) -> list[Cell]:
    return [Cell(value) for value in values]


def example():
    return from_columns(
        "Scores at 100 % & more",
        [
            (text_column("case"), [Cell("a_b"), Cell("c|d"), Cell("fedavg")]),
            (PERCENT, [over_seeds([0.9, 0.92]), over_seeds([0.8, 0.8]), over_seeds([0.5, NAN])]),
            (Column("gap", "points", 100.0, "+.2f"), numbers(-0.012, 0.5, NAN)),
            (ROUNDS, [over_seeds([3, 5]), Cell(7.5, values=(5, NAN), above=True, note="1 of 2 reached"), Cell()]),
        ],
        ["Over 2 seeds."],
    )


# --- means and marks ---------------------------------------------------------------------------------------------


def test_mean_and_sample_deviation_over_seeds():
    cell = over_seeds([0.1, 0.2, 0.6])
    assert cell.value == pytest.approx(0.3)
    assert cell.spread == pytest.approx(math.sqrt((0.04 + 0.01 + 0.09) / 2))
    assert over_seeds([0.4]) == Cell(0.4, None, (0.4,))


def test_missing_seeds_are_said_and_not_filled_in():
    cell = over_seeds([0.5, NAN, 0.7])
    assert (cell.value, cell.note, cell.whole) == (pytest.approx(0.6), "2 of 3 seeds", False)
    assert math.isnan(over_seeds([NAN, NAN]).value)


@settings(max_examples=50, deadline=None)
@given(st.permutations([0.1, 0.7, 0.3, 0.9, 0.123456]))
def test_the_order_of_seeds_does_not_change_a_bit(values):
    cell = over_seeds(values)
    assert (cell.value, cell.spread) == (over_seeds(sorted(values)).value, over_seeds(sorted(values)).spread)


@pytest.mark.parametrize(
    ("cells", "marks"),
    [
        (numbers(0.5, 0.9, 0.7), [None, Mark.BEST, Mark.SECOND]),
        (numbers(0.9, 0.9, 0.7), [Mark.BEST, Mark.BEST, None]),  # nobody is second behind two firsts
        (numbers(0.9, 0.7, 0.7), [Mark.BEST, Mark.SECOND, Mark.SECOND]),
        (numbers(0.90004, 0.9, 0.1), [Mark.BEST, Mark.BEST, None]),  # both are shown as 90.0
        (numbers(0.9, NAN, 0.7), [Mark.BEST, None, Mark.SECOND]),
        (numbers(0.9, NAN, NAN), [None, None, None]),  # alone, not best
        (numbers(0.9, 0.9, 0.9), [None, None, None]),
        ([Cell(0.9, values=(0.9, NAN)), Cell(0.8), Cell(0.7)], [None, Mark.BEST, Mark.SECOND]),
        ([Cell("text"), Cell(0.8), Cell(0.7)], [None, Mark.BEST, Mark.SECOND]),
    ],
)
def test_marks(cells, marks):
    assert ranks(PERCENT, cells) == marks


@pytest.mark.parametrize(
    ("bound", "marks"),
    [
        (30.0, [Mark.BEST, Mark.SECOND, None]),  # slower than both, by how much nobody knows
        (15.0, [Mark.BEST, None, None]),  # may be second
        (5.0, [None, None, None]),  # may be first
        (10.0, [Mark.BEST, None, None]),
    ],
)
def test_a_censored_value_takes_places_that_it_might_have(bound, marks):
    assert ranks(ROUNDS, [Cell(10.0), Cell(20.0), Cell(bound, above=True)]) == marks


def test_columns_without_a_direction_have_no_marks():
    assert ranks(Column("trainings"), numbers(1.0, 2.0)) == [None, None]


@settings(max_examples=100, deadline=None)
@given(st.lists(shares, min_size=2, max_size=6), st.sampled_from(Better), st.randoms(use_true_random=False))
def test_the_best_is_the_extreme_and_order_does_not_matter(values, better, random):
    column = Column("x", form=".3f", better=better)
    marks = ranks(column, numbers(*values))
    shown = [float(f"{value:.3f}") for value in values]
    extreme = max(shown) if better is Better.HIGHER else min(shown)
    best = [mark is Mark.BEST for mark in marks]
    assert best == ([False] * len(shown) if len(set(shown)) == 1 else [value == extreme for value in shown])
    order = random.sample(range(len(values)), len(values))
    assert ranks(column, numbers(*(values[i] for i in order))) == [marks[i] for i in order]


@pytest.mark.parametrize(
    ("largest", "unit", "shown"), [(0, "B", "0"), (999, "B", "999"), (1500, "kB", "1.5"), (2e9, "GB", "2.0")]
)
def test_bytes_have_one_unit_a_column(largest, unit, shown):
    column = bytes_column("sent", largest)
    assert (column.unit, column.shown(largest)) == (unit, shown)


# --- formats -----------------------------------------------------------------------------------------------------


def test_cells_as_text():
    rows = [
        [cell_text(cell, column) for cell, column in zip(row, example().columns, strict=True)]
        for row in example().rows
    ]
    assert rows == [
        ["a_b", "91.0 ± 1.4", "−1.20", "4.0 ± 1.4"],
        ["c|d", "80.0", "+50.00", "> 7.5 (1 of 2 reached)"],
        ["fedavg", "50.0 (1 of 2 seeds)", "–", "–"],
    ]


def test_markdown():
    assert to_markdown(example()).splitlines() == [
        "### Scores at 100 % & more",
        "",
        "| case | accuracy, % | gap, points | rounds |",
        "|---|---|---|---|",
        "| a_b | **91.0 ± 1.4** | −1.20 | 4.0 ± 1.4 |",
        "| c\\|d | <ins>80.0</ins> | +50.00 | > 7.5 (1 of 2 reached) |",
        "| fedavg | 50.0 (1 of 2 seeds) | – | – |",
        "",
        "**Bold**: best; <ins>underlined</ins>: second best. Over 2 seeds.",
    ]


def test_latex():
    assert to_latex(example(), "scores").splitlines() == [
        r"\begin{table}[t]",
        r"\centering",
        r"\caption{Scores at 100 \% \& more. \textbf{Bold}: best; \underline{underlined}: second best.}",
        r"\label{tab:scores}",
        r"\small\setlength{\tabcolsep}{4pt}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"case & accuracy, \% & gap, points & rounds \\",
        r"\midrule",
        r"a\_b & \textbf{91.0 $\pm$ 1.4} & $-$1.20 & 4.0 $\pm$ 1.4 \\",
        r"c\textbar{}d & \underline{80.0} & +50.00 & \textgreater{} 7.5 (1 of 2 reached) \\",
        r"fedavg & 50.0 (1 of 2 seeds) & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize Over 2 seeds.",
        r"\end{table}",
    ]


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from('ab \\&%$#_{}~^<>|"±≥≤−–…αμ'), max_size=12))
def test_latex_is_escaped_and_balanced(text):
    escaped = escape_latex(text)
    bare = re.sub(r"\\[a-zA-Z]+(\{\})?|\\[&%$#_{}]|\$[^$]*\$", "", escaped)
    assert not set(bare) & set("\\&%$#_{}~^")
    assert bare.isascii()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX here")
def test_latex_compiles(tmp_path):
    awkward = from_columns(
        'All that is awkward: \\ & % $ # _ { } ~ ^ < > | " ± ≥ ≤ × − ∞ – … ° ² αβγδεηλμστΔ',
        [
            (text_column("case"), [Cell("x_y{z}"), Cell("50 % & $")]),
            (Column("a long heading, broken in two", form=".1f"), numbers(1.0, 2.0)),
            (text_column("words"), [Cell("many words " * 8), Cell("~")]),
        ],
        ["A note_"],
    )
    body = "\n".join(to_latex(table, "t") for table in (example(), awkward))
    (tmp_path / "t.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}" + body + "\\end{document}",
        encoding="utf-8",
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


def test_pages_and_notebooks_show_intervals_where_the_notes_speak_of_them(made):
    found = [
        made(name, seed, [0.1, 0.5 + seed / 10], selection={"method": name})
        for name in ("random", "oort")
        for seed in range(4)
    ]
    comparison = compare(found)
    scores = comparison.tables["scores"]
    assert scores.intervals
    shown = cell_text(scores.column("accuracy")[0], scores.columns[2], intervals=True)
    assert "[" in shown
    mean, interval = parted(shown)
    for page in (to_html(scores), comparison._repr_html_()):
        assert f'{mean} <span class="interval">{interval}</span>' in re.sub("</?(strong|u)>", "", page)
    assert shown in [text for text, _ in marked_texts(scores)[0]]


def test_html():
    text = to_html(example())
    assert '<td class="number"><strong>91.0 ± 1.4</strong></td>' in text
    assert '<td class="number"><u>80.0</u></td>' in text
    assert "&gt; 7.5 (1 of 2 reached)" in text
    assert text.count("<tr>") == text.count("</tr>") == 4


def test_a_notebook_shows_the_table_under_its_title():
    table = Table("a < b", (text_column("case"),), ((Cell("<i>"),),))
    assert table._repr_html_().startswith("<div><p><strong>a &lt; b</strong></p>")
    assert "&lt;i&gt;" in table._repr_html_()


def test_csv_has_one_line_for_each_cell_in_full_precision():
    rows = list(csv.DictReader(io.StringIO(to_csv([("alpha=1", "scores", example())]))))
    assert len(rows) == 9
    assert rows[0] == {
        "problem": "alpha=1",
        "table": "scores",
        "row": "a_b",
        "column": "accuracy",
        "value": str(np.mean([0.9, 0.92])),
        "spread": str(np.std([0.9, 0.92], ddof=1)),
        "low": str(ttest_1samp([0.9, 0.92], 0).confidence_interval().low),
        "high": "1.0",
        "seeds": "2",
        "mark": "best",
        "above": "",
        "note": "",
    }
    assert (rows[5]["value"], rows[5]["above"], rows[5]["note"]) == ("7.5", "yes", "1 of 2 reached")
    assert (rows[7]["value"], rows[7]["seeds"]) == ("", "")


def test_data_for_json_keep_values_of_seeds():
    data = to_data(example())
    assert data["columns"][1] == {"title": "accuracy", "unit": "%", "scale": 100.0, "better": "higher"}
    assert data["rows"][0][1]["values"] == [0.9, 0.92]
    assert data["rows"][0][1]["mark"] == "best"
    assert data["rows"][1][3] == {"value": 7.5, "values": [5, pytest.approx(NAN, nan_ok=True)], "above": True} | {
        "note": "1 of 2 reached"
    }
    json.dumps(data)


def wide():
    cells = [over_seeds([0.9, 0.92]), over_seeds([0.8, 0.81])]
    names = [Cell("a rather long name of a case"), Cell("b")]
    long_text = [
        Cell("what clients told, in many words, more than a line of a terminal can hold"),
        Cell("nothing"),
    ]
    columns = [(text_column("case"), names)]
    columns += [(Column(f"measure number {n} of many", "%", 100.0, ".1f", Better.HIGHER), cells) for n in range(9)]
    return from_columns("Wide", [*columns, (text_column("told"), long_text)])


@pytest.mark.parametrize("width", [60, 80, 100, 137, 400])
def test_a_terminal_shows_every_number_whole(width):
    shown = io.StringIO()
    Console(width=width, file=shown, color_system=None).print(to_rich(wide(), width))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count("91.0 ± 1.4*") == 9
    assert text.count("80.5 ± 0.7°") == 9
    assert "…" not in text
    assert text.count("Wide (continued)") == text.count("a rather long name of a case") - 1


def test_a_terminal_marks_with_colour_too():
    shown = io.StringIO()
    console = Console(width=100, file=shown, force_terminal=True, color_system="standard")
    console.print(to_rich(example(), 100))
    assert re.search(r"\x1b\[1;32m *91.0 ± 1.4\*\x1b", shown.getvalue())
    assert re.search(r"\x1b\[36m *80.0°\x1b", shown.getvalue())


@pytest.mark.parametrize("values", [[0.05] * 3, [0.1, 0.1 + 1e-17, 1 - 0.9]])
def test_values_that_are_equal_on_paper_have_no_spread(values):
    """The mean of three times 0.05 is not 0.05 in its last bit."""
    cell = over_seeds(values)
    assert cell.spread == 0
    assert cell.interval is None
