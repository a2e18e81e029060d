"""Content diversity: how different a client's samples are from each other (Li et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.signals._evaluation import evaluated
from muster.signals.base import Range, Signal, signals
from muster.training.context import ClientContext

PROJECTED = 64


def diversity(embeddings: torch.Tensor) -> float:
    """One minus the mean cosine of two different rows; 0 for a single row. O(rows × columns)."""
    rows = len(embeddings)
    if rows < 2:
        return 0.0
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
    # A row of zeros has no direction: it is similar to none, itself included.
    own = float(unit.square().sum())
    return 1.0 - (float(unit.sum(dim=0).square().sum()) - own) / (rows * (rows - 1))


@lru_cache(maxsize=4)
def _projection(width: int) -> torch.Tensor:
    # The same for all clients and runs: a coordinate system, not a source of randomness.
    draws = generator(0, "content diversity projection", width).standard_normal((width, PROJECTED))
    return torch.from_numpy(draws / np.sqrt(PROJECTED)).float()


@signals.register("content_diversity")
@dataclass(frozen=True)
class ContentDiversity(Signal):
    """One minus the mean cosine similarity between the embeddings of two local samples."""

    name: ClassVar[str] = "content_diversity"
    discloses: ClassVar[str] = "how unlike each other the client's samples are (one number)"

    #: "features": what enters the classification layer of the global model; "input": a fixed random projection of
    #: the samples, which needs no model.
    emb: Literal["features", "input"] = "features"

    @property
    def uses_model(self) -> bool:  # type: ignore[override]
        return self.emb == "features"

    @property
    def evaluates(self) -> bool:  # type: ignore[override]
        return self.uses_model

    @property
    def embeds(self) -> bool:  # type: ignore[override]
        return self.uses_model

    def unavailable(self, population: Population) -> str | None:
        if self.uses_model:
            try:
                _ = population.spec.final_weight
            except ConfigError as error:
                return error.problem
        return None

    def allowed(self, population: Population) -> Range:
        return Range(0.0, 2.0)

    def measure(self, client: ClientContext) -> Floats:
        if self.uses_model:
            embeddings = evaluated(client, embeds=True).embeddings
            assert embeddings is not None
            return np.array([diversity(embeddings)])
        flat = client.features.flatten(1).float()
        return np.array([diversity(flat @ _projection(flat.shape[1]).to(flat.device))])
