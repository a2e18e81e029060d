"""The network of a result: rebuilt from its config, or from what the user passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from muster.config.experiment import from_dict
from muster.core.errors import ConfigError, OutputError
from muster.experiment.components import build_data, build_network
from muster.models.base import build_model
from muster.server.result import Result

#: File endings for `save_network`.
FORMATS = (".pt", ".pth", ".safetensors")


def network_of(result: Result, made_by: Callable[..., nn.Module] | None = None) -> nn.Module:
    """The network that a result's parameters belong to, untrained."""
    config = result.config
    objects = [name for name in ("data", "model") if "object" in config.get(name, {"object": ""})]
    if "model" in objects and made_by is None:
        raise ConfigError(
            "the experiment was given its network as an object, which the store does not keep",
            fix="pass it: result.model(MyNetwork)",
        )
    if "data" in objects:
        if made_by is None or not _needs_nothing(made_by):
            raise ConfigError(
                "the experiment was given its data as an object, so the network cannot be built from the config",
                fix="pass an instance: result.model(MyNetwork(...))",
            )
        return build_model(made_by, (), result.spec.final_outputs or 0)
    sections: dict[str, Any] = {
        name: config[name] for name in ("seed", "data", "partition", "model") if name in config
    }
    if made_by is not None:
        sections["model"] = {}
    experiment = from_dict(sections)
    if made_by is not None:
        experiment.model = made_by
    return build_network(experiment, build_data(experiment))


def _needs_nothing(made_by: Callable[..., nn.Module]) -> bool:
    wanted = inspect.signature(made_by).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in wanted)


def save_network(result: Result, path: Path) -> None:
    """Write the trained network's tensors by name: PyTorch's format, or safetensors by the ending of the path."""
    if path.suffix not in FORMATS:
        raise OutputError(f"unknown format '{path.suffix}' of a model", expected=" or ".join(FORMATS))
    tensors = state_of(result)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors":
            _save_safetensors(tensors, path)
        else:
            torch.save(tensors, path)
    except (OSError, RuntimeError) as error:
        raise OutputError(f"cannot write {path}: {error}", fix="choose another place") from error


def state_of(result: Result) -> dict[str, torch.Tensor]:
    """The tensors by their names in the network: what `load_state_dict` takes.

    No network is needed, unless parts of it are frozen: those are not in the result.
    """
    if result.spec.frozen:
        return result.model().state_dict()
    flat = torch.from_numpy(result.parameters.copy())
    counters = {entry.name for entry in result.spec.counters}
    tensors = {entry.name: flat[entry.slice].view(entry.shape).clone() for entry in result.spec.entries}
    return {name: tensor.long() if name in counters else tensor for name, tensor in tensors.items()}


def _save_safetensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigError(
            "writing safetensors needs the package of that name", fix="pip install 'muster-fl[safetensors]'"
        ) from error
    save_file(tensors, str(path))
