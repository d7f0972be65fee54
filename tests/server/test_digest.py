"""From an accepted push to a grouped incident: the child that diagnoses, the fingerprint, the issue."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from hangscope.errors import InputError
from hangscope.server.digest import issue_groups
from hangscope.server.digest.digest_child import ChildLimits
from hangscope.server.digest.digest_work import Digester
from hangscope.server.digest.fingerprint import Fingerprint, fingerprint, group_role
from hangscope.server.intake.accept_push import Lacking, accept, parse
from hangscope.server.intake.job_rosters import add_roster, end_job
from hangscope.server.store import work_queue
from hangscope.server.store.blob_store import BlobFolder, BlobStore
from hangscope.server.store.database import Database
from hangscope.server.store.tables import ACCUSED, ENTITIES, EXPOSURES, INCIDENTS, ISSUES, JOBS, PARTS, WORK
from kits.fleet import access, bundle, push, push_value, sha


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobFolder(tmp_path / "blobs")


def digest_all(database: Database, blobs: BlobStore, limits: ChildLimits | None = None) -> None:
    digester = Digester(database, blobs, limits)
    while (lease := work_queue.take(database, "test", 60)) is not None:
        digester.work(lease)


def rows(database: Database, table: Any) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(table).order_by(*table.primary_key)).all())


def test_a_pushed_incident_is_diagnosed_and_grouped(database: Database, blobs: BlobStore) -> None:
    """A bundle that was accepted gets its verdict, page, fingerprint, issue, accused node and exposure, and leaves the
    queue."""
    who = access(database)
    push(database, blobs, who, bundle("sleep"))
    assert rows(database, INCIDENTS)[0].state == "accepted"
    digest_all(database, blobs)
    (incident,) = rows(database, INCIDENTS)
    assert (incident.state, incident.outcome, incident.kind) == ("digested", "hang", "absent")
    verdict = json.loads(b"".join(blobs.read(who.project_id, incident.verdict_sha256)))
    assert verdict["schema"] == "hangscope.diagnosis/1"
    assert b"<!doctype html>" in b"".join(blobs.read(who.project_id, incident.page_sha256))
    (issue,) = rows(database, ISSUES)
    assert issue.title.startswith("absent in ")
    with database.read() as connection:
        accused = connection.execute(
            select(ENTITIES.c.kind, ENTITIES.c.name).join(ACCUSED, ACCUSED.c.entity_id == ENTITIES.c.id)
        ).all()
        exposed = connection.execute(
            select(ENTITIES.c.name)
            .join(EXPOSURES, EXPOSURES.c.entity_id == ENTITIES.c.id)
            .where(ENTITIES.c.kind == "node")
        ).scalars()
        assert set(exposed) == {"gpu-worker-6", "gpu-worker-7"}
    culprit = verdict["culprits"][0]
    assert ("node", culprit["node"]) in accused
    assert ("rank", str(culprit["rank"])) in accused
    assert ("gpu", "GPU-00000000-0000-0000-0000-000000000000") in accused
    assert rows(database, WORK) == []


def test_the_same_bundle_twice_is_one_part(database: Database, blobs: BlobStore) -> None:
    """A push that is repeated because its answer was lost changes nothing and gives the same incident."""
    who = access(database)
    first = push(database, blobs, who, bundle("sleep"))
    second = push(database, blobs, who, bundle("sleep"))
    assert (second.incident, second.is_new) == (first.incident, False)
    assert len(rows(database, PARTS)) == len(rows(database, INCIDENTS)) == 1


def test_parts_of_one_incident_join(database: Database, blobs: BlobStore) -> None:
    """Bundles of one job, attempt and hang from two nodes are one incident, of another hang another one."""
    who = access(database)
    first = push(database, blobs, who, bundle("sleep"), source="a", hang="hang")
    assert push(database, blobs, who, bundle("stop"), source="b", hang="hang").incident == first.incident
    assert push(database, blobs, who, bundle("kill"), source="b", hang="hang.2").incident != first.incident


def test_a_push_without_its_chunks_says_what_is_lacking(database: Database) -> None:
    """An incident is not accepted before every chunk is there, and one project's chunks are not another's."""
    data = b"x" * 100
    lacking = accept(database, access(database), parse(push_value(data), time.time()))
    assert lacking == Lacking((sha(data),))
    assert rows(database, INCIDENTS) == []


def test_a_size_that_lies_is_refused(database: Database, blobs: BlobStore) -> None:
    """Chunks that are together not as large as the bundle is said to be are no bundle."""
    data = b"x" * 100
    who = access(database)
    push(database, blobs, who, data)
    lying = push_value(b"y" * 7)
    lying["bundle"]["chunks"] = [sha(data)]
    with pytest.raises(InputError, match="size"):
        accept(database, who, parse(lying, time.time()))


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"bundle": 5},
        {"bundle": {"sha256": "x", "size": 1, "chunks": ["x"]}},
        {"bundle": {"sha256": "0" * 64, "size": -1, "chunks": ["0" * 64]}},
        {"bundle": {"sha256": "0" * 64, "size": 1 << 60, "chunks": ["0" * 64]}},
        {"bundle": {"sha256": "0" * 64, "size": 1, "chunks": []}},
        {"bundle": {"sha256": "0" * 64, "size": 1, "chunks": ["0" * 64] * 300}},
    ],
)
def test_a_push_that_is_none_is_refused(broken: object) -> None:
    """JSON of another form is an error with words, whatever is in it."""
    with pytest.raises(InputError):
        parse(broken, time.time())


def tar_of(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_what_is_no_evidence_fails_with_words(sqlite_database: Database, blobs: BlobStore) -> None:
    """Rubbish, a bomb and a path out of the folder are kept as not diagnosed, with the reason, and touch nothing."""
    who = access(sqlite_database)
    bomb = gzip.compress(b"\0" * (4 << 20)) * 30
    hostile = [b"rubbish", tar_of("../../../tmp/evil", b"x"), bomb]
    for number, data in enumerate(hostile):
        push(sqlite_database, blobs, who, data, job=f"j{number}")
    digest_all(sqlite_database, blobs)
    for incident in rows(sqlite_database, INCIDENTS):
        assert incident.state == "failed" or incident.outcome == "unknown"
        assert incident.problem or incident.headline
    assert not Path("/tmp/evil").exists()
    assert rows(sqlite_database, WORK) == []


def test_a_diagnosis_that_needs_too_much_is_ended(sqlite_database: Database, blobs: BlobStore) -> None:
    """A child that reaches its memory or its time leaves an incident with the reason, not a server that hangs."""
    who = access(sqlite_database)
    push(sqlite_database, blobs, who, bundle("sleep"))
    digest_all(sqlite_database, blobs, ChildLimits(deadline_s=0.05))
    (incident,) = rows(sqlite_database, INCIDENTS)
    assert incident.state == "failed"
    assert "0.05 s" in incident.problem


def test_blobs_that_are_gone_are_said_and_tried_again(database: Database, blobs: BlobStore, tmp_path: Path) -> None:
    """An incident whose blob cannot be read stays accepted, says which blob, and waits for the next try."""
    who = access(database)
    push(database, blobs, who, bundle("sleep"))
    blobs.delete(who.project_id, sha(bundle("sleep")))
    digest_all(database, blobs)
    (incident,) = rows(database, INCIDENTS)
    assert incident.state == "accepted"
    assert sha(bundle("sleep"))[:12] in incident.problem
    assert len(rows(database, WORK)) == 1


# ---- fingerprints ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_forgets_what_changes_from_run_to_run() -> None:
    """Numbers of groups, operations, shards and builds do not part two hangs of one line of code."""
    one = fingerprint("absent", "all_reduce #7", "mesh_tp (6)", "read_shard.<locals>.inner_3f2a91c", "train")
    two = fingerprint("absent", "all_reduce #9", "mesh_tp (12)", "read_shard.<locals>.inner_88ab01e", "train")
    assert one == two
    assert one.value.startswith("hs1:")
    assert one.explanation["group"] == "mesh_tp"


def test_a_fingerprint_tells_hangs_apart() -> None:
    """Another kind, operation, role or function is another hang."""
    base = ("absent", "all_reduce", "tp", "read_shard")
    others = [("dead", *base[1:]), ("absent", "all_gather", "tp", "read_shard"), ("absent", "all_reduce", "dp", "x")]
    assert len({fingerprint(*each).value for each in [base, *others]}) == 4


def test_roles_of_groups_have_no_numbers() -> None:
    """The role of a group is its name without its number."""
    assert group_role("mesh_tp (6)") == group_role("mesh_tp (7)") == "mesh_tp"
    assert group_role("EXPERT_MODEL_PARALLEL_3") == "EXPERT_MODEL_PARALLEL"


# ---- issues ----------------------------------------------------------------------------------------------------------


def assign(database: Database, project: int, function: str, at: float, commit: str = "") -> str:
    with database.write() as connection:
        return issue_groups.assign(connection, project, fingerprint("absent", "op", "tp", function), at, commit)[1]


def test_the_life_of_an_issue(database: Database) -> None:
    """New, seen again, resolved, reopened by a new release alone, muted until a time: each is what people expect."""
    who = access(database)
    now = time.time()
    assert assign(database, who.project_id, "f", now) == "new"
    assert assign(database, who.project_id, "f", now + 1) == "again"
    (issue,) = rows(database, ISSUES)
    add_roster(database, who.project_id, {"job": "j", "commit": "old"}, now)
    with database.write() as connection:
        job = connection.execute(select(JOBS.c.id)).scalar_one()
        fingerprint_id = issue_groups.fingerprints_of(connection, issue.id)[0].id
        connection.execute(
            INCIDENTS.insert().values(
                project_id=who.project_id,
                job_id=job,
                fingerprint_id=fingerprint_id,
                identity="x",
                state="digested",
                received_at=now,
                happened_at=now,
                words="",
            )
        )
        issue_groups.resolve(connection, who.project_id, issue.id, "me")
    later = time.time() + 60
    assert assign(database, who.project_id, "f", later, "old") == "resolved"
    assert assign(database, who.project_id, "f", later, "new") == "reopened"
    with database.write() as connection:
        issue_groups.mute(connection, who.project_id, issue.id, later + 100, "me")
    assert assign(database, who.project_id, "f", later + 50) == "muted"
    assert assign(database, who.project_id, "f", later + 150) == "reopened"


def test_issues_are_merged_and_split_without_rewriting(database: Database) -> None:
    """Merged issues get each other's incidents from then on; a fingerprint that is split off has its own again."""
    who = access(database)
    now = time.time()
    assign(database, who.project_id, "f", now)
    assign(database, who.project_id, "g", now)
    one, two = rows(database, ISSUES)
    value = fingerprint("absent", "op", "tp", "f").value
    with database.write() as connection:
        issue_groups.merge(connection, who.project_id, one.id, two.id, "me")
        assert {row.value for row in issue_groups.fingerprints_of(connection, two.id)} >= {value}
        with pytest.raises(InputError, match="one already"):
            issue_groups.merge(connection, who.project_id, two.id, one.id, "me")
        issue_groups.resolve(connection, who.project_id, two.id, "me")
    assert assign(database, who.project_id, "f", time.time() + 9) == "reopened"
    with database.write() as connection:
        made = issue_groups.split(connection, who.project_id, value, "me")
        assert [row.value for row in issue_groups.fingerprints_of(connection, made)] == [value]


