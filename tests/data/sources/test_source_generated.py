"""Generated data (synthetic, spurious-shapes), digits, and the split that is made where data has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from muster.core.errors import ConfigError
from muster.data.sources import sources
from muster.data.sources._build import held_out
from muster.data.sources.spurious_shapes import draw_shapes, group_probabilities, group_sizes
from muster.data.sources.synthetic import fedprox_federation


class TestHeldOut:
    @given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.floats(0.0, 0.99))
    @settings(max_examples=50, deadline=None)
    def test_floor_of_every_group(self, groups, fraction):
        groups = np.array(groups)
        chosen = held_out(groups, fraction)
        for group in np.unique(groups):
            mine = groups == group
            assert chosen[mine].sum() == np.floor(fraction * mine.sum())

    def test_choice_is_spread_and_fixed(self):
        chosen = np.flatnonzero(held_out(np.zeros(1000, dtype=np.int64), 0.1))
        assert len(chosen) == 100
        assert np.histogram(chosen, bins=4, range=(0, 1000))[0].min() >= 15
        # Every machine and version must make this choice, or test sets differ between runs.
        assert chosen[:5].tolist() == [2, 4, 32, 33, 41]


class TestDigits:
    def test_split(self):
        data = sources.build("digits", {})
        assert (len(data.train), len(data.test)) == (1437, 360)
        assert data.sample_shape == (1, 8, 8)
        assert np.bincount(data.test.labels).min() >= 34
        again = sources.build("digits", {})
        assert (data.train.features == again.train.features).all()
        scaled = data.train.features * data.normalisation.scale
        assert scaled.mean() == pytest.approx(data.normalisation.mean[0], abs=1e-3)
        assert scaled.std() == pytest.approx(data.normalisation.std[0], abs=1e-3)

    @pytest.mark.parametrize("fraction", [0.0, 1.0, -1])
    def test_bad_fraction(self, fraction):
        with pytest.raises(ConfigError, match="test_fraction"):
            sources.build("digits", {"test_fraction": fraction})


class TestGaussian:
    def test_balance_and_separation(self):
        data = sources.build("synthetic", {"classes": 4, "features": 30, "samples": 4000, "separation": 8.0})
        assert np.bincount(data.train.labels).tolist() == [1000] * 4
        centres = np.stack([data.train.features[data.train.labels == c].mean(axis=0) for c in range(4)])
        distances = np.linalg.norm(centres[:, None] - centres[None], axis=2)[np.triu_indices(4, 1)]
        assert np.sqrt((distances**2).mean()) == pytest.approx(8.0, rel=0.2)
        model = LogisticRegression(max_iter=200).fit(data.train.features, data.train.labels)
        assert model.score(data.test.features, data.test.labels) > 0.97

    def test_seed(self):
        first, same, other = (sources.build("synthetic", {"samples": 50, "seed": s}) for s in (1, 1, 2))
        assert (first.train.features == same.train.features).all()
        assert not (first.train.features == other.train.features).any()

    @pytest.mark.parametrize("options", [{"classes": 1}, {"samples": 5}, {"separation": -1.0}, {"features": 0}])
    def test_bad_options(self, options):
        with pytest.raises(ConfigError):
            sources.build("synthetic", options)


class TestFedprox:
    def test_owners_and_split(self):
        data = sources.build("synthetic", {"kind": "fedprox", "clients": 12})
        assert np.unique(data.train.owners).tolist() == list(range(12))
        train, test = np.bincount(data.train.owners), np.bincount(data.test.owners, minlength=12)
        assert (test == (train + test) // 10).all()
        assert (train + test >= 50).all()
        assert data.sample_shape == (60,)

    def test_covariance_falls_as_stated(self):
        x, _, owners = fedprox_federation(np.random.default_rng(0), 0.0, 0.0, 8, iid=True)
        expected = np.arange(1, 61) ** -1.2
        assert len(x) == len(owners)
        assert x.var(axis=0) == pytest.approx(expected, rel=0.35)
        assert abs(x.mean(axis=0)).max() < 0.15

    def test_labels_come_from_one_linear_model_when_iid(self):
        x, y, _ = fedprox_federation(np.random.default_rng(0), 0.0, 0.0, 10, iid=True)
        assert LogisticRegression(C=100, max_iter=2000).fit(x, y).score(x, y) > 0.95

    def test_beta_moves_features(self):
        def spread(beta: float) -> float:
            x, _, owners = fedprox_federation(np.random.default_rng(1), 0.0, beta, 200, features=10)
            means = np.array([x[owners == k].mean() for k in range(200)])
            return float(means.var())

        # Means of a client's features: variance β of their centre, 1/10 of ten centres around it.
        assert spread(0.0) == pytest.approx(0.1, rel=0.4)
        assert spread(4.0) == pytest.approx(4.1, rel=0.4)

    @pytest.mark.parametrize("options", [{"clients": 0}, {"alpha": -1.0}, {"beta": -0.5}])
    def test_bad_options(self, options):
        with pytest.raises(ConfigError):
            sources.build("synthetic", {"kind": "fedprox"} | options)


class TestSpuriousShapes:
    def test_tables(self):
        assert group_probabilities(2, 2, 0, 0, 0) == pytest.approx(np.full((2, 2), 0.25))
        assert group_probabilities(2, 2, 0.8, 0, 0) == pytest.approx(np.array([[0.45, 0.45], [0.05, 0.05]]))
        assert group_probabilities(2, 2, 0, 0.8, 0) == pytest.approx(np.array([[0.45, 0.05], [0.45, 0.05]]))
        assert group_probabilities(2, 2, 0, 0, 0.8) == pytest.approx(np.array([[0.45, 0.05], [0.05, 0.45]]))
        assert group_probabilities(4, 2, 0, 0, 1) == pytest.approx(np.array([[0.25, 0], [0, 0.25]] * 2))

    @given(st.integers(2, 4), st.integers(2, 4), st.tuples(*[st.floats(0, 1)] * 3), st.integers(1, 200))
    @settings(max_examples=40, deadline=None)
    def test_sizes_add_up(self, classes, attributes, strengths, samples):
        table = group_probabilities(classes, attributes, *strengths)
        sizes = group_sizes(table, samples)
        assert table.sum() == pytest.approx(1)
        assert sizes.sum() == samples
        assert (abs(sizes - table * samples) < 1).all()

    def test_splits(self):
        data = sources.build("spurious-shapes", {"spurious_correlation": 0.8, "samples": 400, "test_samples": 80})
        cells = np.bincount(data.train.labels * 2 + data.train.attributes)
        assert cells.tolist() == [180, 20, 20, 180]
        assert np.bincount(data.test.labels * 2 + data.test.attributes).tolist() == [20] * 4
        assert data.sample_shape == (3, 28, 28)
        assert data.attribute_names == ("sand", "snow")

    def test_shape_and_background_can_both_be_seen(self):
        data = sources.build("spurious-shapes", {"classes": 4, "attributes": 4, "noise": 5.0, "test_samples": 400})
        corners = data.test.features[:, :, 0, 0].astype(float)
        centres = np.stack([corners[data.test.attributes == a].mean(axis=0) for a in range(4)])
        nearest = np.linalg.norm(corners[:, None] - centres[None], axis=2).argmin(axis=1)
        assert (nearest == data.test.attributes).all()
        dark = data.test.features.max(axis=1) < 75
        boxes = dark.any(axis=1).sum(axis=1) * dark.any(axis=2).sum(axis=1)
        filled = dark.sum(axis=(1, 2)) / boxes
        share = [filled[data.test.labels == c].mean() for c in range(4)]
        # How much of its box a shape fills: disc π/4, square all, ring π/4 · (1 − 0.55²), cross in between.
        assert share[0] == pytest.approx(np.pi / 4, abs=0.06)
        assert share[1] > 0.97
        assert share[2] < 0.65
        assert share[3] == pytest.approx(np.pi / 4 * (1 - 0.55**2), abs=0.06)

    def test_drawing_depends_on_the_generator_alone(self):
        labels, attributes = np.array([0, 1]), np.array([1, 0])
        first, same = (draw_shapes(np.random.default_rng(3), labels, attributes, 16, 10.0) for _ in range(2))
        assert (first == same).all()

    @pytest.mark.parametrize(
        "options", [{"classes": 5}, {"attributes": 1}, {"class_imbalance": 1.5}, {"size": 4}, {"test_samples": 3}]
    )
    def test_bad_options(self, options):
        with pytest.raises(ConfigError):
            sources.build("spurious-shapes", options)
