"""Generated pictures whose background can give the class away: for teaching and testing group robustness."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Normalisation, Samples
from muster.data.sources.base import sources

SHAPES = ("disc", "square", "cross", "ring")
BACKGROUNDS = ("sand", "snow", "grass", "sea")
_COLOURS = np.array([[194, 170, 110], [225, 232, 240], [70, 130, 60], [50, 90, 160]], dtype=np.float32)


@sources.register("spurious-shapes")
def spurious_shapes(
    *,
    classes: int = 2,
    attributes: int = 2,
    samples: int = 4_000,
    test_samples: int = 1_000,
    class_imbalance: float = 0.0,
    attribute_imbalance: float = 0.0,
    spurious_correlation: float = 0.0,
    size: int = 28,
    noise: float = 20.0,
    seed: int = 0,
    data_dir: str | None = None,
) -> Dataset:
    """Generated pictures: class = shape, attribute = background, with chosen imbalances and spurious correlation.

    The three strengths go from 0 (none) to 1 (total) and shape the training split; the test split has equally many
    samples of every group. `noise` is the deviation of the pixels' noise (of 255). `data_dir` is not used.
    """
    for name, value, most in (("classes", classes, len(SHAPES)), ("attributes", attributes, len(BACKGROUNDS))):
        if not 2 <= value <= most:
            raise ConfigError(f"bad value for 'data.{name}': {value}", expected=f"2 to {most}")
    if size < 12 or samples < 1 or test_samples < classes * attributes:
        raise ConfigError(
            f"size {size}, {samples} samples, {test_samples} test samples",
            expected=f"size of 12 or more, samples, and a test sample for each of {classes * attributes} groups",
        )
    table = group_probabilities(classes, attributes, class_imbalance, attribute_imbalance, spurious_correlation)
    even = np.full_like(table, 1 / table.size)
    rng = np.random.default_rng(seed)
    train, test = (_draw_split(rng, t, n, size, noise) for t, n in ((table, samples), (even, test_samples)))
    return Dataset(
        name="spurious-shapes",
        train=train,
        test=test,
        classes=classes,
        normalisation=Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), scale=1 / 255),
        attribute_values=attributes,
        class_names=SHAPES[:classes],
        attribute_names=BACKGROUNDS[:attributes],
        origin=f"generated (seed {seed})",
    )


def group_probabilities(
    classes: int,
    attributes: int,
    class_imbalance: float,
    attribute_imbalance: float,
    spurious_correlation: float,
) -> Floats:
    """P(class, attribute): a share of each strength is moved from uniform to one class, attribute or pairing.

    P(y) puts `class_imbalance` on class 0 and spreads the rest; a sample takes the background of its own class
    (y mod attributes) with probability `spurious_correlation`, and else one from the attributes' distribution,
    which puts `attribute_imbalance` on background 0.
    """
    strengths = (class_imbalance, attribute_imbalance, spurious_correlation)
    if not all(0.0 <= strength <= 1.0 for strength in strengths):
        raise ConfigError(
            f"class_imbalance, attribute_imbalance, spurious_correlation are {strengths}", expected="0 to 1 each"
        )
    of_class = np.full(classes, (1 - class_imbalance) / classes)
    of_class[0] += class_imbalance
    of_attribute = np.full(attributes, (1 - attribute_imbalance) / attributes)
    of_attribute[0] += attribute_imbalance
    paired = np.eye(attributes)[np.arange(classes) % attributes]
    given_class = (1 - spurious_correlation) * of_attribute + spurious_correlation * paired
    table: Floats = of_class[:, None] * given_class
    return table


def group_sizes(table: Floats, samples: int) -> Ints:
    """Whole numbers that add up to `samples`, as near to the proportions as can be (largest remainders)."""
    wanted = table.ravel() * samples
    counts = np.floor(wanted).astype(np.int64)
    order = np.argsort(counts - wanted, kind="stable")
    counts[order[: samples - counts.sum()]] += 1
    return counts.reshape(table.shape)


def _draw_split(rng: np.random.Generator, table: Floats, samples: int, size: int, noise: float) -> Samples:
    cells = rng.permutation(np.repeat(np.arange(table.size), group_sizes(table, samples).ravel()))
    labels, attributes = (part.astype(np.int64) for part in np.divmod(cells, table.shape[1]))
    return Samples(draw_shapes(rng, labels, attributes, size, noise), labels, attributes)


def draw_shapes(
    rng: np.random.Generator, labels: Ints, attributes: Ints, size: int, noise: float
) -> npt.NDArray[np.uint8]:
    """Pictures (n, 3, size, size): a dark shape, randomly placed and sized, on the attribute's colour."""
    count = len(labels)
    radius = rng.uniform(0.18, 0.32, size=(count, 1, 1)) * size
    centre = rng.uniform(0.36, 0.64, size=(2, count, 1, 1)) * size
    rows, columns = np.mgrid[:size, :size] + 0.5
    down, across = np.abs(rows - centre[0]), np.abs(columns - centre[1])
    distance = np.hypot(down, across)
    inside = np.maximum(down, across) <= 0.9 * radius
    masks = {
        "disc": distance <= radius,
        "square": inside,
        "cross": inside & (np.minimum(down, across) <= 0.3 * radius),
        "ring": (distance <= radius) & (distance >= 0.55 * radius),
    }
    shape = np.choose(labels[:, None, None], [masks[name] for name in SHAPES])
    pictures = np.where(shape[:, None], np.float32(40), _COLOURS[attributes][:, :, None, None])
    pictures = pictures + noise * rng.standard_normal(pictures.shape, dtype=np.float32)
    finished: npt.NDArray[np.uint8] = np.clip(np.rint(pictures), 0, 255).astype(np.uint8)
    return finished
