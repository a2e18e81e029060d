"""The environment of a run: versions of code and libraries, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch

from muster._version import __version__


@cache
def code_version() -> str:
    """Muster's version and, in a clone, the commit."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} ({described})"


@cache
def environment() -> dict[str, str]:
    """Libraries and machine, for people who want to know why two results differ."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
