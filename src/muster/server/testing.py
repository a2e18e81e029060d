"""Try your own selector without training: a federation whose clients answer with made-up numbers.

`FakeFederation` drives a selector round by round, and can do to it what a run on the trial engine does not:
clients that do not answer, values that are NaN, few clients that can be reached, newcomers. `check_selector` is
the contract that every selector must keep under all of this. Nothing in the package uses them: they are for tests
and benchmarks, Muster's own and those of anyone who writes a selector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.core.randomness import generator
from muster.engine.base import narrowed
from muster.engine.trial import Script, made_up, small_spec
from muster.selection.base import Ask, Request, Selector, Train, View
from muster.selection.history import History
from muster.server.checks import signals_of
from muster.signals.base import Replies, Signal


@dataclass
class Played:
    """What happened in one round."""

    requests: list[Request] = field(default_factory=list)
    replies: list[Replies] = field(default_factory=list)
    #: For each Train request, the clients whose update was used.
    used: list[Ints] = field(default_factory=list)
    #: Seconds that the selector itself took.
    seconds: float = 0.0

    @property
    def asks(self) -> list[Ask]:
        return [request for request in self.requests if isinstance(request, Ask)]

    @property
    def trains(self) -> list[Train]:
        return [request for request in self.requests if isinstance(request, Train)]

    @property
    def trained(self) -> Ints:
        """The clients that were asked to train in this round's last training."""
        return self.trains[-1].clients

    def same_as(self, other: Played) -> bool:
        """Whether the selector made the same requests."""
        return len(self.requests) == len(other.requests) and all(
            type(mine) is type(theirs)
            and np.array_equal(mine.clients, theirs.clients)
            and _same(mine, theirs, "multiplicity")
            and _same(mine, theirs, "weights")
            and _same(mine, theirs, "lr_factors")
            and _same(mine, theirs, "pull_factors")
            for mine, theirs in zip(self.requests, other.requests, strict=True)
        )


def _same(mine: Request, theirs: Request, rows: str) -> bool:
    a, b = getattr(mine, rows, None), getattr(theirs, rows, None)
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))


class FakeFederation:
    """Clients that exist only as numbers, and answer the same in every run with the same seed."""

    def __init__(
        self,
        clients: int = 10,
        *,
        sizes: npt.ArrayLike | None = None,
        seed: int = 0,
        classes: int = 4,
        rounds: int = 100,
        script: Mapping[str, Script] | None = None,
        attributes: int | None = 2,
        spec: ParameterSpec | None = None,
        seconds: npt.ArrayLike | None = None,
        presence: npt.ArrayLike | None = None,
    ) -> None:
        """`sizes`: how many samples each client has; made up, from 20 to 199, unless given.

        `seconds`: how long each client trains; `presence`: the share of time that each expects to be there, or
        two rows of them: for a time that begins now, and for one that begins later.

        Without them no time passes, and no client says when it will be there.
        """
        self.seed, self.classes, self.rounds, self.attributes = seed, classes, rounds, attributes
        self.spec = small_spec(classes) if spec is None else spec
        self.script: dict[str, Script] = dict(script or {})
        drawn = generator(seed, "fake sizes").integers(20, 200, clients)
        self.sizes: Ints = drawn if sizes is None else np.asarray(sizes, dtype=np.int64)
        self.seconds = None if seconds is None else np.asarray(seconds, dtype=np.float64)
        self.presence = None if presence is None else np.asarray(presence, dtype=np.float64)
        self.history = History(len(self.sizes))
        self.next_round, self.now = 0, 0.0

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @property
    def population(self) -> Population:
        return Population(
            self.sizes,
            self.classes,
            self.spec,
            self.rounds,
            self.attributes,
            has_devices=True,
            timed_availability=True,
        )

    def grow(self, sizes: Sequence[int]) -> None:
        """New clients join."""
        self.sizes = np.concatenate([self.sizes, np.asarray(sizes, dtype=np.int64)])
        self.history.grow(self.clients)

    def view(self, available: npt.ArrayLike | None = None) -> View:
        """What a selector sees at the start of the next round."""
        everyone = np.arange(self.clients)
        there: Ints = everyone if available is None else np.sort(np.asarray(available, dtype=np.int64))
        now, presence = self.now, self.presence

        def forecast(begin: float, end: float, clients: Ints) -> Floats:
            assert presence is not None
            shares: Floats = (presence if presence.ndim == 1 else presence[int(begin > now)])[clients]
            return shares

        return View(
            round=self.next_round,
            rounds=self.rounds,
            sizes=self.sizes,
            available=there,
            history=self.history,
            rng=generator(self.seed, "selection", self.next_round),
            classes=self.classes,
            spec=self.spec,
            now=self.now,
            forecast=None if presence is None else forecast,
        )

    def play(
        self,
        selector: Selector,
        *,
        available: npt.ArrayLike | None = None,
        drop: Collection[int] = (),
        nan: Mapping[str, Collection[int]] | None = None,
    ) -> Played:
        """One round: `drop` never answer, `nan` names the clients whose value of a signal is not a number."""
        view, played = self.view(available), Played()
        plan = selector.round(view)
        advance: Callable[[], Request] = partial(next, plan)
        while True:
            started = time.perf_counter()
            try:
                request = advance()
            except StopIteration:
                break
            finally:
                played.seconds += time.perf_counter() - started
            assert_valid(request, view)
            replies = self._answer(request, drop, nan or {})
            played.requests.append(request)
            played.replies.append(replies)
            if isinstance(request, Train):
                played.used.append(self._use(request, replies))
            advance = partial(plan.send, replies)
        self.next_round += 1
        return played

    def run(self, selector: Selector, rounds: int, **options: Any) -> list[Played]:
        """Several rounds with the same options of `play`."""
        return [self.play(selector, **options) for _ in range(rounds)]

    def _use(self, request: Train, replies: Replies) -> Ints:
        used = replies.clients if request.keep is None else replies.clients[request.keep(replies)]
        self.history.trained(used, self.next_round)
        if self.seconds is not None:
            self.history.took(used, self.seconds[used])
            self.now += float(self.seconds[request.clients].max(initial=0.0))
        return used

    def _answer(self, request: Request, drop: Collection[int], nan: Mapping[str, Collection[int]]) -> Replies:
        silent = np.isin(request.clients, list(drop))
        self.history.failed(request.clients[silent])
        clients = request.clients[~silent]
        values = {}
        for signal in signals_of(request):
            rows = self.values(signal, clients)
            rows[np.isin(clients, list(nan.get(signal.name, ())))] = np.nan
            self.history.reported(signal.name, clients, rows)
            values[signal.name] = rows
        return Replies(clients, values)

    def values(self, signal: Signal, clients: Ints) -> Floats:
        """What these clients answer in the next round: the script's numbers, or made-up ones."""
        return narrowed(
            made_up(signal, clients, self.next_round, self.population, seed=self.seed, script=self.script)
        )


