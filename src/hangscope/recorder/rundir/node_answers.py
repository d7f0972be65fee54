"""Whether another node's machine answers on the network: it tells a node that is lost from an agent that was killed.

Both stop writing. A living machine accepts or refuses a connection to a port that nobody listens on; one without power,
kernel or network does neither, and nor does one behind a firewall. So a machine is lost only where it answered when the
job began, or where others of the job answer now. Nothing is sent.
"""

from __future__ import annotations

import enum
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.run_directory import RunFolders

PORT = 64_999
"""Above what Linux gives out by itself (32768 to 60999): no rank listens there, and firewalls let training through."""
CONNECT_S = 4.0
"""The kernel needs 3 s to say that a machine of its own network is not there."""
NEIGHBOURS = 8
"""So many others a node asks when the job starts. In larger jobs some that live are asked at the time."""
CONTROLS = 3
MOST_ADDRESSES = 4
MOST_ASKED = 64
LOOKS = 30
"""One with each status, so for a minute: later nobody comes."""


class Reply(enum.Enum):
    ANSWERS = "answers"
    NO_ANSWER = "no answer"
    UNKNOWN = "not known"
    """No address of it is known here."""


def ask(node: str) -> Reply:
    """One connection to the machine, which is closed at once."""
    try:
        found = socket.getaddrinfo(node, PORT, type=socket.SOCK_STREAM)[:MOST_ADDRESSES]
    except (OSError, UnicodeError):
        return Reply.UNKNOWN
    addresses = [(family, place) for family, _, _, _, place in found]
    if not addresses or any(ipaddress.ip_address(str(place[0]).split("%")[0]).is_loopback for _, place in addresses):
        return Reply.UNKNOWN
    replied = any(answers(family, place, CONNECT_S / len(addresses)) for family, place in addresses)
    return Reply.ANSWERS if replied else Reply.NO_ANSWER


def answers(family: int, address: Any, seconds: float) -> bool:
    """Whether a machine accepts or refuses a connection."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(address)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return True


def ask_all(nodes: Iterable[str], ask_one: Callable[[str], Reply] = ask) -> dict[str, Reply]:
    """Each node's reply, all asked at once. A name service that hangs is left behind."""
    replies: dict[str, Reply] = {}
    chosen = list(dict.fromkeys(nodes))[:MOST_ASKED]

    def one(node: str) -> None:
        replies[node] = ask_one(node)

    threads = [threading.Thread(target=one, args=(node,), name=f"ask {node}", daemon=True) for node in chosen]
    for thread in threads:
        thread.start()
    until = time.monotonic() + CONNECT_S + 1
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return {node: replies.get(node, Reply.UNKNOWN) for node in chosen}


class NodeAnswers:
    """What this node knows of the others' machines."""

    def __init__(self, folders: RunFolders, ask_one: Callable[[str], Reply] = ask) -> None:
        self._folders = folders
        self._ask_one = ask_one
        self._answered: set[str] = set()
        self._asked: set[str] = set()
        self._looks = 0
        self._asking: threading.Thread | None = None

    def look(self) -> None:
        """Ask neighbours that have come since, on a thread of its own; in a job's first minutes only."""
        busy = self._asking is not None and self._asking.is_alive()
        if busy or self._looks >= LOOKS or len(self._asked) >= NEIGHBOURS:
            return
        self._looks += 1
        self._asking = threading.Thread(target=self._ask_neighbours, name="neighbours", daemon=True)
        self._asking.start()

    def of_silent(self, silent: Sequence[str], living: Collection[str]) -> dict[str, Reply]:
        """For each silent node NO_ANSWER where its machine is lost, ANSWERS where only its agent is, else UNKNOWN."""
        controls = [node for node in living if node not in silent][:CONTROLS]
        replies = ask_all((*controls, *silent), self._ask)
        replied = {replies[node] for node in controls} - {Reply.UNKNOWN}
        ours_works = not replied or Reply.ANSWERS in replied
        found = {}
        for node in silent:
            reply = replies.get(node, Reply.UNKNOWN)
            would_answer = node in self._answered or Reply.ANSWERS in replied
            believed = reply is not Reply.NO_ANSWER or (would_answer and ours_works)
            found[node] = reply if believed else Reply.UNKNOWN
        return found

    def _ask(self, node: str) -> Reply:
        """By the address that its agent gave, else by its name."""
        return self._ask_one(run_directory.address_of(self._folders, node) or node)

    def _ask_neighbours(self) -> None:
        new = [node for node in run_directory.nodes_after(self._folders, NEIGHBOURS) if node not in self._asked]
        self._asked.update(new)
        self._answered.update(node for node, reply in ask_all(new, self._ask).items() if reply is Reply.ANSWERS)
