"""A node's file: which cluster it is of, what was done about it, and what that does to suspicion."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from hangscope.cli.verbs.node import command as node_verb
from hangscope.cli.verbs.node import kubernetes_states, slurm_states
from hangscope.cli.verbs.node_check import command as node_check
from hangscope.server.history import marks
from hangscope.server.history.summary import make
from hangscope.server.intake.job_rosters import add_roster
from hangscope.server.store import access_tokens
from hangscope.server.store.database import Database
from hangscope.server.store.upgrade import upgrade
from kits.fleet import RunningServer, access, running_server
from kits.past import HOUR_S, fleet, hang


def proposed(database: Database, project: int) -> list[tuple[str, str]]:
    found = make(database, project, "", time.time()).value["suspects"]
    return [(each["name"], each["cluster"]) for each in found if each["proposed"]]


def test_nodes_of_one_name_in_two_clusters_are_two(database: Database) -> None:
    """West's node5 hangs jobs; east's node5, of the same name, is no suspect and has its own file."""
    project = access(database).project_id
    fleet(database, project, "east", "west")
    for number in range(4):
        hang(database, project, "west", number, "node5", 5 + number)
    assert proposed(database, project) == [("node5", "west")]
    with database.read() as connection:
        clusters = [row.cluster for row in marks.named(connection, project, "node", "node5")]
    assert clusters == ["east", "west"]


def test_a_repaired_node_begins_anew(database: Database) -> None:
    """After the repair the node is proposed no more, and nobody else is blamed in its place; new hangs count again."""
    project = access(database).project_id
    fleet(database, project, "west")
    for number in range(4):
        hang(database, project, "west", number, "node5", 5 + number)
    assert proposed(database, project) == [("node5", "west")]
    with database.write() as connection:
        node = marks.find_node(connection, project, "node5")
        now = time.time()
        marks.add(connection, project, node.id, "repaired", "ada", "new GPU", now - 4 * HOUR_S, now)
    assert proposed(database, project) == []
    for number in range(4, 8):
        hang(database, project, "west", number, "node5", 3.5 - number * 0.25)
    assert proposed(database, project) == [("node5", "west")]


def test_a_dismissed_suspect_needs_new_evidence(database: Database) -> None:
    """What verdicts said until somebody dismissed it does not count; the same again afterwards does."""
    project = access(database).project_id
    fleet(database, project, "west")
    for number in range(4):
        hang(database, project, "west", number, "node5", 5 + number)
    with database.write() as connection:
        node = marks.find_node(connection, project, "node5")
        marks.add(connection, project, node.id, "dismissed", "ada", "", time.time() - 4 * HOUR_S, time.time())
    assert proposed(database, project) == []
    for number in range(4, 8):
        hang(database, project, "west", number, "node5", 3.5 - number * 0.25)
    assert proposed(database, project) == [("node5", "west")]


def test_a_drain_and_a_resume_are_a_repair(database: Database) -> None:
    """Only a node that was seen taken out and then in service counts as repaired; nodes that nobody knows are left."""
    project = access(database).project_id
    fleet(database, project, "west")
    for states, back in (
        ({"node5": False, "node6": False}, []),
        ({"node5": True, "node6": False, "unknown": True}, []),
        ({"node5": True, "node6": False}, []),
        ({"node5": False, "node6": False, "unknown": False}, ["node5"]),
        ({"node5": False, "node6": False}, []),
    ):
        with database.write() as connection:
            found = marks.note_states(connection, project, "west", states.items(), "slurm", time.time())
        assert found == back


def test_states_of_slurm_are_read() -> None:
    """A drain is one in whatever other state; a node that is down, or rebooting, says neither."""
    said = "\n".join(
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 State={state} ThreadsPerCore=1 Reason=Not responding [root@x]"
        for name, state in (
            ("n1", "IDLE"),
            ("n2", "IDLE+DRAIN"),
            ("n3", "MIXED+DRAIN"),
            ("n4", "DOWN*"),
            ("n5", "DOWN+DRAIN+NOT_RESPONDING"),
            ("n6", "MIXED"),
            ("n7", "IDLE+REBOOT_ISSUED"),
        )
    )
    assert dict(slurm_states(said)) == {"n1": False, "n2": True, "n3": True, "n5": True, "n6": False}


def test_states_of_kubernetes_are_read() -> None:
    """Cordoned is taken out; a node that is merely not ready says nothing."""

    def node(name: str, ready: str, **spec: Any) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": ready}]
        return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}

    items = [node("a", "True"), node("b", "True", unschedulable=True), node("c", "False"), {"metadata": 7}]
    assert dict(kubernetes_states(json.dumps({"items": items}).encode())) == {"a": False, "b": True}


@pytest.fixture
def two_clusters(tmp_path: Path) -> Any:
    with running_server(tmp_path, digesters=0) as server:
        project = access(server.opened.database).project_id
        fleet(server.opened.database, project, "east", "west")
        for number in range(4):
            hang(server.opened.database, project, "west", number, "node5", 5 + number)
        yield server


def run(server: RunningServer, token: str, verb: Any, *words: str) -> Any:
    env = {"HANGSCOPE_TOKEN": token, "HANGSCOPE_SERVER": server.url}
    return CliRunner().invoke(verb, list(words), env=env, standalone_mode=False)


def test_the_check_of_a_node_is_of_its_cluster(two_clusters: RunningServer) -> None:
    """East's node5 may work, west's is to be taken out, and without a cluster the name is not enough."""
    token = two_clusters.token("read")
    for cluster, status in (("east", 0), ("west", 1)):
        checked = run(two_clusters, token, node_check, "--node", "node5", "--cluster", cluster)
        assert checked.return_value == status, checked.output
    assert run(two_clusters, token, node_check, "--node", "node5").return_value == 2
    assert run(two_clusters, token, node_check, "--node", "node9", "--cluster", "north").return_value == 2


def test_a_node_is_repaired_on_the_command_line(two_clusters: RunningServer) -> None:
    """`hangscope node repaired` takes the node off the suspects, with its note in the file; read alone may not."""
    words = ("repaired", "node5", "--cluster", "west", "--note", "GPU 6 replaced")
    refused = run(two_clusters, two_clusters.token("read"), node_verb, *words)
    assert "has no scope 'triage'" in str(refused.exception)
    token = two_clusters.token("triage")
    done = run(two_clusters, token, node_verb, *words)
    assert done.return_value == 0, done.output
    database = two_clusters.opened.database
    make(database, access(database).project_id, "", time.time())
    assert run(two_clusters, token, node_check, "--node", "node5", "--cluster", "west").return_value == 0
    shown = run(two_clusters, token, node_verb, "show", "node5", "--cluster", "west").output
    assert "named by 4 incidents" in shown
    assert "repaired  GPU 6 replaced" in shown
    which = run(two_clusters, token, node_verb, "note", "node5", "x")
    assert "in several clusters: east, west" in str(which.exception)


def test_the_page_of_a_node_takes_notes(two_clusters: RunningServer) -> None:
    """The form on the page marks the node of that cluster; the page of a name that two have asks which is meant."""
    token = two_clusters.token("triage")
    cookie = two_clusters.session(token)
    html = {"Accept": "text/html", "Cookie": cookie}
    assert "in cluster east" in two_clusters.ask("GET", "/nodes/node5", **html).text
    page = two_clusters.ask("GET", "/nodes/node5?cluster=west", **html).text
    assert "<b>Look at it</b>" in page
    form = {**html, "Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    done = two_clusters.ask("POST", "/nodes/node5/repaired?cluster=west", None, b"note=new+cable", **form)
    assert (done.status, done.headers["location"]) == (303, "/nodes/node5?cluster=west")
    assert "<b>repaired</b>: new cable" in two_clusters.ask("GET", "/nodes/node5?cluster=west", **html).text
    assert (
        "repaired"
        not in two_clusters.ask("GET", "/nodes/node5?cluster=east", **html).text.split("What was noted")[0][:0]
    )


def test_lists_that_are_cut_say_so(tmp_path: Path) -> None:
    """A node of 450 jobs has 450, of which the last 200 are shown; a job's nodes come before its GPUs."""
    with running_server(tmp_path, digesters=0) as server:
        project = access(server.opened.database).project_id
        gpus = [[{"uuid": f"GPU-{number}-{each}"} for each in range(8)] for number in range(260)]
        nodes = [{"node": f"n{number}", "gpus": of_node} for number, of_node in enumerate(gpus)]
        add_roster(server.opened.database, project, {"job": "large", "nodes": nodes})
        for number in range(250):
            add_roster(server.opened.database, project, {"job": f"j{number}", "nodes": [{"node": "n1"}]})
        token = server.token("read")
        page = server.ask("GET", "/nodes/n1", token, Accept="text/html").text
        assert "in 251 jobs" in page
        assert "last 200 of 251 jobs" in page
        job = server.ask("GET", "/jobs/1", token, Accept="text/html").text
        assert "260 nodes" in job
        assert "2,080 gpus" in job
        assert job.count("/nodes/n") == 260
        assert "first 2000 of 2,340, nodes first" in job


