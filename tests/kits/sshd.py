"""Nodes for tests: a real sshd on loopback for each, with its own home, its own /tmp where the kernel allows it, and
ways to be slow or to break off."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
MISSING = [name for name in ("ssh", "ssh-keygen", "tar") if shutil.which(name) is None]
REASON = "needs sshd and ssh (Debian: apt-get install openssh-server openssh-client)"
HAS_SSHD = SSHD is not None and not MISSING

# The client's command runs in the node's own home and, in a mount namespace, with the node's own /tmp. The files
# `sleep` and `drop` in the node's folder make it slow, or end the connection after so many bytes.
_WRAPPER = """#!/bin/sh
node={node}
if [ -f "$node/sleep" ]; then read -r seconds <"$node/sleep"; sleep "$seconds"; fi
run() {{
  if [ {private} = yes ]; then
    exec unshare --map-root-user --mount sh -c \
'mount --bind "$1/home" /mnt && mount --bind "$1/tmp" /tmp && HOME=/mnt && export HOME && cd /mnt && eval "$2"' \
sh "$node" "$SSH_ORIGINAL_COMMAND"
  fi
  HOME=$node/home; export HOME; cd "$HOME" && eval "exec $SSH_ORIGINAL_COMMAND"
}}
if [ -f "$node/drop" ]; then
  read -r bytes <"$node/drop"
  (run) | head -c "$bytes"
  sleep 0.5  # what is in the server's hands by now arrives
  kill -9 "$PPID"
fi
run
"""

_SSHD_CONFIG = """Port {port}
ListenAddress 127.0.0.1
HostKey {base}/host_key
AuthorizedKeysFile {base}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
ForceCommand {node}/wrapper
"""


@dataclass(frozen=True)
class Node:
    name: str
    folder: Path
    port: int

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    def slow(self, seconds: float) -> None:
        (self.folder / "sleep").write_text(f"{seconds}\n")

    def drops_after(self, size: int) -> None:
        (self.folder / "drop").write_text(f"{size}\n")

    def well_again(self) -> None:
        for name in ("sleep", "drop"):
            (self.folder / name).unlink(missing_ok=True)


def private_tmp() -> bool:
    """Whether a node can have its own /tmp here."""
    if shutil.which("unshare") is None:
        return False
    trial = ["unshare", "--map-root-user", "--mount", "sh", "-c", "mount --bind /var /mnt"]
    return subprocess.run(trial, capture_output=True).returncode == 0


class Cluster:
    """Some nodes, and the ssh command that knows them by name."""

    def __init__(self, base: Path, names: tuple[str, ...]) -> None:
        self.base = base
        self.private = private_tmp()
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        for name, kind in (("host_key", "ed25519"), ("user_key", "ed25519")):
            subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", base / name], check=True)
        self.nodes = {name: self._make(name) for name in names}
        self.ssh = ("ssh", "-F", str(base / "ssh_config"))
        lines = [
            f"Host *\n  User {getpass.getuser()}\n  HostName 127.0.0.1\n  IdentityFile {base}/user_key\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {base}/known\n  StrictHostKeyChecking accept-new\n"
        ]
        lines += [f"Host {node.name}\n  Port {node.port}\n" for node in self.nodes.values()]
        # What is set first wins: the ports before the rest.
        (base / "ssh_config").write_text("\n".join([*lines[1:], lines[0]]))

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def _make(self, name: str) -> Node:
        folder = self.base / name
        for part in ("home", "tmp"):
            (folder / part).mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        node = Node(name, folder, port)
        wrapper = folder / "wrapper"
        wrapper.write_text(_WRAPPER.format(node=folder, private="yes" if self.private else "no"))
        wrapper.chmod(0o755)
        (folder / "sshd_config").write_text(_SSHD_CONFIG.format(port=port, base=self.base, node=folder))
        return node

    def start(self, name: str) -> None:
        node = self.nodes[name]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it when root starts it
        assert SSHD is not None
        with (node.folder / "sshd.log").open("wb") as log:
            self._servers[name] = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(node.folder / "sshd_config")], stderr=log, start_new_session=True
            )
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", node.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError((node.folder / "sshd.log").read_text())

    def stop(self) -> None:
        for server in self._servers.values():
            server.terminate()
            server.wait(timeout=10)
