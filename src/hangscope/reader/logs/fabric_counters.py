"""What ``ibqueryerrors`` and ``perfquery`` print: error counters of ports of the fabric, since they were last cleared.

Counters that say that a cable or a transceiver is bad count; congestion, and what switches drop by design, do not. A
link that went down may also be a host that was started again, so it comes behind errors of the signal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangscope.model import Failure, FailureKind, Source
from hangscope.model.numbers import COUNTER_DIGITS, integer

_ERRORS_FOR = re.compile(r'^\s*Errors for (?:0x[0-9a-fA-F]{1,16} )?"(?P<name>[^"]{1,128})"')
_PORT = re.compile(
    r"^\s*GUID 0x[0-9a-fA-F]{1,16} port (?P<port>\w{1,8}):(?P<counters>(?: \[\w{1,64} == \d{1,20}[^\]]{0,20}\])+)"
)
_COUNTER = re.compile(r"\[(?P<name>\w{1,64}) == (?P<value>\d{1,20})")
_PERFQUERY = re.compile(r"^# Port (?:extended )?counters: Lid (?P<lid>\d{1,6}) port (?P<port>\d{1,4})")
_ROW = re.compile(r"^(?P<name>[A-Z]\w{4,64}):\.{2,64}(?P<value>\d{1,20})\s*$")

_SIGNAL = (
    "SymbolErrorCounter",
    "LinkErrorRecoveryCounter",
    "PortRcvErrors",
    "PortRcvRemotePhysicalErrors",
    "LocalLinkIntegrityErrors",
    "ExcessiveBufferOverrunErrors",
)
_DOWN = "LinkDownedCounter"
_NAMED = 3
PARTS = ("Errors for ", "Counter", "PortRcv", "LinkIntegrity", "BufferOverrun", "Port counters", "extended counters")
"""Every line that is looked at holds one of these."""


@dataclass
class _Port:
    """One port, with the line that says most about it."""

    name: str
    number: int
    text: str
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def severity(self) -> tuple[int, int]:
        """(signal errors before links that went down, how often)."""
        signal = sum(self.counters.get(name, 0) for name in _SIGNAL)
        return int(signal > 0), signal or self.counters.get(_DOWN, 0)


class FabricCounters:
    """Reads one file's rows about ports."""

    MOST = 5000

    def __init__(self, file: str) -> None:
        self.file = file
        self._device = ""
        self._query: str | None = None
        self._ports: dict[str, _Port] = {}

    def feed(self, number: int, text: str) -> bool:
        """Take one line. True where it tells of a port's errors."""
        if match := _ERRORS_FOR.match(text):
            self._device = match["name"]
            self._query = None
        elif match := _PERFQUERY.match(text):
            self._query = f"port {match['port']} of Lid {match['lid']}"
        elif (match := _PORT.match(text)) and match["port"] != "ALL":
            name = f"port {match['port']} of {self._device}" if self._device else f"port {match['port']}"
            counters = {
                found["name"]: integer(found["value"], COUNTER_DIGITS) for found in _COUNTER.finditer(match["counters"])
            }
            return self._add(name, number, text, counters)
        elif self._query is not None and (match := _ROW.match(text)):
            return self._add(self._query, number, text, {match["name"]: integer(match["value"], COUNTER_DIGITS)})
        return False

    def _add(self, name: str, number: int, text: str, counters: dict[str, int]) -> bool:
        bad = {key: value for key, value in counters.items() if value and key in (*_SIGNAL, _DOWN)}
        if not bad or len(self._ports) >= self.MOST:
            return False
        self._ports.setdefault(name, _Port(name, number, text)).counters.update(bad)
        return True

    @property
    def failures(self) -> list[Failure]:
        """One for all ports: the worst of them, and beside them the others."""
        worst = sorted(self._ports.values(), key=lambda port: port.severity, reverse=True)
        if not worst:
            return []
        signal = [port for port in worst if port.severity[0] == worst[0].severity[0]][:_NAMED]
        said = "; ".join(f"{port.name}: {_counted(port)}" for port in signal)
        first, *others = [Source(self.file, f"line {port.number}") for port in worst]
        return [
            Failure(
                FailureKind.PORT_ERRORS, worst[0].text.strip(), first, None, None, detail=said, beside=tuple(others)
            )
        ]


def _counted(port: _Port) -> str:
    return ", ".join(f"{name} {value}" for name, value in port.counters.items())
