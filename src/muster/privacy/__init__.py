"""What leaves a client: adding noise to it, and an account of the guarantee."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used

__all__ = ["Privacy"]

if TYPE_CHECKING:
    from muster.privacy.account import Privacy
else:
    __getattr__, __dir__ = imported_when_used(__name__, Privacy="muster.privacy.account")
