"""Pretrained weights from a local file or from the Hugging Face hub.

Names of tensors follow torchvision's for the ResNet, DenseNet and MobileNet families, so its checkpoints fit. A
model may understand other names too: its method `own_names` gives those of its own for the names in a file.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import spec_of

log = logging.getLogger(__name__)

#: What batch normalisation keeps besides weight and bias; group normalisation has no use for it.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
#: What programs put before all names of the network that they wrap.
_WRAPPERS = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class Taken:
    """What became of a file's tensors."""

    #: Names of the model's tensors that come from the file.
    taken: tuple[str, ...]
    #: Names of the file's tensors that the model has no use for, or in another shape.
    left: tuple[str, ...]
    #: Names of the model's tensors that stay as they were initialised.
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.taken)} tensors taken"]
        parts += [f"{len(self.left)} of the file left out ({_some(self.left)})"] if self.left else []
        parts += [f"{len(self.fresh)} of the model as initialised ({_some(self.fresh)})"] if self.fresh else []
        return ", ".join(parts)


def load_weights(model: nn.Module, weights: str) -> Taken:
    """Copy pretrained weights into the model. `weights`: a file, or `owner/repository[/file]` on the hub.

    A classification layer for another number of classes stays as it was initialised, and the log says so.
    """
    wanted, spec = model.state_dict(), spec_of(model)
    given = _in_own_names(model, read_state(locate(weights)))
    head = {f"{spec.final_layer_name}.{part}".lstrip(".") for part in ("weight", "bias")} & wanted.keys()
    replaced = {name for name in head & given.keys() if given[name].shape != wanted[name].shape}
    if replaced and spec.final_outputs is not None:
        log.warning(
            "weights '%s': the classification layer '%s' has %d outputs, the data has %d classes; "
            "it starts from its random initialisation",
            weights,
            spec.final_layer_name,
            len(given[min(replaced)]),
            spec.final_outputs,
        )
    elif head and not head & given.keys():
        log.warning(
            "weights '%s' have no classification layer: '%s' starts from its random initialisation",
            weights,
            spec.final_layer_name,
        )
        replaced = head
    skipped = head if replaced else set()
    unused = {name for name in given.keys() - wanted.keys() if name.endswith(_STATISTICS)}
    if unused:
        log.warning("weights '%s': the statistics of batch normalisation are dropped, the model has none", weights)
    chosen = {name: tensor for name, tensor in given.items() if name not in skipped | unused}
    check_match(weights, chosen, {name: tensor for name, tensor in wanted.items() if name not in skipped})
    model.load_state_dict(chosen, strict=False)
    report = Taken(
        tuple(sorted(chosen)),
        tuple(sorted(given.keys() - chosen.keys())),
        tuple(sorted(wanted.keys() - chosen.keys())),
    )
    log.info("weights '%s': %s", weights, report)
    return report


