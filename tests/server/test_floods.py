"""Connections and tokens in masses, on a real socket: health answers, and whoever has a token is served."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hangscope.cli.verbs.node_check import command as node_check
from hangscope.server.web import connections as kept_connections
from hangscope.server.web import guard
from hangscope.server.web.connections import Connections
from kits.fleet import access, bundle, running_server, sha

HTML = {"Accept": "text/html"}


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Past what one address may have, the connection that was silent longest is closed: health, and pushes, go on."""
    limits = Connections(most=200, most_of_address=100)
    with running_server(tmp_path, digesters=0, connections=limits) as server:
        token = server.token("push")
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(600)]
        began = time.monotonic()
        assert server.ask("GET", "/healthz").status == 200
        assert server.push(token, b"abc") == 1
        assert time.monotonic() - began < 5
        silent[0].settimeout(5)
        try:
            assert silent[0].recv(1) == b""
        except ConnectionResetError:
            pass
        for each in silent:
            each.close()


def test_a_head_that_trickles_and_a_body_that_stops_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head has to be whole in time however its bytes come, and a body has to go on coming: 408, and the place of its
    project is free again."""
    monkeypatch.setattr(kept_connections, "IDLE_S", 1.0)
    monkeypatch.setattr("hangscope.server.web.guard.FIRST_S", 1.0)
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("push")
        with socket.create_connection(("127.0.0.1", server.port), timeout=15) as trickle:
            began = time.monotonic()
            with pytest.raises(OSError):
                for _ in range(100):
                    trickle.sendall(b"G")
                    time.sleep(0.1)
            assert time.monotonic() - began < 8
        slow = []
        for _ in range(20):
            each = socket.create_connection(("127.0.0.1", server.port), timeout=15)
            head = f"PUT /api/v1/blobs/{sha(b'abc')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            each.sendall(f"{head}Content-Length: 3000\r\n\r\na".encode())
            slow.append(each)
        assert b" 408 " in slow[0].recv(200)
        for each in slow:
            each.close()
        assert server.push(token, b"abc") == 1


def test_a_flood_of_wrong_tokens_costs_no_look_into_the_database(tmp_path: Path) -> None:
    """Past so many wrong tokens of one address more of them are answered with 429 without being looked up, whatever
    `X-Forwarded-For` says; a right one of the same address is served."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("push", "read")
        looked: list[str] = []
        database = server.opened.database
        read = database.read
        database.read = lambda: (looked.append(""), read())[1]  # type: ignore[method-assign]
        begun = time.monotonic()
        statuses = [
            server.ask("GET", "/api/v1/jobs", f"hs_{number}", X_Forwarded_For=f"10.0.0.{number % 250}").status
            for number in range(500)
        ]
        took = time.monotonic() - begun
        late = guard.LATE_LOOKS_A_MINUTE * (1 + took / 60) + took / guard.FRESH_S
        assert set(statuses) == {401, 429}
        assert statuses.count(401) <= guard.FAILURES_A_MINUTE * (1 + took / 60) + 5
        assert len(looked) < late + statuses.count(401) + 80
        assert server.ask("GET", "/api/v1/jobs", token).status == 200
        later = server.token("read")
        until = time.monotonic() + 4 * guard.FRESH_S
        while server.ask("GET", "/api/v1/jobs", later).status == 429 and time.monotonic() < until:
            time.sleep(0.2)  # which tokens there are is asked every other second then
        assert server.ask("GET", "/api/v1/jobs", later).status == 200


def test_a_proxy_is_believed_where_it_was_named(tmp_path: Path) -> None:
    """With `--proxy` the client is the last address that is no proxy's, and wrong tokens are counted for that one."""
    from ipaddress import ip_network

    with running_server(tmp_path, digesters=0, proxies=(ip_network("127.0.0.0/8"),)) as server:
        first = [
            server.ask("GET", "/api/v1/jobs", f"hs_{n}", X_Forwarded_For="9.9.9.9, 10.0.0.1").status for n in range(40)
        ]
        assert 429 in first
        assert server.ask("GET", "/api/v1/jobs", "hs_x", X_Forwarded_For="10.0.0.1, 10.0.0.2").status == 401


