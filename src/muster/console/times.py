"""Times and durations as people read them."""

from __future__ import annotations

import math
import time


def readable_time(seconds: float) -> str:
    """A duration, as precisely as is useful for planning."""
    if math.isnan(seconds):
        return "unknown"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    if hours < 100:
        return f"{hours:.1f} h"
    days = hours / 24
    return f"{days:.0f} days" if days < 1000 else f"{days / 365.25:.0f} years"


def moment(seconds: float | None) -> str:
    """A point in time (seconds since 1970); nothing where there is none."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""
