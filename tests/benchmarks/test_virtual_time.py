"""The benchmark of the server with time runs, small."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from virtual_time import CASES, as_markdown, measure


@pytest.mark.parametrize("number", [0, 3, 4])
def test_every_kind_of_case_is_measured(number):
    case = CASES[number]
    small = replace(case, clients=2000, cohort=5, in_flight=case.in_flight and 20, rounds=6)
    begin = time.process_time()
    found = measure(small)
    assert 0 < found.median <= found.slowest < time.process_time() - begin
    assert found.virtual > 0
    assert f"| {case.name} | 2,000 |" in as_markdown([(small, found)]).splitlines()[-1]