def test_requests_of_one_project_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all places of a project are taken by requests that take long, another project's is answered at once."""
    with running_server(tmp_path, digesters=0) as server:
        much, other = server.token("push"), server.token("push", project="other")
        from hangscope.server.intake import job_rosters

        take = job_rosters.add_roster
        over = threading.Event()

        def slowly(database: Any, project_id: int, value: Any, *more: Any) -> int:
            if value["job"] == "slow":
                over.wait(20)
            return take(database, project_id, value, *more)

        monkeypatch.setattr(job_rosters, "add_roster", slowly)
        threads = [
            threading.Thread(target=server.ask, args=("POST", "/api/v1/jobs", much, {"job": "slow"})) for _ in range(60)
        ]
        for thread in threads:
            thread.start()
        time.sleep(1)
        began = time.monotonic()
        assert server.ask("POST", "/api/v1/jobs", other, {"job": "j"}).status == 202
        assert time.monotonic() - began < 3
        over.set()
        for thread in threads:
            thread.join()


# ---- what is not understood, one shape of errors, and a disk that is full --------------------------------------------


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    """A number in quotes, a field or parameter that was misspelt, a webhook that is no address: 422 with the place, and
    nothing is changed."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("push", "read", "admin")
        for method, path, value in (
            ("POST", "/api/v1/tokens", {"name": "x", "scopes": ["push"], "days": "90"}),
            ("POST", "/api/v1/tokens", {"name": "x", "scopes": ["push"], "dayz": 90}),
            ("PUT", "/api/v1/retention", {"dayz": 90}),
            ("PUT", "/api/v1/retention", {"days": 0}),
            ("PUT", "/api/v1/retention", [1]),
            ("POST", "/api/v1/issues/1/mute", {"days": "7"}),
            ("POST", "/api/v1/issues/1/resolve", {"days": 7}),
            ("POST", "/api/v1/webhooks", {"url": "http://[::1"}),
            ("POST", "/api/v1/webhooks", {"url": "http://:80/"}),
            ("POST", "/api/v1/webhooks", {"url": "http://x:99999/"}),
            ("POST", "/api/v1/jobs", {"job": "j", "nodez": []}),
            ("POST", "/api/v1/jobs", {"job": "j", "nodes": [{"node": 7.5}]}),
            ("POST", "/api/v1/jobs/end", {"job": "j", "exit_status": "0"}),
            ("GET", "/api/v1/incidents?kindd=gpu", None),
            ("GET", "/api/v1/incidents?before=nan", None),
            ("GET", "/incidents?kindd=gpu", None),
        ):
            answer = server.ask(method, path, token, value)
            assert answer.status in (400, 422), (path, answer.text)
            assert answer.status == 422 or "url" in answer.text or "says nothing" in answer.text, answer.text
            assert set(answer.json) == {"error", "hint", "request"}
        assert [each["name"] for each in server.ask("GET", "/api/v1/tokens", token).json["tokens"]] == [
            "test push read admin"
        ]
        assert server.ask("GET", "/api/v1/jobs", token).json == {"jobs": [], "next": None}


def test_errors_have_one_shape(tmp_path: Path) -> None:
    """An address that is not there, a method that is not taken, no token, another's number: the same fields for
    programs, a page for browsers."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("read")
        for method, path, who in (
            ("GET", "/nothing", token),
            ("GET", "/api/v1/nothing", token),
            ("PATCH", "/api/v1/jobs", token),
            ("GET", "/api/v1/jobs", None),
            ("GET", "/api/v1/jobs/7", token),
        ):
            answer = server.ask(method, path, who)
            assert set(answer.json) == {"error", "hint", "request"}, path
            assert answer.headers["x-request-id"] == answer.json["request"]
        assert server.ask("OPTIONS", "/api/v1/incidents/1", token).headers["allow"] == "DELETE, GET"
        assert "<!doctype html>" in server.ask("GET", "/nothing", token, **HTML).text


