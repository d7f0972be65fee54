"""Machine or code: what history proposes, and what it must not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench_suspicion import record
from hangscope.cli.fleet_demo import SEED, _found, demo_jobs, simulated
from hangscope.cli.verbs.diagnose import command as diagnose
from hangscope.cli.verbs.node_check import command as node_check
from hangscope.server.demo_data import fill
from hangscope.server.digest.digest_work import Digester
from hangscope.server.history import summary
from hangscope.server.history.decide import Rate, decide
from hangscope.server.history.fleet_history import History
from hangscope.server.history.observations import observations
from hangscope.server.history.scheduler_hints import hints
from hangscope.server.history.suspicion import JobRecord, Suspect, suspects
from hangscope.server.intake.job_rosters import add_roster
from hangscope.server.store import work_queue
from hangscope.server.store.blob_store import BlobFolder
from hangscope.server.store.database import Database
from hangscope.simulate.fleet.simulated_fleet import DAY_S, FleetSpec, simulate_fleet
from kits.fleet import INCIDENTS as RECORDED
from kits.fleet import access, add_hang, bundle, push, running_server

NOW = 100 * DAY_S


def job(
    number: int,
    nodes: Iterable[str],
    *,
    names: str | None = None,
    code: str = "a",
    days_ago: float = 1.0,
    name: str = "",
    fingerprint: str = "",
    hung_at: float | None = None,
) -> JobRecord:
    at = NOW - days_ago * DAY_S - number
    took_part = {"node": frozenset(nodes), "commit": frozenset((code,))}
    hung = hung_at if hung_at is not None else (at + 600 if names is not None else None)
    accused = frozenset([("node", names)] if names else [])
    return JobRecord(name or f"j{number}", at, code, took_part, hung, accused, fingerprint)


def healthy(count: int, *, nodes: int = 50, size: int = 4, start: int = 1000) -> list[JobRecord]:
    """Jobs that went well, spread over the cluster."""
    return [
        job(start + number, [f"n{(number * size + each) % nodes}" for each in range(size)], code=f"c{number % 5}")
        for number in range(count)
    ]


def proposed(jobs: list[JobRecord]) -> list[str]:
    return [each.name for each in suspects(jobs, NOW).proposed]


def test_a_node_that_hangs_jobs_of_all_kinds_is_proposed() -> None:
    """Three of its four jobs, of different programs, while the rest of the cluster is well."""
    bad = [job(n, ["n7", f"n{n}"], names="n7" if n < 4 else None, code=f"c{n}") for n in range(1, 5)]
    assert proposed([*bad, *healthy(100)]) == ["n7"]


def test_a_node_in_all_jobs_is_no_suspect() -> None:
    """A node named by four of five hangs, which ran in hundreds of jobs that went well, is like all others."""
    ran = [job(n, ["n7", f"n{n % 40}"], code=f"c{n % 5}") for n in range(400)]
    hung = [job(1000 + n, ["n7", f"n{n}"], names="n7", code=f"c{n}") for n in range(4)]
    assert proposed([*ran, *hung, job(2000, ["n3"], names="n3")]) == []


def test_attempts_of_one_job_count_once() -> None:
    """A job that hangs five times on the same node is one job: nothing is proposed before a second one."""
    attempts = [job(n, ["n7", "n8"], names="n7", name="same") for n in range(5)]
    assert "n7" not in proposed([*attempts, *healthy(200)])


def test_code_that_hangs_everywhere_accuses_no_node() -> None:
    """Fourteen of twenty jobs of one commit hang, each naming another node: the commit is proposed and no node."""
    hung = [
        job(n, [f"n{n}", f"n{n + 20}"], names=f"n{n}" if n < 14 else None, code="buggy", days_ago=1 + n / 3)
        for n in range(20)
    ]
    assert proposed([*hung, *healthy(200)]) == ["buggy"]


def test_an_outage_is_held_against_nobody() -> None:
    """Ten jobs that hang within a minute, whatever they name, propose nothing, and are shown as an outage."""
    hung = [job(n, [f"n{n % 2}", f"n{n}"], names=f"n{n % 2}", code=f"c{n}", hung_at=NOW - 500 + n) for n in range(10)]
    found = suspects([*hung, *healthy(100)], NOW)
    assert found.proposed == ()
    assert [jobs for _, jobs in found.outages] == [10]


def test_a_tenth_of_the_cluster_is_never_proposed() -> None:
    """Where so many nodes look bad that it cannot be the nodes, the brake holds all of them back."""
    bad = [
        job(node * 10 + n, [f"n{node}", f"m{node * 10 + n}"], names=f"n{node}", code=f"c{node}-{n}", days_ago=node + 1)
        for node in range(6)
        for n in range(3)
    ]
    few = [job(1000 + n, [f"n{n % 20}"], code="x") for n in range(20)]
    nodes = {name for each in (*bad, *few) for name in each.took_part["node"]}
    found = suspects([*bad, *few], NOW)
    machines = [each for each in found.proposed if each.kind == "node"]
    assert len(machines) <= len(nodes) / 10
    assert found.braked or len(machines) < 6


def test_what_is_long_ago_counts_less() -> None:
    """The same hangs half a year ago propose nothing today."""
    old = [job(n, ["n7", f"n{n}"], names="n7" if n < 4 else None, code=f"c{n}", days_ago=180) for n in range(1, 5)]
    assert proposed([*old, *healthy(100)]) == []


def test_one_incident_proposes_one_node() -> None:
    """A hang that names two nodes, one of which explains all, is held against that one."""
    hung = [job(n, ["n7", "n8", f"n{n}"], names="n7", code=f"c{n}") for n in range(4)]
    both = [
        JobRecord(each.name, each.at, each.code, each.took_part, each.hung_at, each.accused | {("node", "n8")})
        for each in hung[:2]
    ]
    assert proposed([*hung[2:], *both, *healthy(100)]) == ["n7"]


@pytest.mark.parametrize("fault", ["node", "gpu", "leaf", "image", "none", "storage"])
def test_the_simulated_fleet_is_judged_rightly(fault: str) -> None:
    """After four weeks the injected entity is first among the suspects, and without one nothing is proposed."""
    fleet = simulate_fleet(FleetSpec(fault=fault, seed=1))
    jobs = [record(each, fleet.spec) for each in fleet.jobs]
    now = max(each.ended_at for each in fleet.jobs)
    found = suspects(jobs, now, every_name=False)
    if fleet.truth is None:
        assert found.proposed == ()
    else:
        assert (found.suspects[0].kind, found.suspects[0].name) in fleet.also_right
        assert all((each.kind, each.name) in fleet.also_right for each in found.proposed)
    assert bool(found.outages) == (fault == "storage")


def test_the_same_spec_gives_the_same_fleet() -> None:
    """A fleet depends on its spec alone."""
    assert simulate_fleet(FleetSpec(seed=3, days=3)) == simulate_fleet(FleetSpec(seed=3, days=3))
    assert simulate_fleet(FleetSpec(seed=3, days=3)) != simulate_fleet(FleetSpec(seed=4, days=3))


def test_the_table_tells_machine_from_code() -> None:
    """Same node in other programs speaks for hardware, same code on other nodes for code, with the counts."""
    past = [job(n, ["n7", f"n{n}"], names="n7", code=f"c{n}", fingerprint=f"f{n}") for n in range(3)]
    mine = job(50, ["n7", "n9"], names="n7", code="z", fingerprint="mine")
    made = decide(mine, [*past, *healthy(20)])
    assert made.answer == "hardware"
    assert made.experiment is not None
    assert "--exclude=n7" in made.experiment.commands[0]
    elsewhere = [job(n, [f"n{n}"], names=f"n{n}", code="z", fingerprint="mine") for n in range(10, 13)]
    assert decide(mine, [*elsewhere, *healthy(20)]).answer == "code"
    assert decide(mine, healthy(20)).answer == "not decided"


def test_what_machines_did_on_many_nodes_is_no_code() -> None:
    """Thirty independent faults of one kind on separate nodes have one fingerprint, and do not speak for the code."""
    past = [
        replace(job(n, [f"n{n}"], names=f"n{n}", fingerprint="gpu", days_ago=n + 1), about_code=False)
        for n in range(30)
    ]
    mine = job(50, ["n50"], names="n50", fingerprint="gpu")
    for asked in (mine, replace(mine, about_code=False)):
        made = decide(asked, [*past, *healthy(20)])
        assert made.answer == "not decided"
        assert not [row for row in made.rows if row.speaks_for == "code"]


def add_healthy(database: Database, project_id: int) -> None:
    for number in range(40):
        nodes = [{"node": f"well-{(number + each) % 20}", "leaf": f"leaf-{number % 20}"} for each in range(2)]
        add_roster(database, project_id, {"job": f"well-{number}", "nodes": nodes})


def of_kind(number: int, place: tuple[str, str], *, about_code: bool, fingerprint: str, code: str) -> JobRecord:
    """A hang on two nodes of its own, held against one place."""
    made = job(number, [f"a{number}", f"b{number}"], code=code, fingerprint=fingerprint, days_ago=number + 1)
    took_part = {**made.took_part, place[0]: frozenset([place[1]])}
    hung = replace(made, hung_at=made.at + 60, accused=frozenset([place]), took_part=took_part)
    return replace(hung, about_code=about_code)


@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [
        ("node", "n7", "hardware"),
        ("gpu", "GPU-1", "hardware"),
        ("nic", "n7/mlx5_0", "network"),
        ("link", "n7 -> n8", "network"),
    ],
)
def test_machines_are_counted_by_their_place(kind: str, name: str, answer: str) -> None:
    """What the same node, GPU, port or link did in other programs speaks for it; thirty faults of the same kind in
    separate places speak for nothing, and never for the code."""
    mine = of_kind(0, (kind, name), about_code=False, fingerprint="f", code="mine")
    same = [of_kind(n, (kind, name), about_code=False, fingerprint="f", code=f"c{n}") for n in range(1, 4)]
    assert decide(mine, [*same, *healthy(20)]).answer == answer
    apart = [of_kind(n, (kind, f"{name}-{n}"), about_code=False, fingerprint="f", code=f"c{n}") for n in range(1, 31)]
    made = decide(mine, [*apart, *healthy(20)])
    assert made.answer == "not decided"
    assert made.says == "machine or code: not decided by other jobs"
    assert not [row for row in made.rows if row.speaks_for == "code"]


def test_code_is_counted_by_its_program() -> None:
    """Ten programs that hang in a function of one name are no evidence against each other; three jobs of one program
    are."""
    mine = job(50, ["n50"], names="n50", code="mine", fingerprint="train.step")
    others = [
        job(n, [f"n{n}"], names=f"n{n}", code=f"p{n}", fingerprint="train.step", days_ago=n + 2) for n in range(10)
    ]
    assert decide(mine, [*others, *healthy(20)]).answer == "not decided"
    same = [replace(each, code="mine") for each in others[:3]]
    assert decide(mine, [*same, *healthy(20)]).answer == "code"


@pytest.mark.parametrize("kind", ["mismatch", "deadlock", "shift"])
def test_a_verdict_on_the_code_is_held_against_no_machine(sqlite_database: Database, kind: str) -> None:
    """Calls that do not match are the program's: the node on which the odd rank ran is no suspect, however often, and
    no experiment is proposed with it; the same hangs of a kind that a machine may cause are held against it."""
    who = access(sqlite_database)
    add_healthy(sqlite_database, who.project_id)
    for number in range(4):
        add_hang(sqlite_database, who.project_id, f"job-{number}", "n7", kind=kind)
    history = History(sqlite_database)
    made = history.of_incident(who.project_id, 1)
    assert made is not None
    assert made.track_records == ()
    assert made.decision.experiment is None
    assert not [row for row in made.decision.rows if row.speaks_for in ("hardware", "network")]
    assert history.suspects(who.project_id)["suspects"] == []
    asked = {"accused": [{"kind": "node", "name": "n7"}], "kind": kind, "job": "job-9"}
    assert history.asked(who.project_id, asked)["answer"] == "not decided"
    assert history.asked(who.project_id, {**asked, "kind": "gpu"})["answer"] == "not decided"
    for number in range(4, 8):
        add_hang(sqlite_database, who.project_id, f"job-{number}", "n7", kind="gpu")
    assert history.asked(who.project_id, asked)["answer"] == "not decided"
    assert history.asked(who.project_id, {**asked, "kind": "gpu"})["answer"] == "hardware"


def test_each_incident_of_a_job_is_judged_by_its_own_verdict(sqlite_database: Database) -> None:
    """A job that first lost a GPU and then made a wrong call: the second one's page does not speak of the GPU."""
    who = access(sqlite_database)
    add_healthy(sqlite_database, who.project_id)
    for number in range(4):
        add_hang(sqlite_database, who.project_id, f"job-{number}", "n7", kind="gpu")
    add_hang(sqlite_database, who.project_id, "job-0", "n7", kind="mismatch", identity="second")
    history = History(sqlite_database)
    first, second = history.of_incident(who.project_id, 1), history.of_incident(who.project_id, 5)
    assert first is not None
    assert second is not None
    assert (first.decision.answer, second.decision.answer) == ("hardware", "not decided")


