"""Settings that are written as TOML are read back as they were."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.config.toml import to_toml, toml_value

texts = st.text(st.characters(codec="utf-8"), max_size=8)
plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(texts, values, max_size=4))
def test_documents_are_read_back(document):
    assert tomllib.loads(to_toml(document)) == document


def test_a_sweep_looks_as_people_write_it():
    sweep = {
        "name": "a b",
        "seeds": [0, 1],
        "base": {"rounds": 3, "training": {"lr": 0.1, "clip": None}},
        "cases": [{"name": "x", "selection": {"method": "random"}}],
    }
    assert to_toml(sweep) == (
        'name = "a b"\nseeds = [0, 1]\ncases = [\n    { name = "x", selection = { method = "random" } },\n]\n\n'
        "[base]\nrounds = 3\n\n[base.training]\nlr = 0.1\n"
    )


@settings(max_examples=80, deadline=None)
@given(values)
def test_values_are_one_line_and_read_back(value):
    text = toml_value(value)
    assert "\n" not in text
    assert tomllib.loads(f"x = {text}") == {"x": value}


def test_values_as_people_write_them():
    assert toml_value([64, [1, 2]]) == "[64, [1, 2]]"
    assert toml_value({"method": "random", "none": None}) == '{ method = "random" }'
    assert toml_value([{"a": [1, 2]}, {"b": "x] , y"}]) == '[{ a = [1, 2] }, { b = "x] , y" }]'
    assert [toml_value(value) for value in (True, 0.1, "a\nb")] == ["true", "0.1", '"a\\nb"']


def test_what_toml_has_no_word_for():
    with pytest.raises(TypeError, match="not TOML serializable"):
        toml_value(object())
