"""Weeks of a cluster: when which job ran on which nodes with which code, which hung, and what its verdict named.

Something may be bad from some day on: a node, GPU, port, link, leaf switch, commit or image, or a storage that fails
once for everybody. Beside it jobs hang by themselves, and verdicts name a wrong node or nobody now and then. What is
known of a job is what an agent would push; what was injected is kept apart as the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

FLEET_FAULTS = ("none", "node", "gpu", "nic", "link", "leaf", "commit", "image", "storage")
DAY_S = 86400.0
GPUS = 8
_SIZES = (1, 1, 2, 2, 4, 4, 8, 16)
_TEAM_HANGS = (0.002, 0.005, 0.01, 0.01, 0.02, 0.03, 0.08, 0.2)
"""How often a job of a team hangs by itself: some try out new code every day."""
_AT_HOME = 0.7
"""Of a team's jobs run on the nodes that it has for itself; the others anywhere."""
_NAMES_NOBODY = 0.15
_NAMES_WRONG = 0.08
"""Of verdicts on a hang that a machine caused: a node of the job that has nothing to do with it."""
_RATE = {"node": 0.5, "gpu": 0.5, "nic": 0.5, "link": 0.8, "leaf": 0.4, "commit": 0.6, "image": 0.5}
"""How often a job that meets the bad entity hangs."""
Named = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FleetSpec:
    nodes: int = 200
    nodes_per_leaf: int = 16
    days: int = 28
    jobs_per_day: int = 50
    teams: int = 12
    fault: str = "node"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FleetJob:
    """One job. `accused` is what its verdict named; `hung_at` is None where it ended well."""

    name: str
    started_at: float
    ended_at: float
    nodes: tuple[str, ...]
    commit: str
    image: str
    hung_at: float | None = None
    accused: tuple[Named, ...] = ()
    function: str = ""
    caused: bool = False
    """Whether the injected fault hung it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """`truth` is what was injected: the entity, and every name that is right for it."""

    spec: FleetSpec
    jobs: tuple[FleetJob, ...]
    truth: Named | None
    also_right: frozenset[Named] = frozenset()
    started_at: float = 0.0


def leaf_of(node: str, spec: FleetSpec) -> str:
    return f"leaf-{int(node.rpartition('-')[2]) // spec.nodes_per_leaf}"


def gpu_of(node: str, number: int) -> str:
    return f"GPU-{node}-{number}"


def simulate_fleet(spec: FleetSpec, started_at: float = 0.0) -> Fleet:
    """The same spec gives the same fleet."""
    return _World(spec, started_at).run()


@dataclass(slots=True)
class _World:
    spec: FleetSpec
    started_at: float
    random: Random = field(init=False)
    names: list[str] = field(init=False)
    bad: Named | None = field(init=False, default=None)
    pair: tuple[str, str] = field(init=False, default=("", ""))
    onset: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.spec.seed} {self.spec.fault}")
        self.names = [f"gpu-worker-{number}" for number in range(self.spec.nodes)]

    def run(self) -> Fleet:
        spec = self.spec
        end = spec.days * DAY_S
        self.onset = self.random.uniform(0.1, 0.5) * end
        self._choose()
        count = spec.days * spec.jobs_per_day
        starts = sorted(self.random.uniform(0, end) for _ in range(count))
        jobs = [self._job(number, start) for number, start in enumerate(starts)]
        if spec.fault == "storage":
            jobs = self._outage(jobs)
        right: set[Named] = set() if self.bad is None else {self.bad, *self._also_right()}
        return Fleet(spec, tuple(jobs), self.bad, frozenset(right), self.started_at)

    def _choose(self) -> None:
        """What is bad."""
        fault = self.spec.fault
        node = self.random.choice(self.names)
        leaf = leaf_of(node, self.spec)
        neighbours = [each for each in self.names if leaf_of(each, self.spec) == leaf and each != node]
        self.pair = (node, self.random.choice(neighbours))
        choices: dict[str, Named] = {
            "node": ("node", node),
            "gpu": ("gpu", gpu_of(node, self.random.randrange(GPUS))),
            "nic": ("nic", f"{node}/mlx5_{self.random.randrange(GPUS)}"),
            "link": ("link", f"{self.pair[0]} -> {self.pair[1]}"),
            "leaf": ("leaf", leaf),
            "commit": ("commit", f"team{self._team()}-{int(self.onset // (2 * DAY_S)) + 1}"),
            "image": ("image", "image-2"),
        }
        self.bad = choices.get(fault)

    def _also_right(self) -> list[Named]:
        """Names that lead to the bad entity, too: of what is bad in a node, the node, its GPUs and ports, for each of
        which that node would be taken out; either end of a link; below a leaf."""
        assert self.bad is not None
        kind, name = self.bad
        if kind in ("node", "gpu", "nic"):
            node = self.pair[0]
            gpus = [("gpu", gpu_of(node, number)) for number in range(GPUS)]
            return [("node", node), *gpus, *(("nic", f"{node}/mlx5_{number}") for number in range(GPUS))]
        if kind == "link":
            return [("node", self.pair[0]), ("node", self.pair[1])]
        if kind == "leaf":
            return [("node", node) for node in self.names if leaf_of(node, self.spec) == name]
        return []

    def _job(self, number: int, start: float) -> FleetJob:
        size = self.random.choice(_SIZES)
        team = self._team()
        first = self.random.randrange(self.spec.nodes)
        if self.random.random() < _AT_HOME:
            home = self.spec.nodes // self.spec.teams
            first = team * home + self.random.randrange(home)
        # Schedulers place jobs close together, though seldom in one piece.
        spread = [self.names[(first + self.random.randrange(3 * size)) % self.spec.nodes] for _ in range(size)]
        nodes = tuple(sorted(set(spread)))
        commit = f"team{team}-{int(start // (2 * DAY_S))}"
        image = f"image-{int(start // (self.spec.days * DAY_S / 4))}"
        length = self.random.expovariate(1 / 14_400)
        job = FleetJob(
            f"{10_000 + number}",
            self.started_at + start,
            self.started_at + start + length,
            nodes,
            commit,
            image,
        )
        return self._with_hang(job, start, length)

    def _team(self) -> int:
        """Few teams start most of the jobs."""
        return min(self.spec.teams - 1, int(self.random.expovariate(3.0 / self.spec.teams)))

    def _with_hang(self, job: FleetJob, start: float, length: float) -> FleetJob:
        meets = start >= self.onset and self._meets(job)
        caused = meets and self.random.random() < _RATE.get(self.spec.fault, 0.0)
        team = int(job.commit.partition("-")[0].removeprefix("team"))
        if not caused and self.random.random() >= _TEAM_HANGS[team % len(_TEAM_HANGS)]:
            return job
        at = job.started_at + self.random.random() * length
        kind = self.bad[0] if self.bad is not None and caused else ""
        function = f"{job.commit.partition('-')[0]}.step_{self.random.randrange(3)}"
        if kind in ("commit", "image"):
            function = f"{kind}.bug"
        return _changed(job, hung_at=at, accused=self._accused(job, kind), function=function, caused=caused)

    def _meets(self, job: FleetJob) -> bool:
        if self.bad is None:
            return False
        kind, name = self.bad
        if kind in ("node", "gpu", "nic"):
            return self.pair[0] in job.nodes
        if kind == "link":
            return self.pair[0] in job.nodes and self.pair[1] in job.nodes
        if kind == "leaf":
            return sum(leaf_of(node, self.spec) == name for node in job.nodes) >= 2
        return name in (job.commit, job.image)

    def _accused(self, job: FleetJob, kind: str) -> tuple[Named, ...]:
        """What the verdict names. A bug in the code may stop any of the job's ranks."""
        luck = self.random.random()
        if luck < _NAMES_NOBODY:
            return ()
        if kind not in ("node", "gpu", "nic", "link", "leaf") or luck < _NAMES_NOBODY + _NAMES_WRONG:
            node = self.random.choice(job.nodes)
            return (("node", node), ("gpu", gpu_of(node, self.random.randrange(GPUS))))
        assert self.bad is not None
        if kind == "node":
            node = self.bad[1]
            return (("node", node), ("gpu", gpu_of(node, self.random.randrange(GPUS))))
        if kind in ("gpu", "nic"):
            return (("node", self.pair[0]), self.bad)
        if kind == "link":
            return (self.bad, ("node", self.pair[0]), ("node", self.pair[1]))
        below = [node for node in job.nodes if leaf_of(node, self.spec) == self.bad[1]]
        return (("node", self.random.choice(below)),)

    def _outage(self, jobs: Sequence[FleetJob]) -> list[FleetJob]:
        """At one moment every job that runs stops within a minute, each naming any of its nodes."""
        at = self.started_at + self.onset
        changed = []
        for job in jobs:
            running = job.started_at < at < (job.hung_at or job.ended_at)
            if running:
                moment = at + self.random.random() * 60
                named = self._accused(job, "")
                job = _changed(job, hung_at=moment, accused=named, function="storage.read", caused=True)
            changed.append(job)
        return changed


def _changed(job: FleetJob, *, hung_at: float, accused: tuple[Named, ...], function: str, caused: bool) -> FleetJob:
    return FleetJob(
        job.name,
        job.started_at,
        hung_at,
        job.nodes,
        job.commit,
        job.image,
        hung_at,
        accused,
        function,
        caused,
    )