def test_on_a_full_disk_pages_are_shown(tmp_path: Path) -> None:
    """Where nothing can be written any more, incidents, suspects and the incident's page are shown, a push is answered
    with 507, and health says that it is read-only."""
    with running_server(tmp_path) as server:
        token = server.token("push", "read")
        number = server.push(token, bundle("sleep"))
        server.digested(token, number)
        cookie = {"Cookie": server.session(token), **HTML}
        server.workers.stop()
        time.sleep(1.5)
        with server.opened.database.read() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        from sqlalchemy import event

        @event.listens_for(server.opened.database.engine, "begin")
        def full(connection: Any) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        refused = [server.ask("POST", "/api/v1/jobs", token, {"job": f"j{n}", "image": "x" * 290}) for n in range(60)]
        assert refused[-1].status == 507, refused[-1].text
        for path in ("/incidents", f"/incidents/{number}", f"/incidents/{number}/page", "/suspects", "/nodes"):
            assert server.ask("GET", path, None, **cookie).status == 200, path
        health = server.ask("GET", "/healthz")
        assert (health.status, health.json["status"]) == (200, "read-only")


def test_a_search_for_a_node_finds_that_node(tmp_path: Path, database_url: str) -> None:
    """`worker-7` is not `worker-70`, and a job's number no part of another; a part of a word is found."""
    from hangscope.server.web import lists

    with running_server(tmp_path, database_url, digesters=0) as server:
        token = server.token("push", "read")
        for number in (7, 70, 17, 77):
            server.push(token, f"x{number}".encode(), job=f"gpu-worker-{number}")
        found = server.ask("GET", "/api/v1/incidents?q=gpu-worker-7", token).json["incidents"]
        assert [each["job"] for each in found] == ["gpu-worker-7"]
        assert len(server.ask("GET", "/api/v1/incidents?q=pu-work", token).json["incidents"]) == 4
        with server.opened.database.read() as connection:
            project = access(server.opened.database).project_id
            for odd in ("7*", "[7]", "7(", "\\7", "7.", "+7", "7%"):
                assert lists.incidents(connection, project, lists.Filters(odd)) == []


