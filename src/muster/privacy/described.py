"""Signals as plain data, with their noise, and back: what travels over the wire and what a checkpoint holds."""

from __future__ import annotations

import dataclasses
from typing import Any

from muster.privacy.noise import Private, private
from muster.signals.base import Signal, signals


def described(signal: Signal) -> dict[str, Any]:
    """A signal's name and options."""
    if isinstance(signal, Private):
        noise = {"mechanism": signal.mechanism, "epsilon": signal.epsilon, "delta": signal.delta}
        return {**described(signal.signal), "noise": noise}
    options: dict[str, Any] = dataclasses.asdict(signal) if dataclasses.is_dataclass(signal) else {}
    return {"name": signal.name, "options": options}


def rebuilt(entry: dict[str, Any], classes: int) -> Signal:
    """The signal with this description, built from the registry: nothing else can be named."""
    signal = signals.build(entry["name"], entry["options"])
    noise = entry.get("noise")
    if noise is None:
        return signal
    # The bound that scales the noise is the client's own: a server cannot lower it.
    return private(signal, noise["mechanism"], float(noise["epsilon"]), float(noise["delta"]), classes)
