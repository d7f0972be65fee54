"""What to simulate: one frozen value with every choice in it, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hangscope.errors import SettingsError
from hangscope.simulate.spec.job_layout import DESCRIPTIONS, NAMINGS, Layout

FAULTS: dict[str, tuple[str, ...]] = {
    "none": ("stopped", "running"),
    "absent": ("loader", "checkpoint", "branch", "batch"),
    "dead": ("killed", "exception", "exit"),
    "frozen": ("stopped",),
    "gpu": ("kernel",),
    "mismatch": ("name", "size", "dtype", "split", "root", "skipped", "extra", "peer"),
    "deadlock": ("order", "cycle"),
    "network": ("collective", "broadcast", "p2p"),
    "slow": ("cpu", "gpu"),
    "shift": ("step", "repeat"),
}
"""Each kind of fault with its variants; the first one is not special, an empty variant means that the seed chooses."""

TORCH = ("2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
FORMS = ("pickle", "json", "python3", "python4", "python5")
"""As PyTorch pickles it; its JSON form; pickled again by Python with that protocol."""
BACKENDS = ("nccl", "nccl2", "gloo", "torchcomms", "rccl", "xccl", "hccl", "ncclx")
_HOOKED = ("nccl2", "gloo", "torchcomms")
"""Backends whose recorder has no GPU events: it never sees a start, and cannot batch."""


_MOST = {
    **dict.fromkeys(("ranks", "gpus_per_node", "entries", "steps", "layers", "microbatches"), 1_000_000),
    **dict.fromkeys(("clock_skew_ms", "slow_ms", "timeout_s"), 1e9),
}
"""Beyond any job: what is larger is a slip of the hand that would take all memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One synthetic job. Everything that is not given here follows from `seed`.

    `dp` 0 means whatever tp and pp leave. `entries` is the size of every rank's ring; `steps` 0 means as many as fill
    it. `layers`, `microbatches`, `checkpoint_every` 0 mean a size that suits the layout.
    """

    ranks: int = 8
    dp: int = 0
    tp: int = 1
    pp: int = 1
    ep: int = 1
    gpus_per_node: int = 8
    node_prefix: str = "gpu-node-"

    fault: str = "none"
    variant: str = ""
    culprits: tuple[int, ...] = ()
    culprit_count: int = 1
    """How many ranks of one stage go wrong where `culprits` does not name them (absent, dead, frozen, gpu)."""
    stale_dump: bool = False
    """A dead rank left the dump of an earlier moment."""

    entries: int = 500
    steps: int = 0
    layers: int = 0
    microbatches: int = 0
    checkpoint_every: int = 0
    data_parallel: str = "fsdp"
    plain_p2p: bool = False
    overlap: bool = False
    ahead: int = 6
    """Operations that a CPU may be in front of its GPU."""
    step_gap: float = 1.0
    """Scales the time that computation takes."""
    slow_ms: float = 0.0
    """How late the slow rank is in every step; 0 means about a third of the step."""

    torch: str = "2.11"
    backend: str = "nccl"
    form: str = "pickle"
    gzip: bool = False
    stacks: bool = True
    timing: bool = True
    style: str = "mesh"
    naming: str = "numbers"
    """How PyTorch names the groups: by number, one number for all of a kind ("shared"), or by hash."""
    clock_skew_ms: float = 0.0
    """The clocks of the nodes differ by up to this much, either way."""
    timeout_s: float = 600.0
    evidence: bool = True
    """Also the launcher's roster and every rank's log, which tell the dead from the frozen."""
    nccl_warnings: bool = False
    """Where a link between nodes dies, its sender's NCCL says so half a minute later."""
    self_dump: bool = False
    """Only ranks that time out themselves write a dump, as torch 2.2 and nccl2 do without a collector."""

    seed: int = 0
    case: str = ""

    def __post_init__(self) -> None:
        self._choice("fault", self.fault, tuple(FAULTS))
        if self.variant:
            self._choice(f"variant of {self.fault}", self.variant, FAULTS[self.fault])
        self._choice("torch", self.torch, TORCH)
        self._choice("form", self.form, FORMS)
        self._choice("backend", self.backend, BACKENDS)
        self._choice("style", self.style, tuple(DESCRIPTIONS))
        self._choice("naming", self.naming, NAMINGS)
        self._choice("data_parallel", self.data_parallel, ("fsdp", "ddp", "coalesced"))
        for name, least in (("ranks", 2), ("gpus_per_node", 1), ("entries", 8), ("culprit_count", 1), ("ahead", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)} is too small", hint=f"give at least {least}")
        for name in ("steps", "layers", "microbatches", "checkpoint_every", "clock_skew_ms", "slow_ms"):
            if not getattr(self, name) >= 0:  # nan is neither
                raise SettingsError(f"{name}={getattr(self, name)} is negative", hint="0 lets the layout decide")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise SettingsError(f"{name} is too large for any job", hint=f"give at most {most}")
        if not self.timeout_s > 0:
            raise SettingsError(f"timeout_s={self.timeout_s} is not a time", hint="PyTorch's default for NCCL is 600")
        self._check_layout()
        self._check_format()
        unknown = [rank for rank in self.culprits if not 0 <= rank < self.ranks]
        if unknown:
            raise SettingsError(f"there is no rank {unknown[0]}", hint=f"ranks are 0 to {self.ranks - 1}")

    @property
    def layout(self) -> Layout:
        return Layout(self.dp or self.ranks // (self.tp * self.pp), self.tp, self.pp, self.ep)

    @property
    def minor(self) -> int:
        """The 11 of torch 2.11."""
        return int(self.torch.partition(".")[2])

    @property
    def hooked(self) -> bool:
        """Whether the recorder is only notified of launches and completions, unlike that of the legacy NCCL backend."""
        return self.backend in _HOOKED

    @property
    def sees_starts(self) -> bool:
        return self.timing and not self.hooked

    @property
    def records_lines(self) -> bool:
        """Whether a dump says from where a call was made."""
        return self.stacks and self.form != "json" and self.backend != "torchcomms"

    @property
    def always_scheduled(self) -> bool:
        """Whether an entry's state never changes, and only `retired` says that it is done."""
        return self.backend in ("gloo", "torchcomms")

    @property
    def names_members(self) -> bool:
        """Whether a dump says who is in a group."""
        return self.minor > 2 and self.backend not in ("gloo", "torchcomms")

    @property
    def node_count(self) -> int:
        return -(-self.ranks // self.gpus_per_node)

    def node(self, rank: int) -> str:
        return f"{self.node_prefix}{rank // self.gpus_per_node:0{len(str(self.node_count - 1))}d}"

    def describe(self) -> dict[str, object]:
        """Every field with its value, for the record."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "culprits": list(self.culprits)}

    def _check_layout(self) -> None:
        for name, least in (("dp", 0), ("tp", 1), ("pp", 1), ("ep", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)} is too small", hint="leave it out for 1")
        rest = self.tp * self.pp
        if (self.dp or self.ranks // rest) * rest != self.ranks:
            shown = f"dp={self.dp}, tp={self.tp}, pp={self.pp}" if self.dp else f"tp={self.tp}, pp={self.pp}"
            raise SettingsError(
                f"{shown} do not make {self.ranks} ranks",
                hint=f"dp x tp x pp must be the number of ranks; with this tp and pp use a multiple of {rest}",
            )
        _ = self.layout  # which says whether ep fits
        if self.layers and self.layers < self.pp:
            raise SettingsError(f"{self.layers} layers on {self.pp} stages", hint="give every stage at least one layer")

    def _check_format(self) -> None:
        if self.form == "json" and self.minor < 5:
            raise SettingsError(f"torch {self.torch} has no JSON form", hint="use torch 2.5 or newer")
        if self.backend == "nccl2" and self.minor < 15:
            raise SettingsError(f"nccl2 records nothing in torch {self.torch}", hint="use torch 2.15")
        if self.backend == "gloo" and self.minor < 8:
            raise SettingsError(f"Gloo records nothing in torch {self.torch}", hint="use torch 2.8 or newer")
        if self.backend == "torchcomms" and self.minor < 11:
            raise SettingsError(f"torchcomms does not work with torch {self.torch}", hint="use torch 2.11 or newer")
        if self.backend == "gloo" and self.fault == "gpu":
            raise SettingsError("Gloo runs on the CPU: its GPU cannot hang", hint="choose another fault or backend")
        if self.backend == "gloo" and self.pp > 1:
            raise SettingsError("Gloo does not record point-to-point calls", hint="use pp=1 or another backend")

    @staticmethod
    def _choice(what: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            raise SettingsError(f"{what} {value!r} is not known", hint=f"choose one of: {', '.join(known)}")
