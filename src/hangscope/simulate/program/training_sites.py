"""Where the training code calls the communication library: one `Site` per line of code that does.

The stacks look like those of a real dump: PyTorch's own frames innermost, then a small imaginary training program under
/workspace. Layers call from a loop, so they share their lines, as they do in life.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Frame = tuple[str, str, int]
"""(function, file, line)"""
Shape = tuple[int, ...]

_TORCH = "/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py"
_WRAPPER: Frame = ("wrapper", "/usr/local/lib/python3.12/dist-packages/torch/distributed/c10d_logger.py", 83)

_API: dict[str, tuple[Frame, ...]] = {
    "all_reduce": (("all_reduce", _TORCH, 3068), _WRAPPER),
    "broadcast": (("broadcast", _TORCH, 2968), _WRAPPER),
    "reduce": (("reduce", _TORCH, 3215), _WRAPPER),
    "all_gather_into_tensor": (("all_gather_into_tensor", _TORCH, 4186), _WRAPPER),
    "reduce_scatter_tensor": (("reduce_scatter_tensor", _TORCH, 4659), _WRAPPER),
    "all_to_all_single": (("all_to_all_single", _TORCH, 4829), _WRAPPER),
    "barrier": (("barrier", _TORCH, 5030), _WRAPPER),
    "send": (("isend", _TORCH, 2552), ("send", _TORCH, 2627), _WRAPPER),
    "recv": (("irecv", _TORCH, 2597), ("recv", _TORCH, 2659), _WRAPPER),
    "batch send": (("isend", _TORCH, 2552), ("batch_isend_irecv", _TORCH, 2903)),
    "batch recv": (("irecv", _TORCH, 2597), ("batch_isend_irecv", _TORCH, 2903)),
    "batch end": (
        ("_coalescing_manager", _TORCH, 2785),
        ("__exit__", "/usr/lib/python3.12/contextlib.py", 144),
        ("batch_isend_irecv", _TORCH, 2901),
    ),
    "coalesced end": (("_coalescing_manager", _TORCH, 2785), ("__exit__", "/usr/lib/python3.12/contextlib.py", 144)),
}

_TRAIN = "/workspace/train.py"
_MODEL = "/workspace/model/"
_MAIN: tuple[Frame, ...] = (("main", _TRAIN, 198), ("<module>", _TRAIN, 214))
_FORWARD: tuple[Frame, ...] = (
    ("forward", _MODEL + "transformer.py", 96),
    ("train_step", _TRAIN, 141),
    *_MAIN,
)
_BACKWARD: tuple[Frame, ...] = (("apply", "/usr/local/lib/python3.12/dist-packages/torch/autograd/function.py", 311),)
_STEP: tuple[Frame, ...] = (("train_step", _TRAIN, 152), *_MAIN)


def _pipeline(function: str, line: int) -> tuple[Frame, ...]:
    return (
        ("_communicate", "/workspace/pipeline/p2p.py", 74),
        (function, "/workspace/pipeline/p2p.py", line),
        ("run_1f1b", "/workspace/pipeline/schedule.py", 118 + line % 7),
        ("train_step", _TRAIN, 141),
        *_MAIN,
    )


CALLERS: dict[str, tuple[Frame, ...]] = {
    "data": (("broadcast_batch", "/workspace/data/loader.py", 64), ("train_step", _TRAIN, 133), *_MAIN),
    "gather forward": (("unshard", "/workspace/parallel/fsdp.py", 112), *_FORWARD),
    "gather backward": (
        ("unshard", "/workspace/parallel/fsdp.py", 112),
        ("pre_backward", "/workspace/parallel/fsdp.py", 187),
        *_BACKWARD,
    ),
    "attention forward": (
        ("reduce_from_tp", _MODEL + "parallel.py", 58),
        ("forward", _MODEL + "attention.py", 131),
        *_FORWARD,
    ),
    "mlp forward": (("reduce_from_tp", _MODEL + "parallel.py", 58), ("forward", _MODEL + "mlp.py", 47), *_FORWARD),
    "attention backward": (("backward", _MODEL + "parallel.py", 71), *_BACKWARD),
    "mlp backward": (("backward", _MODEL + "parallel.py", 79), *_BACKWARD),
    "loss parallel": (("vocab_parallel_loss", _MODEL + "loss.py", 39), ("train_step", _TRAIN, 143), *_MAIN),
    "dispatch forward": (("dispatch", _MODEL + "moe.py", 122), ("forward", _MODEL + "moe.py", 88), *_FORWARD),
    "combine forward": (("combine", _MODEL + "moe.py", 139), ("forward", _MODEL + "moe.py", 94), *_FORWARD),
    "dispatch backward": (("backward", _MODEL + "moe.py", 171), *_BACKWARD),
    "combine backward": (("backward", _MODEL + "moe.py", 180), *_BACKWARD),
    "scatter gradients": (("post_backward", "/workspace/parallel/fsdp.py", 231), *_BACKWARD),
    "reduce bucket": (("_reduce_bucket", "/workspace/parallel/ddp.py", 93), *_BACKWARD),
    "recv_forward": _pipeline("recv_forward", 101),
    "recv_backward": _pipeline("recv_backward", 119),
    "send_forward": _pipeline("send_forward", 137),
    "send_backward": _pipeline("send_backward", 153),
    "send_forward_recv_backward": _pipeline("send_forward_recv_backward", 171),
    "send_backward_recv_forward": _pipeline("send_backward_recv_forward", 190),
    "expert norm": (("expert_grad_norm", "/workspace/optim.py", 57), *_STEP),
    "gradient norm": (("clip_grad_norm", "/workspace/optim.py", 44), *_STEP),
    "loss": (("log_loss", _TRAIN, 97), ("train_step", _TRAIN, 158), *_MAIN),
    "before checkpoint": (("save", "/workspace/checkpoint.py", 66), ("main", _TRAIN, 203), _MAIN[1]),
    "checkpoint step": (("save", "/workspace/checkpoint.py", 71), ("main", _TRAIN, 203), _MAIN[1]),
    "after checkpoint": (("save", "/workspace/checkpoint.py", 83), ("main", _TRAIN, 203), _MAIN[1]),
    # Lines that only a rank with a fault ever reaches.
    "other branch": (("sync_metrics", "/workspace/metrics.py", 91), ("train_step", _TRAIN, 160), *_MAIN),
}

AUTOGRAD = frozenset(name for name, frames in CALLERS.items() if frames[-1] is _BACKWARD[-1])
"""Call sites that run on autograd's device thread and not on the main thread."""


