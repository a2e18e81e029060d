"""Late fusion of image and text: one branch each, their outputs concatenated before the classifier."""

from __future__ import annotations

import math

import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models.base import image_size, models, unfit, vector_width
from muster.models.group_norm_cnn import convolutions


class LateFusion(nn.Module):
    """Splits a sample into image and text, encodes both, and classifies the two encodings together."""

    def __init__(self, image_shape: tuple[int, ...], text_width: int, classes: int, width: int) -> None:
        super().__init__()
        self.image_shape, self.pixels = image_shape, math.prod(image_shape)
        if len(image_shape) == 3:
            channels, _, _ = image_size("late-fusion", image_shape, smallest=4)
            encoder = [*convolutions(channels, (32, 64, 128), groups=8), nn.Linear(128, width)]
        else:
            encoder = [nn.Linear(self.pixels, width)]
        self.image = nn.Sequential(*encoder, nn.ReLU())
        self.text = nn.Sequential(nn.Linear(text_width, width), nn.ReLU())
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x[:, : self.pixels].reshape(-1, *self.image_shape)
        if image.dim() == 4:
            image = image.contiguous(memory_format=torch.channels_last)
        logits: torch.Tensor = self.fc(torch.cat([self.image(image), self.text(x[:, self.pixels :])], dim=1))
        return logits


@models.register("late-fusion")
def late_fusion(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    image_shape: tuple[int, ...],
    text_width: int,
    width: int = 128,
) -> nn.Module:
    """Image and text together: a sample is the image (pixels or features) followed by the text's embedding.

    `image_shape` is (channels, height, width) for pixels, which a small network with group normalisation encodes,
    or (features,) for features of a frozen image encoder. `text_width` is the length of the text's embedding.
    """
    length = vector_width("late-fusion", input_shape, "one vector: the image, then the text's embedding")
    if len(image_shape) not in (1, 3) or min(*image_shape, text_width, width) < 1:
        raise ConfigError(
            f"late-fusion: image_shape {image_shape}, text_width {text_width}, width {width}",
            expected="image_shape (channels, height, width) or (features,), and positive widths",
        )
    if math.prod(image_shape) + text_width != length:
        raise unfit("late-fusion", input_shape, f"{math.prod(image_shape)} + {text_width} numbers per sample")
    return LateFusion(image_shape, text_width, classes, width)
