"""The pool hands answers back in order, within its window, whatever happens to its workers."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import struct
import threading
import time
from typing import Any

import psutil
import pytest
import torch

from muster.core.errors import ConfigError, EngineError, TrainingError
from muster.engine.pool import Crashed, Pool, _limit_patience


def handler_factory():
    def handle(message):
        kind, value = message
        match kind:
            case "square":
                time.sleep(0.002 * (value % 5))
                return value * value
            case "die":
                os._exit(9)
            case "memory":
                raise MemoryError
            case "tensor":
                return torch.empty(10**15)
            case "mistake":
                raise ValueError("client code broke")
            case "call":
                return value()
            case "config":
                raise ConfigError("bad thing", expected="good thing")

    return handle


@pytest.fixture
def pool():
    made = Pool(3, handler_factory)
    yield made
    made.close()


def test_answers_come_in_order(pool):
    assert list(pool.run(40, lambda task: ("square", task), window=5)) == [(n, n * n) for n in range(40)]


def test_a_class_that_no_module_has_goes_by_value(pool):
    """As in the process of a sweep's run, where the classes of a notebook came by value themselves."""

    class Mine:
        def __call__(self):
            return "called"

    assert list(pool.run(2, lambda task: ("call", Mine()), window=2)) == [(0, "called"), (1, "called")]


def test_what_cannot_be_sent_to_a_worker_is_said(pool):
    with pytest.raises(EngineError, match="cannot be sent to worker processes: TypeError"):
        list(pool.run(1, lambda task: ("call", threading.Lock()), window=1))


def test_never_more_than_the_window_is_under_way(pool):
    sent, received = [], []

    def message(task):
        sent.append(task)
        assert task < len(received) + 4
        return "square", task

    for task, _ in pool.run(30, message, window=4):
        received.append(task)
    assert sent == received == list(range(30))


def test_a_task_that_kills_its_worker_is_given_up_after_two_attempts(pool):
    answers = dict(pool.run(10, lambda task: ("die" if task == 4 else "square", task), window=10))
    assert isinstance(answers.pop(4), Crashed)
    assert answers == {n: n * n for n in range(10) if n != 4}
    assert len(set(pool.pids)) == 3


@pytest.mark.parametrize("kind", ["memory", "tensor"])
def test_a_task_without_enough_memory_is_given_up_like_one_that_the_kernel_ended(pool, kind):
    answers = dict(pool.run(6, lambda task: (kind if task == 4 else "square", task), window=6))
    assert "out of memory" in answers.pop(4).reason
    assert answers == {n: n * n for n in range(6) if n != 4}


def test_idle_workers_that_were_killed_are_replaced(pool):
    list(pool.run(6, lambda task: ("square", task), window=6))
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    assert list(pool.run(6, lambda task: ("square", task), window=6)) == [(n, n * n) for n in range(6)]


def test_errors_in_client_code_reach_the_caller_with_the_place(pool):
    with pytest.raises(TrainingError, match="ValueError: client code broke"):
        list(pool.run(3, lambda task: ("mistake", task), window=3))
    with pytest.raises(ConfigError, match="bad thing"):
        list(pool.run(3, lambda task: ("config", task), window=3))


def test_answers_to_an_abandoned_run_are_not_mistaken(pool):
    for _ in pool.run(20, lambda task: ("square", task + 100), window=20):
        break
    assert list(pool.run(5, lambda task: ("square", task), window=5)) == [(n, n * n) for n in range(5)]


