"""Lines of the user's own code as hangscope shows them, out of the frames of a call or of a stack."""

from __future__ import annotations

from hangscope.model import Frame, Operation
from hangscope.text import installed_package, is_installed_script, is_own_code

Frames = tuple[Frame, ...]
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


def own_frames(frames: Frames) -> list[Frame]:
    """The frames that are neither PyTorch's nor the standard library's, those of installed packages among them."""
    return [f for f in frames if is_own_code(f.filename)]


def changeable_frames(frames: Frames) -> list[Frame]:
    """The lines that the user can change: outside of PyTorch, the standard library and all installed packages.

    Where all of it is installed, those of the package that the program belongs to: the outermost one.
    """
    own = own_frames(frames)
    users = [frame for frame in own if not installed_package(frame.filename)]
    if all(frame.name == "<module>" and is_installed_script(frame.filename) for frame in users):
        packages = [package for frame in own if (package := installed_package(frame.filename))]
        if packages:
            return [frame for frame in own if installed_package(frame.filename) == packages[-1]]
    return users


def user_frame(frames: Frames) -> Frame | None:
    """The innermost line that the user can change; None where PyTorch made the call by itself.

    The function around a comprehension says more than `<listcomp>` (before Python 3.12) or `<genexpr>`.
    """
    changeable = changeable_frames(frames)
    named = [frame for frame in changeable if frame.name not in _COMPREHENSIONS]
    return next(iter(named or changeable), None)


def through(frames: Frames) -> Frame | None:
    """The innermost line of an installed package that the user's line called, and that called what it is in; None where
    the user's own code did."""
    users = user_frame(frames)
    own = own_frames(frames)
    if users is None or not own:
        return None
    inside = own[: own.index(users)]
    return inside[0] if inside and installed_package(inside[0].filename) else None


def where_paths_part(one: Frames, other: Frames) -> tuple[Frame, Frame] | None:
    """The innermost lines of the user's in which two calls differ, behind a helper that both go through; None where a
    line is missing, or all are the same. Lines of installed packages count where all of the user's are the same."""
    for lines in (changeable_frames, own_frames):
        differing = ((a, b) for a, b in zip(lines(one), lines(other), strict=False) if a != b)
        if (found := next(differing, None)) is not None:
            return found
    return None


def line(frame: Frame) -> str:
    return f"{frame.filename}:{frame.line}"


_LONGEST = 60


def function_line(frame: Frame, note: str = "") -> str:
    """``save_checkpoint (train.py:8)``, for a first line: the file's own name, and none for a module's own lines.

    ``gather (accelerate's operations.py:355)`` where the line is of an installed package.
    """
    parts = frame.filename.replace("\\", "/").split("/")
    file = "/".join(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
    package = installed_package(frame.filename)
    whose = f"{package[:_LONGEST]}'s " if package else ""
    place = f"{whose}{file[-_LONGEST:]}:{frame.line}{note}"
    return place if frame.name in ("", "<module>") else f"{frame.name[:_LONGEST]} ({place})"


def function_through(frame: Frame, inside: Frame | None, note: str = "") -> str:
    """``main (train.py:20) through gather (accelerate's operations.py:355)``."""
    text = function_line(frame, note)
    return text if inside is None else f"{text} through {function_line(inside)}"


def at(frames: Frames, word: str = "at") -> str:
    """`` at train.py:88``, for the end of a phrase; empty where no frame is the user's."""
    frame = user_frame(frames)
    return f" {word} {line(frame)}" if frame else ""


def shown(frames: Frames, limit: int = 3) -> tuple[str, ...]:
    """The lines to show: the user's innermost, and what it called between that and PyTorch; any where there is none."""
    return tuple(f"{line(f)}  {f.name}" for f in _to_show(frames, limit))


def _to_show(frames: Frames, limit: int) -> list[Frame]:
    changeable = changeable_frames(frames)
    inside = through(frames)
    if inside is not None:
        return [inside, *changeable[: limit - 1]]
    return (changeable or own_frames(frames) or list(frames))[:limit]


def own_end(frames: Frames) -> tuple[str, ...]:
    """The last lines of a traceback that are the user's, or of any where none is."""
    return tuple(f"{line(f)}  {f.name}" for f in reversed(_to_show(frames[::-1], 3)))


def ended_in(frames: Frames) -> tuple[str, ...]:
    """The last lines of a traceback, and that of the user before them."""
    users = user_frame(frames[::-1])
    last = list(frames[-3:])
    shown_last = last if users is None or users in last else [users, *last[1:]]
    return tuple(f"{line(f)}  {f.name}" for f in shown_last)


def place(frames: Frames) -> str:
    """The innermost line that the user can change, else of any; empty where there is none."""
    users = user_frame(frames)
    if users is not None:
        return line(users)
    return next((line(f) for f in own_frames(frames) or frames), "")


def two_lines(odd: Operation, reference: Operation) -> str:
    """From which lines two ranks made what should be one call."""
    mine = user_frame(odd.frames)
    theirs = user_frame(reference.frames)
    if mine is None or theirs is None:
        return "their stacks differ"
    return f"rank {odd.rank} at {line(mine)}, rank {reference.rank} at {line(theirs)}"
