"""What would happen here if a collective hung now: findings, as data.

Nothing is changed. Everything that is looked at can be pointed elsewhere, so that another machine's state can be
examined from its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hangscope.processes import linux_process
from hangscope.recorder.doctor.examine_node import node_findings
from hangscope.recorder.doctor.examined_node import ExaminedNode
from hangscope.recorder.doctor.finding import NOTE, OK, PROBLEM, SEVERITIES, WARNING, DoctorFinding
from hangscope.recorder.setup import blackbox_library, ring_cost
from hangscope.recorder.setup.backends import WORKER_SERVER_SINCE, families, records, writes_file
from hangscope.recorder.setup.checks import check
from hangscope.recorder.setup.setting_problems import Setting, SettingProblem, folder_of, free_bytes
from hangscope.recorder.setup.torch_version import TorchInstall, release_of
from hangscope.recorder.setup.variables import BY_NAME, DUMP_NAMES, FIRST_RECORDER, Release
from hangscope.text import size

__all__ = ["SCHEMA", "DoctorFinding", "Examination", "ExaminedNode", "examine"]

SCHEMA = "hangscope.doctor/1"

_GRADE = {
    "fatal": PROBLEM,
    "loses_dumps": PROBLEM,
    "loses_evidence": WARNING,
    "cost": WARNING,
    "note": NOTE,
}


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings, the gravest first, and the one sentence that they come down to."""

    summary: str
    findings: tuple[DoctorFinding, ...]
    torch_version: str | None
    families: tuple[str, ...]
    world_size: int | None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def worst(self) -> str:
        return min((finding.severity for finding in self.findings), key=SEVERITIES.index, default=OK)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "summary": self.summary,
            "worst": self.worst,
            "torch": self.torch_version,
            "backends": list(self.families),
            "world_size": self.world_size,
            "settings": dict(self.settings),
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(
    *,
    environ: Mapping[str, str],
    torch: TorchInstall | None,
    torch_version: str | None = None,
    backend: str | None = None,
    directory: Path | None = None,
    world_size: int | None = None,
    node: ExaminedNode | None = None,
    more: Sequence[DoctorFinding] = (),
) -> Examination:
    """Look at the settings in `environ`, the torch that would read them, the dump's place and the node itself.

    `torch_version` overrules the one found; `directory` is where `hangscope run` would write; `more` is what the
    caller found out.
    """
    version = torch_version or (torch.version if torch else None)
    release = release_of(version)
    if backend is None:
        # What init_process_group takes by itself; a build without CUDA has no NCCL.
        known = torch is not None and torch_version is None
        backend = ",".join(torch.backends) if torch is not None and known else "nccl,gloo"
    used = families(backend, release, environ)
    world_size = world_size if world_size is not None else _world_size(environ)
    setting = Setting(environ, release, used, world_size=world_size)
    problems = check(setting)
    found = [
        *_torch_findings(torch, version, release, used),
        *(_from_problem(problem) for problem in problems),
        *_recorder_findings(setting, problems),
        *_nccl_log_findings(setting, problems),
        *_blackbox_findings(setting, torch),
        *_directory_findings(directory, setting),
        *node_findings(node or ExaminedNode(), setting),
        *more,
    ]
    return Examination(
        summary=_summary(setting),
        findings=tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))),
        torch_version=version,
        families=tuple(sorted(used)),
        world_size=world_size,
        settings={name: environ[name] for name in environ if name in BY_NAME},
    )


def _from_problem(problem: SettingProblem) -> DoctorFinding:
    about_a_variable = problem.variable not in ("torch", "backend")
    equals = "=" if about_a_variable else " "
    return DoctorFinding(
        id=f"setting.{problem.variable}" if about_a_variable else problem.variable,
        severity=_GRADE[problem.severity],
        what=f"{problem.variable} is not set"
        if problem.value is None
        else f"{problem.variable}{equals}{problem.value}",
        why=problem.what,
        cure=problem.cure,
        variable=problem.variable if about_a_variable else None,
        value=problem.value if about_a_variable else None,
    )


