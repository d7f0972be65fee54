"""What engines call their processes, and which ranks those are."""

from __future__ import annotations

import pytest

from hangscope.engine_roles import Role, from_value, numbers, of_prefix, of_title, of_words, to_value, with_replicas


def role(title: str) -> Role:
    found = of_title(title)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("title", "says", "works"),
    [
        ("VLLM::Worker_TP3", "TP rank 3 of the engine (Worker_TP3)", True),
        ("VLLM::Worker", "Worker of vLLM", True),
        ("VLLM::EngineCore", "EngineCore of vLLM", False),
        ("VLLM::EngineCore_DP0", "DP rank 0 of the engine (EngineCore_DP0)", False),
        ("VLLM::APIServer_1", "APIServer_1 of vLLM", False),
        ("my-model::Worker_DP1_PP0_TP2_EP6", None, True),
        ("sglang::scheduler_TP2_EP5", "TP rank 2, EP rank 5 of the engine (scheduler_TP2_EP5)", True),
        ("sglang::detokenizer", "detokenizer of SGLang", False),
        ("sglang::tokenizer_worker:4711", "tokenizer_worker of SGLang", False),
        ("ray::WorkerDict.actor_rollout_generate", "Ray actor WorkerDict", False),
    ],
)
def test_titles_of_engines_are_read(title: str, says: str | None, works: bool) -> None:
    """Who computes, with its numbers, in words; the prefix of vLLM's titles is the user's choice."""
    found = role(title)
    assert found.works is works
    if says is not None:
        assert found.says == says


@pytest.mark.parametrize("title", ["python", "", "ray::IDLE", "std::vector", "::", "a" * 9000, "x::y::Worker", "1::2"])
def test_other_titles_are_nobodys(title: str) -> None:
    """An idle worker of Ray, C++ names and nonsense are no engine's process."""
    assert of_title(title) is None


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "model", "-tp", "4"], "vLLM"),
        (["python3", "-m", "sglang.launch_server", "--tp", "4"], "SGLang"),
        (["/usr/bin/python3", "/usr/local/bin/trtllm-serve", "model"], "TensorRT-LLM"),
        (["/usr/bin/python3", "-m", "mpi4py.futures.server"], "TensorRT-LLM"),
    ],
)
def test_servers_without_a_title_are_known_by_their_command(words: list[str], engine: str) -> None:
    """Before an engine sets titles, and where it sets none."""
    found = of_words(words)
    assert found is not None and found.engine == engine


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("(Worker_TP1 pid=612)", "Worker_TP1"),
        ("(EngineCore_DP0 pid=902)", "EngineCore_DP0"),
        ("(VllmWorker rank=2 pid=902)", "VllmWorker"),
        ("[2026-10-21 03:12:44 DP0 TP1]", "scheduler_DP0_TP1"),
        ("[2026-10-21 03:12:44 TP2 EP5]", "scheduler_TP2_EP5"),
        ("(WorkerDict pid=3, ip=10.0.0.1)", None),
        ("[rank3]", None),
    ],
)
def test_prefixes_of_logs_are_read(prefix: str, name: str | None) -> None:
    """vLLM's brackets, and SGLang's numbers behind the time."""
    found = of_prefix(prefix)
    assert (found.name if found is not None else None) == name


@pytest.mark.parametrize(
    ("titles", "wanted"),
    [
        (["VLLM::Worker_TP0", "VLLM::Worker_TP1"], [0, 1]),
        (["VLLM::Worker_PP1_TP0", "VLLM::Worker_PP1_TP1"], [2, 3]),
        (["VLLM::Worker_DP0_EP0", "VLLM::Worker_DP1_EP1"], [0, 1]),
        (["sglang::scheduler_DP0_TP0_EP0", "sglang::scheduler_DP1_TP1_EP1"], [0, 1]),
        (["sglang::scheduler_DP0_TP0", "sglang::scheduler_DP1_TP0"], [0, 1]),
        (["VLLM::Worker"], [0]),
        (["VLLM::Worker", "VLLM::Worker"], None),
        (["VLLM::Worker_TP0", "VLLM::Worker_TP0"], None),
    ],
)
def test_ranks_follow_from_places(titles: list[str], wanted: list[int] | None) -> None:
    """As the engine numbers its workers; with data-parallel attention TP goes through all; none where two are alike."""
    found = numbers({pid: role(title) for pid, title in enumerate(titles)})
    assert found == ({} if wanted is None else dict(enumerate(wanted)))


def test_workers_of_two_replicas_are_told_apart_by_their_cores() -> None:
    """vLLM's replicas of a dense model title their workers alike: the engine core above is part of the name."""
    workers = {pid: role(f"VLLM::Worker_TP{pid % 2}") for pid in range(4)}
    cores = {pid: role(f"VLLM::EngineCore_DP{pid // 2}") for pid in range(4)}
    found = with_replicas(workers, cores)
    assert [each.label for each in found.values()][2:] == [
        "Worker_TP0 of EngineCore_DP1",
        "Worker_TP1 of EngineCore_DP1",
    ]
    assert numbers(found) == {0: 0, 1: 1, 2: 2, 3: 3}
    alone = with_replicas({0: workers[0]}, {0: cores[0]})
    assert alone[0].label == "Worker_TP0"


def test_a_role_survives_its_file_and_a_strangers_file_is_not_believed() -> None:
    """What node.json carries comes back the same; other engines, types and endless names come to nothing."""
    kept = with_replicas({2: role("VLLM::Worker_TP2")}, {2: role("VLLM::EngineCore_DP1")})[2]
    assert from_value(to_value(kept)) == kept
    for value in (None, 3, {}, {"engine": "x", "name": "y"}, {"engine": "vLLM", "name": "a" * 999}, {"engine": []}):
        assert from_value(value) is None
