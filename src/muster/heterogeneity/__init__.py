"""How different clients are: metrics of counts, distances of label distributions, and a private estimate."""

from muster.heterogeneity import cohort, divergences, metrics

__all__ = ["cohort", "divergences", "metrics"]
