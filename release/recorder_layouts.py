"""Makes the table by which the flight recorder of another process is read: from released wheels, never by hand.

    python release/recorder_layouts.py WHEELS [--compiler aarch64=aarch64-linux-gnu-g++]
    python release/recorder_layouts.py --check      is there a release of torch that the table does not know?

WHEELS is a directory of torch wheels, as `pip download --no-deps torch==2.13.0` brings them (with `--platform` also
those of the other architecture). Of each, the headers that it ships are compiled by g++, which says where every field
lies; the names of the types and the version of the dump are taken from the same headers; and the symbols by which the
recorder is found are looked up in its libraries. Versions that agree in everything share one line of the table. What
was read stands beside it: the wheel's name, and the digest of its FlightRecorder.hpp. What was read of a wheel is kept
beside the wheel (.layout.json), so that another one can be added.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src" / "hangscope" / "sources" / "flight_recorder" / "known_layouts.py"
HEADERS = "torch/include/"
C10D = "torch/include/torch/csrc/distributed/c10d/"
COMPILERS = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
RECORDER = {
    "size": "",
    "enabled": "enabled_",
    "mutex": "mutex_",
    "entries": "entries_",
    "most": "max_entries_",
    "next": "next_",
    "count": "id_",
    "epoch": "reset_epoch_",
    "epoch_starts": "reset_epoch_start_idx_",
    "statuses": "all_pg_status_",
    "groups": "pg_name_to_ranks_",
    "library_version": "comm_lib_version_ nccl_version_",
}
ENTRY = {
    "size": "",
    "id": "id_",
    "epoch": "reset_epoch_",
    "pg_id": "pg_id_",
    "pg_name": "pg_name_",
    "collective_seq_id": "collective_seq_id_",
    "p2p_seq_id": "p2p_seq_id_",
    "op_id": "op_id_",
    "profiling_name": "profiling_name_",
    "traceback": "traceback_",
    "time_created": "time_created_",
    "timeout_ms": "timeout_ms_",
    "is_p2p": "isP2P_",
    "duration": "duration_",
    "started": "time_discovered_started_",
    "completed": "time_discovered_completed_",
    "input_dims": "input_dims_",
    "input_dtypes": "input_dtypes_",
    "output_dims": "output_dims_",
    "output_dtypes": "output_dtypes_",
    "sizes": "sizes_",
    "thread_id": "thread_id_",
    "thread_name": "thread_name_",
    "retired": "retired_",
}
STATUS = {"enqueued": "lastEnqueuedSeq", "started": "lastStartedSeq", "completed": "lastCompletedSeq"}
ABSENT = 0xFFFF
SYMBOLS = (
    ("libtorch_cpu.so", "_ZN4c10d18dump_fr_trace_json"),
    ("libtorch_cpu.so", "_ZN4c10d17getFlightRecorder"),
    ("libtorch_cpu.so", "_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance"),
    ("libtorch_cuda.so", "_ZN4c10d20dump_nccl_trace_json"),
    ("libtorch_cuda.so", "_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance"),
    ("libtorch_cuda.so", "_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance"),
    ("libtorch_cuda.so", "_ZZN4c10d14FlightRecorder3getEvE8instance"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true", help="list the releases that the table does not know; 1 if any")
    parser.add_argument("--compiler", action="append", default=[], metavar="MACHINE=PROGRAM")
    asked = parser.parse_args()
    if asked.check:
        return _check()
    if asked.wheels is None:
        parser.error("WHEELS: a directory of torch wheels is needed")
    compilers = COMPILERS | dict(each.split("=", 1) for each in asked.compiler)
    rows = []
    for wheel in sorted(asked.wheels.glob("torch-*.whl"), key=_version_key):
        print(f"{wheel.name} …", file=sys.stderr, flush=True)
        kept = wheel.with_suffix(".layout.json")
        if not kept.exists():
            kept.write_text(json.dumps(_row(wheel, compilers)))
        rows.append(json.loads(kept.read_text()))
    TABLE.write_text(_table(_merged(rows)))
    return 0


def _check() -> int:
    """Ask pip's index for all releases of torch; what the table does not name is printed."""
    words = [sys.executable, "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    listed = re.search(r"^Available versions: (.+)$", asked.stdout, re.MULTILINE)
    if asked.returncode or listed is None:
        print(f"error: pip tells no releases of torch: {asked.stderr.strip()[-500:]}", file=sys.stderr)
        return 2
    known = {_release(version) for version in re.findall(r'"torch-([\d.]+)', TABLE.read_text())}
    offered = {_release(version) for version in listed[1].split(", ") if re.fullmatch(r"[\d.]+(?:\+\w+)?", version)}
    missing = sorted(release for release in offered if release > min(known) and release not in known)
    for release in missing:
        number = ".".join(map(str, release))
        print(
            f"torch {number} is not in the table: pip download --no-deps torch=={number}.* -d WHEELS, then this script"
        )
    if not missing:
        print(f"the table knows every release of torch up to {'.'.join(map(str, max(offered)))}")
    return 1 if missing else 0


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2])


