"""Model families."""

from muster.models.base import models

__all__ = ["models"]
