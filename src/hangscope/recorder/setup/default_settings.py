"""What hangscope sets where the user set nothing: the variables, their values, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangscope.recorder.setup import blackbox_library
from hangscope.recorder.setup import variables as table
from hangscope.recorder.setup.backends import records
from hangscope.recorder.setup.rank_folders import Places
from hangscope.recorder.setup.setting_problems import Setting
from hangscope.recorder.setup.variables import BY_NAME, DUMP_NAMES, RING_NAMES, WAIT_NAMES, Release, as_bool, as_int
from hangscope.sources.nccl_ras.settings import address_for

PIPE_NAMES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_XCCL_DEBUG_INFO_PIPE_FILE")
TIMING = "TORCH_NCCL_ENABLE_TIMING"
_SWITCH_NAMES = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")

# Milliseconds, because a second is too coarse to order ranks by. NCCL turns an underscore into a space, so that no
# format that carries these settings has to keep a space at a line's end.
TIMESTAMP = "[%FT%T.%3f]_"
# Which NIC a channel uses at both ends is logged under these.
SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH"


@dataclass(frozen=True, slots=True)
class DefaultSettings:
    release: Release | None
    families: frozenset[str]
    environ: Mapping[str, str]
    places: Places
    job: str
    entries: int
    nccl_debug: str
    plugin: Path | None = None
    """NCCL's profiler plugin that keeps the black box, where it was built."""
    timing: bool = False
    """Whether PyTorch is to record a start event for each operation."""

    def variables(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.release is None or self.release >= table.FIRST_RECORDER:
            found |= self._recorder({family for family in self.families if records(family, self.release)})
        if not self.families.isdisjoint(("nccl", "nccl2")):
            found |= self._nccl()
        return found

    def _recorder(self, recorded: set[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        if recorded - {"hccl"}:
            found |= self._pair(RING_NAMES, str(self.entries), _is_int)
        if not recorded & {"nccl", "nccl2"}:
            # Nobody else needs the older name, which only makes every rank print that it is deprecated.
            found.pop("TORCH_NCCL_TRACE_BUFFER_SIZE", None)
        if recorded & {"nccl", "nccl2", "other"}:
            found |= self._pair(DUMP_NAMES, self.places.dump_prefix)
            found |= self._pair(_SWITCH_NAMES, "1", _is_bool)
            if self.release is not None:  # its default differs between releases, and each suits its release
                found |= self._pair(WAIT_NAMES, str(table.default_wait_ms(self.release)), _is_int)
        if recorded & {"nccl", "nccl2"}:
            found |= self._alone("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        if "nccl" in recorded:
            found |= self._watchdog({**self.environ, **found})
        if "xccl" in recorded:
            found |= self._pair(PIPE_NAMES[1:], self.places.pipe_stem)
            found |= self._alone(
                "TORCH_FR_DUMP_TEMP_FILE", self.places.dump_prefix
            )  # what the pipe asks for goes there
        if "hccl" in recorded:
            found |= self._alone("TORCH_HCCL_TRACE_BUFFER_SIZE", str(self.entries))
            found |= self._alone("TORCH_HCCL_DEBUG_INFO_TEMP_FILE", self.places.dump_prefix)
            # Both are off by default (torch_npu 2.1-2.14), and without either no dump is ever written.
            found |= self._alone("TORCH_HCCL_DUMP_ON_TIMEOUT", "1")
            found |= self._alone("TORCH_HCCL_ENABLE_MONITORING", "1")
        return found

    def _watchdog(self, seen: Mapping[str, str]) -> dict[str, str]:
        """What only ProcessGroupNCCL has: its pipe, its start events, its heartbeat monitor."""
        wait = Setting(seen, self.release, frozenset(("nccl",))).wait_ms or table.default_wait_ms(self.release)
        # Torch 2.2 starts no monitor by itself, and with it would end a process after 120 s; 600 s is what 2.3 chose.
        beat = max(600 if self.release == (2, 2) else table.default_heartbeat_s(self.release), -(-4 * wait // 1000))
        found: dict[str, str] = {}
        for name, value in (
            ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", self.places.pipe_stem),
            *([(TIMING, "1")] if self.timing else []),
            ("TORCH_NCCL_ENABLE_MONITORING", "1"),
            ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(beat)),
            ("TORCH_INCLUDE_STACK_TRACE", "1"),
        ):
            found |= self._alone(name, value)
        return found

    def _nccl(self) -> dict[str, str]:
        wanted = {
            "NCCL_DEBUG": self.nccl_debug,
            "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
            "NCCL_DEBUG_TIMESTAMP_FORMAT": TIMESTAMP,
            "NCCL_SET_THREAD_NAME": "1",
        }
        if "NCCL_DEBUG" not in self.environ:
            # Somebody who asked for NCCL's log wants to see it where it goes now.
            wanted["NCCL_DEBUG_FILE"] = self.places.nccl_log
            if self.nccl_debug == "INFO":
                wanted["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
        if "NCCL_RAS_ADDR" not in self.environ:
            wanted["NCCL_RAS_ADDR"] = address_for(self.job)
        found = {name: value for name, value in wanted.items() if name not in self.environ}
        return found | self._blackbox()

    def _blackbox(self) -> dict[str, str]:
        """Our plugin, in front of another one where there is one: the only variable of a user's that is replaced."""
        known = self.release is None or self.release >= blackbox_library.FIRST_TORCH
        if self.plugin is None or not known or blackbox_library.stays_alone(self.environ):
            return {}
        wanted = {blackbox_library.FOLDER: self.places.blackbox}
        other = blackbox_library.others_plugin(self.environ)
        if other is not None:
            wanted[blackbox_library.NEXT] = other
        found = {name: value for name, value in wanted.items() if name not in self.environ}
        if not blackbox_library.is_set(self.environ):
            found[blackbox_library.PLUGIN] = str(self.plugin)
        return found

    def _alone(self, name: str, value: str) -> dict[str, str]:
        """Set `name`, unless this torch does not read it, or the user set it, under this name or its deprecated one."""
        older = [variable.name for variable in table.UNPREFIXED if variable.alias_of == name]
        taken = any(known in self.environ for known in (name, *older))
        return {} if taken or not BY_NAME[name].exists_in(self.release) else {name: value}

    def _pair(self, names: Sequence[str], value: str, readable: Callable[[str], bool] | None = None) -> dict[str, str]:
        """Set both generations of a name to one value: the user's, where one of them is set and can be read."""
        said = [self.environ[name] for name in names if name in self.environ]
        usable = [text for text in said if readable is None or readable(text)]
        chosen = usable[0] if usable else value
        return {name: chosen for name in names if name not in self.environ and BY_NAME[name].exists_in(self.release)}


def _is_int(text: str) -> bool:
    return as_int(text) is not None


def _is_bool(text: str) -> bool:
    return as_bool(text) is not None