def test_a_foreign_issue_cannot_be_touched(database: Database) -> None:
    """What people do to an issue works in their own project alone."""
    who = access(database)
    other = access(database, "other")
    assign(database, who.project_id, "f", time.time())
    (issue,) = rows(database, ISSUES)
    with database.write() as connection:
        for action in (issue_groups.resolve, issue_groups.reopen):
            with pytest.raises(InputError):
                action(connection, other.project_id, issue.id, "me")
        with pytest.raises(InputError):
            issue_groups.split(connection, other.project_id, Fingerprint("hs1:0", {}).value, "me")


# ---- rosters ---------------------------------------------------------------------------------------------------------


def test_rosters_of_many_nodes_make_one_job(database: Database) -> None:
    """Each node sends its own part, twice by accident: one job, its nodes, GPUs and commit, and how it ended."""
    who = access(database)
    for node in ("n1", "n2", "n1"):
        said = {"node": node, "ranks": [0, 1], "gpus": [{"uuid": f"GPU-{node}"}], "nics": [{"name": "mlx5_0"}]}
        add_roster(database, who.project_id, {"job": "j", "world_size": 4, "commit": "abc", "nodes": [said]})
    end_job(database, who.project_id, {"job": "j", "exit_status": 0})
    end_job(database, who.project_id, {"job": "j", "exit_status": 1})
    (job,) = rows(database, JOBS)
    assert (job.name, job.attempt, job.world_size, job.exit_status) == ("j", "0", 4, 1)
    with database.read() as connection:
        kinds = connection.execute(
            select(ENTITIES.c.kind, func.count()).group_by(ENTITIES.c.kind).order_by(ENTITIES.c.kind)
        ).all()
    assert [tuple(row) for row in kinds] == [("commit", 1), ("gpu", 2), ("nic", 2), ("node", 2)]


def test_names_that_do_harm_are_made_harmless(database: Database) -> None:
    """NUL, escapes and half surrogates in a roster are kept as spaces, on both databases."""
    who = access(database)
    add_roster(database, who.project_id, {"job": "a\0b\x1b[31m\ud800c", "nodes": [{"node": "n\0" * 500}]})
    (job,) = rows(database, JOBS)
    assert job.name == "a b [31m c"
    assert len(next(row for row in rows(database, ENTITIES) if row.kind == "node").name) <= 200