def assert_valid(request: Request, view: View) -> None:
    """Raise AssertionError when a request is not one that the server accepts."""
    clients = request.clients
    assert isinstance(clients, np.ndarray), f"clients are a {type(clients).__name__}, not an array"
    assert clients.dtype == np.int64, f"client ids are {clients.dtype}"
    assert np.isin(clients, view.available).all(), "a client that is not available"
    assert len(np.unique(clients)) == len(clients), "a client twice in one request"
    for signal in signals_of(request):
        allowed = signal.askable if isinstance(request, Ask) else signal.reportable
        assert allowed, f"'{signal.name}' is not available in a {type(request).__name__}"
    if isinstance(request, Train):
        for name in ("multiplicity", "weights", "lr_factors", "pull_factors"):
            rows = getattr(request, name)
            assert rows is None or rows.shape == clients.shape, f"{name} do not fit the clients"


def check_selector(
    make: Callable[[], Selector], count: int, *, clients: int = 12, rounds: int = 6, **federation: Any
) -> None:
    """Raise AssertionError when a selector breaks the contract.

    `make` builds a fresh selector that trains at most `count` clients at a time. Checked: the number,
    repeatability, silent clients (also all of them in the first round), values that are NaN, few available
    clients, newcomers, state that is saved in the middle of a run and restored in a fresh selector, and whether
    the number of rounds matters.
    """
    new: Callable[..., FakeFederation] = partial(FakeFederation, clients, **federation)
    make().check(new().population)
    for signal in make().needs():
        assert signal.unavailable(new().population) is None, f"'{signal.name}' is not available"
    first, second = (new(seed=1).run(make(), rounds) for _ in range(2))
    assert all(a.same_as(b) for a, b in zip(first, second, strict=True)), "the same seed gives a different course"
    for played in first:
        assert played.trains, "a round without training"
        assert all(0 < len(train.clients) <= count for train in played.trains), "too many or no clients"
    asked = {signal.name for played in first for request in played.requests for signal in signals_of(request)}
    _check_hard_times(make, new, count, rounds, asked)
    _check_restored(make, new, rounds)
    if not make().depends_on_length():
        planned = new().rounds
        longer = partial(FakeFederation, clients, **{**federation, "rounds": 10 * planned})(seed=1)
        assert all(a.same_as(b) for a, b in zip(first, longer.run(make(), rounds), strict=True)), (
            "the number of planned rounds changes the course: say so in depends_on_length()"
        )


def _check_hard_times(
    make: Callable[[], Selector], new: Callable[..., FakeFederation], count: int, rounds: int, names: set[str]
) -> None:
    federation, selector = new(seed=4), make()
    federation.play(selector, drop=range(federation.clients))  # no client has ever answered anything
    federation.play(selector)
    federation, selector = new(seed=2), make()
    half = range(federation.clients // 2)
    federation.play(selector, drop=half)
    federation.play(selector, nan=dict.fromkeys(names, half))
    federation.play(selector, nan=dict.fromkeys(names, range(federation.clients)))
    federation.play(selector, drop=range(federation.clients))
    few = federation.play(selector, available=[3])
    assert all(train.clients.tolist() == [3] for train in few.trains), "the only available client must train"
    federation.grow([50, 60, 70])
    for played in federation.run(selector, rounds):
        assert all(0 < len(train.clients) <= count for train in played.trains), "newcomers confuse the selector"


def _check_restored(make: Callable[[], Selector], new: Callable[..., FakeFederation], rounds: int) -> None:
    federation, selector = new(seed=3), make()
    federation.run(selector, rounds // 2)
    saved = selector.state_dict()
    other, restored = new(seed=3), make()
    other.run(make(), rounds // 2)
    restored.load_state_dict(saved)
    for _ in range(rounds):
        assert federation.play(selector).same_as(other.play(restored)), "restored state takes a different course"