def _torch_findings(
    torch: TorchInstall | None, version: str | None, release: Release | None, used: frozenset[str]
) -> Iterator[DoctorFinding]:
    if version is None:
        yield DoctorFinding(
            "torch",
            PROBLEM,
            "no torch was found",
            "which variables are read, and what their defaults are, depends on its version",
            "run this with the job's interpreter first on PATH, or give --torch or --python",
        )
        return
    where = f" in {torch.path}" if torch and torch.version == version else ""
    built = f", built for {', '.join(torch.backends)}" if torch and torch.version == version else ""
    yield DoctorFinding("torch", OK, f"torch {version}{where}{built}", f"backends looked at: {', '.join(sorted(used))}")
    if torch and torch.nccl and torch.version == version:
        yield DoctorFinding(
            "nccl", OK, f"NCCL {torch.nccl} beside it", "an image may load another one; its log says which"
        )
        if (2, 26) <= (release_of(torch.nccl) or (0, 0)) <= (2, 27):
            yield DoctorFinding(
                "nccl.silent",
                NOTE,
                f"NCCL {torch.nccl} does not report a failed link to PyTorch",
                "a dead NIC or peer looks like a plain timeout; one warning in NCCL's log is the only trace",
                "keep NCCL_DEBUG at WARN with a NCCL_DEBUG_FILE, or use NCCL 2.28",
            )
    if release is not None and release < WORKER_SERVER_SINCE:
        yield DoctorFinding(
            "worker-server",
            NOTE,
            f"torch {version} has no worker server",
            "live ranks cannot be asked for their record or stacks; py-spy and dump files are all there is",
            "use torch 2.4 or later",
        )
    else:
        yield DoctorFinding("worker-server", OK, "live ranks can be asked for their record and stacks (worker server)")


def _recorder_findings(setting: Setting, problems: list[SettingProblem]) -> Iterator[DoctorFinding]:
    """What is right with the recorder, in numbers."""
    ring = setting.ring
    if ring is None or ring <= 0 or not any(records(family, setting.release) for family in setting.families):
        return
    if any(problem.variable.endswith("BUFFER_SIZE") for problem in problems):
        return
    least = size(ring_cost.memory_bytes(ring, deep=False))
    most = size(ring_cost.memory_bytes(ring))
    dump = size(ring_cost.dump_bytes(ring))
    yield DoctorFinding(
        "recorder",
        OK,
        f"the last {ring:,} operations of every rank are recorded",
        f"that takes {least} to {most} of host memory in each rank, and a dump of {dump}",
    )
    if _file_is_written(setting) and not any(problem.variable.endswith("TEMP_FILE") for problem in problems):
        yield from _prefix_findings(setting)


def _prefix_findings(setting: Setting) -> Iterator[DoctorFinding]:
    prefix = setting.prefix
    free = free_bytes(prefix)
    configured = setting.set(*DUMP_NAMES)
    need = ring_cost.dump_bytes(setting.ring or 0) * (setting.world_size or 1)
    ranks = f"{setting.world_size} ranks need" if setting.world_size else "one rank needs"
    room = "" if free is None else f"; {ranks} {size(need)}, {size(free)} are free"
    if configured is None:
        folder = folder_of(prefix)
        reason = _try_to_write(next((place for place in (folder, *folder.parents) if place.exists()), folder))
        if reason:
            cure = "set TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE to a place that can be written to"
            yield DoctorFinding("dump.path", PROBLEM, f"dumps go to {prefix}<rank>, PyTorch's default", reason, cure)
            return
        yield DoctorFinding(
            "dump.path",
            NOTE,
            f"dumps go to {prefix}<rank>, PyTorch's default",
            f"a restart overwrites them, and on a node's own disk they go with the node{room}",
            "set TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE; hangscope run and hangscope env do",
        )
    else:
        yield DoctorFinding("dump.path", OK, f"dumps go to {prefix}<rank>", f"the folder is there and writable{room}")


def _nccl_log_findings(setting: Setting, problems: list[SettingProblem]) -> Iterator[DoctorFinding]:
    file = setting.environ.get("NCCL_DEBUG_FILE")
    if file and setting.uses("nccl", "nccl2") and not any(p.variable.startswith("NCCL_DEBUG") for p in problems):
        yield DoctorFinding("nccl.log", OK, f"NCCL logs to {file}, at level {setting.environ.get('NCCL_DEBUG', '')}")


