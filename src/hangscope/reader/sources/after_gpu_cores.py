"""Leaves out what ranks wrote after their GPUs were asked what they run: it is our own doing."""

from __future__ import annotations

from hangscope.incident.layout import GPUS_ASKED_FILE
from hangscope.incident.written_before import GROWING, WHY, counted_bytes, sizes_before
from hangscope.model import Gap, Source
from hangscope.reader.find_files import Found

_ASKED = tuple(GPUS_ASKED_FILE.split("/"))


def without_what_came_after(found: list[Found], gaps: list[Gap]) -> list[Found]:
    """The files that count, each up to where it was when the GPUs of its node were asked."""
    folders: dict[tuple[str, ...], dict[str, int]] = {}
    for item in found:
        sizes = sizes_before(item.about_others) if item.about_others is not None else None
        if sizes is not None:
            folders[item.parts[: -len(_ASKED)] if item.parts[-len(_ASKED) :] == _ASKED else item.parts[:-1]] = sizes
    if not folders:
        return found
    kept = []
    for item in found:
        most = _counted(item, folders)
        if most is None or item.size <= most:
            kept.append(item)
            continue
        what = f"the end of {item.file}" if most else f"file {item.file}"
        gaps.append(Gap(what, WHY, source=Source(item.file)))
        if most:
            item.cut(most)
            kept.append(item)
        else:
            item.close()
    return kept


def _counted(item: Found, folders: dict[tuple[str, ...], dict[str, int]]) -> int | None:
    for depth, part in enumerate(item.parts):
        sizes = folders.get(item.parts[:depth]) if part in GROWING else None
        if sizes is not None:
            return counted_bytes(sizes, "/".join(item.parts[depth:]))
    return None
