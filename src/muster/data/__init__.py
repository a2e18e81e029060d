"""Data sets and their division over clients."""

from muster.data.federated import Dataset, FederatedData, Index, Normalisation, Samples

__all__ = ["Dataset", "FederatedData", "Index", "Normalisation", "Samples"]