def test_lists_say_where_they_go_on(tmp_path: Path) -> None:
    """`next` leads through all incidents, each once; `since`, `cluster` and times filter."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("push", "read")
        for number in range(7):
            server.push(token, f"x{number}".encode(), job=f"j{number}", captured_at=1e9 + number)
        seen: list[int] = []
        path: str | None = "/api/v1/incidents?limit=3&cluster=west"
        while path:
            page = server.ask("GET", path, token).json
            seen += [each["id"] for each in page["incidents"]]
            path = page["next"]
        assert len(seen) == len(set(seen)) == 7
        for asked, count in (
            (f"since={time.time() + 60}", 0),
            ("happened_after=1000000003", 4),
            ("happened_before=1000000003", 3),
            ("cluster=east", 0),
        ):
            assert len(server.ask("GET", f"/api/v1/incidents?{asked}", token).json["incidents"]) == count, asked


def test_one_incident_is_deleted_now(tmp_path: Path) -> None:
    """An administrator deletes an incident, one that failed too: it, its bundle, page and verdict are gone, another's
    shared chunk stays, and the audit says who did it."""
    with running_server(tmp_path) as server:
        token, reader = server.token("push", "read", "admin"), server.token("read")
        keep = server.push(token, b"rubbish", job="a")
        gone = server.push(token, bundle("sleep"))
        assert server.digested(token, keep)["state"] == "failed"
        server.digested(token, gone)
        assert server.ask("DELETE", f"/api/v1/incidents/{gone}", reader).status == 403
        assert server.ask("DELETE", f"/api/v1/incidents/{gone}", token).json == {"deleted": True}
        assert server.ask("DELETE", f"/api/v1/incidents/{gone}", token).status == 404
        assert [path.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == [sha(b"rubbish")]
        assert "delete incident" in [each["what"] for each in server.ask("GET", "/api/v1/audit", token).json["audit"]]
        assert server.ask("POST", f"/api/v1/incidents/{keep}/digest", token, b"").status == 202
        assert server.ask("GET", "/api/v1/usage", token).json["used"]["stored_bytes"] == len(b"rubbish")


def test_a_session_ends_when_it_is_closed(tmp_path: Path) -> None:
    """After logging out, and after its token was revoked, a copied cookie opens nothing; nor on another host."""
    with running_server(tmp_path, digesters=0) as server:
        token, admin = server.token("read"), server.token("admin")
        cookie = {"Cookie": server.session(token), **HTML}
        assert server.ask("GET", "/jobs", None, **cookie).status == 200
        assert server.ask("GET", "/jobs", None, Host="elsewhere:1", **cookie).status == 401
        server.ask("POST", "/logout", None, b"", **{**cookie, "Sec-Fetch-Site": "same-origin"})
        assert server.ask("GET", "/jobs", None, **cookie).status == 401
        second = {"Cookie": server.session(token), **HTML}
        number = next(
            each["id"]
            for each in server.ask("GET", "/api/v1/tokens", admin).json["tokens"]
            if each["name"] == "test read"
        )
        server.ask("DELETE", f"/api/v1/tokens/{number}", admin)
        assert server.ask("GET", "/jobs", None, **second).status == 401


def test_it_is_served_below_a_path(tmp_path: Path) -> None:
    """With a path in `--url` all links and the cookie are below it, whether the proxy takes it off or not."""
    with running_server(tmp_path, digesters=0, base_url="https://example.org/hangs") as server:
        token = server.token("push", "read")
        server.push(token, b"abc")
        for prefix in ("", "/hangs"):
            page = server.ask("GET", f"{prefix}/incidents", token, **HTML)
            assert page.status == 200
            assert 'href="/hangs/incidents/1"' in page.text
            assert 'href="/incidents' not in page.text
        first = server.ask("GET", "/hangs/", token, **HTML).text
        assert 'href="/hangs/suspects"' in first
        assert 'href="/incidents' not in first
        assert server.ask("GET", "/hangs/healthz").status == 200


def test_an_unknown_node_is_not_a_healthy_one(tmp_path: Path) -> None:
    """`node-check` says 0 for a node that jobs ran on, also under its short name, and 2 for one that none knows."""
    from click.testing import CliRunner

    with running_server(tmp_path, digesters=0) as server:
        push, read = server.token("push"), server.token("read")
        nodes = [{"node": name} for name in ("gpu7.west", "gpu8.west", "gpu8.east")]
        assert server.ask("POST", "/api/v1/jobs", push, {"job": "j", "nodes": nodes}).status == 202
        for name, status in (("gpu7.west", 0), ("GPU7", 0), ("gpu8", 2), ("gpu9", 2), ("gpu7.east", 2)):
            done = CliRunner().invoke(
                node_check,
                ["--server", server.url, "--node", name],
                env={"HANGSCOPE_TOKEN": read, "HANGSCOPE_TOKEN_FILE": None},
                standalone_mode=False,
            )
            assert done.return_value == status, (name, done.output)
        assert "gpu8.east, gpu8.west" in server.ask("GET", "/api/v1/nodes/gpu8/check", read).text.replace(
            '"', ""
        ).replace(",", ", ")


def test_silent_receivers_hold_no_diagnosis_up(tmp_path: Path) -> None:
    """With eight webhooks whose receivers take the request and say nothing, an incident is diagnosed as ever."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, running_server(tmp_path) as server:
        token = server.token("push", "read", "admin")
        for number in range(8):
            address = f"http://127.0.0.1:{silent.getsockname()[1]}/{number}"
            assert server.ask("POST", "/api/v1/webhooks", token, {"url": address}).status == 201
        server.digested(token, server.push(token, bundle("sleep")))
        began = time.monotonic()
        server.digested(token, server.push(token, bundle("stop"), job="next"))
        assert time.monotonic() - began < 20
