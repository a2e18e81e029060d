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


def test_completion_lists_what_can_be_had_without_importing_it():
    code = "import sys, muster; print(*dir(muster)); print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names, torch = printed.splitlines()
    assert torch == "False"
    assert {"run", "Experiment", "compare", "selection", "__version__"} <= set(names.split())
    assert not {"TYPE_CHECKING", "imported_when_used"} & set(names.split())


@pytest.mark.parametrize(
    "package", [muster, muster.selection, muster.aggregation, muster.signals, muster.training]
)
def test_every_name_that_is_listed_can_be_had(package):
    assert [name for name in dir(package) if not hasattr(package, name)] == []


def test_methods_are_listed_by_their_classes_and_modules():
    assert {"Terraform", "terraform", "Selector", "FedDiverse"} <= set(dir(muster.selection))
    assert {"SimProx", "simprox"} <= set(dir(muster.aggregation))
