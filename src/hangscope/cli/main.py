"""`main(argv) -> int`: finds the verb, runs it, and turns errors into ``error:`` and ``hint:`` lines.

A verb's module is imported when the verb is used, so that `hangscope --help` is quick and a verb that cannot be loaded
leaves the others alone.

Exit status: what the verb returns; 2 for input or options that cannot be used (an error may carry another one);
70 for a mistake of hangscope itself, because 1 and 3 are answers of `diagnose`; 129, 130, 141 and 143 as a shell gives
them for a terminal that went, an interrupt, a closed pipe and SIGTERM.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from types import FrameType

import click

from hangscope.__about__ import __version__
from hangscope.cli.built_in import BUILT_IN
from hangscope.cli.hung_filesystem import watch_for_hung_calls
from hangscope.cli.list_jobs import list_jobs
from hangscope.cli.output import ReaderGone, complain, finish
from hangscope.errors import HangscopeError, SeveralJobsError

GROUPS = {
    "When it hangs": {
        "run": "Run a training command with the flight recorder on; capture and diagnose when it hangs.",
        "snapshot": "Capture a running job now.",
        "attach": "Watch a running job from now on, as under `run`.",
        "diagnose": "Name the rank, node, operation, code line and link that hung a job.",
    },
    "Look": {
        "watch": "Show live which ranks wait for which others.",
        "stacks": "Show all ranks' stacks merged into one tree, the odd ones marked.",
        "show": "List the recorded operations, filtered by rank, group or state.",
        "ls": "List the incidents here.",
    },
    "Hand over": {
        "report": "Write the diagnosis to files: a web page, a Perfetto trace, JSON, text or a ticket.",
        "bundle": "Pack an incident into one file for a support ticket.",
        "collect": "Gather every node's evidence into one incident.",
        "prune": "Delete incidents that are older than a time.",
        "mcp": "Answer an assistant's questions about hangs, read-only.",
    },
    "Fleet": {
        "serve": "Keep the incidents of all jobs in one place, with pages, an API and suspects.",
        "push": "Send incidents to a `hangscope serve`.",
        "exclude": "Print the nodes to avoid in the next start, where the cause is the node.",
        "agent": "Watch all PyTorch jobs of a node, from outside.",
        "node": "Say on a `hangscope serve` that a node was repaired, or is not to be suspected.",
        "node-check": "Say by exit status whether a `hangscope serve` suspects this node.",
        "probe": "Say whether an inference server moves, for exec probes.",
    },
    "Set up": {
        "doctor": "Check what would happen here if a collective hung now, and how to fix it.",
        "env": "Print the flight recorder settings, to set them yourself.",
        "demo": "Start a real small job that hangs, and follow it from launch to verdict.",
        "simulate": "Write dumps of a synthetic job of any size, layout, fault and format.",
    },
}
"""Every verb with its line in `hangscope --help`, by what somebody came for."""
VERBS = {verb: line for group in GROUPS.values() for verb, line in group.items()}
FIRST = """\
hangscope names the rank, node, operation, code line and link that hung a distributed training job.

A job hangs now, however it was started (PID: a rank's or its launcher's):
  hangscope snapshot PID
You have dumps, logs or an incident of one that hung:
  hangscope diagnose PATH
The next one (captured and diagnosed by itself; no change to the code):
  hangscope run -- torchrun train.py

`hangscope --help` lists all verbs, `hangscope help VERB` says what one takes.
"""
"""What `hangscope` alone says: the three things to do first."""

INTERNAL_ERROR = 70
INTERRUPTED = 130
PIPE_CLOSED = 141
_OBJECTS = 100_000
"""New objects between two searches for garbage."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Verbs(click.Group):
    """The group of all verbs, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return [verb for verb in VERBS if find_spec(f"hangscope.cli.verbs.{verb.replace('-', '_')}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in BUILT_IN:
            return BUILT_IN[cmd_name]
        verbs = self.list_commands(ctx)
        if cmd_name not in verbs:
            close = get_close_matches(cmd_name, verbs, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"unknown command {cmd_name!r}{meant}", ctx)
        command = import_module(f"hangscope.cli.verbs.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        there = self.list_commands(ctx)
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb, line) for verb, line in group.items() if verb in there])


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    epilog="`hangscope help COMMAND` says what a command takes; `hangscope completion bash|zsh|fish` completes them.",
)
@click.version_option(__version__, prog_name="hangscope", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Name the rank, node, operation, code line and link that hung a distributed training job."""
    if ctx.invoked_subcommand is None:
        click.echo(FIRST, nl=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit status; never raises for a user's mistake."""
    verb = next(iter(sys.argv[1:] if argv is None else argv), "")
    # What `run` asks of a file system it asks with patience, and its own end is its command's.
    with _prepared(), nullcontext() if verb in ("run", "attach", "agent") else watch_for_hung_calls():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    try:
        result = cli.main(args=None if argv is None else list(argv), prog_name="hangscope", standalone_mode=False)
        finish()
        return result if isinstance(result, int) else 0
    except SeveralJobsError as error:
        list_jobs(error)
        return error.exit_status
    except HangscopeError as error:
        complain(str(error), error.hint)
        return error.exit_status
    except click.ClickException as error:
        complain(_usage_message(error), _usage_hint(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    except Terminated as ended:
        return 128 + int(ended.args[0])
    except (BrokenPipeError, ReaderGone):
        return _reader_gone()
    except OSError as error:
        # Ours to say in words: a full disk, a directory that may not be written, a path that is too long.
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 2
    except Exception:
        traceback.print_exc()
        complain("this is a bug in hangscope, not a problem with your input", "please report it, with the lines above")
        return INTERNAL_ERROR


def _reader_gone() -> int:
    """The reader of our output (`| head`) has gone: whatever Python flushes at exit must not complain again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


class Terminated(BaseException):
    """SIGTERM, or SIGHUP where a terminal went: what was half done is cleared away before the end."""


@contextmanager
def _prepared() -> Iterator[None]:
    """What is written to standard streams that are closed is lost without an error. SIGTERM and SIGHUP end us in order,
    unless somebody said otherwise before (`nohup`)."""
    # Evidence is read and kept: looking for garbage in it at Python's usual pace takes as long as the reading.
    gc.set_threshold(_OBJECTS, 20, 100)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for as long as the program runs
    in_main_thread = threading.current_thread() is threading.main_thread()
    ending = [number for number in _ENDING if in_main_thread and signal.getsignal(number) == signal.SIG_DFL]
    for number in ending:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as signals call it
    raise Terminated(number)


def _usage_message(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        close = get_close_matches(error.option_name, _options(error.ctx), n=1)
        return f"no such option {error.option_name}" + (f"; did you mean {close[0]}?" if close else "")
    return error.format_message()


def _options(ctx: click.Context | None) -> list[str]:
    return [name for param in ctx.command.params for name in param.opts] if ctx is not None else []


def _usage_hint(error: click.ClickException) -> str | None:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"`{error.ctx.command_path} --help` lists its options"
    return None
