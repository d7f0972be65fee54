"""`run --server`: a real job's roster, failure and end reach a real server; without one nothing waits or is lost."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from hangscope.push.spool import Spool
from kits.fleet import running_server

from .conftest import Starter, node_file

TRAIN = Path(__file__).with_name("train.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TRAIN)


@pytest.mark.torch
def test_a_failed_job_is_on_the_server(start: Starter, tmp_path: Path) -> None:
    """Roster, incident with its verdict, and the end of a real torchrun job are there; its token is nowhere."""
    pytest.importorskip("torch")
    with running_server(tmp_path / "server") as server:
        token = server.token("push", "read")
        given = {"HANGSCOPE_TOKEN": token, "HANGSCOPE_SPOOL": str(tmp_path / "spool"), "HANGSCOPE_COMMIT": "c0ffee"}
        options = (
            "--stall-after",
            "3",
            "--job",
            "j1",
            "--server",
            server.url,
            "--on-hang",
            "kill",
            "--kill-after",
            "1",
        )
        incident = tmp_path / "run"
        started = start.run(incident, *TORCHRUN, "--fault", "raise", options=options, **given)
        started.wait(90)
        assert f"on the server: {server.url}/incidents/1" in started.err
        (job,) = server.ask("GET", "/api/v1/jobs", token).json["jobs"]
        assert (job["name"], job["world_size"], job["commit"]) == ("j1", 2, "c0ffee")
        assert job["exit_status"]
        ran_on = server.ask("GET", f"/api/v1/jobs/{job['id']}", token).json["ran_on"]
        assert {"kind": "node", "name": node_file(incident)["node"], "ranks": "0 1"} in ran_on
        (found,) = server.ask("GET", "/api/v1/incidents", token).json["incidents"]
        found = server.digested(token, found["id"])
        assert (found["job"], found["kind"]) == ("j1", "dead")
        assert found["explanation"]["function"] == "train.go_wrong"
    assert Spool(tmp_path / "spool").entries() == []
    files = [path for place in (incident, started.folder) for path in place.rglob("*") if path.is_file()]
    assert not [path for path in files if token.encode() in path.read_bytes()]


def test_a_dead_server_delays_nothing_and_loses_nothing(start: Starter, tmp_path: Path) -> None:
    """A command under a server that is away ends as without one, with one warning; its end waits in the spool and is
    sent by the next push."""
    spool = tmp_path / "spool"
    given = {"HANGSCOPE_TOKEN": "hs_x", "HANGSCOPE_SPOOL": str(spool)}
    began = time.monotonic()
    options = ("--server", "http://127.0.0.1:9", "--job", "j2")
    started = start.run(tmp_path / "run", sys.executable, "-c", "raise SystemExit(3)", options=options, **given)
    assert started.wait(60) == 3
    assert time.monotonic() - began < 25
    assert started.err.count("warning: --server") == 1
    (entry,) = Spool(spool).entries()
    assert (entry.kind, entry.value["exit_status"]) == ("end", 3)
    with running_server(tmp_path / "server", digesters=0) as server:
        token = server.token("push", "read")
        push = (sys.executable, "-m", "hangscope", "push", "--server", server.url, "--moved-from", "http://127.0.0.1:9")
        assert start(*push, HANGSCOPE_TOKEN=token, HANGSCOPE_SPOOL=str(spool)).wait(30) == 0
        (job,) = server.ask("GET", "/api/v1/jobs", token).json["jobs"]
    assert (job["name"], job["exit_status"]) == ("j2", 3)
    assert Spool(spool).entries() == []


def test_a_token_never_comes_by_the_command_line() -> None:
    """No option of `push` or `run` takes the token itself."""
    from hangscope.cli.verbs import push, run

    for command in (push.command, run.command):
        assert "--token" not in json.dumps([option.opts for option in command.params]).replace("--token-file", "")
    assert "HANGSCOPE_TOKEN" not in os.environ
