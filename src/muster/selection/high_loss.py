"""High loss: always the clients on which the model is worst, a baseline of ASTraFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.core.component import Population
from muster.selection._ranking import highest
from muster.selection.base import Plan, Selector, Train, View, check_count, no_second_turn, selectors
from muster.selection.power_of_choice import answers, last_losses
from muster.signals.base import Signal
from muster.signals.losses import Loss, TrainLoss


@selectors.register("high-loss")
@dataclass
class HighLoss(Selector):
    """The clients with the highest loss of all."""

    clients_per_round: int
    #: "loss": the global model's loss, for which all available clients are asked every round;
    #: "last_train_loss": that of each client's last training, which costs nothing; clients that never trained go
    #: first.
    signal: Literal["loss", "last_train_loss"] = "loss"

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)

    def cautions(self, population: Population) -> list[str]:
        if self.signal == "last_train_loss" and (text := no_second_turn(self, population)):
            return [text]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (Loss(),) if self.signal == "loss" else (TrainLoss(),)

    def round(self, fed: View) -> Plan:
        clients = fed.available
        if self.signal == "loss":
            losses = yield from answers(clients, Loss())
            yield Train(clients[highest(losses, self.clients_per_round, fed.rng)])
        else:
            losses = last_losses(fed, clients)
            yield Train(clients[highest(losses, self.clients_per_round, fed.rng)], report=(TrainLoss(),))
