"""The command's environment: the recorder's variables for the torch that it will import, and their directories."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.processes import linux_process
from hangscope.recorder.rundir.job_identity import JobIdentity
from hangscope.recorder.setup import blackbox_library, settings
from hangscope.recorder.setup.default_settings import PIPE_NAMES
from hangscope.recorder.setup.setting_problems import FATAL, LOSES_DUMPS, folder_for
from hangscope.recorder.setup.settings import SettingsPlan
from hangscope.recorder.setup.torch_version import interpreter_of, release_of, torch_of
from hangscope.recorder.setup.variables import DEFAULT_ENTRIES


def with_recorder(
    words: Sequence[str],
    identity: JobIdentity,
    folder: Path,
    environ: Mapping[str, str],
    *,
    entries: int | None,
    fix: bool,
    timing: bool,
    say: Callable[[str], None],
) -> dict[str, str]:
    """`environ` with the recorder's variables in it, and their directories made below this node's `folder`."""
    try:
        plan = settings.prepare(_plan(words, identity, folder, environ, entries=entries, fix=fix, timing=timing))
    except (OSError, SettingsError) as error:
        say(f"the recorder's settings are left as they are: {getattr(error, 'strerror', None) or error}")
        return dict(environ)
    for problem in plan.warnings:
        is_box = problem.variable == blackbox_library.FOLDER
        if (problem.severity in (FATAL, LOSES_DUMPS) or is_box) and not problem.fixed:
            say(f"warning: {problem}; {problem.cure}")
    variables = dict(plan.variables)
    if plan.families == {"gloo"}:
        # Gloo reads the new name; the old one would only make every rank print that it is deprecated (2.8 and newer).
        variables.pop("TORCH_NCCL_TRACE_BUFFER_SIZE", None)
    return {**environ, **variables}


def _plan(
    words: Sequence[str],
    identity: JobIdentity,
    folder: Path,
    environ: Mapping[str, str],
    *,
    entries: int | None,
    fix: bool,
    timing: bool,
) -> SettingsPlan:
    python = interpreter_of(words, environ=environ)
    torch = torch_of(python, environ=environ) if python is not None else None
    return settings.plan(
        torch_version=torch.version if torch is not None else None,
        backend="gloo" if torch is not None and torch.backends == ("gloo",) else None,
        directory=folder,
        job=identity.job,
        attempt=identity.attempt,
        host=folder.name,
        environ=environ,
        world_size=linux_process.whole_number(environ.get("WORLD_SIZE", "")),
        fix=fix,
        entries=entries or DEFAULT_ENTRIES,
        own_directory=True,
        plugin=blackbox_library.library(release_of(torch.nccl) if torch is not None else None),
        timing=timing,
    )


def remove_pipes(prepared: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Dump pipes and black boxes lie on the node's own disk or in its memory, in folders made for this run."""
    for name in (*PIPE_NAMES, blackbox_library.FOLDER):
        if name in prepared and name not in environ:
            folder = folder_for(name, prepared[name])
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()
