"""What attacks have in common: who attacks, and from when."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.core.randomness import generator
from muster.updates.filters import Draws, Filter, Filtered, Side, filters
from muster.updates.table import Updates


def attackers_of(clients: int, share: float, seed: int) -> tuple[int, ...]:
    """A random share of all clients, at least one; with the same seed a larger share contains a smaller one.

    >>> len(attackers_of(50, 0.2, seed=0)), set(attackers_of(50, 0.1, 0)) < set(attackers_of(50, 0.2, 0))
    (10, True)
    """
    order = generator(seed, "attackers").permutation(clients)
    return tuple(sorted(order[: max(1, round(share * clients))].tolist()))


@dataclass(frozen=True)
class Attack(Filter):
    """Some clients are malicious. Say which with `share` or `clients`.

    Attacks with the same share in one experiment are made by the same clients.

    >>> from muster.updates.attacks.sign_flip import SignFlip
    >>> SignFlip(share=0.4).settled(clients=5, seed=0).clients
    (1, 4)
    """

    #: Share of all clients that attack, drawn once with the experiment's seed.
    share: float = 0.0
    #: The ids of those that attack.
    clients: tuple[int, ...] = ()
    #: The first round of the attack.
    from_round: int = 1
    side: Side = field(default="client", init=False)

    def settled(self, clients: int, seed: int) -> Attack:
        self._check_who()
        if not self.share:
            return self
        if not clients:
            raise ConfigError(
                f"{type(self).__name__}: the number of clients is not known yet, so a share of them is undefined",
                fix="name the attackers with `clients`",
            )
        return replace(self, clients=attackers_of(clients, self.share, seed), share=0.0)

    def check(self, population: Population) -> None:
        self._check_who()
        wrong = [client for client in self.clients if not 0 <= client < population.clients]
        if wrong:
            raise ConfigError(
                f"{type(self).__name__}: clients names {wrong[0]}", expected=f"0 to {population.clients - 1}"
            )
        self.require("from_round", self.from_round >= 1, "at least 1")

    def _check_who(self) -> None:
        self.require("share", 0 <= self.share <= 1, "0 to 1")
        if bool(self.share) == bool(self.clients):
            raise ConfigError(
                f"{type(self).__name__}: share is {self.share} and clients is {list(self.clients)}",
                expected="one of the two: a share of all clients, or the ids of those that attack",
            )

    def require(self, option: str, holds: bool, expected: str) -> None:
        """Refuse an option's value unless the condition on it holds (NaN never does)."""
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {option} is {getattr(self, option)}", expected=expected)

    def attackers(self, updates: Updates) -> list[int]:
        """Rows of a table that are theirs."""
        return np.flatnonzero(np.isin(updates.clients, self.clients)).tolist()


class UpdateAttack(Attack):
    """An attacker sends an update other than the one it has trained."""

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        rows = self.attackers(updates)
        for row in rows:
            self.attack(updates.movements[row], spec, draws(int(updates.clients[row])))
        return Filtered(updates, changed=len(rows))

    @abstractmethod
    def attack(self, movement: Vector, spec: ParameterSpec, rng: np.random.Generator) -> None:
        """Change one attacker's movement in place."""


class DataAttack(Attack):
    """An attacker trains honestly on data that it has changed. Overrides `poisoned`."""

    changes: ClassVar[bool] = False
    poisons: ClassVar[bool] = True

    def needs_classes(self) -> bool:
        """It changes what class samples have; one that does not says so."""
        return True

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        return Filtered(updates)


@dataclass(frozen=True)
class Collusion(Attack):
    """Attackers that know what honest clients send and act together.

    Clients do not see each other's updates, so this is simulated where all of them are: on the server, before
    anything else looks at an answer. Only the attackers that were selected can act, and only trainable parameters
    are changed.
    """

    side: Side = field(default="server", init=False)

    whole: ClassVar[bool] = True

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        rows = self.attackers(updates)
        honest = np.setdiff1d(np.arange(len(updates)), rows)
        if not rows or not len(honest):
            return Filtered(updates)
        movements = updates.movements[:, spec.trainable]
        rng = draws(int(updates.clients[rows[0]]))
        movements[rows] = self.crafted(movements[honest].astype(np.float64), len(rows), rng)
        return Filtered(updates, changed=len(rows))

    @abstractmethod
    def crafted(self, honest: Floats, attackers: int, rng: np.random.Generator) -> Floats:
        """What the attackers send, knowing the honest movements: one row for all of them, or a row each."""


def attack_names() -> list[str]:
    """The registered filters that are attacks."""
    return [name for name in filters if isinstance(found := filters.get(name), type) and issubclass(found, Attack)]
