"""Who is who: node ids are Flower's and may change, client ids are the experiment's and never do.

A node introduces itself with the identity in its own configuration (`partition-id` or `name`). The
first node with an identity gets the client's id; a node that comes back with it gets the same id again. While two
nodes that are both there claim one identity, no unknown node among them is believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from muster.core.arrays import Ints, State
from muster.flower.wire import Introduction, WireError

#: Newcomers that are listed one by one.
MANY = 8

#: One spelling for each number: "03" would be a second identity for client 3.
_PARTITION = re.compile(r"partition-id=(0|[1-9][0-9]{0,8})")


@dataclass
class ClientRegister:
    """The clients of a federation and the nodes behind them."""

    #: Sizes of all clients, where the server knows who has what (a partitioned data set); otherwise clients join.
    expected: Ints | None = None
    #: The same of test samples, where clients have some.
    expected_tests: Ints | None = None
    #: A node that states more samples, of training or of test, is not admitted; None: any number is believed.
    max_samples: int | None = None
    #: Identity → client id.
    ids: dict[str, int] = field(default_factory=dict)
    #: Client id → training samples and test samples.
    sizes: dict[int, int] = field(default_factory=dict)
    tested: dict[int, int] = field(default_factory=dict)
    #: Client id → its node.
    nodes: dict[int, int] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    #: Node → why it was not admitted, when it was last asked.
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def population(self) -> Ints:
        """Training samples of every client."""
        if self.expected is not None:
            return self.expected
        return np.array([self.sizes[client] for client in range(len(self.ids))], dtype=np.int64)

    def key(self, client: int) -> str:
        return next(key for key, id in self.ids.items() if id == client)

    def present(self, online: Iterable[int]) -> Ints:
        """Ids of the clients whose nodes are there, ascending."""
        there = set(online)
        return np.array(sorted(c for c, node in self.nodes.items() if node in there), dtype=np.int64)

    def changes(self, before: Iterable[int], online: Iterable[int]) -> list[str]:
        """Which known clients have gone or come back, in words."""
        earlier, now = self.present(before), self.present(online)
        gone = [f"client {client} is gone" for client in np.setdiff1d(earlier, now)]
        return gone + [f"client {client} is there again" for client in np.setdiff1d(now, earlier)]

    def is_known(self, node: int) -> bool:
        return node in self.nodes.values()

    def forget(self, client: int) -> None:
        """The node has changed: let it introduce itself again."""
        self.nodes.pop(client, None)

    def introduce(self, nodes: dict[int, Introduction], online: Iterable[int]) -> None:
        """Admit nodes that have introduced themselves; refuse those that cannot be believed, and say why."""
        there = set(online)
        claims: dict[str, list[int]] = {}
        for node, introduction in nodes.items():
            claims.setdefault(introduction.key, []).append(node)
        for key in sorted(claims, key=_natural):
            try:
                self._admit(key, claims[key], nodes, there)
            except WireError as error:
                for node in claims[key]:
                    self.refuse(node, error.problem)

    def _admit(self, key: str, claimants: list[int], nodes: dict[int, Introduction], there: set[int]) -> None:
        if len(claimants) > 1:
            raise WireError(
                f"nodes {_listed(claimants)} all claim to be '{key}': refused, give each its own identity"
            )
        (node,) = claimants
        introduction = nodes[node]
        client = self.ids.get(key)
        holder = None if client is None else self.nodes.get(client)
        if holder is not None and holder != node and holder in there:
            raise WireError(f"node {node} claims to be '{key}', which node {holder} is: refused")
        if client is None:
            client = self._new_id(key, introduction, node)
        elif self.expected is None and client in self.sizes and self.sizes[client] != introduction.size:
            self.events.append(
                f"client {client} ('{key}') has {introduction.size} samples, {self.sizes[client]} before"
            )
        self._check_size(client, introduction, node)
        back = client in self.sizes
        # A node stands for one client: one that was another client before no longer is.
        self.nodes = {c: n for c, n in self.nodes.items() if n != node}
        self.ids[key], self.nodes[client] = client, node
        self.refused.pop(node, None)
        self.sizes[client], self.tested[client] = introduction.size, introduction.tested
        if back:
            self.events.append(f"client {client} ('{key}') is back as node {node}")
        else:
            self.joined.append(f"client {client} ('{key}') joined as node {node}")

    def _new_id(self, key: str, introduction: Introduction, node: int) -> int:
        if self.expected is None:
            return len(self.ids)
        found = _PARTITION.fullmatch(key)
        if found is None or not int(found[1]) < len(self.expected):
            raise WireError(
                f"node {node} claims to be '{key}': refused, the experiment has the partitions 0 to "
                f"{len(self.expected) - 1}"
            )
        return int(found[1])

    def _check_size(self, client: int, introduction: Introduction, node: int) -> None:
        stated = max(introduction.size, introduction.tested)
        if self.max_samples is not None and stated > self.max_samples:
            raise WireError(
                f"node {node} ('{introduction.key}') states {stated} samples, more than "
                f"limits.max_samples = {self.max_samples}: refused"
            )
        if self.expected is not None and introduction.size != self.expected[client]:
            raise WireError(
                f"node {node} ('{introduction.key}') has {introduction.size} samples, but the partition gives it "
                f"{self.expected[client]}: refused"
            )
        if self.expected_tests is not None and introduction.tested > self.expected_tests[client]:
            raise WireError(
                f"node {node} ('{introduction.key}') has {introduction.tested} test samples, but the partition "
                f"gives it {self.expected_tests[client]}: refused"
            )

    def refuse(self, node: int, why: str) -> None:
        """Say once why a node is not admitted, although it is asked again in every round."""
        if why not in self.refused.values():
            self.events.append(why)
        self.refused[node] = why

    def take_events(self) -> list[str]:
        """What happened since the last call; many newcomers at once, as before round 1, are one line."""
        joined = self.joined if len(self.joined) <= MANY else [f"{len(self.joined)} clients joined"]
        events, self.events, self.joined = joined + self.events, [], []
        return events

    def state_dict(self) -> State:
        """Identities outlive a run: a resumed run finds the same clients behind the same ids."""
        return {"ids": dict(self.ids), "sizes": dict(self.sizes), "tested": dict(self.tested)}

    def load_state_dict(self, values: State) -> None:
        """Go back to saved identities; clients that have joined meanwhile get ids behind them."""
        nodes = {self.key(client): node for client, node in self.nodes.items()}
        sizes = {key: (self.sizes[c], self.tested[c]) for key, c in self.ids.items() if c in self.sizes}
        self.ids, self.sizes = dict(values["ids"]), dict(values["sizes"])
        self.tested, self.nodes = dict(values["tested"]), {}
        for key in sorted(sizes, key=_natural):
            if key not in self.ids:
                partition = _PARTITION.fullmatch(key)
                known = self.expected is not None and partition is not None
                self.ids[key] = int(partition[1]) if known and partition is not None else len(self.ids)
            client = self.ids[key]
            self.sizes[client], self.tested[client] = sizes[key]
            if key in nodes:
                self.nodes[client] = nodes[key]


def _natural(key: str) -> tuple[str, int]:
    """Partitions by number, names by letter: ids do not depend on who was quicker."""
    found = _PARTITION.fullmatch(key)
    return ("", int(found[1])) if found else (key, 0)


def _listed(nodes: list[int]) -> str:
    return " and ".join(str(node) for node in sorted(nodes))
