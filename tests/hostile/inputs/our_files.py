"""Files that hangscope itself writes, with anything in them: manifests, nodes, rosters, RAS, stacks, black boxes, GPUs."""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from random import Random
from typing import Any

from hostile.inputs import dumps, logs
from hostile.inputs.evidence import honest, incident, jsons_in
from hostile.inputs.registry import Input, input_class
from hostile.inputs.values import ABSURD, STRINGS, absurd, places, spoil, value
from kits.gpu_cores import ALL_REDUCE, SPIN, Kernel
from kits.gpu_cores import core as gpu_core


@input_class
def our_json(rng: Random, root: Path) -> Input:
    incident(rng, root)
    for path in rng.sample(found := jsons_in(root), rng.randint(1, min(4, len(found)))):
        try:
            whole = json.loads(path.read_bytes()[path.read_bytes().index(b"{") :])
        except ValueError:
            continue
        schema = whole.get("schema") if isinstance(whole, dict) else None
        whole = spoil(rng, whole)
        if schema and isinstance(whole, dict) and rng.random() < 0.8:
            whole["schema"] = schema
        path.write_text(json.dumps(whole))
    return Input(root)


@input_class
def our_json_each(rng: Random, root: Path) -> Input:
    """Every value of one file is of one wrong type."""
    incident(rng, root)
    path = rng.choice(
        [
            path
            for path in jsons_in(root)
            if path.name in ("node.json", "incident.json", "stall.json", "status.json", "start.json")
        ]
    )
    whole = json.loads(path.read_bytes())
    odd = value(rng)
    for holder, key in places(whole)[:3_000]:
        if key != "schema" and (not isinstance(holder[key], (dict, list)) or rng.random() < 0.1):
            holder[key] = odd
    path.write_text(json.dumps(whole))
    return Input(root)


@input_class
def our_json_broken(rng: Random, root: Path) -> Input:
    incident(rng, root)
    for path in rng.sample(jsons_in(root), 2):
        data = path.read_bytes()
        path.write_bytes(
            rng.choice(
                (
                    data[: rng.randrange(len(data) + 1)],
                    b"",
                    b"null",
                    b"[]",
                    b'"x"',
                    data + data,
                    data.replace(b":", b": " + b"[" * 60_000, 1),
                    b'{"schema": "hangscope.node/1", "ranks": [' + b'{"rank": 1},' * 300_000 + b"{}]}",
                    b'{"schema": "hangscope.incident/1", "world_size": 99999999999, "gaps": [' + b'{"what": "x", "why": "y"},' * 90_000 + b"{}]}",
                    b'{"schema": "hangscope.incident/1", "files": {' + b",".join(b'"f%d": {}' % n for n in range(90_000)) + b"}}",
                    b'{"schema": "hangscope.incident/1", "nodes_present": [], "nodes_expected": [' + b'"n",' * 200_000 + b'"z"]}',
                    b"\xef\xbb\xbf" + data,
                    data.decode().encode("utf-16"),
                )
            )
        )  # fmt: skip
    return Input(root)


