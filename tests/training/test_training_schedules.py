"""Schedules against PyTorch's schedulers, stepped once a round; edge cases; what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from muster.core.errors import ConfigError
from muster.training.base import LocalTraining
from muster.training.schedules import plateaus

LR, ROUNDS = 0.3, 60

#: Schedule → our options, and PyTorch's scheduler that they mean.
PAIRS = {
    "step": ({"decay_every": 7, "decay": 0.3}, lambda o: lr_scheduler.StepLR(o, 7, 0.3)),
    "multistep": ({"milestones": (5, 20, 21)}, lambda o: lr_scheduler.MultiStepLR(o, [5, 20, 21], 0.5)),
    "exponential": ({"decay": 0.93}, lambda o: lr_scheduler.ExponentialLR(o, 0.93)),
    "cosine": (
        {"final_share": 0.1},
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=ROUNDS - 1, eta_min=0.1 * LR),
    ),
    "warm-restarts": (
        {"period": 4, "period_growth": 3, "final_share": 0.05},
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=3, eta_min=0.05 * LR),
    ),
    "one-cycle": (
        {"warmup": 0.25, "start_share": 0.1, "final_share": 0.001},
        lambda o: lr_scheduler.OneCycleLR(
            o,
            max_lr=LR,
            total_steps=ROUNDS,
            pct_start=0.25,
            div_factor=10,
            final_div_factor=100,
            cycle_momentum=False,
        ),
    ),
    "linear": (
        {"final_share": 0.2},
        lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=ROUNDS - 1),
    ),
}


#: What the probing-and-diversity paper's code compares over 500 epochs.
PUBLISHED = {
    "step": ({"decay_every": 166, "decay": 0.1}, lambda o: lr_scheduler.StepLR(o, 166, 0.1)),
    "exponential": ({"decay": 0.01 ** (1 / 500)}, lambda o: lr_scheduler.ExponentialLR(o, 0.01 ** (1 / 500))),
    "warm-restarts": (
        {"period": 50, "period_growth": 2},
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=50, T_mult=2),
    ),
    "cosine": ({"period": 500}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=500)),
}


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)


@pytest.mark.parametrize("name", PAIRS)
def test_equals_pytorch(name):
    options, make = PAIRS[name]
    training = LocalTraining(lr=LR, schedule=name, **options)
    training.check()
    sgd = optimizer()
    scheduler, expected = make(sgd), []
    for _ in range(ROUNDS):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    ours = [training.learning_rate(round, ROUNDS) for round in range(ROUNDS)]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)
    assert len(set(ours)) > 3


@pytest.mark.parametrize("name", PUBLISHED)
def test_500_epochs_equal_pytorch(name):
    options, make = PUBLISHED[name]
    training, sgd = LocalTraining(lr=LR, schedule=name, **options), optimizer()
    scheduler = make(sgd)
    for round in range(500):
        assert training.learning_rate(round, 500) == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        sgd.step()
        scheduler.step()


@settings(max_examples=25, deadline=None)
@given(warmup=st.floats(0.05, 0.9), rounds=st.integers(1, 6), batches=st.integers(2, 9))
def test_one_cycle_with_every_batch_equals_pytorch(warmup, rounds, batches):
    training = LocalTraining(
        mode="centralised",
        lr=LR,
        momentum=0.9,
        schedule="one-cycle",
        schedule_per="batch",
        warmup=warmup,
        final_share=4e-6,
        momentum_range=(0.85, 0.95),
    )
    training.check()
    # A first phase of exactly one batch has no length in PyTorch, which divides by it.
    assume(warmup * rounds * batches != 1)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(sgd, LR, epochs=rounds, steps_per_epoch=batches, pct_start=warmup)
    for number in range(rounds * batches):
        lr, momentum = training.at_batch(number // batches, rounds, number % batches, batches)
        group = sgd.param_groups[0]
        if warmup * rounds * batches > 1:  # PyTorch's first phase has a negative length otherwise
            assert (lr, momentum) == pytest.approx((group["lr"], group["momentum"]), rel=1e-9)
        sgd.step()
        scheduler.step()


@settings(max_examples=25, deadline=None)
@given(
    losses=st.lists(st.floats(0.01, 3) | st.just(math.nan) | st.just(1.0), max_size=60),
    patience=st.integers(0, 5),
)
def test_plateau_equals_pytorch(losses, patience):
    training = LocalTraining(lr=LR, schedule="plateau", patience=patience, decay=0.7, final_share=0.1)
    sgd = optimizer()
    scheduler = lr_scheduler.ReduceLROnPlateau(sgd, patience=patience, factor=0.7, min_lr=0.1 * LR, eps=0)
    for number, loss in enumerate(losses):
        scheduler.step(loss)
        rate = training.learning_rate(number + 1, 100, losses[: number + 1])
        assert rate == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-12)


def test_plateaus_by_hand():
    assert plateaus([], 2) == 0
    assert plateaus([1, 0.9, 0.95, 0.95], 2) == 0
    assert plateaus([1, 0.9, 0.95, 0.95, 0.9], 2) == 1  # equal to the best is no better
    assert plateaus([1, 1, 1], 0) == 2
    assert plateaus([1, 0.99995, 0.9999], 0) == 2  # better by less than a ten-thousandth


@pytest.mark.parametrize("name", [*PAIRS, "plateau", "constant"])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_few_rounds_have_positive_rates_up_to_the_last(name, rounds):
    training = LocalTraining(lr=LR, schedule=name, milestones=(1,))
    rates = [training.learning_rate(round, rounds) for round in range(rounds)]
    assert all(0 <= rate <= LR for rate in rates)
    assert rates[0] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "multistep"},
        {"milestones": (5, 5)},
        {"milestones": (0, 5)},
        {"patience": -1},
        {"period": 0},
        {"period_growth": 0},
        {"warmup": 1.1},
        {"start_share": -0.1},
        {"schedule": "cosine", "schedule_per": "batch"},  # in a federation
        {"schedule": "step", "schedule_per": "batch", "mode": "centralised"},
        {"schedule": "one-cycle", "momentum_range": (0.8, 0.9), "mode": "centralised", "momentum": 0.9},
        {"schedule": "one-cycle", "momentum_range": (0.9, 0.8), "schedule_per": "batch", "mode": "centralised"},
        {"schedule": "one-cycle", "momentum_range": (0.8, 0.9), "schedule_per": "batch", "mode": "centralised"},
    ],
)
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(ConfigError, match="training"):
        LocalTraining(**options).check()
