"""Lines of the user's own code as hangscope shows them, out of the frames of a call or of a stack."""

from __future__ import annotations

from hangscope.model import Frame, Operation
from hangscope.text import is_own_code

Frames = tuple[Frame, ...]
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


def own_frames(frames: Frames) -> list[Frame]:
    return [f for f in frames if is_own_code(f.filename)]


def user_frame(frames: Frames) -> Frame | None:
    """The innermost frame of the user's own code; None where PyTorch made the call by itself.

    The function around a comprehension says more than `<listcomp>` (before Python 3.12) or `<genexpr>`.
    """
    own = own_frames(frames)
    named = [frame for frame in own if frame.name not in _COMPREHENSIONS]
    return next(iter(named or own), None)


def where_paths_part(one: Frames, other: Frames) -> tuple[Frame, Frame] | None:
    """The innermost lines of the user's in which two calls differ, behind a helper that both go through; None where a
    line is missing, or all are the same."""
    differing = ((a, b) for a, b in zip(own_frames(one), own_frames(other), strict=False) if a != b)
    return next(differing, None)


def line(frame: Frame) -> str:
    return f"{frame.filename}:{frame.line}"


_LONGEST = 60


def function_line(frame: Frame, note: str = "") -> str:
    """``save_checkpoint (train.py:8)``, for a first line: the file's own name, and none for a module's own lines."""
    parts = frame.filename.replace("\\", "/").split("/")
    file = "/".join(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
    place = f"{file[-_LONGEST:]}:{frame.line}{note}"
    return place if frame.name in ("", "<module>") else f"{frame.name[:_LONGEST]} ({place})"


def at(frames: Frames, word: str = "at") -> str:
    """`` at train.py:88``, for the end of a phrase; empty where no frame is the user's."""
    frame = user_frame(frames)
    return f" {word} {line(frame)}" if frame else ""


def shown(frames: Frames, limit: int = 3) -> tuple[str, ...]:
    """The user's frames as lines to show, or the innermost ones where there is none."""
    return tuple(f"{line(f)}  {f.name}" for f in (own_frames(frames) or list(frames))[:limit])


def own_end(frames: Frames) -> tuple[str, ...]:
    """The last lines of a traceback that are the user's, or of any where none is."""
    own = own_frames(frames)
    return tuple(f"{line(f)}  {f.name}" for f in own[-3:]) or ended_in(frames)


def ended_in(frames: Frames) -> tuple[str, ...]:
    """The last lines of a traceback."""
    return tuple(f"{line(f)}  {f.name}" for f in frames[-3:])


def place(frames: Frames) -> str:
    """The innermost line of the user's code, or else of any; empty where there is none."""
    return next((line(f) for f in own_frames(frames) or frames), "")


def two_lines(odd: Operation, reference: Operation) -> str:
    """From which lines two ranks made what should be one call."""
    mine = user_frame(odd.frames)
    theirs = user_frame(reference.frames)
    if mine is None or theirs is None:
        return "their stacks differ"
    return f"rank {odd.rank} at {line(mine)}, rank {reference.rank} at {line(theirs)}"
