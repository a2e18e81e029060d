"""Clients as in Flower's own examples: they train what they get and send it back with `num-examples`."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

app = ClientApp()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


def own_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Every client has two digits, more of them the higher its number is."""
    features, labels = load_digits(return_X_y=True)
    number, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    mine = [i for i, label in enumerate(labels) if label in (number % 10, (number + 1) % 10)]
    mine = mine[number // 10 :: 2][: 20 + 100 * number // clients]
    return torch.tensor(features[mine], dtype=torch.float32) / 16, torch.tensor(labels[mine])


def model_of(message: Message) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


@app.train()
def train(message: Message, context: Context) -> Message:
    net, (features, labels) = model_of(message), own_data(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, (features, labels) = model_of(message), own_data(context)
    accuracy = (net(features).argmax(dim=1) == labels).float().mean().item()
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