def _blackbox_findings(setting: Setting, torch: TorchInstall | None) -> Iterator[DoctorFinding]:
    """Whether a hang inside a collective would leave what each transfer waited for."""
    if not setting.uses("nccl", "nccl2"):
        return
    what = "no black box would be kept"
    why = "which link is stalled inside a collective would not be known"
    nccl = release_of(torch.nccl) if torch is not None else None
    taken = blackbox_library.others_plugin(setting.environ)
    library = blackbox_library.library()
    if setting.environ.get(blackbox_library.PLUGIN, "").lower() == "none":
        yield DoctorFinding("blackbox", NOTE, what, f"NCCL_PROFILER_PLUGIN=none; {why}", "unset it")
    elif blackbox_library.stays_alone(setting.environ):
        said = f"{taken} is NCCL's profiler plugin, and {blackbox_library.NEXT}=none keeps it alone"
        yield DoctorFinding("blackbox", NOTE, what, f"{said}; {why}", f"unset {blackbox_library.NEXT}")
    elif setting.release is not None and setting.release < blackbox_library.FIRST_TORCH:
        yield DoctorFinding("blackbox", NOTE, what, f"its NCCL is older than 2.26; {why}", "use torch 2.7 or later")
    elif nccl is not None and nccl < blackbox_library.FIRST_NCCL:
        yield DoctorFinding("blackbox", NOTE, what, f"NCCL {torch.nccl if torch else ''} is older than 2.26; {why}", "")
    elif library is None:
        said = "its library was not built when hangscope was installed: there was no C compiler"
        yield DoctorFinding("blackbox", NOTE, what, f"{said}; {why}", "install gcc or clang, then reinstall hangscope")
    else:
        set_ = setting.environ.get(blackbox_library.PLUGIN) == str(library)
        how = "it is set" if set_ else "hangscope run and hangscope env set it"
        if taken is not None:
            how += f", in front of {taken}, to which it passes on every call of NCCL's"
        yield DoctorFinding("blackbox", OK, f"NCCL's black box is there: {library}", how)


def _directory_findings(directory: Path | None, setting: Setting) -> Iterator[DoctorFinding]:
    """The directory that hangscope run would use."""
    if directory is None:
        return
    path = directory.absolute()
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    cure = "choose another --dir"
    if not existing.is_dir():
        yield DoctorFinding("directory", PROBLEM, f"{path}: {existing} is a file", "nothing can be saved there", cure)
        return
    reason = _try_to_write(existing)
    if reason:
        yield DoctorFinding("directory", PROBLEM, f"{path} cannot be written to", reason, cure)
        return
    free = free_bytes(f"{existing}/")
    ring = setting.ring if setting.ring and setting.ring > 0 else 2000
    # An incident holds a dump with and one without stacks, two samples of stacks and the logs of each rank.
    need = 3 * ring_cost.dump_bytes(ring) * (setting.world_size or 1)
    room = f"{size(free or 0)} are free, an incident takes about {size(need)} of dumps"
    if free is not None and free < need:
        yield DoctorFinding("directory", PROBLEM, f"{path} has too little room", room, "free space, or " + cure)
    else:
        state = "is there and writable" if path == existing else f"can be made below {existing}"
        yield DoctorFinding("directory", OK, f"{path} {state}", room)


def _try_to_write(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"\0" * 4096)
            stream.flush()
    except OSError as error:
        return f"writing a file there failed: {error.strerror}"
    return ""


def _file_is_written(setting: Setting) -> bool:
    """Whether a timeout leaves a dump file with something in it."""
    if setting.boolean("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", default=False) and setting.uses("nccl"):
        return False
    if not setting.ring or not any(writes_file(family, setting.release) for family in setting.families):
        return False
    return not any(
        problem.severity == "loses_dumps" and problem.variable.endswith(("DUMP_ON_TIMEOUT", "BUFFER_SIZE"))
        for problem in check(setting)
    )


def _summary(setting: Setting) -> str:
    """The answer to "what would I have afterwards?" in one sentence."""
    begin = "If a collective hung now, "
    if setting.release is not None and setting.release < FIRST_RECORDER:
        return begin + "nothing would be recorded: this torch has no flight recorder."
    if any(problem.severity == "fatal" for problem in check(setting)):
        return "A job would not get that far, or would die instead of leaving a dump: see the problems."
    if not any(records(family, setting.release) for family in setting.families):
        return begin + "nothing would be recorded: this torch does not record the backend."
    if not setting.ring:
        return begin + "nothing would be recorded: the recorder is off."
    if not any(writes_file(family, setting.release) for family in setting.families):
        return (
            begin + "operations would be in memory only: this backend writes no dump file. hangscope run asks for them."
        )
    if not _file_is_written(setting):
        return begin + "operations would be recorded, but no dump would be written."
    who = "every rank that is still able to"
    if setting.uses("nccl2") and not setting.uses("nccl"):
        who = "each rank that notices it, but not the one that never joined,"
    return f"{begin}{who} would write its record to {setting.prefix}<rank>."


def _world_size(environ: Mapping[str, str]) -> int | None:
    ranks = linux_process.whole_number(environ.get("WORLD_SIZE", ""))
    if ranks:
        return ranks
    tasks = linux_process.whole_number(environ.get("SLURM_NTASKS", ""))
    nodes = linux_process.whole_number(environ.get("SLURM_NNODES", ""))
    # One task a node starts a launcher: how many ranks that will start, Slurm does not know.
    return tasks if tasks and nodes and tasks > nodes else None
