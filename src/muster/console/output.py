"""Consoles for results and for messages."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from muster.core.errors import MusterError

#: Results.
out = Console(highlight=False)
#: Progress and messages: kept apart, so that results can be piped.
err = Console(stderr=True, highlight=False)


def complain(error: MusterError) -> None:
    """One clear message."""
    err.print(f"[bold red]Error:[/] {escape(error.problem)}", soft_wrap=True)
    if error.expected:
        err.print(f"  [bold]Expected:[/] {escape(error.expected)}", soft_wrap=True)
    if error.fix:
        err.print(f"  [bold]What to do:[/] {escape(error.fix)}", soft_wrap=True)