def test_machines_of_an_older_schema_get_their_cluster(database_url: str) -> None:
    """A name that ran jobs of two clusters becomes a node of each, with its own jobs, verdicts and GPU."""
    database = Database(database_url)
    upgrade(database, "0003")
    now = time.time()
    with database.write() as connection:
        project = access_tokens.project(connection, "llm")

        def add(statement: str, **values: Any) -> None:
            connection.execute(text(statement), {"p": project, "now": now, **values})

        job = (
            "INSERT INTO jobs (project_id, cluster, name, attempt, started_at, details)"
            " VALUES (:p, :c, :n, '0', :now, '{}')"
        )
        for cluster in ("east", "west"):
            add(job, c=cluster, n="j")
        entity = (
            "INSERT INTO entities (project_id, kind, name, first_seen_at, last_seen_at, part_of)"
            " VALUES (:p, :k, :n, :now, :now, :above)"
        )
        for kind, name, above in (
            ("node", "n1", None),
            ("gpu", "n1/07:00", 1),
            ("node", "n2", None),
            ("image", "i", None),
        ):
            add(entity, k=kind, n=name, above=above)
        for job_id, entity_id in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (1, 4), (2, 4)):
            add("INSERT INTO exposures (job_id, entity_id, ranks) VALUES (:j, :e, '')", j=job_id, e=entity_id)
        add(
            "INSERT INTO incidents (project_id, job_id, identity, state, received_at, happened_at, outcome, words)"
            " VALUES (:p, 2, 'x', 'digested', :now, :now, 'hang', '')"
        )
        add("INSERT INTO accused (incident_id, entity_id, role) VALUES (1, 1, 'culprit')")
    upgrade(database)
    with database.read() as connection:
        rows = connection.execute(
            text(
                "SELECT e.kind, e.name, e.cluster, above.cluster, count(x.job_id), count(a.incident_id) FROM entities e"
                " LEFT JOIN entities above ON above.id = e.part_of LEFT JOIN exposures x ON x.entity_id = e.id"
                " LEFT JOIN accused a ON a.entity_id = e.id GROUP BY e.id, e.kind, e.name, e.cluster, above.cluster"
            )
        )
        assert sorted(tuple(row) for row in rows) == [
            ("gpu", "n1/07:00", "east", "east", 1, 0),
            ("gpu", "n1/07:00", "west", "west", 1, 0),
            ("image", "i", "", None, 2, 0),
            ("node", "n1", "east", None, 1, 0),
            ("node", "n1", "west", None, 1, 1),
            ("node", "n2", "west", None, 1, 0),
        ]
    database.close()
