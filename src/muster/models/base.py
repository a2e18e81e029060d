"""Models by name. A model is built for a data set's sample shape and number of classes."""

from __future__ import annotations

from torch import nn

from muster.registry import Registry

#: Entries are callables `(input_shape: tuple[int, ...], classes: int, **options) -> nn.Module`.
models: Registry[nn.Module] = Registry("model", "muster.models")
