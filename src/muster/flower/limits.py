"""What a node's owner allows a server to ask for: set in the node's configuration, checked before any work."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.core.registry import build
from muster.flower.wire import Order, WireError
from muster.privacy.noise import Private
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.updates.filters import Filter, named
from muster.updates.update_noise import UpdateNoise

#: Keys of a node's configuration that Muster reads besides the limits; all others are the app's own.
_PROTECTING = ("epsilon-budget", "epsilon-book", "identity-key")
_NAMING = ("partition-id", "num-partitions", "name", "device")
#: From this likeness on a key counts as a misspelt one ("epsilon", "max-eps").
_ALIKE = 0.75
#: The model, its gradient, the vectors that came and go, and a margin.
_COPIES = 6


@dataclass(frozen=True)
class Limits:
    """Keys of the node's configuration are these names with hyphens, for example `max-epochs=5`."""

    #: Passes over the local data in one training.
    max_epochs: int = 100
    #: Samples in a mini-batch.
    max_batch: int = 4096
    #: Megabytes that vectors of the model's size may take, client state included.
    max_memory: int = 8192
    #: Names of the signals that may be asked for, separated by commas; "": all.
    signals: str = ""
    #: The least noise: of what is told, ε is at most this, and δ where the mechanism has one. None: no demand.
    max_epsilon: float | None = None
    max_delta: float = 1e-5
    #: The same for ε of a model update; None: `max_epsilon`.
    max_update_epsilon: float | None = None
    #: With `max_epsilon`: train for a server all the same, although its experiment puts no noise on updates.
    allow_updates: bool = False
    #: With `max_epsilon`: evaluate for a server all the same, although what an evaluation tells has no noise.
    allow_evaluate: bool = False
    #: Modules whose functions a server's experiment may name ("module:name"), separated by commas; "*": all, "":
    #: none. None: not checked, as on Flower's own nodes, which run the server's code anyway.
    allow_modules: str | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Limits:
        _check_keys(node_config, [_key(f.name) for f in fields(cls)])
        given = {f.name: node_config[_key(f.name)] for f in fields(cls) if _key(f.name) in node_config}
        limits: Limits = build(cls, given, "node-config")
        check_amounts({_key(name): getattr(limits, name) for name in given})
        if limits.max_update_epsilon is not None and limits.allow_updates:
            raise ConfigError(
                "the node's configuration has max-update-epsilon and allow-updates",
                expected="one of the two: updates with noise, or without",
            )
        return limits

    @property
    def update_epsilon(self) -> float | None:
        """The largest ε of a model update; None: it may leave as it is."""
        if self.allow_updates:
            return None
        return self.max_epsilon if self.max_update_epsilon is None else self.max_update_epsilon

    def check_training(
        self, training: LocalTraining, algorithm: LocalAlgorithm, spec: ParameterSpec, size: int
    ) -> None:
        """Refuse an experiment that asks for more work or memory than the owner allows."""
        if training.batch_size > self.max_batch:
            raise _beyond("training.batch_size", training.batch_size, "max_batch", self.max_batch)
        epochs = (training.samples_for(size) + algorithm.extra_samples(size)) / size
        if epochs > self.max_epochs:
            raise _beyond("local epochs", round(epochs, 1), "max_epochs", self.max_epochs)
        # Client state is kept in up to three versions: the one that counts, the checkpoint's, and the newest.
        vectors = _COPIES + 3 * len(algorithm.client_state) + len(algorithm.extra)
        megabytes = vectors * spec.bytes / 1024**2
        if megabytes > self.max_memory:
            raise _beyond("megabytes of vectors", round(megabytes), "max_memory", self.max_memory)

    def check_order(self, order: Order) -> None:
        """Refuse signals that the owner has not allowed, or allows only with more noise."""
        allowed = {name.strip() for name in self.signals.split(",")}
        for signal in order.task.signals:
            if self.signals and signal.name not in allowed:
                raise WireError(
                    f"the node's owner does not allow the signal '{signal.name}'",
                    expected=", ".join(sorted(allowed)),
                )
            self._check_noise(signal)

    def check_update(self, filters: Sequence[Filter], algorithm: LocalAlgorithm, spec: ParameterSpec) -> None:
        """Refuse to train where the answer, or a part of it, would have less noise than the owner demands."""
        most = self.update_epsilon
        if most is None:
            return
        # Any other filter would tell whether it changed the update.
        if len(filters) != 1 or not isinstance(filters[0], UpdateNoise):
            others = ", ".join(name for name, _ in named(filters)) or "none"
            raise WireError(
                f"the node's owner wants noise on model updates, and the filters of clients are: {others}",
                expected=f"'update-noise' alone, with an epsilon of at most {most:g}",
            )
        noise = filters[0]
        try:
            noise.check_amounts()
            noise.check_model(spec)
        except ConfigError as error:
            raise WireError(error.problem, expected=error.expected) from error
        if noise.epsilon > most:
            raise WireError(
                f"model updates are asked for with an epsilon of {noise.epsilon:g}",
                expected=f"more than 0, at most {most:g} (this node's limit)",
            )
        if noise.delta > self.max_delta:
            raise WireError(
                f"model updates are asked for with a delta of {noise.delta:g}",
                expected=f"more than 0, at most {self.max_delta:g} (this node's max-delta)",
            )
        if algorithm.extra:
            raise WireError(
                f"the node's owner wants noise on all that is told, and '{algorithm.extra[0]}' would have none",
                expected="a local algorithm that sends nothing but the model",
            )

    def check_modules(self, objective: object) -> None:
        """Refuse an experiment that would have this node import what its owner has not named."""
        if self.allow_modules is None or self.allow_modules.strip() == "*":
            return
        allowed = {name.strip() for name in self.allow_modules.split(",")} - {""}
        for text in _texts(objective):
            module, colon, _ = text.partition(":")
            if colon and module not in allowed:
                raise WireError(
                    f"the experiment names '{text[:80]}', and the node's owner does not allow that module",
                    expected=f"allow-modules={module[:80]} in this node's configuration",
                )

    def check_evaluation(self) -> None:
        """Refuse to evaluate where nothing may leave without noise: counts over the test data have none."""
        if self.max_epsilon is not None and not self.allow_evaluate:
            raise WireError(
                "the node's owner tells nothing without noise, and an evaluation has none",
                expected="an evaluation on the server, or allow-evaluate=true in this node's configuration",
            )

    def _check_noise(self, signal: Signal) -> None:
        if self.max_epsilon is None:
            return
        if not isinstance(signal, Private):
            raise WireError(
                f"the node's owner tells nothing without noise, and '{signal.name}' is asked for without",
                expected=f"noise with an epsilon of at most {self.max_epsilon:g} (max-epsilon)",
            )
        # Written so that a number that is none is refused too.
        if not 0 < signal.epsilon <= self.max_epsilon:
            raise WireError(
                f"'{signal.name}' is asked for with an epsilon of {signal.epsilon:g}",
                expected=f"more than 0, at most {self.max_epsilon:g} (this node's max-epsilon)",
            )
        if signal.mechanism != "laplace" and not 0 < signal.delta <= self.max_delta:
            raise WireError(
                f"'{signal.name}' is asked for with a delta of {signal.delta:g}",
                expected=f"more than 0, at most {self.max_delta:g} (this node's max-delta)",
            )


