"""Answers of NCCL's RAS (NCCL ≥2.24): JSON from 2.28.7 on, text before. Ranks in them are the communicator's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hangscope.model import Gap, RasRank, RasReport, Source
from hangscope.model.numbers import integer
from hangscope.model.values import comm_id, rank_number, whole
from hangscope.safeio import bounded_json

MOST_UNLISTED = 200_000
"""Ranks of one answer that get a count without being listed, over all communicators and operations."""

_PROTOCOL = re.compile(rb"^\s*(?:SERVER PROTOCOL \d+\s*\n|OK\s*\n)+")
# Every repetition has an end: a file of nothing but line ends would be looked at from each of them to its end.
_TEXT_HEAD = re.compile(
    r"^[^\S\n]{0,80}(?:SERVER PROTOCOL \d{1,9}\s{1,8})?(?:OK\s{1,8}){0,4}NCCL version \S{1,80} compiled with CUDA",
    re.MULTILINE,
)
_JSON_HEAD = re.compile(rb'"communicators(?:_count)?"\s*:')


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of RAS: its communicators, the library's version, and what it says it could not learn."""

    reports: tuple[RasReport, ...]
    nccl_version: str | None
    at: str | None
    gaps: tuple[Gap, ...] = ()
    is_json: bool = True


def recognise(head: bytes) -> bool:
    """Whether a file begins like an answer of RAS in JSON, or has one in words near its beginning."""
    body = _PROTOCOL.sub(b"", head)
    if body[:1] == b"{":
        return _JSON_HEAD.search(body[:2000]) is not None and b'"pg_config"' not in body[:2000]
    return _TEXT_HEAD.search(head.decode("utf-8", "replace")) is not None


def logs(answer: Answer, data: bytes, file: str) -> Iterator[tuple[str, bytes]]:
    """People paste a log and an answer in words into one file."""
    if not answer.is_json:
        yield file, data


def read(data: bytes, file: str) -> Answer:
    """Read one answer. A JSON answer that was cut short gives a gap and what the repair could save."""
    body = _PROTOCOL.sub(b"", data).decode("utf-8", "replace")
    if body.lstrip().startswith("{"):
        return _read_json(body, file)
    return _read_text(body, file)


def _read_json(body: str, file: str) -> Answer:
    gaps: tuple[Gap, ...] = ()
    try:
        value = bounded_json.loads(body)
    except ValueError:
        try:
            value = bounded_json.loads(repair(body))
        except ValueError as error:
            gap = Gap("NCCL RAS answer", f"it is not valid JSON: {error}", source=Source(file))
            return Answer((), None, None, (gap,))
    if not isinstance(value, Mapping):
        return Answer((), None, None)
    at = value.get("timestamp")
    at = at if isinstance(at, str) else None
    comms = value.get("communicators")
    reports: list[RasReport] = []
    for index, comm in enumerate(comms if isinstance(comms, list) else []):
        if not isinstance(comm, Mapping) or not isinstance(comm.get("hash"), str):
            continue
        source = Source(file, f"communicators[{index}]")
        ranks = [_json_rank(row, missing=False) for row in _rows(comm, "ranks")]
        ranks += [_json_rank(row, missing=True) for row in _rows(comm, "missing_ranks")]
        try:
            ident = comm_id(comm["hash"][:32])
        except ValueError:
            continue
        reports.append(RasReport(ident, rank_number(comm.get("size")) or len(ranks), tuple(ranks), source, at))
    version = value.get("nccl_version")
    return Answer(tuple(reports), version if isinstance(version, str) else None, at, gaps)


def _rows(comm: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = comm.get(key)
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, Mapping) and rank_number(row.get("rank")) is not None]


def _json_rank(row: Mapping[str, Any], *, missing: bool) -> RasRank:
    status = row.get("status")
    status = status if isinstance(status, Mapping) else {}
    counts = row.get("collective_counts")
    host = row.get("host")
    return RasRank(
        rank=rank_number(row.get("rank")) or 0,
        host=host if isinstance(host, str) else None,
        pid=whole(row.get("pid")),
        counts={str(k): v for k, v in counts.items() if isinstance(v, int)} if isinstance(counts, Mapping) else {},
        async_error=whole(status.get("async_error")),
        aborting=bool(status.get("abort_flag")),
        missing=missing,
        unresponsive=bool(status.get("unresponsive")),
        dead=bool(status.get("considered_dead")),
    )


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+|"')


