"""The names that a headless service gives to pods, HOSTNAME.SUBDOMAIN.NAMESPACE.svc.cluster.local, and no more DNS.

python tests/kits/kube_names.py ADDRESS KUBECTL KUBECONFIG
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time

_HEADER = struct.Struct("!6H")
_FOUND = 0x8580
_NO_SUCH_NAME = 0x8583
_A = 1
_FRESH_S = 1.0


class Names:
    def __init__(self, kubectl: list[str]) -> None:
        self._kubectl = kubectl
        self._known: dict[str, str] = {}
        self._asked_at = float("-inf")

    def address(self, name: str) -> str | None:
        if time.monotonic() > self._asked_at + _FRESH_S:
            self._known = self._ask()
            self._asked_at = time.monotonic()
        return self._known.get(name)

    def _ask(self) -> dict[str, str]:
        words = [*self._kubectl, "get", "pods", "--all-namespaces", "--output", "json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
        known = {}
        for pod in json.loads(done.stdout)["items"] if done.returncode == 0 else ():
            spec = pod["spec"]
            address = pod["status"].get("podIP")
            if "subdomain" in spec and address:
                service = f"{spec['subdomain']}.{pod['metadata']['namespace']}"
                known[f"{spec['hostname']}.{service}.svc.cluster.local"] = address
        return known


def answer(asked: bytes, names: Names) -> bytes:
    """A datagram for a datagram: one question, one address at most."""
    number = _HEADER.unpack_from(asked)[0]
    labels = []
    at = _HEADER.size
    while asked[at]:
        labels.append(asked[at + 1 : at + 1 + asked[at]].decode("ascii", "replace"))
        at += 1 + asked[at]
    kind = struct.unpack_from("!H", asked, at + 1)[0]
    question = asked[_HEADER.size : at + 5]
    address = names.address(".".join(labels).lower())
    if address is None:
        return _HEADER.pack(number, _NO_SUCH_NAME, 1, 0, 0, 0) + question
    if kind != _A:
        return _HEADER.pack(number, _FOUND, 1, 0, 0, 0) + question
    record = struct.pack("!HHHIH", 0xC00C, _A, 1, 1, 4) + socket.inet_aton(address)
    return _HEADER.pack(number, _FOUND, 1, 1, 0, 0) + question + record


def main(address: str, kubectl: str, config: str) -> None:
    names = Names([kubectl, f"--kubeconfig={config}"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            asked, who = server.recvfrom(1500)
            try:
                server.sendto(answer(asked, names), who)
            except (IndexError, struct.error, subprocess.SubprocessError) as error:
                print(f"{who}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
