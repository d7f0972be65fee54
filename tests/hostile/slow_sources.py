"""Stacks, RAS answers, rosters, incidents, counters, black boxes, archives and trees that are meant to be slow."""

# ruff: noqa: E501 - one family stands in one line, as what it writes does

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.slow_families import FAMILIES, family, fill, spread
from hostile.slow_logs import init, watchdog

# ---- stacks ----------------------------------------------------------------------------------------------------------


def header(rank: int, sample: int = 1, pid: int = 7) -> str:
    return f"# hangscope stacks rank={rank} pid={pid} sample={sample} by=py-spy at=2026-11-15T02:30:11.204Z\n"


def spy(threads: int, depth: int, salt: int = 0) -> str:
    rows = ["Process 7: python train.py", "Python v3.12.3 (/usr/bin/python3)", ""]
    for thread in range(threads):
        rows.append(f'Thread {thread + 7} (idle): "t{thread}"')
        rows += [f"    f{n} (/w/a{salt}_{n}.py:{n})" for n in range(depth)]
        rows.append("")
    return "\n".join(rows)


def faults(threads: int, depth: int) -> str:
    rows = []
    for thread in range(threads):
        rows.append(f"Thread 0x{thread + 4096:x} (most recent call first):")
        rows += [f'  File "/w/a{n}.py", line {n} in f{n}' for n in range(depth)]
    return "\n".join(rows) + "\n"


@family
def stacks_eighty_threads_deep(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "rank_0.1.txt").write_text(header(0) + spy(80, 700)[:size])


@family
def stacks_eighty_threads_faulthandler(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "rank_0.1.txt").write_text(header(0) + faults(80, 700)[:size])


