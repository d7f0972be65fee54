"""What a second generator plants, in logs and in every other place of an incident: none of it in a bundle."""

from __future__ import annotations

import gzip
import ipaddress
import json
import pickle
import re
from pathlib import Path

import pytest

from hangscope.bundle.aliases import Aliases
from hangscope.bundle.pack import Keep, write_bundle
from hangscope.bundle.redact.redact_file import Redactor
from hangscope.bundle.unpack import extract
from hangscope.cli.main import main
from hangscope.reader.evidence_lines import keep_evidence
from kits.secrets.secretkit_second import (
    FORM_NOTES,
    FORMS,
    NAMED_NOTES,
    NAMES,
    Plant,
    innocents,
    leaks,
    planted,
    redacted,
)

SEED = 5


def test_there_are_enough_of_them() -> None:
    """More than 400 secrets of 40 kinds, each in 15 notations where that makes sense, and 300 innocent strings."""
    everything = list(planted(SEED))
    assert len({core for one in everything for core in one.cores}) > 2000
    assert len({one.kind for one in everything}) > 200
    assert min(len(FORM_NOTES), len(NAMED_NOTES)) >= 15
    assert len(NAMES) > 80
    assert len(set(innocents(SEED))) > 300


def test_nothing_planted_comes_through() -> None:
    """Each secret is gone from the file in which it stands, whole and in part, also decoded and across lines."""
    redactor = Redactor()
    lost = [one for one in planted(SEED) if leaks(one, redacted(redactor, one.text))]
    assert not lost, "\n".join(f"{one.kind} | {one.notation} | {one.text!r}" for one in lost)


@pytest.mark.parametrize("context", ["{}\n", "[rank3]: {}\n", '{{"msg": "{}", "n": 1}}\n'])
def test_innocent_strings_stay(context: str) -> None:
    """Hashes, ids, shapes, kernels, settings, and sentences with a word like `pass` or `key` stay byte for byte."""
    redactor = Redactor()
    texts = [context.format(word.replace('"', "'")) for word in innocents(SEED)]
    harmed = [(text, changed) for text in texts if (changed := redacted(redactor, text)) != text]
    assert not harmed


def test_what_was_clean_excuses_nothing_of_one_shape() -> None:
    """A harmless line whose letters and digits are placed like those of a secret does not hide it."""
    redactor = Redactor()
    assert redacted(redactor, "areas=deadbeef0123beef now\n") == "areas=deadbeef0123beef now\n"
    assert "deadbeef" not in redacted(redactor, "creds=deadbeef0123beef now\n")
    assert redacted(redactor, "run --x cioNb9MSTHq42s3qM\n") == "run --x cioNb9MSTHq42s3qM\n"
    assert "9MSTH" not in redacted(redactor, "run --x cioNb9MSTHq42s3qM\\\ndERR5Z5m6htcaFI1XC y\n")


def test_only_evidence_keeps_a_copied_sys_tree(tmp_path: Path) -> None:
    """A port's counters that somebody copied as files are evidence by their path, and stay; a note beside them goes."""
    port = tmp_path / "in/gpu-a017/sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "counters/link_downed").write_text("3\n")
    (port / "counters/notes").mkdir()
    (port / "counters/notes/private.txt").write_text("our customer's name\n")
    (tmp_path / "in/rank_0.log").write_text("gpu-a017:1:1 [0] NCCL INFO x\n")
    out = tmp_path / "x.tar.gz"
    assert main(["bundle", str(tmp_path / "in"), "-o", str(out), "--only-evidence", "--no-verdict"]) == 0
    extract(out, tmp_path / "out")
    kept = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert "link_downed" in kept
    assert "private.txt" not in kept