def test_close_leaves_no_process_behind():
    pool = Pool(2, handler_factory)
    pids = pool.pids
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_end_when_the_main_process_is_killed(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        pool = Pool(2, handler_factory)
        list(pool.run(4, lambda task: ("square", task), window=4))
        os.write(writer, " ".join(map(str, pool.pids)).encode())
        time.sleep(60)
        os._exit(0)
    pids = [int(pid) for pid in os.read(reader, 100).split()]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived the process that made them"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def stopping_factory():
    """Tasks that hang: the worker is stopped from outside, or loops for ever; with a file, only the first time."""

    def handle(message):
        kind, value, marker = message
        if kind == "nap":
            time.sleep(0.2)
        if kind in ("square", "nap") or (marker is not None and os.path.exists(marker)):
            return value * value
        if marker is not None:
            with open(marker, "w", encoding="utf-8"):
                pass
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "native":
            # A lock taken twice, in C, with the interpreter's own lock held: no signal handler runs either.
            library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
        while True:
            pass

    return handle


@pytest.mark.parametrize("kind", ["stop", "loop", "native"])
def test_a_worker_that_hangs_is_replaced_and_its_task_tried_again(kind, tmp_path):
    pool = Pool(2, stopping_factory, deadline=1.0)
    marker = str(tmp_path / "hung once")
    try:
        answers = dict(pool.run(8, lambda task: (kind if task == 3 else "square", task, marker), window=8))
    finally:
        pool.close()
    assert answers == {n: n * n for n in range(8)}
    assert len(pool.events) == 1
    assert "did not answer for" in pool.events[0]


def test_a_worker_that_hangs_is_seen_while_others_keep_answering():
    """The second task hangs; the rest would take ten seconds."""
    pool, start = Pool(2, stopping_factory, deadline=1.0), time.monotonic()
    when = {}
    try:
        messages = pool.run(100, lambda task: ("loop" if task == 1 else "nap", task, None), window=100)
        for task, _ in messages:
            when[task] = time.monotonic() - start
            if task == 1:
                break
    finally:
        pool.close()
    assert when[1] < 8


def test_half_a_message_is_not_waited_for_longer_than_the_deadline():
    ours, theirs = multiprocessing.Pipe()
    _limit_patience(ours, 0.2)
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"the first bytes of a hundred")
    with pytest.raises(BlockingIOError):
        ours.recv_bytes()
    with pytest.raises(BlockingIOError):
        ours.send_bytes(b"x" * 10_000_000)


def test_a_worker_that_does_not_even_read_is_replaced():
    """What it is sent does not fit into the pipe."""
    pool = Pool(1, stopping_factory, deadline=1.0)
    (stopped,) = pool.pids
    try:
        os.kill(stopped, signal.SIGSTOP)
        answers = dict(pool.run(2, lambda task: ("square", task, "x" * 3_000_000), window=2))
    finally:
        pool.close()
    assert answers == {0: 0, 1: 1}
    assert not psutil.pid_exists(stopped)


def test_a_task_that_always_hangs_is_given_up_and_leaves_no_process_behind():
    pool = Pool(2, stopping_factory, deadline=1.0)
    before = set(pool.pids)
    try:
        answers = dict(pool.run(6, lambda task: ("stop" if task == 2 else "square", task, None), window=6))
    finally:
        pool.close()
    assert answers.pop(2) == Crashed("its worker hung or died 2 times (no answer within 1 s)")
    assert answers == {n: n * n for n in (0, 1, 3, 4, 5)}
    assert not any(psutil.pid_exists(pid) for pid in before)


def test_without_a_deadline_patience_follows_the_slowest_task(pool):
    list(pool.run(6, lambda task: ("square", task), window=6))
    assert pool.deadline == 300.0
    pool._slowest = 100.0
    assert pool.deadline == 2000.0


def test_a_client_whose_worker_hangs_is_a_recorded_failure_and_the_run_goes_on(tiny):
    """The whole engine: one of the processes is stopped while it trains."""
    import threading

    from muster.experiment.parts import build_parts

    made = tiny(rounds=4, engine={"kind": "processes", "task_deadline": 4.0})
    parts = build_parts(made, workers=2)
    engine: Any = parts.engine
    with engine:
        server = parts.server()

        def stop_one() -> None:
            while engine._pool is None:
                time.sleep(0.01)
            os.kill(engine._pool.pids[0], signal.SIGSTOP)

        thread = threading.Thread(target=stop_one)
        thread.start()
        result = server.run(4)
        thread.join()
    assert len(result.records) == 4
    assert any("did not answer" in event for record in result.records for event in record.events)
    undisturbed = build_parts(made, workers=2)
    with undisturbed.engine:
        assert (undisturbed.server().run(4).parameters == result.parameters).all()
