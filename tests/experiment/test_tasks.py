"""Each task is learnt to a sensible level, with the same bits in every engine that can do it; others say no."""

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.core.errors import ConfigError
from muster.data import from_arrays
from muster.selection.base import selectors

CLIENTS = np.arange(320) % 8


class NextWord(nn.Module):
    """Looks at the last token only."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(classes, 16), nn.Linear(16, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(tokens))


class Pixels(nn.Module):
    """A class of every pixel from its neighbourhood."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 3, padding=1))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.layers(pictures)


def federation(task):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(320, 6)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(6, 3))
    outputs = features @ weights
    groups = (np.arange(320) // 8) % 2
    match task:
        case "classification":
            return from_arrays(features, outputs.argmax(1), clients=CLIENTS)
        case "multi-label":
            return from_arrays(features, outputs > 0, clients=CLIENTS, task=task, attributes=groups)
        case "regression":
            return from_arrays(features, outputs[:, 0], clients=CLIENTS, task=task, attributes=groups)
        case "segmentation":
            pictures = rng.normal(size=(320, 1, 6, 6)).astype(np.float32)
            return from_arrays(pictures, (pictures[:, 0] > 0).astype(np.uint8), clients=CLIENTS, task=task)
        case "next-token":
            # Each token follows from the one before, nine times of ten.
            tokens = rng.integers(0, 5, (320, 9))
            for at in range(1, 9):
                follow = rng.random(320) < 0.9
                tokens[follow, at] = (2 * tokens[follow, at - 1] + 1) % 5
            return from_arrays(tokens, task=task, clients=CLIENTS)
    raise AssertionError(task)


MODELS = {"next-token": NextWord, "segmentation": Pixels}
#: The metric and how good it is after a few rounds; less is better where the second is True.
LEVELS = {
    "classification": ("accuracy", False, 0.85),
    "multi-label": ("f1", False, 0.85),
    "regression": ("rmse", True, 0.3),
    "segmentation": ("mean_iou", False, 0.9),
    "next-token": ("accuracy", False, 0.85),
}


def experiment(task, data=None, **changes):
    sections = {
        "rounds": 8,
        "data": data or federation(task),
        "model": MODELS.get(task, {"name": "mlp", "hidden": [16]}),
        "training": {"lr": 0.1 if task == "regression" else 0.5, "batch_size": 8, "epochs": 2},
        "selection": {"method": "random", "clients_per_round": 4},
        "evaluation": {"every": 8},
    }
    return muster.Experiment(**(sections | changes))


@pytest.mark.parametrize("task", list(LEVELS))
def test_a_task_is_learnt_and_engines_agree(task):
    data = federation(task)
    alone = muster.run(experiment(task, data, engine="inline"))
    shared = muster.run(experiment(task, data, engine={"kind": "processes", "workers": 2}))
    assert np.array_equal(alone.parameters, shared.parameters)
    assert repr(alone.metrics) == repr(shared.metrics)
    metric, less, level = LEVELS[task]
    reached = alone.final(metric)
    assert reached < level if less else reached > level
    row = alone.metrics[-1]
    score = "mae" if task == "regression" else "accuracy"
    assert {f"client_{score}_mean", f"client_{score}_worst", f"participant_{score}"} <= set(row)
    if less:
        assert row["client_mae_worst"] >= row["client_mae_mean"]
    else:
        assert row["client_accuracy_worst"] <= row["client_accuracy_mean"]


@pytest.mark.parametrize("task", ["multi-label", "regression"])
def test_groups_are_attribute_values(task):
    data = federation(task)
    row = muster.run(experiment(task, data, rounds=1), workers=0).metrics[-1]
    score = "mae" if task == "regression" else "accuracy"
    assert (
        row[f"worst_group_{score}"] >= row[score]
        if task == "regression"
        else row[score] >= row[f"worst_group_{score}"]
    )
    assert row["group_gap"] >= 0


def test_client_metrics_are_those_of_the_clients_own_samples():
    data = federation("regression")
    result = muster.run(experiment("regression", data, rounds=2), workers=0)
    network = result.model()
    features, targets = data.tensors(data.dataset.test, data.test_index[3])
    with torch.no_grad():
        own = float((network(features)[:, 0] - targets).abs().mean())
    assert result.records[-1].client_accuracy[3] == pytest.approx(own, rel=1e-5)


def test_the_vectorised_engine_says_no_and_auto_takes_another():
    with pytest.raises(ConfigError, match="cross-entropy of class labels"):
        muster.run(experiment("regression", engine="vectorised"))
    from muster.experiment import build_parts

    parts = build_parts(experiment("regression"), workers=0)
    assert "not vectorised" in parts.engine.describe()
    assert "vectorised engine" in build_parts(experiment("classification"), workers=0).engine.describe()


def test_an_own_loss_changes_the_training_and_only_that():
    data = federation("classification")
    usual = muster.run(experiment("classification", data, engine="inline", rounds=2))
    same = muster.run(
        experiment("classification", data, engine="inline", rounds=2, objective=nn.CrossEntropyLoss())
    )
    smooth = muster.run(
        experiment(
            "classification", data, engine="inline", rounds=2, objective=nn.CrossEntropyLoss(label_smoothing=0.4)
        )
    )
    np.testing.assert_allclose(usual.parameters, same.parameters, atol=1e-5)
    assert not np.allclose(usual.parameters, smooth.parameters, atol=1e-3)
    assert set(usual.metrics[-1]) == set(smooth.metrics[-1])


def test_own_metrics_stand_beside_the_usual_ones():
    def top_two(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.topk(2, dim=1).indices == targets[:, None]).any(dim=1)

    data = federation("classification")
    plain = muster.run(experiment("classification", data, rounds=1), workers=0)
    result = muster.run(
        experiment("classification", data, rounds=1, objective={"metrics": {"top_two": top_two}}), workers=0
    )
    assert result.final("top_two") >= result.final("accuracy") == plain.final("accuracy")
    assert np.array_equal(plain.parameters, result.parameters)


def test_signals_measure_the_objectives_loss():
    from muster.selection import Ask, Selector, Train
    from muster.signals.gradients import Gradient
    from muster.signals.losses import Loss, TrainLoss
    from muster.signals.probe import ProbeNorm

    seen = {}

    class Look(Selector):
        """Asks two clients for everything that a loss is part of."""

        def round(self, fed):
            asked = yield Ask(np.array([0, 1]), (Loss(), Gradient()))
            yield Ask(np.array([0, 1]), (ProbeNorm(),))
            reported = yield Train(np.array([0, 1]), report=(TrainLoss(),))
            seen.update(loss=asked["loss"], gradient=asked["gradient"], trained=reported["train_loss"])

    data = federation("regression")
    result = muster.run(experiment("regression", data, rounds=1, selection=Look()), workers=0)
    network = muster.models.base.build_model("mlp", (6,), 1, {"hidden": [16]}, seed=0)
    features, targets = data.client(0)
    loss = nn.functional.mse_loss(network(features)[:, 0], targets)
    assert seen["loss"][0] == pytest.approx(float(loss.detach()), rel=1e-5)
    loss.backward()
    flat = torch.cat([p.grad.reshape(-1) for p in network.parameters()])
    np.testing.assert_allclose(seen["gradient"][0], flat.numpy(), rtol=1e-4, atol=1e-6)
    assert np.isfinite(seen["trained"]).all()
    assert result.complete


def needs_classes(name):
    """As the selector or its signals declare it."""
    selector = selectors.build(name, {"clients_per_round": 4})
    return selector.needs_classes() or any(signal.needs_classes for signal in selector.needs())


@pytest.mark.parametrize(
    "method", ["fedcbs", "feddiverse", "cluster", "diversity-score", "hics", "astrafl", "tifl"]
)
def test_methods_that_look_at_classes_say_so_before_round_one(method):
    assert needs_classes(method)
    trained = []

    class Watch(muster.server.loop.Observer):
        def round_ended(self, record, ledger):
            trained.append(record)

    selection = {"method": method, "clients_per_round": 4}
    with pytest.raises(ConfigError, match="looks at the classes of samples, but the objective here is regression"):
        muster.run(experiment("regression", selection=selection), workers=0, observers=[Watch()])
    assert not trained


@pytest.mark.parametrize("method", ["random", "terraform", "power-of-choice", "oort", "probe-fairness", "divfl"])
def test_methods_that_do_not_look_at_classes_work(method):
    assert not needs_classes(method)
    selection = {"method": method, "clients_per_round": 4}
    result = muster.run(experiment("regression", selection=selection, rounds=2), workers=0)
    assert np.isfinite(result.final("mae"))


@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_attacks_on_classes_say_so(attack, task):
    """Class c taken for C − 1 − c makes targets of them that no sample can have."""
    attacked = experiment(task, filters=[{"method": attack, "share": 0.5}])
    with pytest.raises(ConfigError, match=f"looks at the classes of samples, but the objective here is {task}"):
        muster.run(attacked, workers=0)


@pytest.mark.parametrize("scheme", ["dirichlet", "classes-per-client"])
def test_partitions_by_class_say_so(scheme):
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(100, 3)), rng.normal(size=100), task="regression")
    with pytest.raises(ConfigError, match="divides data by the classes"):
        muster.run(experiment("regression", data, partition={"scheme": scheme, "clients": 4}))
    result = muster.run(experiment("regression", data, rounds=1, partition={"scheme": "iid", "clients": 4}))
    assert result.complete


