"""Late fusion of image and text: one branch each, their outputs concatenated before the classifier."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models.base import image_size, models, unfit, vector_width
from muster.models.bert import BertEncoder, pretrained_encoder
from muster.models.freezing import Split
from muster.models.group_norm_cnn import convolutions
from muster.models.resnet import ResNet, resnet18, resnet50
from muster.models.weights import load_backbone

_RESNETS = {"resnet18": resnet18, "resnet50": resnet50}


class LateFusion(nn.Module):
    """Splits a sample into image and text, encodes both, and classifies the two encodings together."""

    def __init__(
        self,
        image_shape: tuple[int, ...],
        text_width: int,
        classes: int,
        width: int,
        *,
        image_encoder: ResNet | None = None,
        text_encoder: BertEncoder | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        #: Networks of their own whose outputs are encoded further; None: pixels and numbers are.
        self.image_encoder, self.text_encoder = image_encoder, text_encoder
        encoder: list[nn.Module]
        if image_encoder is not None:
            encoder = [nn.Linear(image_encoder.width, width)]
        elif len(image_shape) == 3:
            channels, _, _ = image_size("late-fusion", image_shape, smallest=4)
            encoder = [*convolutions(channels, (32, 64, 128), groups=8), nn.Linear(128, width)]
        else:
            encoder = [nn.Linear(math.prod(image_shape), width)]
        self.image = nn.Sequential(*encoder, nn.ReLU())
        text_numbers = text_width if text_encoder is None else text_encoder.width
        self.text = nn.Sequential(nn.Linear(text_numbers, width), nn.ReLU())
        self.fc = nn.Linear(2 * width, classes)

    @property
    def backbone_parts(self) -> tuple[str, ...]:
        """What `freeze = "backbone"` means."""
        return tuple(name for name in ("image_encoder", "text_encoder") if getattr(self, name) is not None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image, text = apart(x, self.image_shape)
        if self.image_encoder is not None:
            image = self.image_encoder(image)
        if self.text_encoder is not None:
            text = self.text_encoder(text.long())
        logits: torch.Tensor = self.fc(torch.cat([self.image(image), self.text(text)], dim=1))
        return logits

    def split_frozen(self) -> Split | None:
        """Encoders nothing of which is trained come first; the rest takes their vectors."""
        frozen = [name for name in self.backbone_parts if _is_frozen(self.get_submodule(name))]
        if not frozen:
            return None
        rest = copy.deepcopy(self)
        for name in frozen:
            setattr(rest, name, None)
        if "image_encoder" in frozen:
            assert self.image_encoder is not None
            rest.image_shape = (self.image_encoder.width,)
        return Split(FrozenEncoders(self, frozen), rest)


def apart(x: torch.Tensor, image_shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures (or features of them) and texts of samples."""
    pixels = math.prod(image_shape)
    image = x[:, :pixels].reshape(-1, *image_shape)
    if image.dim() == 4:
        image = image.contiguous(memory_format=torch.channels_last)
    return image, x[:, pixels:]


class FrozenEncoders(nn.Module):
    """Samples in which the vectors of frozen encoders replace what they encode."""

    def __init__(self, fusion: LateFusion, frozen: list[str]) -> None:
        super().__init__()
        self._image_shape = fusion.image_shape
        # What is trained does not belong here: features are the same, whatever it starts from.
        self.image_encoder = copy.deepcopy(fusion.image_encoder) if "image_encoder" in frozen else None
        self.text_encoder = copy.deepcopy(fusion.text_encoder) if "text_encoder" in frozen else None

    def extra_repr(self) -> str:
        return f"image_shape={self._image_shape}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image, text = apart(x, self._image_shape)
        if self.image_encoder is not None:
            image = self.image_encoder(image)
        if self.text_encoder is not None:
            text = self.text_encoder(text.long())
        return torch.cat([image.flatten(1), text], dim=1)


def _is_frozen(part: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in part.parameters())


@models.register("late-fusion")
def late_fusion(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    image_shape: tuple[int, ...],
    text_width: int | None = None,
    width: int = 128,
    image_encoder: Literal["small", "resnet18", "resnet50"] = "small",
    image_weights: str | None = None,
    text_encoder: Literal["features", "bert"] = "features",
    text_folder: str = "minilm",
    text_pooling: Literal["cls", "mean"] = "cls",
) -> nn.Module:
    """Image and text together: a sample is the image (pixels or features), then the text (an embedding or ids).

    `image_shape` is (channels, height, width) for pixels, or (features,) for features of a frozen image encoder.
    `text_width` is how many numbers the text has (None: all others). Pixels are encoded by a small network with
    group normalisation, or by a ResNet that starts from `image_weights`; ids of word pieces by the BERT in
    `text_folder`. `freeze = "backbone"`, or `["image_encoder"]`, leaves ResNet and BERT as they come.
    """
    length = vector_width("late-fusion", input_shape, "one vector: the image, then the text")
    numbers = length - math.prod(image_shape) if text_width is None else text_width
    if len(image_shape) not in (1, 3) or min(*image_shape, width) < 1 or (text_width or 1) < 1:
        raise ConfigError(
            f"late-fusion: image_shape {image_shape}, text_width {text_width}, width {width}",
            expected="image_shape (channels, height, width) or (features,), and positive widths",
        )
    if numbers < 1 or math.prod(image_shape) + numbers != length:
        wanted = f"{math.prod(image_shape)} + {text_width or 'some'} numbers per sample"
        raise unfit("late-fusion", input_shape, f"{wanted} (pictures of another size? data.image_size)")
    if image_weights is not None and image_encoder == "small":
        raise ConfigError(
            "late-fusion: image_weights for the small image encoder", fix="set image_encoder, or leave them out"
        )
    resnet = None if image_encoder == "small" else _resnet(image_encoder, image_shape, image_weights)
    made = None if text_encoder == "features" else pretrained_encoder(text_folder, numbers, text_pooling)
    fusion = LateFusion(
        image_shape, numbers, classes, width, image_encoder=resnet, text_encoder=made[0] if made else None
    )
    fusion.pretrained_inside = image_weights is not None or made is not None  # type: ignore[assignment]
    # Encoders that are as good as their weights, and have none.
    fusion.random_parts = ("image_encoder",) if resnet is not None and image_weights is None else ()  # type: ignore[assignment]
    if made:
        # Which tokens the ids of a sample must stand for.
        fusion.vocabulary, fusion.token_count = made[1].digest, len(made[1].tokens)  # type: ignore[assignment]
    return fusion


def _resnet(name: str, image_shape: tuple[int, ...], weights: str | None) -> ResNet:
    """A ResNet that gives vectors."""
    made = _RESNETS[name](image_shape, 1)
    assert isinstance(made, ResNet)
    made.fc = nn.Identity()  # type: ignore[assignment]
    if weights is not None:
        load_backbone(made, weights, head="fc")
    return made
