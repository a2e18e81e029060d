"""What a selector may ask for: the boundaries of every rule, and what is fine beside what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from muster.aggregation.base import Aggregator
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.feddyn import FedDyn as FedDynServer
from muster.aggregation.median import Median
from muster.aggregation.scaffold import Scaffold as ScaffoldServer
from muster.core.errors import ConfigError
from muster.engine.trial import TrialEngine
from muster.selection.base import Ask, Plan, Request, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.selection.size_weighted import SizeWeighted
from muster.server.loop import Server
from muster.server.result import Result
from muster.signals.losses import Loss
from muster.signals.probe import ProbeNorm
from muster.training.base import LocalAlgorithm, LocalTraining, Plain
from muster.training.continued import Continued
from muster.training.feddyn import FedDyn
from muster.training.fedprox import FedProx
from muster.training.scaffold import Scaffold

CLIENTS = 6


@dataclass
class Makes(Selector):
    """Makes one request in every round."""

    request: Any
    said: dict[str, bool] = field(default_factory=dict)

    def round(self, fed: View) -> Plan:
        yield self.request(fed) if callable(self.request) else self.request

    def gives_multiplicity(self) -> bool:
        return self.said.get("multiplicity", False)

    def gives_weights(self) -> bool:
        return self.said.get("weights", False)

    def gives_fedavg(self) -> bool:
        return self.said.get("fedavg", False)


def played(
    request: Request | Callable[[View], Any] | Any,
    aggregator: Aggregator | None = None,
    algorithm: LocalAlgorithm | None = None,
) -> Result:
    engine = TrialEngine(CLIENTS, algorithm=algorithm)
    return Server(Makes(request), aggregator or FedAvg(), engine).run(1)


# --- clients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [[0], [CLIENTS - 1], [0, 1, 2, 3, 4, 5], [5, 0, 3], [4, 3]])
def test_any_distinct_ids_in_any_order_will_do(clients):
    assert played(Train(clients)).selections == [[sorted(clients)]]


@pytest.mark.parametrize("clients", [[5, 3, 5], [1, 2, 2], [0, 0]])
def test_a_client_named_twice_is_refused_wherever_it_stands(clients):
    with pytest.raises(ConfigError, match="the same client twice"):
        played(Train(clients))


def test_the_wrong_id_is_named():
    with pytest.raises(ConfigError, match=r"client 6.*\n.*ids from 0 to 5"):
        played(Train([1, 6, 3]))
    with pytest.raises(ConfigError, match="client -2"):
        played(Ask([1, -2], (Loss(),)))


def test_a_table_of_ids_is_refused():
    with pytest.raises(ConfigError, match="one-dimensional"):
        played(Train(np.array([[0, 1], [2, 3]])))


def test_what_is_no_request_is_refused():
    with pytest.raises(ConfigError, match="Makes yielded a list"):
        played([0, 1])


def test_a_selector_without_a_round_is_told_what_it_lacks():
    class Silent(Selector):
        """Has forgotten the only method that it must have."""

    with pytest.raises(ConfigError, match="Silent does not say whom to train"):
        Server(Silent(), FedAvg(), TrialEngine(CLIENTS)).run(1)  # type: ignore[abstract]


# --- the model that is asked about -------------------------------------------------------------------------


def test_a_question_may_be_about_another_model_of_the_same_shape():
    size = TrialEngine(CLIENTS).population.spec.size
    asked = played(Ask([0, 1], (Loss(),), parameters=np.ones(size, dtype=np.float32)))
    assert asked.records[0].asks == [(["loss"], 2, 2)]


@pytest.mark.parametrize(
    "change", [lambda p: p[:-1], lambda p: p[None], lambda p: np.where(np.arange(len(p)) == 3, np.nan, p)]
)
def test_a_model_that_nobody_could_measure_on_is_refused(change):
    model = np.ones(TrialEngine(CLIENTS).population.spec.size, dtype=np.float32)
    with pytest.raises(ConfigError, match="asked about a model of shape"):
        played(Ask([0], (Loss(),), parameters=change(model)))


# --- what is said about each client -----------------------------------------------------------------------


def test_equal_weights_mean_the_same_to_an_aggregation_that_ignores_them():
    for name in ("weights", "multiplicity"):
        played(Train([0, 1, 2], **{name: np.array([2, 2, 2])}), Median())


def test_some_weights_may_be_zero_but_not_all():
    assert played(Train([0, 1], weights=[0.0, 3.0])).records[0].trainings[0].weights == [0.0, 1.0]
    with pytest.raises(ConfigError, match="weights that are all zero"):
        played(Train([0, 1], weights=[0.0, 0.0]))
    played(Train([], weights=[]))  # nobody has no weight, which is no mistake


@pytest.mark.parametrize("factors", [[1.0, 0.0], [1.0, -0.5], [np.nan, 1.0], [1.0, np.inf]])
def test_a_learning_rate_that_teaches_nothing_is_refused(factors):
    with pytest.raises(ConfigError, match="gave the lr_factors"):
        played(Train([0, 1], lr_factors=factors))


@pytest.mark.parametrize("factors", [[1.0, -0.5], [np.nan, 1.0], [1.0, np.inf]])
def test_a_pull_that_pushes_is_refused(factors):
    with pytest.raises(ConfigError, match="gave the pull_factors"):
        played(Train([0, 1], pull_factors=factors), algorithm=FedProx(0.1))


def test_a_pull_of_zero_is_allowed_where_there_is_a_pull_at_all():
    played(Train([0, 1], pull_factors=[0.0, 1.0]), algorithm=FedProx(0.1))
    with pytest.raises(ConfigError, match="Plain has no proximal strength"):
        played(Train([0, 1], pull_factors=[0.0, 1.0]))


@pytest.mark.parametrize("name", ["multiplicity", "weights", "lr_factors", "pull_factors"])
def test_one_number_for_each_client(name):
    with pytest.raises(ConfigError, match=f"3 {name} for 2 clients"):
        played(Train([0, 1], **{name: [1, 1, 1]}), algorithm=FedProx(0.1))
    with pytest.raises(ConfigError, match=rf"{name} of shape \(2, 1\) for 2 clients"):
        played(Train([0, 1], **{name: [[1], [1]]}), algorithm=FedProx(0.1))


# --- methods that do not fit each other, before round 1 ---------------------------------------------------


def checked(selector: Selector, aggregator: Aggregator, algorithm: LocalAlgorithm | None = None) -> None:
    Server(selector, aggregator, TrialEngine(CLIENTS, algorithm=algorithm)).check(3)


def refused(message: str, *parts: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(*parts)


def test_counting_a_client_twice_needs_an_aggregation_that_can():
    drawn = SizeWeighted(3, replace=True)
    refused("SizeWeighted with Median: the selection samples with replacement", drawn, Median())
    checked(drawn, FedAvg())
    checked(SizeWeighted(3), FedAvg())


def test_weights_of_the_selection_need_an_aggregation_without_its_own():
    weighing = Makes(Train([0]), {"weights": True})
    refused("Makes with Median: the selection gives aggregation weights", weighing, Median())
    checked(weighing, FedAvg())
    checked(Makes(Train([0])), Median())


def test_the_two_halves_of_a_method_need_each_other():
    random = RandomSelection(3)
    refused("Scaffold needs clients that run scaffold, not plain", random, ScaffoldServer(), Plain())
    refused(
        "the local algorithm scaffold needs the aggregation scaffold, not fedavg", random, FedAvg(), Scaffold()
    )
    refused("needs clients that run scaffold, not feddyn", random, ScaffoldServer(), FedDyn())
    checked(random, ScaffoldServer(), Scaffold())
    checked(random, FedDynServer(), FedDyn())


def test_rounds_of_plain_fedavg_need_an_algorithm_that_does_without_the_servers_half():
    plain = Makes(Train([0]), {"fedavg": True})
    refused(
        "Makes trains some rounds with FedAvg, which lacks what scaffold needs",
        plain,
        ScaffoldServer(),
        Scaffold(),
    )
    checked(plain, FedAvg())


@dataclass
class Probing(Selector):
    signal: ProbeNorm

    def needs(self) -> tuple[ProbeNorm, ...]:
        return (self.signal,)

    def round(self, fed: View) -> Plan:
        yield Ask(fed.available, (self.signal,))


def test_only_one_of_two_can_keep_the_momentum():
    """A probe whose momentum goes on needs momentum, and an algorithm that does not bring its own."""
    kept, fresh = Probing(ProbeNorm(optimizer_state="kept")), Probing(ProbeNorm())

    def check(selector: Selector, algorithm: LocalAlgorithm, momentum: float) -> None:
        training = LocalTraining(momentum=momentum)
        Server(selector, FedAvg(), TrialEngine(CLIENTS, training=training, algorithm=algorithm)).check(3)

    check(kept, Plain(), 0.9)
    check(fresh, Continued(), 0.9)
    check(fresh, Plain(), 0.0)
    with pytest.raises(ConfigError, match="local training has none"):
        check(kept, Plain(), 0.0)
    with pytest.raises(ConfigError, match="continued continues with that of the client's last training"):
        check(kept, Continued(), 0.9)


@pytest.mark.parametrize("number", [0, -3])
def test_a_run_has_at_least_one_round_and_evaluates_at_least_once_in_so_many(number):
    random, engine = RandomSelection(3), TrialEngine(CLIENTS)
    with pytest.raises(ConfigError, match=f"rounds is {number}"):
        Server(random, FedAvg(), engine).run(number)
    with pytest.raises(ConfigError, match=f"evaluate_every is {number}"):
        Server(random, FedAvg(), engine, evaluate_every=number).run(1)
