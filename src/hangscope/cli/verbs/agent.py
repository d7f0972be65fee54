"""`hangscope agent`: all PyTorch jobs of a node, watched."""

from __future__ import annotations

import os
import pwd
import signal
import tempfile
from pathlib import Path
from types import FrameType

import click

from hangscope.cli.size_options import DURATION
from hangscope.cli.watching_options import say
from hangscope.errors import SettingsError
from hangscope.recorder.launch.watch_node import NodeWatch, NodeWatchOptions
from hangscope.safeio.safe_files import remove_tree


@click.command()
@click.option(
    "--dir",
    "directory",
    type=Path,
    metavar="PATH",
    help="Keep the incidents below PATH/USER/JOB, each user's readable for that user alone.  [default: ./hangscope in"
    " the working directory of each job]",
)
@click.option(
    "--user", "users", multiple=True, metavar="NAME", help="Only this user's jobs; may be given more than once."
)
@click.option("--stall-after", type=DURATION, metavar="TIME", help="As in `run`.  [default: 30, or 5 × the slowest]")
@click.option(
    "--on-hang", multiple=True, metavar="ACTION", help="As in `run`, for every job; commands run as the job's owner."
)
@click.option("--kill-after", type=DURATION, metavar="TIME", help="As in `run`.")
@click.option("--max-incidents", type=click.IntRange(min=1), metavar="N", help="As in `run`, for each job.")
@click.option("--no-diagnose", is_flag=True, help="Save the evidence only.")
@click.option("--metrics-port", metavar="[ADDRESS:]PORT", help="Serve Prometheus metrics of all jobs on this port.")
def command(
    directory: Path | None,
    users: tuple[str, ...],
    stall_after: float | None,
    on_hang: tuple[str, ...],
    kill_after: float | None,
    max_incidents: int | None,
    no_diagnose: bool,
    metrics_port: str | None,
) -> int:
    """Watch all PyTorch jobs of this node, from outside, for as long as it runs.

    One process a node, started by systemd or as a DaemonSet. It finds the jobs by their processes, whoever started them
    and however, and has each watched as by `attach`: with the rights of the job's owner, into the owner's folder.
    Nothing is put into any job, and no launch command changes. As root it watches all users' jobs; else those of its
    own user.
    """
    words: list[str] = ["--no-diagnose"] if no_diagnose else []
    for name, value in (
        ("--stall-after", stall_after),
        ("--kill-after", kill_after),
        ("--max-incidents", max_incidents),
    ):
        words += [name, str(value)] if value is not None else []
    for action in on_hang:
        words += ["--on-hang", action]
    place = Path(tempfile.mkdtemp(prefix="hangscope-agent-")) if metrics_port is not None else None
    if place is not None:
        os.chmod(place, 0o711)
    options = NodeWatchOptions(
        tuple(words),
        directory.absolute() if directory is not None else None,
        metrics_port,
        place,
        tuple(map(_number, users)),
    )
    watch = NodeWatch(options, say)

    def stop(_: int, __: FrameType | None) -> None:
        watch.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        watch.watch()
    finally:
        if place is not None:
            remove_tree(place)
    return 0


def _number(user: str) -> int:
    """A user's number, by name or as it is."""
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise SettingsError(f"--user {user}: there is no such user here") from None
