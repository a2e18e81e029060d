"""The command line for tests, with an aggregation that can be kept from ending.

While the folder MUSTER_TEST_MISCHIEF has a file `pause-N`, the N-th aggregation of this process writes `paused-N`
when all updates are summed, and waits before it hands the new model over.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

from muster.aggregation.base import MeanAggregator
from muster.cli.main import main

_finish, _numbers = MeanAggregator.finish, itertools.count(1)


def finish(self: MeanAggregator) -> Any:
    mischief, number = Path(os.environ["MUSTER_TEST_MISCHIEF"]), next(_numbers)
    finished = _finish(self)
    order = mischief / f"pause-{number}"
    if order.exists():
        (mischief / f"paused-{number}").touch()
        while order.exists():
            time.sleep(0.02)
    return finished


if __name__ == "__main__":
    MeanAggregator.finish = finish
    main()
