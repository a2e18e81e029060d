"""Fixtures for tests of selectors: a federation that answers with made-up numbers, and the selectors' contract."""

import pytest

from muster.server.testing import FakeFederation, check_selector


@pytest.fixture
def federation():
    """The class: `federation(10, sizes=…, script={"loss": […]})`, then `.play(selector)` or `.run(…)`."""
    return FakeFederation


@pytest.fixture
def keeps_contract():
    """`keeps_contract(lambda: Selector(…), count)` raises where a selector breaks the general rules."""
    return check_selector
