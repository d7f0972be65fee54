"""How hangscope says numbers (ranges of ranks, counts, durations, sizes), and whose code a line is.

Used by rules and reports alike.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Sequence, Sized
from functools import lru_cache

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LONGEST_PATH = 4096
_FOLD = 3
"""Two neighbours read better as ``4, 5``; three and more become ``4-6``."""

_LIBRARY = re.compile(
    r"/torch/|^torch/|^<"  # PyTorch, however it was installed; <frozen importlib>, <string>
    r"|/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)"  # the standard library, and not what is installed beside it
    # py-spy shortens names to what follows lib/python3.x: these are where processes wait.
    r"|(^|/)(threading|contextlib)\.py$|^(queue|selectors|socket|ssl|subprocess|runpy)\.py$"
    r"|^(multiprocessing|concurrent|asyncio|importlib)/"
    # What hosts the user's code or runs beside it: a thread that is in these alone does nothing for the training.
    r"|(^|/(site|dist)-packages/)(ray|ipykernel|IPython|tornado|traitlets|debugpy|cloudpickle|joblib|zmq|grpc"
    r"|tqdm|tensorboard|tensorboardX|wandb|mlflow|comet_ml|clearml|prometheus_client)/"
    r"|(^|/)_?hangscope_companion\.py$"
)
_INSTALLED = re.compile(
    # pip, conda, Debian, uv; a pex's wheels; after these comes the package's own name
    r"(?:^|.*/)(?:site-packages|dist-packages|installed_wheels/[^/]{1,200}/[^/]{1,200})/(?P<package>[^/]+)"
    # a name as py-spy and tools like it shorten it: the package's and what follows
    r"|^(?P<shortened>accelerate|lightning|lightning_fabric|pytorch_lightning|lightning_utilities|transformers|datasets"
    r"|deepspeed|peft|trl|diffusers|sentence_transformers|composer|ignite|colossalai|torchvision|torchaudio|torchmetrics"
    r"|torchtitan|numpy|pandas|PIL|requests|urllib3|botocore|boto3|s3fs|fsspec|huggingface_hub|sklearn|scipy|hydra"
    r"|vllm|sglang|tensorrt_llm)/"
)
_SCRIPT = re.compile(r"(^|/)(bin|Scripts)/[^/.]+(\.exe)?$")
"""What an installed package puts into the PATH: two generated lines that call it."""


@lru_cache(maxsize=1 << 16)
def is_own_code(filename: str) -> bool:
    """Whether a line is neither PyTorch's nor the standard library's nor of what hosts a program.

    Installed packages count here: Megatron or transformers is what such a job runs. Whether a line is one that the user
    can change, `installed_package` says.
    """
    name = _posix(filename)
    return bool(name) and _LIBRARY.search(name) is None


@lru_cache(maxsize=1 << 16)
def installed_package(filename: str) -> str:
    """The top-level name of the installed package that a file is of: ``accelerate``; empty where it is of none, as the
    user's own, a source tree and what was installed from one in place (`pip install -e`)."""
    match = _INSTALLED.match(_posix(filename))
    return (match["package"] or match["shortened"]).removesuffix(".py") if match is not None else ""


@lru_cache(maxsize=1 << 12)
def is_installed_script(filename: str) -> bool:
    """Whether a file is a command in the PATH, as ``/opt/venv/bin/vllm``."""
    return _SCRIPT.search(_posix(filename)) is not None


def _posix(filename: str) -> str:
    name = filename if len(filename) <= _LONGEST_PATH else filename[-_LONGEST_PATH:]  # a dump can hold any string
    return name.replace("\\", "/")


def ranges(ranks: Iterable[int], limit: int | None = None) -> str:
    """Ranks as people write them: ``0-511, 520``. At most `limit` parts, then how many ranks are left unsaid."""
    return _join(_runs(sorted(set(ranks)), strides=False), limit)


def spans(ranks: Iterable[int], limit: int | None = None) -> str:
    """As `ranges`, and evenly spaced ranks in one part too: ``3-8187 step 8``. A layout of groups repeats so."""
    return _join(_runs(sorted(set(ranks)), strides=True), limit)


def _runs(ordered: Sequence[int], *, strides: bool) -> list[tuple[str, int]]:
    """The parts of the list, each with how many ranks it stands for."""
    parts: list[tuple[str, int]] = []
    at = 0
    while at < len(ordered):
        step = ordered[at + 1] - ordered[at] if at + 1 < len(ordered) else 0
        end = at + 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        count = end - at
        if step == 1 and count >= _FOLD:
            parts.append((f"{ordered[at]}-{ordered[end - 1]}", count))
        elif strides and count > _FOLD:
            parts.append((f"{ordered[at]}-{ordered[end - 1]} step {step}", count))
        else:
            parts.append((str(ordered[at]), 1))
            end = at + 1
        at = end
    return parts


def _join(parts: list[tuple[str, int]], limit: int | None) -> str:
    if limit is not None and len(parts) > limit:
        left = sum(count for _, count in parts[limit:])
        parts = [*parts[:limit], (f"and {left} more", 0)]
    return ", ".join(text for text, _ in parts)


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``7 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rank_list(ranks: Iterable[int], limit: int | None = None) -> str:
    """``rank 3``, ``ranks 0-2, 5`` or ``ranks 3-8187 step 8``."""
    known = set(ranks)
    return f"{'rank' if len(known) == 1 else 'ranks'} {spans(known, limit)}"


def duration(seconds: float) -> str:
    """``0.4s``, ``12s``, ``30m 02s``, ``3h 05m``, ``2d 04h``."""
    if not math.isfinite(seconds) or seconds < 0:
        return "an unknown time"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}h"


def size(count: int) -> str:
    """``512 B``, ``4.0 MiB``."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 64`` where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def sentence(text: str) -> str:
    """`text` with a capital at its start and nothing else changed: host names keep theirs."""
    return text[:1].upper() + text[1:]


def first_line(message: str, limit: int = 160) -> str:
    """What a message says before its hints and links: its first line, and the next where that one ends in a colon."""
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    if len(text) <= limit:
        return text
    sentences = text[:limit].rfind(". ") + 1
    return text[:sentences] if sentences else text[: limit - 1] + "…"


def short(text: str, limit: int = 160) -> str:
    """A quoted line on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def verb(ranks: Sized, one: str, many: str) -> str:
    """The form that agrees with so many ranks."""
    return one if len(ranks) == 1 else many


def numbered(name: str, seq: int | None) -> str:
    """``all_reduce #7``, or the name alone."""
    return f"{name} #{seq}" if name and seq is not None else name
