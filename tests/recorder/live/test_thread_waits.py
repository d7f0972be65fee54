"""What a rank waits in, from the frames of its threads."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.recorder.live.rank_position import RankPosition
from hangscope.recorder.live.thread_waits import ThreadWait, find_wait, is_preparing, parse_stacks

TORCH = "/env/lib/python3.12/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"


def thread(*frames: tuple[str, int, str], main: bool = True, number: int = 7) -> dict[str, Any]:
    listed = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {"os_thread_id": number, "main": main, "frames": listed}


def wait_in(*given: dict[str, Any], line: str = "", counters: dict[str, Any] | None = None) -> ThreadWait | None:
    return find_wait(parse_stacks({"threads": list(given)}), counters or {}, lambda _: line)


STORE_GET = {"pytorch.wait_counter.TCPStore__get": {"active_count": 1}}
IN_GROUP = thread((C10D, 9, "_store_based_barrier"), (C10D, 5, "new_group"), ("/job/train.py", 3, "<module>"))
IN_INIT = thread((C10D, 9, "_new_process_group_helper"), (C10D, 5, "init_process_group"), ("/job/train.py", 3, "main"))
SCHEDULE = f"{TORCH}/distributed/pipelining/schedules.py"
IN_PIPELINE = thread((SCHEDULE, 9, "_wait_batch_p2p"), (SCHEDULE, 5, "step"), ("/job/train.py", 3, "<module>"))
IN_USER_CODE = thread(("/job/train.py", 8, "exchange"), ("/job/train.py", 3, "<module>"))
IN_FORWARD = thread(("/job/model.py", 8, "forward"), (f"{TORCH}/distributed/fsdp/x.py", 5, "f"), ("/job/t.py", 3, "m"))


JAX = "/env/lib/python3.12/site-packages/jax"
IN_ALLGATHER = thread(
    (f"{JAX}/experimental/multihost_utils.py", 134, "_handle_array_process_allgather"),
    (f"{JAX}/_src/tree_util.py", 399, "tree_map"),
    (f"{JAX}/experimental/multihost_utils.py", 159, "process_allgather"),
    ("/job/train.py", 16, "<module>"),
)
IN_INITIALIZE = thread((f"{JAX}/_src/distributed.py", 173, "initialize"), ("/job/train.py", 5, "<module>"))
READS_A_VALUE = thread(
    (f"{JAX}/_src/array.py", 642, "_value"), (f"{JAX}/_src/array.py", 300, "__float__"), ("/job/train.py", 9, "main")
)
RUNS_JAX = thread((f"{JAX}/_src/numpy/ufuncs.py", 12, "add"), ("/job/train.py", 9, "main"))


def test_jax_waits_for_all_processes_and_for_values() -> None:
    """Nothing of torch is in these processes: the frames of JAX say who waits for whom."""
    gathers, joins = wait_in(IN_ALLGATHER), wait_in(IN_INITIALIZE)
    assert gathers is not None and (gathers.call, gathers.polls, gathers.on_gpu) == ("process_allgather", True, False)
    assert joins is not None and joins.in_init
    reads = find_wait(parse_stacks([READS_A_VALUE]), {}, lambda _: "", cuda=True)
    assert reads is not None and reads.on_gpu
    assert wait_in(RUNS_JAX) is None


@pytest.mark.parametrize(
    ("file", "name", "compiles"),
    [
        ("torch/_dynamo/convert_frame.py", "_compile_inner", True),
        ("torch/_inductor/compile_fx.py", "bw_compiler_base", True),
        ("torch/_inductor/compile_fx.py", "_compile_fx_inner", True),
        ("torch/_inductor/runtime/triton_heuristics.py", "benchmark_all_configs", True),
        ("torch/_inductor/runtime/triton_heuristics.py", "run", False),
        ("torch/utils/cpp_extension.py", "_run_ninja_build", True),
        ("triton/compiler/compiler.py", "compile", True),
        ("triton/runtime/autotuner.py", "_bench", True),
        ("triton/runtime/jit.py", "run", False),
        ("torch/_dynamo/eval_frame.py", "compile_wrapper", False),
        ("torch/_inductor/output_code.py", "__call__", False),
        ("torch/_functorch/_aot_autograd/runtime_wrappers.py", "runtime_wrapper", False),
    ],
)
def test_who_compiles_is_told_from_who_runs_what_was_compiled(file: str, name: str, compiles: bool) -> None:
    """The same packages stand in both stacks; a backward is compiled in a thread of autograd's."""
    frames = ((f"/env/lib/python3.12/site-packages/{file}", 9, name), ("/job/train.py", 3, "<module>"))
    assert is_preparing(parse_stacks([IN_USER_CODE, thread(*frames, main=False)])) is compiles


IMPORTLIB = "<frozen importlib._bootstrap>"
FSDP = f"{TORCH}/distributed/fsdp/__init__.py"


