"""How the weights of a new model are drawn, unless that is left to the layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from muster.core.errors import ConfigError, nearest

#: As every layer initialises itself.
DEFAULT = "default"


def xavier(module: nn.Module) -> None:
    """Weights of dense and convolutional layers uniform after Glorot and Bengio, with ReLU's gain √2.

    Biases and all other layers stay as they are. It is what HiCS-FL's public code does with its networks.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("relu"))


_KNOWN: dict[str, Callable[[nn.Module], None]] = {DEFAULT: lambda module: None, "xavier": xavier}


def initialise(module: nn.Module, how: object) -> None:
    """Draw a new model's weights again, from PyTorch's generator as it stands."""
    if how not in _KNOWN:
        raise ConfigError(f"bad value for 'model.init': {how!r}", expected=nearest(str(how), _KNOWN))
    _KNOWN[str(how)](module)
