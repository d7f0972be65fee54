"""`hangscope stacks PATH…|PID|DIR`: all ranks' stacks as one tree."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hangscope.cli.given_paths import load_given, one_resolved
from hangscope.cli.output import note, table_width, write, write_lines
from hangscope.cli.progress_bar import bar
from hangscope.errors import NotFoundError

_WIDEST = 160


@click.command()
@click.argument("targets", metavar="PATH...|PID|DIR", nargs=-1, required=True, type=click.Path())
@click.option("--threads", "all_threads", is_flag=True, help="Every thread, and those of processes that ranks started.")
@click.option("--all-frames", is_flag=True, help="Fold no run of library frames.")
@click.option("--json", "as_json", is_flag=True, help="Print the tree as JSON (schema hangscope.stacks/1).")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where a capture of a PID is kept.")
@click.option("--saved", is_flag=True, help="Only read what was saved, also of a run that is still going.")
@click.option("--width", "asked_width", type=click.IntRange(min=40), help="Columns to use; else the terminal's.")
def command(
    targets: tuple[str, ...],
    all_threads: bool,
    all_frames: bool,
    as_json: bool,
    directory: Path | None,
    saved: bool,
    asked_width: int | None,
) -> int:
    """Show all ranks' stacks merged into one tree, the odd ones marked.

    PATH is an incident, a bundle, or any folder with stacks of py-spy or faulthandler. A PID (a rank or its launcher)
    and the directory of a run that is going are captured now, as `hangscope snapshot` does. Ranks that are at the same
    place share a branch.

    \b
    Examples:
      hangscope stacks hangs/48121/hang-1
      hangscope stacks 81233 --threads
    """
    from hangscope.report.actor_stacks import actor_stacks
    from hangscope.report.stack_lines import Look, stack_lines
    from hangscope.report.stack_tree import stack_tree, to_values

    paths = [_captured(target, directory, saved=saved) for target in targets]
    with bar(f"reading {', '.join(map(str, paths))}") as update:
        job = load_given(paths, progress=update)
        tree = stack_tree(job, all_threads=all_threads)
    if job.facts.ray is not None and not as_json:
        write("".join(f"{line}\n" for line in actor_stacks(job.facts.ray, all_threads=all_threads)))
        return 0
    if not tree.ranks:
        raise NotFoundError(
            f"no stack of any rank in {', '.join(map(str, paths))}",
            hint="`hangscope snapshot` takes them of a job that runs; files of py-spy need the rank in their name",
        )
    if as_json:
        write(json.dumps(to_values(tree), indent=1) + "\n")
    else:
        write_lines(stack_lines(tree, Look(min(table_width(asked_width), _WIDEST), all_frames)))
    return 0


def _captured(target: str, directory: Path | None, *, saved: bool) -> Path:
    """What there is to read: the path itself, or a capture that was taken now of what runs."""
    path = one_resolved(Path(target))
    if target.isascii() and target.isdigit() and not path.exists():
        from hangscope.recorder.capture import snapshot_job

        incident = snapshot_job.of_process(int(target), directory, note)
    elif not saved and path.is_dir() and _is_live(path):
        from hangscope.recorder.capture import snapshot_job

        incident = snapshot_job.of_run(Path(os.path.realpath(path)), note)
    else:
        return path
    note(f"captured now: {incident}")
    return incident


def _is_live(path: Path) -> bool:
    from hangscope.recorder.capture import snapshot_job

    return snapshot_job.is_live(Path(os.path.realpath(path)))
