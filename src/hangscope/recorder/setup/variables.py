"""The environment variables of PyTorch's recorder and of NCCL: which release knows them, their defaults, their values.

A release is (major, minor). Existence and defaults were read from the released wheels, torch 2.2 to 2.15; NCCL's own
variables are not tied to a torch release, because images bring their own NCCL, and an older one ignores them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

Release = tuple[int, int]

FIRST_RECORDER: Release = (2, 2)
FIRST_FR_NAMES: Release = (2, 8)
"""From it on there are names that are not NCCL's; the older ones print that they are deprecated."""
NEWEST_KNOWN: Release = (2, 15)
DEFAULT_ENTRIES = 2000
RING_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The ring's size, newer name first: as in PyTorch, the first that is set wins."""
DUMP_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where dumps go, without the rank; newer name first."""
WAIT_NAMES = ("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC")
"""How long a dump may take; newer name first."""

_INT = re.compile(r"[ \t\n\r\f\v]*([+-]?[0-9]+)")
_TRUE = frozenset(("y", "yes", "1", "t", "true"))
_FALSE = frozenset(("n", "no", "0", "f", "false"))


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `since` is None for NCCL's own and for another vendor's; `read_at_dump`: parsed only then."""

    name: str
    kind: str  # "bool", "int", "path", "text"
    since: Release | None
    families: tuple[str, ...]
    alias_of: str | None = None
    read_at_dump: bool = False

    def exists_in(self, release: Release | None) -> bool:
        return self.since is None or release is None or release >= self.since


_LEGACY = ("nccl",)
_BOTH = ("nccl", "nccl2")
_RECORDER = ("nccl", "nccl2", "gloo", "xccl", "other")

