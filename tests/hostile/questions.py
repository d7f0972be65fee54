"""What is asked about an input: every verb, with options that make it do most."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import hangscope
from hangscope.cli.main import main as command
from hangscope.errors import HangscopeError
from hangscope.incident.collect import collect
from hangscope.incident.collect.gather import CollectOptions
from hangscope.incident.collect.remote_node import Node
from hostile.inputs.registry import Input
from hostile.inputs.settings import environment, value

VERBS = (
    *("diagnose", "diagnose", "show", "report", "bundle", "bundle", "watch", "collect", "hostfile", "snapshot"),
    *("stacks", "ls", "exclude", "prune"),
)
"""What any evidence can be asked."""
STARTED = ("run", "demo")
"""Questions that start processes: what these take is theirs."""
STATUS = 7
"""Of the command that `run` starts."""


@dataclass(frozen=True)
class Question:
    """`words` as they would be typed; `ask` does it, in a process of its own, with `environ` added."""

    words: list[str]
    ask: Callable[[], int]
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        return self.words[0]


def question(rng: Random, given: Input, out: Path) -> Question:
    verb = rng.choice(given.verbs or VERBS)
    if given.named:
        verb = rng.choice(("diagnose", "bundle"))
    if verb == "any":
        verb = rng.choice(VERBS)
    if verb == "node":
        return Question(["node"], lambda: _collect(given.path, out))
    folder = given.path if given.path.is_dir() else given.path.parent
    if verb in STARTED:
        return _started(rng, verb, folder)
    if verb in ("doctor", "env", "simulate"):
        words = _settings(rng, verb, folder, out)
        return Question(words, lambda: command(words), environment(rng, folder))
    words = _of_evidence(rng, verb, given, folder, out)
    return Question(words, lambda: command(words))


def _of_evidence(rng: Random, verb: str, given: Input, folder: Path, out: Path) -> list[str]:
    path = str(given.path)
    outputs = [word for end in ("html", "md", "json", "txt", "perfetto-trace") for word in ("-o", f"{out}/r.{end}")]
    plain = {
        "verify": ["bundle", path, "--verify"],
        "unpack": ["bundle", path, "--unpack", f"{out}/unpacked"],
        "watch": ["watch", str(folder), "--once"],
        "snapshot": ["snapshot", str(folder)],
        "ls": ["ls", str(folder)],
        "exclude": ["exclude", path],
        "prune": ["prune", str(folder), "--older-than", "1s", "--dry-run"],
        "collect": ["collect", "--from", path, "-o", f"{out}/c"],
        "hostfile": ["collect", "--hostfile", path, "-o", f"{out}/c"],
    }
    if verb in plain:
        return plain[verb]
    options: dict[str, tuple[list[str], ...]] = {
        "diagnose": ([], ["--json"], ["-v"], ["--full", "--width", "40"], ["-v", "--width", "300"]),
        "stacks": ([], ["--json"], ["--threads", "--all-frames"]),
        "show": ([], ["--json"], ["--last", "3"], ["--state", "unfinished", "--width", "40"], ["--rank", "0-9"]),
        "report": (outputs, [*outputs, "-v"]),
        "bundle": (
            [], [], ["--no-redact"], ["--pseudonymise"], ["--pseudonymise", "--all-lines"], ["--only-evidence"],
            ["--no-verdict"], ["--max-size", "1kB"], ["--max-size", "60kB"], ["--no-redact", "--max-size", "20kB"],
            ["--pseudonymise", "--map", f"{out}/map.json"],
        ),
    }  # fmt: skip
    more = ["--json"] if given.named and verb == "diagnose" else rng.choice(options[verb])
    return [verb, path, *(["-o", f"{out}/b.tar.gz"] if verb == "bundle" else []), *more]


def _settings(rng: Random, verb: str, folder: Path, out: Path) -> list[str]:
    """Options that nobody means well."""
    if verb == "simulate":
        asked = ["simulate", "-o", rng.choice((f"{out}/s", str(folder), "/dev/null/x")), "--ranks", rng.choice("1248")]
        options = ("--layout", "--variant", "--culprit", "--entries", "--steps", "--clock-skew-ms", "--gpus-per-node")
        fault = rng.choice(("none", "absent", "dead", "frozen", "gpu", "mismatch", "deadlock", "network", "slow"))
        few = ("-1", "0", "1", "7", "x", "nan", "dp=9,tp=0", "tp=2", "99999999999999999999", "skipped", "1,1,1")
        chosen = [word for option in rng.sample(options, rng.randrange(3)) for word in (option, rng.choice(few))]
        return [*asked, "--fault", fault, "--seed", str(rng.randrange(99)), *chosen]
    options = ("--torch", "--backend", "--dir")
    asked = [verb]
    if verb == "env":
        options += ("--job", "--attempt", "--node", "--entries")
        asked += ["--format", rng.choice(("shell", "docker", "kubernetes", "slurm", "torchrun"))]
    elif rng.random() < 0.5:
        asked.append("--json")
    else:
        options += ("--world-size", "--python")
    return [*asked, *(w for option in rng.sample(options, rng.randrange(3)) for w in (option, value(rng, folder)))]


def _started(rng: Random, verb: str, folder: Path) -> Question:
    """`run` in a directory that others filled, and `demo`, both beside a torch that is none."""
    command = ["--", "sh", "-c", f"exit {STATUS}"] if verb == "run" else []
    words = [verb, "--dir", str(folder), *command]
    source = Path(hangscope.__file__).parents[1]
    environ = environment(rng, folder) | {"PYTHONPATH": f"{folder.parent / 'fake'}{os.pathsep}{source}"}
    program = [sys.executable, "-m", "hangscope", *words]
    return Question(words, lambda: subprocess.run(program, timeout=120, check=False).returncode, environ)


def _collect(answer: Path, out: Path) -> int:
    """Collect from a node whose every answer is that file."""
    try:
        collect(out / "c", [Node("n", ("cat", str(answer)))], options=CollectOptions(deadline_s=5, retries=0))
    except HangscopeError as error:
        return error.exit_status
    return 0
