"""From the torch and backend of a job to the full set of variables that lets a hang leave its evidence.

What the user set wins. Where that is fatal, or silently loses evidence, the plan says so with the cure, and applies it
when asked to. Nothing here touches os.environ; only `prepare` touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.recorder.setup import blackbox_library, ring_cost
from hangscope.recorder.setup.backends import families, records
from hangscope.recorder.setup.checks import check
from hangscope.recorder.setup.checks.check_backend import BACKEND_RULES
from hangscope.recorder.setup.default_settings import PIPE_NAMES, DefaultSettings
from hangscope.recorder.setup.rank_folders import Places, make, make_private, needed_folders, places
from hangscope.recorder.setup.setting_problems import LOSES_DUMPS, LOSES_EVIDENCE, Setting, SettingProblem, folder_for
from hangscope.recorder.setup.torch_version import release_of
from hangscope.recorder.setup.variables import BY_NAME, DEFAULT_ENTRIES, DUMP_NAMES, Release

__all__ = ["NCCL_LOG_LEVELS", "SettingProblem", "SettingsPlan", "plan", "prepare"]

NCCL_LOG_LEVELS = ("WARN", "INFO", "TRACE")
_PRIVATE_NAMES = (*PIPE_NAMES, blackbox_library.FOLDER)
"""What lies in folders of the user alone."""


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """What to set for one node of one attempt of one job."""

    variables: dict[str, str]
    """To add to the environment of every rank, or to overwrite there."""
    warnings: tuple[SettingProblem, ...]
    kept: dict[str, str]
    """What the user had set and stays."""
    memory_per_rank_bytes: int
    dump_bytes_per_rank: int
    directories: tuple[Path, ...]
    """Must exist before the first rank starts; `prepare` makes them."""
    release: Release | None
    families: frozenset[str]
    dump_prefix: str | None
    """Where PyTorch writes a dump, without the rank; None where it never writes one."""
    pipe_stem: str | None
    nccl_log: str | None
    """With %h and %p in it, as NCCL takes it."""
    ras_address: str | None


def plan(
    *,
    torch_version: str | None,
    backend: str | None,
    directory: Path,
    job: str,
    attempt: str,
    host: str,
    environ: Mapping[str, str],
    world_size: int | None = None,
    fix: bool = False,
    entries: int = DEFAULT_ENTRIES,
    nccl_debug: str = "INFO",
    look_at_files: bool = True,
    own_directory: bool = False,
    plugin: Path | None = None,
    timing: bool = False,
) -> SettingsPlan:
    """The settings for a job. `environ` is what the ranks would see without hangscope; it is not changed.

    An unknown torch or backend gets every name that any of them reads: a variable that nobody reads does nothing.
    `look_at_files` is False where the settings are for another machine than this one. `own_directory` says that the
    directory is this node's and this attempt's alone, so that dumps/ and logs/ in it need no names below them.
    `plugin` is the black box's library, where there is one; `timing` whether start events are wanted.
    """
    _check_options(torch_version, entries, nccl_debug)
    release = release_of(torch_version)
    where = places(directory=directory, job=job, attempt=attempt, host=host, environ=environ, own=own_directory)
    # Another backend wants other variables, so that this cure comes before all else.
    cured = _backend_cures(backend, release, environ) if fix else []
    chosen = {name: value for problem in cured for name, value in problem.sets.items()}
    seen = {**environ, **chosen}
    used = families(backend, release, seen)
    wanted = DefaultSettings(release, used, seen, where, job, entries, nccl_debug.upper(), plugin, timing)
    variables = {**wanted.variables(), **chosen}
    base = Setting(
        environ=seen,
        release=release,
        families=used,
        entries=entries,
        dump_prefix=where.dump_prefix,
        pipe_stem=where.pipe_stem,
        nccl_log=where.nccl_log,
        ras_address=variables.get("NCCL_RAS_ADDR"),
        world_size=world_size,
        to_be_made=frozenset(where.folders),
        look_at_files=look_at_files,
    )

    def look(added: Mapping[str, str]) -> list[SettingProblem]:
        return [_as_the_user_wrote(problem, seen) for problem in check(replace(base, environ={**seen, **added}))]

    warnings = look(variables)
    if fix:
        warnings = _cure(variables, warnings, look)
    return _finished(base, variables, [*(replace(problem, fixed=True) for problem in cured), *warnings], where, environ)


def _check_options(torch_version: str | None, entries: int, nccl_debug: str) -> None:
    if not 0 < entries < 1 << 31:
        raise SettingsError(f"a ring of {entries} entries is not possible", hint="2000 is the usual size")
    if nccl_debug.upper() not in NCCL_LOG_LEVELS:
        raise SettingsError(f"NCCL has no log level {nccl_debug}", hint=f"use one of {', '.join(NCCL_LOG_LEVELS)}")
    if torch_version is not None and release_of(torch_version) is None:
        raise SettingsError(f"{torch_version} is not a version of torch", hint="write it like 2.8 or 2.8.0+cu128")


def prepare(plan: SettingsPlan) -> SettingsPlan:
    """Make the plan's folders. What cannot be made leaves the plan, with a warning: it could end the job otherwise."""
    variables = dict(plan.variables)
    warnings = list(plan.warnings)
    made = []
    for folder in plan.directories:
        names = _names_in(folder, variables)
        reason = make_private(folder) if any(name in _PRIVATE_NAMES for name in names) else make(folder)
        if not reason:
            made.append(folder)
        else:
            warnings += [_left_out(name, variables.pop(name), reason) for name in names]
    if blackbox_library.FOLDER in plan.variables and blackbox_library.FOLDER not in variables:
        variables.pop(blackbox_library.PLUGIN, None)
        variables.pop(blackbox_library.NEXT, None)
    gone = {value for name, value in plan.variables.items() if name not in variables}
    return replace(
        plan,
        variables=variables,
        warnings=tuple(warnings),
        directories=tuple(made),
        dump_prefix=None if plan.dump_prefix in gone else plan.dump_prefix,
        pipe_stem=None if plan.pipe_stem in gone else plan.pipe_stem,
        nccl_log=None if plan.nccl_log in gone else plan.nccl_log,
    )


