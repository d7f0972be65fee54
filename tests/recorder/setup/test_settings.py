"""The recorder's settings: the right variables for every torch and backend, and every known trap with its cure.

FIRST, RING_DEFAULT and the other tables here were read from the released wheels, independently of the code under test.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.errors import SettingsError
from hangscope.recorder.setup import ring_cost
from hangscope.recorder.setup.setting_problems import Setting
from hangscope.recorder.setup.settings import SettingsPlan, plan, prepare
from hangscope.recorder.setup.torch_version import release_of
from hangscope.recorder.setup.variables import BY_NAME, VARIABLES, default_dump_prefix
from hangscope.sources.nccl_ras import settings as ras_address

RELEASES = [(2, minor) for minor in range(2, 16)]
DOCS = Path(__file__).parents[3] / "docs"

FIRST = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": 2,
    "TORCH_FR_BUFFER_SIZE": 8,
    "TORCH_NCCL_TRACE_CPP_STACK": 2,
    "TORCH_FR_CPP_STACK": 8,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": 2,
    "TORCH_FR_DUMP_ON_TIMEOUT": 15,
    "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": 15,
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": 2,
    "TORCH_FR_DUMP_TEMP_FILE": 8,
    "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": 10,
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": 3,
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": 3,
    "TORCH_NCCL_COORD_CHECK_MILSEC": 3,
    "TORCH_NCCL_ENABLE_TIMING": 2,
    "TORCH_NCCL_DESYNC_DEBUG": 2,
    "TORCH_NCCL_ENABLE_MONITORING": 2,
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": 2,
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": 2,
    "TORCH_NCCL_BLOCKING_WAIT": 2,
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": 4,
    "TORCH_NCCL_NAN_CHECK": 4,
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": 5,
    "TORCH_NCCL_CUDA_EVENT_CACHE": 5,
    "TORCH_NCCL_PROPAGATE_ERROR": 7,
    "TORCH_INCLUDE_STACK_TRACE": 10,
    "TORCH_INCLUDE_ONLY_ACTIVE": 10,
    "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": 10,
    "TORCH_DIST_USE_NCCL2": 14,
}
"""The first 2.x whose libraries hold the name."""

LEGACY_ONLY = {
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_ENABLE_TIMING",
}
"""What nccl2 does not have: pipe, heartbeat monitor, start events."""

GENERATIONS = [
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    ("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"),
]

each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda r: f"torch{r[0]}.{r[1]}")


def make(
    release: tuple[int, int] | None,
    backend: str | None = "nccl",
    environ: Mapping[str, str] | None = None,
    **more: object,
) -> SettingsPlan:
    options: dict[str, object] = {
        "torch_version": None if release is None else f"{release[0]}.{release[1]}.0+cu128",
        "backend": backend,
        "directory": Path("/shared/hangs"),
        "job": "48121",
        "attempt": "2",
        "host": "gpu-a017",
        "environ": environ or {},
        **more,
    }
    return plan(**options)  # type: ignore[arg-type]


def severities(made: SettingsPlan) -> dict[str, str]:
    return {problem.variable: problem.severity for problem in reversed(made.warnings)}


# ---- what is set ---------------------------------------------------------------------------------------------------


def test_the_table_of_variables_agrees_with_the_wheels() -> None:
    """Every variable of PyTorch's recorder is known from exactly the release whose libraries first hold it."""
    known = {v.name: v.since[1] for v in VARIABLES if v.since is not None and v.name in FIRST}
    assert known == FIRST


@each_release
@pytest.mark.parametrize("backend", ["nccl", "nccl-legacy", "gloo", None])
def test_no_variable_is_set_that_the_release_does_not_read(release: tuple[int, int], backend: str | None) -> None:
    """A release gets only names that it knows; NCCL's own are not tied to a release."""
    for name in make(release, backend).variables:
        assert name.startswith("NCCL_") or FIRST[name] <= release[1], name


@each_release
def test_a_legacy_nccl_job_dumps_everything_it_can(release: tuple[int, int]) -> None:
    """With ProcessGroupNCCL, recording, dumping, pipe and path are all on, in every release."""
    made = make(release, "nccl-legacy").variables
    expected = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    expected |= {"TORCH_NCCL_ENABLE_MONITORING": "1"}
    expected |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    if release >= (2, 8):
        expected["TORCH_FR_BUFFER_SIZE"] = "2000"
    assert expected.items() <= made.items()
    assert ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in made) == (release >= (2, 3))
    assert "TORCH_NCCL_PROPAGATE_ERROR" not in made
    assert "TORCH_NCCL_EXTRA_DUMP_ON_EXEC" not in made  # a rank that ends without destroy_process_group() alarms all
    assert "TORCH_NCCL_BLOCKING_WAIT" not in made
    assert make(release, "nccl-legacy").warnings == ()


