"""What selections cost beyond the training itself, on a real federation, as the ledger has it."""

import pytest

from muster.config.experiment import from_dict
from muster.experiment.runner import run

CLIENTS, CHOSEN, ROUNDS, BATCH = 12, 3, 3, 16


@pytest.fixture(scope="module")
def costs():
    """Runs three rounds with a selection; gives the ledger's totals and the model's bytes."""

    def measure(**selection):
        if "pool" not in selection:
            selection["clients_per_round"] = CHOSEN
        result = run(
            from_dict(
                {
                    "rounds": ROUNDS,
                    "data": {"source": "digits"},
                    "partition": {"scheme": "iid", "clients": CLIENTS},
                    "model": {"name": "mlp", "hidden": [8]},
                    "training": {"batch_size": BATCH},
                    "devices": {"model": "lognormal"},
                    "selection": selection,
                }
            ),
            workers=0,
        )
        assert result.complete
        return result.ledger.total(), result.spec.bytes

    return measure


TRAININGS = CHOSEN * ROUNDS


@pytest.mark.parametrize(
    "method", ["random", "size-weighted", "round-robin", "sliding-window", "dirichlet-participation"]
)
def test_schemes_without_signals_cost_nothing_extra(costs, method):
    total, model = costs(method=method)
    assert total.client_trainings == TRAININGS
    assert total.bytes_down == total.bytes_up == TRAININGS * model
    assert total.probe_samples == 0


@pytest.mark.parametrize(("variant", "probed"), [("pow-d", None), ("cpow-d", BATCH)])
def test_power_of_choice_sends_the_model_to_all_candidates(costs, variant, probed):
    total, model = costs(method="power-of-choice", variant=variant, d=6)
    assert total.bytes_down == (6 * ROUNDS + TRAININGS) * model
    assert total.bytes_up == TRAININGS * model + 6 * ROUNDS * 4
    if probed is not None:
        assert total.probe_samples == 6 * ROUNDS * probed
    else:
        assert total.probe_samples > 6 * ROUNDS * 100  # all of about 120 samples each


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        ({"method": "power-of-choice", "variant": "rpow-d"}, 1),
        ({"method": "high-loss", "signal": "last_train_loss"}, 1),
        ({"method": "oort"}, 1),
        ({"method": "oort", "speed": "reported"}, 4),
    ],
)
def test_reports_cost_a_few_numbers_with_each_update(costs, selection, numbers):
    total, model = costs(**selection)
    assert total.client_trainings == TRAININGS
    assert total.bytes_down == TRAININGS * model
    assert total.bytes_up == TRAININGS * (model + 4 * numbers)
    assert total.probe_samples == 0


def test_high_loss_makes_everybody_evaluate(costs):
    total, model = costs(method="high-loss")
    assert total.bytes_down == (CLIENTS * ROUNDS + TRAININGS) * model
    assert total.bytes_up == TRAININGS * model + CLIENTS * ROUNDS * 4


def test_fedcs_asks_its_candidates_for_three_numbers(costs):
    total, model = costs(method="fedcs", candidates=0.5, deadline=1e6)
    assert total.client_trainings == TRAININGS
    assert total.bytes_down == TRAININGS * model
    assert total.bytes_up == TRAININGS * model + 6 * ROUNDS * 3 * 4


def test_a_combination_costs_what_its_parts_cost(costs):
    pool = {"method": "power-of-choice", "clients_per_round": 6, "d": 8}
    inner = {"method": "random", "clients_per_round": CHOSEN}
    total, model = costs(method="within", pool=pool, inner=inner)
    assert total.client_trainings == TRAININGS
    assert total.bytes_down == (8 * ROUNDS + TRAININGS) * model
