"""Signals are checked in the exchange that names them; declaring them only moves the check before round 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.scaffold import Scaffold
from muster.core.errors import ConfigError
from muster.engine.base import Engine
from muster.engine.wrapped import WrappedEngine
from muster.experiment.parts import build_parts
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.server.loop import Server
from muster.signals.base import Signal, signals
from muster.signals.device import DeviceTime
from muster.signals.heterogeneity import InteractionMatrix
from muster.signals.losses import Loss
from muster.signals.probe import ProbeNorm
from muster.signals.updates import FinalLayerNorm

SCAFFOLD = {"algorithm": {"method": "scaffold"}, "aggregation": {"method": "scaffold"}}


class Asks(Selector):
    """Asks for one signal in round 2, and declares it or not."""

    def __init__(self, signal: Signal, declared: bool = False) -> None:
        self.signal, self.declared, self.rounds = signal, declared, 0

    def needs(self) -> tuple[Signal, ...]:
        return (self.signal,) if self.declared else ()

    def round(self, fed: View) -> Plan:
        self.rounds += 1
        if fed.round and self.signal.askable:
            yield Ask(fed.available, (self.signal,))
        yield Train(fed.available[:3], report=(self.signal,) if fed.round and self.signal.reportable else ())


def refused(selector: Asks, engine: Engine, message: str) -> None:
    with engine, pytest.raises(ConfigError, match=message):
        Server(selector, Scaffold() if engine.algorithm.requires_aggregation else FedAvg(), engine).run(3)
    assert selector.rounds == (0 if selector.declared else 2)


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("kind", ["inline", "processes", "vectorised"])
def test_probes_are_refused_with_scaffold(tiny: Any, kind: str, declared: bool) -> None:
    engine = build_parts(tiny(engine={"kind": kind}, **SCAFFOLD), workers=int(kind == "processes")).engine
    refused(Asks(ProbeNorm(), declared), engine, "probed models, whose steps lack the corrections of scaffold")


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(
    ("signal", "message"),
    [
        (ProbeNorm(optimizer_state="kept"), "local training has none"),
        (InteractionMatrix(), "Asks needs the signal 'interaction_matrix', but .*no attributes"),
        (DeviceTime(), r"add a section \[devices\]"),
    ],
)
def test_what_clients_cannot_measure_is_refused(tiny: Any, signal: Signal, message: str, declared: bool) -> None:
    refused(Asks(signal, declared), build_parts(tiny(), workers=0).engine, message)


class Sums(WrappedEngine):
    """An engine whose server sees only sums of updates."""

    @property
    def sums_only(self) -> bool:
        return True


class Late(Selector):
    """Looks at individual updates long after any trial has ended."""

    def round(self, fed: View) -> Plan:
        late = fed.round >= 45
        yield Train(fed.available[:2], report=(FinalLayerNorm(),) if late else ())


def test_single_updates_are_refused_whenever_they_are_asked_for(tiny: Any) -> None:
    parts = build_parts(tiny(training={"steps": 1}, evaluation={"every": 60}), workers=0)
    server = Server(Late(), FedAvg(), Sums(parts.engine), evaluate_every=60)
    with parts.engine, pytest.raises(ConfigError, match=r"secure aggregation: .*'final_layer_norm'"):
        server.run(60)
    assert len(server.records) == 45


class PlainMean(Selector):
    """Trains with plain FedAvg and does not say so beforehand."""

    def round(self, fed: View) -> Plan:
        yield Train(fed.available[:3], fedavg=True)


def test_a_plain_mean_is_refused_with_scaffold(tiny: Any) -> None:
    engine = build_parts(tiny(**SCAFFOLD), workers=0).engine
    with engine, pytest.raises(ConfigError, match="trains some rounds with FedAvg"):
        Server(PlainMean(), Scaffold(), engine).run(1)


def test_what_is_fine_needs_no_declaration(tiny: Any) -> None:
    engine = build_parts(tiny(), workers=0).engine
    with engine:
        result = Server(Asks(Loss()), FedAvg(), engine).run(2)
    assert np.isfinite(result.parameters).all()


def test_signals_that_reveal_an_update_say_so() -> None:
    known: dict[str, Any] = {name: signals.get(name) for name in signals}
    assert {name for name, signal in known.items() if signal.reveals_update} == {
        "bias_update",
        "biased_model",
        "compressed_update",
        "final_bias_norm",
        "final_layer_norm",
        "final_layer_update",
        "final_weight_norm",
        "gradient",
        "mean_gradient",
        "update",
    }
    assert all(signal.reveals_update for signal in known.values() if signal.in_update)
