"""Only who has the token sees runs, from no other page, and nothing that is seen can do anything."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3

import pytest

from muster.results.store.schema import open_to_read
from muster.ui.files import static_files
from muster.ui.security import host_name, new_token

API = ["about", "runs", "changes", "compare", "run/0123456789abcdef", "run/x/client/1", "run/x/stop"]


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic a-token"}])
def test_nothing_about_runs_without_the_token(page, path, headers):
    assert "token" in page.ask(path, status=401, headers=headers)["problem"]


def test_a_token_in_the_address_of_a_question_is_not_enough(page):
    """It would be in logs and histories; the page takes it from its own address and sends it as a header."""
    page.ask("runs", status=401, headers={}, token="a-token")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "evil.example:8000", "[::2]", "[", ""]
)
def test_a_rebound_name_is_refused(page, host):
    for path in ("/", "/main.js", "/api/runs"):
        answer = page.client.get(path, headers={"Host": host, "Authorization": "Bearer a-token"})
        assert answer.status_code == 400


@pytest.mark.parametrize("names", [(b"127.0.0.1", b"evil.example"), (b"evil.example", b"127.0.0.1")])
def test_two_names_are_refused(page, names):
    """Clients send one name, so this is said to the app itself."""
    told = []

    async def send(message):
        told.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"authorization", b"Bearer a-token"), *((b"host", name) for name in names)]
    scope = {"type": "http", "method": "GET", "path": "/api/about", "query_string": b"", "headers": headers}
    asyncio.run(page.client.app(scope, receive, send))
    assert told[0]["status"] == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:1", "[::1]:8000", "localhost"])
def test_names_of_this_machine(page, host):
    assert page.client.get("/", headers={"Host": host}).status_code == 200


def test_names_in_host_headers():
    assert [host_name(host) for host in ("a:1", "[::1]:2", "A", "a@b:1", "")] == ["a", "::1", "a", "b", ""]


def test_requests_that_other_pages_make_are_refused(page):
    headers = {"Origin": "http://evil.example", "Authorization": "Bearer a-token"}
    assert page.client.get("/api/runs", headers=headers).status_code == 403
    assert page.client.get("/api/runs", headers=headers | {"Origin": "null"}).status_code == 403
    own = headers | {"Origin": "http://127.0.0.1:8000"}
    answer = page.client.get("/api/runs", headers=own)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/main.js", "/nothing", "/api/runs", "/api/nothing"])
def test_headers_on_every_answer(page, path):
    for headers in ({}, {"Authorization": "Bearer a-token"}, {"Host": "evil.example"}):
        answer = page.client.get(path, headers=headers)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers


def test_only_a_page_for_notebooks_may_be_framed_and_only_by_this_machine(visit, workspace):
    policy = visit(workspace, embeddable=True).client.get("/").headers["content-security-policy"]
    assert re.search(r"frame-ancestors http://127\.0\.0\.1:\* http://localhost:\*", policy)


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py",
        "/..%2fapp.py",
        "/%2e%2e/%2e%2e/muster.db",
        "//etc/passwd",
        "/vendor/../../app.py",
        "/muster.db",
    ],
)
def test_no_path_leads_out_of_the_package(page, path):
    assert page.client.get(path).status_code == 404


def test_fingerprints_lead_nowhere_else(page, visit, workspace):
    headers, controlling = {"Authorization": "Bearer a-token"}, visit(workspace, control=True)
    for word in ("..%2f..%2fetc", "%2e%2e", "%00", "' OR 1=1 --", "*"):
        assert page.client.get(f"/api/run/{word}", headers=headers).status_code == 404
        assert controlling.client.post(f"/api/run/{word}/stop", headers=headers).status_code in (404, 405)
    assert not (workspace / "stops").exists()


def test_the_page_fetches_nothing_from_elsewhere_and_has_no_inline_script():
    files = static_files()
    html = files["index.html"].content.decode()
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="main.js">']
    assert not re.search(r"\son\w+=|<style|style=", html)
    for name, file in files.items():
        text = file.content.decode()
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
        if not name.startswith("vendor/"):
            assert addresses <= {"http://www.w3.org/2000/svg"}, name
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
            )
    assert "MIT License" in files["vendor/uplot.LICENSE"].content.decode()


def test_the_connection_cannot_write(workspace):
    connection = open_to_read(workspace / "muster.db")
    for statement in ("DELETE FROM experiments", "CREATE TABLE x (y)", "PRAGMA user_version = 99"):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute(statement)
    connection.execute("PRAGMA query_only = OFF")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM experiments")
    connection.close()


def test_looking_changes_no_file(page, workspace, results):
    def state():
        return {
            path: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(workspace.rglob("*"))
            if path.is_file() and not path.name.endswith(("-wal", "-shm"))
        }

    before = state()
    for key in results:
        for part in (
            "",
            "/curves",
            "/map",
            "/clients",
            "/client/1",
            "/costs",
            "/events",
            "/timeline",
            "/federation",
        ):
            page.ask(f"run/{key}{part}")
    page.ask("compare")
    assert state() == before


def test_without_permission_nothing_can_be_stopped(page, results, workspace):
    answer = page.tell(f"run/{next(iter(results))}/stop", status=404)
    assert "--allow-control" in answer["fix"]
    assert not (workspace / "stops").exists()


def test_what_does_not_run_cannot_be_stopped(visit, results, workspace):
    answer = visit(workspace, control=True).tell(f"run/{next(iter(results))}/stop", status=422)
    assert "nothing to stop" in answer["problem"]
    assert not (workspace / "stops").exists()


def test_tokens_differ():
    assert len({new_token() for _ in range(20)}) == 20
    assert len(new_token()) >= 32
