"""`hangscope run`: the settings, the command, the agent beside it, and the command's own exit status at the end."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangscope.errors import LaunchError, SettingsError
from hangscope.incident.layout import safe_name
from hangscope.recorder.agent.diagnose_process import Verdict
from hangscope.recorder.agent.metrics import Metrics
from hangscope.recorder.agent.node_agent import MAX_INCIDENTS, Agent
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.capture.capture_node import NodeFacts
from hangscope.recorder.launch import rank_sockets
from hangscope.recorder.launch.start_command import Command
from hangscope.recorder.live.companion_hook import with_companion
from hangscope.recorder.process import linux_process
from hangscope.recorder.rundir import run_directory, tidy
from hangscope.recorder.rundir.job_identity import JobIdentity, identify
from hangscope.recorder.setup import blackbox_library, settings
from hangscope.recorder.setup.default_settings import PIPE_NAMES
from hangscope.recorder.setup.setting_problems import FATAL, LOSES_DUMPS, folder_for
from hangscope.recorder.setup.torch_version import interpreter_of, release_of, torch_of
from hangscope.recorder.setup.variables import DEFAULT_ENTRIES
from hangscope.safeio.safe_files import Patience, Refused, make_private

CLAIM_S = 30.0
SILENT_CLAIM_S = 8.0
"""A directory may be slow to take a run, by many small calls; one call that does not come back is enough."""
FINISH_S = 300.0
"""For the last capture, the other nodes and the verdict, which has three minutes of its own."""
AFTER_SIGNAL_S = 5.0
DRAIN_S = 20.0
TIDY_S = 10.0
LOOK_S = 4.0
SILENT_S = 15.0
"""What a capture has left once its file system does not answer: it may be saving elsewhere by now."""
_TEMPORARY = ("TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user may set. None means the default, or what the environment says."""

    directory: Path | None = None
    job: str | None = None
    attempt: str | None = None
    node: str | None = None
    stall_after: float | None = None
    entries: int | None = None
    fix: bool = False
    on_hang: OnHang = field(default_factory=OnHang)
    max_incidents: int = MAX_INCIDENTS
    keep: bool = False
    metrics_file: Path | None = None
    metrics_port: str | None = None


def run(
    words: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    diagnose: Callable[[Path], Verdict] | None,
) -> int:
    """Run the command with the recorder on and return its exit status. Call it in the main thread: it hands on signals.

    Before the command starts, an error is the user's to mend and is raised; afterwards nothing of ours stops it.
    """
    if not words:
        raise LaunchError("there is no command to run", hint="write it after `--`: hangscope run -- torchrun …")
    if shutil.which(words[0], path=environ.get("PATH")) is None:
        raise LaunchError(f"{words[0]}: command not found", hint="write the command as in the shell, after `--`")
    if options.stall_after is not None and not 0 < options.stall_after < math.inf:
        raise SettingsError("--stall-after must be a number of seconds above 0")
    ours = _answering(environ, say)
    identity = identify(environ, job=options.job, attempt=options.attempt, node=options.node)
    name = Path(safe_name(identity.job)) / safe_name(identity.attempt)
    directory = (options.directory or Path("hangscope") / name).absolute()
    try:
        # A shared file system that hangs must not keep the training from starting either.
        claim = functools.partial(_claim, directory, identity)
        root, identity, folder = Patience(CLAIM_S, SILENT_CLAIM_S).ask(str(directory), claim)
    except (OSError, SettingsError, ValueError) as error:
        # A directory that cannot be written is no reason to keep the training from starting.
        elsewhere = _elsewhere(ours) / name
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        say(f"warning: {why}; what this node saves goes to {elsewhere} instead")
        root, identity, folder = _claim(elsewhere, identity)
    place = rank_sockets.make(ours)
    try:
        return _run(words, options, identity, root, folder, place, ours, environ, say, diagnose)
    finally:
        with contextlib.suppress(OSError):  # by now even this place may not answer, and the command has ended
            Patience(LOOK_S).ask(str(place), lambda: rank_sockets.remove(place))


def _temporary(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _TEMPORARY if name in environ}


