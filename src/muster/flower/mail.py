"""Exchanges over a Flower grid: send, look for answers at short intervals, give up at a deadline.

What comes after the deadline belongs to an exchange that is over. It is recognised by the message that it answers,
dropped, and told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict

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


@dataclass(frozen=True)
class Letter:
    """One message to be sent."""

    node: int
    type: str
    content: RecordDict


@dataclass(frozen=True)
class NoAnswer:
    """Why there is no content."""

    reason: str
    #: The code of the client's or Flower's error; 0: silence.
    code: int = 0


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


@dataclass(frozen=True)
class _Overdue:
    """A message that was not answered in time."""

    whom: str
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
        return Sent(group, end, waiting, failed)

    def receive(self, sent: Sent) -> Iterator[tuple[int, RecordDict | NoAnswer]]:
        """(client, answer) as they come, everybody exactly once.

        There is one look even after the deadline: a server that was busy itself must not count as silent clients.
        """
        for client in sent.failed:
            yield client, NoAnswer("the message could not be sent: its node is gone")
        waiting = sent.waiting
        while waiting:
            for reply in self.pull(list(waiting)):
                if reply.metadata.reply_to_message_id in waiting:
                    yield waiting.pop(reply.metadata.reply_to_message_id), _read(reply)
            if not waiting or self._clock() >= sent.end:
                break
            self._sleep(self.poll)
        for message, client in waiting.items():
            self._overdue[message] = _Overdue(f"client {client}", sent.group, self._clock() + self.deadline)
            yield client, NoAnswer(f"no answer within {self.deadline:g} s")

    def push(self, letters: Mapping[int, Letter], group: str) -> tuple[dict[str, int], list[int]]:
        """Send; message → whom it went to, and to whom nothing could be sent."""
        messages = {
            whom: Message(
                letter.content,
                dst_node_id=letter.node,
                message_type=letter.type,
                # An answer that comes after the deadline can still be told from silence.
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
        """Look again and again until the condition holds; False when it does not within so many seconds."""
        end = self._clock() + seconds
        while not condition():
            if self._clock() >= end:
                return False
            self._sleep(self.poll)
        return True

    def drop_late(self) -> None:
        """Take answers to exchanges that are over, and forget them."""
        for reply in self.pull(list(self._overdue)):
            overdue = self._overdue.pop(reply.metadata.reply_to_message_id, None)
            if overdue is not None and reply.has_content():
                self.events.append(f"{overdue.whom} answered exchange {overdue.group} too late: dropped")
        now = self._clock()
        self._overdue = {id: overdue for id, overdue in self._overdue.items() if overdue.expires > now}


def _read(reply: Message) -> RecordDict | NoAnswer:
    if not reply.has_error():
        return reply.content
    code, reason = reply.error.code, reply.error.reason or ""
    words = _FLOWER_ERRORS.get(code)
    if words is None:
        return NoAnswer(reason, code)
    return NoAnswer(f"{words} ({reason})" if reason else words, code)
