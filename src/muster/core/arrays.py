"""Names for the arrays that travel through Muster."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

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

Array = TypeVar("Array", bound=np.ndarray[Any, Any])


def plain(value: Any) -> Any:
    """The same with lists and Python numbers in place of arrays, as JSON needs it."""
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case np.ndarray() | np.generic():
            return value.tolist()
    return value


def among(ids: Ints, ascending: Ints) -> Bools:
    """Which of `ids` are there, without sorting what may be millions.

    >>> among(np.array([4, 1, 9]), np.array([1, 3, 4])).tolist()
    [True, True, False]
    """
    if not len(ascending):
        return np.zeros(len(ids), dtype=np.bool_)
    place = np.searchsorted(ascending, ids)
    # Whoever is beyond the last is compared with the last.
    place[place == len(ascending)] -= 1
    return np.asarray(ascending[place] == ids)


def read_only(array: Array) -> Array:
    """A view that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
