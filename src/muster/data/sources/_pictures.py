"""Decoding pictures (JPEG, PNG) into one array of bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from muster.core.errors import DataError

#: Mean and deviation of ImageNet's pictures, which networks that were pretrained on them expect.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
#: How much larger than wanted a picture is made before its middle is cut out, as evaluation on ImageNet does.
MARGIN = 256 / 224
#: How the names of Pillow's modes with more than 8 bits for a colour begin.
_DEEP = ("I", "F")


def is_jpeg(content: bytes) -> bool:
    """Whether a picture was compressed with losses, by the bytes that JPEG files start with."""
    return content.startswith(b"\xff\xd8\xff")


def picture(
    content: bytes | Path, mode: str, size: int | None = None, margin: float = 1.0, *, called: str = ""
) -> npt.NDArray[np.uint8]:
    """A picture as (channels, height, width); with `size`, scaled to it and cropped to its middle square.

    `margin` is how much larger than the crop the picture's shorter side is made first; `called` names the picture
    in messages, where it is no file.
    """
    called = called or ("a picture" if isinstance(content, bytes) else str(content))
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            depth, converted = image.mode, image.convert(mode)
    except Exception as problem:  # decoders raise what they like for damaged files
        raise DataError(
            f"cannot decode {called}: {_reason(content, problem)}",
            fix="repair the file or take it out; if it was downloaded, fetch it again",
        ) from problem
    if depth.startswith(_DEEP):
        raise DataError(
            f"{called} has more than 8 bits for a pixel (mode {depth})",
            expected="8 bits: all that is brighter would become white",
            fix="convert it, with a scale that suits the data, or hand over arrays (muster.data.from_arrays)",
        )
    if size is not None and (converted.size != (size, size) or margin != 1.0):
        scale = size * margin / min(converted.size)
        width, height = (max(size, round(side * scale)) for side in converted.size)
        left, top = (width - size) // 2, (height - size) // 2
        resized = converted.resize((width, height), Image.Resampling.BILINEAR)
        converted = resized.crop((left, top, left + size, top + size))
    pixels = np.asarray(converted)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _reason(content: bytes | Path | None, problem: Exception) -> str:
    if content is None:  # a gap in a column
        return "there is none"
    if isinstance(problem, UnidentifiedImageError):  # its text has the name again, or a place in memory
        return "it is no picture of a known kind"
    return problem.strerror or str(problem) if isinstance(problem, OSError) else str(problem)


def fill_pictures(
    target: npt.NDArray[np.uint8],
    contents: Sequence[bytes | Path],
    margin: float | None = None,
    start: int = 0,
    *,
    names: Sequence[str] = (),
) -> None:
    """Decode pictures into rows `start`, `start + 1`, … of `target` (n, channels, height, width), on all cores.

    With a `margin`, pictures may be of any size and are scaled and cropped; without, all must be of the target's.
    `names` are what messages call them (default: the files, or their rows).
    """
    channels, height, _ = target.shape[1:]
    mode = "L" if channels == 1 else "RGB"

    def decode(position: int) -> None:
        content = contents[position]
        called = (
            names[position]
            if names
            else str(content)
            if isinstance(content, Path)
            else f"picture {start + position}"
        )
        pixels = picture(content, mode, None if margin is None else height, margin or 1.0, called=called)
        if pixels.shape != target.shape[1:]:
            raise DataError(
                f"{called} has {pixels.shape[2]} × {pixels.shape[1]} pixels",
                expected=f"{target.shape[3]} × {target.shape[2]}, like the others",
            )
        target[start + position] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(decode, range(len(contents))):
            pass


def pictures_in(folder: Path) -> list[Path]:
    """The pictures directly in a folder, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