def test_validation_data_of_a_task():
    data = federation("regression")
    kept = muster.data.FederatedData(
        data.dataset, data.train_index, data.test_index, validation=data.train_index[7].astype(np.int64)
    )
    row = muster.run(experiment("regression", kept, rounds=1), workers=0).metrics[-1]
    assert np.isfinite(row["validation_mae"])
    assert row["validation_loss"] > 0


def test_a_run_of_a_task_goes_on_where_it_stopped(tmp_path):
    data = federation("multi-label")
    described = experiment("multi-label", data, rounds=3)
    whole = muster.run(described, workers=0)

    class StopAfterOne(muster.server.loop.Observer):
        def wants_stop(self):
            return True

    stopped = muster.run(described, workers=0, out=tmp_path, observers=[StopAfterOne()])
    assert not stopped.complete
    resumed = muster.run(described, workers=0, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, resumed.parameters)
    assert repr(whole.metrics) == repr(resumed.metrics)


def test_metrics_of_which_less_is_better():
    from muster.server.metrics import lower_is_better

    less = ("loss", "mae", "client_mae_mean", "client_mae_worst_tenth", "participant_mae", "perplexity")
    assert all(map(lower_is_better, (*less, "client_accuracy_std", "validation_rmse", "worst_group_mae")))
    assert not any(map(lower_is_better, ("accuracy", "client_accuracy_mean", "r2", "mean_iou", "own")))


def test_a_regression_is_summed_up_by_its_error():
    result = muster.run(experiment("regression"), workers=0)
    assert result.main_metric == "mae"
    assert result.final() == result.final("mae") == result.metrics[-1]["mae"]
    assert result.best() == result.series("mae")[1].min()
    assert f"mae {result.final():.4f})" in repr(result)
    with pytest.raises(ConfigError, match=r"(?s)'accuracy' was never measured.*such as mae"):
        result.plot("curves")
