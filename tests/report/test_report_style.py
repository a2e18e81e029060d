"""The colours of pages and pictures: text that can be read, and colours that everybody can tell apart."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from muster.report.style import page_palette

#: Machado, Oliveira and Fernandes (2009), severity 1: what people see whose red, green or blue cones are missing.
SIGHT = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
#: A difference of 2 can just be seen by somebody who looks for it (CIE 1976).
CLEAR = 12.0


def palette(ground: str) -> dict[str, str]:
    block = next(text for text in re.findall(r"\{([^{}]+)\}", page_palette()) if f"color-scheme: {ground}" in text)
    return dict(re.findall(r"--([\w-]+): (#\w+)", block))


def linear(colour: str) -> np.ndarray:
    shares = np.array(to_rgb(colour))
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    weights = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    parts = weights @ np.clip(light, 0, 1) / [0.9505, 1.0, 1.089]
    roots = np.where(parts > 0.008856, np.cbrt(parts), 7.787 * parts + 16 / 116)
    return np.array([116 * roots[1] - 16, 500 * (roots[0] - roots[1]), 200 * (roots[1] - roots[2])])


def test_contrast_by_hand():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(ground):
    colours = palette(ground)
    pairs = [
        (text, below) for text in ("text", "quiet", "accent", "warn", "bad", "good") for below in ("back", "card")
    ]
    pairs += [("on-accent", "accent"), ("text", "line")]
    assert {pair: value for pair in pairs if (value := contrast(*(colours[name] for name in pair))) < 4.5} == {}
    # Borders of fields and signs of states, by the rule for what is no text.
    assert min(contrast(colours["edge"], colours[below]) for below in ("back", "card")) >= 3


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_lines_can_be_told_apart_by_the_colour_blind(ground, sight):
    colours = [value for name, value in palette(ground).items() if re.fullmatch(r"c\d", name)]
    assert len(colours) == 8
    seen = [lab(SIGHT[sight] @ linear(colour)) for colour in colours]
    like = {
        (one, other): round(float(np.linalg.norm(seen[one] - seen[other])), 1)
        for one, other in combinations(range(8), 2)
        if np.linalg.norm(seen[one] - seen[other]) < CLEAR
    }
    assert like == {}
