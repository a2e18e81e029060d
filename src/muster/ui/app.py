"""The page as an ASGI app: every request opens the store for reading, asks, and closes it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from muster._version import __version__
from muster.core.errors import ConfigError, MusterError, StoreError
from muster.report.compare import Options
from muster.results.store.stops import request_stop, stop_requested
from muster.ui import federation, one_run, participation
from muster.ui.catalogue import Entry
from muster.ui.changes import Watcher, explained, plain_json
from muster.ui.comparing import MAX_RUNS, Results, comparison_view
from muster.ui.curves import curves
from muster.ui.database import reading
from muster.ui.files import static_files
from muster.ui.security import AccessGuard

log = logging.getLogger("muster")

#: Runs whose participation is kept: a few tens of megabytes each where runs are very long.
_KEPT = 6
_JSON = "application/json"


class NotHereError(MusterError):
    """There is no such run, or no such thing of it."""


@dataclass(frozen=True)
class PageSettings:
    """What a page is made with."""

    folder: Path
    token: str
    #: Whether runs may be asked to stop.
    control: bool = False
    #: Whether a notebook may show it in a frame.
    embeddable: bool = False


class Views:
    """Answers of the page, as plain data or as JSON. Each is called in a thread of its own."""

    def __init__(self, page: PageSettings) -> None:
        self.page, self.watcher = page, Watcher(page.folder)
        self._federations, self._results = federation.Federations(), Results()
        self._taken: OrderedDict[int, tuple[str, participation.Participation]] = OrderedDict()
        self._lock = Lock()

    def about(self, _: Request) -> Any:
        return {
            "version": __version__,
            "workspace": str(self.page.folder.resolve()),
            "control": self.page.control,
        }

    def runs(self, _: Request | None = None) -> str:
        """The list of runs, ready to be sent: written anew only when something has changed."""
        return self.watcher.listed()

    def run(self, request: Request) -> Any:
        entry = self._entry(request)
        with reading(self.page.folder) as connection:
            facts = one_run.overview(connection, entry)
        return facts | {"stopping": self.page.control and _waits_for_stop(self.page.folder, entry)}

    def curves(self, request: Request) -> Any:
        entry = self._entry(request)
        names = [name for name in request.query_params.get("metrics", "").split(",") if name][:12]
        first, last = _number(request, "from", 1), _number(request, "to", entry.facts["done"])
        with reading(self.page.folder) as connection:
            last = min(last, entry.facts["done"])
            return curves(connection, entry.facts["id"], names, first=max(1, first), last=last)

    def map(self, request: Request) -> Any:
        entry, by = self._entry(request), request.query_params.get("by", "client")
        taken, table = self._clients(entry, facts=by in ("samples", "class imbalance"))
        if by not in table:
            raise NotHereError(f"clients cannot be ordered by '{by}' here", expected=", ".join(table))
        clients = len(table["client"])
        order = participation.ordered(table, by) if by != "client" else np.arange(clients)
        return participation.selection_map(taken, clients, order)

    def clients(self, request: Request) -> Any:
        """Their table; with `facts=1` also what the data tells about them, which takes longer."""
        entry = self._entry(request)
        _, table = self._clients(entry, facts=request.query_params.get("facts") == "1")
        return table

    def client(self, request: Request) -> Any:
        entry, client = self._entry(request), _whole("client", request.path_params["client"])
        with self._lock, reading(self.page.folder) as connection:
            taken = self._participation(connection, entry)
            accuracies = participation.last_accuracies(connection, entry.facts["id"])
            if not 0 <= client < participation.client_count(entry.config, taken.highest, accuracies):
                raise NotHereError(f"this federation has no client {client}")
            return participation.one_client(connection, entry.facts["id"], client, taken)

    def labels(self, request: Request) -> Any:
        """The label mix of one client: the data is divided again for it, which takes longer than the rest."""
        entry, client = self._entry(request), _whole("client", request.path_params["client"])
        inspection = self._federations.inspection(entry.config)
        if not 0 <= client < inspection.clients:
            raise NotHereError(f"this federation has no client {client}")
        return federation.label_mix(inspection, client)

    def cell(self, request: Request) -> Any:
        entry = self._entry(request)
        client, number = _number(request, "client", 0), _number(request, "round", 1)
        with reading(self.page.folder) as connection:
            return participation.at_cell(connection, entry.facts["id"], client, number)

    def costs(self, request: Request) -> Any:
        entry = self._entry(request)
        with reading(self.page.folder) as connection:
            return one_run.costs(connection, entry.facts["id"])

    def events(self, request: Request) -> Any:
        entry = self._entry(request)
        before = _number(request, "before", -1)
        with reading(self.page.folder) as connection:
            kind = request.query_params.get("kind", "")
            return one_run.events(connection, entry.facts["id"], kind, before if before >= 0 else None)

    def timeline(self, request: Request) -> Any:
        entry = self._entry(request)
        with reading(self.page.folder) as connection:
            return one_run.timeline(
                connection, entry.facts["id"], _amount(request, "from"), _amount(request, "to")
            )

    def federation(self, request: Request) -> Any:
        return federation.as_data(self._federations.inspection(self._entry(request).config))

    def compare(self, request: Request) -> Any:
        asked = request.query_params
        entries = self._chosen(asked.get("sweep", ""), [word for word in asked.get("runs", "").split(",") if word])
        options = Options(
            metric=asked.get("metric", "accuracy"),
            last=_number(request, "last", 1),
            at=asked.get("at", ""),
            baseline=asked.get("baseline", ""),
            unfinished=asked.get("unfinished") == "1",
        )
        with self._lock, reading(self.page.folder) as connection:
            results = [self._results.read(connection, entry) for entry in entries]
        return comparison_view(results, options, asked.get("per", "round"))

    def stop(self, request: Request) -> Any:
        """Ask a run to stop after its round."""
        if not self.page.control:
            raise NotHereError("this page only shows runs", fix="start it with `muster ui --allow-control`")
        entry = self._entry(request)
        if entry.status != "running":
            raise ConfigError(f"the run is {entry.status}: there is nothing to stop")
        request_stop(self.page.folder, entry.facts["fingerprint"])
        return {"stopping": True}

    # --- helpers -----------------------------------------------------------------------------------------

    def _entry(self, request: Request) -> Entry:
        word = request.path_params["run"]
        catalogue = self.watcher.fresh()
        with self.watcher.lock:
            found = catalogue.find(word)
            if found is None:
                raise NotHereError(f"there is no run {word[:40]} in {self.page.folder}", fix="it may be deleted")
            return found

    def _chosen(self, sweep: str, words: list[str]) -> list[Entry]:
        catalogue = self.watcher.fresh()
        with self.watcher.lock:
            begun = [entry for entry in catalogue.entries.values() if entry.facts["done"]]
        if sweep:
            begun = [entry for entry in begun if sweep in entry.sweeps]
        if words:
            begun = [entry for entry in begun if entry.facts["fingerprint"].startswith(tuple(words))]
        if len(begun) > MAX_RUNS:
            raise ConfigError(f"{len(begun):,} runs at once", expected=f"at most {MAX_RUNS}", fix="choose some")
        return begun

    def _clients(self, entry: Entry, *, facts: bool) -> tuple[participation.Participation, dict[str, list[Any]]]:
        with self._lock, reading(self.page.folder) as connection:
            # A copy, for it is used after the lock: another request may read on meanwhile.
            taken = self._participation(connection, entry).as_it_is()
            accuracies = participation.last_accuracies(connection, entry.facts["id"])
            clients = participation.client_count(entry.config, taken.highest, accuracies)
            table = participation.client_table(taken, clients, accuracies)
        if facts:
            table |= federation.client_facts(self._federations.inspection(entry.config), clients)
        return taken, table

    def _participation(self, connection: sqlite3.Connection, entry: Entry) -> participation.Participation:
        run, fingerprint = entry.facts["id"], entry.facts["fingerprint"]
        known = self._taken.pop(run, None)
        taken = known[1] if known is not None and known[0] == fingerprint else participation.Participation()
        taken.read_on(connection, run, entry.facts["done"])
        self._taken[run] = (fingerprint, taken)
        while len(self._taken) > _KEPT:
            self._taken.popitem(last=False)
        return taken


def make_app(page: PageSettings) -> AccessGuard:
    """The whole app, guarded."""
    views = Views(page)
    with contextlib.suppress(StoreError):  # told to whoever opens the page
        views.runs()  # thousands take a while to read the first time: do it before anyone is waiting
    closing = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(views.watcher.watch())
        yield
        closing.set()
        watching.cancel()

    async def changes(_: Request) -> Response:
        return StreamingResponse(views.watcher.stream(closing.is_set), media_type="text/event-stream")

    of_run = "/api/run/{run:str}"
    routes = [
        Route("/api/about", _answering(views.about)),
        Route("/api/runs", _answering(views.runs)),
        Route("/api/changes", changes),
        Route("/api/compare", _answering(views.compare)),
        Route(of_run, _answering(views.run)),
        Route(f"{of_run}/curves", _answering(views.curves)),
        Route(f"{of_run}/map", _answering(views.map)),
        Route(f"{of_run}/clients", _answering(views.clients)),
        Route(f"{of_run}/client/{{client}}", _answering(views.client)),
        Route(f"{of_run}/client/{{client}}/labels", _answering(views.labels)),
        Route(f"{of_run}/cell", _answering(views.cell)),
        Route(f"{of_run}/costs", _answering(views.costs)),
        Route(f"{of_run}/events", _answering(views.events)),
        Route(f"{of_run}/timeline", _answering(views.timeline)),
        Route(f"{of_run}/federation", _answering(views.federation)),
        Route(f"{of_run}/stop", _answering(views.stop), methods=["POST"]),
        Route("/{name:path}", _file),
    ]
    return AccessGuard(Starlette(routes=routes, lifespan=lifespan), page.token, embeddable=page.embeddable)


def _answering(view: Callable[[Request], Any]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            found, status = await run_in_threadpool(view, request), 200
            content = found if isinstance(found, str) else await run_in_threadpool(plain_json, found)
        except MusterError as error:
            status = {StoreError: 503, NotHereError: 404}.get(type(error), 422)
            content = plain_json(explained(error))
        except Exception:
            log.exception("the page could not answer %s", request.url.path)
            content, status = plain_json({"problem": "the page could not answer this", "fix": "see its log"}), 500
        return Response(content, status, media_type=_JSON)

    return answer


async def _file(request: Request) -> Response:
    """A file of the package. Only names that it has are looked up, so no path leads anywhere else."""
    found = static_files().get(request.path_params["name"] or "index.html")
    if found is None:
        return Response("there is nothing here\n", 404, media_type="text/plain")
    return Response(found.content, media_type=found.kind)


def _waits_for_stop(folder: Path, entry: Entry) -> bool:
    try:
        return entry.status == "running" and stop_requested(folder, entry.facts["fingerprint"])
    except MusterError:
        return False


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return _whole(name, text) if text else default


def _whole(name: str, text: str) -> int:
    """A number as the store can hold it: a larger one would pass for a fault of the store."""
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise ConfigError(f"'{name}' is '{text[:40]}'", expected="a whole number of at most 18 digits")
    return int(text)


def _amount(request: Request, name: str) -> float | None:
    text = request.query_params.get(name, "")
    try:
        return float(text) if text else None
    except ValueError as error:
        raise ConfigError(f"'{name}' is '{text[:40]}'", expected="a number") from error