@dataclass(frozen=True, slots=True)
class Site:
    """One call as a recorder sees it: the operation's name, sizes, type and stack.

    `direction` is "send" or "recv" for point-to-point calls, whose recorded name carries the two ranks.
    """

    name: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtype: str
    frames: tuple[Frame, ...]
    thread: str
    direction: str = ""
    closing: bool = False
    output_dtype: str = ""

    @property
    def caller(self) -> Frame:
        """The innermost frame of the training code: the line that a person would look at."""
        return next(frame for frame in self.frames if frame[1].startswith("/workspace"))

    @property
    def size_bytes(self) -> int:
        """The larger of what goes in and what comes out."""
        return max(count(self.inputs), count(self.outputs)) * ELEMENT_BYTES[self.dtype]


def site(
    name: str,
    api: str,
    caller: str,
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...] | None = None,
    dtype: str = "BFloat16",
    *,
    direction: str = "",
    closing: bool = False,
) -> Site:
    thread = "pt_autograd_0" if caller in AUTOGRAD else "python3"
    frames = (*_API[api], *CALLERS[caller])
    if outputs is None:
        outputs = inputs
    return Site(name, inputs, outputs, dtype, frames, thread, direction, closing)


def on_line_of(call: Site, caller: str) -> Site:
    """The same call made from another place in the code."""
    own = tuple(frame for frame in call.frames if not frame[1].startswith("/workspace") and frame not in _BACKWARD)
    return replace(call, frames=(*own, *CALLERS[caller]), thread="python3")


ELEMENT_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Int": 4, "Byte": 1, "Double": 8}


def count(shapes: tuple[Shape, ...]) -> int:
    """Elements in all tensors of these shapes."""
    total = 0
    for shape in shapes:
        elements = 1
        for length in shape:
            elements *= length
        total += elements
    return total
