"""Plants plausible bugs in a copy of the source, one by one, and looks whether a test sees each of them.

    python tools/planted_bugs.py            # all, about an hour on a busy machine
    python tools/planted_bugs.py dropout oort    # those whose name contains one of the words
    python tools/planted_bugs.py A1         # those of a point of docs/contributing/right-numbers.md

Exit code 0: every bug was seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLANTED = "tests/integration/test_planted_bugs.py"
MAIL = "tests/flower/grid/test_flower_mail.py"


@dataclass(frozen=True)
class Bug:
    """A change of one place, and the tests that should notice it."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str = PLANTED
    word: str = ""


AUDIT = tomllib.loads((ROOT / "tools" / "audit_bugs.toml").read_text(encoding="utf-8"))["bugs"]

BUGS = (
    Bug(
        "misaligned multiplicities",
        "server/flights.py",
        "at = positions(request.clients, clients)",
        "at = np.arange(len(clients))",
        word="multiplicities",
    ),
    Bug(
        "selection generator without the round",
        "server/loop.py",
        'generator(self.seed, "selection", round, ',
        'generator(self.seed, "selection", ',
        word="every_round",
    ),
    Bug(
        "constant dropout seed",
        "engine/runtime.py",
        'torch_seed(self.seed, "dropout", *self._coordinates(task))',
        'torch_seed(self.seed, "dropout")',
        word="dropout",
    ),
    Bug(
        "dropout without the round", "engine/runtime.py", "return task.place.round, ", "return 0, ", word="dropout"
    ),
    Bug(
        "trimmed mean rounds instead of flooring",
        "aggregation/trimmed_mean.py",
        "math.floor(ratio * rows + 1e-9)",
        "round(ratio * rows)",
        word="trimmed",
    ),
    Bug(
        "trimmed mean without its tolerance",
        "aggregation/trimmed_mean.py",
        "ratio * rows + 1e-9)",
        "ratio * rows - 1e-9)",
        word="trimmed",
    ),
    Bug(
        "terraform takes the last of equal cuts",
        "selection/terraform.py",
        "best = int(np.argmax(variances <= variances.min() * (1 + TIE)))",
        "best = int(np.flatnonzero(variances <= variances.min() * (1 + TIE))[-1])",
        word="terraform",
    ),
    Bug(
        "oort explores with ε before its decay",
        "selection/oort.py",
        """            self.epsilon = max(self.epsilon * self.exploration_decay, self.exploration_min)
            share = 1.0 - self.epsilon
""",
        """            share = 1.0 - self.epsilon
            self.epsilon = max(self.epsilon * self.exploration_decay, self.exploration_min)
""",
        word="oort",
    ),
    Bug(
        "bytes down for those that answered",
        "server/ledger.py",
        "costs.bytes_down += load.down * len(clients)\n        costs.bytes_up += load.up * len(answered)",
        "costs.bytes_down += load.down * len(answered)\n        costs.bytes_up += load.up * len(answered)",
        word="asked",
    ),
    Bug(
        "refused answers cost no privacy",
        "server/training.py",
        "books.released(answered, report, filters)",
        "books.released(np.array(self.record.clients, dtype=np.int64), report, filters)",
        word="spent",
    ),
    Bug(
        "worst tenth rounded up",
        "server/metrics.py",
        "max(1, len(own) // 10)",
        "-(-len(own) // 10)",
        word="tenth",
    ),
    Bug("worst twentieth", "server/metrics.py", "len(own) // 10", "len(own) // 20", word="tenth"),
    Bug(
        "late mail is never forgotten",
        "flower/mail.py",
        "if overdue.expires > now}",
        "if True or overdue.expires > now}",
        MAIL,
        "late",
    ),
    Bug(
        "late mail is forgotten at once",
        "flower/mail.py",
        "sent.group, self._clock() + self.deadline)",
        "sent.group, self._clock())",
        MAIL,
        "late",
    ),
    Bug(
        "a majority of less than half",
        "data/partition/group_skew.py",
        "if not 0.5 <= self.share <= 1",
        "if not 0 <= self.share <= 1",
        word="majority",
    ),
    Bug(
        "availability is not part of the fingerprint",
        "config/identity.py",
        '"checkpoint", "tracking")',
        '"checkpoint", "tracking", "availability")',
        word="fingerprint",
    ),
    *(Bug(**bug) for bug in AUDIT),
)


def is_seen(bug: Bug, folder: Path) -> bool:
    """Whether the bug's tests pass without it and fail with it."""
    source = folder / "src" / "muster" / bug.file
    text = source.read_text(encoding="utf-8")
    before = outcome(bug, folder)
    source.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        # 1: tests failed. Anything else (nothing collected, a crash) is not a test that saw the bug.
        return before == 0 and outcome(bug, folder) == 1
    finally:
        source.write_text(text, encoding="utf-8")


def outcome(bug: Bug, folder: Path) -> int:
    """pytest's exit code for the bug's tests, on the source as it is now."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.tests, "-k", bug.word]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=600, check=False
    ).returncode


def main() -> int:
    words, missed = sys.argv[1:] or [""], []
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(ROOT / "src", Path(name) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for bug in BUGS:
            if any(word in bug.name for word in words):
                seen = is_seen(bug, Path(name))
                print(f"{'seen  ' if seen else 'MISSED'}  {bug.name}", flush=True)
                missed += [] if seen else [bug.name]
    return len(missed) > 0


if __name__ == "__main__":
    sys.exit(main())
