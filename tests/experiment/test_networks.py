"""The trained network comes back out: from a result, from a store, as a file."""

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import muster
from muster.cli.app import app
from muster.core.errors import ConfigError, OutputError
from muster.data import from_arrays
from muster.experiment.networks import save_network, state_of
from muster.results.store import Store


class Own(nn.Module):
    """With running statistics and a counter."""

    def __init__(self, classes: int = 10, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, classes)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x.flatten(1)))))


def experiment(**changes):
    sections = {"rounds": 2, "training": {"lr": 0.1, "batch_size": 16, "drop_last": True}, "name": "mine"}
    partition = {"scheme": "iid", "clients": 10}
    return muster.Experiment(**(sections | {"partition": partition} | changes))


def accuracy(network):
    from muster.experiment.components import build_data

    data = build_data(experiment())
    features, labels = data.tensors(data.dataset.test, np.arange(len(data.dataset.test)))
    with torch.no_grad():
        return float((network(features).argmax(1) == labels).double().mean())


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [16]}, Own, Own()])
def test_the_network_predicts_as_the_run_measured(model):
    result = muster.run(experiment(model=model), workers=0)
    network = result.model()
    assert not network.training
    assert accuracy(network) == pytest.approx(result.final("accuracy"))
    # Each call gives another one, and none is the run's own.
    with torch.no_grad():
        next(network.parameters()).zero_()
    assert accuracy(result.model()) == pytest.approx(result.final("accuracy"))


def test_a_stored_result_builds_its_network_or_says_what_it_needs(tmp_path):
    muster.run(experiment(model={"name": "mlp", "hidden": [16]}), workers=0, store=tmp_path)
    muster.run(experiment(model=Own), workers=0, store=tmp_path)
    with Store(tmp_path) as store:
        named, own = store.results()
    assert accuracy(named.model()) == pytest.approx(named.final("accuracy"))
    with pytest.raises(ConfigError, match=r"result\.model\(MyNetwork\)"):
        own.model()
    assert accuracy(own.model(Own)) == pytest.approx(own.final("accuracy"))
    assert accuracy(own.model(Own())) == pytest.approx(own.final("accuracy"))
    with pytest.raises(ConfigError, match="other shapes"):
        own.model(Own(width=9))


def test_data_that_was_handed_over_needs_a_ready_network(tmp_path):
    data = from_arrays(np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3, clients=np.arange(60) % 6)
    selection = {"method": "random", "clients_per_round": 3}
    own = experiment(data=data, selection=selection, partition={"scheme": "natural"})
    muster.run(own, workers=0, store=tmp_path)
    with Store(tmp_path) as store:
        (result,) = store.results()
    with pytest.raises(ConfigError, match="its data as an object"):
        result.model()


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_the_command_line_writes_the_model(tmp_path, ending):
    result = muster.run(experiment(model=Own), workers=0, store=tmp_path / "store")
    file = tmp_path / "sub" / f"model.{ending}"
    chosen = ["--workspace", str(tmp_path / "store")]
    told = CliRunner().invoke(app, ["export", "--model", str(file), *chosen])
    assert told.exit_code == 0, told.output
    if ending == "pt":
        tensors = torch.load(file, weights_only=True)
    else:
        from safetensors.torch import load_file

        tensors = load_file(file)
    network = Own()
    network.load_state_dict(tensors)
    assert accuracy(network.eval()) == pytest.approx(result.final("accuracy"))
    assert tensors["norm.num_batches_tracked"].dtype == torch.int64


def test_files_that_cannot_be_written(tmp_path):
    result = muster.run(experiment(rounds=1), workers=0)
    with pytest.raises(OutputError, match=r"\.pt or \.pth or \.safetensors"):
        save_network(result, tmp_path / "model.onnx")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        save_network(result, tmp_path / "file" / "model.pt")
    assert set(state_of(result)) == set(result.model().state_dict())
