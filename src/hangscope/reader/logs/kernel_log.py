"""Kernel messages that matter to a hang: memory ran out, a GPU reported an Xid, a port went down, a task is stuck."""

from __future__ import annotations

import re

from hangscope.model import KernelMessage, Source
from hangscope.model.numbers import integer
from hangscope.model.values import pci_id

_OOM = re.compile(
    r"(?:Out of memory: |Memory cgroup out of memory: )?Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
    r"|oom-kill:.{0,400}?\bpid=(?P<pid2>\d+)|oom_reaper: reaped process (?P<pid3>\d+)"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, (?:pid=)?'?(?P<pid>\d+)?)?")
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)")
_FELL_OFF = re.compile(r"NVRM: GPU (?P<pci>[0-9a-fA-F:]+\.\d).{0,60}fallen off the bus")
_FELL_OFF_CODE = 79
_NAMED_GPU = re.compile(r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F:]+\.\d)\s*$")
_NIC = re.compile(
    r"(?P<driver>mlx5_core|mlx4_core|bnxt_en|ice|i40e|irdma|efa|cxgb4|hns3) (?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F:]+\.\d)"
    r"(?: (?P<device>[\w.@-]+))?(?: \(\w+\))?: (?P<what>.*)"
)
_LINK = re.compile(r"(?:^|[\s:])(?P<device>[a-z][\w.@-]{2,64}): (?:NIC )?[Ll]ink (?:is )?[Dd]own")
_LINK_WORDS = re.compile(
    r"[Ll]ink (?:is )?[Dd]own|[Ll]ink (?:is )?[Uu]p|Port module event\[error\]|Cable (?:error|unplugged)"
)
_NIC_WORDS = re.compile(
    r"error|fail|insufficient power|health|timeout|reset|recover|unresponsive|fatal|overheat|temperature", re.IGNORECASE
)
_HUNG = re.compile(r"INFO: task (?P<name>.{1,64}?):(?P<pid>\d+) blocked for more than (?P<s>\d+) seconds")
# The kernel's names of tasks are short; one without a bound would be looked for from every letter of a long line.
_SEGFAULT = re.compile(r"(?P<name>\S{1,64})\[(?P<pid>\d+)\]: (?:segfault at|general protection)")
_BUS_ERROR = re.compile(
    r"AER: .{0,100}(?:[Uu]ncorrect|[Ff]atal)|Bus Error: severity=Uncorrected|Machine [Cc]heck|Hardware Error"
)

WORDS = (
    "NVRM",
    "SXid",
    "illed process",
    "oom-kill",
    "oom_reaper",
    "ink down",
    "ink is ",
    "ink Down",
    "mlx5_core",
    "mlx4_core",
    "bnxt_en",
    "irdma",
    "hns3 ",
    "cxgb4 ",
    "ice 0000:",
    "i40e 0000:",
    "efa 0000:",
    "blocked for more than",
    "segfault at",
    "general protection",
    "AER:",
    "Bus Error",
    "achine Check",
    "achine check",
    "ardware Error",
)
"""Every message that matters holds one of these."""

_UPTIME = re.compile(r"^(?:<\d+>|kern\s*:\w+\s*:)?\s*\[\s*(?P<at>\d+\.\d+)\]\s?")
_HUMAN = re.compile(r"^\[(?P<at>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d(?:\.\d+)? ?\d{4})\]\s?")
_SYSLOG = re.compile(
    r"^(?:[\w./-]{1,80}:)?"  # the file's name, by grep
    r"(?:(?P<at>\w{3} +\d+ \d\d:\d\d:\d\d)|(?P<iso>\d{4}-\d\d-\d\dT\S+)) (?P<host>[\w.-]+) kernel: "
    r"(?:\[\s*[\d.]+\] ?)?"
)
_ISO = re.compile(r"^(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*)\s")


_ANY = re.compile("|".join(map(re.escape, WORDS)))
_STAMPS = frozenset("[<k0123456789OMo ")
"""How a line with a kernel's stamp begins, or one of the few that count without."""


