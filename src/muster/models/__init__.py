"""Model families."""

from muster.models.base import build_model, models

__all__ = ["build_model", "models"]
