"""`hangscope show`: the operations themselves."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from hangscope.cli.main import main
from hangscope.cli.verbs.show import parse_ranks
from hangscope.errors import SettingsError
from hangscope.model import Job
from hangscope.reader.load import load
from hangscope.report.op_list import select, table

CASES = Path(__file__).parents[1] / "cases"
MULTI = CASES / "multi_pg"


@pytest.fixture(scope="module")
def job() -> Job:
    return load(str(MULTI))


@pytest.fixture(scope="module")
def raw() -> dict[int, list[dict[str, Any]]]:
    """The same dumps through a plain unpickler: what the answers are checked against."""
    found = {}
    for path in MULTI.glob("*/nccl_trace_rank_*"):
        found[int(path.name.rsplit("_", 1)[1])] = pickle.loads(path.read_bytes())["entries"]
    return found


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    assert main(["show", str(MULTI), "--json", *args]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_everything_is_shown_once(capsys: pytest.CaptureFixture[str], raw: dict[int, list[dict[str, Any]]]) -> None:
    """Without conditions every recorded entry is one line, in the order of its rank's recorder."""
    lines = shown(capsys)
    assert {rank: [line["record_id"] for line in lines if line["rank"] == rank] for rank in raw} == {
        rank: [entry["record_id"] for entry in entries] for rank, entries in raw.items()
    }


def test_by_rank(capsys: pytest.CaptureFixture[str], raw: dict[int, list[dict[str, Any]]]) -> None:
    """--rank takes single ranks and ranges."""
    assert {line["rank"] for line in shown(capsys, "--rank", "1")} == {1}
    assert len(shown(capsys, "--rank", "0,2-3")) == sum(len(raw[rank]) for rank in (0, 2, 3))


def test_by_group(capsys: pytest.CaptureFixture[str], raw: dict[int, list[dict[str, Any]]]) -> None:
    """--group takes a group's name."""
    name = raw[0][-1]["process_group"][0]
    lines = shown(capsys, "--group", name)
    assert {line["group_name"] for line in lines} == {name}
    assert len(lines) == sum(entry["process_group"][0] == name for entries in raw.values() for entry in entries)


def test_groups_that_share_a_description_stay_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Two groups described as dp are shown as dp (3) and dp (4), and either can be asked for by that."""
    every = {line["group"] for line in shown(capsys, "--group", "dp")}
    assert every == {"dp (3)", "dp (4)"}
    assert {line["rank"] for line in shown(capsys, "--group", "DP (4)")} == {1, 3}


def test_by_state(capsys: pytest.CaptureFixture[str], raw: dict[int, list[dict[str, Any]]]) -> None:
    """--state completed and --state unfinished part the operations in two."""
    done, open_ones, everything = (
        shown(capsys, "--state", "completed"),
        shown(capsys, "--state", "unfinished"),
        shown(capsys),
    )
    assert {line["state"] for line in done} == {"completed"}
    assert len(done) + len(open_ones) == len(everything)
    assert len(done) == sum(entry["state"] == "completed" for entries in raw.values() for entry in entries)


def test_by_name_and_the_last_of_each_rank(
    capsys: pytest.CaptureFixture[str], raw: dict[int, list[dict[str, Any]]]
) -> None:
    """--last N is counted for each rank, after the other conditions."""
    lines = shown(capsys, "--name", "all_reduce", "--last", "2")
    for rank, entries in raw.items():
        wanted = [e["record_id"] for e in entries if e["profiling_name"] == "nccl:all_reduce"][-2:]
        assert [line["record_id"] for line in lines if line["rank"] == rank] == wanted


def test_more_than_there_is_gives_all(job: Job) -> None:
    """--last beyond what a rank has gives all that it has."""
    assert len(select(job, last=10**6)) == len(job.ops)


def test_values_are_those_of_the_dump(capsys: pytest.CaptureFixture[str], raw: dict[int, list[dict[str, Any]]]) -> None:
    """A line says what the recorder wrote: sequence, shapes, types, times, frames."""
    line = shown(capsys, "--rank", "0", "--last", "1")[0]
    entry = raw[0][-1]
    assert line["seq"] == entry["collective_seq_id"]
    assert line["input_shapes"] == [list(shape) for shape in entry["input_sizes"]]
    assert line["input_dtypes"] == entry["input_dtypes"]
    assert line["created_ns"] == entry["time_created_ns"]
    assert [frame["line"] for frame in line["frames"]] == [frame["line"] for frame in entry["frames"]]


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"ranks": [0, 9]}, "no rank 9"),
        ({"group": "nobody"}, "no group 'nobody'"),
        ({"name": "all_reduec"}, "'all_reduec'"),
        ({"state": "lost"}, "unknown state 'lost'"),
    ],
)
def test_a_condition_that_can_never_match_is_an_error(job: Job, condition: dict[str, Any], says: str) -> None:
    """A rank, group, name or state that the job does not have is an error that says what there is."""
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        select(job, **condition)
    assert caught.value.hint


def test_conditions_without_a_match_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Conditions that are each possible but match nothing together give no line and a note, status 0."""
    assert main(["show", str(CASES / "healthy"), "--state", "scheduled"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no operation matches" in captured.err


def test_the_table_is_aligned_and_cut_to_the_width(job: Job) -> None:
    """Columns start at the same place on every line, and no line is wider than asked."""
    rows = select(job, last=3)
    lines = list(table(job, rows, 400))
    assert len(lines) == len(rows) + 1
    at = lines[0].index("group")
    assert all(line[at - 2 : at] == "  " and line[at] != " " for line in lines)
    assert all(len(line) <= 60 for line in table(job, rows, 60))


def test_an_empty_selection_has_a_heading_alone(job: Job) -> None:
    """A table of nothing is its heading."""
    assert len(list(table(job, select(job)[:0], 80))) == 1


@pytest.mark.parametrize(("text", "ranks"), [("3", {3}), ("0-2,7", {0, 1, 2, 7}), (" 1 , 2 ", {1, 2})])
def test_ranks_are_written_as_they_are_shown(text: str, ranks: set[int]) -> None:
    """Ranks are typed in the form in which reports show them."""
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1--2", "1,,2", "99999999999"])
def test_what_names_no_rank_is_refused(text: str) -> None:
    """Anything else is refused with the form to use."""
    with pytest.raises(SettingsError) as caught:
        parse_ranks(text)
    assert "0-7" in str(caught.value.hint)


def test_what_a_rank_waits_in_is_not_shown_as_completed(capsys: pytest.CaptureFixture[str]) -> None:
    """Gloo's recorder marks what raised as completed; here it is unfinished, as the verdict says."""
    gloo = CASES.with_name("cases_gloo") / "frozen2"
    assert main(["show", str(gloo), "--rank", "0", "--last", "1", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["name"], last["seq"], last["state"]) == ("all_reduce", 9, "scheduled")