def test_page_api_and_command_say_the_same_sentence(tmp_path: Path) -> None:
    """Of one hang the incident's page, the API's decision and `diagnose --server` have the same line, also where the
    leaf switch decides, which only the server knows of."""
    with running_server(tmp_path) as server:
        token = server.token("push", "read")
        who = access(server.opened.database)
        add_healthy(server.opened.database, who.project_id)
        for number in range(1, 5):
            add_hang(server.opened.database, who.project_id, f"bad-{number}", f"n{number}", kind="network")
            below = {"job": f"bad-{number}", "nodes": [{"node": f"n{number}", "leaf": "leaf-1"}]}
            add_roster(server.opened.database, who.project_id, below)
        add_roster(
            server.opened.database,
            who.project_id,
            {"job": "well", "nodes": [{"node": "gpu-worker-7", "leaf": "leaf-1"}]},
        )
        number = server.push(token, bundle("sleep"), cluster="")
        server.digested(token, number)
        decided = server.ask("GET", f"/api/v1/incidents/{number}/decision", token).json
        assert decided["answer"] == "network"
        page = server.ask("GET", f"/incidents/{number}", token, Accept="text/html").text
        assert f"<b>{decided['says']}</b>" in page
        words = [str(RECORDED / "sleep"), "--server", server.url, "--width", "300"]
        given = {"HANGSCOPE_TOKEN": token, "HANGSCOPE_TOKEN_FILE": None}
        shown = CliRunner().invoke(diagnose, words, env=given, standalone_mode=False)
        assert decided["says"] in shown.output


