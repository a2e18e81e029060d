"""Where a result comes from: which run of which code, on which machine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Origin:
    """What is known about the run behind a result; empty where it is not. Times are seconds since 1970."""

    fingerprint: str = ""
    #: complete, stopped, interrupted, failed or running.
    status: str = ""
    #: Why it failed.
    error: str = ""
    code_version: str = ""
    #: Libraries and machine.
    environment: dict[str, str] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None
    #: Seconds that its rounds took.
    seconds: float = 0.0