def load_backbone(model: nn.Module, weights: str, head: str) -> Taken:
    """Copy pretrained weights into a model that lacks the classification layer `head` of its kind."""
    given = _in_own_names(model, read_state(locate(weights)))
    chosen = {name: tensor for name, tensor in given.items() if not name.startswith(f"{head}.")}
    check_match(weights, chosen, model.state_dict())
    model.load_state_dict(chosen, strict=False)
    report = Taken(tuple(sorted(chosen)), tuple(sorted(given.keys() - chosen.keys())), ())
    log.info("weights '%s': %s", weights, report)
    return report


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _in_own_names(model: nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict under the names that the model's tensors have, where another library called them otherwise."""
    given = {_current_name(name): tensor for name, tensor in state.items()}
    own = getattr(model, "own_names", None)
    names: Mapping[str, str] = own(given.keys()) if callable(own) else {}
    return {names.get(name, name): tensor for name, tensor in given.items()}


def _current_name(name: str) -> str:
    """torchvision's DenseNet files still call `denselayer1.norm1` by an older name, `denselayer1.norm.1`."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)\.", r"\1\2.", name)


def check_match(weights: str, given: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Refuse a state dict that is not exactly the one that is wanted."""
    both = given.keys() & wanted.keys()
    problems = {
        # Checkpoints from before PyTorch 0.4.1 have no counters of batches.
        "lack": {name for name in wanted.keys() - both if not name.endswith("num_batches_tracked")},
        "have the unknown": given.keys() - both,
        "have another shape of": {name for name in both if given[name].shape != wanted[name].shape},
    }
    for problem, names in problems.items():
        if names:
            raise ConfigError(
                f"the weights '{weights}' {problem} '{min(names)}' ({len(names)} such tensors)",
                expected="a state dict of the same architecture",
                fix="check the model's name and options against the checkpoint",
            )
    # A quantised file has whole numbers and scales apart from them: copied as they are, they would mean nothing.
    if odd := {name for name in both if wanted[name].is_floating_point() and not given[name].is_floating_point()}:
        name = min(odd)
        raise ConfigError(
            f"the weights '{weights}' hold whole numbers where the model has fractions: '{name}' is "
            f"{str(given[name].dtype).removeprefix('torch.')} ({len(odd)} such tensors)",
            expected="floating-point numbers",
            fix="take the checkpoint that is not quantised",
        )
    # A mask that is built in may hold infinities; where the model has none, the file should not.
    if wild := {name for name in both if not _finite(given[name]) and _finite(wanted[name])}:
        raise ConfigError(
            f"the weights '{weights}' hold numbers that are not finite: '{min(wild)}' ({len(wild)} such tensors)",
            fix="fetch the file again, or take another checkpoint",
        )


def _finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


def locate(weights: str) -> Path:
    """The local file of the weights; fetched from the hub if the name is not a file and the extra is installed."""
    path = Path(weights).expanduser()
    if path.is_file():
        return path
    parts = weights.split("/")
    if len(parts) not in (2, 3) or not all(parts) or weights.startswith((".", "~")):
        raise ConfigError(
            f"no weights at '{weights}'",
            expected="a file with a state dict (.pt, .pth or .safetensors), or owner/repository[/file] on the hub",
        )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ConfigError(
            f"no weights at '{weights}': there is no such file, and the hub cannot be asked",
            fix='give the path of a local file, or install the extra: pip install "muster-fl[hub]"',
        ) from None
    try:
        return Path(hf_hub_download("/".join(parts[:2]), parts[2] if len(parts) == 3 else "model.safetensors"))
    except Exception as error:
        raise ConfigError(f"no weights at '{weights}': the hub says: {error}") from error


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file; never runs code from it."""
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError:
            raise ConfigError(
                f"cannot read '{path}' without the package safetensors", fix="pip install safetensors"
            ) from None
        try:
            content: Any = load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise _damaged(path, error) from None
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can make the reader raise anything
            raise _damaged(path, error) from None
    state = {str(name): tensor for name, tensor in _unwrapped(content, path).items()}
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
    return state


def _unwrapped(content: Any, path: Path) -> Mapping[str, torch.Tensor]:
    """The state dict itself, or the one that a training program wrote along with other things."""
    if _is_state(content):
        return dict(content)
    inside = (
        {key: value for key, value in content.items() if _is_state(value)} if isinstance(content, dict) else {}
    )
    if "state_dict" in inside:
        return dict(inside["state_dict"])
    if len(inside) == 1:
        return dict(next(iter(inside.values())))
    if inside:
        raise ConfigError(
            f"'{path}' holds several state dicts: {', '.join(sorted(map(str, inside)))}",
            expected="one: tensors by name",
            fix="write the one that is meant to a file of its own with torch.save",
        )
    raise ConfigError(f"'{path}' holds a {type(content).__name__}", expected="a state dict: tensors by name")


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, torch.Tensor) for v in value.values())


def _damaged(path: Path, error: Exception) -> ConfigError:
    if found := re.search(r"Unsupported global: GLOBAL (\S+)", str(error)):
        return ConfigError(
            f"'{path}' holds more than tensors: an object of type '{found[1]}'",
            expected="a state dict; reading other objects could run code from the file",
            fix="write the tensors alone: torch.save(model.state_dict(), path)",
        )
    # torch's first line is about ways round its safety, and what follows the first sentence is for developers.
    inner = re.search(r"WeightsUnpickler error: (.*)", str(error))
    reason = (inner[1] if inner else str(error).partition("\n")[0]).split(". ")[0]
    if not path.stat().st_size:
        reason = "it is empty"
    elif isinstance(error, OSError) and error.errno == errno.EINVAL:  # a place before the file's beginning
        reason = "it is cut off"
    return ConfigError(
        f"'{path}' is not a file of weights" + (f": {reason}" if " " in reason else ""),
        expected="a whole file with tensors by name",
        fix="compare its size with the original's, and fetch it again",
    )