def test_a_table_that_speaks_for_both_decides_nothing() -> None:
    """Same node in other programs and same code on other nodes at once: not decided, unless the node's odds do it."""
    past = [job(n, ["n7", f"n{n}"], names="n7", code=f"c{n}", fingerprint=f"f{n}", days_ago=n + 2) for n in range(3)]
    elsewhere = [job(n, [f"n{n}"], names=f"n{n}", code="z", fingerprint="mine", days_ago=n) for n in range(10, 13)]
    mine = job(50, ["n7", "n9"], names="n7", code="z", fingerprint="mine")
    both = [*past, *elsewhere, *healthy(20)]
    assert decide(mine, both).answer == "not decided"
    assert {row.speaks_for for row in decide(mine, both).rows if row.holds} == {"hardware", "code"}
    assert decide(mine, both, proposed={("node", "n7")}).answer == "hardware"


def test_a_node_that_is_named_too_often_lets_nothing_speak_for_the_code() -> None:
    """A node named in two of its thirteen jobs, where others hardly ever are, does not decide; nor does the same code
    on other nodes then. Named in no other job, it leaves the code to itself."""
    named = [job(n, ["n7", f"n{n}"], names="n7", code=f"c{n}", fingerprint=f"f{n}", days_ago=n + 2) for n in range(2)]
    went_well = [job(20 + n, ["n7", f"m{n}"], code=f"d{n}", days_ago=n + 1) for n in range(11)]
    elsewhere = [job(n, [f"n{n}"], names=f"n{n}", code="z", fingerprint="mine", days_ago=n) for n in range(10, 13)]
    mine = job(50, ["n7", "n9"], names="n7", code="z", fingerprint="mine")

    def usual(_: str) -> Rate:
        return Rate(5, 1000)

    assert decide(mine, [*named, *went_well, *elsewhere], usual).answer == "not decided"
    assert decide(mine, [*went_well, *elsewhere], usual).answer == "code"


