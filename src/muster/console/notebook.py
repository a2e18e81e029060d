"""Progress in a notebook: HTML in the output of the cell. It needs no widgets, and stays in a saved notebook."""

from __future__ import annotations

import html
import io
import time
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task

#: How often what is shown is renewed, at most.
_SECONDS = 0.2
_ROW = "display:flex;flex-wrap:wrap;align-items:center;gap:0.2em 0.8em;font-variant-numeric:tabular-nums"


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, or another that shows HTML."""
    return Console(file=io.StringIO()).is_jupyter


class NotebookConsole(Console):
    """Keeps what is printed, for the cell's output to show below the bars."""

    def __init__(self) -> None:
        self.printed = io.StringIO()
        # As if it were a terminal: there are bars, so a line for each step is not needed.
        super().__init__(
            file=self.printed,
            force_terminal=True,
            force_jupyter=False,
            color_system=None,
            highlight=False,
            width=1000,
        )


def bars(console: Console, *columns: ProgressColumn) -> Progress:
    """Progress bars on a console: of these columns in a terminal, as HTML in a notebook."""
    if isinstance(console, NotebookConsole):
        return _NotebookBars(console)
    return Progress(*columns, console=console)


class _NotebookBars(Progress):
    def __init__(self, console: NotebookConsole) -> None:
        self._printed, self._shown = console.printed, 0.0
        self._handle: Any = None
        super().__init__(console=console, auto_refresh=False)

    def start(self) -> None:
        # By name: IPython is there in every notebook, and nowhere else needed.
        display = import_module("IPython.display").display
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def stop(self) -> None:
        self._renew()

    def update(self, *arguments: Any, **options: Any) -> None:
        super().update(*arguments, **options)
        self.refresh()

    def refresh(self) -> None:
        if time.monotonic() - self._shown >= _SECONDS:
            self._renew()

    def _renew(self) -> None:
        if self._handle is not None:
            self._shown = time.monotonic()
            self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        said = [line.strip() for line in self._printed.getvalue().splitlines() if line.strip()]
        lines = "".join(f'<div style="opacity:0.7">{html.escape(line)}</div>' for line in said)
        rows = "".join(map(_row, self.tasks))
        texts = [" ".join([task.description, *_facts(task)]) for task in self.tasks]
        return {"text/html": f"<div>{lines}{rows}</div>", "text/plain": "\n".join([*said, *texts])}


def _row(task: Task) -> str:
    known = f' value="{task.completed:g}" max="{task.total:g}"' if task.total else ""
    facts = "".join(f"<span>{html.escape(part)}</span>" for part in _facts(task))
    return (
        f'<div style="{_ROW}"><strong>{html.escape(task.description)}</strong>'
        f'<progress{known} aria-label="{html.escape(task.description, quote=True)}"></progress>{facts}</div>'
    )


def _facts(task: Task) -> list[str]:
    counted = f"{task.completed:g}/{task.total:g}" if task.total else ""
    return [part for part in (counted, str(task.fields.get("facts", "")).strip()) if part]
