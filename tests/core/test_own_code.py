"""Check sums of people's own code: what counts as a change, and what does not."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from torch import nn

from muster.core.own_code import own_code
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
