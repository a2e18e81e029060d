"""Where a data set is not on this machine, an experiment runs on the nearest one that is, and is not judged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from muster.config.experiment import merged
from muster.data.locate import known
from muster.data.sources.base import sources
from muster.papers.published import packaged_toml

#: Sources that are made on the spot, or come with scikit-learn.
ALWAYS_HERE = ("digits", "synthetic", "spurious-shapes")
#: Sources that are made from another one's files.
MADE_FROM = {"cmnist": "mnist"}


def is_here(source: str) -> bool:
    """Whether a data source can be read on this machine."""
    sources.get(source)  # fills `known`
    return source in ALWAYS_HERE or known[MADE_FROM.get(source, source)].find() is not None


def wanted_data(sections: Mapping[str, Any]) -> str:
    """What an experiment runs on, as `order` in stand_ins.toml names it: "source", or "source/table"."""
    source = sections["data"]["source"]
    name = f"{source}/{sections['partition'].get('table')}"
    return name if name in stand_ins()["order"] else str(source)


def assigned(wanted: Sequence[str], here: Callable[[str], bool] = is_here) -> dict[str, str | None]:
    """The data set that each wanted one runs on: itself where it is here, else the nearest that is here and that
    no other one runs on; None where nothing is left. Two columns on one data set would say the same twice."""
    own = {name: _source(name) if here(_source(name)) else None for name in wanted}
    taken = {source for source in own.values() if source is not None}
    for name in (name for name, source in own.items() if source is None):
        free = [other for other in _nearest(name) if other not in taken and here(other)]
        own[name] = free[0] if free else None
        taken |= set(free[:1])
    return own


def nothing_left(name: str, here: Callable[[str], bool] = is_here) -> str:
    """Why an experiment runs on nothing."""
    if not any(map(here, _nearest(name))):
        return (
            f"neither the data set '{_source(name)}' is here nor what could stand in: {', '.join(_nearest(name))}"
        )
    return (
        f"'{_source(name)}' is not here, and what could stand in is in another column: {', '.join(_nearest(name))}"
    )


def _source(name: str) -> str:
    return name.partition("/")[0]


def _nearest(name: str) -> list[str]:
    order: dict[str, list[str]] = stand_ins()["order"]
    return order.get(name, order.get(_source(name), []))


def on_data(sections: dict[str, Any], source: str) -> dict[str, Any]:
    """The same experiment on this data; unchanged where that is its own."""
    return sections if sections["data"]["source"] == source else _moved(sections, source)


@cache
def stand_ins() -> dict[str, Any]:
    return packaged_toml("stand_ins.toml")


def _moved(sections: dict[str, Any], name: str) -> dict[str, Any]:
    on = stand_ins()["on"][name]
    moved = copy.deepcopy(sections)
    # What is kept back for validation is a share of any data.
    kept_back = {key: value for key, value in sections["data"].items() if key == "validation"}
    moved["data"] = {"source": name} | on.get("data", {}) | kept_back
    if moved["partition"].get("table") == "spawrious-4":
        moved["data"]["classes"] = 4
    moved["partition"] = _partition(moved["partition"], on)
    before = _clients(sections["data"]["source"], sections["partition"])
    after = _clients(name, moved["partition"])
    if before and after:
        # As large a share of the clients as before.
        moved["selection"] = _cohort(moved["selection"], after / before)
    if not on.get("augmented", True):
        moved.get("training", {}).pop("augmentation", None)
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
    for key in ("classes", "min_classes", "max_classes"):
        if key in partition:
            partition[key] = classes.get(str(partition[key]), partition[key])
    for key in ("clients", "size"):
        if key in partition and key in on:
            partition[key] = min(partition[key], on[key])
    return partition


def _cohort(selection: dict[str, Any], share: float) -> dict[str, Any]:
    """Cohorts that are another share of the clients, in combined methods too."""
    changed: dict[str, Any] = {}
    for key, value in selection.items():
        changed[key] = _cohort(value, share) if isinstance(value, dict) else value
    if "clients_per_round" in changed:
        changed["clients_per_round"] = max(1, round(share * changed["clients_per_round"]))
    return changed


def _clients(source: str, partition: Mapping[str, Any]) -> int:
    """How many clients a division has; 0 where that is not known."""
    if "clients" in partition:
        return int(partition["clients"])
    return int(stand_ins()["writers"].get(source, 0)) if partition["scheme"] == "natural" else 0
