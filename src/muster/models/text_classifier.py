"""Text classification: a head on embeddings of a frozen encoder, or an encoder that is trained with it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models.base import models, vector_width
from muster.models.mlp import mlp


class BagEncoder(nn.Module):
    """The mean of the tokens' embeddings; id 0 is padding."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(vocabulary, width, mode="mean", padding_idx=0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.tokens(tokens)
        return vectors


class TransformerEncoder(nn.Module):
    """A small transformer encoder (Vaswani et al., 2017), averaged over the tokens that are not padding (id 0)."""

    def __init__(
        self, vocabulary: int, length: int, *, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        # Attention over nothing is not a number: an empty text keeps its first padding token.
        padding[:, 0] &= ~padding.all(dim=1)
        embedded = self.tokens(tokens) + self.positions.weight
        kept = (~padding).unsqueeze(2).float()
        states = self.layers(embedded, src_key_padding_mask=padding) * kept
        pooled: torch.Tensor = states.sum(dim=1) / kept.sum(dim=1)
        return pooled


@models.register("text-classifier")
def text_classifier(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    encoder: Literal["frozen", "bag", "transformer"] = "frozen",
    hidden: tuple[int, ...] = (256,),
    vocabulary: int = 30522,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.1,
) -> nn.Module:
    """A perceptron on sentence embeddings (`encoder = "frozen"`) or on a trained encoder of token ids.

    `vocabulary` and `width` are of the trained encoders; `layers`, `heads` and `dropout` of the transformer.
    """
    length = vector_width("text-classifier", input_shape, "embeddings or token ids, one-dimensional")
    if encoder == "frozen":
        return mlp(input_shape, classes, hidden)
    head = mlp((width,), classes, hidden)
    if encoder == "bag":
        return nn.Sequential(BagEncoder(vocabulary, width), head)
    if width % heads:
        raise ConfigError(
            f"text-classifier: width {width} with {heads} heads", expected="heads that divide the width"
        )
    body = TransformerEncoder(vocabulary, length, width=width, layers=layers, heads=heads, dropout=dropout)
    return nn.Sequential(body, head)
