"""Which clients are there: looks for nodes, asks unknown ones who they are, and admits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import Message

from muster.core.arrays import Ints
from muster.core.errors import EngineError
from muster.flower import wire
from muster.flower.allowlist import AllowList
from muster.flower.identity import ClientRegister
from muster.flower.mail import Letter, Mail
from muster.flower.signing import Asked, digest, new_challenge
from muster.flower.wire import Introduction, WireError, printable

#: Seconds after which a node that has not answered (it may have restarted), or was refused, is asked again.
PATIENCE, AGAIN = 60.0, 5.0


@dataclass(frozen=True)
class _Question:
    """A node that was asked who it is."""

    node: int
    asked: Asked


class Presence:
    """The nodes of a federation at this moment. Only before round 1 does it wait for any.

    With an allow-list, a node is admitted if its answer is signed with a key of the client that it claims to be.
    """

    def __init__(
        self, mail: Mail, registry: ClientRegister, experiment: str, allow_list: AllowList | None = None
    ) -> None:
        self.registry = registry
        self._mail, self._experiment, self._allow_list = mail, experiment, allow_list
        #: Registration messages under way.
        self._asked: dict[str, _Question] = {}
        #: Node → the name of the key with which it has signed.
        self._keys: dict[int, str] = {}
        #: Node → when it was last asked.
        self._when: dict[int, float] = {}
        self._online: list[int] = []
        self._events: list[str] = []

    def clients(self) -> Ints:
        """Ids of the clients that are there, ascending."""
        return self.registry.present(self._online)

    def look_around(self) -> None:
        """See which nodes are there, ask unknown ones who they are, and admit those that have answered."""
        before, self._online = self._online, sorted(self._mail.grid.get_node_ids())
        self._events += self.registry.changes(before, self._online)
        self._look_at_the_allow_list()
        self._ask_strangers()
        introduced: dict[int, Introduction] = {}
        for reply in self._mail.pull(list(self._asked)):
            if reply.metadata.reply_to_message_id not in self._asked:
                continue
            question = self._asked.pop(reply.metadata.reply_to_message_id)
            node = question.node
            try:
                introduced[node] = self._introduction(question, reply)
            except WireError as error:
                self.registry.refuse(node, printable(f"node {node} was not admitted: {error.problem}"))
            except Exception as error:  # whatever a node may have sent: it is not admitted, and the run goes on
                self.registry.refuse(node, f"node {node} was not admitted: {type(error).__name__} in its answer")
        self.registry.introduce(introduced, self._online)

    def _introduction(self, question: _Question, reply: Message) -> Introduction:
        if reply.has_error():
            raise WireError(reply.error.reason or f"error {reply.error.code}")
        introduction = Introduction.from_content(reply.content)
        if self._allow_list is not None:
            try:
                self._keys[question.node] = self._allow_list.check(introduction.key, question.asked, reply.content)
            except WireError as error:
                raise WireError(f"it claims to be '{introduction.key}', but {error.problem}") from error
        return introduction

    def _look_at_the_allow_list(self) -> None:
        """Clients whose key is no longer listed have to introduce themselves again."""
        if self._allow_list is None or (event := self._allow_list.refresh()) is None:
            return
        self._events.append(event)
        for client, node in list(self.registry.nodes.items()):
            if self._keys.get(node) not in self._allow_list.names(self.registry.key(client)):
                self.registry.forget(client)
                self._events.append(f"client {client} is no longer believed: its key is not in the allow-list")

    def _ask_strangers(self) -> None:
        """Ask nodes that the registry does not know, but not all the time."""
        self._asked = {id: question for id, question in self._asked.items() if question.node in self._online}
        strangers = [node for node in self._online if not self.registry.is_known(node)]
        self._when = {node: self._when[node] for node in strangers if node in self._when}
        now, waiting = self._mail.now(), {question.node for question in self._asked.values()}
        letters: dict[int, Letter] = {}
        questions: dict[int, _Question] = {}
        for node in strangers:
            pause = PATIENCE if node in waiting else AGAIN
            if now - self._when.get(node, -np.inf) >= pause:
                content = wire.content({"experiment": self._experiment, "challenge": new_challenge()})
                letters[node] = Letter(node, wire.REGISTER, content)
                questions[node] = _Question(node, Asked(wire.REGISTER, digest=digest(content)))
                self._when[node] = now
        sent = self._mail.push(letters, "register")[0]
        self._asked |= {message: questions[node] for message, node in sent.items()}

    def wait_for(self, wanted: int, seconds: float) -> None:
        """Wait until this many clients are there."""

        def enough() -> bool:
            self.look_around()
            return len(self.clients()) >= wanted

        if not self._mail.wait_until(enough, seconds):
            said = list(dict.fromkeys(self.registry.refused.values()))
            raise EngineError(
                f"{len(self.clients())} of {wanted} nodes are ready after {seconds:g} s"
                + "".join(f"\n  {line}" for line in said[-10:]),
                fix="start more nodes, or ask for fewer with flower.nodes; flower.wait says how long to wait",
            )

    def take_events(self) -> list[str]:
        events, self._events = [*self.registry.take_events(), *self._events], []
        return events
