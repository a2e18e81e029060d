"""Exchanges over a Flower grid: send, check for answers at short intervals, give up at a deadline.

What comes after the deadline belongs to an exchange that is over. It is recognised by the message that it answers,
dropped, and reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict

from muster.flower.signing import Asked
from muster.flower.wire import printable

if TYPE_CHECKING:
    from flwr.serverapp import Grid

#: Codes of the errors that Flower itself makes, in words.
_FLOWER_ERRORS = {
    1: "its client app cannot be loaded",
    2: "its client app failed",
    3: "it did not answer within the message's time to live",
    5: "its node is gone",
    8: "its client app's process ended",
}
_NODE_GONE = 5


@dataclass(frozen=True)
class Letter:
    """One message to be sent."""

    node: int
    type: str
    content: RecordDict
    #: What its answer must fit, where that is looked at.
    asked: Asked | None = None


@dataclass(frozen=True)
class NoAnswer:
    """Why there is no content."""

    reason: str
    #: The code of the client's or Flower's error; 0: silence.
    code: int = 0
    #: There is no longer a node that could answer.
    gone: bool = False


@dataclass(frozen=True)
class Sent:
    """Letters that are on their way; `Mail.receive` takes the answers."""

    group: str
    #: When their answers come too late, by the clock of the mail.
    end: float
    #: Message → the client that has not answered it yet.
    waiting: dict[str, int]
    #: Clients to whom nothing could be sent.
    failed: list[int]
    #: Client → what its answer must fit.
    asked: dict[int, Asked] = field(default_factory=dict)


@dataclass(frozen=True)
class _Overdue:
    """A message that was not answered in time."""

    client: int
    group: str
    expires: float


class Mail:
    """Sends letters and waits for the answers."""

    def __init__(
        self,
        grid: Grid,
        *,
        deadline: float,
        poll: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.deadline, self.poll = grid, deadline, poll
        self._clock, self._sleep = clock, sleep
        self._overdue: dict[str, _Overdue] = {}
        self.events: list[str] = []
        #: (exchange, client) of the answers that came too late.
        self.dropped: list[tuple[str, int]] = []

    def now(self) -> float:
        return self._clock()

    def exchange(self, letters: Mapping[int, Letter], group: str) -> Iterator[tuple[int, RecordDict | NoAnswer]]:
        """Send, and receive the answers."""
        return self.receive(self.send(letters, group))

    def send(self, letters: Mapping[int, Letter], group: str) -> Sent:
        """Send one letter to each client. The time that they have for an answer begins now."""
        self.drop_late()
        end = self._clock() + self.deadline
        waiting, failed = self.push(letters, group)
        asked = {client: letter.asked for client, letter in letters.items() if letter.asked is not None}
        return Sent(group, end, waiting, failed, asked)

    def receive(self, sent: Sent) -> Iterator[tuple[int, RecordDict | NoAnswer]]:
        """(client, answer) as they arrive, every client exactly once.

        There is one check even after the deadline: a server that was itself busy must not blame the clients.
        """
        while True:
            for _, client, answer in self.look([sent]):
                yield client, answer
            if not sent.waiting:
                return
            self.pause()

    def look(self, under_way: Sequence[Sent]) -> list[tuple[Sent, int, RecordDict | NoAnswer]]:
        """(letters, client, answer) of all that have arrived since the last check, or will never arrive."""
        found: list[tuple[Sent, int, RecordDict | NoAnswer]] = []
        for sent in under_way:
            lost = NoAnswer("the message could not be sent: its node is gone", gone=True)
            found += [(sent, client, lost) for client in sent.failed]
            sent.failed.clear()
        awaited = {message: sent for sent in under_way for message in sent.waiting}
        for reply in self.pull(list(awaited)):
            message = reply.metadata.reply_to_message_id
            if message in awaited and message in awaited[message].waiting:
                sent = awaited[message]
                found.append((sent, sent.waiting.pop(message), _read(reply)))
        now = self._clock()
        for sent in under_way:
            if sent.waiting and now >= sent.end:
                silence = NoAnswer(f"no answer within {self.deadline:g} s")
                found += [(sent, client, silence) for client in sent.waiting.values()]
                self.give_up(sent, list(sent.waiting.values()))
        return found

    def give_up(self, sent: Sent, clients: Collection[int]) -> None:
        """Stop waiting for the answers of these clients."""
        for message in [message for message, client in sent.waiting.items() if client in clients]:
            client = sent.waiting.pop(message)
            self._overdue[message] = _Overdue(client, sent.group, self._clock() + self.deadline)

    def pause(self) -> None:
        """Wait until the next check."""
        self._sleep(self.poll)

    def push(self, letters: Mapping[int, Letter], group: str) -> tuple[dict[str, int], list[int]]:
        """Send; message → its client, and the clients to which nothing could be sent."""
        messages = {
            whom: Message(
                letter.content,
                dst_node_id=letter.node,
                message_type=letter.type,
                # An answer after the deadline can still be distinguished from silence.
                ttl=2 * self.deadline,
                group_id=group,
            )
            for whom, letter in letters.items()
        }
        if not messages:
            return {}, []
        sent = set(self.grid.push_messages(list(messages.values())))
        ids = {whom: message.metadata.message_id for whom, message in messages.items()}
        return {id: whom for whom, id in ids.items() if id in sent}, [w for w, id in ids.items() if id not in sent]

    def pull(self, messages: list[str]) -> list[Message]:
        """The answers to these messages that are there."""
        return list(self.grid.pull_messages(messages)) if messages else []

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Check repeatedly until the condition holds; False if it does not within `seconds`."""
        end = self._clock() + seconds
        while not condition():
            if self._clock() >= end:
                return False
            self.pause()
        return True

    def drop_late(self) -> None:
        """Take answers to exchanges that are over, and forget them."""
        for reply in self.pull(list(self._overdue)):
            overdue = self._overdue.pop(reply.metadata.reply_to_message_id, None)
            if overdue is not None and reply.has_content():
                self.events.append(f"client {overdue.client} answered exchange {overdue.group} too late: dropped")
                self.dropped.append((overdue.group, overdue.client))
        now = self._clock()
        self._overdue = {id: overdue for id, overdue in self._overdue.items() if overdue.expires > now}


def _read(reply: Message) -> RecordDict | NoAnswer:
    if not reply.has_error():
        return reply.content
    code, reason = reply.error.code, printable(reply.error.reason or "")
    words = _FLOWER_ERRORS.get(code)
    if words is None:
        return NoAnswer(reason, code)
    return NoAnswer(f"{words} ({reason})" if reason else words, code, gone=code == _NODE_GONE)