class KernelLog:
    """Reads one file's raw lines: ``dmesg`` in any of its time formats, or the journal.

    A line counts only if it carries a kernel's time stamp, the journal's ``kernel:`` or NVIDIA's ``NVRM``: otherwise a
    training log that speaks of links would accuse one. `sure` says that the file is known to be the kernel's.
    """

    def __init__(self, file: str, *, sure: bool = False) -> None:
        self.file = file
        self._sure = sure
        self.messages: list[KernelMessage] = []
        self.hosts: set[str] = set()
        self._gpu: str | None = None

    def feed(self, number: int, raw: str) -> bool:
        first = raw[:1]
        # most lines of a training log cannot be the kernel's, which have a stamp or name the kernel or NVIDIA's driver
        may_be = self._sure or first in _STAMPS or " kernel: " in raw or "NVRM" in raw
        if not may_be or raw[:5] == "[rank" or _ANY.search(raw) is None:
            return False
        at, host, text, stamped = _stamp(raw)
        if not (stamped or self._sure) and "NVRM" not in text:
            return False
        if host:
            self.hosts.add(host)
        message = self._message(text, Source(self.file, f"line {number}"), at, host)
        if message is not None:
            self.messages.append(message)
        return message is not None

    def _message(self, text: str, source: Source, at: str | None, host: str | None) -> KernelMessage | None:
        if match := _OOM.search(text):
            pid = match["pid"] or match["pid2"] or match["pid3"]
            return KernelMessage("oom", text, source, host, pid=integer(pid), at=at)
        if match := _NAMED_GPU.search(text):
            self._gpu = pci_id(match["pci"])  # the sentence goes on in the next lines
            return None
        if found := self._xid(text):
            code, pci, pid = found
            return KernelMessage("xid", text, source, host, pid=pid, pci=pci, code=code, at=at)
        if match := _NIC.search(text):
            kind = _kind_of_nic_message(match["what"])
            if kind is None:
                return None
            return KernelMessage(kind, text, source, host, pci=pci_id(match["pci"]), device=match["device"], at=at)
        if match := _LINK.search(text):
            return KernelMessage("link", text, source, host, device=match["device"], at=at)
        if (match := _HUNG.search(text)) or (match := _SEGFAULT.search(text)):
            return KernelMessage("other", text, source, host, pid=integer(match["pid"]), at=at)
        if _BUS_ERROR.search(text):
            return KernelMessage("other", text, source, host, at=at)
        return None

    def _xid(self, text: str) -> tuple[int, str | None, int | None] | None:
        """(the Xid's number, the GPU's or the switch's PCI address, the process) of what NVIDIA's driver reports."""
        if match := _XID.search(text):
            return integer(match["code"]), pci_id(match["pci"]), integer(match["pid"]) if match["pid"] else None
        if match := _SXID.search(text):
            return integer(match["code"]), pci_id(match["pci"]), None
        if match := _FELL_OFF.search(text):
            return _FELL_OFF_CODE, pci_id(match["pci"]), None
        if "NVRM" in text and "fallen off the bus" in text:
            return _FELL_OFF_CODE, self._gpu, None
        return None


def host_in_front(text: str) -> str | None:
    """The host that syslog put in front of a kernel's line."""
    return _stamp(text)[1]


def _kind_of_nic_message(what: str) -> str | None:
    if _LINK_WORDS.search(what):
        return "link"
    return "nic" if _NIC_WORDS.search(what) else None


def _stamp(raw: str) -> tuple[str | None, str | None, str, bool]:
    """(time, host, text without them, whether there was a kernel's stamp)."""
    if match := _SYSLOG.match(raw):
        return match["at"] or match["iso"], match["host"], raw[match.end() :], True
    if (match := _HUMAN.match(raw)) or (match := _UPTIME.match(raw)):
        return match["at"], None, raw[match.end() :], True
    if match := _ISO.match(raw):
        rest = raw[match.end() :]
        return match["at"], None, rest, rest.startswith(("NVRM", "mlx", "oom", "Out of memory", "Memory cgroup"))
    return None, None, raw, raw.startswith(("Out of memory: Killed", "Memory cgroup out of memory", "oom-kill:"))
