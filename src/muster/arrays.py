"""Names for the arrays that travel through Muster."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: Client ids, sample indices, counts.
Ints: TypeAlias = npt.NDArray[np.int64]
#: Everything that is computed about clients: scores, norms, probabilities.
Floats: TypeAlias = npt.NDArray[np.float64]
#: Model parameters and movements, flat.
Vector: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]
#: What a component keeps between rounds: nested dicts and lists of arrays, numbers, strings and None.
State: TypeAlias = dict[str, Any]
