"""Tells pages what has changed: one look at the store for all of them, and only while a page is open."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import RLock
from typing import Any

from muster.core.errors import StoreError
from muster.results.files import to_json
from muster.results.store import DATABASE
from muster.ui.catalogue import Catalogue
from muster.ui.database import being_run, identity, reading

log = logging.getLogger("muster")

#: How often to look. Two file times are compared; the database is read only when one of them has changed.
LOOK_SECONDS = 0.4
#: How often a silent stream says that it is still there.
BREATH_SECONDS = 15.0
#: How often to ask whether runs that were being run still are: a killed process leaves no trace in the store.
_ALIVE_SECONDS = 2.0
#: Of the time, at most this share is spent on reading.
_BUSIEST = 0.1
#: Messages that wait for a page which does not take them, such as one on a sleeping computer.
_MAX_WAITING = 100


class Watcher:
    """The catalogue of a workspace, kept up to date, and the pages that want to hear of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.catalogue, self.lock = folder, Catalogue(), RLock()
        #: Why the store cannot be read at present.
        self.trouble: StoreError | None = None
        self._listeners: set[asyncio.Queue[str]] = set()
        self._seen: tuple[Any, ...] | None = None
        self._store: tuple[int, int] | None = None
        self._alive_at, self._took = 0.0, 0.0
        #: What requests have seen before the pages were told.
        self._unsent: list[dict[str, Any]] = []
        #: The list of runs as JSON; empty: something has changed since.
        self._listed = ""

    def look(self) -> dict[str, Any] | None:
        """Read what has changed since the last look; None: nothing."""
        with self.lock:
            seen = _signature(self.folder)
            now = time.monotonic()
            runs = any(entry.status == "running" for entry in self.catalogue.entries.values())
            if (
                seen == self._seen
                and self.trouble is None
                and not (runs and now - self._alive_at > _ALIVE_SECONDS)
            ):
                return None
            self._alive_at = now
            if self._store != (store := identity(self.folder)):
                self.catalogue, self._store = Catalogue(), store
            had, self.trouble = self.trouble, None
            changed: set[int] = set()
            try:
                with reading(self.folder) as connection:
                    changed, reload = self.catalogue.refresh(connection, lambda ids: being_run(self.folder, ids))
            except StoreError as error:
                self.trouble, reload = error, had is None
                self.catalogue = Catalogue()
            except BaseException:  # what was read by then is not the whole: begin anew with the next look
                self.catalogue, self._seen, self._listed = Catalogue(), None, ""
                raise
            self._seen, self._took = seen, time.monotonic() - now
            if not changed and not reload and str(had) == str(self.trouble):
                return None
            self._listed = ""
            return {
                "runs": [] if reload else self.catalogue.changes(changed),
                "reload": reload or (had is not None and self.trouble is None),
                "trouble": self._told_trouble(),
            }

    def _told_trouble(self) -> dict[str, str] | None:
        trouble = self.trouble
        return None if trouble is None else explained(trouble)

    def fresh(self) -> Catalogue:
        """The catalogue as the store is now. What is new is told to the pages at their next look."""
        with self.lock:
            if (news := self.look()) is not None and self._listeners:
                self._unsent.append(news)
            if self.trouble is not None:
                raise self.trouble
            return self.catalogue

    def listed(self) -> str:
        """All runs as JSON: written once for all who ask until something changes."""
        with self.lock:
            catalogue = self.fresh()
            if not self._listed:
                self._listed = plain_json(catalogue.as_columns())
            return self._listed

    async def watch(self) -> None:
        """Look, and tell, for ever: what goes wrong is logged once, and the next look may go well."""
        logged = ""
        while True:
            await asyncio.sleep(max(LOOK_SECONDS, self._took / _BUSIEST))
            if not self._listeners:
                continue
            try:
                news = await asyncio.to_thread(self._news)
            except Exception as error:
                if logged != (logged := repr(error)):
                    log.exception("the page could not look at %s; it tries again", self.folder)
                continue
            logged = ""
            for message in news:
                for queue in self._listeners:
                    self._put(queue, message)

    def _put(self, queue: asyncio.Queue[str], message: str) -> None:
        """A page that has fallen far behind is told to load everything anew, in place of what it has missed."""
        if queue.full():
            while not queue.empty():
                queue.get_nowait()
            message = to_json({"runs": [], "reload": True, "trouble": self._told_trouble()})
        queue.put_nowait(message)

    def _news(self) -> list[str]:
        with self.lock:
            found = [*self._unsent, *([news] if (news := self.look()) else [])]
            self._unsent.clear()
        return [to_json(news) for news in found]

    async def stream(self, closing: Callable[[], bool]) -> AsyncIterator[str]:
        """Server-sent events for one page."""
        queue: asyncio.Queue[str] = asyncio.Queue(_MAX_WAITING)
        self._listeners.add(queue)
        try:
            yield f"event: hello\ndata: {to_json({'trouble': self._told_trouble()})}\n\n"
            quiet = 0.0
            while not closing():
                try:
                    message = await asyncio.wait_for(queue.get(), 1.0)
                except TimeoutError:
                    quiet += 1.0
                    if quiet >= BREATH_SECONDS:
                        quiet = 0.0
                        yield ": still here\n\n"
                else:
                    quiet = 0.0
                    yield f"event: change\ndata: {message}\n\n"
        finally:
            self._listeners.discard(queue)


def explained(error: Any) -> dict[str, str]:
    """An error in the parts that a page shows."""
    return {"problem": error.problem, "expected": error.expected, "fix": error.fix}


def plain_json(content: Any) -> str:
    """JSON; quickly where all numbers are finite, as they mostly are."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return to_json(content)


def _signature(folder: Path) -> tuple[Any, ...]:
    """Changes with every commit to the store: a WAL file is written to, or folded into the database."""
    facts = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        try:
            found = os.stat(folder / name)
            facts.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except OSError:
            facts.append((0, 0, 0))
    return tuple(facts)
