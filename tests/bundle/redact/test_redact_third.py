"""What a third generator plants, in every notation and in every place of an incident: none of it in a bundle."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import pytest

from hangscope.bundle.pack import Keep, write_bundle
from hangscope.bundle.redact.redact_file import Redactor
from hangscope.bundle.unpack import extract
from hangscope.reader.evidence_lines import keep_evidence
from kits.secrets.secretkit_third import BARE, FORMS, KINDS, NAMED, PREFIXES, Plant, plants
from kits.secrets.secretkit_third_innocent import innocents

SEED = 2
REMAIN = {(kind, f"wrapped {width}") for kind in ("teams hook", "discord hook", "django") for width in ("40", "at 20")}
"""Known to remain: addresses, and words full of signs, that somebody broke into short lines."""


def _redacted(redactor: Redactor, text: str) -> str:
    out = io.BytesIO()
    redactor.file(io.BytesIO(text.encode()), out)
    return out.getvalue().decode()


def test_there_are_enough_of_them() -> None:
    """Some 80 kinds and 110 forms, in more than 150 notations, behind a dozen prefixes of logs."""
    assert len(KINDS) > 80
    assert len(FORMS) > 110
    assert len(NAMED) + len(BARE) > 150
    assert len(PREFIXES) > 12
    assert len(list(plants(SEED))) > 1800


def test_nothing_planted_comes_through() -> None:
    """Each secret is gone from the log in which it stands, whatever stands in front of its lines."""
    redactor = Redactor()
    lost = [one for one in plants(SEED) if one.found_in(_redacted(redactor, f"starting\n{one.text}\nstep 12\n"))]
    lost = [one for one in lost if (one.kind, one.notation) not in REMAIN]
    assert not lost, "\n".join(f"{one.kind} | {one.notation} | {one.text!r}" for one in lost)


@pytest.mark.parametrize("front", ["", "[rank3]: ", "2026-11-15T02:30:11.204Z stderr F "])
def test_innocent_lines_stay(front: str) -> None:
    """Hashes, ids, addresses, symbols, settings and sentences about keys and tokens stay byte for byte."""
    redactor = Redactor()
    texts = [f"{front}{line}\n".replace("\n", f"\n{front}").removesuffix(front) for line in innocents(SEED)]
    harmed = [(text, changed) for text in texts if (changed := _redacted(redactor, text)) != text]
    assert not harmed


def _file_name(one: Plant) -> str:
    """A name for a file or a host with the secret in it, where it could stand in one."""
    fits = one.notation in ("dash", "underscore", "dot") and "/" not in one.text and len(one.text) < 120
    return one.text if fits else "x"


def _incident(root: Path, everything: list[Plant]) -> list[Plant]:
    """The plants in dumps, environments, stacks, a manifest, an error file, and names of files and hosts."""
    node = root / "nodes/gpu-a017"
    for folder in ("dumps", "logs", "stacks"):
        (node / folder).mkdir(parents=True)
    named = [one for one in everything if one.name]
    rows = [
        {
            "frames": [{"name": one.text, "filename": f"/x/{_file_name(one)}.py", "line": 3}],
            "process_group": ("0", one.text),
            "thread_name": one.text,
            "profiling_name": f"nccl:{one.text}" if "\n" not in one.text else "nccl:x",
            "record_id": number,
            "extra": {one.name: one.value} if one.name else {},
        }
        for number, one in enumerate(everything)
    ]
    groups = {str(number): {"name": str(number), "desc": one.text} for number, one in enumerate(everything)}
    dump = {"version": "2.10", "entries": rows, "pg_config": groups}
    (node / "dumps/nccl_trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    (node / "dumps/nccl_trace_rank_1.json").write_text(json.dumps(dump))
    pairs = [{"name": one.name, "value": one.value} for one in named]
    settings = [{one.name: one.value} for one in named]
    about = {"schema": "hangscope.node/1", "node": "gpu-a017", "settings": settings, "env": pairs}
    (node / "node.json").write_text(json.dumps({**about, "gaps": [{"what": one.text} for one in everything]}))
    frame = '  File "/x/train.py", line 3, in main\n'
    (node / "stacks/rank_0.1.txt").write_text("".join(f"{frame}{one.text}\n" for one in everything))
    for number, one in enumerate(everything):
        message = {"message": {"message": one.text, "extraInfo": {"py_callstack": f"Traceback:\n{frame}{one.text}"}}}
        (node / f"logs/error_rank_{number}.json").write_text(json.dumps(message))
    names = {name for one in everything if (name := _file_name(one)) != "x"}
    for number, name in enumerate(sorted(names)):
        (node / f"logs/{name}.log").write_text(f"{number}: NCCL INFO x\n")
        (root / f"nodes/{name}").mkdir()
        (root / f"nodes/{name}/rank_{number}.log").write_text("NCCL INFO x\n")
    manifest = {"schema": "hangscope.incident/1", "settings": settings, "detail": [one.text for one in everything]}
    (root / "incident.json").write_text(json.dumps(manifest))
    return everything


def _all_of(folder: Path) -> dict[str, str]:
    """Every file's text by its place, a dump's decoded, and all names."""
    found = {"names": "\n".join(str(path.relative_to(folder)) for path in folder.rglob("*"))}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            raw = path.read_bytes()
            text = raw.decode("utf-8", "replace")
            if raw[:1] == b"\x80":
                text = json.dumps(pickle.loads(raw), ensure_ascii=False)
            place = path.parent.name if path.name.startswith("error") else str(path.relative_to(folder))
            text = text.encode("utf-8", "backslashreplace").decode()
            found[place] = found.get(place, "") + text + text.replace("\\n", "\n").replace('\\"', '"')
    return found


KEEPERS: dict[str, tuple[Keep | None, bool]] = {
    "default": (None, False),
    "only evidence": (lambda _, source, out: keep_evidence(source, out), False),
    "aliases": (None, True),
}


@pytest.mark.parametrize("way", KEEPERS)
def test_no_place_of_an_incident_lets_one_through(tmp_path: Path, way: str) -> None:
    """Dumps, environments, stacks, manifests, error files, names of files and hosts: the bundle has none of them."""
    everything = _incident(tmp_path / "in", list(plants(SEED + 1, per_notation=1))[::3])
    keep, alias = KEEPERS[way]
    write_bundle(tmp_path / "in", tmp_path / "x.tar.gz", keep=keep, pseudonymise=alias)
    extract(tmp_path / "x.tar.gz", tmp_path / "out")
    found = _all_of(tmp_path / "out")
    lost = [(one, place) for place, text in found.items() for one in everything if one.found_in(text)]
    lost = [(one, place) for one, place in lost if (one.kind, one.notation) not in REMAIN]
    assert not lost, "\n".join(f"{one.kind} | {one.notation} | {place} | {one.text!r}" for one, place in lost)