VARIABLES: tuple[Variable, ...] = (
    Variable("TORCH_FR_BUFFER_SIZE", "int", (2, 8), _RECORDER),
    Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", "int", (2, 2), ("nccl", "nccl2", "gloo"), alias_of="TORCH_FR_BUFFER_SIZE"),
    Variable("TORCH_FR_DUMP_TEMP_FILE", "path", (2, 8), ("nccl", "nccl2", "xccl", "other")),
    Variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "path", (2, 2), _BOTH, alias_of="TORCH_FR_DUMP_TEMP_FILE"),
    Variable("TORCH_FR_DUMP_ON_TIMEOUT", "bool", (2, 15), ("nccl2", "other")),
    Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "bool", (2, 2), _BOTH, alias_of="TORCH_FR_DUMP_ON_TIMEOUT"),
    Variable("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "int", (2, 15), ("nccl2", "other")),
    Variable("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "int", (2, 3), _LEGACY),
    Variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "path", (2, 3), _LEGACY),
    Variable("TORCH_INCLUDE_STACK_TRACE", "bool", (2, 10), _LEGACY, read_at_dump=True),
    Variable("TORCH_INCLUDE_ONLY_ACTIVE", "bool", (2, 10), _LEGACY, read_at_dump=True),
    Variable("TORCH_FR_CPP_STACK", "bool", (2, 8), _RECORDER),
    Variable("TORCH_NCCL_TRACE_CPP_STACK", "bool", (2, 2), ("nccl", "nccl2", "gloo"), alias_of="TORCH_FR_CPP_STACK"),
    Variable("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "bool", (2, 10), _BOTH, read_at_dump=True),
    Variable("TORCH_NCCL_ENABLE_TIMING", "bool", (2, 2), _LEGACY),
    Variable("TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "bool", (2, 10), _LEGACY),
    Variable("TORCH_NCCL_ENABLE_MONITORING", "bool", (2, 2), _LEGACY),
    Variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "int", (2, 2), _LEGACY),
    Variable("TORCH_NCCL_COORD_CHECK_MILSEC", "int", (2, 3), _LEGACY),
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "int", (2, 2), _BOTH),
    Variable("TORCH_NCCL_BLOCKING_WAIT", "bool", (2, 2), _LEGACY),
    Variable("TORCH_NCCL_DESYNC_DEBUG", "bool", (2, 2), _LEGACY),
    Variable("TORCH_NCCL_PROPAGATE_ERROR", "bool", (2, 7), _LEGACY),
    Variable("TORCH_NCCL_RETHROW_CUDA_ERRORS", "bool", (2, 4), _LEGACY),
    Variable("TORCH_NCCL_NAN_CHECK", "bool", (2, 4), _LEGACY),
    Variable("TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "bool", (2, 5), _LEGACY),
    Variable("TORCH_NCCL_CUDA_EVENT_CACHE", "bool", (2, 5), _LEGACY),
    Variable("TORCH_DIST_USE_NCCL2", "text", (2, 14), _BOTH),
    Variable("TORCH_SYMBOLIZE_MODE", "text", (2, 2), _RECORDER),
    # The names of torch 2.1 and before. They still work, each with a deprecation warning.
    Variable("NCCL_ASYNC_ERROR_HANDLING", "int", None, _BOTH, alias_of="TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    Variable("NCCL_BLOCKING_WAIT", "bool", None, _LEGACY, alias_of="TORCH_NCCL_BLOCKING_WAIT"),
    Variable("NCCL_DESYNC_DEBUG", "bool", None, _LEGACY, alias_of="TORCH_NCCL_DESYNC_DEBUG"),
    Variable("NCCL_ENABLE_TIMING", "bool", None, _LEGACY, alias_of="TORCH_NCCL_ENABLE_TIMING"),
    # Other vendors' recorders, as far as their sources name them.
    Variable("TORCH_FR_DEBUG_INFO_PIPE_FILE", "path", None, ("xccl",)),
    Variable("TORCH_XCCL_DEBUG_INFO_PIPE_FILE", "path", None, ("xccl",), alias_of="TORCH_FR_DEBUG_INFO_PIPE_FILE"),
    Variable("TORCH_HCCL_TRACE_BUFFER_SIZE", "int", None, ("hccl",)),
    Variable("TORCH_HCCL_DEBUG_INFO_TEMP_FILE", "path", None, ("hccl",)),
    Variable("TORCH_HCCL_DUMP_ON_TIMEOUT", "bool", None, ("hccl",)),
    Variable("TORCH_HCCL_ENABLE_MONITORING", "bool", None, ("hccl",)),
    # NCCL's own.
    Variable("NCCL_DEBUG", "text", None, _BOTH),
    Variable("NCCL_DEBUG_SUBSYS", "text", None, _BOTH),
    Variable("NCCL_DEBUG_FILE", "path", None, _BOTH),
    Variable("NCCL_DEBUG_TIMESTAMP_LEVELS", "text", None, _BOTH),
    Variable("NCCL_DEBUG_TIMESTAMP_FORMAT", "text", None, _BOTH),
    Variable("NCCL_SET_THREAD_NAME", "text", None, _BOTH),
    Variable("NCCL_RAS_ENABLE", "text", None, _BOTH),
    Variable("NCCL_RAS_ADDR", "text", None, _BOTH),
    Variable("NCCL_PROFILER_PLUGIN", "text", None, _BOTH),
    # Ours: where the black box's plugin puts its files, and the profiler plugin that it loads beside itself.
    Variable("HANGSCOPE_BLACKBOX_DIR", "path", None, _BOTH),
    Variable("HANGSCOPE_NEXT_PROFILER", "text", None, _BOTH),
)

BY_NAME: Mapping[str, Variable] = {variable.name: variable for variable in VARIABLES}

UNPREFIXED = tuple(v for v in VARIABLES if v.name.startswith("NCCL_") and v.alias_of)

# Names that people set and that no release has ever read, with the one that they meant.
NEVER_EXISTED: Mapping[str, str] = {
    "TORCH_NCCL_FLIGHT_RECORDER_ENABLED": "TORCH_FR_BUFFER_SIZE",
}

# Real variables of the same families that have nothing to do with hangs; not to be taken for misspellings.
_UNRELATED = frozenset(
    (
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "TORCH_NCCL_BCAST_UNIQUEID",
        "TORCH_NCCL_HIGH_PRIORITY",
        "TORCH_NCCL_NONBLOCKING_TIMEOUT",
        "TORCH_NCCL_RANKS_PER_ROOT",
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
        "TORCH_NCCL_TEARDOWN_ON_TIMEOUT",
        "TORCH_NCCL_USE_COMM_NONBLOCKING",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    )
)


def meant(name: str) -> str | None:
    """The variable that a name which no release reads was probably meant to be; None where it is none of ours."""
    if name in NEVER_EXISTED:
        return NEVER_EXISTED[name]
    if "FLIGHT_RECORDER" in name and name.startswith(("TORCH_", "PYTORCH_", "NCCL_")):
        return RING_NAMES[0]  # no release up to 2.15 has the words in a variable's name
    if name in BY_NAME or name in _UNRELATED or not name.startswith(("TORCH_NCCL_", "TORCH_FR_", "TORCH_INCLUDE_")):
        return None
    close = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.9)
    return close[0] if close else None


def default_entries(release: Release | None, family: str) -> int:
    """Size of the recorder's ring where nothing is set."""
    if release is None or family in ("xccl", "hccl"):
        return 0
    return DEFAULT_ENTRIES if release >= (2, 11) else 0


def default_gate(release: Release | None) -> int:
    """ProcessGroupNCCL's own copy of the ring size, which decides whether a dump is written at all."""
    return DEFAULT_ENTRIES if release is not None and release >= (2, 6) else 0


def default_dump_on_timeout(release: Release | None) -> bool:
    return release is not None and release >= (2, 7)


def default_wait_ms(release: Release | None) -> int:
    """How long a dump may take. Torch 2.2 has no such variable; the value of the next release is used for it."""
    return 60_000 if release is not None and release < (2, 8) else 15_000


def default_heartbeat_s(release: Release | None) -> int:
    if release is None or release >= (2, 5):
        return 480
    return 600 if release >= (2, 3) else 120


def default_monitoring(release: Release | None) -> bool:
    return release is None or release >= (2, 3)


def default_dump_prefix(release: Release | None, environ: Mapping[str, str]) -> str:
    """Where a dump goes when nothing is set; the rank follows directly."""
    release = release or NEWEST_KNOWN
    if release < (2, 7):
        return "/tmp/nccl_trace_rank_"
    cache = f"{environ.get('HOME') or '/tmp'}/.cache"
    if release >= (2, 11):
        cache = environ.get("XDG_CACHE_HOME") or cache
    return f"{cache}/torch/{'comm_lib' if release >= (2, 9) else 'nccl'}_trace_rank_"


def as_bool(text: str) -> bool | None:
    """As PyTorch reads it; None where PyTorch throws (``on``, the empty string)."""
    lowered = text.lower()
    return True if lowered in _TRUE else False if lowered in _FALSE else None


def as_int(text: str) -> int | None:
    """As C++'s stoi reads it: trailing text is dropped without a word, ``2e6`` is 2. None where it throws."""
    matched = _INT.match(text)
    if matched is None:
        return None
    number = int(matched.group(1)) if len(matched.group(1)) < 20 else 1 << 63
    return number if -(1 << 31) <= number < 1 << 31 else None


def is_plain_int(text: str) -> bool:
    matched = _INT.match(text)
    return matched is not None and matched.end() == len(text)