def _version_key(wheel: Path) -> tuple[list[int], str]:
    return [int(each) for each in wheel.name.split("-")[1].split("+")[0].split(".")], wheel.name


def _row(wheel: Path, compilers: dict[str, str]) -> dict[str, Any]:
    machine = "aarch64" if "aarch64" in wheel.name else "x86_64"
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(HEADERS)]
        archive.extractall(place, names)
        header = _text(place, f"{C10D}FlightRecorder.hpp")
        found = _compiled(Path(place), header, compilers[machine])
        return {
            "torch": wheel.name.split("-")[1],
            "machine": machine,
            "wheel": re.sub(r"-cp\d+-cp\d+-", "-", wheel.name),
            "sha": hashlib.sha256(header.encode()).hexdigest()[:16],
            "symbols": _symbols(archive, Path(place)),
            "dump_version": re.findall(r'version_val, "([\d.]+)"', header)[0],
            "dtypes": _dtypes(Path(place), compilers[machine]),
            **found,
        }


def _text(place: str, name: str) -> str:
    return (Path(place) / name).read_text()


def _fields(members: dict[str, str], header: str, kind: str) -> dict[str, str]:
    """The expressions of the offsets; a member that this release lacks is `ABSENT`."""
    found = {}
    for name, choices in members.items():
        there = [each for each in choices.split() if re.search(rf"\b{each}\b", header)]
        found[name] = f"sizeof({kind})" if not choices else f"offsetof({kind}, {there[0]})" if there else str(ABSENT)
    return found