@input_class
def roster_and_ras(rng: Random, root: Path) -> Input:
    honest(rng, root, "skipped", "deadlock2", "mesh_absent", "sigkill")
    for name in ("roster.json", "ras.json"):
        if (root / name).exists() and rng.random() < 0.8:
            text = (root / name).read_text()
            front, body = text[: re.search(r"[\[{]", text).start()], text[re.search(r"[\[{]", text).start() :]  # type: ignore[union-attr]
            try:
                (root / name).write_text(front + json.dumps(spoil(rng, json.loads(body), times=5)))
            except ValueError:
                (root / name).write_text(text[: rng.randrange(len(text))])
    if (root / "ras.txt").exists():
        text = "\n".join(
            absurd(rng, line) if rng.random() < 0.4 else line for line in (root / "ras.txt").read_text().split("\n")
        )
        (root / "ras.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    return Input(root)


@input_class
def stack_texts(rng: Random, root: Path) -> Input:
    incident(rng, root)
    for path in sorted(root.rglob("stacks/*.txt")):
        lines = path.read_text().split("\n")
        what = rng.random()
        if what < 0.4:
            lines = [absurd(rng, line) if rng.random() < 0.5 else line for line in lines]
        elif what < 0.6:
            lines = lines[:2] + [
                f'  File "{rng.choice(STRINGS)}", line {rng.choice(ABSURD)} in {rng.choice(STRINGS)}'
                for _ in range(1_500)
            ]
        elif what < 0.8:
            spy = [
                "Process 9: x",
                'Thread 1 (idle): "MainThread"',
                *(f"    f{n} ({rng.choice(STRINGS)[:90]}:{rng.choice(ABSURD)})" for n in range(1_500)),
            ]
            lines = lines[:1] + spy
        else:
            lines = [
                "(gdb) bt",
                *(f"#{n}  0x{n:016x} in {rng.choice(STRINGS)[:50]} () from /lib/x.so" for n in range(1_500)),
            ]
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return Input(root)


@input_class
def black_boxes(rng: Random, root: Path) -> Input:
    incident(rng, root)
    folder = root / "nodes" / rng.choice(sorted(path.name for path in (root / "nodes").iterdir())) / "blackbox"
    folder.mkdir(exist_ok=True)
    for number in range(rng.randint(1, 3)):
        head = bytearray(
            b"\xffHSNCCLB"
            + struct.pack(
                "<IIQIiiiII",
                1,
                576,
                rng.choice((1 << 16, 1 << 60, 0)),
                9,
                rng.choice((0, 1, -1, 2**31 - 1)),
                0,
                rng.choice((4, -1, 2**31 - 1)),
                22809,
                6,
            )
        )
        head += bytes(128 - len(head))
        for _ in range(5):
            head += struct.pack(
                "<4I",
                rng.choice((576, 0, 0xFFFFFFFF, 700, 4096)),
                rng.choice((0, 8, 64, 1024, 0xFFFFFFFF)),
                rng.choice((0, 1, 64, 256, 0xFFFFFFFF)),
                rng.choice((0, 1, 64)),
            )
        head += bytes(rng.randrange(256) if rng.random() < 0.2 else 0 for _ in range(576 - len(head)))
        body = bytes(
            rng.randrange(256) if rng.random() < 0.3 else 0 for _ in range(rng.choice((0, 100, 20_000, 60_000)))
        )
        (folder / f"h.{number}.ncclbb").write_bytes(bytes(head) + body)
    return Input(root)


KEYS = (
    "schema", "job", "attempt", "node", "ranks", "live", "rank", "groups", "waiting", "files", "gaps", "nodes_present",
    "world_size", "captures", "ended", "settings", "versions", "stale", "entries", "pg_config", "sha256", "at", "reason",
)  # fmt: skip


def _nonsense(rng: Random, depth: int = 0) -> Any:
    """Any JSON, with the keys that our own files have."""
    pick = rng.randrange(9 if depth < 4 else 5)
    if pick < 5:
        return rng.choice(
            [None, True, -1, 5, 1 << 70, 1e300, "", "\x1b[2J", "x" * 5000, "../../x", "\ud800", "2026-11-15"]
        )
    if pick < 7:
        return {rng.choice(KEYS): _nonsense(rng, depth + 1) for _ in range(rng.randrange(8))}
    return [_nonsense(rng, depth + 1) for _ in range(rng.randrange(6))]


def _under(rng: Random, schema: str) -> bytes:
    made = _nonsense(rng)
    if isinstance(made, dict) and rng.random() < 0.8:
        made["schema"] = schema
    return json.dumps(made).encode()


@input_class
def our_json_nonsense(rng: Random, root: Path) -> Input:
    """An incident of which every file of ours is nonsense, also what only a neighbour would write."""
    node = root / "nodes" / rng.choice(("gpu-a", "\x1b[31m", "..a", "x" * 200))
    node.parent.mkdir(parents=True)
    if rng.random() < 0.5:
        dumps.dump_files(rng, node)
    else:
        node.mkdir()
    for name in ("incident", "run", "redaction"):
        (root / f"{name}.json").write_bytes(_under(rng, f"hangscope.{name}/1"))
    (root / "stall.json").write_bytes(_under(rng, "x"))
    for name in ("node", "status"):
        (node / f"{name}.json").write_bytes(_under(rng, f"hangscope.{name}/1"))
    return Input(root)


@input_class
def json_that_grows(rng: Random, root: Path) -> Input:
    """JSON that is small on disk and large in memory, or deep, or of endless numbers, under the names that are read."""
    root.mkdir()
    name = rng.choice(("x.json", "incident.json", "node.json", "nccl_trace_rank_0.json", "ras.json", "run.json"))
    front = rng.choice(("", '{"schema": "hangscope.incident/1", "x": ', '{"pg_config": {}, "entries": ', '{"ranks": '))
    piece = rng.choice(("[],", "{},", '{"rank": 1},', '"",', "1e5,", "NaN,", "[", '{"a":', "9" * 50, "\\u2028"))
    (root / name).write_text(front + "[" + piece * rng.choice((10, 5_000, 300_000)))
    (root / "rank_0.log").write_bytes(logs.words(rng))
    return Input(root)


@input_class
def gpu_cores(rng: Random, root: Path) -> Input:
    """Cores of GPUs, and our tables of them: cut, with lying sizes, endless tables, symbols of a megabyte."""
    incident(rng, root)
    folder = root / "nodes" / rng.choice(sorted(path.name for path in (root / "nodes").iterdir())) / "gpu"
    folder.mkdir(exist_ok=True)
    for rank in range(rng.randint(1, 4)):
        name = rng.choice(
            (ALL_REDUCE, SPIN, "_ZN" + "1a" * 500_000 + "E", "_Z1f" + "P" * 3_000 + "i", rng.choice(STRINGS))
        )
        data = bytearray(gpu_core([Kernel(name.encode("ascii", "replace").decode(), blocks=rng.choice((0, 1, 4)))]))
        for _ in range(rng.choice((0, 1, 4, 40))):
            at = rng.randrange(max(1, len(data) - 8))
            struct.pack_into("<Q", data, at, rng.choice((0, 1, 1 << 20, 1 << 40, (1 << 64) - 1)))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        (folder / f"rank_{rank}.core").write_bytes(bytes(data))
        (folder / f"rank_{rank}.json").write_text(json.dumps(_gpu_table(rng, rank)), errors="replace")
    return Input(root)


def _gpu_table(rng: Random, rank: int) -> dict[str, Any]:
    grid = {
        "device": rng.choice(ABSURD),
        "kernel": rng.choice((*STRINGS, ALL_REDUCE, "x" * 1_000_000)),
        "grid": rng.choice(([1, 1, 1], [1], [-1, 2**70, 0], "x", None)),
        "block": rng.choice(([128, 1, 1], {}, [[]] * 3)),
        "blocks": rng.choice(ABSURD),
    }
    return {
        "schema": "hangscope.gpu/1",
        "rank": rng.choice((rank, rng.choice(ABSURD))),
        "pid": rng.choice(ABSURD),
        "node": rng.choice(STRINGS),
        "asked_at": rng.choice(("2026-11-18T03:22:38.815Z", rng.choice(STRINGS), None)),
        "grids": rng.choice(([grid] * rng.choice((0, 1, 3, 5_000)), {}, [[], 1, grid], None)),
        "problems": rng.choice(([], [rng.choice(STRINGS)] * 100, "x")),
    }
