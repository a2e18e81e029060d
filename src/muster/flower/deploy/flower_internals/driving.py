"""A run whose server's side is this process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fused_config_from_fab
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from muster.core.errors import EngineError
from muster.flower.deploy.flower_internals.control import control, stop_run, unreachable
from muster.flower.deploy.flower_internals.grid import PatientGrid
from muster.flower.deploy.link import Link


@dataclass(frozen=True)
class DrivenRun:
    """A run whose server's side is this process."""

    grid: PatientGrid
    run_id: int
    #: Nodes keep what clients remember for all runs of a series.
    series_id: int
    context: Context


@contextmanager
def drive_run(
    link: Link,
    app: Path,
    config: Mapping[str, str | int | float | bool],
    *,
    series_id: int | None = None,
    max_reply_bytes: int = 2**30,
    seconds: float = 30.0,
) -> Iterator[DrivenRun]:
    """Start a run of a Flower app on a SuperLink with `--isolation process`, and take its server's side.

    It is a run like any other for `flwr ls` and `flwr stop`. One at a time in a process: the identity of the task
    is global in Flower.
    """
    run_id = _start_run(link, fab := build_fab_from_disk(app), config, series_id)
    try:
        grid = PatientGrid(link, _acquire(link, run_id, seconds), max_reply_bytes)
    except BaseException:
        stop_run(link, run_id)
        raise
    client = grid._runtime_client
    beat = HeartbeatSender(make_task_heartbeat_fn_http(client))  # without it the run counts as dead after 60 s
    beat.start()
    status, details = "failed", ""
    try:
        task = client.PullTaskInput(PullTaskInputRequest())
        run, context = run_from_proto(task.run), context_from_proto(task.context)
        context.run_config = get_fused_config_from_fab(fab, run)
        grid.set_run(run)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run_id, context.node_id
        yield DrivenRun(grid, run_id, context.series_id, context)
        status = "completed"
    except BaseException as error:
        details = repr(error)[:500]
        raise
    finally:
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, RunNotRunningException):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        beat.stop()
        grid.close()


def _start_run(link: Link, fab: bytes, config: Mapping[str, Any], series_id: int | None) -> int:
    bundle = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
    override = user_config_to_proto(dict(config))
    with control(link) as superlink:
        answer = superlink.StartRun(StartRunRequest(fab=bundle, override_config=override, series_id=series_id))
    if not answer.run_id:
        raise EngineError(f"the SuperLink at {link.address} did not start the run", fix="look at its log")
    return int(answer.run_id)


def _acquire(link: Link, run_id: int, seconds: float) -> str:
    """The token for a run's server task. Tasks come oldest first, so abandoned ones before are taken and left."""
    executor = RuntimeHttpClient.from_server_address(
        link.address, False, link.authority, [RuntimeVersionHttpInterceptor("SuperExec")]
    )
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            answer = executor.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
            if answer.token and answer.task.run_id == run_id:
                return str(answer.token)
            if not answer.token:
                time.sleep(0.05)
    except httpx.HTTPError as error:
        raise unreachable(link.address, error) from error
    finally:
        executor.close()
    raise EngineError(
        f"the SuperLink at {link.address} did not hand out run {run_id}",
        expected="a SuperLink that was started with --isolation process and has no SuperExec",
    )
