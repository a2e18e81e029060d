"""How an experiment behaves on a federation: the section [flower]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.core.errors import ConfigError


@dataclass(frozen=True)
class FlowerOptions:
    """How long the server waits, and how it evaluates. The local engine ignores these settings."""

    #: Wait for this many clients before round 1; None: all clients of the partition.
    nodes: int | None = None
    #: Seconds to wait for them.
    wait: float = 300.0
    #: Seconds that clients have for an answer; messages live twice as long, so that late answers are seen.
    deadline: float = 600.0
    #: Seconds between two checks for answers.
    poll: float = 0.1
    #: Who evaluates the global model: the server on its test data, or the clients on theirs.
    evaluate: Literal["server", "clients"] = "server"
    #: Refuse methods that need individual updates: the experiment could then run where the server sees only sums.
    secure_aggregation: bool = False
    #: When answers arrive: when they do ("real"), or when the section [devices] says ("virtual").
    clock: Literal["real", "virtual"] = "real"
    #: File that says which clients there are and with which keys they sign; None: who a node is, is its own word.
    allow_list: str | None = None
    #: Whether one key may speak for several clients.
    shared_keys: bool = False

    def check(self) -> None:
        for key in ("wait", "deadline", "poll"):
            if not getattr(self, key) > 0:
                raise ConfigError(
                    f"bad value for 'flower.{key}': {getattr(self, key)}", expected="a positive number of seconds"
                )
        if self.nodes is not None and self.nodes < 1:
            raise ConfigError(f"bad value for 'flower.nodes': {self.nodes}", expected="at least 1")
