"""Terraform's control: as many retrainings within a round, of random clients instead of the hard ones. Ours."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.arrays import Ints
from muster.selection.base import View, selectors
from muster.selection.terraform import Terraform


@selectors.register("retrain-random")
@dataclass(frozen=True)
class RetrainRandom(Terraform):
    """Terraform's rounds, but the clients that train again are drawn at random from the cohort: its control."""

    def next_clients(self, fed: View, trained: Ints, hard: Ints) -> Ints:
        """As many as would have been hard: from the same reports, by the same rule."""
        return fed.sample(len(hard), among=trained)
