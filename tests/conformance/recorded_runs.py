"""Ten runs whose results are kept as digests: a change of the architecture must not change a single bit.

    python tests/conformance/recorded_runs.py            # compare
    python tests/conformance/recorded_runs.py --record   # after a change that is meant to change results

Bits depend on the processor and on the libraries, so there is a record for each combination they were made with.
Runs on a combination without a record are not compared bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import muster
from muster.experiment import from_dict

RECORD = Path(__file__).with_name("recorded_runs.json")

BASE: dict[str, Any] = {
    "rounds": 6,
    "seed": 7,
    "data": {"source": "digits"},
    "partition": {"scheme": "dirichlet", "clients": 30, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"lr": 0.05, "epochs": 2, "batch_size": 16},
    "selection": {"method": "random", "clients_per_round": 8},
    "aggregation": {"method": "fedavg"},
}

ONE_BY_ONE = {"engine": {"kind": "processes"}}
RUNS: dict[str, dict[str, Any]] = {
    "fedavg, vectorised": {},
    "fedavg, one by one": ONE_BY_ONE,
    "fedprox with momentum and Adam on the server": {
        **ONE_BY_ONE,
        "algorithm": {"method": "fedprox", "mu": 0.1},
        "training": {"lr": 0.05, "momentum": 0.9, "batch_size": 16},
        "aggregation": {"method": "fedadam", "server_lr": 0.01},
    },
    "terraform, several trainings a round": {"selection": {"method": "terraform", "clients_per_round": 12}},
    "power of choice asks before it trains": {"selection": {"method": "power-of-choice", "clients_per_round": 6}},
    "diversity score": {"selection": {"method": "diversity-score", "clients_per_round": 6}},
    "scaffold keeps state on clients": {
        **ONE_BY_ONE,
        "algorithm": {"method": "scaffold"},
        "aggregation": {"method": "scaffold"},
    },
    "median needs the whole matrix": {"aggregation": {"method": "median"}},
    "size-weighted with replacement and a Bernoulli availability": {
        "selection": {"method": "size-weighted", "clients_per_round": 8},
        "availability": {"method": "bernoulli"},
        "aggregation": {"method": "fedavgm"},
    },
    "convolutions with batch normalisation": {
        **ONE_BY_ONE,
        "rounds": 2,
        "model": {"name": "resnet20"},
        "training": {"lr": 0.05, "steps": 3, "batch_size": 8},
    },
}


def machine() -> dict[str, str]:
    """What bits depend on beside the code. Libraries choose their kernels by vendor and family, too."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "processor": " ".join([platform.machine(), capability, *_make()]),
    }


def _make() -> list[str]:
    """Vendor and family of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {key.strip(): value.strip() for key, value in facts.items()}
    return [found[key] for key in ("vendor_id", "cpu family") if key in found]


def recorded() -> dict[str, Any] | None:
    """The digests that were recorded on a machine like this one."""
    records = json.loads(RECORD.read_text())
    return next((record["runs"] for record in records if record["machine"] == machine()), None)


def any_record() -> dict[str, Any]:
    """The digests of some machine, for what does not depend on it."""
    runs: dict[str, Any] = json.loads(RECORD.read_text())[0]["runs"]
    return runs


def digest(changes: dict[str, Any], workers: int = 0) -> dict[str, Any]:
    """One run: digests of its parameters and selections, and its last accuracy for people."""
    result = muster.run(from_dict(BASE | changes), workers=workers)
    selected = json.dumps([training.clients for record in result.records for training in record.trainings])
    return {
        "parameters": hashlib.sha256(np.ascontiguousarray(result.parameters).tobytes()).hexdigest(),
        "selected": hashlib.sha256(selected.encode()).hexdigest(),
        "accuracy": result.metrics[-1]["accuracy"],
    }


def main() -> int:
    digests = {name: digest(changes) for name, changes in RUNS.items()}
    if "--record" in sys.argv:
        others = [record for record in json.loads(RECORD.read_text()) if record["machine"] != machine()]
        RECORD.write_text(json.dumps([*others, {"machine": machine(), "runs": digests}], indent=2) + "\n")
        return 0
    known = recorded()
    if known is None:
        print(f"nothing was recorded on a machine like this one: {machine()}")
        return 2
    different = [name for name in RUNS if digests[name] != known[name]]
    print(
        f"{len(RUNS) - len(different)} of {len(RUNS)} runs have the recorded bits", *different, sep="\n  differs: "
    )
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
