"""Consoles for results and for messages."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from muster.core.errors import MusterError

#: Results. Names of runs, clients and files are text, whatever brackets they have: nothing is read as markup.
out = Console(highlight=False, markup=False)
#: Progress and messages: kept apart, so that results can be piped.
err = Console(stderr=True, highlight=False, markup=False)


def complain(error: MusterError) -> None:
    """One clear message."""
    err.print(Text.assemble(("Error:", "bold red"), " ", error.problem), soft_wrap=True)
    if error.expected:
        err.print(Text.assemble(("  Expected:", "bold"), " ", error.expected), soft_wrap=True)
    if error.fix:
        err.print(Text.assemble(("  What to do:", "bold"), " ", error.fix), soft_wrap=True)
