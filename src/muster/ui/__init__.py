"""The live page: see a federation while it trains.

`muster ui` serves it on a workspace; `muster.ui(result)` shows a result in a notebook. Everything is read from the
results store with connections that cannot write, so the page harms no run, and may be closed at any moment.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`muster.ui` is this package and, in a notebook, what people call: `muster.ui(result)`."""

    def __call__(self, shown: Any, **options: Any) -> Any:
        from muster.ui.notebook import embed

        return embed(shown, **options)


sys.modules[__name__].__class__ = _Callable
