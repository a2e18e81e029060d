"""What aggregations say of themselves: names, options, what they are in disguise, and what they look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature

import numpy as np
import pytest

from muster.aggregation.base import Aggregator, DiscountingAggregator, aggregators
from muster.aggregation.dnc import DivideAndConquer
from muster.aggregation.fedbuff import FedBuff
from muster.aggregation.fednova import FedNova
from muster.aggregation.sign_vote import SignVote
from muster.engine.trial import TrialEngine

EQUAL = replace(TrialEngine(4, sizes=[50] * 4).population, late_answers=True)


def test_sign_vote_has_its_name() -> None:
    assert aggregators.name_of(SignVote()) == "sign-vote"


@pytest.mark.parametrize("base", [Aggregator, DiscountingAggregator])
def test_a_method_takes_its_own_options_by_place_and_those_that_all_share_by_name(base: type[Aggregator]) -> None:
    @dataclass
    class Method(base):  # type: ignore[misc, valid-type]
        strength: float = 0.1

    options = signature(Method).parameters.values()
    assert [option.name for option in options if option.kind is not option.KEYWORD_ONLY] == ["strength"]


def test_dnc_counts_a_client_once_however_often_it_was_drawn() -> None:
    assert not DivideAndConquer().honours_multiplicity


def test_fedbuff_says_when_no_answer_is_ever_late() -> None:
    assert not any("ever late" in line for line in FedBuff().cautions(EQUAL))
    assert any("ever late" in line for line in FedBuff().cautions(replace(EQUAL, late_answers=False)))


def test_fednova_says_when_it_is_fedavg() -> None:
    unequal = replace(EQUAL, sizes=np.array([50, 50, 50, 60]))
    assert any("is fedavg here" in line for line in FedNova().cautions(EQUAL))
    assert not any("is fedavg here" in line for line in FedNova().cautions(unequal))
    assert not any("is fedavg here" in line for line in FedNova(momentum=0.5).cautions(EQUAL))