@each_release
@pytest.mark.parametrize("backend", ["nccl", "nccl-legacy", None])
def test_both_generations_of_a_name_say_the_same(release: tuple[int, int], backend: str | None) -> None:
    """From the release on that knows the newer name, both are set, to one value."""
    made = make(release, backend).variables
    for newer, older in GENERATIONS:
        if release[1] >= FIRST[newer]:
            assert made[newer] == made[older]


@each_release
def test_the_monitor_never_ends_a_process_that_still_dumps(release: tuple[int, int]) -> None:
    """The heartbeat is at least four times the limit of a dump, also where the user raised that limit."""
    for environ in ({}, {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "300000"}):
        made = make(release, "nccl-legacy", environ).variables
        default = 60_000 if release < (2, 8) else 15_000
        wait = int(environ.get("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", default))
        assert int(made["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) * 1000 >= (4 * wait if release >= (2, 3) else 480_000)


def test_nccl_in_2_15_is_nccl2() -> None:
    """From 2.15 on the name nccl gets nccl2's variables and none of what only the legacy backend reads."""
    made = make((2, 15), "nccl")
    assert made.families == {"nccl2"}
    assert made.variables["TORCH_FR_DUMP_ON_TIMEOUT"] == "1"
    assert made.variables["TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC"] == "15000"
    assert made.variables["TORCH_FR_DUMP_TEMP_FILE"].endswith("rank_")
    assert LEGACY_ONLY.isdisjoint(made.variables)
    assert "never joined" in made.warnings[0].what


@pytest.mark.parametrize(
    ("release", "backend", "choice", "family"),
    [
        ((2, 13), "nccl", None, "nccl"),
        ((2, 13), "nccl", "1", "nccl"),  # nobody reads it before 2.14
        ((2, 14), "nccl", None, "nccl"),
        ((2, 14), "nccl", "1", "nccl2"),
        ((2, 14), "nccl", "0", "nccl"),
        ((2, 15), "nccl", None, "nccl2"),
        ((2, 15), "nccl", "0", "nccl"),
        ((2, 15), "nccl-legacy", None, "nccl"),
        ((2, 15), "cuda:nccl", None, "nccl2"),
        ((2, 16), "nccl", None, "nccl2"),
    ],
)
def test_which_backend_the_name_stands_for(
    release: tuple[int, int], backend: str, choice: str | None, family: str
) -> None:
    """The release and TORCH_DIST_USE_NCCL2 decide what nccl is: opt in for 2.14, opt out from 2.15 on."""
    environ = {} if choice is None else {"TORCH_DIST_USE_NCCL2": choice}
    assert make(release, backend, environ).families == {family}


def test_nccl2_in_2_14_records_nothing_and_that_is_said() -> None:
    """In 2.14 nothing attaches the recorder to nccl2; the cure goes back to the legacy backend, with its variables."""
    environ = {"TORCH_DIST_USE_NCCL2": "1"}
    (problem,) = (p for p in make((2, 14), "nccl", environ).warnings if p.severity == "loses_dumps")
    assert problem.variable == "TORCH_DIST_USE_NCCL2"
    cured = make((2, 14), "nccl", environ, fix=True)
    assert cured.variables["TORCH_DIST_USE_NCCL2"] == "0"
    assert cured.variables["TORCH_NCCL_ENABLE_MONITORING"] == "1"
    assert [p.fixed for p in cured.warnings if p.severity == "loses_dumps"] == [True]


@pytest.mark.parametrize("release", [(2, 8), (2, 10), (2, 11), (2, 13), (2, 15)])
def test_gloo_gets_a_ring_and_nothing_else(release: tuple[int, int]) -> None:
    """Gloo never writes a dump, so that only the ring's size matters, and the plan says so."""
    made = make(release, "gloo")
    assert made.variables == {"TORCH_FR_BUFFER_SIZE": "2000"}
    said = make(release, "gloo", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "500"})
    assert said.variables == {"TORCH_FR_BUFFER_SIZE": "500"}
    assert made.dump_prefix is None
    assert made.directories == ()
    assert severities(made) == {"backend": "note"}


@pytest.mark.parametrize("release", [(2, 2), (2, 5), (2, 7)])
def test_gloo_before_2_8_is_not_recorded(release: tuple[int, int]) -> None:
    """Before 2.8 Gloo's operations reach no recorder, whatever is set."""
    made = make(release, "gloo")
    assert made.variables == {}
    assert made.memory_per_rank_bytes == 0
    assert severities(made) == {"backend": "loses_dumps"}


def test_a_job_with_both_backends_is_an_nccl_job() -> None:
    """cpu:gloo,cuda:nccl, the default of init_process_group, gets NCCL's variables without complaint."""
    made = make((2, 12), "cpu:gloo,cuda:nccl")
    assert made.families == {"nccl", "gloo"}
    assert made.variables["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert made.warnings == ()


@pytest.mark.parametrize("version", ["2.1.2", "2.0", "1.13.1+cu117"])
def test_before_2_2_there_is_no_recorder(version: str) -> None:
    """A torch without a recorder gets NCCL's log and no variable of a recorder, and the plan says what is missing."""
    made = make(None, "nccl", torch_version=version)
    assert all(name.startswith("NCCL_") for name in made.variables)
    assert "no flight recorder" in made.warnings[0].what


def test_an_unknown_torch_gets_every_name() -> None:
    """Where nobody knows the torch, every name is set that any release reads; those that nobody reads do nothing."""
    made = make(None, None).variables
    assert {name for pair in GENERATIONS[:3] for name in pair} <= made.keys()
    assert made.keys() >= LEGACY_ONLY - {"TORCH_NCCL_ENABLE_TIMING"}
    assert make(None, None, timing=True).variables.keys() >= LEGACY_ONLY
    # The dump's limit differs between releases; forcing either on the other would hurt.
    assert "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC" not in made


def test_a_torch_newer_than_known_is_treated_like_the_newest() -> None:
    """A release that did not exist yet gets the newest known settings and a note."""
    future = make((3, 1), "nccl")
    assert future.variables == make((2, 15), "nccl").variables
    assert "newer" in {p.variable: p.what for p in future.warnings}["torch"]


def test_other_vendors_get_their_own_names() -> None:
    """XCCL has a pipe and no watchdog, HCCL a family of its own; NCCL's variables mean nothing to them."""
    xccl = make((2, 10), "xccl").variables
    assert xccl.keys() == {
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_FR_DEBUG_INFO_PIPE_FILE",
        "TORCH_XCCL_DEBUG_INFO_PIPE_FILE",
    }
    hccl = make((2, 6), "hccl").variables
    assert hccl.keys() == {
        "TORCH_HCCL_TRACE_BUFFER_SIZE",
        "TORCH_HCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_HCCL_DUMP_ON_TIMEOUT",
        "TORCH_HCCL_ENABLE_MONITORING",
    }


def test_nccl_logs_to_a_file_of_each_process() -> None:
    """NCCL's warnings go to a file with host and process in its name, each line with milliseconds; TZ is left alone."""
    made = make((2, 11)).variables
    assert made["NCCL_DEBUG"] == "INFO"
    assert made["NCCL_DEBUG_FILE"].endswith("/nccl.%h.%p.log")
    assert made["NCCL_DEBUG_TIMESTAMP_LEVELS"] == "ALL"
    assert "%3f" in made["NCCL_DEBUG_TIMESTAMP_FORMAT"]
    assert "TZ" not in made
    assert make((2, 11), nccl_debug="info").variables["NCCL_DEBUG_SUBSYS"].split(",")[:1] == ["INIT"]


def test_somebody_who_watches_nccls_log_goes_on_seeing_it() -> None:
    """Where the user asked NCCL for a log on stdout, it stays there; only a note says what can be lost."""
    made = make((2, 11), environ={"NCCL_DEBUG": "INFO"})
    assert "NCCL_DEBUG_FILE" not in made.variables
    assert severities(made) == {"NCCL_DEBUG_FILE": "note"}


def test_a_log_below_each_hosts_folder_is_understood(tmp_path: Path) -> None:
    """NCCL fills in %h and %p before it opens its log, so that the folder to look for is the expanded one."""
    (tmp_path / socket.gethostname().split(".")[0]).mkdir()
    mine = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{tmp_path}/%h/nccl.%p.log"}
    assert make((2, 11), environ=mine).warnings == ()
    mine["NCCL_DEBUG_FILE"] = f"{tmp_path}/no/%h/nccl.%p.log"
    assert severities(make((2, 11), environ=mine)) == {"NCCL_DEBUG_FILE": "loses_evidence"}


# ---- where ---------------------------------------------------------------------------------------------------------


def test_ranks_and_restarts_never_share_a_path() -> None:
    """Host, job and attempt are all in the path of dumps, logs and pipes."""
    names = ("TORCH_FR_DUMP_TEMP_FILE", "NCCL_DEBUG_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    changes = ({}, {"host": "gpu-a018"}, {"job": "48122"}, {"attempt": "3"})
    for name in names:
        assert len({make((2, 11), **change).variables[name] for change in changes}) == len(changes)
    assert make((2, 11)).variables["TORCH_FR_DUMP_TEMP_FILE"].startswith("/shared/hangs/dumps/")


def test_a_directory_that_names_the_job_is_not_told_twice() -> None:
    """Below a node's part of an incident the files lie where the incident format wants them."""
    made = make((2, 11), directory=Path("/d/hangscope/48121/2/nodes/gpu-a017"))
    assert made.dump_prefix == "/d/hangscope/48121/2/nodes/gpu-a017/dumps/nccl_trace_rank_"
    made = make((2, 11), directory=Path("/d/nodes/x"), own_directory=True)
    assert (made.dump_prefix, made.nccl_log) == ("/d/nodes/x/dumps/nccl_trace_rank_", "/d/nodes/x/logs/nccl.%h.%p.log")


def test_a_hostile_name_stays_below_the_directory() -> None:
    """A job or host name cannot lead out of the directory, and a percent sign reaches NCCL as one."""
    made = make((2, 11), job="../../etc", host="a/b", directory=Path("/d/100%h"))
    assert ".." not in Path(made.variables["TORCH_FR_DUMP_TEMP_FILE"]).parts
    assert made.variables["NCCL_DEBUG_FILE"].startswith("/d/100%%h/logs/")
    assert Path("/d/100%h/logs/-..-etc.2/a-b") in made.directories


def test_a_path_that_is_too_long_is_refused() -> None:
    """A directory that leaves no room for a rank's file is an error, not a job without dumps."""
    with pytest.raises(SettingsError, match="too long"):
        make((2, 11), directory=Path("/" + "d/" * 2100))


def test_prepare_makes_what_the_plan_needs(tmp_path: Path) -> None:
    """Every folder is there afterwards, and the pipes' folder is for this user alone."""
    made = prepare(make((2, 11), directory=tmp_path / "h", environ={"TMPDIR": str(tmp_path / "local")}))
    assert made.pipe_stem is not None
    assert made.directories and all(folder.is_dir() for folder in made.directories)
    top = next(p for p in Path(made.pipe_stem).parents if p.name.startswith("hangscope-"))
    assert stat.S_IMODE(top.stat().st_mode) == 0o700
    os.mkfifo(f"{made.pipe_stem}0.pipe")


def test_what_cannot_be_made_leaves_the_plan(tmp_path: Path) -> None:
    """A folder that cannot be made takes its variables with it: PyTorch would end the process over a missing pipe."""
    (tmp_path / "file").write_text("")
    before = make((2, 11), directory=tmp_path / "ok", environ={"TMPDIR": str(tmp_path / "file")})
    made = prepare(before)
    assert before.pipe_stem is not None
    assert made.pipe_stem is None
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in made.variables
    assert "TORCH_FR_DUMP_TEMP_FILE" in made.variables
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in severities(made)


def test_a_pipe_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A link that someone planted where the pipes would go is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"hangscope-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    made = prepare(make((2, 11), directory=tmp_path / "ok", environ={"TMPDIR": str(tmp_path)}))
    assert made.pipe_stem is None
    assert list((tmp_path / "elsewhere").iterdir()) == []


# ---- what the user set ---------------------------------------------------------------------------------------------


def test_what_the_user_set_stays() -> None:
    """Sound settings of the user's are kept, reported as kept, and never overwritten."""
    environ = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "20000", "NCCL_RAS_ADDR": "localhost:23456", "NCCL_DEBUG": "WARN"}
    made = make((2, 11), environ=environ)
    assert made.kept == environ
    assert environ.keys().isdisjoint(made.variables)


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
@each_release
def test_one_name_of_the_ring_is_enough(release: tuple[int, int], name: str) -> None:
    """Whichever name the user chose, the other gets the same size, also where this torch reads only the other."""
    made = make(release, "nccl-legacy", {name: "20000"})
    seen = {name: "20000", **made.variables}
    assert seen["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "20000"
    if release >= (2, 8):
        assert seen["TORCH_FR_BUFFER_SIZE"] == "20000"
    assert made.memory_per_rank_bytes == 10 * make(release, "nccl-legacy").memory_per_rank_bytes


def test_a_deprecated_name_counts_as_set() -> None:
    """NCCL_ENABLE_TIMING=0 is a user's choice: the newer name, which would win, is not set over it."""
    made = make((2, 11), environ={"NCCL_ENABLE_TIMING": "0"})
    assert "TORCH_NCCL_ENABLE_TIMING" not in made.variables


def test_the_environment_is_not_touched() -> None:
    """Neither the mapping given nor os.environ is changed."""
    environ = {"TORCH_NCCL_BLOCKING_WAIT": "1"}
    before = dict(os.environ)
    make((2, 11), environ=environ, fix=True)
    assert environ == {"TORCH_NCCL_BLOCKING_WAIT": "1"}
    assert dict(os.environ) == before


# ---- traps ---------------------------------------------------------------------------------------------------------

TRAPS = [
    # release, environ, the variable blamed, how grave
    ((2, 11), {"TORCH_NCCL_DUMP_ON_TIMEOUT": "on"}, "TORCH_NCCL_DUMP_ON_TIMEOUT", "fatal"),
    ((2, 3), {"TORCH_NCCL_ENABLE_TIMING": ""}, "TORCH_NCCL_ENABLE_TIMING", "fatal"),
    ((2, 11), {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "ten"}, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "fatal"),
    ((2, 11), {"TORCH_FR_BUFFER_SIZE": "2 000x"}, "TORCH_FR_BUFFER_SIZE", "loses_dumps"),  # read as 2
    ((2, 11), {"TORCH_FR_BUFFER_SIZE": "4294967296"}, "TORCH_FR_BUFFER_SIZE", "fatal"),
    ((2, 11), {"TORCH_FR_BUFFER_SIZE": "-1"}, "TORCH_FR_BUFFER_SIZE", "fatal"),
    ((2, 11), {"NCCL_BLOCKING_WAIT": "maybe"}, "NCCL_BLOCKING_WAIT", "fatal"),
    ((2, 10), {"TORCH_INCLUDE_STACK_TRACE": "on"}, "TORCH_INCLUDE_STACK_TRACE", "fatal"),
    ((2, 11), {"TORCH_INCLUDE_STACK_TRACE": "0"}, "TORCH_INCLUDE_STACK_TRACE", "loses_evidence"),
    ((2, 11), {"TORCH_INCLUDE_ONLY_ACTIVE": "1"}, "TORCH_INCLUDE_ONLY_ACTIVE", "loses_evidence"),
    ((2, 2), {"TORCH_NCCL_BLOCKING_WAIT": "1"}, "TORCH_NCCL_BLOCKING_WAIT", "loses_dumps"),
    ((2, 13), {"NCCL_BLOCKING_WAIT": "true"}, "NCCL_BLOCKING_WAIT", "loses_dumps"),
    ((2, 8), {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "TORCH_NCCL_DUMP_ON_TIMEOUT", "loses_dumps"),
    ((2, 8), {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
     "TORCH_NCCL_TRACE_BUFFER_SIZE", "loses_dumps"),
    ((2, 13), {"TORCH_FR_BUFFER_SIZE": "0"}, "TORCH_FR_BUFFER_SIZE", "loses_dumps"),
    ((2, 4), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "TORCH_NCCL_TRACE_BUFFER_SIZE", "loses_dumps"),
    ((2, 11), {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "15"}, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "loses_dumps"),
    ((2, 7), {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120"}, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "loses_dumps"),
    ((2, 3), {"TORCH_NCCL_ENABLE_MONITORING": "0"}, "TORCH_NCCL_ENABLE_MONITORING", "loses_dumps"),
    ((2, 11), {"TORCH_NCCL_ENABLE_MONITORING": "0"}, "TORCH_NCCL_ENABLE_MONITORING", "note"),
    ((2, 11), {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "loses_dumps"),
    ((2, 11), {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "loses_dumps"),
    ((2, 11), {"NCCL_ASYNC_ERROR_HANDLING": "2"}, "NCCL_ASYNC_ERROR_HANDLING", "loses_dumps"),
    ((2, 11), {"TORCH_FR_BUFFER_SIZE": "2097152"}, "TORCH_FR_BUFFER_SIZE", "loses_dumps"),
    ((2, 7), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2097152"}, "TORCH_NCCL_TRACE_BUFFER_SIZE", "cost"),  # 60 s suffice there
    ((2, 11), {"TORCH_FR_BUFFER_SIZE": "800000"}, "TORCH_FR_BUFFER_SIZE", "loses_evidence"),  # only without stacks
    ((2, 11), {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "3000"},
     "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "loses_evidence"),
    ((2, 8), {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/no/such/folder/rank_"},
     "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "loses_dumps"),
    ((2, 8), {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/no/such/folder/rank_"},
     "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "fatal"),
    ((2, 11), {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.log"}, "NCCL_DEBUG_FILE", "loses_evidence"),
    ((2, 11), {"NCCL_DEBUG": "VERSION"}, "NCCL_DEBUG", "loses_evidence"),
    ((2, 11), {"NCCL_RAS_ENABLE": "0"}, "NCCL_RAS_ENABLE", "loses_evidence"),
    ((2, 11), {"NCCL_DESYNC_DEBUG": "0"}, "NCCL_DESYNC_DEBUG", "note"),
    ((2, 11), {"TORCH_NCCL_FLIGHT_RECORDER_ENABLED": "1"}, "TORCH_NCCL_FLIGHT_RECORDER_ENABLED", "note"),
    ((2, 11), {"TORCH_NCCL_TRACE_BUFFERSIZE": "2000"}, "TORCH_NCCL_TRACE_BUFFERSIZE", "note"),
    ((2, 9), {"TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1"}, "TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "note"),
    ((2, 11), {"TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1"}, "TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "loses_evidence"),
    ((2, 15), {"TORCH_DIST_USE_NCCL2": "0", "TORCH_FR_DUMP_ON_TIMEOUT": "0"}, "TORCH_FR_DUMP_ON_TIMEOUT",
     "loses_dumps"),
]  # fmt: skip


@pytest.mark.parametrize(("release", "environ", "variable", "severity"), TRAPS)
def test_every_trap_is_known_by_its_name(
    release: tuple[int, int], environ: dict[str, str], variable: str, severity: str
) -> None:
    """A setting that does harm is blamed, graded and kept; the user's value is not changed without --fix."""
    made = make(release, "nccl", environ)
    assert severities(made)[variable] == severity
    if variable in BY_NAME and variable in environ:
        assert made.kept[variable] == environ[variable]
    problem = next(p for p in made.warnings if p.variable == variable)
    assert problem.what and problem.cure and not problem.fixed


@pytest.mark.parametrize(("release", "environ", "variable", "severity"), [t for t in TRAPS if t[3] != "note"])
def test_fix_cures_every_trap(release: tuple[int, int], environ: dict[str, str], variable: str, severity: str) -> None:
    """With fix, the problem is marked as fixed, and a job with the cured settings has none left."""
    cured = make(release, "nccl", environ, fix=True)
    assert next(p for p in cured.warnings if p.variable == variable).fixed
    after = make(release, "nccl", {**environ, **cured.variables})
    assert [str(p) for p in after.warnings if p.severity != "note"] == []


def test_a_sound_setting_is_not_a_trap() -> None:
    """Every spelling of a boolean that PyTorch takes, and a large but writable ring, pass without a word."""
    for text in ("y", "YES", "1", "t", "True"):
        assert make((2, 11), environ={"TORCH_NCCL_ENABLE_TIMING": text}).warnings == ()
    assert make((2, 11), environ={"TORCH_FR_BUFFER_SIZE": "20000"}).warnings == ()
    assert make((2, 7), environ={"TORCH_INCLUDE_STACK_TRACE": "on"}).warnings[0].severity == "note"  # not read there


def test_the_newer_name_alone_makes_no_pipe_in_2_8_to_2_10() -> None:
    """A plan sets the older name too; settings without it are found out."""
    environ = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/rank_"}
    from hangscope.recorder.setup.checks import check

    for minor in range(8, 14):
        found = check(Setting({**environ, "NCCL_DEBUG": "WARN"}, (2, minor), frozenset({"nccl"})))
        blamed = [p for p in found if p.variable == "TORCH_NCCL_TRACE_BUFFER_SIZE"]
        assert bool(blamed) == (minor <= 10)
        assert make((2, minor), environ=environ).variables["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"


def test_the_two_million_story() -> None:
    """2,097,152 is told as what it is: entries, 2 to 3.5 GiB a rank, and a dump that is not written in 15 s."""
    (problem,) = make((2, 11), environ={"TORCH_FR_BUFFER_SIZE": "2097152"}).warnings
    for words in ("2,097,152 entries, not bytes", "2.0 GiB", "3.4 GiB", "15 s", "2 MB"):
        assert words in problem.what
    made = make((2, 11), environ={"TORCH_FR_BUFFER_SIZE": "2097152"})
    assert 2 << 30 < made.memory_per_rank_bytes < 3.5 * (1 << 30)
    assert 320e6 < made.dump_bytes_per_rank < 400e6


def test_estimates_agree_with_what_was_measured() -> None:
    """2000 entries: 2 to 4 MB and 0.3 to 0.4 MB in a dump; a million: 18 s with and 13 s without stacks, roughly."""
    assert 2e6 <= ring_cost.memory_bytes(2000) <= 4e6
    assert 0.3e6 <= ring_cost.dump_bytes(2000) <= 0.4e6
    assert 5 <= ring_cost.dump_seconds(2000) <= 7
    assert 18 <= ring_cost.dump_seconds(1_000_000) <= 25
    assert 12 <= ring_cost.dump_seconds(1_000_000, stacks=False) <= 14


def test_too_little_room_for_all_ranks_is_found(tmp_path: Path) -> None:
    """World size times the dump must fit on the disk that the dumps go to."""
    assert make((2, 11), directory=tmp_path, world_size=8).warnings == ()
    (problem,) = make((2, 11), directory=tmp_path, world_size=10**12).warnings
    assert problem.severity == "loses_dumps" and "ranks need" in problem.what


@pytest.mark.parametrize("values", [{"entries": 0}, {"entries": 1 << 31}, {"nccl_debug": "LOUD"}])
def test_impossible_wishes_are_errors(values: dict[str, object]) -> None:
    """What cannot work is refused before anything is set."""
    with pytest.raises(SettingsError):
        make((2, 11), **values)
    with pytest.raises(SettingsError):
        make(None, torch_version="latest")


NASTY = ["", "0", "1", "on", "true", "-1", "2", "2e6", "2097152", "99999999999", "/no/such/folder/x", "VERSION"]


@given(
    environ=st.dictionaries(st.sampled_from(sorted({*BY_NAME, "TORCH_NCCL_FLIGHT_RECORDER_ENABLED"})),
                            st.sampled_from(NASTY), max_size=6),
    release=st.sampled_from([*RELEASES, (2, 1), (2, 16), None]),
    backend=st.sampled_from(["nccl", "nccl-legacy", "gloo", "cpu:gloo,cuda:nccl", "xccl", "hccl", "mpi", None]),
)  # fmt: skip
def test_fix_leaves_nothing_that_it_knows_a_cure_for(
    environ: dict[str, str], release: tuple[int, int] | None, backend: str | None
) -> None:
    """Whatever was set, with fix no known trap with a cure is left, and the cured settings stay as they are."""
    cured = make(release, backend, environ, fix=True)
    merged = {**environ, **cured.variables}
    again = make(release, backend, merged)
    assert [str(p) for p in again.warnings if p.sets and p.severity != "note"] == []
    assert set(cured.variables) <= {v.name for v in VARIABLES}


# ---- RAS -----------------------------------------------------------------------------------------------------------


def test_every_job_has_a_ras_port_of_its_own() -> None:
    """Neighbouring job numbers start on different ports, all in the documented range and none the default."""
    ports = [next(ras_address.candidates(str(48000 + number))) for number in range(500)]
    assert len(set(ports)) == 500
    assert all(21_000 <= port < 28_000 for port in ports)
    assert len(set(ras_address.candidates("x"))) == 7000
    assert next(ras_address.candidates("train-llm")) == next(ras_address.candidates("train-llm"))


def test_a_taken_port_is_passed_over() -> None:
    """If another job's NCCL listens on the first choice, as it does with SO_REUSEPORT, the next is taken."""
    first, second = list(ras_address.candidates("48121"))[:2]
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", first))
        other.listen()
        assert make((2, 11)).ras_address == f"localhost:{second}"
    assert make((2, 11)).ras_address == f"localhost:{first}"


@pytest.mark.parametrize(
    ("release", "environ", "prefix"),
    [
        ((2, 6), {"HOME": "/h"}, "/tmp/nccl_trace_rank_"),
        ((2, 8), {"HOME": "/h"}, "/h/.cache/torch/nccl_trace_rank_"),
        ((2, 8), {}, "/tmp/.cache/torch/nccl_trace_rank_"),
        ((2, 10), {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/.cache/torch/comm_lib_trace_rank_"),
        ((2, 11), {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/torch/comm_lib_trace_rank_"),
    ],
)
def test_where_dumps_go_by_default(release: tuple[int, int], environ: dict[str, str], prefix: str) -> None:
    """The default prefix moved three times; the doctor and the collector must look in the right place."""
    assert default_dump_prefix(release, environ) == prefix


# ---- against the real thing ----------------------------------------------------------------------------------------

# One import of torch for all; each fork is a fresh job, because PyTorch reads its variables on first use.
JOBS = """
import json, os, sys, time, torch, torch.distributed as dist

def job():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    for _ in range(40):
        dist.all_reduce(torch.ones(1))
    return len(json.loads(torch._C._distributed_c10d._dump_fr_trace_json()).get("entries", []))

answers = []
for environ in json.loads(sys.argv[1]):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(environ)
        os.write(write, str(job()).encode())
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + 6
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    answers.append(os.read(read, 64).decode())
print(json.dumps(answers))
"""


@pytest.mark.torch
def test_pytorch_reads_the_ring_as_the_checks_say() -> None:
    """Real jobs of 40 operations confirm what a size means.

    The plan's counts entries; 2e3 is read as 2; a negative one never wraps; and a value that cannot be read, even under
    the name that does not count, keeps the job from its first operation.
    """
    torch = pytest.importorskip("torch")
    release = release_of(torch.__version__)
    if release is None or release < (2, 8):
        pytest.skip("Gloo is recorded from torch 2.8 on")
    settings = [
        make(release, "gloo", entries=25).variables,
        {"TORCH_FR_BUFFER_SIZE": "2e3"},
        {"TORCH_FR_BUFFER_SIZE": "-1"},
        {"TORCH_FR_BUFFER_SIZE": "20", "TORCH_NCCL_TRACE_BUFFER_SIZE": "lots"},
    ]
    clean = {name: value for name, value in os.environ.items() if name not in BY_NAME}
    done = subprocess.run(
        [sys.executable, "-c", JOBS, json.dumps(settings)], env=clean, capture_output=True, text=True, timeout=120
    )
    assert json.loads(done.stdout) == ["25", "2", "40", ""]


# ---- the page ------------------------------------------------------------------------------------------------------


def test_the_page_describes_every_variable() -> None:
    """docs/settings.md has a row for every variable that hangscope can set or check, with the right first release."""
    rows = dict(re.findall(r"^\| `([A-Z0-9_]+)` \|([^|]*)\|", (DOCS / "settings.md").read_text(), re.MULTILINE))
    assert {v.name for v in VARIABLES} - rows.keys() == set()
    for variable in VARIABLES:
        if variable.since is not None:
            assert rows[variable.name].strip() == f"{variable.since[0]}.{variable.since[1]}", variable.name
    everything: set[str] = set()
    for release in [*RELEASES, None]:
        for backend in ("nccl", "nccl-legacy", "gloo", "xccl", "hccl", "mpi", None):
            everything |= make(release, backend, nccl_debug="INFO").variables.keys()
    assert everything <= rows.keys()


def _blackbox_of(tmp_path: Path, **environ: str) -> dict[str, str]:
    chosen = plan(
        torch_version="2.11.0",
        backend="nccl",
        directory=tmp_path,
        job="j",
        attempt="0",
        host="n",
        environ=environ,
        plugin=Path("/ours/libhangscope_blackbox.so"),
    ).variables
    return {name: chosen[name] for name in ("NCCL_PROFILER_PLUGIN", "HANGSCOPE_NEXT_PROFILER") if name in chosen}


def test_the_black_box_is_set_in_front_of_another_plugin(tmp_path: Path) -> None:
    """A plugin that was set, or that NCCL would find, is named for ours to load; what is switched off stays off."""
    ours = {"NCCL_PROFILER_PLUGIN": "/ours/libhangscope_blackbox.so"}
    assert _blackbox_of(tmp_path) == ours
    assert _blackbox_of(tmp_path, NCCL_PROFILER_PLUGIN="inspector") == {**ours, "HANGSCOPE_NEXT_PROFILER": "inspector"}
    found = tmp_path / "libnccl-profiler.so"
    found.touch()
    assert _blackbox_of(tmp_path, LD_LIBRARY_PATH=str(tmp_path)) == {**ours, "HANGSCOPE_NEXT_PROFILER": str(found)}
    assert _blackbox_of(tmp_path, NCCL_PROFILER_PLUGIN="none") == {}
    assert _blackbox_of(tmp_path, NCCL_PROFILER_PLUGIN="inspector", HANGSCOPE_NEXT_PROFILER="none") == {}
    again = {"NCCL_PROFILER_PLUGIN": "/ours/libhangscope_blackbox.so", "HANGSCOPE_NEXT_PROFILER": "inspector"}
    assert _blackbox_of(tmp_path, **again) == {}
