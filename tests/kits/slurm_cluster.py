"""A real Slurm for tests: a login machine and some nodes, each a set of namespaces on this machine, up in seconds.

Every machine has its own host name, processes, network, /tmp and /dev/shm; `lab` is the disk that they share. The
login machine's network holds the bridge, so nothing of this machine's network is touched, and pid 1 of a machine takes
everything along when it is killed. Jobs run as the users "trainer" and "tester", who are known on those machines alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MACHINE = Path(__file__).with_name("slurm_machine.sh")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "setpriv", "ip")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NETWORK = "10.77.0"
USER = 2000
OTHER = 2001
USERS = {USER: "trainer", OTHER: "tester"}

_CONF = """ClusterName=lab
SlurmctldHost=login({network}.10)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge/socket,cred_expire=20
StateSaveLocation={run}/ctl
SlurmctldPidFile={run}/slurmctld.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdSpoolDir={run}/%n/spool
SlurmdPidFile={run}/%n/slurmd.pid
SlurmdLogFile={run}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdTimeout=8
KillWait={kill_wait}
MinJobAge=600
NodeName=n[1-{nodes}] NodeAddr={network}.[11-{last}] CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 State=UP
"""
# cred_expire: a requeued job waits that long, else two minutes. SlurmdTimeout: so soon a dead node is noticed.


def missing() -> str:
    """Why there can be no such cluster here, empty where there can."""
    if os.geteuid() != 0:
        return "a real Slurm of namespaces needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"a real Slurm needs {', '.join(absent)} (Debian: slurmctld slurmd slurm-client munge iproute2)"
    if Path(sys.prefix).is_relative_to("/tmp"):
        return "every node of the Slurm of the tests has a /tmp of its own, and this checkout lies in /tmp"
    trial = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(trial, capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


class SlurmCluster:
    """`lab` must be a new directory that everybody may enter."""

    def __init__(self, lab: Path, nodes: int = 4, kill_wait_s: int = 30) -> None:
        self.lab = lab
        self.run = lab / "run"
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.shared = lab / "shared"
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self._pids: dict[str, int] = {}
        self._base_conf = ""
        self._make_files(kill_wait_s)

    def _make_files(self, kill_wait_s: int) -> None:
        for folder in (self.run / "munge", self.run / "ctl", *map(self.home, USERS), self.shared):
            folder.mkdir(parents=True)
        self.run.chmod(0o755)
        self.shared.chmod(0o777)
        (self.run / "munge").chmod(0o711)
        for user in USERS:
            os.chown(self.home(user), user, user)
        etc = self.run / "etc"
        shutil.copytree("/etc", etc, symlinks=True, ignore=shutil.ignore_patterns("shadow*", "gshadow*", "ssl"))
        for user, known in USERS.items():
            line = f"{known}:x:{user}:{user}::{self.home(user)}:/bin/bash"
            for name, text in (("passwd", line), ("group", f"{known}:x:{user}:")):
                with (etc / name).open("a") as stream:
                    stream.write(f"{text}\n")
        named = ["127.0.0.1 localhost", f"{NETWORK}.10 login"]
        named += [f"{NETWORK}.{11 + index} {name}" for index, name in enumerate(self.nodes)]
        (etc / "hosts").write_text("\n".join(named) + "\n")
        switch = etc / "nsswitch.conf"  # no DNS: its timeouts cost 10 s a connection
        switch.write_text(re.sub(r"(?m)^hosts:.*", "hosts: files", switch.read_text()))
        (etc / "slurm").mkdir(exist_ok=True)
        values = {"network": NETWORK, "run": self.run, "kill_wait": kill_wait_s}
        last = 10 + len(self.nodes)
        (etc / "slurm" / "slurm.conf").write_text(_CONF.format(**values, nodes=len(self.nodes), last=last))
        key = self.run / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)

    def home(self, user: int = USER) -> Path:
        return self.lab / ("home" if user == USER else f"home-{USERS[user]}")

    def configure(self, lines: Sequence[str], plugins: Sequence[str] = ()) -> None:
        """These lines at the end of slurm.conf, and of plugstack.conf, on all machines, in place of those before."""
        kept = self._base_conf or (self.run / "etc/slurm/slurm.conf").read_text()
        self._base_conf = kept
        for name in ("slurm.conf", "plugstack.conf"):
            text = kept + "".join(f"{line}\n" for line in lines) if name == "slurm.conf" else "\n".join([*plugins, ""])
            (self.run / "etc/slurm" / name).write_text(text)
        self.on("login", "scontrol reconfigure", root=True)
        time.sleep(1.0)  # the nodes read it anew by themselves

    # ---- machines ----------------------------------------------------------------------------------------------------

    def up(self) -> None:
        self.start("login")
        for name in self.nodes:
            self.start(name)
        until = time.monotonic() + 60
        while self._idle() < len(self.nodes):
            if time.monotonic() > until:
                raise RuntimeError(f"Slurm does not come up:\n{self._logs()}")
            time.sleep(0.1)

    def _idle(self) -> int:
        found = self.on("login", "sinfo -h -t idle -o %D", check=False)
        return int(found.stdout) if found.stdout.strip().isdigit() else 0

    def _logs(self) -> str:
        files = (self.run / "slurmctld.log", *self.run.glob("n*/slurmd.log"), *self.run.glob("*.out"))
        return "\n".join(f"{file}: {file.read_text(errors='replace')[-1500:]}" for file in files if file.exists())

    def start(self, name: str) -> None:
        """Start a machine, also one that was killed."""
        (self.run / name / "spool").mkdir(parents=True, exist_ok=True)
        network = self.run / f"{name}.network"
        network.unlink(missing_ok=True)
        apart = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with (self.run / f"{name}.out").open("wb") as out:
            machine = subprocess.Popen(
                [*apart, "bash", str(MACHINE), str(self.lab), name, *_unreachable()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PATH": PATH, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        self.machines[name] = machine
        self._pids[name] = pid = only_child(machine.pid)
        if name == "login":
            make_bridge(pid, f"{NETWORK}.10")
        else:
            plug_in(pid, name, f"{NETWORK}.{10 + int(name[1:])}", self._pids["login"], f"{NETWORK}.10")
        network.touch()

    def kill(self, name: str) -> None:
        """A machine loses its power: all of its processes at once, and nobody is told."""
        machine = self.machines.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids.pop(name), signal.SIGKILL)
        machine.wait(timeout=20)
        if name != "login":
            with contextlib.suppress(subprocess.CalledProcessError):  # mostly gone with the machine
                enter_network(self._pids["login"], f"link del {name}")

    def cut_off(self, name: str) -> None:
        """A machine stops dead, and its network with it: unlike with `kill`, no connection is closed."""
        enter_network(self._pids["login"], f"link set {name} down")
        inside = os.readlink(f"/proc/{self._pids[name]}/ns/pid")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == inside:
                    os.kill(int(pid), signal.SIGSTOP)

    def down(self) -> None:
        for name in reversed(list(self.machines)):
            self.kill(name)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def words(self, name: str, command: str, *, root: bool = False, by: int = USER) -> list[str]:
        """A shell command on a machine, by trainer unless by root, as words to start."""
        inside = ["nsenter", "-t", str(self._pids[name]), "-m", "-u", "-i", "-n", "-p"]
        user = [] if root else ["setpriv", f"--reuid={by}", f"--regid={by}", "--clear-groups"]
        home = "/root" if root else str(self.home(by))
        path = f"{Path(sys.prefix, 'bin')}:{PATH}"
        named = [f"HOME={home}", f"USER={'root' if root else USERS[by]}", "LANG=C.UTF-8", f"PATH={path}", "TERM=dumb"]
        return [*inside, *user, "env", "-i", *named, "OMP_NUM_THREADS=1", "bash", "-c", f"cd ~ && {command}"]

    def on(
        self, name: str, command: str, *, root: bool = False, check: bool = True, timeout_s: float = 60, by: int = USER
    ) -> subprocess.CompletedProcess[str]:
        words = self.words(name, command, root=root, by=by)
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, errors="replace")
        if check and done.returncode:
            raise RuntimeError(f"{name}: {command!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def submit(self, script: str, *options: str, by: int = USER) -> str:
        """sbatch with this script; the job's number. Its output goes to <shared>/slurm-<number>.out."""
        file = self.home(by) / f"{secrets.token_hex(4)}.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)
        output = f"--output={self.shared}/slurm-%j.out"
        done = self.on("login", f"sbatch --parsable {output} {' '.join(options)} {file}", by=by)
        return done.stdout.strip().split(";")[0]

    def log(self, job: str) -> str:
        file = self.shared / f"slurm-{job}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def at_rest(self, node: str, seconds: float = 60) -> None:
        """Wait until no job is left on a node, and its Epilog has ended as well: srun ends before that."""
        until = time.monotonic() + seconds
        shown = f"sinfo -h -n {node} -O StateComplete:60,Reason:90"
        while (state := self.on("login", shown).stdout.strip()).partition(" ")[0] != "idle":
            if time.monotonic() > until:
                raise RuntimeError(f"{node} is still {state} after {seconds} s:\n{self._logs()}")
            time.sleep(0.1)

    def state(self, job: str) -> str:
        """As Slurm names it: RUNNING, CANCELLED, NODE_FAIL and so on."""
        shown = self.on("login", f"scontrol -o show job {job}", check=False).stdout
        found = re.search(r"JobState=(\w+)", shown)
        return found[1] if found else ""

    def exit_status(self, job: str) -> str:
        found = re.search(r"ExitCode=(\S+)", self.on("login", f"scontrol -o show job {job}").stdout)
        return found[1] if found else ""

    def processes(self, job: str, part: bytes) -> list[tuple[int, str]]:
        """Pid and node of each process of the job's tasks with this in its command line."""
        found = []
        marks = (f"SLURM_JOB_ID={job}\0".encode(), f"HOME={self.lab}".encode())
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if part in words and not words.startswith(b"srun\0"):
                    environ = Path(f"/proc/{pid}/environ").read_bytes()
                    node = re.search(rb"SLURMD_NODENAME=(\w+)", environ)
                    if all(mark in environ for mark in marks) and node is not None:
                        found.append((int(pid), node[1].decode()))
        return found

    def wait(self, job: str, seconds: float = 60) -> str:
        """Until the job is over; its state."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            if time.monotonic() > until:
                raise RuntimeError(f"job {job} is still {state} after {seconds} s:\n{self.log(job)[-3000:]}")
            time.sleep(0.3)
        return state

    def until(self, job: str, words: str, seconds: float = 60) -> str:
        """Until the job's output has these words; the output."""
        end = time.monotonic() + seconds
        while words not in (text := self.log(job)):
            if time.monotonic() > end:
                raise RuntimeError(f"no {words!r} of job {job} within {seconds} s:\n{text[-3000:]}")
            time.sleep(0.2)
        return text


