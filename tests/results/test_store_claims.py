"""Claims between processes: whoever only looks never keeps anybody from running."""

from __future__ import annotations

import fcntl
import multiprocessing as mp
import os
import time

import pytest

from muster.results.store.claims import Claims

RUN = 5
CONTEXT = mp.get_context("spawn")


def look_again_and_again(path, ready, done):
    claims = Claims(path)
    ready.set()
    while not done.is_set():
        claims.taken(RUN)


def hold(path, ready, done):
    assert Claims(path).take(RUN)
    ready.set()
    done.wait(30)


def fall_asleep_while_looking(path, ready, done):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(descriptor, fcntl.LOCK_SH, 1, RUN)
    ready.set()
    time.sleep(0.5)
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, RUN)
    done.wait(30)


@pytest.fixture
def beside(tmp_path):
    """Runs a function in processes beside this one; gives the claims of this one."""
    started = []

    def start(target, count=1):
        done = CONTEXT.Event()
        for _ in range(count):
            ready = CONTEXT.Event()
            process = CONTEXT.Process(target=target, args=(tmp_path / "claims", ready, done))
            process.start()
            assert ready.wait(60)
            started.append((process, done))
        return Claims(tmp_path / "claims")

    yield start
    for process, done in started:
        done.set()
        process.join(10)
        assert process.exitcode == 0


def test_lookers_do_not_keep_anybody_from_running(beside):
    claims = beside(look_again_and_again, count=2)
    for _ in range(200):
        assert claims.take(RUN)
        claims.release(RUN)


def test_a_looker_that_falls_asleep_is_waited_for(beside):
    assert beside(fall_asleep_while_looking).take(RUN)


def test_who_holds_a_run_is_not_waited_for(beside):
    claims = beside(hold)
    begin = time.monotonic()
    assert claims.taken(RUN)
    assert not claims.take(RUN)
    assert time.monotonic() - begin < 5
