"""A character-level LSTM that predicts the next character, as in LEAF (Caldas et al., 2018)."""

from __future__ import annotations

import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models.base import models, vector_width


class CharLSTM(nn.Module):
    """Embedding, LSTM over the window, and a dense layer on its last state."""

    def __init__(
        self, vocabulary: int, classes: int, *, embedding: int, hidden: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.fc(states[:, -1])
        return logits


@models.register("char-lstm")
def char_lstm(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    layers: int = 1,
    embedding: int = 32,
    hidden: int = 128,
    dropout: float = 0.0,
    vocabulary: int | None = None,
) -> nn.Module:
    """An LSTM over windows of character ids; `layers = 2` with `dropout` between them for the deeper form."""
    vector_width("char-lstm", input_shape, "windows of character ids, one-dimensional")
    if min(layers, embedding, hidden) < 1:
        raise ConfigError("char-lstm: layers, embedding and hidden must be 1 or more")
    if not 0 <= dropout < 1 or (dropout and layers == 1):
        raise ConfigError(
            f"char-lstm: dropout {dropout} with {layers} layer(s)", expected="0 ≤ dropout < 1, and 0 for one layer"
        )
    return CharLSTM(
        vocabulary or classes, classes, embedding=embedding, hidden=hidden, layers=layers, dropout=dropout
    )
