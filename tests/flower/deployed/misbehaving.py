"""A client app for tests: Muster's, but it can be told by files to wait in the middle of a training, or to lie.

A file `hold-CLIENT-PLACE` in the folder MUSTER_TEST_MISCHIEF makes it write `held-CLIENT-PLACE` and wait until the
first one is gone; a file `lie-CLIENT` names what its answers to trainings are like.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from muster.flower import wire
from muster.flower.client_app import app as honest


class Misbehaving(ClientApp):
    def __call__(self, message: Message, context: Context) -> Message:
        mischief = Path(os.environ["MUSTER_TEST_MISCHIEF"])
        client = context.node_config["partition-id"]
        training = message.metadata.message_type == wire.TRAIN
        if training:
            hold(mischief, f"{client}-{message.metadata.group_id}")
        reply = honest(message, context)
        lie = mischief / f"lie-{client}"
        if training and lie.exists():
            LIES[lie.read_text()](reply)
        return reply


def hold(folder: Path, what: str) -> None:
    order = folder / f"hold-{what}"
    if order.exists():
        (folder / f"held-{what}").touch()
        while order.exists():
            time.sleep(0.02)


def say(reply: Message, array: Array) -> None:
    reply.content[wire.ARRAYS] = ArrayRecord({wire.MODEL: array})


def model(reply: Message) -> np.ndarray:
    return reply.content.array_records[wire.ARRAYS][wire.MODEL].numpy()


def send_nan(reply: Message) -> None:
    vector = model(reply).copy()
    vector[3] = np.nan
    say(reply, Array(vector))


def send_another_shape(reply: Message) -> None:
    say(reply, Array(model(reply)[:-1].reshape(-1, 1)))


def send_too_much(reply: Message) -> None:
    """Under the right description: what it weighs is seen when it comes."""
    vector = model(reply)
    huge = Array(np.zeros(3_000_000, dtype=np.float32))
    say(reply, Array("float32", vector.shape, "numpy.ndarray", huge.data))


def send_pickle(reply: Message) -> None:
    """Bytes that would run a command if anybody unpickled them."""
    import io

    class Command:
        def __reduce__(self):
            return os.system, ("touch " + os.environ["MUSTER_TEST_MISCHIEF"] + "/unpickled",)

    vector, buffer = model(reply), io.BytesIO()
    np.save(buffer, np.array([Command()] * 4, dtype=object), allow_pickle=True)
    padding = b"\0" * max(0, 4 * len(vector) + 128 - len(buffer.getvalue()))
    say(reply, Array("float32", vector.shape, "numpy.ndarray", buffer.getvalue() + padding))


def answer_for_another(reply: Message) -> None:
    reply.content.config_records[wire.RECORD]["client"] = 99


def send_garbage(reply: Message) -> None:
    """Objects that cannot even be put together again."""

    class Broken(ArrayRecord):
        def deflate(self) -> bytes:
            whole = super().deflate()
            head, body = whole.split(b"\x00", 1)
            return head + b"\x00" + body[::-1]

    Broken.__qualname__ = "ArrayRecord"
    reply.content[wire.ARRAYS] = Broken({wire.MODEL: Array(model(reply))})


LIES = {
    "nan": send_nan,
    "shape": send_another_shape,
    "size": send_too_much,
    "pickle": send_pickle,
    "client": answer_for_another,
    "garbage": send_garbage,
}

app = Misbehaving()
