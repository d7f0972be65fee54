"""The store: schema and migrations, queue, tokens and blobs, on SQLite and Postgres by the same code."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, insert, select, text, update

from hangscope.errors import SettingsError
from hangscope.server.history.summary import summary
from hangscope.server.intake import budgets as project_budgets
from hangscope.server.store import access_tokens, work_queue
from hangscope.server.store.blob_store import BlobError, BlobFolder, BlobStore, open_store
from hangscope.server.store.database import Database, insert_new, row_id
from hangscope.server.store.tables import JOBS, METADATA, PROJECTS, TOKENS, WORK
from hangscope.server.store.upgrade import upgrade
from hangscope.server.web import lists

OF_POSTGRES_ALONE = "ix_incidents_words"


def test_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    """After all migrations the database has exactly the tables, columns and keys of `tables.py`."""
    with database.read() as connection:
        opts = {"compare_type": True, "include_object": lambda _, name, *rest: name != OF_POSTGRES_ALONE}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, METADATA) == []


def test_a_database_of_the_first_schema_is_brought_forward(database_url: str) -> None:
    """Rows of the first release are there after the upgrade, and lists, search and history work with them."""
    database = Database(database_url)
    upgrade(database, "0001")
    now = time.time()
    with database.write() as connection:
        project = access_tokens.project(connection, "llm")
        connection.execute(
            text(
                "INSERT INTO jobs (project_id, cluster, name, attempt, started_at, details)"
                " VALUES (:project, 'west', 'old-1', '0', :now, '{}')"
            ),
            {"project": project, "now": now},
        )
        connection.execute(
            text(
                "INSERT INTO incidents (project_id, job_id, identity, state, received_at, happened_at, outcome, words)"
                " VALUES (:project, 1, 'x', 'digested', :now, :now, 'hang', 'west old-1 read_shard')"
            ),
            {"project": project, "now": now},
        )
    upgrade(database)
    with database.read() as connection:
        found = lists.incidents(connection, project, lists.Filters("ad_shar"))
        assert [each["job"] for each in found] == ["old-1"]
        assert lists.jobs(connection, project)[0]["incidents"] == 1
    assert summary(database, project).value["suspects"] == []
    database.close()


def test_pages_of_a_list_show_each_row_once(database: Database) -> None:
    """Rows of the same moment are neither lost nor shown twice between one page and the next."""
    with database.write() as connection:
        project = access_tokens.project(connection, "llm")
        rows = [
            {"project_id": project, "cluster": "", "name": f"j{n}", "attempt": "0", "details": "{}"} for n in range(25)
        ]
        connection.execute(insert(JOBS), [{**row, "started_at": 100.0 + n // 10} for n, row in enumerate(rows)])
        seen: list[int] = []
        before = None
        while page := lists.jobs(connection, project, before, most=4):
            seen += [row["id"] for row in page]
            before = lists.Before(page[-1]["started_at"], page[-1]["id"])
    assert len(seen) == len(set(seen)) == 25


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    """A database that is up to date keeps its rows through another upgrade."""
    with database.write() as connection:
        access_tokens.project(connection, "llm")
    upgrade(database)
    with database.read() as connection:
        assert connection.execute(select(PROJECTS.c.name)).scalars().all() == ["llm"]


def test_servers_that_start_together_migrate_once(database_url: str) -> None:
    """Several processes that find an empty database make one schema between them."""
    problems: list[Exception] = []

    def start() -> None:
        database = Database(database_url)
        try:
            upgrade(database)
        except Exception as error:
            problems.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_newer_schema_is_refused(database: Database) -> None:
    """An older hangscope does not touch the database of a newer one, and says the cure."""
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SettingsError, match="newer hangscope") as refused:
        upgrade(database)
    assert refused.value.hint


def test_an_address_of_no_database_is_said(tmp_path: Path) -> None:
    """What is neither SQLite nor Postgres is an error with a hint, not a traceback."""
    for url in ("nonsense", "mysql://x/y"):
        with pytest.raises(SettingsError):
            Database(url)


def test_a_row_is_made_once(database: Database) -> None:
    """Two inserts of one key give one row, and the second says that it was there."""
    with database.write() as connection:
        first = row_id(connection, PROJECTS, {"name": "a"}, {"created_at": 1.0})
        second = row_id(connection, PROJECTS, {"name": "a"}, {"created_at": 2.0})
        assert not insert_new(connection, PROJECTS, {"name": "a", "created_at": 3.0})
    assert first == (second[0], True)
    assert not second[1]


# ---- the queue -------------------------------------------------------------------------------------------------------


def add(database: Database, subject: int) -> None:
    with database.write() as connection:
        work_queue.add(connection, work_queue.DIGEST, subject, 1)


def test_each_work_is_taken_by_one(database: Database) -> None:
    """Workers that take at the same time get each subject once, and all of them."""
    for subject in range(20):
        add(database, subject)
    taken: list[int] = []

    def work() -> None:
        while (lease := work_queue.take(database, "w", 60)) is not None:
            taken.append(lease.subject)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # On Postgres a worker that finds only locked rows sees nothing due; what is left is taken in another look.
    work()
    assert sorted(taken) == list(range(20))


def test_work_of_a_killed_worker_is_taken_by_another(database: Database) -> None:
    """A lease that ran out is free again, with its attempt counted."""
    add(database, 7)
    first = work_queue.take(database, "one", 60)
    assert first is not None
    assert work_queue.take(database, "two", 60) is None
    with database.write() as connection:
        connection.execute(update(WORK).values(leased_until=time.time() - 1))
    second = work_queue.take(database, "two", 60)
    assert second is not None
    assert (second.subject, second.attempts) == (7, 2)


def test_what_comes_while_its_subject_is_worked_on_is_worked_on_again(database: Database) -> None:
    """A second part that arrives during the digest of the first leaves its subject in the queue."""
    add(database, 7)
    lease = work_queue.take(database, "one", 60)
    assert lease is not None
    add(database, 7)
    with database.write() as connection:
        work_queue.finish(connection, lease)
    again = work_queue.take(database, "one", 60)
    assert again is not None
    with database.write() as connection:
        work_queue.finish(connection, again)
        assert connection.execute(select(func.count()).select_from(WORK)).scalar_one() == 0


def test_work_that_failed_waits(database: Database) -> None:
    """What is put back is not taken at once."""
    add(database, 7)
    lease = work_queue.take(database, "one", 60)
    assert lease is not None
    with database.write() as connection:
        work_queue.put_back(connection, lease)
    assert work_queue.take(database, "one", 60) is None


def test_writers_wait_for_each_other(database: Database) -> None:
    """Forty writers at once all get through: none fails because another writes."""
    problems: list[Exception] = []

    def write(number: int) -> None:
        try:
            with database.write() as connection:
                connection.execute(select(func.count()).select_from(PROJECTS))
                connection.execute(insert(PROJECTS).values(name=f"p{number}", created_at=0.0))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(PROJECTS)).scalar_one() == 40


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_is_known_by_its_hash_alone(database: Database) -> None:
    """The database holds no token, only its SHA-256, and a token opens its own project with its own scopes."""
    with database.write() as connection:
        project = access_tokens.project(connection, "llm")
        token = access_tokens.make(connection, project, "agents", ["push"])
        rows = connection.execute(select(TOKENS)).mappings().all()
        access = access_tokens.check(connection, token)
    assert token not in str(rows)
    assert rows[0]["digest"] == hashlib.sha256(token.encode()).hexdigest()
    assert access is not None
    assert (access.project, access.may("push"), access.may("read")) == ("llm", True, False)


def test_revoked_expired_and_made_up_tokens_open_nothing(database: Database) -> None:
    """A token that was revoked, has run out, or never was is no access."""
    with database.write() as connection:
        project = access_tokens.project(connection, "llm")
        other = access_tokens.project(connection, "other")
        old = access_tokens.make(connection, project, "old", ["read"], expires_at=time.time() - 1)
        gone = access_tokens.make(connection, project, "gone", ["read"])
        gone_access = access_tokens.check(connection, gone)
        assert gone_access is not None
        assert not access_tokens.revoke(connection, other, gone_access.token_id)
        assert access_tokens.revoke(connection, project, gone_access.token_id)
        for token in (old, gone, "", "hs_", "hs_" + "x" * 500, "Bearer"):
            assert access_tokens.check(connection, token) is None


def test_the_first_token_is_given_once(database: Database) -> None:
    """A server that has a token gives no second first one."""
    assert access_tokens.first_token(database)
    assert access_tokens.first_token(database) is None


def test_a_scope_that_nobody_knows_is_refused(database: Database) -> None:
    """A token is not made with a scope that means nothing."""
    with database.write() as connection, pytest.raises(SettingsError):
        access_tokens.make(connection, access_tokens.project(connection, "llm"), "x", ["root"])


# ---- blobs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "fsspec"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return open_store(str(tmp_path / "blobs") if request.param == "folder" else f"memory://{tmp_path}")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_blob_comes_back_as_it_was(blobs: BlobStore) -> None:
    """What was put under its checksum is read again, in its own project alone, until it is deleted."""
    data = b"evidence" * 1000
    assert blobs.put(1, sha(data), [data[:100], data[100:]], 1 << 20) == len(data)
    assert b"".join(blobs.read(1, sha(data))) == data
    with pytest.raises(BlobError):
        b"".join(blobs.read(2, sha(data)))
    blobs.delete(1, sha(data))
    blobs.delete(1, sha(data))
    with pytest.raises(BlobError):
        b"".join(blobs.read(1, sha(data)))


def test_a_blob_that_lies_about_itself_is_not_kept(blobs: BlobStore) -> None:
    """Another content, too much of it, or a name that is a path leave nothing behind."""
    with pytest.raises(BlobError, match="checksum"):
        blobs.put(1, sha(b"a"), [b"b"], 100)
    with pytest.raises(BlobError, match="more than"):
        blobs.put(1, sha(b"a" * 200), [b"a" * 200], 100)
    for name in ("../../etc/passwd", "", "A" * 64, sha(b"x") + "/.."):
        with pytest.raises(BlobError):
            blobs.put(1, name, [b"x"], 100)
    with pytest.raises(BlobError):
        b"".join(blobs.read(1, sha(b"a")))


def test_a_write_that_broke_off_leaves_no_blob(tmp_path: Path) -> None:
    """A sender that goes away in the middle leaves neither the blob nor a part of it."""
    blobs = BlobFolder(tmp_path / "blobs")

    def broken() -> object:
        yield b"a"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        blobs.put(1, sha(b"ab"), broken(), 100)  # type: ignore[arg-type]
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


# ---- fair between projects -------------------------------------------------------------------------------------------


def test_a_project_with_much_waiting_does_not_keep_others_waiting(database: Database) -> None:
    """Of two projects each is taken in turn, however much one has; a spare lane takes none of which something runs."""
    with database.write() as connection:
        for subject in range(30):
            work_queue.add(connection, work_queue.DIGEST, subject, 1)
        work_queue.add(connection, work_queue.DIGEST, 100, 2)
    first = work_queue.take(database, "w", 60, work_queue.DIGEST)
    second = work_queue.take(database, "w", 60, work_queue.DIGEST)
    assert first is not None
    assert second is not None
    assert {first.project_id, second.project_id} == {1, 2}
    assert work_queue.take(database, "w", 60, work_queue.DIGEST, spare=True) is None
    assert work_queue.take(database, "w", 60, work_queue.DIGEST) is not None


def test_a_project_that_used_the_digesters_comes_after_one_that_did_not(database: Database) -> None:
    """Time that was spent lately counts against a project; work that came later goes first where less was spent."""
    with database.write() as connection:
        for number in (1, 2):
            assert access_tokens.project(connection, f"p{number}") == number
            project_budgets.use(connection, number, None)
        work_queue.spend(connection, 1, 300.0)
        work_queue.add(connection, work_queue.DIGEST, 1, 1)
        work_queue.add(connection, work_queue.DIGEST, 2, 2)
    taken = work_queue.take(database, "w", 60, work_queue.DIGEST)
    assert taken is not None
    assert taken.project_id == 2


def test_a_clock_that_was_set_back_stops_nothing(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that was put back, and leases, from before a clock was set back by a day are taken all the same."""
    database = sqlite_database
    for subject in (7, 8, 9):
        add(database, subject)
    held = work_queue.take(database, "gone", 30)
    put_back = work_queue.take(database, "w", 30)
    assert held is not None
    assert put_back is not None
    with database.write() as connection:
        work_queue.put_back(connection, put_back)
    before = time.time()
    monkeypatch.setattr("hangscope.server.store.database.time.time", lambda: before - 86400)
    taken = [work_queue.take(database, "w", 30) for _ in range(4)]
    assert sorted(lease.subject for lease in taken if lease is not None) == [7, 8, 9]


