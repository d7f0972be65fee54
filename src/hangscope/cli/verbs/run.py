"""`hangscope run`: the recorder in front of a launch command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from hangscope.cli import config_file
from hangscope.cli.size_options import DURATION
from hangscope.push.server_client import ServerClient
from hangscope.push.spool import default_spool
from hangscope.recorder.agent.node_agent import MAX_INCIDENTS, AgentOptions
from hangscope.recorder.agent.on_hang import EXIT_STATUS, GRACE_S, KILL_AFTER_S, OnHang
from hangscope.recorder.launch.push_to_server import ServerOptions
from hangscope.recorder.launch.run_job import RunOptions, run
from hangscope.report.safe_text import safe


def say(text: str) -> None:
    """A line of our own on stderr, where the job's own lines go too: each one says who speaks."""
    for line in text.splitlines() or [""]:
        print(f"hangscope: {safe(line)}".rstrip(), file=sys.stderr, flush=True)


def _configured(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """What the file says becomes the options' default: the environment and the options themselves win over it."""
    ctx.default_map = config_file.load(value, Path.cwd(), say)
    return value


def _directory(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """HANGSCOPE_DIR is also what a run tells its own job: one that runs inside another has its own directory."""
    from_environ = ctx.get_parameter_source("directory") == click.core.ParameterSource.ENVIRONMENT
    return None if from_environ and "HANGSCOPE_SOCKETS" in os.environ else value


def _env(name: str) -> dict[str, Any]:
    return {"envvar": f"HANGSCOPE_{name}", "show_envvar": True}


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_configured,
    help="Settings in TOML.  [default: ~/.config/hangscope/hangscope.toml, then ./hangscope.toml, else [tool.hangscope]"
    " in ./pyproject.toml]",
    **_env("CONFIG"),
)
@click.option(
    "--dir",
    "directory",
    type=Path,  # click.Path would look at it, and a file system that hangs would keep the training from starting
    metavar="PATH",
    callback=_directory,
    help="The incident's directory; shared by all nodes if possible.  [default: ./hangscope/JOB/ATTEMPT]",
    **_env("DIR"),
)
@click.option("--job", help="The job's name.  [default: from Slurm, torchelastic or Kubernetes]")
@click.option("--attempt", help="Which attempt of the job this is.  [default: from the scheduler, else 0]")
@click.option("--node", help="This node's name.  [default: the host name]")
@click.option(
    "--stall-after",
    type=DURATION,
    metavar="TIME",
    help="An operation unfinished for longer counts as a stall.  [default: 30, or 5 × the slowest so far if longer]",
    **_env("STALL_AFTER"),
)
@click.option(
    "--look-every",
    type=DURATION,
    metavar="TIME",
    help="How often the ranks' recordings are compared while the job runs.  [default: after 10 s, 2 min, then ever "
    "more seldom, at least every 15 min]",
    **_env("LOOK_EVERY"),
)
@click.option(
    "--on-hang",
    multiple=True,
    metavar="report|kill|slack:FILE|webhook:FILE|wandb|CMD",
    help="What to do once the evidence is saved: kill ends the ranks, so the launcher can restart; slack and webhook "
    "post to the address in FILE (or env:NAME); wandb alerts through the job's own W&B run; a shell command gets the "
    "verdict as JSON on stdin. May be given more than once.  [default: report]  [env var: HANGSCOPE_ON_HANG]",
)
@click.option(
    "--kill-after",
    type=DURATION,
    metavar="TIME",
    help="For --on-hang kill: how long the job must have been stalled, and longer than its slowest pause; twice "
    f"as long where the verdict is uncertain.  [default: {KILL_AFTER_S / 60:g}m]",
    **_env("KILL_AFTER"),
)
@click.option(
    "--kill-working",
    is_flag=True,
    help="For --on-hang kill: even while the rank that the others wait for is seen working (a save, an evaluation; "
    "hangscope.expect_pause() in the code announces those).",
    **_env("KILL_WORKING"),
)
@click.option(
    "--grace",
    type=DURATION,
    metavar="TIME",
    help=f"For --on-hang kill: from SIGTERM to SIGKILL.  [default: {GRACE_S:g}]",
    **_env("GRACE"),
)
@click.option(
    "--exit-on-hang",
    type=click.IntRange(1, 125),
    metavar="CODE",
    help="Exit status where a hang was the end of the job, for schedulers to act on. "
    f" [default: {EXIT_STATUS} with --on-hang kill, else the command's own]",
    **_env("EXIT_ON_HANG"),
)
@click.option(
    "--max-incidents",
    type=click.IntRange(min=1),
    default=MAX_INCIDENTS,
    show_default=True,
    help="Maximum hangs saved per run.",
    **_env("MAX_INCIDENTS"),
)
@click.option(
    "--entries",
    type=click.IntRange(min=1),
    help="Size of the flight recorder, in operations.  [default: 2000]",
    **_env("ENTRIES"),
)
@click.option("--fix", is_flag=True, help="Also fix your settings where they would lose evidence.", **_env("FIX"))
@click.option(
    "--timing",
    is_flag=True,
    help="Record when each operation starts on the GPU, too: 23 µs an operation (docs/overhead.md).",
    **_env("TIMING"),
)
@click.option(
    "--gpu-core/--no-gpu-core",
    default=None,
    help="Start the job so that its GPUs can be asked which kernels they run: --on-hang kill does so before it ends "
    "the ranks, and `snapshot --gpu` on request. It ends their CUDA contexts.  [default: no]",
    **_env("GPU_CORE"),
)
@click.option("--no-diagnose", is_flag=True, help="Save the evidence only.", **_env("NO_DIAGNOSE"))
@click.option("--keep", is_flag=True, help="Keep the directory even of a run without problems.", **_env("KEEP"))
@click.option(
    "--term-grace",
    type=DURATION,
    metavar="TIME",
    help="How long the scheduler waits from SIGTERM to SIGKILL: half of it may pass before SIGTERM is handed on to a "
    "job that stands still, to save why; 0 hands it on at once.  [default: Slurm's KillWait, else 30]",
    **_env("TERM_GRACE"),
)
@click.option(
    "--metrics",
    "metrics_file",
    type=Path,
    metavar="FILE|DIR",
    help="Write Prometheus metrics for node_exporter's textfile collector.",
    **_env("METRICS"),
)
@click.option(
    "--metrics-port",
    metavar="[ADDRESS:]PORT",
    help="Serve Prometheus metrics on this port.",
    **_env("METRICS_PORT"),
)
@click.option(
    "--server",
    metavar="URL",
    help="Send the job's roster, its end and every incident, redacted, to a `hangscope serve`. A server that does not "
    "answer delays nothing: it waits on disk and goes out later.",
    **_env("SERVER"),
)
@click.option(
    "--token-file",
    type=Path,
    metavar="FILE",
    help="For --server: holds the token, which may also be in HANGSCOPE_TOKEN.",
    **_env("TOKEN_FILE"),
)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(
    directory: Path | None,
    job: str | None,
    attempt: str | None,
    node: str | None,
    stall_after: float | None,
    look_every: float | None,
    on_hang: tuple[str, ...],
    kill_after: float | None,
    kill_working: bool,
    grace: float | None,
    exit_on_hang: int | None,
    max_incidents: int,
    entries: int | None,
    fix: bool,
    timing: bool,
    gpu_core: bool | None,
    no_diagnose: bool,
    keep: bool,
    term_grace: float | None,
    metrics_file: Path | None,
    metrics_port: str | None,
    server: str | None,
    token_file: Path | None,
    words: tuple[str, ...],
) -> int:
    """Run a training command with the flight recorder on; capture and diagnose when it hangs.

    Put it in front of the launch command, once a node: hangscope run -- torchrun --nproc-per-node 8 train.py.
    Nothing in the training code changes, output and exit status are the command's own, and should hangscope itself be
    killed, the training goes on.

    \b
    End a hung job after saving why, and tell a channel, so that torchrun restarts it:
      hangscope run --on-hang kill --on-hang slack:~/.config/slack-hook -- \\
        torchrun --max-restarts 3 --nproc-per-node 8 train.py
    """
    options = RunOptions(
        directory=directory,
        job=job,
        attempt=attempt,
        node=node,
        entries=entries,
        fix=fix,
        timing=timing,
        gpu_core=gpu_core,
        keep=keep,
        term_grace=term_grace,
        metrics_file=metrics_file,
        metrics_port=metrics_port,
        server=_server(server, token_file),
        agent=AgentOptions(
            stall_after,
            OnHang.of(_given(on_hang), grace, kill_after, kill_working=kill_working, exit_status=exit_on_hang),
            max_incidents,
            diagnose=not no_diagnose,
            look_every=look_every,
        ),
    )
    return run(words, options, environ=os.environ, say=say)


def _server(url: str | None, token_file: Path | None) -> ServerOptions | None:
    if not url:
        return None
    ServerClient(url, "")  # a slip in the address is found now, not at the hang
    spool = os.environ.get("HANGSCOPE_SPOOL")
    return ServerOptions(url, Path(spool) if spool else default_spool(os.environ), token_file)


def _given(on_hang: tuple[str, ...]) -> tuple[str, ...]:
    """The option, else the environment (one command, blanks and all: click would cut it), else the file."""
    source = click.get_current_context().get_parameter_source("on_hang")
    given = os.environ.get("HANGSCOPE_ON_HANG")
    return (given,) if given and source != click.core.ParameterSource.COMMANDLINE else on_hang
