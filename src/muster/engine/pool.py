"""Worker processes, one single-threaded process per core, that carry out tasks and hand results back in order.

A worker that dies, or does not answer within a deadline, is replaced; the task it was working on is tried once
more, then given up. Nothing about a result depends on which worker made it.
"""

from __future__ import annotations

import heapq
import multiprocessing as mp
import os
import pickle
import signal
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import cloudpickle
import torch

from muster.core.errors import EngineError, MusterError, TrainingError
from muster.engine.allocator import keep_freed_memory

#: Carries out one message in a worker and gives an answer that can be pickled.
Handler: TypeAlias = Callable[[Any], Any]
#: Makes a handler inside the worker, where models and device memory belong.
HandlerFactory: TypeAlias = Callable[[], Handler]

ATTEMPTS = 2
#: Exit code of a worker that ran out of memory.
OUT_OF_MEMORY = 12
_STOP_SECONDS = 3.0
#: Where no deadline is set, a worker may take this many times as long as the slowest task so far; and this long.
PATIENCE, LEAST_SECONDS = 20.0, 300.0
#: How often workers that owe an answer are checked.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Crashed:
    """The answer to a task whose workers died."""

    reason: str


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    #: Tasks sent to it; it is working on the first.
    outstanding: deque[int] = field(default_factory=deque)
    #: For how long its answer to that one has been waited for.
    waited: float = 0.0


