"""One method, one colour: whatever else is drawn, on light and on dark ground."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from muster.aggregation.base import aggregators
from muster.report.looks import looks, method_of
from muster.report.plots import draw
from muster.report.style import muster_style
from muster.selection.base import selectors

METHODS = sorted({*selectors.names(), *aggregators.names(), "my-own", "another"})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(METHODS), min_size=2, max_size=12, unique=True), st.randoms())
def test_a_colour_does_not_depend_on_who_else_is_there_or_on_the_order(names, random):
    alone = [looks([name])[0].colour for name in names]
    assert [look.colour for look in looks(names)] == alone
    mixed = random.sample(names, len(names))
    by_name = dict(zip(mixed, looks(mixed), strict=True))
    assert [by_name[name] for name in names] == looks(names)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(METHODS), min_size=2, max_size=12, unique=True))
def test_no_two_lines_look_the_same_while_there_are_dashes_left(names):
    found = looks(names)
    by_colour = [[look.dash for look in found if look.colour == own.colour] for own in found]
    assert all(len(set(dashes)) == len(dashes) for dashes in by_colour if len(dashes) <= 4)


def test_the_usual_methods_have_colours_of_their_own():
    usual = ["random", "terraform", "astrafl", "feddiverse", "oort", "power-of-choice", "divfl", "hics", "fedcor"]
    assert len({look.colour for look in looks(usual)}) == len(usual)


def test_every_registered_method_has_a_place():
    assert all(method_of(f"{name} (x=1)") == name for name in (*selectors.names(), *aggregators.names()))


def test_capitals_make_no_other_method():
    assert [look.colour for look in looks(["Random", "Terraform"])] == [
        look.colour for look in looks(["random", "terraform"])
    ]


def test_variants_are_shades_of_one_colour():
    plain = to_rgb(looks(["terraform"])[0].colour)
    first, second, third = looks([f"terraform, min_clients={n}" for n in (2, 4, 8)])
    assert to_rgb(first.colour) == plain
    lighter = [sum(to_rgb(look.colour)) for look in (first, second, third)]
    assert lighter == sorted(lighter)
    assert len(set(lighter)) == 3


def test_dark_ground_has_colours_of_its_own():
    light = looks(["random"])[0].colour
    with muster_style(dark=True):
        assert looks(["random"])[0].colour != light


@pytest.mark.parametrize("kind", ["curves", "time-to-target", "fairness", "selection-frequency", "weights"])
def test_pictures_keep_to_it(made, kind):
    runs = {name: made(name, 0, [0.2, 0.6], selection={"method": name}) for name in ("random", "oort", "fedcor")}
    for chosen in (["random", "oort", "fedcor"], ["fedcor", "oort"]):
        figure = draw(kind, [runs[name] for name in chosen])
        used = {
            tuple(np.round(to_rgb(artist.get_color()), 6))
            for axes in figure.axes
            for artist in axes.lines
            if isinstance(artist.get_color(), str)
        } | {tuple(np.round(patch.get_facecolor()[:3], 6)) for axes in figure.axes for patch in axes.patches}
        for name in chosen:
            assert tuple(np.round(to_rgb(looks([name])[0].colour), 6)) in used
