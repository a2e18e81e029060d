"""Which version of Flower is installed, and whether its private interfaces are known."""

from __future__ import annotations

import importlib.metadata

from muster.core.errors import EngineError

#: The version whose private interfaces the package `flower_internals` was written and tested for.
SUPPORTED = "1.41"


def installed() -> str:
    """The installed version of flwr."""
    try:
        return importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError as error:
        raise EngineError("Flower is not installed", fix="pip install 'muster-fl[flower]'") from error


def check_version() -> None:
    """Refuse a version of flwr whose private interfaces have not been checked."""
    found = installed()
    if not found.startswith(f"{SUPPORTED}."):
        raise EngineError(
            f"warm nodes and `muster deploy` use private interfaces of Flower, and flwr {found} is installed",
            expected=f"flwr {SUPPORTED}.*",
            fix=f"pip install 'flwr=={SUPPORTED}.*', or use what every version has: `flower-supernode` for nodes, "
            "`muster flower new` and `flwr run` for the experiment, `muster deploy local --stock` for both",
        )