@pytest.mark.parametrize("module", ((), ((FSDP, 1, "<module>"),)))
def test_an_import_prepares_and_waits_for_nobody(module: tuple[tuple[str, int, str], ...]) -> None:
    """Also one of torch.distributed's own modules; a program that a launcher imports as a whole is no import."""
    load = (IMPORTLIB, 1360, "_find_and_load")
    given = parse_stacks([thread((IMPORTLIB, 488, "exec"), load, *module, load, ("/job/train.py", 3, "<module>"))])
    assert is_preparing(given)
    assert find_wait(given, {}, lambda _: "") is None
    launched = ("/job/train.py", 3, "<module>"), (IMPORTLIB, 1360, "_find_and_load"), ("/job/launch.py", 9, "main")
    assert not is_preparing(parse_stacks([thread(*launched)]))
    assert wait_in(thread((C10D, 9, "new_group"), *launched)) is not None


def test_a_backward_is_a_wait_only_where_nothing_counts_operations() -> None:
    """DDP waits inside autograd, below Python. Counters tell better, and a forward is none."""
    graph = f"{TORCH}/autograd/graph.py"
    given = parse_stacks([thread((graph, 9, "_engine_run_backward"), ("/job/train.py", 3, "step"))])
    assert find_wait(given, {}, lambda _: "") is None
    found = find_wait(given, {}, lambda _: "", counted=False)
    assert (found.call, str(found.at)) == ("backward", "train.py:3") if found is not None else False
    assert find_wait(parse_stacks([IN_FORWARD]), {}, lambda _: "", counted=False) is None


@pytest.mark.parametrize(
    ("given", "line", "counters", "call"),
    [
        (IN_GROUP, "", {}, "new_group"),
        (IN_PIPELINE, "", {}, "step"),
        (IN_USER_CODE, "    for w in work: w.wait()", {}, "w.wait"),
        (IN_USER_CODE, "key = store.get('x')", STORE_GET, "store.get"),
        (IN_USER_CODE, "pg.recv([into], 0, 0)", {}, "pg.recv"),
    ],
)
def test_waits_of_torch_distributed_are_known(given: Any, line: str, counters: Any, call: str) -> None:
    """By the file that a thread is in, by the line that calls into C, or by PyTorch's own counter of open calls."""
    found = wait_in(given, line=line, counters=counters)
    assert found is not None
    assert (found.call, found.in_init, str(found.at)[:5]) == (call, False, "train")


def test_coming_together_is_told_from_waiting_later() -> None:
    """Ranks start minutes apart: init_process_group may take longer than anything after it."""
    found = wait_in(IN_INIT)
    assert found is not None
    assert (found.call, found.in_init) == ("init_process_group", True)
    store = (f"{TORCH}/distributed/rendezvous.py", 190, "_create_c10d_store")
    early = wait_in(thread(store, (C10D, 5, "init_process_group"), ("/job/train.py", 3, "main")))
    assert early is not None
    assert (early.call, early.in_init) == ("rendezvous", True)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (IN_USER_CODE, "batch = loader.get()"),
        (IN_USER_CODE, "time.sleep(600)"),
        (IN_USER_CODE, "data = client.recv(4096)"),
        (IN_USER_CODE, "pid, status = os.wait()"),
        (IN_FORWARD, "return self.linear(x)"),
        (thread(("/env/lib/python3.12/site-packages/datasets/x.py", 1, "download"), ("/job/t.py", 3, "m")), ""),
        (thread((f"{TORCH}/distributed/run.py", 1, "main"), ("/job/t.py", 3, "m")), ""),
    ],
)
def test_a_rank_elsewhere_waits_in_nothing(given: Any, line: str) -> None:
    """Data, downloads, compute inside FSDP's own frames and the launcher are no waits of torch.distributed."""
    assert wait_in(given, line=line) is None


def test_another_thread_counts_only_where_the_main_one_waits_for_it() -> None:
    """A helper's wait says nothing about a rank whose main thread works."""
    beside = thread((C10D, 5, "recv"), ("/job/train.py", 9, "loop"), main=False, number=8)
    queue = thread(("/env/lib/python3.12/threading.py", 1, "wait"), ("/job/train.py", 3, "<module>"))
    assert wait_in(IN_USER_CODE, beside, line="loss = model(x)") is None
    found = wait_in(queue, beside)
    assert found is not None
    assert found.thread == 8


def test_nobody_can_tell_whether_a_backward_waits() -> None:
    """DDP waits for its peers below Python: a rank in autograd is neither inside nor outside."""
    engine = (f"{TORCH}/autograd/graph.py", 9, "_engine_run_backward")
    for given, outside in ((thread(engine, ("/job/t.py", 3, "m")), False), (IN_USER_CODE, True)):
        position, found = RankPosition(), parse_stacks({"threads": [given]})
        position.take(found, find_wait(found, {}, lambda _: "loss = model(x)"), quiet_since=1.0, now=2.0)
        assert (position.wait, position.outside) == (None, outside)


