"""The clients of Flower's side: a module of their own, because Ray's processes import them by name.

Data are tensors in RAM. `style` is how the author wrote the clients: "examples" as in Flower's examples
(ReLU before pooling, a DataLoader), "tensors" with the bare loop, or "tuned" with `channels_last` and freed memory
kept too.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from harness.allocator import keep_freed_memory
from harness.workload import ClientTensors, Workload, network, train_from_loader, train_plainly


@lru_cache(maxsize=1)
def prepared(workload: Workload, style: str) -> tuple[nn.Module, ClientTensors]:
    """Model and data, made once in every process of Ray and kept."""
    torch.set_num_threads(1)
    model = network(workload, pool_first=style != "examples")
    if style != "tuned":
        return model, ClientTensors(workload)
    keep_freed_memory()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, ClientTensors(workload, torch.channels_last)


def client_app(workload: Workload, style: str) -> ClientApp:
    app = ClientApp()
    train_locally = train_from_loader if style == "examples" else train_plainly

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        model, data = prepared(workload, style)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        seen = train_locally(model, *data[int(context.node_config["partition-id"])], workload)
        reply = RecordDict()
        reply["arrays"] = ArrayRecord(model.state_dict())
        reply["metrics"] = MetricRecord({"num-examples": seen})
        return Message(reply, reply_to=message)

    return app
