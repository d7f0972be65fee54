"""Answers of NCCL's RAS (NCCL ≥2.24): JSON from 2.28.7 on, text before. Ranks in them are the communicator's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hangscope.model import Gap, RasRank, RasReport, Source
from hangscope.reader.logs.nccl_logs import comm_id
from hangscope.reader.values import rank_number, whole
from hangscope.safeio import bounded_json

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


class _TextComm:
    def __init__(self, ident: str, size: int, source: Source) -> None:
        self.ident = ident
        self.size = size
        self.source = source
        self.ranks: dict[int, dict[str, Any]] = {}

    def rank(self, match: re.Match[str]) -> dict[str, Any]:
        row = self.ranks.setdefault(int(match["rank"]), {"counts": {}})
        row.setdefault("host", match["host"])
        row.setdefault("pid", int(match["pid"]))
        return row


def _read_text(body: str, file: str) -> Answer:
    """The report for people. It lists only ranks that stand out; all others are not in it."""
    sizes: dict[int, int] = {}
    comms: dict[str, _TextComm] = {}
    silent: set[tuple[int, str]] = set()
    dead: set[tuple[int, str]] = set()
    spelled_out = True
    comm: _TextComm | None = None
    kind = what = ""
    said: int | str | None = None
    unlisted: list[tuple[int, int]] = []
    version = _VERSION.search(body)

    def close() -> None:
        # "3 ranks have launched up to operation 7" names none of them: they are all those that are not listed
        if comm is not None and kind == "MISMATCH" and what and len(unlisted) == 1:
            rest = [r for r in range(comm.size) if what not in comm.ranks.get(r, {"counts": {}})["counts"]]
            if len(rest) == unlisted[0][0]:
                for r in rest:
                    comm.ranks.setdefault(r, {"counts": {}})["counts"][what] = unlisted[0][1]

    for number, row in enumerate(body.splitlines(), 1):
        if match := _TABLE_ROW.match(row):
            sizes[int(match["group"])] = int(match["size"])
        elif match := _SECTION.match(row):
            close()
            ident, kind, what, said, unlisted = comm_id(match["hash"]), match["kind"], "", None, []
            fresh = _TextComm(ident, sizes.get(int(match["group"]), 0), Source(file, f"line {number}"))
            comm = comms.setdefault(ident, fresh)
        elif match := _PLAIN_SECTION.match(row):
            close()
            comm, kind = None, match["kind"]
        elif (match := _PROCESS.search(row)) and comm is None:
            (dead if kind == "DEAD" else silent).add((int(match["pid"]), match["host"]))
        elif comm is None:
            continue
        elif match := _DIFFERENT.search(row):
            close()
            what, said, unlisted, spelled_out = match["what"], None, [], True
        elif match := _RANK.match(row):
            found = comm.rank(match)
            says = match["says"]
            if up_to := _UP_TO.search(says):
                said = int(up_to["count"])
            elif status := _STATUS.search(says):
                said = status["status"]
            elif " reported " in says:
                said = says.split(" reported ", 1)[1].strip()
            elif not spelled_out and unlisted:
                unlisted.pop()  # the rows that follow a summary are the ranks it counts
                spelled_out = True
            _apply(found, kind, what, said)
        elif (match := _UP_TO.search(row)) and match["n"]:
            said = int(match["count"])
            unlisted.append((int(match["n"]), said))
            spelled_out = False
        elif match := _STATUS.search(row):
            said = match["status"]
        elif " reported " in row:
            said = row.split(" reported ", 1)[1].strip()
    close()
    largest = max(sizes.values(), default=0)
    reports = tuple(
        RasReport(c.ident, c.size, tuple(_text_rank(r, row, silent, dead) for r, row in rows), c.source, None, largest)
        for c in comms.values()
        for rows in [sorted(c.ranks.items())]
    )
    return Answer(reports, version[1] if version else None, None, is_json=False)


def _apply(row: dict[str, Any], kind: str, what: str, said: int | str | None) -> None:
    if kind == "INCOMPLETE":
        row["missing"] = True
    elif kind == "DEAD":
        row["missing"] = row["dead"] = True
    elif kind == "MISMATCH" and isinstance(said, int) and what:
        row["counts"][what] = said
    elif kind == "MISMATCH" and said == "ABORT":
        row["aborting"] = True
    elif kind == "ERROR" and isinstance(said, str):
        row["async_error"] = _ASYNC_NAMES.get(said)


def _text_rank(rank: int, row: dict[str, Any], silent: set[tuple[int, str]], dead: set[tuple[int, str]]) -> RasRank:
    process = (row.get("pid"), row.get("host"))
    is_dead = bool(row.get("dead")) or process in dead
    missing = bool(row.get("missing")) or is_dead
    return RasRank(
        rank=rank,
        host=row.get("host"),
        pid=row.get("pid"),
        counts=row["counts"],
        async_error=row.get("async_error"),
        aborting=bool(row.get("aborting")),
        missing=missing,
        unresponsive=process in silent or is_dead,
        dead=is_dead,
    )
