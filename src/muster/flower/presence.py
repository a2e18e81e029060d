"""Which clients are there: looks for nodes, asks unknown ones who they are, and admits them."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import EngineError
from muster.flower import wire
from muster.flower.identity import ClientRegister
from muster.flower.mail import Letter, Mail
from muster.flower.wire import Introduction, WireError

#: Seconds after which a node that has not answered (it may have restarted), or was refused, is asked again.
PATIENCE, AGAIN = 60.0, 5.0


class Presence:
    """The nodes of a federation at this moment. Only before round 1 does it wait for any."""

    def __init__(self, mail: Mail, registry: ClientRegister, experiment: str) -> None:
        self.registry = registry
        self._mail, self._question = mail, wire.content({"experiment": experiment})
        #: Registration messages under way: message → node.
        self._asked: dict[str, int] = {}
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
        self._ask_strangers()
        introduced: dict[int, Introduction] = {}
        for reply in self._mail.pull(list(self._asked)):
            if reply.metadata.reply_to_message_id not in self._asked:
                continue
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason or f"error {reply.error.code}")
                introduced[node] = Introduction.from_content(reply.content)
            except WireError as error:
                self.registry.refuse(node, f"node {node} was not admitted: {error.problem}")
        self.registry.introduce(introduced, self._online)

    def _ask_strangers(self) -> None:
        """Ask nodes that the registry does not know, but not all the time."""
        self._asked = {id: node for id, node in self._asked.items() if node in self._online}
        strangers = [node for node in self._online if not self.registry.is_known(node)]
        self._when = {node: self._when[node] for node in strangers if node in self._when}
        now, waiting = self._mail.now(), set(self._asked.values())
        letters = {}
        for node in strangers:
            pause = PATIENCE if node in waiting else AGAIN
            if now - self._when.get(node, -np.inf) >= pause:
                letters[node] = Letter(node, wire.REGISTER, self._question)
                self._when[node] = now
        self._asked |= self._mail.push(letters, "register")[0]

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
