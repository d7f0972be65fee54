"""The nodes of a job, as ssh and Slurm know them, each with the command that reaches it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangscope.errors import CollectError, SettingsError
from hangscope.incident.collect.remote_node import Node
from hangscope.safeio import limits
from hangscope.safeio.safe_files import read_file

_ASK_S = 60.0
_PART = "%A|%K|%N|%i"
"""squeue's words for the number of a job, the index in its array, its nodes, and its name: 48121, 48121_3, 48121+1."""
_FOR_SRUN = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_TIME_FORMAT")
"""Of Slurm's variables those that srun needs. All others, as of a batch script, would change what it does."""
_RANGE = re.compile(r"^(?P<front>[^\[\]]*)\[(?P<list>[\d,\s-]+)\](?P<back>.*)$")
_HOST = re.compile(r"[A-Za-z0-9_.@%:\[\]-]{1,300}")


def hosts_of(text: str) -> list[str]:
    """The hosts in `a,b`, or in Slurm's way to write many: `gpu-a[017-020,31],login`."""
    found: list[str] = []
    for word in _words(text):
        found.extend(_expanded(word, limits.HOSTS - len(found)))
    return list(dict.fromkeys(found))


def _words(text: str) -> list[str]:
    """What commas and blanks part, but for those inside brackets."""
    found = []
    word = ""
    depth = 0
    for piece in re.split(r"([,\s\[\]])", text):
        depth = max(0, depth + (piece == "[") - (piece == "]"))
        if depth == 0 and (piece == "," or piece.isspace()):
            found.append(word)
            word = ""
        else:
            word += piece
    return [each for each in (*found, word) if each]


def hosts_in(file: Path) -> list[str]:
    """The hosts in a hostfile: the first word of each line (`gpu-a017 slots=8`, `gpu-a017:8`), comments left out."""
    try:
        lines = read_file(file, limits.HOSTFILE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror})") from None
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        for host in hosts_of(re.sub(r":\d+$", "", words[0])) if words else ():
            if not _is_host(host):
                raise SettingsError(f"{file}, line {number}: {host[:80]!r} is not a host name")
            found.append(host)
    return found


def _is_host(word: str) -> bool:
    """Whether ssh may be given it: what begins with a dash would be an option."""
    return _HOST.fullmatch(word) is not None and not word.startswith("-") and "@-" not in word


def ssh(
    hosts: Iterable[str], *, patterns: Sequence[str] = (), defaults: bool = True, command: Sequence[str] = ("ssh",)
) -> list[Node]:
    """Nodes over ssh, which must work without a password. Your own ssh configuration applies."""
    nodes = []
    for host in hosts:
        if not _is_host(host):
            raise SettingsError(f"{host[:80]!r} is not a host name")
        options = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "Compression=yes")
        name = host.rpartition("@")[2]
        nodes.append(Node(name, (*command, *options, host, "sh -s"), tuple(patterns), defaults))
    return nodes


@dataclass(frozen=True, slots=True)
class SlurmPart:
    """What srun reaches at once: a job, a task of an array, or a component of a heterogeneous job.

    `number` is the job's, or that of its first component, which srun wants with the `group` of this one.
    """

    number: str
    nodes: tuple[str, ...]
    group: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What srun needs to start a step beside the job's own."""
        component = () if self.group is None else (f"--het-group={self.group}",)
        return (f"--jobid={self.number}", *component, "--overlap")


def slurm(
    job: str, *, patterns: Sequence[str] = (), defaults: bool = True, srun: Sequence[str] = ("srun",)
) -> list[Node]:
    """The nodes of a Slurm job that still runs, each reached by a step beside the job's own."""
    alone = ("--nodes=1", "--ntasks=1", "--quiet")
    environ = step_environment(os.environ)
    return [
        Node(
            name,
            (*srun, *part.options, *alone, f"--nodelist={name}", "sh", "-s"),
            patterns,
            defaults,
            environ=environ,
        )
        for part in slurm_parts(job)
        for name in part.nodes
    ]


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a step of our own: inside a batch script Slurm's variables are options of srun's, too, and
    ask for the job's tasks, memory or components."""
    return {name: value for name, value in environ.items() if not name.startswith("SLURM_") or name in _FOR_SRUN}


def slurm_parts(job: str) -> list[SlurmPart]:
    """The parts of a running job, given as 48121, 48121_3 (of an array) or 48121+1 (of a heterogeneous job)."""
    if not re.fullmatch(r"\d+(?:[_+]\d+)?", job):
        raise SettingsError(f"{job!r} is not a Slurm job id")
    listed = [line.split("|") for line in ask(("squeue", "--noheader", "--jobs", job, "--format", _PART)).split()]
    running = [row for row in listed if len(row) == 4 and row[0].isdigit() and row[2] not in ("", "(null)")]
    if "+" in job:  # squeue lists all components
        running = [row for row in running if row[3] == job]
    if not running:
        raise CollectError(
            f"Slurm job {job} is not running, so srun cannot reach its nodes",
            hint=f'over ssh: hangscope collect --hosts "$(sacct -nXP -j {job} -o NodeList)"',
        )
    tasks = {task for _, task, _, _ in running if task.isdigit()}
    if len(tasks) > 1:
        first = min(tasks, key=int)
        raise SettingsError(f"Slurm job {job} is an array: its tasks are jobs of their own", hint=f"give {job}_{first}")
    return [_part(number, nodes, name) for number, _, nodes, name in running]


def _part(number: str, nodes: str, name: str) -> SlurmPart:
    leader, _, group = name.partition("+")
    if leader.isdigit() and group.isdigit():
        return SlurmPart(leader, _hosts(nodes), int(group))
    return SlurmPart(number, _hosts(nodes))


def _hosts(nodes: str) -> tuple[str, ...]:
    names = ask(("scontrol", "show", "hostnames", nodes)).split()
    for name in names:
        if not _is_host(name):
            raise CollectError(f"scontrol answered {name[:80]!r}, which is not a host name")
    return tuple(names)


def _expanded(word: str, room: int) -> list[str]:
    """The hosts that a word stands for, no more than `room` of them."""
    match = _RANGE.match(word)
    found: list[str] = [] if match else [word] if word else []
    for part in match["list"].split(",") if match else ():
        first, _, last = (piece.strip() for piece in part.strip().partition("-"))
        low = _count(first)
        high = _count(last or first)
        if match is None or low is None or high is None or high - low > limits.HOSTS:
            raise SettingsError(f"{word[:80]!r}: cannot be read as a list of hosts")
        for number in range(low, high + 1):
            one = f"{match['front']}{str(number).zfill(len(first))}{match['back']}"
            found.extend(_expanded(one, room - len(found)))
    if len(found) > room:
        raise SettingsError(f"more than {limits.HOSTS} hosts")
    return found


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def ask(command: Sequence[str]) -> str:
    """What a command of the scheduler says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise CollectError(f"{command[0]}: not found", hint="run this where the scheduler's commands are") from None
    except subprocess.TimeoutExpired:
        raise CollectError(f"{command[0]}: no answer within {_ASK_S:g} s") from None
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        raise CollectError(f"{' '.join(command)}: {words[-1] if words else f'status {done.returncode}'}")
    return done.stdout
