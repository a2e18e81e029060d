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
        'name = "a b"\nseeds = [0, 1]\n\n[base]\nrounds = 3\n\n[base.training]\nlr = 0.1\n\n'
        '[[cases]]\nname = "x"\nselection = { method = "random" }\n'
    )


def test_what_toml_has_no_word_for():
    with pytest.raises(TypeError, match="TOML has no object"):
        toml_value(object())