def test_a_leaf_switch_is_not_blamed_for_one_of_its_nodes() -> None:
    """Hangs below a switch that name one node again and again, or few of its many jobs, do not speak for the network;
    hangs that name its nodes in turn do."""

    def below(number: int, node: str) -> JobRecord:
        made = job(number, [node], names=node, code=f"c{number}")
        return replace(
            made, took_part={**made.took_part, "leaf": frozenset(["s1"])}, accused=made.accused | {("leaf", "s1")}
        )

    def answer(past: list[JobRecord]) -> set[str]:
        return {row.speaks_for for row in decide(below(50, "n1"), past).rows if row.holds}

    assert "network" not in answer([below(n, "n1") for n in range(3)])
    assert "network" in answer([below(n, f"n{n + 2}") for n in range(4)])
    well = [replace(job(100 + n, ["n1"]), took_part={"leaf": frozenset(["s1"])}) for n in range(60)]
    assert "network" not in answer([*(below(n, f"n{n + 2}") for n in range(4)), *well])


def test_a_program_of_few_jobs_convicts_nobody() -> None:
    """Three hangs of a new program on three single nodes, of which nothing else is known, propose nothing."""
    hung = [job(n, [f"n{n}"], names=f"n{n}", code="new") for n in range(3)]
    assert proposed([*hung, *healthy(100)]) == []


