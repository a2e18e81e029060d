"""One look for all pictures: colours that colour-blind people can tell apart, quiet axes, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap

#: Okabe and Ito's palette, its pink a little darker; in place of yellow, which is faint on white, wine from Tol's.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#C8709F", "#56B4E9", "#E69F00", "#000000", "#882255")
#: The same on dark ground: black turns white, and yellow is back.
_DARK_COLOURS = ("#2E95D3", "#E8702A", "#1CB98C", "#CC79A7", "#8CCBF2", "#E69F00", "#E6E9EC", "#F0E442")
#: Of pages, on light and on dark ground: text on `back` and on `card` has a contrast of at least 4.5 to 1.
_GROUNDS = {
    "light": {
        "text": "#1b1f23",
        "quiet": "#57606a",
        "line": "#d0d7de",
        "edge": "#6e7781",
        "back": "#ffffff",
        "card": "#f6f8fa",
        "accent": "#0067a3",
        "on-accent": "#ffffff",
        "warn": "#b04a00",
        "bad": "#882255",
        "good": "#00795a",
    },
    "dark": {
        "text": "#e6e9ec",
        "quiet": "#aab2ba",
        "line": "#3a424a",
        "edge": "#8b949e",
        "back": "#14181c",
        "card": "#1d2328",
        "accent": "#56b4e9",
        "on-accent": "#0b1014",
        "warn": "#f0803c",
        "bad": "#e79ac0",
        "good": "#1cb98c",
    },
}
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 160,
}

_LIGHT = {"grid.alpha": 0.25}

#: For pages with a dark background: the background itself is left transparent.
_DARK = {
    "text.color": "#e6e9ec",
    "axes.labelcolor": "#e6e9ec",
    "axes.edgecolor": "#aab2ba",
    "axes.facecolor": "none",
    "xtick.color": "#aab2ba",
    "ytick.color": "#aab2ba",
    "grid.color": "#aab2ba",
    "grid.alpha": 0.12,
    "hatch.color": "#e6e9ec",
}

_is_dark: ContextVar[bool] = ContextVar("is_dark", default=False)


@contextmanager
def muster_style(*, dark: bool | None = None) -> Iterator[None]:
    """Pictures made inside have the one look; without `dark` the ground stays what it is."""
    dark = _is_dark.get() if dark is None else dark
    token = _is_dark.set(dark)
    try:
        with mpl.rc_context(_STYLE | (_DARK if dark else _LIGHT)):  # type: ignore[arg-type]
            yield
    finally:
        _is_dark.reset(token)


def is_dark() -> bool:
    """Whether pictures are made for a dark ground now."""
    return _is_dark.get()


def colour(number: int) -> str:
    """The n-th colour, for the ground that is set."""
    colours = _DARK_COLOURS if _is_dark.get() else COLOURS
    return colours[number % len(colours)]


def page_palette() -> str:
    """The colours of pages as a style sheet: as the reader's screen is set, or as `data-theme` says."""
    light, dark = (
        "; ".join(
            [f"color-scheme: {ground}"]
            + [f"--{name}: {value}" for name, value in _GROUNDS[ground].items()]
            + [f"--c{number}: {value}" for number, value in enumerate(colours)]
        )
        for ground, colours in (("light", COLOURS), ("dark", _DARK_COLOURS))
    )
    return (
        f":root {{ {light}; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark}; }} }}\n"
        f":root[data-theme=dark] {{ {dark}; }}\n"
    )


def shades() -> LinearSegmentedColormap:
    """From nothing (the ground itself) to much."""
    dark = [(0.18, 0.58, 0.83, 0.0), (0.18, 0.58, 0.83, 1.0), (0.93, 0.97, 1.0, 1.0)]
    light = [(0.34, 0.71, 0.91, 0.0), (0.0, 0.45, 0.70, 1.0), (0.02, 0.13, 0.27, 1.0)]
    return LinearSegmentedColormap.from_list("muster", dark if _is_dark.get() else light)
