"""The pages about devices and availability: every method and option is there."""

from pathlib import Path

import pytest

from muster.core.registry import parameters_of
from muster.world.availability import availabilities
from muster.world.devices import device_models

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("registry", "page"),
    [(availabilities, "availability.md"), (device_models, "devices.md")],
    ids=["availability", "devices"],
)
def test_every_method_and_option_is_described(registry, page):
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    for name in registry:
        if not registry.get(name).__module__.startswith("muster."):
            continue
        (row,) = [line for line in lines if line.startswith(f"| `{name}`")]
        for option in parameters_of(registry.get(name)):
            assert f"`{option}`" in row, (name, option)
