"""Draws the rooms of the package and what they import, and writes the table of rooms: `make graph`.

The order of the rooms is that of the import contract in pyproject.toml; the imports are read from the code (as
`lint-imports` does), and what a room is for from the docstring of its package.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import grimp
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as MarkedPath

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "contributing" / "rooms.svg"
PAGE = ROOT / "docs" / "contributing" / "rooms.md"
#: The table stands between these lines of the page.
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->\n"

#: How many modules of the first room import something of the second.
Imports: TypeAlias = "Counter[tuple[str, str]]"
#: A room, or the gap through which an edge ("upper lower") passes a row; and the row.
Stop: TypeAlias = tuple[str, int]

INK, LINE, BOX, BOX_EDGE, MARK = "#1b2a3a", "#8496a9", "#eef3f8", "#5b7c99", "#2f6f9f"
BOX_WIDTH, BOX_HEIGHT, GAP = 1.15, 0.44, 0.45
#: How often rows are put in order, upwards and downwards.
SWEEPS = 12


def rooms() -> list[str]:
    """The rooms, top to bottom, as the import contract lists them; single modules are no rooms."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers: list[str] = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [room for room in layers if (ROOT / "src" / "muster" / room).is_dir()]


def imports_between(names: list[str]) -> Imports:
    """Imports of modules, counted by room."""
    graph = grimp.build_graph("muster", cache_dir=None)
    counts: Imports = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = _room(module), _room(imported)
            if pair[0] != pair[1] and set(pair) <= set(names):
                counts[pair] += 1
    return counts


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def purpose(room: str) -> str:
    """The first line of the package's docstring."""
    source = (ROOT / "src" / "muster" / room / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


def table(names: list[str]) -> str:
    """The rooms and what they are for, as Markdown."""
    rows = [f"| `{room}` | {purpose(room)} |\n" for room in names]
    return "".join(["| room | what is in it |\n", "|---|---|\n", *rows])


def needed(edges: Imports) -> set[tuple[str, str]]:
    """The edges that do not follow from others: those without a longer way between the same rooms."""
    below: dict[str, set[str]] = {}
    for upper, lower in edges:
        below.setdefault(upper, set()).add(lower)

    def reached(room: str) -> set[str]:
        found: set[str] = set()
        for lower in below.get(room, ()):
            found |= {lower} | reached(lower)
        return found

    return {(a, b) for a, b in edges if not any(b in reached(other) for other in below[a] - {b})}


def levels(names: list[str], edges: set[tuple[str, str]]) -> dict[str, int]:
    """The row of each room, from the ground: just above the highest of those that it imports."""
    found: dict[str, int] = {}
    for room in reversed(names):
        found[room] = 1 + max((found[lower] for upper, lower in edges if upper == room), default=-1)
    return found


def ways(level: dict[str, int], edges: set[tuple[str, str]]) -> list[list[Stop]]:
    """Each edge as its stops: rooms at the ends, and a gap between boxes in every row that it passes."""
    found = []
    for upper, lower in sorted(edges):
        gaps = [(f"{upper} {lower}", height) for height in range(level[upper] - 1, level[lower], -1)]
        found.append([(upper, level[upper]), *gaps, (lower, level[lower])])
    return found


def places(paths: list[list[Stop]]) -> dict[Stop, tuple[float, float]]:
    """Where boxes and gaps are: in a row ordered by where their neighbours are, so that few edges cross."""
    rows: dict[int, list[Stop]] = {}
    neighbours: dict[Stop, set[Stop]] = {}
    for path in paths:
        for above, below in pairwise(path):
            neighbours.setdefault(above, set()).add(below)
            neighbours.setdefault(below, set()).add(above)
    for stop in sorted(neighbours):
        rows.setdefault(stop[1], []).append(stop)
    at: dict[Stop, float] = {stop: float(number) for row in rows.values() for number, stop in enumerate(row)}
    for _ in range(SWEEPS):
        for height in (*sorted(rows), *sorted(rows, reverse=True)):
            row = rows[height]
            wanted = {stop: _mean([at[near] for near in neighbours[stop]]) for stop in row}
            row.sort(key=lambda stop: (wanted[stop], stop))
            at |= _packed(row, wanted)
    return {stop: (at[stop], float(stop[1])) for stop in at}


def _packed(row: list[Stop], wanted: dict[Stop, float]) -> dict[Stop, float]:
    """Positions in a row without overlaps, about where they were wanted."""
    widths = [GAP if " " in stop[0] else BOX_WIDTH + 0.3 for stop in row]
    x, found = 0.0, {}
    for stop, width in zip(row, widths, strict=True):
        found[stop] = x + width / 2
        x += width
    shift = _mean([wanted[stop] for stop in row]) - _mean(list(found.values()))
    return {stop: position + shift for stop, position in found.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _curve(points: list[tuple[float, float]]) -> MarkedPath:
    """A smooth line through the points that leaves and enters every row upright."""
    vertices, codes = [points[0]], [MarkedPath.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        vertices += [(x0, middle), (x1, middle), (x1, y1)]
        codes += [MarkedPath.CURVE4] * 3
    return MarkedPath(vertices, codes)


def draw_house(axes: Axes, names: list[str], counts: Imports) -> None:
    """Rooms as boxes, arrows down to what they import; what other arrows imply is left out."""
    edges = needed(counts)
    paths = ways(levels(names, edges), edges)
    at = places(paths)
    for path in paths:
        (x0, y0), *between, (x1, y1) = (at[stop] for stop in path)
        points = [(x0, y0 - BOX_HEIGHT / 2), *between, (x1, y1 + BOX_HEIGHT / 2 + 0.05)]
        axes.add_patch(
            FancyArrowPatch(path=_curve(points), arrowstyle="-|>", mutation_scale=9, color=LINE, linewidth=1.1)
        )
    rooms_at = {name: place for (name, _), place in at.items() if " " not in name}
    for room, (x, y) in rooms_at.items():
        box = FancyBboxPatch(
            (x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2),
            BOX_WIDTH,
            BOX_HEIGHT,
            boxstyle="round,pad=0.03,rounding_size=0.08",
            facecolor=BOX,
            edgecolor=BOX_EDGE,
            zorder=3,
        )
        axes.add_patch(box)
        axes.text(x, y, room, ha="center", va="center", fontsize=9, color=INK, zorder=4)
    xs, ys = zip(*at.values(), strict=True)
    axes.set_xlim(min(xs) - 0.9, max(xs) + 0.9)
    axes.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
    axes.axis("off")
    axes.set_title("Which room depends on which (implied arrows left out)", fontsize=10, color=INK)


def draw_matrix(axes: Axes, names: list[str], counts: Imports) -> None:
    """All imports: the row's room imports the column's. An import that went up would stand in the grey half."""
    size = len(names)
    axes.fill([-0.5, -0.5, size - 0.5], [-0.5, size - 0.5, size - 0.5], color="#f4f4f4", zorder=0)
    for number in range(size):
        axes.plot([number, number], [-0.5, size - 0.5], color="#e6ebf0", linewidth=0.6, zorder=1)
        axes.plot([-0.5, size - 0.5], [number, number], color="#e6ebf0", linewidth=0.6, zorder=1)
        axes.plot(number, number, marker="s", color=BOX_EDGE, markersize=5, zorder=2)
    for (upper, lower), count in sorted(counts.items()):
        strength = min(1.0, 0.25 + count / 30)
        axes.text(
            names.index(lower), names.index(upper), str(count), ha="center", va="center", fontsize=7, color=INK,
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": MARK, "alpha": 0.35 * strength, "edgecolor": "none"},
        )  # fmt: skip
    axes.set_xticks(range(size), names, rotation=60, ha="left", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(size), names, fontsize=8)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False, colors=INK)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    axes.set_aspect("equal")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(
        "how many imports go from the row to the column; in the grey half they would go up", fontsize=8, color=INK
    )


def main() -> None:
    names = rooms()
    counts = imports_between(names)
    # The same file for the same code: no date, no random ids.
    mpl.rcParams["svg.hashsalt"] = "muster"
    figure = Figure(figsize=(14, 8), layout="constrained")
    house, matrix = figure.subplots(1, 2, width_ratios=(1, 1.05))
    draw_house(house, names, counts)
    draw_matrix(matrix, names, counts)
    figure.savefig(PICTURE, metadata={"Date": None})
    text = PAGE.read_text(encoding="utf-8")
    page = re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + table(names) + END, text, flags=re.DOTALL)
    PAGE.write_text(page, encoding="utf-8")
    print(f"Written: {PICTURE.relative_to(ROOT)}, {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
