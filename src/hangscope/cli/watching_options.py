"""The options of every verb that watches a job: where its evidence goes, what counts as a stall, what is done then.

A verb takes them with `watching_options` and gets them back as one value from `chosen`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from hangscope.cli import config_file
from hangscope.cli.size_options import DURATION
from hangscope.push.server_client import ServerClient
from hangscope.push.spool import default_spool
from hangscope.recorder.agent.node_agent import MAX_INCIDENTS, AgentOptions
from hangscope.recorder.agent.on_hang import EXIT_STATUS, GRACE_S, KILL_AFTER_S, OnHang
from hangscope.recorder.launch.push_to_server import ServerOptions
from hangscope.report.safe_text import safe

Verb = TypeVar("Verb", bound=Callable[..., Any])


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


def from_environ(name: str) -> dict[str, Any]:
    """An option that HANGSCOPE_<name> sets, too."""
    return {"envvar": f"HANGSCOPE_{name}", "show_envvar": True}


_OPTIONS = (
    click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_configured,
        help="Settings in TOML.  [default: ~/.config/hangscope/hangscope.toml, then ./hangscope.toml, else "
        "[tool.hangscope] in ./pyproject.toml]",
        **from_environ("CONFIG"),
    ),
    click.option(
        "--dir",
        "directory",
        type=Path,  # click.Path would look at it, and a file system that hangs would keep the training from starting
        metavar="PATH",
        callback=_directory,
        help="The incident's directory; shared by all nodes if possible.  [default: ./hangscope/JOB/ATTEMPT]",
        **from_environ("DIR"),
    ),
    click.option("--job", help="The job's name.  [default: from Slurm, torchelastic or Kubernetes]"),
    click.option("--attempt", help="Which attempt of the job this is.  [default: from the scheduler, else 0]"),
    click.option("--node", help="This node's name.  [default: the host name]"),
    click.option(
        "--stall-after",
        type=DURATION,
        metavar="TIME",
        help="An operation unfinished for longer counts as a stall.  [default: 30, or 5 × the slowest so far if "
        "longer]",
        **from_environ("STALL_AFTER"),
    ),
    click.option(
        "--look-every",
        type=DURATION,
        metavar="TIME",
        help="How often the ranks' recordings are compared while the job runs.  [default: after 10 s, 2 min, then ever "
        "more seldom, at least every 15 min]",
        **from_environ("LOOK_EVERY"),
    ),
    click.option(
        "--on-hang",
        multiple=True,
        metavar="report|kill|slack:FILE|webhook:FILE|wandb|kubeflow|otel|CMD",
        help="What to do once the evidence is saved: kill ends the ranks, so the launcher can restart; slack and "
        "webhook post to the address in FILE (or env:NAME); wandb alerts through the job's own W&B run; kubeflow "
        "puts the verdict into the TrainJob's status; otel sends an OpenTelemetry event; a shell "
        "command gets the verdict as JSON on stdin. May be given more than once.  [default: report]  [env var: "
        "HANGSCOPE_ON_HANG]",
    ),
    click.option(
        "--kill-after",
        type=DURATION,
        metavar="TIME",
        help="For --on-hang kill: how long the job must have been stalled, and longer than its slowest pause; twice "
        f"as long where the verdict is uncertain.  [default: {KILL_AFTER_S / 60:g}m]",
        **from_environ("KILL_AFTER"),
    ),
    click.option(
        "--kill-working/--kill-idle-only",
        default=False,
        help="For --on-hang kill: even while the rank that the others wait for is seen working (a save, an upload) or "
        "polling (not known), or only where it does neither.  [default: --kill-idle-only]",
        **from_environ("KILL_WORKING"),
    ),
    click.option(
        "--grace",
        type=DURATION,
        metavar="TIME",
        help=f"For --on-hang kill: from SIGTERM to SIGKILL.  [default: {GRACE_S:g}]",
        **from_environ("GRACE"),
    ),
    click.option(
        "--exit-on-hang",
        type=click.IntRange(1, 125),
        metavar="CODE",
        help="Exit status where a hang was the end of the job, for schedulers to act on. "
        f" [default: {EXIT_STATUS} with --on-hang kill, else the command's own]",
        **from_environ("EXIT_ON_HANG"),
    ),
    click.option(
        "--max-incidents",
        type=click.IntRange(min=1),
        default=MAX_INCIDENTS,
        show_default=True,
        help="Maximum hangs saved per run.",
        **from_environ("MAX_INCIDENTS"),
    ),
    click.option("--no-diagnose", is_flag=True, help="Save the evidence only.", **from_environ("NO_DIAGNOSE")),
    click.option(
        "--keep", is_flag=True, help="Keep the directory even of a run without problems.", **from_environ("KEEP")
    ),
    click.option(
        "--metrics",
        "metrics_file",
        type=Path,
        metavar="FILE|DIR",
        help="Write Prometheus metrics for node_exporter's textfile collector.",
        **from_environ("METRICS"),
    ),
    click.option(
        "--metrics-port",
        metavar="[ADDRESS:]PORT",
        help="Serve Prometheus metrics on this port.",
        **from_environ("METRICS_PORT"),
    ),
    click.option(
        "--server",
        metavar="URL",
        help="Send the job's roster, its end and every incident, redacted, to a `hangscope serve`. A server that does "
        "not answer delays nothing: it waits on disk and goes out later.",
        **from_environ("SERVER"),
    ),
    click.option(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="For --server: holds the token, which may also be in HANGSCOPE_TOKEN.",
        **from_environ("TOKEN_FILE"),
    ),
)


def watching_options(verb: Verb) -> Verb:
    """Give a verb these options."""
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


@dataclass(frozen=True, slots=True)
class Watching:
    """What was chosen, for `RunOptions` and `AttachOptions` alike."""

    directory: Path | None
    job: str | None
    attempt: str | None
    node: str | None
    keep: bool
    metrics_file: Path | None
    metrics_port: str | None
    server: ServerOptions | None
    agent: AgentOptions


def chosen(given: Mapping[str, Any]) -> Watching:
    """The options as click gives them to the verb."""
    on_hang = OnHang.of(
        _on_hang(given["on_hang"]),
        given["grace"],
        given["kill_after"],
        kill_working=given["kill_working"],
        exit_status=given["exit_on_hang"],
    )
    return Watching(
        directory=given["directory"],
        job=given["job"],
        attempt=given["attempt"],
        node=given["node"],
        keep=given["keep"],
        metrics_file=given["metrics_file"],
        metrics_port=given["metrics_port"],
        server=_server(given["server"], given["token_file"]),
        agent=AgentOptions(
            given["stall_after"],
            on_hang,
            given["max_incidents"],
            diagnose=not given["no_diagnose"],
            look_every=given["look_every"],
        ),
    )


def _server(url: str | None, token_file: Path | None) -> ServerOptions | None:
    if not url:
        return None
    ServerClient(url, "")  # a slip in the address is found now, not at the hang
    spool = os.environ.get("HANGSCOPE_SPOOL")
    return ServerOptions(url, Path(spool) if spool else default_spool(os.environ), token_file)


def _on_hang(on_hang: tuple[str, ...]) -> tuple[str, ...]:
    """The option, else the environment (one command, blanks and all: click would cut it), else the file."""
    source = click.get_current_context().get_parameter_source("on_hang")
    given = os.environ.get("HANGSCOPE_ON_HANG")
    return (given,) if given and source != click.core.ParameterSource.COMMANDLINE else on_hang
