"""Connections: how many there may be, and how long one may say nothing. Who has waited longest without a request goes
first, so that nobody who asks something is turned away for those who do not.

uvicorn counts connections and answers 503 where there are too many; whoever opens them and is silent takes the server
away. Here each connection is either at work on a request or idle. An idle one has `IDLE_S` to send the whole head of a
request, however slowly it trickles; where there are too many, of one address or in all, the one that is idle longest is
closed. A client that does not take its answer is closed too. How long a body may take is for `guard.body` to say.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import OrderedDict
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_S = 20.0
STUCK_S = 60.0
"""So long a client may take nothing of an answer that waits for it."""
MOST = 8000
MOST_OF_ADDRESS = 512
HEAD_BYTES = 32 << 10
SWEEP_S = 1.0

Networks = tuple[IPv4Network | IPv6Network, ...]


class Connections:
    """All connections of one server. It lives on the event loop alone."""

    def __init__(self, trusted: Networks = (), most: int | None = None, most_of_address: int = MOST_OF_ADDRESS) -> None:
        self._trusted = trusted
        self.most = most or _most_that_fit()
        self.most_of_address = most_of_address
        self._all: set[KeptConnection] = set()
        self._idle: OrderedDict[KeptConnection, float] = OrderedDict()
        self._by_address: dict[str, OrderedDict[KeptConnection, None]] = {}
        self._counts: dict[str, int] = {}
        self._stuck: dict[KeptConnection, tuple[int, float]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def opened(self, connection: KeptConnection) -> None:
        address = connection.address
        self._all.add(connection)
        self._counts[address] = self._counts.get(address, 0) + 1
        self.waits(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        if self._counts[address] > self.most_of_address and not self._is_trusted(address):
            self._close(next(iter(self._by_address[address])))
        elif len(self._all) > self.most:
            self._close(next(iter(self._idle)))

    def waits(self, connection: KeptConnection) -> None:
        """It has nothing to do: the clock runs."""
        if connection in self._all:
            self._idle[connection] = time.monotonic()
            self._by_address.setdefault(connection.address, OrderedDict())[connection] = None

    def works(self, connection: KeptConnection) -> None:
        """The head of a request is there."""
        self._idle.pop(connection, None)
        self._of_address(connection).pop(connection, None)

    def closed(self, connection: KeptConnection) -> None:
        if connection not in self._all:
            return
        self.works(connection)
        self._all.discard(connection)
        self._stuck.pop(connection, None)
        address = connection.address
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
            self._by_address.pop(address, None)

    def _of_address(self, connection: KeptConnection) -> OrderedDict[KeptConnection, None]:
        return self._by_address.get(connection.address, OrderedDict())

    def _close(self, connection: KeptConnection) -> None:
        self.closed(connection)
        connection.transport.abort()

    def _is_trusted(self, address: str) -> bool:
        return is_among(address, self._trusted)

    def _sweep(self) -> None:
        now = time.monotonic()
        while self._idle:
            connection, since = next(iter(self._idle.items()))
            if now - since < IDLE_S:
                break
            self._close(connection)
        for connection in [each for each in self._all if each not in self._idle]:
            waiting = connection.transport.get_write_buffer_size()
            before = self._stuck.get(connection)
            if not waiting:
                self._stuck.pop(connection, None)
            elif before is None or before[0] != waiting:
                self._stuck[connection] = (waiting, now)
            elif now - before[1] > STUCK_S:
                self._close(connection)
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._all else None


class KeptConnection(H11Protocol):
    """uvicorn's connection, which says whether it waits or works."""

    kept: Connections
    address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.kept.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.kept.closed(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self.cycle is not None and not self.cycle.response_complete:
            self.kept.works(self)

    def on_response_complete(self) -> None:
        self.kept.waits(self)
        super().on_response_complete()


def protocol_for(kept: Connections) -> Any:
    """The protocol class of a server whose connections these are."""
    return type("Connection", (KeptConnection,), {"kept": kept})


def is_among(address: str, networks: Networks) -> bool:
    if not networks:
        return False
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any(each in network for network in networks for each in (found, mapped) if each is not None)


def _most_that_fit() -> int:
    """Each connection is a file: some are left for the database and for blobs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = MOST + 1000 if hard == resource.RLIM_INFINITY else min(hard, MOST + 1000)
        if wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(64, min(MOST, soft - 400))