def repair(text: str) -> str:
    """Put in the commas that NCCL 2.28 leaves out (after "nvml_dev" of a missing rank), and nothing else.

    A value followed by a string, with nothing but white space between, can only be a forgotten comma.
    """
    out: list[str] = []
    after_value = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.isspace():
            out.append(token)
            continue
        if after_value and (token[0] == '"' or token in "{["):
            out.append(",")
        out.append(token)
        after_value = token not in ("{", "[", ",", ":")
    return "".join(out)


# ---- the text form ---------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"NCCL version (\S+) compiled with CUDA")
_TABLE_ROW = re.compile(
    r"^\s*(?P<group>\d{1,9})\s+\d+\s+[\d-]+\s+[\d-]+\s+(?:\d{1,6}-)?(?P<size>\d{1,6})\s+\d+\s+[A-Z]+"
)
_SECTION = re.compile(r"^#(?P<group>\d{1,9})-\d+ \((?P<hash>[0-9a-fA-F]{1,16})\) (?P<kind>[A-Z]+)")
_PLAIN_SECTION = re.compile(r"^(?P<kind>INCOMPLETE|DEAD|TIMEOUT|MISMATCH|ERROR)\s*$")
_PROCESS = re.compile(r"Process (?P<pid>\d{1,18}) on node (?P<host>\S+) managing GPU")
_RANK = re.compile(
    r"^\s*Rank (?P<rank>\d{1,6})(?P<says>.{0,200}?) -- GPU\S* \S+ managed by process (?P<pid>\d{1,18}) "
    r"on node (?P<host>\S+)"
)
_DIFFERENT = re.compile(r"different (?P<what>\w+) operation counts")
_UP_TO = re.compile(r"(?:(?P<n>\d{1,9}) ranks? )?(?:have|has) launched up to operation (?P<count>\d{1,18})")
_STATUS = re.compile(r"(?:have|has) status (?P<status>[A-Z]+)")
_ASYNC_NAMES = {
    "Unhandled CUDA error": 1,
    "System error": 2,
    "Internal error": 3,
    "Invalid argument": 4,
    "Invalid usage": 5,
    "Remote process error": 6,
    "NCCL operation in progress": 7,
}


@dataclass
class _TextRank:
    """One rank of a communicator, as far as the report for people speaks of it."""

    host: str | None = None
    pid: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    async_error: int | None = None
    aborting: bool = False
    missing: bool = False
    dead: bool = False


class _Unlisted:
    """Ranks that are counted without being listed: one line may speak of a million, and a file has thousands of
    lines."""

    def __init__(self) -> None:
        self._left = MOST_UNLISTED
        self.not_counted = 0

    def takes(self, how_many: int) -> bool:
        fits = how_many <= self._left
        if fits:
            self._left -= how_many
        else:
            self.not_counted += how_many
        return fits


class _TextComm:
    """One communicator of the report for people."""

    def __init__(self, ident: str, size: int, source: Source) -> None:
        self.ident = ident
        self.size = size
        self.source = source
        self.ranks: dict[int, _TextRank] = {}

    def rank(self, match: re.Match[str]) -> _TextRank:
        row = self.ranks.setdefault(integer(match["rank"]), _TextRank())
        row.host = row.host or match["host"]
        row.pid = integer(match["pid"]) if row.pid is None else row.pid
        return row

    def count_the_unlisted(self, operation: str, unlisted: Sequence[tuple[int, int]], budget: _Unlisted) -> None:
        """ "3 ranks have launched up to operation 7" names none of them: they are all those that are not listed."""
        if not operation or len(unlisted) != 1:
            return
        how_many, count = unlisted[0]
        listed = sum(rank < self.size and operation in row.counts for rank, row in self.ranks.items())
        if self.size - listed != how_many:
            return
        if not budget.takes(how_many):
            return
        for rank in range(self.size):
            self.ranks.setdefault(rank, _TextRank()).counts.setdefault(operation, count)


_Process = tuple[int, str]
"""A pid and its host."""