def test_writers_of_sqlite_take_turns(sqlite_database: Database) -> None:
    """Whoever writes in a tight loop does not keep another waiting for longer than one of its transactions."""
    over = threading.Event()

    def write_much() -> None:
        number = 0
        while not over.is_set():
            with sqlite_database.write() as connection:
                connection.execute(
                    insert(PROJECTS).values(name=f"much{threading.get_ident()}-{number}", created_at=0.0)
                )
                time.sleep(0.02)
            number += 1

    greedy = [threading.Thread(target=write_much) for _ in range(4)]
    for thread in greedy:
        thread.start()
    waits = []
    for number in range(5):
        began = time.monotonic()
        with sqlite_database.write() as connection:
            connection.execute(insert(PROJECTS).values(name=f"one{number}", created_at=0.0))
        waits.append(time.monotonic() - began)
    over.set()
    for thread in greedy:
        thread.join()
    assert max(waits) < 2.0


def test_servers_that_start_together_make_one_first_token(database: Database) -> None:
    """Of several that find no token one makes it; and one that is given is taken only where it is long enough."""
    made: list[str | None] = []
    threads = [threading.Thread(target=lambda: made.append(access_tokens.first_token(database))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([token for token in made if token is not None]) == 1
    with pytest.raises(SettingsError, match="random characters"):
        access_tokens.first_token(database, "hs_short")


def test_a_session_is_of_its_host_and_ends_with_its_token(database: Database) -> None:
    """A session opens on the host that it was opened on, until it is closed or its token revoked; it is no token."""
    with database.write() as connection:
        project = access_tokens.project(connection, "llm")
        found = access_tokens.check(connection, access_tokens.make(connection, project, "me", ["read"]))
        assert found is not None
        first, second = (access_tokens.open_session(connection, found, "hangscope:8642") for _ in range(2))
        assert access_tokens.check_session(connection, first, "hangscope:8642") == found
        assert access_tokens.check_session(connection, first, "hangscope:8000") is None
        assert access_tokens.check(connection, first) is None
        access_tokens.close_session(connection, first)
        assert access_tokens.check_session(connection, first, "hangscope:8642") is None
        assert access_tokens.check_session(connection, second, "hangscope:8642") is not None
        access_tokens.revoke(connection, project, found.token_id)
        assert access_tokens.check_session(connection, second, "hangscope:8642") is None
