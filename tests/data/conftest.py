"""For tests about data: no data and no cache of this machine's user."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from muster.data import locate


@pytest.fixture
def isolated(tmp_path, monkeypatch) -> Path:
    """An empty folder for data sets (MUSTER_DATA), with an empty cache beside it."""
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", {})
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MUSTER_DATA", str(folder))
    return folder


@pytest.fixture
def encoded():
    """Encodes an array (h, w) or (h, w, 3) as PNG, which loses nothing."""

    def encode(pixels: np.ndarray) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        return stream.getvalue()

    return encode


@pytest.fixture
def write_parquet(encoded):
    """Writes a Parquet file as the hub serves it: pictures as structs, class names in the schema."""

    def write(path: Path, pictures=None, picture_column: str = "image", names=None, **columns) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        table = {}
        if pictures is not None:
            table[picture_column] = [{"bytes": encoded(picture), "path": None} for picture in pictures]
        built = pa.table(table | columns)
        if names:
            import json

            features = {column: {"names": list(spelt), "_type": "ClassLabel"} for column, spelt in names.items()}
            built = built.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(built, path)

    return write