def _answering(environ: Mapping[str, str], say: Callable[[str], None]) -> Mapping[str, str]:
    """The environment by which we choose places of our own: without directories for temporary files that do not answer.
    The command keeps what it was given."""
    left = dict(environ)
    patience = Patience(LOOK_S)  # one that does not answer is not waited for twice
    for name, path in _temporary(environ).items():
        try:
            patience.ask(path, functools.partial(os.access, path, os.W_OK))
        except (OSError, ValueError):
            say(f"warning: {name}={path}: its file system does not answer; what we need for a time goes elsewhere")
            del left[name]
            tempfile.tempdir = "/tmp"
    return left


def _elsewhere(environ: Mapping[str, str]) -> Path:
    """A directory of this user alone below TMPDIR. Where somebody has put something in its place, a new one."""
    base = Path(environ.get("TMPDIR") or "/tmp")
    top = base / f"hangscope-{os.getuid()}"
    try:
        make_private(top)
    except OSError:
        top = Path(tempfile.mkdtemp(prefix=f"hangscope-{os.getuid()}-", dir=base))
    return top / "incidents"


def _spare(environ: Mapping[str, str], name: str) -> Path:
    """A new directory for what the run's own takes no more, because it is full or has become read-only."""
    top = _elsewhere(environ)
    for number in range(1, 1000):
        place = top / (name if number == 1 else f"{name}.{number}")
        try:
            place.mkdir(parents=True)
            return place
        except FileExistsError:
            continue
    raise FileExistsError(f"{top}: no free name")


def _claim(directory: Path, identity: JobIdentity) -> tuple[Path, JobIdentity, Path]:
    if directory.is_symlink():
        directory = Path(os.path.realpath(directory))  # by the user's own word, and from here on by nobody else's
    root, identity = run_directory.claim(directory, identity)
    return root, identity, run_directory.claim_node(root, identity.node)


