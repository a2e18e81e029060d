"""Fits the rhythm to recorded sessions (run by `tools/device_tables.py`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.world import traces
from muster.world.availability.rhythm import HOUR, Characters, Playback, lives, played_until, states, until_change

#: Quantiles a device. One session in a hundred may last longer than all others together: with steps of a twentieth
#: its length would be spread over five.
QUANTILES = 101
#: Simulated clients and rounds of the search for the rhythm.
_CLIENTS, _ROUNDS = 2_000, 8
_DAYS = 1


def fit(recorded: traces.Sessions) -> Characters:
    """Characters from each device's own sessions and gaps; the rhythm such that hours have their real shares."""
    steps = np.linspace(0, 1, QUANTILES)
    devices = [device for device in range(len(recorded)) if len(recorded.of(device)[0])]
    # Lengths as recorded: between those of a device with few sessions, interpolation would take a part of the
    # longest, and its sessions would come more often.
    sessions, gaps = (
        np.array(
            [np.quantile(lengths(recorded, device)[which], steps, method="inverted_cdf") for device in devices]
        )
        for which in (0, 1)
    )
    found = Characters(sessions, gaps, np.zeros(24))
    real = hourly_shares(recorded)
    for _ in range(_ROUNDS):
        error = _logit(real) - _logit(simulated_shares(found, _CLIENTS, seed=0))
        # Longer gaps where too many are online. A bounded step each time: neighbouring hours answer together.
        found = replace(found, rhythm=np.clip(found.rhythm - error, -3, 3))
    return found


def lengths(recorded: traces.Sessions, device: int) -> tuple[Floats, Floats]:
    """Seconds of a device's sessions and of the gaps after them (the last one continues into the next period)."""
    begin, end = recorded.of(device)
    return end - begin, np.append(begin[1:], begin[:1] + recorded.period[device]) - end


def hourly_shares(recorded: traces.Sessions) -> Floats:
    """The share of each hour of the day that devices are online, every device counting alike."""
    shares = np.empty((len(recorded), 24))
    for device in range(len(recorded)):
        begin, end = recorded.of(device)
        edges = np.arange(0, recorded.period[device] + 1, HOUR)
        # Online seconds before each edge, from the sessions before it and the part of the one around it.
        before = np.array([np.clip(np.minimum(end, edge) - begin, 0, None).sum() for edge in edges])
        hours = np.diff(before) / HOUR
        shares[device] = [hours[hour::24].mean() for hour in range(24)]
    means: Floats = shares.mean(axis=0)
    return means


def simulated_shares(characters: Characters, clients: int, seed: int, days: int = _DAYS) -> Floats:
    """The same of simulated clients, looked at in the middle of every hour of some days."""
    who = lives(characters, np.arange(clients), seed)
    hours: Ints = np.arange(days * 24)
    online = [states(characters, who, np.full(clients, hour * HOUR + HOUR // 2))[0].mean() for hour in hours]
    shares: Floats = np.array(online).reshape(days, 24).mean(axis=0)
    return shares


def simulated_lengths(characters: Characters, watched: Ints, seed: int) -> tuple[Ints, Floats]:
    """Whose each session of simulated clients is, and how long; client i is watched from time 0 to `watched[i]`.

    Sessions count from the moment at which they are first seen, as recorded ones do. What is still going on at the
    end does not count: no recording ends with a session.
    """
    clients = len(watched)
    who, played, now = (
        lives(characters, np.arange(clients), seed),
        Playback.nothing(clients),
        np.zeros_like(watched),
    )
    awake, owners, found = np.arange(clients), [], []
    while len(awake):
        some = who[awake]
        played[awake] = played_until(characters, some, now[awake], played[awake])
        online, change = until_change(characters, some, played[awake])
        whole = change <= watched[awake]
        counted = whole & online
        owners.append(awake[counted])
        found.append((change - now[awake])[counted])
        now[awake] = change
        awake = awake[whole]
    return np.concatenate(owners), np.concatenate(found).astype(np.float64)


def _logit(share: Floats) -> Floats:
    logit: Floats = np.log(share / (1 - share))
    return logit