def _compiled(place: Path, header: str, compiler: str) -> dict[str, dict[str, int]]:
    template = re.search(r"template <typename EventType>\s*struct (TORCH_API )?FlightRecorder", header) is not None
    recorder = "c10d::FlightRecorder<hs::Event>" if template else "c10d::FlightRecorder"
    begin = re.search(r"struct (TORCH_API )?FlightRecorder \{", header)
    entry_text, _, recorder_text = header[begin.start() if begin else 0 :].partition("bool enabled_")
    recorder_text = "bool enabled_" + recorder_text
    parts = {
        "recorder": _fields(RECORDER, recorder_text, "R"),
        "entry": _fields(ENTRY, entry_text, "R::Entry"),
        "status": {name: f"offsetof(S, {member})" for name, member in STATUS.items()},
        "traceback": {"frames": "offsetof(T, frames_)", "frame_size": "sizeof(T::PyFrame)"},
    }
    optional = {name: f"sizeof(R::Entry::{member})" for name, member in (("time", "time_discovered_started_"),)}
    parts["optional"] = optional
    words = ", ".join(expression for part in parts.values() for expression in part.values())
    # up to 2.7 the recorder is NCCL's own, and knows CUDA's event by a pointer alone
    stub = place / "stub/ATen/cuda/CUDAEvent.h"
    stub.parent.mkdir(parents=True)
    stub.write_text("#pragma once\nnamespace at::cuda { struct CUDAEvent; }\n")
    source = (
        f"{'#define USE_C10D_NCCL' if 'ifdef USE_C10D_NCCL' in header else ''}\n"
        "#include <cstddef>\n#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>\n"
        "#include <torch/csrc/distributed/c10d/logger.hpp>\n#include <torch/csrc/profiler/combined_traceback.h>\n"
        "namespace hs { struct Event; }\n"
        f"using R = {recorder}; using T = torch::CapturedTraceback; using S = c10d::ProcessGroupStatus;\n"
        f'extern "C" {{ extern const unsigned long hs_table[]; const unsigned long hs_table[] = {{ {words} }}; }}\n'
    )
    path = place / "table.cc"
    path.write_text(source)
    include = [f"-I{place / 'stub'}", f"-I{place / HEADERS}", f"-I{place / HEADERS / 'torch/csrc/api/include'}"]
    # up to 2.13 the headers are C++17, from 2.14 on C++20
    for standard in ("-std=c++20", "-std=c++17"):
        words_of = [compiler, standard, "-S", "-O1", "-w", "-fno-access-control", *include, str(path), "-o", "-"]
        done = subprocess.run(words_of, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    else:
        raise SystemExit(done.stderr[:4000])
    values = _values(done.stdout)
    found: dict[str, dict[str, int]] = {}
    for part, members in parts.items():
        found[part] = {name: values.pop(0) for name in members}
    return found


def _values(assembly: str) -> list[int]:
    lines = iter(assembly.splitlines())
    for line in lines:
        if line.startswith("hs_table:"):
            break
    found = []
    for line in lines:
        word = re.match(r"\s+\.(?:quad|xword|8byte|zero)\s+(\d+)", line)
        if word is None:
            break
        found += [0] * (int(word[1]) // 8) if ".zero" in line else [int(word[1])]
    return found


def _dtypes(place: Path, compiler: str) -> tuple[str, ...]:
    """The names of c10::ScalarType in their order, by the headers' own macro."""
    source = place / "types.cc"
    source.write_text(
        "#include <c10/core/ScalarType.h>\n#define HS(_, name) hs_name name\n"
        "AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(HS)\n"
    )
    words = [compiler, "-std=c++20", "-E", "-P", f"-I{place / HEADERS}", str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[:4000])
    return (*re.findall(r"hs_name (\w+)", done.stdout), "Undefined")


def _symbols(archive: zipfile.ZipFile, place: Path) -> tuple[str, ...]:
    """Those of `SYMBOLS` that the wheel's libraries have: in the table of exports, or in .symtab."""
    found = []
    for library in sorted({library for library, _ in SYMBOLS}):
        name = f"torch/lib/{library}"
        if name not in archive.namelist():
            continue
        path = place / library
        with archive.open(name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as raw:
            found += [f"{library}:{name}" for name in _names(raw, library)]
        path.unlink()
    return tuple(sorted(set(found)))


def _names(raw: mmap.mmap, library: str) -> set[str]:
    """The names in the library's tables of strings that begin as one of `SYMBOLS`."""
    found = set()
    for _, symbol in (each for each in SYMBOLS if each[0] == library):
        wanted = b"\0" + symbol.encode()
        place = raw.find(wanted)
        while place >= 0:
            found.add(raw[place + 1 : raw.find(b"\0", place + 1)].decode())
            place = raw.find(wanted, place + 1)
    return found


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for all releases that agree in the layout, the types and the dump's version."""
    found: list[dict[str, Any]] = []
    for row in rows:
        same = ("machine", "dump_version", "dtypes", "recorder", "entry", "status", "traceback", "optional")
        line = next((each for each in found if all(each[name] == row[name] for name in same)), None)
        if line is None:
            line = {**{name: row[name] for name in same}, "proofs": []}
            found.append(line)
        line["proofs"].append((row["torch"], row["wheel"], row["sha"], row["symbols"]))
    return found


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        '"""Where the fields of torch\'s flight recorder lie, by release. Made by release/recorder_layouts.py: do',
        "not edit. Each layout is compiled from the headers of the wheels that are named beside it, and proven again",
        'on every process before it is believed."""',
        "",
        "from __future__ import annotations",
        "",
        "from hangscope.sources.flight_recorder.layout import Layout, Proof",
        "",
        "LAYOUTS = (",
    ]
    for row in reversed(rows):
        lines += [
            "    Layout(",
            f"        machine={row['machine']!r},",
            f"        dump_version={row['dump_version']!r},",
        ]
        for part in ("recorder", "entry", "status", "traceback"):
            lines += [f"        {part}={{", *(f"            {k!r}: {v}," for k, v in row[part].items()), "        },"]
        lines += ["        dtypes=(", *(f"            {each!r}," for each in row["dtypes"]), "        ),"]
        lines += ["        proofs=("]
        for torch, wheel, sha, symbols in row["proofs"]:
            lines += [
                f"            Proof({torch!r}, {wheel!r}, {sha!r}, (",
                *(f"                {s!r}," for s in symbols),
            ]
            lines += ["            )),"]
        lines += ["        ),", "    ),"]
    text = "\n".join([*lines, ")", ""])
    formatter = [sys.executable, "-m", "ruff", "format", "-", "--line-length", "120"]
    done = subprocess.run(formatter, input=text, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else text


if __name__ == "__main__":
    sys.exit(main())