def test_a_rank_stands_from_its_last_sign_of_progress_and_moves_by_its_line() -> None:
    """The first look counts from when the counters stopped, the next only if nothing changed."""
    position, found = RankPosition(), parse_stacks({"threads": [IN_GROUP]})
    wait = find_wait(found, {}, lambda _: "")
    position.take(found, wait, quiet_since=10.0, now=25.0)
    position.take(found, wait, quiet_since=10.0, now=30.0)
    assert (position.since, position.samples, position.moves) == (10.0, 2, 0)
    elsewhere = parse_stacks({"threads": [IN_PIPELINE]})
    position.take(elsewhere, find_wait(elsewhere, {}, lambda _: ""), quiet_since=10.0, now=35.0)
    assert (position.since, position.samples, position.moves) == (35.0, 1, 1)


@pytest.mark.parametrize("value", [None, [], {"threads": 3}, {"threads": [{"frames": [3, {"filename": 4}]}, "x"]}])
def test_an_odd_answer_is_no_stack(value: Any) -> None:
    """Whatever a process answers, nobody is seen waiting in it."""
    assert find_wait(parse_stacks(value), {}, lambda _: "") is None


IN_COLLECTIVE = thread(
    (C10D, 9, "all_reduce"), (f"{TORCH}/distributed/c10d_logger.py", 8, "wrapper"), ("/t.py", 3, "m")
)
FUNCTIONAL = (f"{TORCH}/distributed/_functional_collectives.py", 9, "all_reduce")
IN_FUNCTIONAL = thread((f"{TORCH}/_ops.py", 7, "__call__"), FUNCTIONAL, ("/job/train.py", 3, "main"))
IN_COMPILED = thread((f"{TORCH}/_ops.py", 7, "__call__"), ("/tmp/torchinductor_me/x/cx.py", 90, "call"))
COMPILED_LINE = "    torch.ops._c10d_functional.all_gather_into_tensor_out.default(arg0, 2, '0', out=buf1)"


@pytest.mark.parametrize(
    ("given", "line", "polls"),
    [
        (IN_COLLECTIVE, "", True),
        (IN_FUNCTIONAL, "", True),
        (IN_COMPILED, COMPILED_LINE, True),
        (thread((C10D, 9, "_object_to_tensor"), (C10D, 5, "all_gather_object"), ("/job/t.py", 3, "m")), "", False),
        (thread((f"{TORCH}/distributed/checkpoint/filesystem.py", 9, "write"), ("/job/t.py", 3, "m")), "", False),
        (IN_USER_CODE, "w.wait()", False),
    ],
)
def test_only_inside_a_collective_is_a_busy_thread_a_waiting_one(given: Any, line: str, polls: bool) -> None:
    """NCCL polls while it connects; who pickles an object or writes a checkpoint is at work."""
    found = wait_in(given, line=line)
    assert found is not None
    assert found.polls is polls


CUDA = f"{TORCH}/cuda/__init__.py"
STREAMS = f"{TORCH}/cuda/streams.py"
GRAPHS = f"{TORCH}/cuda/graphs.py"


@pytest.mark.parametrize(
    ("given", "line", "call"),
    [
        (thread((CUDA, 9, "synchronize"), ("/job/t.py", 3, "m")), "", "synchronize"),
        (thread((STREAMS, 9, "synchronize"), ("/job/t.py", 3, "m")), "", "synchronize"),
        (thread((GRAPHS, 9, "replay"), ("/job/t.py", 3, "m")), "", "replay"),
        (IN_USER_CODE, "print(loss.item())", "item"),
        (IN_USER_CODE, "ids = sampled.tolist()", "tolist"),
    ],
)
def test_a_wait_for_the_own_gpu_is_known_where_there_can_be_one(given: Any, line: str, call: str) -> None:
    """By the file that waits, or the line that reads a value; a build for CPU waits for no GPU."""
    stacks = parse_stacks({"threads": [given]})
    found = find_wait(stacks, {}, lambda _: line, cuda=True)
    assert found is not None
    assert (found.call, found.on_gpu, found.polls) == (call, True, True)
    assert find_wait(stacks, {}, lambda _: line) is None


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (thread((CUDA, 9, "is_available"), ("/job/t.py", 3, "m")), ""),
        (thread(("/job/torch_cuda.py", 9, "synchronize"), ("/job/t.py", 3, "m")), ""),
        (IN_USER_CODE, "batch = next(loader)"),
        (IN_USER_CODE, "names = table.items()"),
    ],
)
def test_what_is_no_wait_for_a_gpu_is_not_taken_for_one(given: Any, line: str) -> None:
    """Other calls of the same module, and code of the user's own with such a name."""
    found = find_wait(parse_stacks({"threads": [given]}), {}, lambda _: line, cuda=True)
    assert found is None or not found.on_gpu