def test_a_gzip_of_zeros_is_given_up(tmp_path: Path) -> None:
    """A compressed log that unpacks to far more than its size is left out of a bundle, and named."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank_0.log.gz").write_bytes(gzip.compress(bytes(70 << 20), 1))
    (tmp_path / "in/rank_1.log").write_text("NCCL INFO x\n")
    made = write_bundle(tmp_path / "in", tmp_path / "x.tar.gz")
    assert [gap.what for gap in made.left_out] == ["rank_0.log.gz"]
    assert "150 times" in made.left_out[0].why


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO NET/IB: NCCL Dev 0 Port 1 GID 3 (0/605000AFFFF0000)",
        "gids/3: 0000:0000:0000:0000:0000:ffff:0a00:0506",
        "remoteGids ::ffff:a00:506",
        "peer 10.0.5.6<22>",
    ],
)
def test_an_address_has_one_alias_however_it_is_written(text: str) -> None:
    """In dots, in a GID of a port, in hexadecimal words of IPv6: the same address becomes the same other one."""
    aliases = Aliases()
    changed = aliases.clean(text.encode())
    assert aliases.addresses == {"10.0.5.6": "198.18.0.1"}
    assert aliases.clean(changed) == changed
    gid = re.search(rb"\((\w+)/(\w+)\)", changed)
    if gid is not None:
        both = bytes.fromhex(gid[1].decode().zfill(16))[::-1] + bytes.fromhex(gid[2].decode().zfill(16))[::-1]
        assert str(ipaddress.IPv6Address(both).ipv4_mapped) == "198.18.0.1"


def _incident(root: Path) -> list[Plant]:
    """The secrets of known form in dumps, an environment, a stack, a manifest, and names of files and hosts."""
    everything = [one for one in planted(SEED + 1) if one.kind in FORMS and one.notation in ("bare", "argv", "url-enc")]
    node = root / "nodes/gpu-a017"
    for folder in ("dumps", "logs", "stacks"):
        (node / folder).mkdir(parents=True)
    frames = [{"name": one.text, "filename": f"/x/{one.cores[0]}.py", "line": 3} for one in everything]
    group = {"0": {"name": everything[0].cores[0], "desc": everything[1].cores[0], "ranks": "[0, 1]"}}
    entry = {"frames": frames, "process_group": ("0", everything[1].cores[0]), "record_id": 1, "pg_id": 0}
    dump = {"version": "2.10", "entries": [entry], "pg_config": group}
    (node / "dumps/nccl_trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    (node / "dumps/nccl_trace_rank_1.json").write_text(json.dumps(dump))
    settings = {f"X{number}": one.cores[0] for number, one in enumerate(everything)}
    (node / "node.json").write_text(
        json.dumps({"schema": "hangscope.node/1", "node": "gpu-a017", "settings": settings})
    )
    (node / "stacks/rank_0.1.txt").write_text("".join(f'  File "/x/{one.cores[0]}.py", line 3\n' for one in everything))
    named = [
        one for one in everything if one.notation == "bare" and "/" not in one.cores[0] and len(one.cores[0]) < 120
    ]
    for one in named[:20]:
        (node / f"logs/{one.cores[0]}.log").write_text("NCCL INFO x\n")
        (root / f"nodes/{one.cores[0]}").mkdir()
        (root / f"nodes/{one.cores[0]}/rank_3.log").write_text("NCCL INFO x\n")
    manifest = {"schema": "hangscope.incident/1", "job": everything[2].cores[0], "settings": settings}
    (root / "incident.json").write_text(json.dumps(manifest))
    return everything


def _all_of(folder: Path) -> str:
    parts: list[str] = []
    for path in sorted(folder.rglob("*")):
        raw = path.read_bytes() if path.is_file() else b""
        parts += [
            str(path.relative_to(folder)),
            repr(pickle.loads(raw)) if raw[:1] == b"\x80" else raw.decode("latin1"),
        ]
    return "\n".join(parts)


KEEPERS: dict[str, tuple[Keep | None, bool]] = {
    "default": (None, False),
    "only evidence": (lambda _, source, out: keep_evidence(source, out), False),
    "aliases": (None, True),
}


@pytest.mark.parametrize("way", KEEPERS)
def test_no_place_of_an_incident_lets_one_through(tmp_path: Path, way: str) -> None:
    """Dumps of both kinds, environments, stacks, manifests, files' and hosts' names: the bundle has none of them."""
    everything = _incident(tmp_path / "in")
    keep, alias = KEEPERS[way]
    write_bundle(tmp_path / "in", tmp_path / "x.tar.gz", keep=keep, pseudonymise=alias)
    extract(tmp_path / "x.tar.gz", tmp_path / "out")
    found = _all_of(tmp_path / "out")
    lost = sorted({one.kind for one in everything if one.cores[0] in found})
    assert not lost
