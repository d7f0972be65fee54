"""What surrounds a command: options and variables that nobody means well, a torch that is none, a node that lies."""

# ruff: noqa: E501  # the lists read better so

from __future__ import annotations

from pathlib import Path
from random import Random

from hangscope.incident.collect import remote_script
from hostile.inputs import archives, dumps, logs, our_files, trees
from hostile.inputs.registry import Input, input_class

FILLED = (
    dumps.dump_files,
    logs.log_words,
    our_files.our_json_nonsense,
    our_files.json_that_grows,
    trees.tree_clashes,
    trees.tree_crowds,
    archives.bundle_bits,
)
"""What the folder is filled with that an option or a variable may name."""
VALUES = (
    "", "0", "-1", "1", "9" * 400, "1e9", "nan", "true", "\x1b[2J", "a\nb", "../../x", "/dev/zero", "/nonexistent", "$(touch x)",
    "'; touch x; '", "%h.%p%%", "é" * 300, "\udcff", "dgx[001-999]", "2.8", "2.13.0a0+git", "nccl,gloo", "cpu:gloo,cuda:nccl",
)  # fmt: skip
VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG",
    "NCCL_DEBUG_FILE", "NCCL_PROFILER_PLUGIN", "NCCL_RAS_ADDR", "HANGSCOPE_DIR", "HANGSCOPE_BLACKBOX_DIR",
    "HANGSCOPE_BLACKBOX_BYTES", "HOSTNAME", "USER", "HOME", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES", "COLUMNS", "TERM",
)  # fmt: skip


def filled(rng: Random, root: Path) -> Path:
    rng.choice(FILLED)(rng, root)
    return root


def value(rng: Random, root: Path) -> str:
    """What somebody may give to an option, or set a variable to."""
    return rng.choice((*VALUES, str(root), str(root / "rank_0.log")))


def environment(rng: Random, root: Path) -> dict[str, str]:
    return {name: value(rng, root) for name in rng.sample(VARIABLES, rng.randrange(8))}


@input_class
def options(rng: Random, root: Path) -> Input:
    """For verbs that judge and print settings, and for one that writes a job."""
    return Input(filled(rng, root), verbs=("doctor", "env", "simulate"))


TORCHES = ("raise ImportError('x')", "import os; os._exit(3)", "def", "raise SystemExit(0)", "__version__ = 5")


@input_class
def broken_torch(rng: Random, root: Path) -> Input:
    """A directory that others filled, to run in; beside it a torch that is none."""
    fake = root.parent / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(rng.choice(TORCHES))
    return Input(filled(rng, root), verbs=("run", "demo"))


@input_class
def lying_node(rng: Random, root: Path) -> Input:
    """A node that answers `collect` with a listing of nonsense, and with whatever the folder holds."""
    filled(rng, root)
    paths = ["/x/nccl_trace_rank_0", "/../../y", "/A/b", "/a/B", "/" + "z" * 3000, "/\x1b[2J", "rel/x", "/x/y\udcff"]
    rows = [
        f"{rng.choice('GDIS?')} {rng.choice(('5', '-', '9' * 30, '-1', 'x'))} {rng.choice(('5', '-', '9' * 30))} - {p}"
        for p in rng.choices(paths, k=rng.randrange(9))
    ]
    listing = f"{remote_script.BEGIN}\n" + "\n".join(rows) + f"\n{remote_script.END}\n"
    data = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    answer = root.parent / "answer"
    answer.write_bytes(listing.encode("utf-8", "surrogateescape") + data[:1_000_000])
    return Input(answer, verbs=("node",))
