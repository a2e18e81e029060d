"""How an optimiser accumulates gradients: what FedNova and SCAFFOLD divide a local movement by.

From the global model w, local steps arrive at w − η Σ_s a_s g_s. Gradients g_s enter with coefficients a_s that
depend on the optimiser alone: one each for plain SGD, more with momentum, less with a term that pulls back to w.
Their sum is what a constant gradient would have been multiplied by. (It is the literature's ‖a‖₁ wherever no
coefficient is negative. With momentum *and* a strong pull some are: only the signed sum recovers a constant
gradient.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints


def accumulation_norm(
    steps: Ints | int,
    *,
    lr: Floats | float,
    momentum: float = 0.0,
    pull: Floats | float = 0.0,
    nesterov: bool = False,
    restart: Ints | int = 0,
) -> Floats:
    """Σ_s a_s of `steps` steps of PyTorch's SGD (without dampening), for each client.

    `pull` is the strength μ of a term (μ/2)‖w − w_global‖². Weight decay λ is one too: λw = λ(w − w_global) plus a
    part that is constant over the training, and so belongs to the gradient. After `restart` steps the optimiser
    forgot its velocity. All but `momentum` and `nesterov` may be one value or one for each client.
    """
    steps, shrink, restart = np.broadcast_arrays(steps, np.multiply(lr, pull, dtype=np.float64), restart)
    if not momentum and not shrink.any():
        return steps.astype(np.float64)
    one_step = _one_step(shrink, momentum, nesterov)
    start = np.zeros((*steps.shape, 3, 1))
    start[..., 2, 0] = 1.0
    before = np.minimum(restart, steps)
    there = _power(one_step, before) @ start
    there[..., 0, 0] = 0.0
    result: Floats = (_power(one_step, steps - before) @ there)[..., 1, 0]
    return result


def _one_step(shrink: Floats, momentum: float, nesterov: bool) -> Floats:
    """One step on the constant gradient 1, as a matrix on (velocity, distance in units of the rate, 1).

    g = 1 − ημ·way; velocity ← ρ·velocity + g; way ← way + velocity, or with Nesterov way + g + ρ·velocity.
    """
    matrix = np.zeros((*shrink.shape, 3, 3))
    look_ahead = 1.0 + momentum if nesterov else 1.0
    matrix[..., 0, 0] = momentum
    matrix[..., 0, 1] = -shrink
    matrix[..., 0, 2] = 1.0
    matrix[..., 1, 0] = momentum**2 if nesterov else momentum
    matrix[..., 1, 1] = 1.0 - look_ahead * shrink
    matrix[..., 1, 2] = look_ahead
    matrix[..., 2, 2] = 1.0
    return matrix


def _power(matrices: Floats, exponents: npt.NDArray[np.integer]) -> Floats:
    """Each matrix to its own power, by repeated squaring: log₂ of the largest number of steps, not that number."""
    result = np.broadcast_to(np.eye(matrices.shape[-1]), matrices.shape).copy()
    square, left = matrices, exponents
    while left.any():
        odd = left % 2 == 1
        result[odd] = square[odd] @ result[odd]
        left = left // 2
        if left.any():
            square = square @ square
    return result