def _texts(value: object) -> Iterator[str]:
    """All texts in a section of an experiment."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def check_amounts(given: Mapping[str, Any]) -> None:
    """Refuse amounts that would not limit anything."""
    for key, value in given.items():
        if isinstance(value, int | float) and not 0 <= value < math.inf:  # as a number that is none is not either
            raise ConfigError(
                f"the node's configuration has {key} = {value}", expected="a finite number, not negative"
            )


def _check_keys(node_config: Mapping[str, Any], limits: list[str]) -> None:
    """Refuse what looks like a misspelt limit: if ignored, it would let the node disclose too much."""
    protecting = [*limits, *_PROTECTING]
    known = {*protecting, *_NAMING}
    for key in node_config:
        if key in known:
            continue
        spelt = key.lower().replace("_", "-")
        meant = [spelt] if spelt in known else difflib.get_close_matches(spelt, protecting, n=1, cutoff=_ALIKE)
        if meant:
            raise ConfigError(
                f"the node's configuration has the unknown key '{key}'",
                expected=f"'{meant[0]}', if that is what was meant",
                fix="correct the key; an entry of the app's own needs a name that is less alike",
            )


def _key(name: str) -> str:
    return name.replace("_", "-")


def _beyond(what: str, asked: float, name: str, limit: int) -> WireError:
    return WireError(
        f"the experiment asks for {asked} {what}: beyond this node's limit {_key(name)} = {limit}",
        fix="ask for less, or have the node's owner raise the limit",
    )
