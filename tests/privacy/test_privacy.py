"""Noise in whole runs: who gets it, what the ledger says about it, and that it survives stop and resume."""

import json

import numpy as np
import pytest

import muster
from muster.core.errors import ConfigError
from muster.engine.trial import TrialEngine
from muster.experiment import from_dict
from muster.privacy.account import Privacy, PrivacyAccount, advanced_composition, basic_composition
from muster.privacy.noise import Private, private
from muster.selection.base import Ask, Selector, Train
from muster.server.ledger import Ledger
from muster.server.loop import Observer
from muster.signals.labels import LabelEntropy, LabelHistogram
from muster.signals.losses import Loss

LAPLACE = {"mechanism": "laplace", "epsilon": 1.0}


class Curious(Selector):
    """Asks two clients for their histograms in every round, and everybody for a report."""

    def __init__(self):
        self.seen = []

    def needs(self):
        return (LabelHistogram(), LabelEntropy())

    def round(self, fed):
        replies = yield Ask(np.array([1, 2]), (LabelHistogram(), Loss()))
        self.seen.append(replies["label_histogram"])
        yield Train(fed.available[:3], report=(LabelEntropy(),))


class StopAfterFirst(Observer):
    def wants_stop(self):
        return True


@pytest.mark.parametrize(
    ("answers", "basic", "advanced"),
    [
        (0, (0.0, 0.0), (0.0, 0.0)),
        (1, (0.1, 1e-6), (0.1 * np.sqrt(2 * np.log(1e5)) + 0.1 * (np.exp(0.1) - 1), 1.1e-5)),
        (100, (10.0, 1e-4), (5.850235, 1.1e-4)),
    ],
)
def test_composition(answers, basic, advanced):
    assert basic_composition(0.1, 1e-6, answers) == pytest.approx(basic)
    assert advanced_composition(0.1, 1e-6, answers, slack=1e-5) == pytest.approx(advanced, rel=1e-6)


def test_the_account_counts_the_client_that_told_most():
    histogram = private(LabelHistogram(), "laplace", 0.5, 1e-5, 4)
    entropy = private(LabelEntropy(), "gaussian", 0.25, 1e-6, 4)
    account = PrivacyAccount()
    account.released(histogram, np.array([0, 1]), 3)
    account.released(histogram, np.array([1]), 3)
    account.released(entropy, np.array([0, 4]), 5)
    first, second = account.spent()
    assert (first.signal, first.answers, first.basic) == ("label_histogram", 2, (1.0, 0.0))
    assert (second.signal, second.answers, second.basic) == ("label_entropy", 1, (0.25, 1e-6))
    # Client 1: twice 0.5. Client 0: 0.5 + 0.25.
    assert account.total() == (1.0, 1e-6)
    copy = PrivacyAccount()
    copy.load_state_dict(account.state_dict())
    assert copy.spent() == account.spent()


def test_clients_that_joined_later_have_not_told_what_was_asked_before():
    """Three clients are known of the first kind, five of the second: two have told nothing of the first."""
    first = private(LabelEntropy(), "gaussian", 0.5, 1e-6, 4)
    second = private(LabelHistogram(), "gaussian", 0.5, 1e-5, 4)
    account = PrivacyAccount()
    account.released(first, np.array([0]), 3)
    account.released(second, np.array([4]), 5)
    assert account.total() == (0.5, 1e-5)


def test_nothing_is_spent_without_noise():
    assert Ledger().privacy.spent() == []
    assert Ledger().privacy.total() == (0.0, 0.0)


def test_everything_with_a_bound_gets_noise_unless_names_are_given():
    asked = (LabelHistogram(), Loss())
    noisy, plain = Privacy(1.0).protect(asked, 10)
    assert isinstance(noisy, Private)
    assert plain == Loss()
    assert Privacy(1.0, signals=("label_entropy",)).protect(asked, 10) == asked


