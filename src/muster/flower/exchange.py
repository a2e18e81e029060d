"""One exchange with nodes: orders go out, and each answer is checked and decoded, or is that client's failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from muster.engine.base import Failed
from muster.engine.task import ClientTask, Place
from muster.flower import wire
from muster.flower.allowlist import AllowList
from muster.flower.identity import ClientRegister
from muster.flower.mail import Letter, Mail, NoAnswer, Sent
from muster.flower.signing import Asked, digest, new_challenge, record_digest
from muster.flower.wire import Order, WireError, printable, version_of

T = TypeVar("T")

log = logging.getLogger("muster")


@dataclass
class Versions:
    """Which versions of what clients keep the server counts on."""

    #: Client → version of its state.
    states: dict[int, str] = field(default_factory=dict)
    #: The same in the newest checkpoint: a server that comes back will count on these.
    saved: dict[int, str] = field(default_factory=dict)
    #: Client → version of its probed model.
    probes: dict[int, str] = field(default_factory=dict)


class Exchanges:
    """Exchanges with the clients of one experiment."""

    def __init__(
        self, mail: Mail, registry: ClientRegister, experiment: str, allow_list: AllowList | None
    ) -> None:
        self._mail, self._registry = mail, registry
        self._experiment, self._allow_list = experiment, allow_list
        self._events: list[str] = []

    def take_events(self) -> list[str]:
        """What happened since the last call."""
        events = [*self._events, *self._mail.events]
        self._events, self._mail.events = [], []
        return events

    def orders(self, task: ClientTask, versions: Versions) -> list[Order]:
        """The task as it goes to each of its clients."""
        return [
            Order(
                experiment=self._experiment,
                key=self._registry.key(client),
                task=task.row(row),
                state=versions.states.get(client, ""),
                probe=versions.probes.get(client, ""),
                saved=versions.saved.get(client, ""),
                challenge=new_challenge(),
            )
            for row, client in enumerate(task.clients.tolist())
        ]

    def exchange(
        self, type: str, orders: list[Order], arrays: ArrayRecord | None, decode: Callable[[int, RecordDict], T]
    ) -> Iterator[tuple[int, T | Failed]]:
        """Send the orders now; the answers are yielded as they arrive, decoded."""
        return self.receive(*self.send(type, orders, arrays), decode)

    def send(self, type: str, orders: list[Order], arrays: ArrayRecord | None) -> tuple[list[int], Sent]:
        """Send the orders; returns the clients without a node, and what is on its way."""
        nodes, letters = self._registry.nodes, {}
        signed = self._allow_list is not None
        known = {wire.ARRAYS: record_digest(arrays)} if signed and arrays is not None else {}
        for order in orders:
            if order.client in nodes:
                content = wire.content(order.to_fields(), arrays)
                asked = Asked(type, order.challenge, digest(content, known) if signed else b"")
                letters[order.client] = Letter(nodes[order.client], type, content, asked)
        group = version_of(orders[0].place) if orders else ""
        sent = self._mail.send(letters, f"{group}.evaluate" if type == wire.EVALUATE else group)
        return [order.client for order in orders if order.client not in letters], sent

    def receive(
        self, gone: list[int], sent: Sent, decode: Callable[[int, RecordDict], T]
    ) -> Iterator[tuple[int, T | Failed]]:
        """Answers as they come; what is missing or cannot be understood is a failure."""
        for client in gone:
            yield client, Failed(client, "no node speaks for it any more")
        for client, content in self._mail.receive(sent):
            yield client, self.judged(client, content, sent, decode)

    def judged(
        self, client: int, content: RecordDict | NoAnswer, sent: Sent, decode: Callable[[int, RecordDict], T]
    ) -> T | Failed:
        """An answer, decoded, or why there is no usable one."""
        if isinstance(content, NoAnswer):
            if content.code == wire.WRONG_NODE:
                self._registry.forget(client)
            return Failed(client, content.reason)
        try:
            self._check_whose(client, content, sent.asked[client])
            return decode(client, content)
        except WireError as error:
            return Failed(client, printable(f"its answer was refused: {error.problem}"))
        except Exception as error:  # whatever a node may have sent: it is this client's problem alone
            log.warning("the answer of client %d cannot be judged", client, exc_info=True)
            return Failed(client, f"its answer was refused: it cannot be judged ({type(error).__name__})")

    def _check_whose(self, client: int, content: RecordDict, asked: Asked) -> None:
        """Refuse what is not this client's answer to this very message, whatever it came as the reply to."""
        if wire.take(wire.record_of(content), "challenge", str) != asked.challenge:
            raise WireError("it answers another message than the one that was sent")
        if self._allow_list is None:
            return
        try:
            self._allow_list.check(self._registry.key(client), asked, content)
        except WireError as error:
            self._events.append(f"an answer in the name of client {client} was refused: {error.problem}")
            raise


def checked_record(content: RecordDict, client: int, place: Place) -> ConfigRecord:
    """The record of an answer, if it answers this order."""
    record = wire.record_of(content)
    said = (wire.take(record, "client", int), wire.take(record, "place", str))
    if said != (client, version_of(place)):
        raise WireError(f"it answers exchange {said[1]} as client {said[0]}")
    return record