def _run(
    words: Sequence[str],
    options: RunOptions,
    identity: JobIdentity,
    root: Path,
    folder: Path,
    place: Path,
    ours: Mapping[str, str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
    diagnose: Callable[[Path], Verdict] | None,
) -> int:
    prepared = _settings(words, options, identity, folder, ours, say)
    node = NodeFacts(identity.node, identity.job, identity.attempt, time.time())
    if blackbox_library.FOLDER in prepared:
        node.boxes = Path(prepared[blackbox_library.FOLDER])
    agent = Agent(
        root=root,
        folder=folder,
        node=node,
        sockets=place,
        stall_after=options.stall_after,
        say=say,
        diagnose=diagnose,
        move_logs=lambda place: command.move_logs(place),
        on_hang=options.on_hang,
        max_incidents=options.max_incidents,
        spare=functools.partial(_spare, ours, root.name),
        metrics=_metrics(options, identity, say),
    )

    def heard(kind: str, text: str) -> None:
        if kind == "alarm":
            agent.alarm(text)

    command = Command(
        words,
        environ={**with_companion(prepared, sockets=place), "HANGSCOPE_DIR": str(root), **_temporary(environ)},
        logs=folder / "logs",
        rest="launcher.log" if (rank := linux_process.whole(environ.get("RANK", ""))) is None else f"rank_{rank}.log",
        events=heard,
    )
    agent.start(command.pid)
    command.handle_signals(agent.signalled)
    status = command.wait()
    drained = threading.Thread(target=command.drain, daemon=True)
    drained.start()
    drained.join(timeout=10)
    _finish(agent, command, status, root, say)
    drained.join(timeout=DRAIN_S)
    if command.problem:
        say(f"the copy of the output is not complete: {command.problem}")
    with contextlib.suppress(OSError):
        Patience(LOOK_S).ask("pipes", lambda: _remove_pipes(prepared, environ))
    if status == 0 and not options.keep and not agent.captured and command.over():
        with contextlib.suppress(OSError):
            Patience(TIDY_S).ask(f"tidy {root}", lambda: tidy.remove(root))
    return status


def _metrics(options: RunOptions, identity: JobIdentity, say: Callable[[str], None]) -> Metrics | None:
    if options.metrics_file is None and options.metrics_port is None:
        return None
    labels = {"job": identity.job, "attempt": identity.attempt, "node": identity.node}
    try:
        return Metrics(labels, file=options.metrics_file, port=options.metrics_port)
    except Refused as error:  # the file: a file system that hangs, or something that is none of ours
        say(f"warning: --metrics {options.metrics_file}: {error.strerror}; no metrics are written there")
        return _metrics(replace(options, metrics_file=None), identity, say)
    except OSError as error:  # another run of this node has the port: no reason to keep the training from starting
        say(f"warning: --metrics-port {options.metrics_port}: {error.strerror or error}; there are no metrics on it")
        return _metrics(replace(options, metrics_port=None), identity, say)


def _finish(agent: Agent, command: Command, status: int, root: Path, say: Callable[[str], None]) -> None:
    """Save what is left to save, for as long as that takes; not for ever, and not against a signal.

    The command has ended: whoever waits for it gets its status, whatever a shared file system or a neighbour does.
    """
    work = threading.Thread(target=agent.finish, args=(status,), name="finish", daemon=True)
    interrupted = command.end_on_signals()
    signalled = silent = False
    work.start()
    until = time.monotonic() + FINISH_S
    looked, patience = time.monotonic(), Patience(LOOK_S)
    while work.is_alive() and time.monotonic() < until:
        work.join(timeout=0.2)
        if not silent and time.monotonic() - looked > LOOK_S:
            silent, looked = not _answers(root, patience), time.monotonic()
            until = min(until, time.monotonic() + SILENT_S) if silent else until
        if interrupted.is_set():
            until = min(until, time.monotonic() + AFTER_SIGNAL_S)
            interrupted.clear()
            signalled = True
    if work.is_alive():
        why = "a signal came" if signalled else f"not done within {FINISH_S:g} s"
        why = f"the file system of {root} does not answer" if silent and not signalled else why
        say(f"the last part of the capture is left behind: {why}")


def _answers(root: Path, patience: Patience) -> bool:
    """Whether a file system answers: what it has room for is nothing that this machine remembers."""
    try:
        patience.ask(str(root), functools.partial(os.statvfs, root))
    except Refused:
        return False
    except OSError:
        return True
    return True


def _remove_pipes(prepared: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Dump pipes and black boxes lie on the node's own disk or in its memory, in folders made for this run."""
    for name in (*PIPE_NAMES, blackbox_library.FOLDER):
        if name in prepared and name not in environ:
            folder = folder_for(name, prepared[name])
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()


def _settings(
    words: Sequence[str],
    options: RunOptions,
    identity: JobIdentity,
    folder: Path,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, str]:
    """The command's environment with the recorder's variables in it, and their directories made."""
    python = interpreter_of(words, environ=environ)
    torch = torch_of(python, environ=environ) if python is not None else None
    try:
        made = settings.plan(
            torch_version=torch.version if torch is not None else None,
            backend="gloo" if torch is not None and torch.backends == ("gloo",) else None,
            directory=folder,
            job=identity.job,
            attempt=identity.attempt,
            host=folder.name,
            environ=environ,
            world_size=linux_process.whole(environ.get("WORLD_SIZE", "")),
            fix=options.fix,
            entries=options.entries or DEFAULT_ENTRIES,
            own_directory=True,
            plugin=blackbox_library.library(release_of(torch.nccl) if torch is not None else None),
            one_node=blackbox_library.one_node(words, environ),
        )
        made = settings.prepare(made)
    except (OSError, SettingsError) as error:
        say(f"the recorder's settings are left as they are: {getattr(error, 'strerror', None) or error}")
        return dict(environ)
    for problem in made.warnings:
        if problem.severity in (FATAL, LOSES_DUMPS) and not problem.fixed:
            say(f"warning: {problem}; {problem.cure}")
    variables = dict(made.variables)
    if made.families == {"gloo"}:
        # Gloo reads the new name; the old one would only make every rank print that it is deprecated (2.8 and newer).
        variables.pop("TORCH_NCCL_TRACE_BUFFER_SIZE", None)
    return {**environ, **variables}