def only_child(pid: int) -> int:
    """The process that unshare has started, once it has namespaces of its own."""
    ours = os.readlink("/proc/self/ns/net")
    for _ in range(500):
        with contextlib.suppress(OSError, IndexError):
            child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            if os.readlink(f"/proc/{child}/ns/net") != ours:
                return child
        time.sleep(0.02)
    raise RuntimeError("the machine did not start")


def enter_network(pid: int, *commands: str) -> None:
    for command in commands:
        subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", *command.split()], check=True, capture_output=True)


def make_bridge(pid: int, address: str) -> None:
    """On the machine that all others are plugged into."""
    enter_network(pid, "link set lo up", "link add bridge type bridge", f"addr add {address}/24 dev bridge")
    enter_network(pid, "link set bridge up")


def plug_in(pid: int, name: str, address: str, login: int, gateway: str) -> None:
    """Give a machine its address, on the bridge of another."""
    enter_network(login, f"link add {name} type veth peer name eth0 netns {pid}", f"link set {name} master bridge up")
    enter_network(pid, "link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up")
    enter_network(pid, f"route add default via {gateway}")


def _unreachable() -> Iterator[str]:
    """BLOCKED:PATH for each path that jobs need and a folder above it keeps users from."""
    for path in _needed((REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))):
        blocked = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
        if blocked:
            yield f"{blocked[0]}:{path}"


def _needed(paths: Sequence[Path]) -> list[Path]:
    """Without those that lie inside another."""
    return [path for path in dict.fromkeys(paths) if not any(other in path.parents for other in paths)]