def _names_in(folder: Path, variables: Mapping[str, str]) -> list[str]:
    """The variables whose paths lie in a folder."""
    paths = {name: value for name, value in variables.items() if BY_NAME[name].kind == "path"}
    return [name for name, value in paths.items() if folder_for(name, value) == folder]


def _left_out(name: str, value: str, reason: str) -> SettingProblem:
    severity = LOSES_DUMPS if name in DUMP_NAMES else LOSES_EVIDENCE
    what = f"{reason}; it is left out, because it could end the job"
    return SettingProblem(name, value, severity, what, "choose a directory that this user may write to")


def _finished(
    base: Setting, variables: dict[str, str], warnings: list[SettingProblem], where: Places, environ: Mapping[str, str]
) -> SettingsPlan:
    force = replace(base, environ={**base.environ, **variables})
    recorded = any(records(family, base.release) for family in base.families)
    ring = max(force.ring or 0, 0) if recorded else 0
    return SettingsPlan(
        variables=variables,
        warnings=tuple(warnings),
        kept={name: environ[name] for name in BY_NAME if name in environ and name not in variables},
        memory_per_rank_bytes=ring_cost.memory_bytes(ring),
        dump_bytes_per_rank=ring_cost.dump_bytes(ring),
        directories=needed_folders(variables, where),
        release=base.release,
        families=base.families,
        dump_prefix=force.prefix if recorded and base.families != {"gloo"} else None,
        pipe_stem=next((force.environ[name] for name in PIPE_NAMES if name in force.environ), None),
        nccl_log=force.environ.get("NCCL_DEBUG_FILE"),
        ras_address=force.environ.get("NCCL_RAS_ADDR"),
    )


def _backend_cures(backend: str | None, release: Release | None, environ: Mapping[str, str]) -> list[SettingProblem]:
    setting = Setting(environ, release, families(backend, release, environ))
    return [problem for rule in BACKEND_RULES for problem in rule(setting) if problem.sets]


def _as_the_user_wrote(problem: SettingProblem, environ: Mapping[str, str]) -> SettingProblem:
    """Blame the name that the user set, where ours is only its copy under the other generation's name."""
    if problem.variable in environ or problem.variable not in BY_NAME:
        return problem
    newer = BY_NAME[problem.variable].alias_of
    older = [variable.name for variable in BY_NAME.values() if variable.alias_of == problem.variable]
    for name in (newer, *older):
        if name is not None and environ.get(name) == problem.value and problem.value is not None:
            return replace(problem, variable=name)
    return problem


def _cure(
    variables: dict[str, str], found: list[SettingProblem], look: Callable[[Mapping[str, str]], list[SettingProblem]]
) -> list[SettingProblem]:
    """Apply every cure, then look again: a problem counts as fixed only if it is gone."""
    first = found
    for _ in range(3):
        before = dict(variables)
        for problem in reversed(found):  # the gravest last, so that its cure is the one that stays
            variables.update(problem.sets)
        if variables == before:
            break
        found = look(variables)
    left = {(problem.variable, problem.what) for problem in found}
    known = {(problem.variable, problem.what) for problem in first}
    marked = [replace(problem, fixed=(problem.variable, problem.what) not in left) for problem in first]
    return marked + [problem for problem in found if (problem.variable, problem.what) not in known]
