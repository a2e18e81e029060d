"""Selection methods: who trains next."""

from muster.selection.base import Ask, Plan, Selector, Train, View, selectors

__all__ = ["Ask", "Plan", "Selector", "Train", "View", "selectors"]
