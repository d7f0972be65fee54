"""One file: what it is, by its content, and what it says. Files that are nothing known are passed over."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from hangscope.errors import contained
from hangscope.model import Gap, Source
from hangscope.model.ranks_in_paths import rank_of_dump
from hangscope.reader import find_files
from hangscope.reader.dumps import dump_file, pickle_machine
from hangscope.reader.find_files import Found
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.parallel import Work, dump_of
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.sources import error_files, incident_files, live_status, rosters
from hangscope.safeio import bounded_json, limits
from hangscope.sources import slices
from hangscope.sources.net_counters import read_sysfs as sysfs
from hangscope.sources.report import SourceFile, SourceReport


def read_file(item: Found, evidence: Evidence) -> None:
    """Recognise one file and put what it says into the evidence. A dump on disk is put off: see `Evidence.waiting`."""
    try:
        if not _is_counter(item, evidence):
            _read_content(item, evidence)
    except OSError as error:
        evidence.gaps.append(Gap(f"file {item.file}", f"cannot be read: {error}", source=Source(item.file)))
    except Exception as error:
        _contain(item, error, evidence)
    finally:
        if not (evidence.waiting and evidence.waiting[-1][0] is item):
            item.close()


def _contain(item: Found, error: Exception, evidence: Evidence) -> None:
    """A reader that raises costs its own file; what it said before counts."""
    why = contained(error)
    if find_files.named_as_dump(item.name):
        _refuse(item, f"not read: {why}", evidence)
        return
    gap = Gap(f"file {item.file}", f"not read, or only in part: {why}", source=Source(item.file))
    evidence.refusals[gap] = item.parts
    evidence.gaps.append(gap)


def _read_content(item: Found, evidence: Evidence) -> None:
    if item.about_others is not None:
        _read_json(item.about_others, item, evidence)
        return
    if not item.size:
        _read_empty(item, evidence)
        return
    start = item.head(limits.START_BYTES)
    if pickle_machine.is_pickle(start) and (form := dump_file.recognise(start)):
        _read_dump(item, form, evidence)
        return
    head = item.head(limits.HEAD_BYTES)
    for is_format in _FORMATS:
        if is_format(item, head, evidence):
            return
    _read_unknown(item, evidence)


# ---- formats: each says whether the file is of it, and was dealt with ------------------------------------------------


def _is_counter(item: Found, evidence: Evidence) -> bool:
    """A file of a copied /sys tree is what its path says; a log may lie in a folder of such a name too."""
    place = sysfs.place_of(item.parts) if item.size <= sysfs.MAX_BYTES else None
    if place is None:
        return False
    try:
        raw = item.head(sysfs.MAX_BYTES)
    except OSError:
        return True  # some counters of a live tree cannot be read, and a copy of them has no bytes
    tree = evidence.trees.get(place[0], sysfs.Tree(place[0]))
    known = sysfs.add(tree, place[1], raw)
    if known:
        evidence.trees[place[0]] = tree
    return known


def _is_of_a_source(item: Found, head: bytes, evidence: Evidence) -> bool:
    """A file that one of the sources knows by its content."""
    source = slices.reader_of(head)
    if source is None:
        return False
    if hasattr(source, "read_file"):
        report = source.read_file(item)
        if report is not None:
            _keep(source, report, b"", item, evidence)
        return report is not None
    if item.size > limits.JSON_BYTES:
        return False
    data = item.read()
    _keep(source, source.read(data, item.file), data, item, evidence)
    return True


def _keep(source: ModuleType, report: Any, data: bytes, item: Found, evidence: Evidence) -> None:
    """What a source made of a file, and the logs that it found in there."""
    evidence.source_files.append(SourceFile(slices.name_of(source), report, item.file, item.parts))
    if isinstance(report, SourceReport):
        evidence.gaps.extend(report.gaps)
    for name, log in source.logs(report, data, item.file) if hasattr(source, "logs") else ():
        text = TextFile(name, item.parts)
        text.read(io.BytesIO(log), len(log))
        if text.useful:
            evidence.add_text(text)


def _is_dump(item: Found, head: bytes, evidence: Evidence) -> bool:
    form = dump_file.recognise(head)
    if form:
        _read_dump(item, form, evidence)
    return bool(form)


def _is_json(item: Found, head: bytes, evidence: Evidence) -> bool:
    """JSON that is dealt with. False: it is none, and may still be a log that begins with a brace."""
    if head.lstrip()[:1] not in (b"{", b"[") or item.size > limits.JSON_BYTES:
        return False
    ours = b'"hangscope.' in head  # one of ours that is broken is evidence that is missing
    if not ours and not bounded_json.may_be_json(head):
        return False
    raw = item.read()
    try:
        value = bounded_json.loads(raw)
    except bounded_json.TooMuch as error:
        evidence.gaps.append(Gap(f"file {item.file}", f"JSON that is not read: {error}", source=Source(item.file)))
        return True
    except ValueError as error:
        if ours:
            why = f"not read: broken JSON ({error})"
            evidence.gaps.append(Gap(f"file {item.file}", why, source=Source(item.file)))
        item.data = raw  # whoever reads it as a text need not open it again
        return ours
    return _read_json(value, item, evidence)


def _is_other_pickle(item: Found, head: bytes, evidence: Evidence) -> bool:
    named = find_files.named_as_dump(item.name)
    if not pickle_machine.is_pickle(head) and not (named and pickle_machine.is_text_pickle(head)):
        return False
    if named:
        _refuse(item, "a pickle that is not a flight recorder dump: not opened", evidence)
    else:
        evidence.looked_at.append(f"{item.file} (a pickle of something else)")
    return True


def _is_packed(item: Found, head: bytes, evidence: Evidence) -> bool:
    packed = find_files.packed_with(head)
    if packed:
        why = f"packed with {packed}, which is not opened: unpack it, or pack it with gzip"
        evidence.gaps.append(Gap(f"file {item.file}", why, source=Source(item.file)))
        evidence.looked_at.append(f"{item.file} (packed with {packed})")
    return bool(packed)


def _is_text(item: Found, head: bytes, evidence: Evidence) -> bool:
    wide = find_files.is_utf16(head)
    if not wide and not find_files.looks_like_text(head):
        return False
    text = TextFile(item.file, item.parts)
    if wide and item.size <= limits.JSON_BYTES:
        data = item.read().decode("utf-16", "replace").encode()
        text.read(io.BytesIO(data), len(data), item.line_budget)
    elif item.size == len(head) < limits.HEAD_BYTES:
        text.read(io.BytesIO(head), item.size, item.line_budget)
    else:
        with item.open() as stream:
            text.read(stream, item.size, item.line_budget)
    evidence.gaps.extend(text.gaps)
    if text.useful:
        evidence.add_text(text)
    elif find_files.named_as_dump(item.name):
        _refuse(item, "it is neither a pickle nor JSON", evidence)
    elif text.is_rank_log:
        evidence.add_text(text)
    else:
        said_itself = text.words.found or text.words.newest is not None
        if said_itself and "logs" in item.parts[:-1]:  # of an incident
            evidence.add_text(text)
        evidence.looked_at.append(f"{item.file} ({text.lines} lines of text)")
        if text.has_sentences:
            evidence.unknown_texts.append((item.file, text.lines))
    return True


_FORMATS: tuple[Callable[[Found, bytes, Evidence], bool], ...] = (
    _is_of_a_source,
    _is_dump,
    _is_json,
    _is_other_pickle,
    _is_packed,
    _is_text,
)


def _read_unknown(item: Found, evidence: Evidence) -> None:
    if find_files.named_as_dump(item.name):
        _refuse(item, "it is neither a pickle nor JSON", evidence)
    else:
        evidence.looked_at.append(f"{item.file} (not text)")


def _read_empty(item: Found, evidence: Evidence) -> None:
    """A log that says nothing is that of a rank that never spoke; a dump without a byte was never finished."""
    kind = find_files.empty_kind(item.name)
    if kind == "log":
        text = TextFile(item.file, item.parts)
        text.let_go()
        evidence.add_text(text)
    elif kind == "dump":
        _refuse(item, "the file is empty", evidence)


# ---- dumps -----------------------------------------------------------------------------------------------------------


def _read_dump(item: Found, form: str, evidence: Evidence) -> None:
    if item.size > limits.DEFAULT.input_bytes:
        _refuse(item, f"it has {item.size >> 20} MiB, more than any real dump", evidence)
    elif item.is_whole:
        item.wait()
        evidence.waiting.append((item, form))
    else:
        add_dump(item, dump_of(Work(item, form)), evidence)


def add_dump(item: Found, dump: dump_file.RawDump | str, evidence: Evidence) -> None:
    """Put a dump into the evidence, or why there is none."""
    if isinstance(dump, str):
        _refuse(item, dump, evidence)
    else:
        evidence.dumps.append(dump)
        evidence.paths[item.file] = item.parts


def _refuse(item: Found, why: str, evidence: Evidence) -> None:
    """A dump, or what calls itself one, that cannot be read: its rank is known where the name says it."""
    rank = rank_of_dump(item.file)
    if rank is not None:
        evidence.refused.add(rank)
    gap = Gap(f"dump {item.file}", why, rank, None, Source(item.file))
    evidence.refusals[gap] = item.parts
    evidence.gaps.append(gap)


# ---- JSON ------------------------------------------------------------------------------------------------------------

INCIDENT = "hangscope.incident/"
NODE = "hangscope.node/"
ASKED = "hangscope.asked/"


def is_about_others(head: bytes) -> bool:
    """Whether a file that begins so may be an incident's manifest, a node's file or that its GPUs were asked: they say
    which of the other files count, and to which host they belong."""
    return head.lstrip()[:1] == b"{" and any(f'"{schema}'.encode() in head for schema in (INCIDENT, NODE, ASKED))


def parse_about_others(item: Found) -> bool:
    """Parse such a file, once: False where it is none, or broken, which whoever reads it will say."""
    if item.size > limits.JSON_BYTES or item.head(limits.START_BYTES).lstrip()[:1] != b"{":
        return False
    if not is_about_others(item.head(limits.HEAD_BYTES)):
        return False
    try:
        value = bounded_json.loads(item.read())
    except ValueError:
        return False
    if isinstance(value, Mapping) and schema_of(value).startswith((INCIDENT, NODE, ASKED)):
        item.about_others = value
    return item.about_others is not None


def schema_of(value: Mapping[str, Any]) -> str:
    return str(value.get("schema", ""))


def _read_json(value: Any, item: Found, evidence: Evidence) -> bool:
    """Whether a JSON value is dealt with; where it says nothing known, that is so as well."""
    if not isinstance(value, Mapping):
        if rosters.is_roster(value):
            evidence.statements.extend(rosters.read_roster(value, item.file))
        return value is not None
    schema = schema_of(value)
    if "culprits" in value or schema.startswith(("hangscope.diagnosis/", INCIDENT, ASKED)):
        return True  # a truth or an earlier verdict is no evidence; manifests were read before
    source = slices.reader_of_object(value)
    if source is not None:
        _keep(source, source.read_object(value, item.file), b"", item, evidence)
        return True
    if schema.startswith(NODE):
        evidence.nodes.append(incident_files.read_node(value, item.file))
    elif schema.startswith(live_status.SCHEMA):
        evidence.statuses.append(live_status.read(value, item.file))
    elif error_files.is_error_file(value):
        evidence.errors.append((error_files.read_error_file(value), item.file, None, item.parts))
    elif rosters.is_roster(value):
        evidence.statements.extend(rosters.read_roster(value, item.file))
    return True
