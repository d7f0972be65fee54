"""`hangscope probe`: is this inference server moving? For exec probes and load balancers."""

from __future__ import annotations

import os

import click

from hangscope.cli.output import write
from hangscope.recorder.probe.ask_server import Question, probe
from hangscope.recorder.probe.server_metrics import DEFAULTS, Counters
from hangscope.recorder.probe.server_state import Says
from hangscope.report.safe_text import safe

_WORDS = {Says.MOVES: "ok", Says.STUCK: "stuck", Says.CANNOT_TELL: "cannot tell"}


@click.command()
@click.argument("url", default="http://localhost:8000/metrics")
@click.option(
    "--stall-after",
    type=click.FloatRange(1, 1e6),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Requests running and no new token for so long is stuck; four times that while one waits for its first token.",
)
@click.option(
    "--timeout", type=click.FloatRange(0.1, 60), default=3.0, show_default=True, help="Seconds for the server's answer."
)
@click.option(
    "--running", multiple=True, metavar="METRIC", help="Gauge of running requests.  [default: vLLM's, SGLang's]"
)
@click.option(
    "--progress", multiple=True, metavar="METRIC", help="Counter that grows while anything moves; repeatable."
)
@click.option("--lenient", is_flag=True, help="Exit 0 where it cannot tell: for a liveness probe.")
def command(
    url: str, stall_after: float, timeout: float, running: tuple[str, ...], progress: tuple[str, ...], lenient: bool
) -> int:
    """Say whether an inference server moves, by the metrics of vLLM or SGLang.

    Call it a few times within --stall-after: each call compares with the one before. One line says why.

    Exit status: 0 it moves or is idle, 1 it is stuck, 2 it cannot tell.

    Example: hangscope probe http://localhost:8000/metrics --stall-after 120
    """
    counters = Counters(
        running=running or DEFAULTS.running,
        waiting=DEFAULTS.waiting,
        progress=progress or DEFAULTS.progress,
        first_tokens=DEFAULTS.first_tokens,
        finished=DEFAULTS.finished,
    )
    found = probe(Question(url, stall_after, timeout, counters), os.environ)
    write(f"{_WORDS[found.says]}: {safe(found.why)}\n")
    return 0 if lenient and found.says is Says.CANNOT_TELL else int(found.says)
