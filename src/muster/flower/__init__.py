"""Muster on Flower: the same experiment on a real federation. Needs the extra `flower`; see docs/flower.md.

`wire` says how orders and answers look as messages; `client` is what a node does with them; `mail`, `identity` and
`engine` are the server's side; `client_app` and `server_app` make Flower apps of them; `deploy` starts one.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from muster.core.errors import ConfigError
from muster.core.modules import imported_when_used

if find_spec("flwr") is None:
    raise ConfigError("Flower is not installed", fix="pip install 'muster-fl[flower]'")

__all__ = [
    "ClientData",
    "FlowerEngine",
    "FlowerOptions",
    "MusterStrategy",
    "StrategyResult",
    "make_client_app",
    "make_server_app",
    "rehearse",
    "run_on_grid",
]

if TYPE_CHECKING:
    from muster.config.flower import FlowerOptions
    from muster.flower.client import ClientData
    from muster.flower.client_app import make_client_app
    from muster.flower.engine import FlowerEngine
    from muster.flower.rehearsal import rehearse
    from muster.flower.server_app import make_server_app, run_on_grid
    from muster.flower.strategy import MusterStrategy, StrategyResult
else:
    __getattr__, __dir__ = imported_when_used(
        __name__,
        ClientData="muster.flower.client",
        FlowerEngine="muster.flower.engine",
        FlowerOptions="muster.config.flower",
        MusterStrategy="muster.flower.strategy",
        StrategyResult="muster.flower.strategy",
        make_client_app="muster.flower.client_app",
        make_server_app="muster.flower.server_app",
        rehearse="muster.flower.rehearsal",
        run_on_grid="muster.flower.server_app",
    )
