"""A verdict speaks of an engine's processes as the engine does."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.role_words import with_roles
from hangscope.engine_roles import Role, of_title
from hangscope.model import EngineProcess, Facts, Frame, Job, Process, Source, ThreadStack
from hangscope.report.export import to_dict
from hangscope.report.stack_lines import Look, stack_lines
from hangscope.report.stack_tree import stack_tree
from hangscope.report.terminal import render_text
from hangscope.report.ticket import render_ticket
from kits.small_jobs import Op, job

GROUP = "tp"


def role(title: str) -> Role:
    found = of_title(title)
    assert found is not None
    return found


def engine_job() -> Job:
    """Four workers of vLLM: rank 2 never launched what the others wait in. Its API server waits for requests."""
    done = [Op(GROUP) for _ in range(5)]
    ranks = {rank: [*done, *([Op(GROUP, state="started")] if rank != 2 else [])] for rank in range(4)}
    server = EngineProcess(811, role("VLLM::APIServer"), "a", "S")
    frame = (Frame("serve", "/opt/api_server.py", 7),)
    stacks = [ThreadStack(None, 811, "MainThread", frame, Source("stacks/process_811.1.txt"), main=True)]
    for rank in range(4):
        own = (Frame("step", "/opt/worker.py", 10 + (rank == 2)),)
        stacks.append(ThreadStack(rank, 900 + rank, "MainThread", own, Source(f"stacks/{rank}.txt"), main=True))
    made = job({GROUP: range(4)}, ranks, facts=Facts(others=(server,), stacks=tuple(stacks)))
    processes = {rank: Process(rank, pid=900 + rank, role=role(f"VLLM::Worker_TP{rank}")) for rank in range(4)}
    return replace(made, processes=processes)


def test_the_culprit_has_its_engines_name_everywhere() -> None:
    """In the headline, below it, in the JSON and in a ticket; the API server is listed and accused of nothing."""
    found = diagnose(engine_job())
    assert found.headline.startswith("rank 2 (Worker_TP2) ")
    assert found.summary.startswith("Rank 2 (Worker_TP2) ")
    value = to_dict(found)
    assert value["culprits"][0]["role"]["says"] == "TP rank 2 of the engine (Worker_TP2)"
    assert sorted(value["engine"]["roles"]) == ["0", "1", "2", "3"]
    assert [each["role"]["name"] for each in value["engine"]["others"]] == ["APIServer"]
    text = render_text(found, width=100)
    assert "TP rank 2 of the engine (Worker_TP2), unknown node, pid 902" in text
    assert "TP rank 2 of the engine" in render_ticket(found)
    assert [each.rank for each in found.culprits] == [2]


def test_stacks_show_who_is_no_rank() -> None:
    """A branch of one rank has its name, and the API server its own lines below."""
    lines = ["".join(piece.text for piece in line) for line in stack_lines(stack_tree(engine_job()), Look(100))]
    assert any("rank 2 (Worker_TP2)" in line for line in lines)
    assert "APIServer (pid 811), no rank" in lines
    assert "api_server.py:7  serve" in lines


def test_names_are_put_once_and_never_into_what_is_quoted() -> None:
    """Of accused ranks alone, and a line of a log stays as it is."""
    roles = {0: role("VLLM::Worker_TP0"), 1: role("VLLM::Worker_TP1")}
    text = 'rank 0 is behind, rank 1 waits for rank 0: "Hang detected on rank 0", rank 10'
    said = with_roles(Words(text, text, ()), roles, [0]).headline
    assert said == 'rank 0 (Worker_TP0) is behind, rank 1 waits for rank 0: "Hang detected on rank 0", rank 10'
    assert with_roles(Words(text, text, ()), {}, [0]).headline == text
    assert with_roles(Words(text, text, ()), roles, []).headline == text