def test_two_that_explain_the_same_hangs_equally_are_not_proposed() -> None:
    """Where every hang names the same two nodes, nobody can say which of them it is."""
    hung = [job(n, ["n7", "n8", f"n{n + 20}"], names="n7", code=f"c{n}") for n in range(3)]
    both = [replace(each, accused=each.accused | {("node", "n8")}) for each in hung]
    assert proposed([*both, *healthy(100)]) == []


def test_a_hint_is_no_way_into_a_shell() -> None:
    """A node's name that no node can have is not made into a command; others are quoted."""
    bad = Suspect("node", "n1; rm -rf /", 99.0, 3, 4, 0.1)
    assert hints(bad, bad.name) == []
    good = hints(Suspect("node", "gpu-7", 99.0, 3, 4, 0.1), "gpu-7")
    assert good[0] == "scontrol update nodename=gpu-7 state=drain reason='hangscope: node named in 3 of 4 jobs'"


def test_history_is_read_from_the_database(database: Database, tmp_path: Path) -> None:
    """Rosters and digested incidents become records: what took part, who was named, with the leaf of the node."""
    who = access(database)
    blobs = BlobFolder(tmp_path / "blobs")
    said = {"node": "gpu-worker-7", "ranks": [2], "leaf": "leaf-3"}
    add_roster(database, who.project_id, {"cluster": "west", "job": "48537", "nodes": [said], "commit": "c1"})
    add_roster(database, who.project_id, {"cluster": "west", "job": "well-1", "nodes": [said]})
    push(database, blobs, who, bundle("sleep"))
    lease = work_queue.take(database, "test", 60)
    assert lease is not None
    Digester(database, blobs).work(lease)
    with database.read() as connection:
        hung, well = sorted(observations(connection, who.project_id, time.time()), key=lambda each: each.name)
    assert {("node", "gpu-worker-7"), ("leaf", "leaf-3")} <= hung.accused
    assert hung.took_part["commit"] == {"c1"}
    assert (well.hung_at, well.took_part["leaf"]) == (None, {"leaf-3"})


