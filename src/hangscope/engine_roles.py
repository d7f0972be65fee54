"""What an engine calls its processes: by their titles (setproctitle), their command lines and the prefixes of logs.

    VLLM::Worker_DP1_TP2             vLLM: a worker, of replica 1, its tensor-parallel rank 2
    VLLM::EngineCore_DP0             vLLM: the scheduler of a replica; no rank
    sglang::scheduler_DP0_TP2_EP5    SGLang: a scheduler with its model
    ray::WorkerDict.actor_rollout    Ray: an actor, in one of its methods
    python -m mpi4py.futures.server  TensorRT-LLM: a worker that MPI started

As these engines title them in 2025 and 2026. A title is anybody's text: nothing in it is trusted for size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LONGEST = 200
_TITLE = re.compile(r"^(?P<engine>[\w.-]{1,40})::(?P<name>[A-Za-z][\w.:()=-]{0,150})")
_PLACE = re.compile(r"(?:^|_)((?:(?:ATTN|MOE)_)?[A-Z]{2,4})(\d{1,5})(?=_|$)")
_VLLM_NAMES = re.compile(r"^(?:Worker|VllmWorker|EngineCore|APIServer|ApiServer|DPCoordinator|DP_Coordinator)(?![a-z])")
_PREFIX = re.compile(r"(?:^|\()(?P<name>[A-Za-z]\w{0,80}?)(?: rank=\d{1,6})?(?: pid=\d{1,9})?\)?$")
_BRACKET = re.compile(r"(?<![\w-])(?P<places>(?:(?:(?:ATTN|MOE)_)?(?:DP|PP|CP|TP|EP)\d{1,5} ?){1,8})\]")
_WORKS = re.compile(r"^(?:Worker|VllmWorker|scheduler|semi_pd_scheduler|gpu_worker)(?![a-z])")
_OUTER_FIRST = ("DP", "PP", "PCP", "CP", "TP")
"""How engines number the processes of a replica: the last of these counts fastest."""
_SERVERS = (
    ("vLLM", "API server", ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")),
    ("SGLang", "server", ("sglang.launch_server",)),
    ("TensorRT-LLM", "server", ("tensorrt_llm.commands.serve",)),
)
_MPI_WORKERS = ("mpi4py.futures.server", "tensorrt_llm.llmapi.mgmn_worker_node", "tensorrt_llm.llmapi.mpi_session")


@dataclass(frozen=True, slots=True)
class Role:
    """What one process is for its engine. `places` are its numbers by axis, as the engine orders them."""

    engine: str
    name: str
    places: tuple[tuple[str, int], ...] = ()
    works: bool = False
    """Whether it computes, and so may be a rank; an API server or a scheduler without a model never is one."""
    replica: str = ""
    """The engine core that it works for, where only that tells it from the same worker of another replica."""

    def place(self, axis: str) -> int | None:
        return dict(self.places).get(axis)

    @property
    def label(self) -> str:
        """``Worker_TP3``, ``Worker_TP3 of EngineCore_DP1``."""
        return f"{self.name} of {self.replica}" if self.replica else self.name

    @property
    def says(self) -> str:
        """``TP rank 3 of the engine (Worker_TP3)``."""
        if self.engine == "Ray":
            return f"Ray actor {self.label}"
        if not self.places:
            return f"{self.label} of {self.engine}"
        numbers = ", ".join(f"{axis} rank {number}" for axis, number in self.places)
        return f"{numbers} of the engine ({self.label})"


def of_words(words: Sequence[str]) -> Role | None:
    """The role by a process's command line, whose first word is the title where it has set one."""
    if not words:
        return None
    return of_title(words[0]) or _by_command(words[:8])


def of_title(title: str) -> Role | None:
    found = _TITLE.match(title[:_LONGEST])
    if found is None:
        return None
    engine, name = found["engine"], found["name"]
    if engine == "ray":
        actor = name.partition(".")[0]
        return Role("Ray", actor) if not actor.startswith("IDLE") else None
    if engine.lower().startswith("sglang"):
        return _role("SGLang", name.partition(":")[0])
    if engine.upper() == "VLLM" or _VLLM_NAMES.match(name):
        return _role("vLLM", name.partition(":")[0])
    return None


