"""Which clients are there: looks for nodes, asks strangers who they are, and takes them in."""

from __future__ import annotations

from muster.arrays import Ints
from muster.engine.flower import wire
from muster.engine.flower.identity import Registry
from muster.engine.flower.mail import Letter, Mail
from muster.engine.flower.wire import Introduction, WireError
from muster.errors import EngineError


class Presence:
    """The nodes of a federation at this moment. Nobody is waited for but before round 1."""

    def __init__(self, mail: Mail, registry: Registry, experiment: str) -> None:
        self.registry = registry
        self._mail, self._question = mail, wire.content({"experiment": experiment})
        #: Registration messages under way: message → node.
        self._asked: dict[str, int] = {}
        self._online: list[int] = []
        self._events: list[str] = []

    def clients(self) -> Ints:
        """Ids of the clients that are there, ascending."""
        return self.registry.present(self._online)

    def look_around(self) -> None:
        """See which nodes are there, ask strangers who they are, and take in those that have answered."""
        before, self._online = self._online, sorted(self._mail.grid.get_node_ids())
        self._events += self.registry.changes(before, self._online)
        under_way = set(self._asked.values())
        strangers = [n for n in self._online if not self.registry.is_known(n) and n not in under_way]
        letters = {node: Letter(node, wire.REGISTER, self._question) for node in strangers}
        self._asked |= self._mail.post(letters, "register")[0]
        introduced: dict[int, Introduction] = {}
        for reply in self._mail.collect(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason or f"error {reply.error.code}")
                introduced[node] = Introduction.from_content(reply.content)
            except WireError as error:
                self.registry.refuse(node, f"node {node} was not taken in: {error.problem}")
        self.registry.introduce(introduced, self._online)

    def wait_for(self, wanted: int, seconds: float) -> None:
        """Until so many clients are there."""

        def enough() -> bool:
            self.look_around()
            return len(self.clients()) >= wanted

        if not self._mail.wait_until(enough, seconds):
            said = list(dict.fromkeys(self.registry.refused.values()))
            raise EngineError(
                f"{len(self.clients())} of {wanted} nodes are ready after {seconds:g} s"
                + "".join(f"\n  {line}" for line in said[-10:]),
                fix="start more nodes, or ask for fewer with flower.nodes; flower.wait is the patience",
            )

    def take_events(self) -> list[str]:
        events, self._events = [*self.registry.take_events(), *self._events], []
        return events