@family
def stacks_of_many_ranks(folder: Path, rng: random.Random, size: int) -> None:
    spread(folder, rng, size, "rank_{}.1.txt", lambda n: (header(n) + spy(4, size // 1000 // 80, n)).encode())


@family
def stacks_of_many_samples(folder: Path, rng: random.Random, size: int) -> None:
    spread(folder, rng, size, "rank_0.{}.txt", lambda n: (header(0, n) + spy(4, size // 1000 // 80, n)).encode())


@family
def stacks_of_children(folder: Path, rng: random.Random, size: int) -> None:
    def child(n: int) -> bytes:
        return (header(n % 9, 1, n + 100).rstrip() + " parent=7\n" + spy(4, size // 1000 // 80, n)).encode()

    spread(folder, rng, size, "rank_0.{}.children.txt", child)


@family
def stacks_of_many_threads(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "rank_0.1.txt").write_text(header(0) + spy(size // 45, 1)[:size])


@family
def stacks_headers_alone(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "stacks.txt").write_text("".join(fill(size, rng, lambda n, _: header(n, n % 5) + spy(1, 2, n))))


@family
def stacks_native(folder: Path, rng: random.Random, size: int) -> None:
    def line(n: int, _: random.Random) -> str:
        return f"#{n}  0x{n:016x} in ncclProxyProgress(void*) (arg=0x{n:x}) at proxy.cc:{n}\n"

    (folder / "rank_0.1.txt").write_text(
        header(0) + "Thread 1 (Thread 0x7f (LWP 7)):\n" + "".join(fill(size, rng, line))
    )


# ---- RAS -------------------------------------------------------------------------------------------------------------


def ras(comms: list[dict[str, Any]]) -> bytes:
    return json.dumps(
        {
            "nccl_version": "2.28.9",
            "timestamp": "2026-11-16 10:00:00",
            "communicators_count": len(comms),
            "communicators": comms,
        }
    ).encode()


def ras_rank(n: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": n,
        "host": f"n{n}",
        "pid": n + 7,
        "collective_counts": {"AllReduce": n},
        "status": {"async_error": 0},
        **more,
    }


@family
def ras_many_communicators(folder: Path, rng: random.Random, size: int) -> None:
    comms = [
        {"hash": f"0x{n + 1:x}", "size": 8, "ranks": [ras_rank(n % 8)], "missing_ranks": []} for n in range(size // 190)
    ]
    (folder / "ras.1.json").write_bytes(ras(comms))


@family
def ras_one_communicator(folder: Path, rng: random.Random, size: int) -> None:
    ranks = [ras_rank(n) for n in range(size // 115)]
    (folder / "ras.1.json").write_bytes(ras([{"hash": "0x1", "size": len(ranks), "ranks": ranks, "missing_ranks": []}]))


@family
def ras_missing_ranks(folder: Path, rng: random.Random, size: int) -> None:
    ranks = [{"rank": n, "host": f"n{n}", "pid": n, "status": {"unresponsive": True}} for n in range(size // 75)]
    (folder / "ras.1.json").write_bytes(ras([{"hash": "0x1", "size": len(ranks), "ranks": [], "missing_ranks": ranks}]))


@family
def ras_many_counts(folder: Path, rng: random.Random, size: int) -> None:
    ranks = [ras_rank(n, collective_counts={f"Op{i}": i * n for i in range(1000)}) for n in range(size // 16_000)]
    (folder / "ras.1.json").write_bytes(ras([{"hash": "0x1", "size": len(ranks), "ranks": ranks, "missing_ranks": []}]))


@family
def ras_many_answers(folder: Path, rng: random.Random, size: int) -> None:
    spread(
        folder,
        rng,
        size,
        "ras.{}.json",
        lambda n: ras(
            [
                {
                    "hash": "0x1",
                    "size": 8,
                    "ranks": [ras_rank(i) for i in range(size // 1000 // 120)],
                    "missing_ranks": [],
                }
            ]
        ),
    )


RAS_TEXT = "NCCL version 2.28.3 compiled with CUDA 13.0\n\nCommunicators...\n  Group     Comms     Nodes     Ranks     Ranks     Ranks    Status\n"


@family
def ras_text_sections(folder: Path, rng: random.Random, size: int) -> None:
    rows = RAS_TEXT + "      0         1         1         1         999999         999999   RUNNING  MISMATCH\n"

    def section(n: int, _: random.Random) -> str:
        return f"#0-{n} ({n + 1:x}) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  {n % 9 + 1} ranks have launched up to operation {n}\n"

    (folder / "ras.1.txt").write_text(rows + "".join(fill(size, rng, section)))


@family
def ras_text_operations(folder: Path, rng: random.Random, size: int) -> None:
    rows = (
        RAS_TEXT
        + "      0         1         1         1         999999         999999   RUNNING  MISMATCH\n#0-0 (1) MISMATCH\n"
    )

    def section(n: int, _: random.Random) -> str:
        return f"  Communicator ranks have different Op{n} operation counts\n  999999 ranks have launched up to operation {n}\n"

    (folder / "ras.1.txt").write_text(rows + "".join(fill(size, rng, section)))


@family
def ras_text_ranks(folder: Path, rng: random.Random, size: int) -> None:
    rows = (
        RAS_TEXT
        + "      0         1         1         1         99999         99999   RUNNING  MISMATCH\n#0-0 (1) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    )

    def rank(n: int, _: random.Random) -> str:
        return f"    Rank {n} has launched up to operation {n} -- GPU 0 managed by process {n} on node n{n}\n"

    (folder / "ras.1.txt").write_text(rows + "".join(fill(size, rng, rank)))


# ---- rosters, incidents, error files ---------------------------------------------------------------------------------


def roster(name: str, row: Callable[[int], dict[str, Any]], file: str = "roster.json") -> None:
    def write(folder: Path, rng: random.Random, size: int) -> None:
        rows = [row(n) for n in range(size // (len(json.dumps(row(1000))) + 2))]
        (folder / file).write_text(json.dumps(rows))

    FAMILIES[name] = write


roster("roster_of_many", lambda n: {"rank": n, "host": f"n{n // 8}", "pid": n + 9, "exit": None})
roster("roster_all_died", lambda n: {"rank": n, "host": f"n{n // 8}", "pid": n + 9, "exit": -9, "ended_at": 1.7e9 + n})
roster("roster_of_one_rank", lambda n: {"rank": 0, "host": f"n{n}", "pid": n + 9, "exit": n % 3})
roster("roster_one_host_and_pid", lambda n: {"rank": n, "host": "n1", "pid": 9, "exit": None})
roster(
    "roster_all_hosts_differ",
    lambda n: {"rank": n % 300, "host": f"n{n}.cluster", "pid": n, "local_rank": n % 8, "gpu": f"{n % 256:02x}:00.0"},
)


def node(n: int, **more: Any) -> dict[str, Any]:
    return {
        "schema": "hangscope.node/1",
        "node": f"n{n}",
        "captured_at": "2026-11-15T02:30:11.204Z",
        "reason": "stall",
        "job": "1",
        "attempt": "0",
        "versions": {},
        "gpus": [],
        "nics": [],
        "settings": {},
        "ranks": [],
        "gaps": [],
        **more,
    }


def incident(folder: Path, **more: Any) -> None:
    value = {
        "schema": "hangscope.incident/1",
        "job": "1",
        "attempt": "0",
        "reason": "stall",
        "captured_at": "2026-11-15T02:30:11.204Z",
        "nodes_expected": None,
        "nodes_present": None,
        "world_size": None,
        "versions": {},
        "files": {},
        **more,
    }
    (folder / "incident.json").write_text(json.dumps(value))


def one_node(folder: Path, **more: Any) -> None:
    incident(folder)
    (folder / "nodes/n1").mkdir(parents=True)
    (folder / "nodes/n1/node.json").write_text(json.dumps(node(1, **more)))


def row(n: int) -> dict[str, Any]:
    return {
        "rank": n,
        "local_rank": n % 8,
        "pid": n + 9,
        "state": "S",
        "exit_status": None,
        "server_answers": n % 2 == 0,
        "python_answers": n % 3 == 0,
        "waits_in": f"all_reduce {n}",
        "stood_s": 60.0 + n,
    }


@family
def node_of_many_ranks(folder: Path, rng: random.Random, size: int) -> None:
    one_node(folder, ranks=[row(n) for n in range(size // 170)])


@family
def node_of_many_devices(folder: Path, rng: random.Random, size: int) -> None:
    half = size // 260
    one_node(
        folder,
        ranks=[row(0)],
        gpus=[{"index": n, "name": "H200", "uuid": f"GPU-{n}", "pci": f"0000:{n % 256:02x}:00.0"} for n in range(half)],
        nics=[
            {"name": f"mlx5_{n}", "port": 1, "state": "DOWN", "rate": "400 Gb/sec", "pci": f"0000:{n % 256:02x}:00.0"}
            for n in range(half)
        ],
    )


@family
def node_of_many_gaps(folder: Path, rng: random.Random, size: int) -> None:
    one_node(
        folder,
        ranks=[row(0)],
        gaps=[{"what": f"stacks of rank {n}", "why": f"no {n}", "rank": n} for n in range(size // 65)],
    )


@family
def node_of_many_settings(folder: Path, rng: random.Random, size: int) -> None:
    half = size // 60
    one_node(
        folder,
        ranks=[row(0)],
        settings={f"NCCL_SETTING_{n}": f"value {n}" for n in range(half)},
        versions={f"v{n}": f"1.{n}" for n in range(half)},
    )


@family
def many_nodes(folder: Path, rng: random.Random, size: int) -> None:
    incident(folder)
    spread(
        folder,
        rng,
        size,
        "nodes/n{}/node.json",
        lambda n: json.dumps(node(n, ranks=[row(n * 8 + i) for i in range(8)])).encode(),
    )


@family
def incident_of_many_nodes(folder: Path, rng: random.Random, size: int) -> None:
    names = [f"n{n}" for n in range(size // 22)]
    incident(folder, nodes_expected=names, nodes_present=[f"m{name}" for name in names], world_size=1_000_000)
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def incident_never_seen(folder: Path, rng: random.Random, size: int) -> None:
    ranks = list(range(size // 16))
    incident(
        folder,
        world_size=1_000_000,
        never_seen={"ranks": ranks, "text": "no", "by": "n1"},
        elsewhere={"ranks": ranks, "text": "no", "by": "n2"},
    )
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def incident_of_many_files(folder: Path, rng: random.Random, size: int) -> None:
    incident(
        folder,
        files={f"nodes/n{n}/node.json": {"size": n, "sha256": f"{n:064x}"} for n in range(size // 110)},
        gaps=[{"what": "x", "why": str(n), "node": f"n{n}"} for n in range(2000)],
    )
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def error_files(folder: Path, rng: random.Random, size: int) -> None:
    def error(n: int) -> bytes:
        stack = (
            "Traceback (most recent call last):\n"
            + '  File "/w/a.py", line 3, in f\n    f()\n' * (size // 1000 // 50)
            + f"ValueError: {n}\n"
        )
        return json.dumps(
            {
                "message": {
                    "message": f"ValueError: {n}",
                    "extraInfo": {"py_callstack": stack, "timestamp": str(1_700_000_000 + n)},
                }
            }
        ).encode()

    spread(folder, rng, size, "attempt_0/{}/error.json", error)


@family
def call_sites(folder: Path, rng: random.Random, size: int) -> None:
    stacks = [[[f"f{n}", f"/w/{n}.py", n]] for n in range(size // 200)]
    sites = [
        {
            "backend": "nccl",
            "call": ["0", f"nccl:op_{n}", "8"],
            "before": [["0", f"nccl:op_{n - 1}", "8"]],
            "calls": n,
            "lines": 1,
            "stack": n,
        }
        for n in range(len(stacks))
    ]
    one_node(folder, ranks=[row(0)])
    (folder / "nodes/n1/sites").mkdir()
    (folder / "nodes/n1/sites/rank_0.json").write_text(
        json.dumps({"schema": "hangscope.sites/1", "rank": 0, "stacks": stacks, "sites": sites})
    )


@family
def json_of_brackets(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "roster.json").write_text("[" + "[]," * (size // 3) + "[]]")
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def json_of_keys(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "x.json").write_text('{"hangscope.x":1,' + ",".join(f'"{n}":{{}}' for n in range(size // 12)) + "}")
    (folder / "job.log").write_text(watchdog(0, 7))


# ---- counters, black boxes -------------------------------------------------------------------------------------------


@family
def counters_of_many_ports(folder: Path, rng: random.Random, size: int) -> None:
    one_node(folder, ranks=[row(0)])
    (folder / "nodes/n1/counters").mkdir()
    for name, base in (("start", 0), ("stall", 1)):
        value = {
            "at": f"2026-11-15T02:3{base}:11Z",
            "counters": {f"mlx5_{n}/1/link_downed": n * base for n in range(size // 300)},
            "ports": [
                {
                    "name": f"mlx5_{n}",
                    "port": 1,
                    "state": "DOWN",
                    "rate": "400 Gb/sec",
                    "pci": f"0000:{n % 256:02x}:00.0",
                    "layer": "IB",
                    "lid": n,
                }
                for n in range(size // 300)
            ],
        }
        (folder / f"nodes/n1/counters/{name}.json").write_text(json.dumps(value))


@family
def counters_of_many_nodes(folder: Path, rng: random.Random, size: int) -> None:
    incident(folder)
    for n in range(500):
        (folder / f"nodes/n{n}/counters").mkdir(parents=True)
        (folder / f"nodes/n{n}/node.json").write_text(json.dumps(node(n, ranks=[row(n)])))
        for name, base in (("start", 0), ("stall", 1)):
            value = {
                "at": f"2026-11-15T02:3{base}:11Z",
                "counters": {f"mlx5_{i}/1/symbol_error": i * base for i in range(size // 50_000)},
                "ports": [],
            }
            (folder / f"nodes/n{n}/counters/{name}.json").write_text(json.dumps(value))


@family
def counters_of_a_copied_tree(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "job.log").write_text(watchdog(0, 7))
    for n in range(3000):
        path = folder / f"n1/{'before' if n % 2 else 'after'}/sys/class/infiniband/mlx5_{n // 2}/ports/1/counters"
        path.mkdir(parents=True, exist_ok=True)
        (path / "link_downed").write_text(str(n))


SLOTS = {"comms": (0, 768), "ops": (1, 192), "links": (2, 64), "transfers": (3, 384)}


def black_box(table: str, size: int, rank: int = 0) -> bytes:
    """A box whose one table is full of slots that all differ; the others have one slot each."""
    chosen, slot = SLOTS[table]
    slots = [1, 1, 1, 1, 1]
    slots[chosen] = max(1, size // slot)
    sizes = [768, 192, 64, 384, 32]
    places = [1024]
    for count, width in zip(slots, sizes, strict=True):
        places.append(places[-1] + count * width)
    data = bytearray(places[-1])
    struct.pack_into("<8sIIQ", data, 0, b"\xffHSNCCLB", 1, 576, len(data))
    struct.pack_into("<IiiiIIQQ", data, 24, 77 + rank, rank, 0, 8, 22809, 5, 10**18, 1000)
    struct.pack_into("<64s", data, 64, f"n{rank}".encode())
    for number in range(5):
        struct.pack_into("<IIII", data, 128 + 16 * number, places[number], sizes[number], slots[number], 0)
    struct.pack_into("<QQQ", data, 256, 2000, 10**18 + 1000, 2)
    struct.pack_into("<Q", data, 320, 1)
    for n in range(slots[0]):
        struct.pack_into(
            "<IIQQiiiIQQQQ56s",
            data,
            places[0] + n * 768,
            2,
            1,
            40 + n,
            0xBEEF + n,
            rank % 8,
            8,
            8,
            0,
            1500 + n,
            0,
            1,
            0,
            b"pp%d" % n,
        )
    for n in range(slots[1]):
        struct.pack_into(
            "<IIQQQQQiBBHQQ16s16s16s16sII",
            data,
            places[1] + n * 192,
            2,
            2,
            41 + n,
            50,
            40,
            7 + n,
            4096,
            0,
            2,
            16,
            0,
            1600 + n,
            1601,
            b"AllReduce",
            b"ncclFloat32",
            b"RING",
            b"SIMPLE",
            1,
            0,
        )
    for n in range(slots[2]):
        struct.pack_into(
            "<IIQiiHHiQQQQ", data, places[2] + n * 64, 2, 1, 40, n, rank % 8, n % 64, n % 2, 77 + rank, 5, 4, 60, 1700
        )
    for n in range(slots[3]):
        at = places[3] + n * 384
        struct.pack_into(
            "<IIQQQQQiiihhiiiiIiq16sQQ",
            data,
            at,
            2,
            1,
            60 + n,
            41,
            50,
            40,
            7,
            77 + rank,
            rank % 8,
            (n + 1) % 8,
            n % 64,
            n % 2,
            16,
            4096,
            3,
            2,
            19,
            0,
            4,
            b"AllReduce",
            1650,
            1700,
        )
        for step in range(8):
            struct.pack_into("<iIQQQ", data, at + 128 + 32 * step, step, 9, 4096, 1690, 1700)
    return bytes(data)


def box_family(table: str) -> None:
    def write(folder: Path, rng: random.Random, size: int) -> None:
        (folder / "n0.77.ncclbb").write_bytes(black_box(table, size))

    FAMILIES[f"box_of_many_{table}"] = write


for each in SLOTS:
    box_family(each)


@family
def boxes_of_many_ranks(folder: Path, rng: random.Random, size: int) -> None:
    for rank in range(400):
        (folder / f"n{rank}.{77 + rank}.ncclbb").write_bytes(black_box("transfers", max(384, size // 400 - 2500), rank))


# ---- archives and trees ----------------------------------------------------------------------------------------------


def tar_of(names: list[str], data: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


EMPTY_MEMBERS = 300_000


def empty_members(count: int, front: str = "rank") -> bytes:
    """A packed tar of empty files, with headers made by hand: tarfile would take half a minute."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed:
        for n in range(count):
            name = f"{front}_{n:06d}.log".encode().ljust(100, b"\0")
            block = bytearray(
                name
                + b"0000644\0"
                + b"0000000\0" * 2
                + b"00000000000\0" * 2
                + b" " * 8
                + b"0"
                + bytes(100)
                + b"ustar\x0000"
            )
            block += bytes(512 - len(block))
            block[148:156] = b"%06o\0 " % sum(block)
            packed.write(bytes(block))
        packed.write(bytes(1024))
    return out.getvalue()


@family
def archives_of_empty_members(folder: Path, rng: random.Random, size: int) -> None:
    for name in "abc":
        (folder / f"{name}.tar.gz").write_bytes(empty_members(EMPTY_MEMBERS * size // 2_000_000))
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def archive_of_empty_dumps(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "a.tar.gz").write_bytes(empty_members(EMPTY_MEMBERS * size // 2_000_000, "nccl_trace_rank"))
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def archive_of_refused_names(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "a.tar").write_bytes(tar_of([f"../{n}" for n in range(size // 512)]))
    (folder / "job.log").write_text(watchdog(0, 7))


@family
def archive_of_small_logs(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "a.tar").write_bytes(tar_of([f"rank_{n}.log" for n in range(size // 1024)], watchdog(0, 7).encode()))


@family
def archives_in_archives(folder: Path, rng: random.Random, size: int) -> None:
    inner = gzip.compress(tar_of([f"rank_{n}.log" for n in range(20)], watchdog(0, 7).encode()))
    (folder / "a.tar").write_bytes(tar_of([f"n{n}.tar.gz" for n in range(size // (len(inner) + 1000))], inner))


@family
def archive_of_many_streams(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "job.log.gz").write_bytes(gzip.compress(watchdog(0, 7).encode()) + gzip.compress(b"") * (size // 20))


@family
def archive_that_grows(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "job.log.gz").write_bytes(gzip.compress(watchdog(0, 7).encode() * (size // 4)))


@family
def tree_of_small_files(folder: Path, rng: random.Random, size: int) -> None:
    for n in range(1900):
        (folder / f"{n % 40}").mkdir(exist_ok=True)
        (folder / f"{n % 40}" / f"rank_{n}.log").write_text(watchdog(n, 7)[: size // 1900])


@family
def tree_of_empty_files(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "job.log").write_text(watchdog(0, 7))
    for n in range(size // 250):
        (folder / f"nccl_trace_rank_{n}").touch()


@family
def tree_of_deep_folders(folder: Path, rng: random.Random, size: int) -> None:
    for n in range(60):
        path = folder.joinpath(f"n{n}", *["d"] * 95)
        path.mkdir(parents=True)
        (path / f"rank_{n}.log").write_text((watchdog(n, 7) * 100)[: size // 60])


@family
def tree_of_many_nccl_logs(folder: Path, rng: random.Random, size: int) -> None:
    for n in range(1000):
        text = "".join(
            init(f"n{n // 8}", n + 10, 4096 + i, n % 64, 64, i + 1) for i in range(max(1, size // 1000 // 160))
        )
        (folder / f"nccl.n{n // 8}.{n + 10}.log").write_text(text)


@family
def settings_that_are_hostile(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "hangscope.toml").write_text("".join(fill(size, rng, lambda n, _: f'key_{n} = "{n}"\n')))
    (folder / "job.log").write_text(watchdog(0, 7))
