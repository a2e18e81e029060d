"""Speeches from the plain text of plays, by speaker."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

_HEADING = re.compile(r"^((ACT|SCENE|PROLOGUE|INDUCTION|EPILOGUE)\b|(THE END|FINIS)\.?$)", re.IGNORECASE)
_FIRST_ACT = re.compile(r"^(ACT\s+(I|1|ONE|FIRST)\b|INDUCTION\b|PROLOGUE\b)", re.IGNORECASE)
#: THESEUS, FIRST WITCH., QUINTUS & MARTIUS.
_CAPITALS = re.compile(r"^[A-Z][A-Z'’,&. -]*[A-Z]\.?$")
#: Ham., Lady Montague., 1 Clown.
_ABBREVIATED = re.compile(r"^(\d |[A-Z] )?[A-Z][A-Za-z'’-]*( [A-Za-z][A-Za-z'’-]*){0,3}\.$")
_NUMERAL = re.compile(r"^[IVXLC]+$")
_DIRECTION = re.compile(r"\[[^\]]*\]")
_LINE_OF_DIRECTION = re.compile(r"^[ \t]*\[[^\]]*\][ \t]*\n", re.MULTILINE)
_NOT_SPEAKERS = {"SONG", "EXEUNT", "EXIT", "CURTAIN", "DRAMATIS PERSONAE"}


def is_play(text: str) -> bool:
    """Plays have acts; poems have none."""
    return any(_FIRST_ACT.match(line.strip()) for line in text.splitlines())


def speeches(text: str) -> dict[str, list[str]]:
    """What each speaker of a play says, speech by speech, without stage directions.

    A speaker is a separate line after an empty line and before a speech: a name in capitals, or a name in
    ordinary letters that ends with a full stop. Names of the second kind must occur at least twice, because a
    short sentence at the start of a paragraph looks the same.
    """
    # Whole lines of stage directions are removed, so that a name before one still precedes its speech.
    spoken_text = _DIRECTION.sub("", _LINE_OF_DIRECTION.sub("", text))
    lines = [re.sub(r"\s+", " ", line).strip() for line in spoken_text.splitlines()]
    start = next((i for i, line in enumerate(lines) if _FIRST_ACT.match(line)), len(lines))
    lines = ["", *lines[start:], ""]
    candidates = {
        i: line.rstrip(".").upper()
        for i, line in enumerate(lines[:-1])
        if line and not lines[i - 1] and lines[i + 1] and _may_be_speaker(line)
    }
    often = Counter(candidates.values())
    speakers = {i: name for i, name in candidates.items() if _CAPITALS.match(lines[i]) or often[name] > 1}
    said: dict[str, list[str]] = defaultdict(list)
    current: list[str] | None = None
    for i, line in enumerate(lines):
        if i in speakers:
            current = said[speakers[i]]
            current.append("")
        elif _HEADING.match(line) and not lines[i - 1]:
            current = None
        elif current is not None and line:
            current[-1] = f"{current[-1]}\n{line}" if current[-1] else line
    return {name: [speech for speech in spoken if speech] for name, spoken in said.items()}


def _may_be_speaker(line: str) -> bool:
    name = line.rstrip(".").upper()
    if name in _NOT_SPEAKERS or _NUMERAL.match(name) or _HEADING.match(line) or len(line) > 40:
        return False
    return bool(_CAPITALS.match(line) or _ABBREVIATED.match(line))
