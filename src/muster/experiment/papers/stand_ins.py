"""Where a data set is not on this machine, the experiment runs on the nearest one that is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

from muster.data.locate import known
from muster.data.sources.base import sources
from muster.errors import DataError
from muster.experiment.config import merged
from muster.experiment.papers.published import read_toml

#: Sources that are made on the spot, or come with scikit-learn.
ALWAYS_HERE = ("digits", "synthetic", "spurious-shapes")
#: Sources that are made from another one's files.
MADE_FROM = {"cmnist": "mnist"}


def is_here(source: str) -> bool:
    """Whether a data source can be read on this machine."""
    sources.get(source)  # fills `known`
    return source in ALWAYS_HERE or known[MADE_FROM.get(source, source)].find() is not None


def on_available_data(sections: dict[str, Any], here: Callable[[str], bool] = is_here) -> dict[str, Any]:
    """The same experiment, on the nearest data that is here; unchanged where its own data is."""
    source = sections["data"]["source"]
    if here(source):
        return sections
    order = stand_ins()["order"]
    candidates = order.get(f"{source}/{sections['partition'].get('table')}", order.get(source, []))
    for name in candidates:
        if here(name):
            return _moved(sections, name)
    raise DataError(f"neither the data set '{source}' is here nor what could stand in: {', '.join(candidates)}")


@cache
def stand_ins() -> dict[str, Any]:
    return read_toml("stand_ins.toml")


def _moved(sections: dict[str, Any], name: str) -> dict[str, Any]:
    on = stand_ins()["on"][name]
    moved = copy.deepcopy(sections)
    # What is kept back for validation is a share of any data.
    kept_back = {key: value for key, value in sections["data"].items() if key == "validation"}
    moved["data"] = {"source": name} | on.get("data", {}) | kept_back
    if moved["partition"].get("table") == "spawrious-4":
        moved["data"]["classes"] = 4
    moved["partition"] = _partition(moved["partition"], on)
    moved["selection"] = _cohort(moved["selection"], sections["partition"], moved["partition"])
    return merged(moved, {"model": on["model"]}) if "model" in on else moved


def _partition(partition: dict[str, Any], on: dict[str, Any]) -> dict[str, Any]:
    """The same scheme where it can be: ten classes instead of many, no more clients than the data can serve."""
    classes: dict[str, int] = stand_ins()["classes"]
    if partition["scheme"] == "natural":
        keys = partition.get("keys_per_client")
        natural = stand_ins()["natural"]["partition"]
        clients = partition.get("clients", natural["clients"])
        partition = {"scheme": "classes-per-client", "classes": keys} if keys else dict(natural)
        partition["clients"] = clients
    if partition["scheme"] == "multi-dirichlet" and len(partition["alphas"]) == 1:
        # Made for many classes: ten of them cannot serve hundreds of clients evenly.
        partition = {"scheme": "dirichlet", "clients": partition["clients"], "alpha": partition["alphas"][0]}
    for key in ("classes", "max_classes"):
        if key in partition:
            partition[key] = classes.get(str(partition[key]), partition[key])
    for key in ("clients", "size"):
        if key in partition and key in on:
            partition[key] = min(partition[key], on[key])
    return partition


def _cohort(selection: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """As large a share of the clients as before."""
    if "clients_per_round" not in selection or not before.get("clients") or not after.get("clients"):
        return selection
    share = selection["clients_per_round"] / before["clients"]
    return selection | {"clients_per_round": max(1, round(share * after["clients"]))}
