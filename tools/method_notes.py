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
_FORMULA = re.compile(r"\$([^$]+)\$")
#: What a terminal shows for the little LaTeX that these sections have.
_SIGNS = {r"\lVert ": "‖", r" \rVert": "‖", "_1": "₁"}


def notes() -> dict[str, dict[str, str]]:
    """Page → what it says about cost and reference, without links and LaTeX; what it does not say is empty."""
    found = {}
    for page in sorted((ROOT / "docs" / "methods").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        found[page.stem] = {"cost": _first(_COST, text), "reference": " ".join(_first(_REFERENCE, text).split())}
    del found["index"]
    return found


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return plain(_LINK.sub(r"\1", match.group(1)).strip()) if match else ""


def plain(text: str) -> str:
    """The text with formulas as a terminal can show them."""

    def signs(formula: re.Match[str]) -> str:
        shown = formula[1]
        for latex, sign in _SIGNS.items():
            shown = shown.replace(latex, sign)
        if "\\" in shown or "{" in shown:
            raise ValueError(f"a terminal cannot show {formula[0]}: write it in words, or give its sign to _SIGNS")
        return shown

    return _FORMULA.sub(signs, text)


def text() -> str:
    return json.dumps(notes(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTES.write_text(text(), encoding="utf-8")