def test_suspects_are_on_their_page(tmp_path: Path) -> None:
    """A node that three pushed hangs name is proposed by page and API, with its counts and commands."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("push", "read")
        who = access(server.opened.database)
        for number in range(60):
            nodes = [{"node": f"n{(number + each) % 30}"} for each in range(4)]
            add_roster(server.opened.database, who.project_id, {"job": f"job-{number}", "nodes": nodes})
        from sqlalchemy import insert

        from hangscope.server.intake.entities import Entity
        from hangscope.server.intake.job_rosters import JobName, entity_rows, job_row
        from hangscope.server.store.tables import ACCUSED, INCIDENTS

        with server.opened.database.write() as connection:
            for number in range(4):
                value = JobName("", f"job-{100 + number}", "0")
                row = job_row(connection, who.project_id, value, time.time() - 3600 * number)
                incident = connection.execute(
                    insert(INCIDENTS)
                    .values(
                        project_id=who.project_id,
                        job_id=row,
                        identity=f"i{number}",
                        state="digested",
                        received_at=time.time(),
                        happened_at=time.time() - 3600 * number,
                        outcome="hang",
                        kind="gpu",
                        confidence="high",
                        headline="x",
                        words="",
                    )
                    .returning(INCIDENTS.c.id)
                ).scalar_one()
                entity = Entity("node", "n5")
                entities = entity_rows(connection, who.project_id, [entity], time.time())
                connection.execute(
                    insert(ACCUSED).values(incident_id=incident, entity_id=entities[entity], role="culprit")
                )
        for number in range(4):
            nodes = [{"node": "n5"}, {"node": f"n{10 + number}"}]
            add_roster(server.opened.database, who.project_id, {"job": f"job-{100 + number}", "nodes": nodes})
        found = server.ask("GET", "/api/v1/suspects", token).json
        assert (found["suspects"][0]["name"], found["suspects"][0]["proposed"]) == ("n5", True)
        page = server.ask("GET", "/suspects", token, Accept="text/html").text
        assert "scontrol update nodename=n5 state=drain" in page
        assert "n5 was the culprit in 4 of its" in page
        decided = server.ask("GET", "/incidents/1", token, Accept="text/html").text
        says = "this speaks for hardware (same node, other jobs): n5 was named in 3 of its 11 other jobs"
        assert f"<b>{says}</b>" in decided
        made = server.ask("GET", "/api/v1/incidents/1/decision", token).json
        assert (made["answer"], made["says"]) == ("hardware", says)
        for node, status in (("n5", 1), ("n6", 0)):
            checked = CliRunner().invoke(
                node_check,
                ["--server", server.url, "--node", node, "--write", str(tmp_path / node)],
                env={"HANGSCOPE_TOKEN": token},
                standalone_mode=False,
            )
            assert checked.return_value == status, checked.output
            assert bool((tmp_path / node).read_text()) == bool(status)
        for node, status in (("n5", 1), ("n6", 0)):
            assert health_check_program(server.url, token, node, tmp_path) == bool(status)
            assert node_problem_detector(server.url, token, node, tmp_path) == status


NODE_CHECK = Path(__file__).parents[2] / "docs" / "node-check.md"


def _beside(folder: Path, name: str, text: str) -> Path:
    """A program of the operator's, on the PATH of a recipe."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def _hangscope(folder: Path, node: str) -> Path:
    """The command as installed, on the machine `node`."""
    source = Path(__file__).parents[2] / "src"
    command = f'PYTHONPATH={source} exec {sys.executable} -m hangscope "$@" --node {node}'
    return _beside(folder, "hangscope", f"#!/bin/sh\n{command}\n")


