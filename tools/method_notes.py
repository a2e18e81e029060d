"""What `muster show METHOD` says about cost and reference, taken from the methods' pages, which are not installed.

Run it after a page has changed: `python tools/method_notes.py` (tests/docs/test_docs.py compares).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "src" / "muster" / "cli" / "method_notes.json"
_COST = re.compile(r"^## (?:What it asks of clients[^\n]*|Cost)\n+(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_REFERENCE = re.compile(r"^(?:## References?\n+|References?: )(.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def notes() -> dict[str, dict[str, str]]:
    """Page → what it says about cost and reference, in Markdown without links; what it does not say is empty."""
    found = {}
    for page in sorted((ROOT / "docs" / "methods").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        found[page.stem] = {"cost": _first(_COST, text), "reference": " ".join(_first(_REFERENCE, text).split())}
    del found["index"]
    return found


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return _LINK.sub(r"\1", match.group(1)).strip() if match else ""


def text() -> str:
    return json.dumps(notes(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTES.write_text(text(), encoding="utf-8")
