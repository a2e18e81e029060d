"""Selection methods: who trains next."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used
from muster.selection.base import Ask, Plan, Selector, Train, View, selectors

__all__ = ["Ask", "Plan", "Selector", "Train", "View", "selectors"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(__name__, classes=True)
