"""How many samples of each group every client has, in the federations of FedDiverse (Németh et al., 2025).

One is ours: `pacs-gsc`, after the paper's `spawrious-gsc`.

A table has one row per class and one column per attribute value, and stands for `times` identical clients.
"""

from __future__ import annotations

from typing import TypeAlias

#: (times, table), in the order of the clients.
Blueprint: TypeAlias = tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]

_FIRST_CLASS, _SECOND_CLASS = ((90, 90), (10, 10)), ((10, 10), (90, 90))
_FIRST_VALUE, _SECOND_VALUE = ((90, 10), (90, 10)), ((10, 90), (10, 90))
_DIAGONAL, _COUNTER = ((90, 10), (10, 90)), ((10, 90), (90, 10))

_GSC: Blueprint = (
    (2, _FIRST_CLASS),
    (2, _SECOND_CLASS),
    (2, _FIRST_VALUE),
    (2, _SECOND_VALUE),
    (15, _DIAGONAL),
    (1, _COUNTER),
)

#: The same mix with 140 samples per client, as PACS has fewer pictures. Ours, not the paper's.
_GSC_140: Blueprint = (
    (2, ((63, 63), (7, 7))),
    (2, ((7, 7), (63, 63))),
    (2, ((63, 7), (63, 7))),
    (2, ((7, 63), (7, 63))),
    (15, ((63, 7), (7, 63))),
    (1, ((7, 63), (63, 7))),
)

blueprints: dict[str, Blueprint] = {
    "pacs-gsc": _GSC_140,
    "spawrious-gsc": _GSC,
    "cmnist-gsc": _GSC,
    "spawrious-gci": (
        (15, _FIRST_CLASS),
        (1, _SECOND_CLASS),
        (2, _FIRST_VALUE),
        (2, _SECOND_VALUE),
        (2, _DIAGONAL),
        (2, _COUNTER),
    ),
    "spawrious-gai": (
        (1, ((120, 5), (20, 10))),
        (1, ((120, 40), (5, 10))),
        (2, ((170, 5), (5, 5))),
        (2, ((5, 5), (170, 5))),
        (2, ((10, 30), (120, 10))),
        (2, ((80, 80), (20, 2))),
        (14, ((80, 15), (90, 2))),
        (1, ((110, 5), (85, 8))),
    ),
    "waterbirds-dist": (
        (1, ((23, 23), (10, 110))),
        (1, ((110, 23), (10, 23))),
        (1, ((89, 39), (1, 29))),
        (1, ((29, 39), (1, 89))),
        (1, ((81, 35), (9, 31))),
        (9, ((126, 1), (1, 31))),
        (16, ((127, 1), (1, 31))),
    ),
    "spawrious-4": (
        (2, ((20, 20), (20, 20), (5, 5), (5, 5))),
        (2, ((5, 5), (5, 5), (20, 20), (20, 20))),
        (2, ((20, 5), (20, 5), (20, 5), (20, 5))),
        (2, ((5, 20), (5, 20), (5, 20), (5, 20))),
        (1, ((5, 20), (5, 20), (20, 5), (20, 5))),
        (7, ((119, 5), (119, 5), (5, 119), (5, 119))),
        (9, ((118, 5), (118, 5), (5, 118), (5, 118))),
    ),
    "spawrious-gci-100": (
        (16, ((68, 68), (10, 10))),
        (1, ((10, 10), (68, 68))),
        (2, ((68, 10), (68, 10))),
        (2, ((10, 68), (10, 68))),
        (2, ((68, 10), (10, 68))),
        (2, ((10, 68), (68, 10))),
    )
    * 4,
}
