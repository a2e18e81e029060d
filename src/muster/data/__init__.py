"""Data sets and how they are divided among clients."""

from muster.data.federated import Dataset, FederatedData, Index, Normalisation, Samples
from muster.data.own import from_arrays, from_folder, from_huggingface, from_pandas, from_torch

__all__ = [
    "Dataset",
    "FederatedData",
    "Index",
    "Normalisation",
    "Samples",
    "from_arrays",
    "from_folder",
    "from_huggingface",
    "from_pandas",
    "from_torch",
]