class _TextReport:
    """Reads the report for people, row by row. It lists only ranks that stand out; all others are not in it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._sizes: dict[int, int] = {}
        """Communicators by their number in the table: how many ranks they have."""
        self._comms: dict[str, _TextComm] = {}
        self._unresponsive: set[_Process] = set()
        self._dead: set[_Process] = set()
        # the section that is being read
        self._comm: _TextComm | None = None
        self._kind = ""
        self._operation = ""
        self._last_said: int | str | None = None
        """What was said last: an operation's count, a status or an error. It holds for the ranks listed below it."""
        self._unlisted: list[tuple[int, int]] = []
        """(how many ranks, their count) of summaries whose ranks are not listed below them."""
        self._all_listed = True
        self._budget = _Unlisted()

    def feed(self, number: int, row: str) -> None:
        if match := _TABLE_ROW.match(row):
            self._sizes[integer(match["group"])] = integer(match["size"])
        elif match := _SECTION.match(row):
            self._open_section(match, Source(self._file, f"line {number}"))
        elif match := _PLAIN_SECTION.match(row):
            self._close_counts()
            self._comm = None
            self._kind = match["kind"]
        elif self._comm is not None:
            self._row_of_section(self._comm, row)
        elif match := _PROCESS.search(row):
            processes = self._dead if self._kind == "DEAD" else self._unresponsive
            processes.add((integer(match["pid"]), match["host"]))

    def _open_section(self, match: re.Match[str], source: Source) -> None:
        self._close_counts()
        ident = comm_id(match["hash"])
        fresh = _TextComm(ident, self._sizes.get(integer(match["group"]), 0), source)
        self._comm = self._comms.setdefault(ident, fresh)
        self._kind = match["kind"]
        self._operation = ""
        self._last_said = None
        self._unlisted = []

    def _close_counts(self) -> None:
        if self._comm is not None and self._kind == "MISMATCH":
            self._comm.count_the_unlisted(self._operation, self._unlisted, self._budget)

    def _row_of_section(self, comm: _TextComm, row: str) -> None:
        if match := _DIFFERENT.search(row):
            self._close_counts()
            self._operation = match["what"]
            self._last_said = None
            self._unlisted = []
            self._all_listed = True
        elif match := _RANK.match(row):
            self._row_of_rank(comm.rank(match), match["says"])
        elif (match := _UP_TO.search(row)) and match["n"]:
            self._last_said = integer(match["count"])
            self._unlisted.append((integer(match["n"]), self._last_said))
            self._all_listed = False
        elif match := _STATUS.search(row):
            self._last_said = match["status"]
        elif " reported " in row:
            self._last_said = row.split(" reported ", 1)[1].strip()

    def _row_of_rank(self, rank: _TextRank, says: str) -> None:
        if up_to := _UP_TO.search(says):
            self._last_said = integer(up_to["count"])
        elif status := _STATUS.search(says):
            self._last_said = status["status"]
        elif " reported " in says:
            self._last_said = says.split(" reported ", 1)[1].strip()
        elif not self._all_listed and self._unlisted:
            self._unlisted.pop()  # the rows that follow a summary are the ranks it counts
            self._all_listed = True
        self._apply(rank)

    def _apply(self, rank: _TextRank) -> None:
        """What the section and the last summary say holds for this rank."""
        said = self._last_said
        if self._kind == "INCOMPLETE":
            rank.missing = True
        elif self._kind == "DEAD":
            rank.missing = True
            rank.dead = True
        elif self._kind == "MISMATCH" and isinstance(said, int) and self._operation:
            rank.counts[self._operation] = said
        elif self._kind == "MISMATCH" and said == "ABORT":
            rank.aborting = True
        elif self._kind == "ERROR" and isinstance(said, str):
            rank.async_error = _ASYNC_NAMES.get(said)

    def reports(self) -> tuple[RasReport, ...]:
        """All communicators, once all rows were fed."""
        self._close_counts()
        largest = max(self._sizes.values(), default=0)
        return tuple(
            RasReport(comm.ident, comm.size, self._ranks(comm), comm.source, None, largest)
            for comm in self._comms.values()
        )

    def gaps(self) -> tuple[Gap, ...]:
        """What was not counted, once all rows were fed."""
        count = self._budget.not_counted
        if not count:
            return ()
        why = f"it counts {count:,} ranks more without listing them than are kept of one answer"
        return (Gap("operation counts in an NCCL RAS answer", why, source=Source(self._file)),)

    def _ranks(self, comm: _TextComm) -> tuple[RasRank, ...]:
        return tuple(self._rank(number, row) for number, row in sorted(comm.ranks.items()))

    def _rank(self, number: int, row: _TextRank) -> RasRank:
        process = (row.pid, row.host)
        dead = row.dead or process in self._dead
        return RasRank(
            rank=number,
            host=row.host,
            pid=row.pid,
            counts=row.counts,
            async_error=row.async_error,
            aborting=row.aborting,
            missing=row.missing or dead,
            unresponsive=process in self._unresponsive or dead,
            dead=dead,
        )


def _read_text(body: str, file: str) -> Answer:
    report = _TextReport(file)
    for number, row in enumerate(body.splitlines(), 1):
        report.feed(number, row)
    version = _VERSION.search(body)
    reports = report.reports()
    return Answer(reports, version[1] if version else None, None, report.gaps(), is_json=False)
