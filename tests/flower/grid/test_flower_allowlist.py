"""Whose key speaks for whom: what the file may say, and a federation whose nodes are held to it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import muster
from muster.core.errors import ConfigError, EngineError
from muster.flower import wire
from muster.flower.allowlist import AllowList, add_client, parse
from muster.flower.client_app import make_client_app
from muster.flower.deploy.pki import NodeKey, make_node_key
from muster.flower.server_app import run_on_grid
from muster.flower.signing import IDENTITY_KEY, SIGNATURE
from muster.server.loop import Observer

# --- the file ------------------------------------------------------------------------------------------------


@pytest.fixture
def line(tmp_path):
    """A line of an allow-list; keys are made when they are first named."""

    def make(identity: str, key: str) -> str:
        path = tmp_path / f"{key}.pub"
        if not path.exists():
            make_node_key(tmp_path, key)
        return f"{identity} {path.read_text().strip()}\n"

    return make


def test_a_file_says_who_signs_with_what(line):
    text = f"# the clinics\n\n{line('partition-id=0', 'a')}  {line('name=north wing', 'b').strip()} b@clinic\n"
    keys = parse(text, "here")
    assert list(keys) == ["partition-id=0", "name=north wing"]
    assert [len(own) for own in keys.values()] == [1, 1]


def test_two_keys_of_a_client_are_a_key_that_is_being_changed(line):
    keys = parse(line("name=a", "old") + line("name=a", "new"), "here")
    assert [len(own) for own in keys.values()] == [2]


def test_one_key_for_two_clients_must_be_allowed(line):
    text = line("partition-id=0", "same") + line("partition-id=1", "same")
    with pytest.raises(ConfigError, match=r"line 2: 'partition-id=1' has the key of 'partition-id=0'"):
        parse(text, "here")
    assert len(parse(text, "here", shared_keys=True)) == 2
    assert len(parse(line("name=a", "same") * 2, "here")) == 1  # the same line twice says nothing new


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no client"),
        ("# nobody\n", "names no client"),
        ("partition-id=0\n", "line 1 cannot be understood"),
        ("clinic ecdsa-sha2-nistp256 AAAA\n", "line 1 cannot be understood"),
        ("partition-id=00 ecdsa-sha2-nistp256 AAAA\n", "line 1 cannot be understood"),
        ("partition-id=x ecdsa-sha2-nistp256 AAAA\n", "line 1 cannot be understood"),
        ("partition-id= ecdsa-sha2-nistp256 AAAA\n", "line 1 cannot be understood"),
        ("name= ecdsa-sha2-nistp256 AAAA\n", "line 1 cannot be understood"),
        ("name=a ssh-ed25519 AAAA\n", "line 1 cannot be understood"),
        ("name=a ecdsa-sha2-nistp256 AAAA\n", "the key of 'name=a' cannot be read"),
        ("name=a ecdsa-sha2-nonsense AAAA\n", "the key of 'name=a' cannot be read"),
        # a point in its compressed form, which the library does not read
        (
            "name=a ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAAAh"
            "AhERERERERERERERERERERERERERERERERERERERERER\n",
            "the key of 'name=a' cannot be read: Need uncompressed point",
        ),
    ],
)
def test_what_is_not_clear_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        parse(text, "here")


def test_a_tab_before_the_key_is_fine(line):
    text = line("name=north wing", "a").replace(" ecdsa", "\tecdsa")
    assert "\t" in text
    assert list(parse(text, "here")) == ["name=north wing"]


def test_only_whole_lines_are_added(tmp_path, line):
    line("name=a", "a")
    path = tmp_path / "allowed"
    for identity in ("clinic", "name=a\nname=b", "name=a\n", "name=a\u2028", "name=b ecdsa-sha2-nistp256 AAAA"):
        with pytest.raises(ConfigError):
            add_client(path, identity, tmp_path / "a.pub")
    assert not path.exists()
    add_client(path, "name=north wing", tmp_path / "a.pub")
    assert list(parse(path.read_text(), "here")) == ["name=north wing"]


def test_a_file_of_other_editors_is_read_and_continued(tmp_path, line):
    """With a mark at its beginning, other ends of lines, and none at its end."""
    path = tmp_path / "allowed"
    line("name=b", "b")
    path.write_bytes(b"\xef\xbb\xbf" + f"{line('name=a', 'a').strip()}\r\n# ours".encode())
    assert len(AllowList(path)) == 1
    add_client(path, "name=b", tmp_path / "b.pub")
    assert len(AllowList(path)) == 2


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        AllowList(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ConfigError, match="not text"):
        AllowList(tmp_path / "bytes")


def test_a_file_that_changes_is_read_again_and_one_that_breaks_is_not_believed(tmp_path, line):
    path = tmp_path / "allowed"
    path.write_text(line("name=a", "a"))
    allowed = AllowList(path)
    assert allowed.refresh() is None
    path.write_text(line("name=a", "a") + line("name=b", "b"))
    assert allowed.refresh() == "the allow-list has changed: 2 clients may take part"
    path.write_text("nonsense")
    assert "as it was still holds" in (allowed.refresh() or "")
    assert allowed.refresh() is None  # said once
    assert len(allowed.names("name=b")) == 1
    path.unlink()
    assert "No such file" in (allowed.refresh() or "")
    path.write_text(line("name=b", "b2"))
    old = allowed.names("name=b")
    assert allowed.refresh() is not None
    assert not allowed.names("name=a")
    assert allowed.names("name=b") != old


# --- a federation --------------------------------------------------------------------------------------------


@dataclass
class Federation:
    """Six nodes with keys, and the list of those that are allowed."""

    folder: Path
    grid: Any
    app: Any
    keys: list[NodeKey] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    @property
    def allowed(self) -> Path:
        return self.folder / "allowed-clients"

    def join(self, partition: int, key: NodeKey | None, **config: Any) -> int:
        signed = {} if key is None else {IDENTITY_KEY: str(key.private)}
        node: int = self.grid.add(self.app, {"partition-id": partition, **signed, **config})
        return node

    def new_key(self, name: str) -> NodeKey:
        return make_node_key(self.folder, name)


@pytest.fixture
def experiment(six, tmp_path):
    return six(
        rounds=3,
        selection={"method": "random", "clients_per_round": 6},
        flower={"allow_list": str(tmp_path / "allowed-clients"), "wait": 0.2, "poll": 0.01, "nodes": 5},
    )


@pytest.fixture
def federation(experiment, fake_grid, tmp_path) -> Federation:
    app = make_client_app(experiment)
    made = Federation(tmp_path, fake_grid(app, []), app)
    for partition in range(6):
        key = made.new_key(f"node{partition}")
        add_client(made.allowed, f"partition-id={partition}", key.public)
        made.keys.append(key)
        made.nodes.append(made.join(partition, key))
    return made


def events(result: muster.Result) -> list[str]:
    return [event for record in result.records for event in record.events]


def test_signed_runs_have_the_same_bits(experiment, federation, assert_same):
    result = run_on_grid(federation.grid, experiment)
    assert [record.trainings[0].clients for record in result.records] == [[0, 1, 2, 3, 4, 5]] * 3
    assert not [event for event in events(result) if "allow-list" in event]
    assert_same(muster.run(experiment), result)


@pytest.mark.parametrize(
    "selection",
    [
        {"method": "power-of-choice", "clients_per_round": 3},
        {"method": "probe-fairness", "clients_per_round": 3},
        {"method": "terraform", "clients_per_round": 6, "min_clients": 2},
    ],
)
def test_every_kind_of_answer_is_signed(experiment, federation, assert_same, selection):
    chosen = replace(experiment, selection=selection)
    assert_same(muster.run(chosen), run_on_grid(federation.grid, chosen))


def test_without_a_list_there_is_one_warning(six, grid_of, caplog):
    result = run_on_grid(grid_of(six(rounds=2)), six(rounds=2))
    assert len([event for event in events(result) if "no allow-list" in event]) == 1
    assert len([record for record in caplog.records if "no allow-list" in record.message]) == 1


def test_a_valid_key_does_not_get_a_free_clients_place(experiment, federation):
    """Client 5 is away; the owner of another key, also one in the list, says it is client 5."""
    grid = federation.grid
    grid.online.discard(federation.nodes[5])
    intruder = federation.join(5, federation.new_key("intruder"))
    insider = federation.join(5, federation.keys[2])
    unsigned = federation.join(5, None)
    result = run_on_grid(grid, experiment)
    assert [record.trainings[0].clients for record in result.records] == [[0, 1, 2, 3, 4]] * 3
    told = events(result)
    for node in (intruder, insider):
        assert any(f"node {node} was not admitted: it claims to be 'partition-id=5', but its" in e for e in told)
    assert any(f"node {unsigned} was not admitted" in e and "not signed" in e for e in told)
    # Strangers that cannot prove who they are do not keep the honest node out.
    grid.online.add(federation.nodes[5])
    again = run_on_grid(grid, experiment)
    assert again.records[0].trainings[0].clients == [0, 1, 2, 3, 4, 5]


def test_a_client_that_is_not_in_the_list_is_refused_although_it_signs(experiment, federation):
    text = federation.allowed.read_text().splitlines(keepends=True)
    federation.allowed.write_text("".join(text[:5]))
    result = run_on_grid(federation.grid, experiment)
    assert result.records[0].trainings[0].clients == [0, 1, 2, 3, 4]
    assert any("'partition-id=5' is not in the allow-list" in event for event in events(result))


class Between(Observer):
    """Does something after a round."""

    def __init__(self, **steps: Any) -> None:
        self.steps = {int(name.removeprefix("after_")): step for name, step in steps.items()}

    def round_ended(self, record, ledger) -> None:
        if record.round in self.steps:
            self.steps[record.round]()


def test_a_key_is_changed_in_the_middle_of_a_run(experiment, federation, assert_same):
    """The client stays the same; the old key speaks for nobody once its line is gone."""
    grid, old = federation.grid, federation.nodes[3]
    fresh = federation.new_key("node3-fresh")

    def rotate() -> None:
        lines = [line for line in federation.allowed.read_text().splitlines(keepends=True) if "=3 " not in line]
        federation.allowed.write_text("".join(lines))
        add_client(federation.allowed, "partition-id=3", fresh.public)
        grid.online.discard(old)
        federation.join(3, fresh)

    result = run_on_grid(grid, experiment, observers=[Between(after_1=rotate)])
    assert [record.trainings[0].clients for record in result.records] == [[0, 1, 2, 3, 4, 5]] * 3
    assert any("client 3 ('partition-id=3') is back" in event for event in events(result))
    assert_same(muster.run(experiment), result)


def test_a_key_that_is_taken_out_ends_its_clients_part(experiment, federation):
    def revoke() -> None:
        lines = [line for line in federation.allowed.read_text().splitlines(keepends=True) if "=3 " not in line]
        federation.allowed.write_text("".join(lines))

    result = run_on_grid(federation.grid, experiment, observers=[Between(after_1=revoke)])
    assert [3 in record.trainings[0].clients for record in result.records] == [True, False, False]
    # Nor is it told to train in vain.
    assert not any(3 in record.trainings[0].failed for record in result.records)
    assert any("client 3 is no longer believed" in event for event in events(result))


def test_a_node_that_registers_anew_is_the_same_client(experiment, federation):
    def register_anew() -> None:
        federation.grid.online.discard(federation.nodes[3])
        federation.join(3, federation.keys[3])

    result = run_on_grid(federation.grid, experiment, observers=[Between(after_1=register_anew)])
    assert all(3 in record.trainings[0].clients for record in result.records)


def test_an_old_answer_is_not_taken_for_a_new_one(experiment, federation):
    """With the numbers of the new exchange written into it, as whoever carries messages could do."""
    node, kept = federation.nodes[4], []

    def replay(reply: Message) -> Message:
        if reply.metadata.message_type != wire.TRAIN or reply.has_error():
            return reply
        if not kept:
            kept.append(copy.deepcopy(reply.content))
            return reply
        said, old = reply.content.config_records[wire.RECORD], copy.deepcopy(kept[0])
        old.config_records[wire.RECORD].update({name: said[name] for name in ("place", "challenge")})
        reply.content = old
        return reply

    federation.grid.change[node] = replay
    result = run_on_grid(federation.grid, experiment)
    assert [4 in record.trainings[0].clients for record in result.records] == [True, False, False]
    assert "of another order or answer" in result.records[1].trainings[0].failed[4]
    assert any("in the name of client 4 was refused" in event for event in events(result))


def test_an_answer_of_another_run_is_not_taken_either(experiment, federation):
    """The same config and seed give the same orders but for the number that was drawn for each message."""
    node, kept = federation.nodes[4], []

    def keep(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            kept.append(copy.deepcopy(reply.content))
        return reply

    federation.grid.change[node] = keep
    run_on_grid(federation.grid, experiment)

    def replay(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            old = copy.deepcopy(kept[0])
            said = reply.content.config_records[wire.RECORD]
            old.config_records[wire.RECORD]["challenge"] = said["challenge"]
            reply.content = old
        return reply

    federation.grid.change[node] = replay
    again = run_on_grid(federation.grid, experiment)
    assert again.records[0].trainings[0].clients == [0, 1, 2, 3, 5]
    assert "of another order or answer" in again.records[0].trainings[0].failed[4]


def test_without_signatures_an_answer_to_another_message_is_still_seen(six, grid_of):
    """By the number that it has to repeat."""
    experiment = six(rounds=2, selection={"method": "random", "clients_per_round": 6})
    grid = grid_of(experiment)

    def confuse(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            reply.content.config_records[wire.RECORD]["challenge"] = "0" * 32
        return reply

    grid.change[sorted(grid.contexts)[0]] = confuse
    result = run_on_grid(grid, experiment)
    (said,) = result.records[0].trainings[0].failed.values()
    assert "another message than the one that was sent" in said


def test_an_answer_that_is_changed_on_the_way_is_refused(experiment, federation):
    def change(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            arrays = reply.content.array_records[wire.ARRAYS]
            vector = arrays[wire.MODEL].numpy().copy()
            vector[0] += 1
            reply.content[wire.ARRAYS] = wire.array_record({wire.MODEL: vector})
        return reply

    federation.grid.change[federation.nodes[1]] = change
    result = run_on_grid(federation.grid, experiment)
    assert all(1 in record.trainings[0].failed for record in result.records)


def test_an_order_that_is_changed_on_the_way_is_not_signed_as_the_one_that_was_sent(experiment, federation):
    """A learning rate that the server did not choose."""
    node = federation.nodes[1]
    honest = federation.app

    def deceived(message: Message, context: Any) -> Message:
        if message.metadata.message_type == wire.TRAIN:
            message.content.config_records[wire.RECORD]["lr"] = 50.0
        return honest(message, context)

    federation.grid.apps[node] = deceived
    result = run_on_grid(federation.grid, experiment)
    assert all("of another order" in record.trainings[0].failed[1] for record in result.records)


def test_the_signature_is_taken_off_no_answer(experiment, federation):
    def strip(reply: Message) -> Message:
        if not reply.has_error():
            reply.content.config_records[wire.RECORD].pop(SIGNATURE, None)
        return reply

    for node in federation.nodes:
        federation.grid.change[node] = strip
    with pytest.raises(EngineError, match="not signed"):
        run_on_grid(federation.grid, experiment)


def test_a_node_whose_key_cannot_be_read_says_so(experiment, federation, tmp_path):
    federation.grid.online.discard(federation.nodes[5])
    (tmp_path / "empty").write_text("")
    node = federation.join(5, NodeKey(tmp_path / "empty", tmp_path / "empty"))
    result = run_on_grid(federation.grid, experiment)
    assert any(f"node {node} was not admitted: cannot read the node's key" in event for event in events(result))


def test_flowers_mods_come_before_the_signature(experiment, federation):
    """What a mod makes of an answer is what is signed."""

    def halve(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        model = reply.content.array_records[wire.ARRAYS][wire.MODEL].numpy()
        reply.content[wire.ARRAYS] = wire.array_record({wire.MODEL: (model / 2).astype(np.float32)})
        return reply

    app = make_client_app(experiment, mods=[halve])
    federation.grid.apps = dict.fromkeys(federation.grid.apps, app)
    result = run_on_grid(federation.grid, experiment)
    assert [record.trainings[0].failed for record in result.records] == [{}] * 3
