"""Draws docs/images/rhythm.png: the recorded sessions of 100 devices beside the rhythm that was fitted to them.

MUSTER_DATA=… python tools/rhythm_figure.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from muster.core.arrays import Floats, Ints
from muster.world import traces
from muster.world.availability import _rhythm_fit as fitting
from muster.world.availability.rhythm import DAY, Characters, RhythmFollower, fitted

matplotlib.use("agg")
import matplotlib.pyplot as plt

TARGET = Path(__file__).parents[1] / "docs" / "images" / "rhythm.png"
CLIENTS = 2_000


def simulated(characters: Characters, periods: Floats) -> tuple[Floats, Floats]:
    """Lengths of simulated sessions, and the share of a week that each client is online."""
    watched: Ints = periods[np.arange(CLIENTS) % len(periods)].astype(np.int64)
    _, lengths = fitting.simulated_lengths(characters, watched, seed=1)
    looks, following = np.arange(0, 7 * DAY, 600), RhythmFollower(characters, CLIENTS, seed=1)
    online = sum(following(float(now), np.arange(CLIENTS))[0].astype(np.float64) for now in looks)
    return lengths, np.asarray(online / len(looks))


def main() -> None:
    recorded, rhythm = traces.sessions("fedscale_100_clients.json"), fitted()
    devices = range(len(recorded))
    real_lengths = np.concatenate([fitting.lengths(recorded, device)[0] for device in devices])
    real_shares = np.array([fitting.lengths(recorded, d)[0].sum() / recorded.period[d] for d in devices])
    lengths, shares = simulated(rhythm, recorded.period)

    figure, (hours, sessions, clients) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    halves = [
        fitting.hourly_shares(
            traces.Sessions(
                np.concatenate([[0], np.cumsum([len(recorded.of(d)[0]) for d in half])]).astype(np.int64),
                np.concatenate([recorded.of(d)[0] for d in half]),
                np.concatenate([recorded.of(d)[1] for d in half]),
                recorded.period[list(half)],
            )
        )
        for half in (range(0, 100, 2), range(1, 100, 2))
    ]
    middle = np.arange(24) + 0.5
    hours.fill_between(middle, *halves, color="0.85", label="between two halves of the devices")
    hours.plot(middle, fitting.hourly_shares(recorded), color="0.3", label="100 devices")
    hours.plot(middle, fitting.simulated_shares(rhythm, 4_000, seed=1), color="C0", label="rhythm")
    hours.set(xlabel="hour of the recording's day", ylabel="share online", ylim=(0.5, 0.9), xticks=range(0, 25, 6))
    hours.legend(frameon=False, fontsize=8)
    for axes, real, ours, label in (
        (sessions, real_lengths, lengths, "length of a session (s)"),
        (clients, real_shares, shares, "share of the time that a client is online"),
    ):
        for values, colour in ((real, "0.3"), (ours, "C0")):
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), color=colour)
        axes.set(xlabel=label, ylabel="cumulative share", ylim=(0, 1))
    sessions.set_xscale("log")
    for axes in (hours, sessions, clients):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, dpi=110)


if __name__ == "__main__":
    main()
