"""Decoding pictures (JPEG, PNG) into one array of bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from muster.core.errors import DataError

#: Mean and deviation of ImageNet's pictures, which networks that were pretrained on them expect.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
#: How much larger than wanted a picture is made before its middle is cut out, as evaluation on ImageNet does.
MARGIN = 256 / 224


def is_jpeg(content: bytes) -> bool:
    """Whether a picture was compressed with losses, by the bytes that JPEG files start with."""
    return content.startswith(b"\xff\xd8\xff")


def picture(
    content: bytes | Path, mode: str, size: int | None = None, margin: float = 1.0
) -> npt.NDArray[np.uint8]:
    """A picture as (channels, height, width); with `size`, scaled to it and cropped to its middle square.

    `margin` is how much larger than the crop the picture's shorter side is made first.
    """
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            converted = image.convert(mode)
    except Exception as problem:  # decoders raise what they like for damaged files
        where = "a picture" if isinstance(content, bytes) else str(content)
        raise DataError(
            f"cannot decode {where}: {problem}",
            fix="repair the file or take it out; if it was downloaded, fetch it again",
        ) from problem
    if size is not None and (converted.size != (size, size) or margin != 1.0):
        scale = size * margin / min(converted.size)
        width, height = (max(size, round(side * scale)) for side in converted.size)
        left, top = (width - size) // 2, (height - size) // 2
        resized = converted.resize((width, height), Image.Resampling.BILINEAR)
        converted = resized.crop((left, top, left + size, top + size))
    pixels = np.asarray(converted)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def fill_pictures(
    target: npt.NDArray[np.uint8], contents: Sequence[bytes | Path], margin: float | None = None, start: int = 0
) -> None:
    """Decode pictures into rows `start`, `start + 1`, … of `target` (n, channels, height, width), on all cores.

    With a `margin`, pictures may be of any size and are scaled and cropped; without, all must be of the target's.
    """
    channels, height, _ = target.shape[1:]
    mode = "L" if channels == 1 else "RGB"

    def decode(position: int) -> None:
        pixels = picture(contents[position], mode, None if margin is None else height, margin or 1.0)
        if pixels.shape != target.shape[1:]:
            raise DataError(
                f"picture {start + position} is {pixels.shape[1:]}", expected=f"{target.shape[2:]} like the others"
            )
        target[start + position] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(decode, range(len(contents))):
            pass


def pictures_in(folder: Path) -> list[Path]:
    """The pictures directly in a folder, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
