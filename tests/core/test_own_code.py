"""Check sums of people's own code: what counts as a change, and what does not."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import textwrap

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from muster.core.own_code import content, own_code
from muster.selection import Selector
from muster.selection.terraform import Terraform

BEFORE = """
import numpy as np
from dataclasses import dataclass
from muster.selection import Selector, Train

SHARE = 0.5
TABLE = np.arange(3)
other = 1

def first(clients):
    return clients[: int(SHARE * len(clients))]

@dataclass(frozen=True)
class Mine(Selector):
    '''Half of them.'''
    least: int = 2
    kinds = {"a", "b", "c", "d"}

    def round(self, fed):
        rank = lambda client: TABLE[client % 3]
        yield Train(first(sorted(fed.available.other, key=rank)))
"""


def code_of(text: str, name: str = "Mine") -> str:
    names = {"__name__": "__main__"}
    exec(compile(text, "cell", "exec", dont_inherit=True), names)
    return own_code(names[name])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SHARE = 0.5", "SHARE = 0.6"),
        ("arange(3)", "arange(3) + 1"),
        ("int(SHARE", "round(SHARE"),
        ("least: int = 2", "least: int = 3"),
        ("client % 3", "client % 2"),
        ('"d"', '"e"'),
        ("    def round", "    def needs(self):\n        return ()\n\n    def round"),
    ],
)
def test_a_change_of_what_is_done_is_seen(old, new):
    assert old in BEFORE
    assert code_of(BEFORE) != code_of(BEFORE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SHARE = 0.5", "\n\n# half\nSHARE = 0.5"),
        ("    def round", "    # as in the paper\n    def round"),
        ("other = 1", "other = 2"),  # only an attribute has this name
        ("import numpy as np", "import numpy as np, math"),
    ],
)
def test_comments_places_and_what_is_not_used_do_not_count(old, new):
    assert old in BEFORE
    assert code_of(BEFORE) == code_of(BEFORE.replace(old, new, 1))


def test_code_of_muster_and_of_installed_packages_has_none():
    assert [own_code(thing) for thing in (Terraform, Terraform(3), nn.Linear(2, 2), np.mean, len, 3)] == [""] * 6


def test_a_class_of_ones_own_inside_counts():
    def made(factor):
        class Inner:
            def scale(self, x):
                return factor * x

        class Mine(Selector):
            helper = Inner()

        return Mine

    assert own_code(made(2)) == own_code(made(2)) != own_code(made(3))


def test_partial_functions_and_cached_ones_are_looked_into():
    def power(x, n):
        return x**n

    def product(x, n):
        return x * n

    @functools.cache
    def cached(x):
        return power(x, 2)

    def uses():
        return cached(3)

    before = own_code(uses)
    assert own_code(functools.partial(power, n=2)) != own_code(functools.partial(product, n=2))
    power = product
    assert own_code(uses) != before


def test_recursion_ends():
    def odd(n):
        return n and even(n - 1)

    def even(n):
        return not n or odd(n - 1)

    assert own_code(odd) != ""


def test_it_is_the_same_in_another_process_whatever_it_hashes_texts_with(tmp_path):
    """What goes to a run's process by value has the fingerprint there that it has here."""
    script = tmp_path / "script.py"
    script.write_text(
        BEFORE
        + textwrap.dedent("""
        import sys, cloudpickle
        from muster.core.own_code import own_code
        if sys.argv[1:]:
            Mine = cloudpickle.loads(open(sys.argv[1], "rb").read())
        else:
            open("packed", "wb").write(cloudpickle.dumps(Mine))
        print(own_code(Mine))
        """)
    )

    def said(*arguments: str, seed: str) -> str:
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "PATH": ""}
        done = subprocess.run(
            [sys.executable, script, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()

    first = said(seed="1")
    assert len(first) == 16
    assert said(seed="2") == said("packed", seed="3") == first


class Scaled(nn.Module):
    def __init__(self, scale, shift=0.0):
        super().__init__()
        self.scale, self.shift = scale, torch.tensor(shift)
        self.layer = nn.Linear(2, 2)


class Power:
    def __init__(self, n):
        self.n = n

    def __call__(self, outputs, targets):
        return (outputs - targets) ** self.n


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n):
        self.n = n


def hinge(outputs, targets, margin):
    return margin - outputs * targets


@pytest.mark.parametrize(
    "made",
    [
        lambda x: nn.CrossEntropyLoss(label_smoothing=x / 10),
        lambda x: nn.CrossEntropyLoss(weight=torch.tensor([1.0, x])),
        lambda x: functools.partial(hinge, margin=x),
        lambda x: functools.partial(nn.functional.huber_loss, delta=x),
        Power,
        lambda x: Power(2).__call__ if x == 2 else Power(3).__call__,
        Slotted,
        lambda x: {Slotted(x): 1},
        lambda x: np.array([x, "a"], dtype=object),
    ],
)
def test_objects_are_told_apart_by_what_they_have(made):
    assert content(made(2)) == content(made(2)) != content(made(3))


def test_of_a_network_all_but_its_numbers_counts():
    def built(*arguments):
        torch.manual_seed(1)
        return Scaled(*arguments)

    first = built(2)
    other_numbers = Scaled(2)
    assert content(first) == content(built(2)) != content(other_numbers)
    assert content(first, numbers=False) == content(other_numbers, numbers=False)
    assert content(first, numbers=False) != content(built(3), numbers=False)
    assert content(first, numbers=False) != content(built(2, 1.0), numbers=False)
    other_numbers.layer.bias.requires_grad_(False)
    assert content(first, numbers=False) != content(other_numbers, numbers=False)


def test_a_global_tensor_and_a_global_loss_count():
    text = "import torch\nfrom torch import nn\nW = torch.ones(2)\nL = nn.CrossEntropyLoss()\n"
    text += "def loss(y, t):\n    return L(y, t) * W\n"
    changed = (text.replace("ones", "zeros"), text.replace("Loss()", "Loss(label_smoothing=0.5)"))
    assert len({code_of(each, "loss") for each in (text, *changed)}) == 3
    assert code_of(text, "loss") == code_of(text, "loss")


def test_what_is_kept_under_functions_and_types_is_the_same_after_a_journey():
    text = textwrap.dedent("""
    from typing import Generic, TypeVar
    T = TypeVar("T")
    def one(x): return TABLE[one] + x
    def two(x): return 2
    TABLE = {one: 1, two: 2, int: 3}
    KINDS = {one, two}
    class Mine(Generic[T]):
        def go(self, x: T):
            return TABLE[one], KINDS
    """)
    names = {"__name__": "__main__"}
    exec(compile(text, "cell", "exec", dont_inherit=True), names)
    for name in ("one", "Mine"):
        assert own_code(pickle.loads(cloudpickle.dumps(names[name]))) == own_code(names[name])
        assert code_of(text, name) != code_of(text.replace("two: 2", "two: 3"), name)
    assert code_of(text) != code_of(text.replace("return 2", "return 3"))
