"""Devices: how fast clients compute and how fast their connection is (see docs/devices.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.core.errors import ConfigError
from muster.core.registry import build
from muster.world.devices.base import CountFlops, DeviceModel, Devices, device_models
from muster.world.devices.lognormal import Lognormal

__all__ = [
    "DEFAULT_MODEL",
    "DeviceModel",
    "Devices",
    "Lognormal",
    "device_models",
    "from_config",
    "method_of",
    "model",
]

DEFAULT_MODEL = "lognormal"


def method_of(options: Mapping[str, Any]) -> Any:
    """The model of devices that a section `[devices]` names: under `method`, or `model`, its older name."""
    names = {key: options[key] for key in ("method", "model") if key in options}
    if len(set(map(str, names.values()))) > 1:
        raise ConfigError(
            f"[devices] names two models: method = {names['method']!r} and model = {names['model']!r}",
            fix="leave `model` out: it is the older name of `method`",
        )
    return next(iter(names.values()), DEFAULT_MODEL)


def model(name: str) -> Callable[..., DeviceModel]:
    """The model of devices of this name."""
    return device_models.get(name)


def from_config(options: Mapping[str, Any], clients: int, seed: int, flops: CountFlops | None = None) -> Devices:
    """The devices that a section `[devices]` describes. `flops` counts what a training sample costs."""
    own = {key: value for key, value in options.items() if key not in ("method", "model")}
    return build(model(method_of(options)), own, "devices").draw(clients, seed, flops or _unknown)


def _unknown() -> float:
    raise ConfigError(
        "how long devices compute depends on the model, which is not known here",
        fix="set 'devices.flops_per_sample'",
    )