def of_prefix(text: str) -> Role | None:
    """The role by the prefix of a log line: ``Worker_TP1 pid=612`` in brackets, or the numbers in SGLang's."""
    found = _PREFIX.search(text[-_LONGEST:])
    if found is not None and _VLLM_NAMES.match(found["name"]):
        return _role("vLLM", found["name"])
    bracket = _BRACKET.search(f"{text[-_LONGEST:].rstrip(']')}]")
    if bracket is None:
        return None
    return _role("SGLang", f"scheduler_{bracket['places'].strip().replace(' ', '_')}")


def _role(engine: str, name: str) -> Role:
    places = tuple((axis, int(number)) for axis, number in _PLACE.findall(name))
    return Role(engine, name, places, works=_WORKS.match(name) is not None)


def _by_command(words: Sequence[str]) -> Role | None:
    """Of processes that set no title: servers by what was started, and the workers that MPI starts."""
    names = [word.rpartition("/")[2] for word in words]
    if "vllm" in names[:3] and "serve" in words:
        return Role("vLLM", "API server")
    if "trtllm-serve" in names[:3] or "trtllm-llmapi-launch" in names[:3]:
        return Role("TensorRT-LLM", "server")
    if any(module in words for module in _MPI_WORKERS):
        return Role("TensorRT-LLM", "MPI worker", works=True)
    return next((Role(engine, name) for engine, name, modules in _SERVERS if set(modules) & set(words)), None)


def with_replicas(roles: Mapping[int, Role], core_of: Mapping[int, Role]) -> dict[int, Role]:
    """The roles, each with the engine core above it (`core_of`) where two processes would have one name without."""
    found = dict(roles)
    cores = {pid: core_of[pid].name for pid, role in roles.items() if pid in core_of and role.place("DP") is None}
    several = len(set(cores.values())) > 1 or any((core_of[pid].place("DP") or 0) > 0 for pid in cores)
    if several:
        for pid, core in cores.items():
            role = roles[pid]
            found[pid] = Role(role.engine, role.name, role.places, role.works, core)
    return found


def numbers(roles: Mapping[int, Role]) -> dict[int, int]:
    """A rank for each process of one engine by its places; none where they do not tell the processes apart.

    With data-parallel attention SGLang's TP numbers go through all of them; of replicas the first comes first.
    """
    places = {pid: _ordered(role) for pid, role in roles.items()}
    inner = {pid: place[1:] for pid, place in places.items()}
    if any(role.place("TP") is None and role.place("PP") is None for role in roles.values()) and len(roles) > 1:
        inner = dict.fromkeys(roles, ())
    for kept in (inner, places):
        found = _mixed_radix(kept)
        if len(set(found.values())) == len(roles):
            return found
    return {}


def _ordered(role: Role) -> tuple[int, ...]:
    core = of_title(f"VLLM::{role.replica}") if role.replica else None
    outer = core.place("DP") if core is not None else None
    return (outer or role.place("DP") or 0, *(role.place(axis) or 0 for axis in _OUTER_FIRST[1:]))


def _mixed_radix(places: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    if not places:
        return {}
    width = len(next(iter(places.values())))
    sizes = [1 + max(place[at] for place in places.values()) for at in range(width)]
    found = {}
    for pid, place in places.items():
        number = 0
        for size, at in zip(sizes, place, strict=True):
            number = number * size + at
        found[pid] = number
    return found


# ---- as files of an incident have it ---------------------------------------------------------------------------------

_ENGINES = ("vLLM", "SGLang", "TensorRT-LLM", "Ray")
_NAME = re.compile(r"^[A-Za-z][\w .:()=-]{0,150}$")


def to_value(role: Role | None) -> dict[str, object] | None:
    if role is None:
        return None
    return {"engine": role.engine, "name": role.name, "replica": role.replica or None, "works": role.works}


def from_value(value: object) -> Role | None:
    """The role that a file says, which anybody may have written; None where it is none."""
    if not isinstance(value, Mapping) or value.get("engine") not in _ENGINES:
        return None
    name = value.get("name")
    replica = value.get("replica")
    if not isinstance(name, str) or not _NAME.match(name):
        return None
    role = _role(str(value["engine"]), name)
    above = replica if isinstance(replica, str) and _NAME.match(replica) else ""
    return Role(role.engine, name, role.places, value.get("works") is True, above)
