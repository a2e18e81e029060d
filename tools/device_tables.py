"""Makes the tables of devices that the package ships, from the public files in `$MUSTER_DATA/devices`.

    MUSTER_DATA=… python tools/device_tables.py

Run it again after a change here or in the fit of the rhythm; the tables are committed.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from muster.world import traces
from muster.world.availability import _rhythm_fit

PACKAGE = Path(__file__).parents[1] / "src" / "muster" / "world"


def write(path: Path, remarks: Sequence[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table whose first lines say where it comes from."""
    text = io.StringIO()
    text.writelines(f"# {remark}\n" for remark in remarks)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    folder = Path(os.environ["MUSTER_DATA"]) / "devices"
    phones = json.loads((folder / "venn_952_devices.json").read_text())
    write(
        PACKAGE / "devices" / "phones.csv",
        [
            "Time of an inference on 952 phones. Source: Venn (github.com/SymbioticLab/Venn), MIT License,",
            "see NOTICE. Kept: the name and the time ('speed'); left out: memory, operating system, CPU score.",
        ],
        ["phone", "milliseconds"],
        ([phone["device"], phone["speed"]] for phone in phones),
    )
    networks = json.loads((folder / "flash_speed_distri.json").read_text())
    columns = ["down_u", "down_sigma", "up_u", "up_sigma"]
    write(
        PACKAGE / "devices" / "networks.csv",
        [
            "Mean and standard deviation of 19 connections, kbit/s. Source: FLASH (github.com/PKU-Chengxu/FLASH),",
            "BSD 2-Clause License, see NOTICE. Kept: all numbers, to one decimal; left out: the ids.",
        ],
        ["down_mean", "down_spread", "up_mean", "up_spread"],
        ([f"{profile[column]:.1f}" for column in columns] for profile in networks.values()),
    )
    _rhythm_fit.fit(traces.sessions(str(folder / "fedscale_100_clients.json"))).write(
        PACKAGE / "availability" / "rhythm.csv"
    )


if __name__ == "__main__":
    main()
