"""`hangscope run`: the recorder in front of a launch command."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import click

from hangscope.cli.size_options import DURATION
from hangscope.cli.watching_options import chosen, from_environ, say, watching_options
from hangscope.recorder.launch.run_job import AUTO, LOOKS, RunOptions, run
from hangscope.recorder.setup.platform_settings import without_platform


@click.command(context_settings={"allow_interspersed_args": False})
@watching_options
@click.option(
    "--entries",
    type=click.IntRange(min=1),
    help="Size of the flight recorder, in operations.  [default: 2000]",
    **from_environ("ENTRIES"),
)
@click.option(
    "--fix", is_flag=True, help="Also fix your settings where they would lose evidence.", **from_environ("FIX")
)
@click.option(
    "--timing",
    is_flag=True,
    help="Record when each operation starts on the GPU, too: 23 µs an operation (docs/overhead.md).",
    **from_environ("TIMING"),
)
@click.option(
    "--gpu-core/--no-gpu-core",
    default=None,
    help="Start the job so that its GPUs can be asked which kernels they run: --on-hang kill does so before it ends "
    "the ranks, and `snapshot --gpu` on request. It ends their CUDA contexts.  [default: no]",
    **from_environ("GPU_CORE"),
)
@click.option(
    "--look",
    type=click.Choice(LOOKS),
    default=AUTO,
    show_default=True,
    help="How the ranks are looked at: outside reads their memory, so that no thread, server or socket of ours is in a "
    "rank (torch 2.11 and newer); inside asks a companion; auto: outside, where nothing is missed by it.",
    **from_environ("LOOK"),
)
@click.option(
    "--term-grace",
    type=DURATION,
    metavar="TIME",
    help="How long the scheduler waits from SIGTERM to SIGKILL: half of it may pass before SIGTERM is handed on to a "
    "job that stands still, to save why; 0 hands it on at once.  [default: Slurm's KillWait, else 30]",
    **from_environ("TERM_GRACE"),
)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(
    entries: int | None,
    fix: bool,
    timing: bool,
    gpu_core: bool | None,
    look: str,
    term_grace: float | None,
    words: tuple[str, ...],
    **given: Any,
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
    watching = chosen(given)
    options = RunOptions(
        **{each.name: getattr(watching, each.name) for each in fields(watching)},
        entries=entries,
        fix=fix,
        timing=timing,
        gpu_core=gpu_core,
        look=look,
        term_grace=term_grace,
    )
    return run(words, options, environ=without_platform(os.environ), say=say)
