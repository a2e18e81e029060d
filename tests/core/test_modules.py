"""Methods' modules are attributes of their packages."""

import subprocess
import sys

import pytest

import muster


def test_pure_functions_are_reached_without_further_imports():
    """In a fresh interpreter: here, other tests have imported the modules already."""
    code = (
        "import muster\n"
        "print(muster.selection.terraform.split([1, 2, 3, 9], [1, 1, 1, 1]).tolist())\n"
        "print(muster.aggregation.simprox.weights([[1, 0], [1, 0]], [1, 1]).tolist())\n"
        "print(muster.training.fedprox.FedProx().mu, muster.signals.losses.Loss.name)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:3] == ["[2, 3]", "[0.5, 0.5]", "0.1 loss"]


@pytest.mark.parametrize("package", [muster.selection, muster.aggregation, muster.training, muster.signals])
def test_other_names_are_unknown(package):
    assert not hasattr(package, "no_such_method")
    assert not hasattr(package, "__wrapped__")
