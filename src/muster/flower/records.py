"""Between Flower's records and Muster's flat vector: for client apps that are not Muster's.

Such an app gets a model as an array record, one array per tensor, and sends it back with `num-examples` among its
metrics, as Flower's own strategies expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from muster.core.arrays import Vector
from muster.core.errors import ConfigError
from muster.core.parameters import LARGEST_COUNTER, ParameterSpec, SpecEntry
from muster.flower.wire import WireError, decoded

#: Running statistics: averaged, but no part of a server's step.
_BUFFERS = ("running_mean", "running_var")


def spec_of_arrays(arrays: ArrayRecord, final_layer: str | None = None) -> ParameterSpec:
    """The layout of a model that is only known by its arrays.

    The classification layer is the last one whose name ends in `.weight` and which has rows, unless it is named.
    """
    if not arrays:
        raise ConfigError("the initial arrays are empty", expected="an ArrayRecord with the model's tensors")
    kinds: dict[str, list[tuple[str, tuple[int, ...]]]] = {"parameters": [], "buffers": [], "counters": []}
    for name, array in arrays.items():
        kind = "parameters" if not name.endswith(_BUFFERS) else "buffers"
        if not np.issubdtype(np.dtype(array.dtype), np.floating):
            kind = "counters"
        kinds[kind].append((name, tuple(array.shape)))
    if not kinds["parameters"]:
        raise ConfigError("the initial arrays hold no floating-point tensors", expected="a model's parameters")
    laid, at = {}, 0
    for kind, named in kinds.items():
        laid[kind], at = _laid_out(named, at)
    final = final_layer if final_layer is not None else _final_layer(kinds["parameters"])
    spec = ParameterSpec(**laid, final_layer_name=final or "", has_final_layer=final is not None, frozen="")
    if final_layer is not None and spec.final_outputs is None:
        raise ConfigError(f"the model has no layer '{final_layer}' with a weight", expected=", ".join(arrays))
    return spec


def _laid_out(named: list[tuple[str, tuple[int, ...]]], at: int) -> tuple[tuple[SpecEntry, ...], int]:
    entries = []
    for name, shape in named:
        size = int(np.prod(shape))
        entries.append(SpecEntry(name, shape, at, at + size))
        at += size
    return tuple(entries), at


def _final_layer(parameters: list[tuple[str, tuple[int, ...]]]) -> str | None:
    layers = [
        name.removesuffix(".weight") for name, shape in parameters if name.endswith(".weight") and len(shape) > 1
    ]
    return layers[-1] if layers else None


def to_vector(arrays: ArrayRecord, spec: ParameterSpec) -> Vector:
    """The arrays as one flat float32 vector, if they are those of the model."""
    if sorted(arrays) != sorted(entry.name for entry in spec.entries):
        raise WireError("the arrays are not those of the model", expected=", ".join(e.name for e in spec.entries))
    flat = np.empty(spec.size, dtype=np.float32)
    for entry in spec.entries:
        flat[entry.slice] = decoded(entry.name, arrays[entry.name], entry.shape).ravel()
    if (np.abs(flat[spec.counted]) >= LARGEST_COUNTER).any():
        raise WireError("a counter of the model is too large for the flat vector", expected="below 2**24")
    return flat


def to_arrays(flat: Vector, spec: ParameterSpec, dtypes: Mapping[str, str]) -> ArrayRecord:
    """The flat vector as the model's arrays, in their own types and in the order of `dtypes`."""
    parts = {entry.name: flat[entry.slice].reshape(entry.shape) for entry in spec.entries}
    return ArrayRecord({name: Array(parts[name].astype(dtype)) for name, dtype in dtypes.items()})


def only_arrays(content: RecordDict) -> ArrayRecord:
    """The array record of a reply; it must be the only one, whatever its name."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise WireError(f"the reply holds {len(records)} array records", expected="one, with the trained model")
    return records[0]


def metrics_of(content: RecordDict) -> dict[str, Any]:
    """All metrics of a reply in one dict."""
    found: dict[str, Any] = {}
    for record in content.metric_records.values():
        found |= _plain(record)
    return found


def _plain(record: MetricRecord) -> dict[str, Any]:
    return dict(record.items())


def examples_of(metrics: Mapping[str, Any], key: str) -> int:
    """How many samples a client says it has worked with."""
    value = metrics.get(key)
    if not isinstance(value, int | float) or not 0 < value < 2**40 or value != int(value):
        raise WireError(f"the metric '{key}' is {value!r}", expected="a positive number of samples")
    return int(value)