def test_answers_and_reports_get_noise_and_are_accounted_for(tiny):
    exact, noisy = Curious(), Curious()
    muster.run(tiny(selection=exact), workers=0)
    result = muster.run(tiny(selection=noisy, privacy=LAPLACE), workers=0)
    assert all(not np.array_equal(one, other) for one, other in zip(exact.seen, noisy.seen, strict=True))
    np.testing.assert_allclose([rows.sum(axis=1) for rows in noisy.seen], [e.sum(axis=1) for e in exact.seen])
    spent = {row.signal: row for row in result.ledger.privacy.spent()}
    assert {name: row.answers for name, row in spent.items()} == {"label_histogram": 3, "label_entropy": 3}
    assert spent["label_histogram"].basic == (3.0, 0.0)
    # Clients 1 and 2 tell both in every round.
    assert result.ledger.privacy.total() == (6.0, 0.0)
    kinds = result.ledger.total_disclosed()
    assert kinds["how many samples of each class the client has, with noise (ε = 1)"] == 6
    assert "how many samples of each class the client has" not in kinds
    assert json.loads(json.dumps(result.summary()))["privacy"][0]["answers"] == 3


def test_a_histogram_that_is_asked_once_is_spent_once(tiny):
    result = muster.run(tiny(selection={"method": "fedcbs", "clients_per_round": 4}, privacy=LAPLACE), workers=0)
    (row,) = result.ledger.privacy.spent()
    assert (row.answers, row.basic, row.neighbours) == (1, (1.0, 0.0), "one sample replaced")


@pytest.mark.parametrize(
    "method", ["astrafl", "cluster", "diversity-score", "fedcbs", "feddiverse", "feddiverse-qp", "oracle"]
)
def test_methods_live_with_much_noise(tiny, method):
    options = {"biased_steps": 2, "attribute_steps": 2} if method == "feddiverse" else {}
    made = tiny(
        rounds=2,
        data={"source": "spurious-shapes", "samples": 600, "test_samples": 40},
        model={"name": "mlp", "hidden": [4]},
        selection={"method": method, "clients_per_round": 4, **options},
        privacy={"epsilon": 0.05, "mechanism": "gaussian"},
    )
    result = muster.run(made, workers=0)
    assert all(len(clients) for trainings in result.selections for clients in trainings)
    (row,) = result.ledger.privacy.spent()
    assert (row.answers, row.basic) == (1, (0.05, 1e-5))


def test_noise_does_not_depend_on_workers_or_interruption(tiny, tmp_path):
    def made():
        return tiny(selection={"method": "diversity-score", "clients_per_round": 4}, privacy=LAPLACE)

    whole = muster.run(made(), workers=2)
    muster.run(made(), workers=0, out=tmp_path, observers=[StopAfterFirst()])
    rest = muster.run(made(), workers=0, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, rest.parameters)
    assert whole.ledger.privacy.spent() == rest.ledger.privacy.spent()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"epsilon": 0.0}, "privacy.epsilon"),
        ({"epsilon": 1e9}, "up to 100"),
        ({"epsilon": 1.0, "delta": 0.0}, "privacy.delta"),
        ({"epsilon": 1.0, "mechanism": "uniform"}, "privacy.mechanism"),
        ({"mechanism": "laplace"}, "missing key 'privacy.epsilon'"),
        ({"epsilon": 1.0, "signals": ["label_histgram"]}, "did you mean 'label_histogram'"),
        ({"epsilon": 1.0, "signals": ["loss"]}, "no bound is known"),
    ],
)
def test_mistakes_are_told_before_round_1(tiny, section, message):
    with pytest.raises(ConfigError, match=message):
        muster.run(tiny(privacy=section), workers=0)


def test_noise_makes_it_another_experiment():
    assert from_dict({"privacy": {}}).fingerprint == from_dict({}).fingerprint
    assert from_dict({"privacy": {"epsilon": 1.0}}).fingerprint != from_dict({}).fingerprint


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-5, np.nan])
def test_a_delta_that_is_no_probability_is_refused(delta):
    population = TrialEngine(4).population
    Privacy(1.0, "gaussian", 0.5).check(population)
    with pytest.raises(ConfigError, match=r"privacy\.delta"):
        Privacy(1.0, "gaussian", delta).check(population)