class Pool:
    """A fixed number of workers. Forked where that is safe, so that data is shared and nothing is pickled."""

    def __init__(
        self, workers: int, factory: HandlerFactory, start_method: str = "fork", deadline: float | None = None
    ) -> None:
        """`deadline`: seconds that a task may take; None: many times as long as the slowest so far."""
        self._factory, self._deadline, self._slowest = factory, deadline, 0.0
        #: What happened to workers and was not reported in an answer.
        self.events: list[str] = []
        self._context = mp.get_context(start_method)
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._start())

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def run(self, count: int, message: Callable[[int], Any], window: int) -> Iterator[tuple[int, Any]]:
        """Carry out tasks 0 … count−1; yield (task, answer) in that order.

        `message(task)` is called when the task is sent. At most `window` tasks are under way or waiting to be
        yielded, so a caller may give task i the buffer i mod window.
        """
        waiting, answers, head = list(range(count)), dict[int, Any](), 0
        crashes: dict[int, int] = {}
        try:
            while head < count:
                self._dispatch(waiting, message, head + window)
                if head in answers:
                    yield head, answers.pop(head)
                    head += 1
                else:
                    self._collect(waiting, answers, crashes)
        finally:
            # Only after an error or when the caller lost interest: answers to old tasks must not be mistaken for
            # new ones.
            for position, worker in enumerate(self._workers):
                if worker.outstanding:
                    self._replace(position)

    def _dispatch(self, waiting: list[int], message: Callable[[int], Any], limit: int) -> None:
        # A second task in a worker's pipe hides the hand-over, but near the end it would spoil the balance.
        depth = 2 if len(waiting) > 4 * len(self._workers) else 1
        for level in range(1, depth + 1):
            for position in range(len(self._workers)):
                if len(self._workers[position].outstanding) < level and waiting and waiting[0] < limit:
                    self._send(position, waiting, message)

    def _send(self, position: int, waiting: list[int], message: Callable[[int], Any]) -> None:
        """Give the next task to a worker; to its successor, if it died unnoticed."""
        for _ in range(ATTEMPTS + 1):
            worker = self._workers[position]
            task = heapq.heappop(waiting)
            try:
                worker.connection.send_bytes(_packed(message(task)))
            except OSError:
                for undone in (task, *worker.outstanding):
                    heapq.heappush(waiting, undone)
                self._replace(position)
            else:
                worker.outstanding.append(task)
                return
        raise EngineError("worker processes die as soon as they start", fix="use workers = 0 to see why")

    @property
    def deadline(self) -> float:
        """Seconds after which a worker counts as hanging."""
        return max(LEAST_SECONDS, PATIENCE * self._slowest) if self._deadline is None else self._deadline

    def _collect(self, waiting: list[int], answers: dict[int, Any], crashes: dict[int, int]) -> None:
        busy = {w.connection: n for n, w in enumerate(self._workers) if w.outstanding}
        start = time.monotonic()
        ready = wait(list(busy), timeout=_LOOK_SECONDS)
        # A process that was itself stopped (Ctrl-Z) must not count that time as waiting.
        passed = min(time.monotonic() - start, 2 * _LOOK_SECONDS)
        for position in busy.values():
            self._workers[position].waited += passed
        # Those that have answered are not looked at: others may keep answering while one hangs.
        silent = [position for connection, position in busy.items() if connection not in ready]
        self._end_hanging(silent, waiting, answers, crashes)
        for connection in ready:
            position = busy[connection]  # type: ignore[index]
            worker = self._workers[position]
            try:
                kind, answer = worker.connection.recv()
            except BlockingIOError:
                self._end(position, waiting, answers, crashes, "in the middle of its answer")
                continue
            except (EOFError, OSError):
                self._bury(position, waiting, answers, crashes)
                continue
            task = worker.outstanding.popleft()
            self._slowest, worker.waited = max(self._slowest, worker.waited), 0.0
            if kind == "error":
                raise answer
            answers[task] = answer

    def _end_hanging(
        self, busy: list[int], waiting: list[int], answers: dict[int, Any], crashes: dict[int, int]
    ) -> None:
        """End workers that have not answered for too long: stopped, in an endless loop, or deadlocked."""
        for position in busy:
            if (waited := self._workers[position].waited) > self.deadline:
                self._end(position, waiting, answers, crashes, f"for {waited:.0f} s")

    def _end(
        self, position: int, waiting: list[int], answers: dict[int, Any], crashes: dict[int, int], how: str
    ) -> None:
        self.events.append(f"a worker did not answer {how} and was replaced")
        self._workers[position].process.kill()
        self._bury(position, waiting, answers, crashes, f"no answer within {self.deadline:g} s")

    def _bury(
        self,
        position: int,
        waiting: list[int],
        answers: dict[int, Any],
        crashes: dict[int, int],
        hung: str = "",
    ) -> None:
        worker = self._workers[position]
        worker.process.join(_STOP_SECONDS)
        suspect, *innocent = worker.outstanding
        crashes[suspect] = crashes.get(suspect, 0) + 1
        for task in innocent:
            heapq.heappush(waiting, task)
        if crashes[suspect] < ATTEMPTS:
            heapq.heappush(waiting, suspect)
        else:
            code = worker.process.exitcode
            why = hung or ("out of memory" if code == OUT_OF_MEMORY else f"exit code {code}")
            answers[suspect] = Crashed(f"its worker {'hung or ' if hung else ''}died {ATTEMPTS} times ({why})")
        self._replace(position)

    def _replace(self, position: int) -> None:
        old = self._workers[position]
        old.connection.close()
        if old.process.is_alive():
            old.process.kill()
            # Until it is gone it may write into buffers that the next task uses.
            old.process.join()
        self._workers[position] = self._start()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        _limit_patience(ours, self.deadline)
        # A forked child inherits our ends of all pipes; it must close them, or it would keep its siblings
        # alive after we are gone.
        inherited = [ours, *(worker.connection for worker in self._workers)]
        forked = self._context.get_start_method() == "fork"
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, self._factory, inherited if forked else []), daemon=True
        )
        try:
            process.start()
        except OSError as error:
            raise EngineError(
                f"cannot start a worker process: {error}", fix="use fewer workers, or workers = 0"
            ) from error
        theirs.close()
        return _Worker(process, ours)

    def close(self) -> None:
        for worker in self._workers:
            # Closing the pipe ends an idle worker's loop; a busy one is not waited for.
            worker.connection.close()
            if worker.outstanding:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(_STOP_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []


def _limit_patience(connection: Connection, seconds: float) -> None:
    """Let reading and writing fail after `seconds` without a byte: the other side may stop in mid-message."""
    span = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def _packed(message: Any) -> bytes | memoryview:
    """A message for a worker. Classes go by their names; those that no module has under it, by value."""
    try:
        return ForkingPickler.dumps(message)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    try:
        packed: bytes = cloudpickle.dumps(message)
    except Exception as error:  # whatever a user's own object does when it is asked
        raise EngineError(
            f"what clients are asked cannot be sent to worker processes: {type(error).__name__}: {error}",
            expected="signals without open files, locks or connections",
            fix="keep only plain values in them, or use workers = 0",
        ) from error
    return packed


def _serve(connection: Connection, factory: HandlerFactory, inherited: list[Connection]) -> None:
    """What a worker does until its pipe closes."""
    for other in inherited:
        other.close()
    # Ctrl-C goes to the whole group; only the main process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()
    handler: Handler | None = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        try:
            handler = handler or factory()
            answer: tuple[str, Any] = ("ok", handler(message))
        except Exception as error:
            if _out_of_memory(error):
                # As if the kernel had ended it: its memory is given back, and the task is tried once more.
                os._exit(OUT_OF_MEMORY)
            answer = ("error", as_muster_error(error))
        try:
            connection.send(answer)
        except OSError:
            return


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        # The CPU's allocator has no error class of its own.
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def as_muster_error(error: Exception) -> MusterError:
    """An error in client code, as one that crosses processes and tells where it happened."""
    if isinstance(error, MusterError):
        return error
    last = traceback.extract_tb(error.__traceback__)[-1]
    return TrainingError(
        f"a client's code failed: {type(error).__name__}: {error}",
        expected="a model, local algorithm and signals that run on every client's data",
        fix=f"look at {last.filename}:{last.lineno} ({last.name}); workers = 0 runs clients in this process",
    )
