"""Muster on Flower, for people who write apps: needs the extra `flower`. See docs/flower.md."""

from __future__ import annotations

from muster.errors import ConfigError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ConfigError("Flower is not installed", fix="pip install 'muster-fl[flower]'") from error

from muster.engine.flower.client import ClientData
from muster.engine.flower.client_app import make_client_app
from muster.engine.flower.engine import FlowerEngine
from muster.engine.flower.options import FlowerOptions
from muster.engine.flower.server_app import make_server_app, run_on_grid
from muster.engine.flower.strategy import MusterStrategy, StrategyResult

__all__ = [
    "ClientData",
    "FlowerEngine",
    "FlowerOptions",
    "MusterStrategy",
    "StrategyResult",
    "make_client_app",
    "make_server_app",
    "run_on_grid",
]