def _pointed(text: str, url: str, token: str, folder: Path) -> str:
    file = folder / "token"
    file.write_text(token)
    file.chmod(0o600)
    return text.replace("https://hangscope.example.org", url).replace("/etc/hangscope/token", str(file))


def health_check_program(url: str, token: str, node: str, folder: Path) -> bool:
    """Whether the script of docs/node-check.md drains the node, as it stands there."""
    (found,) = re.findall(r"^    (#!/bin/sh\n.*?exit 0)$", NODE_CHECK.read_text(), re.DOTALL | re.MULTILINE)
    _hangscope(folder, node)
    told = folder / f"drained-{node}"
    _beside(folder, "scontrol", f'#!/bin/sh\necho "$@" > {told}\n')
    script = _pointed(textwrap.dedent("    " + found), url, token, folder).replace("/opt/hangscope", str(folder))
    program = _beside(folder, "health-check", script)
    done = subprocess.run([program], env={"SLURMD_NODENAME": node}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    drains = f"update nodename={node} state=drain reason=hangscope: {node} was "
    assert not told.exists() or told.read_text().startswith(drains)
    return told.exists()


def node_problem_detector(url: str, token: str, node: str, folder: Path) -> int:
    """The exit status of the plugin that docs/node-check.md configures, called as node-problem-detector calls it."""
    (found,) = re.findall(r'^    (\{"plugin".*?\}\]\})$', NODE_CHECK.read_text(), re.DOTALL | re.MULTILINE)
    (rule,) = json.loads(_pointed(found, url, token, folder))["rules"]
    assert rule["path"] == "/usr/bin/hangscope"
    words = [str(_hangscope(folder, node)), *rule["args"]]
    return subprocess.run(words, env={}, capture_output=True, timeout=60).returncode


def test_a_node_is_not_known_where_nobody_answers() -> None:
    """Without a server, a token or an answer the status is 2: neither healthy nor a problem."""
    for words, given in (([], {}), (["--server", "http://127.0.0.1:9"], {"HANGSCOPE_TOKEN": "hs_x"})):
        checked = CliRunner().invoke(node_check, words, env=given, standalone_mode=False)
        assert checked.return_value == 2


def test_a_filled_server_suspects_the_bad_node(sqlite_database: Database) -> None:
    """What `demo --fleet` fills a server with is history: the node that was bad is proposed, and issues are there."""
    fleet = simulated(SEED, time.time())
    fill(sqlite_database, "default", demo_jobs(fleet))
    summary.make(sqlite_database, 1, "", time.time())
    history = History(sqlite_database)
    found = history.suspects(1)["suspects"]
    assert [(each["kind"], each["name"]) for each in found if each["proposed"]] == [fleet.truth]
    assert _found(fleet, history).endswith("see who is suspect")
    assert not _found(replace(fleet, truth=("node", "gpu-worker-0")), history).endswith("see who is suspect")


def test_a_large_projects_summary_is_made_beside_the_server(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks does not wait for it: the page says that there is none yet, and a process of its own makes it."""
    monkeypatch.setattr(summary, "SMALL", -1)
    with running_server(tmp_path, database_url, digesters=0) as server:
        token = server.token("read")
        who = access(server.opened.database)
        add_roster(server.opened.database, who.project_id, {"job": "j", "nodes": [{"node": "n1"}]})
        assert server.ask("GET", "/api/v1/suspects", token).json["made_at"] is None
        assert "Not made yet" in server.ask("GET", "/suspects", token, Accept="text/html").text
        server.workers.start(1)
        until = time.monotonic() + 90
        while server.ask("GET", "/api/v1/suspects", token).json["made_at"] is None:
            assert time.monotonic() < until, "no summary"
            time.sleep(0.2)
        assert summary.stale(server.opened.database) is None
