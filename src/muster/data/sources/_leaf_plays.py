"""LEAF's names of Shakespeare's speakers: a play's title and a speaker, joined by underscores."""

from __future__ import annotations

import re

from muster.core.errors import DataError

#: The titles in the edition that LEAF was made from; no name says where the title ends and the speaker begins.
TITLES = (
    "A Midsummer Night's Dream",
    "Alls Well That Ends Well",
    "As You Like It",
    "Cymbeline",
    "King Henry the Eighth",
    "King John",
    "King Richard III",
    "King Richard the Second",
    "Love's Labour's Lost",
    "Measure for Measure",
    "Much Ado About Nothing",
    "Pericles, Prince of Tyre",
    "Second Part of King Henry IV",
    "The Comedy of Errors",
    "The First Part of Henry the Sixth",
    "The First Part of King Henry the Fourth",
    "The History of Troilus and Cressida",
    "The Life of King Henry the Fifth",
    "The Life of Timon of Athens",
    "The Merchant of Venice",
    "The Merry Wives of Windsor",
    "The Second Part of King Henry the Sixth",
    "The Taming of the Shrew",
    "The Tempest",
    "The Third Part of King Henry the Sixth",
    "The Tragedy of Antony and Cleopatra",
    "The Tragedy of Coriolanus",
    "The Tragedy of Hamlet, Prince of Denmark",
    "The Tragedy of Julius Caesar",
    "The Tragedy of King Lear",
    "The Tragedy of Macbeth",
    "The Tragedy of Othello, Moor of Venice",
    "The Tragedy of Romeo and Juliet",
    "The Tragedy of Titus Andronicus",
    "The Two Gentlemen of Verona",
    "The Winter's Tale",
    "Twelfth Night; Or, What You Will",
)


def _words(name: str) -> str:
    # Anything but a letter or digit is one or more underscores in LEAF: versions differ.
    return re.sub(r"[^A-Z0-9]+", " ", name.upper()).strip()


_PREFIXES = tuple(f"{_words(title)} " for title in TITLES)


def speaker_of(name: str) -> str:
    """The speaker in a name such as `THE_TRAGEDY_OF_HAMLET__PRINCE_OF_DENMARK_HORATIO`."""
    words = _words(name)
    for prefix in _PREFIXES:
        if words.startswith(prefix):
            return words.removeprefix(prefix)
    raise DataError(
        f"'data.merge_plays' is true, but '{name}' does not begin with the title of a play of Shakespeare",
        expected="names as in LEAF, for example THE_TRAGEDY_OF_MACBETH_BANQUO",
        fix="leave merge_plays out: then every name is a separate client",
    )
