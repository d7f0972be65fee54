"""Planted secrets of every kind in every notation and place of an incident: none that is promised comes through."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hangscope.bundle.redact.redact_file import Redactor
from hangscope.cli.main import main
from kits.secrets.innocent import innocents
from kits.secrets.kinds import KINDS, Dice
from kits.secrets.notations import BARE, NAMED, PREFIXES
from kits.secrets.plant import Plant, leaked, members, plants, through
from kits.secrets.whole_texts import BEYOND, TEXTS

SEED = 7
WAYS = {"default": (), "all lines": ("--all-lines",), "aliases": ("--all-lines", "--pseudonymise")}
REMAIN = {
    (
        "MUNGE:{b120}:",
        "root      81233  312  4.1 98123456 7123456 ?  Rl  03:57  12:01 python -u train.py --lr 0.1 --{f} {v} --bf16",
    ),
    ("whole text", '"password": "wi\\\\"th quotes{a6}"'),
    ("whole text", "MUNGE:{b160}:"),
    ("whole text", "uid=1007({user}) gid=1007({user}) groups=1007({user}),27(sudo)"),
    ("{a3}8Q~{a34}", "['python', 'train.py', '--x', '{r}']"),
    ("{words}", '[logger]\\n{l} = "{v}"\\nlr = 0.1'),
    ("{x48}", "loaded {n} ({v}) from the vault"),
}
"""(kind, notation) of what is known to remain, of the some 1,600 that are planted here."""


def _redacted(text: str) -> str:
    out = io.BytesIO()
    Redactor().file(io.BytesIO(text.encode()), out)
    return out.getvalue().decode()


def _named(rows: list[tuple[str, Plant]]) -> str:
    return "\n".join(f"{place} | {one.kind} | {one.notation} | {one.text!r}" for place, one in rows)


def test_there_are_enough_of_them() -> None:
    """Some 200 kinds in 300 notations and 400 whole texts, behind a dozen prefixes of logs; 700 innocent lines."""
    assert len(KINDS) > 190
    assert len(NAMED) + len(BARE) > 300
    assert len(TEXTS) > 400
    assert len(BEYOND) < 40
    assert len(PREFIXES) > 12
    assert len(plants(SEED)) > 2000
    assert len(innocents(Dice(SEED))) > 700


@pytest.mark.parametrize("way", WAYS)
def test_no_place_of_an_incident_lets_one_through(way: str) -> None:
    """Logs, settings, stacks, dumps, error files, the manifest's sentences, names of files and hosts: none of them."""
    _, found = through(SEED, *WAYS[way], per=1)
    lost = [(place, one) for place, rows in found.items() for one in rows if not one.beyond]
    lost = [(place, one) for place, one in lost if (one.kind, one.notation) not in REMAIN]
    assert not lost, _named(lost)


def test_what_is_clean_stays_as_it_is() -> None:
    """Redacting twice changes nothing more, and lines stay as many as they were."""
    for one in plants(SEED)[::19]:
        if "\0" not in one.text and "[default" not in one.notation:
            once = _redacted(one.text)
            assert _redacted(once) == once, one
            assert once.count("\n") == one.text.count("\n"), one


@pytest.mark.parametrize("context", ["{}\n", "[rank3]: {}\n", "2026-11-15T02:30:11.204Z stderr F {}\n"])
def test_innocent_strings_stay(context: str) -> None:
    """Hashes, ids, symbols, kernels, settings and sentences about keys and tokens stay byte for byte."""
    redactor = Redactor()
    texts = [context.format(line).encode() for line in innocents(Dice(SEED))]
    assert [(text, changed) for text in texts if (changed := redactor.text(text)) != text] == []


def test_what_was_clean_excuses_nothing_of_one_shape() -> None:
    """A harmless line whose letters and digits are placed like those of a secret does not hide it."""
    assert _redacted("areas=deadbeef0123beef now\n") == "areas=deadbeef0123beef now\n"
    assert "deadbeef" not in _redacted("areas=deadbeef0123beef now\ncreds=deadbeef0123beef now\n").split("\n")[1]


def test_another_tool_finds_nothing_either(tmp_path: Path) -> None:
    """detect-secrets, with all its detectors, finds much in what was planted and nothing in the bundle's text."""
    pytest.importorskip("detect_secrets")
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    def findings(text: str) -> list[tuple[str, str | None]]:
        (tmp_path / "judged.txt").write_text(text)
        collection = SecretsCollection()
        with default_settings():
            collection.scan_file(str(tmp_path / "judged.txt"))
        return [(secret.type, secret.secret_value) for _, secret in collection]

    texts = [one.text.replace("\0", " ") for one in plants(SEED)[::4] if not one.beyond]
    assert len(findings("\n".join(texts))) > 50
    # A judge that knows nothing of checksums takes hexadecimal ones for keys.
    clean = [Redactor().text(text.encode()).decode() for text in texts]
    assert [one for one in findings("\n".join(clean)) if "Hex High" not in one[0]] == []


LINE = "gpu-a017:81233:81301 [6] NCCL INFO Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA"


def test_the_default_bundle_has_no_line_that_is_not_evidence(tmp_path: Path) -> None:
    """Of logs with a secret in every fourth line no promised one comes through, and what no reader knows is gone."""
    root = tmp_path / "in"
    root.mkdir()
    some = [one for one in plants(SEED) if "\n" not in one.text and "\r" not in one.text and "\0" not in one.text]
    for rank in range(4):
        rows = some[rank::16]
        lines = [line for one in rows for line in ("our customer is pleased", one.text, "another word of ours", LINE)]
        (root / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")
    out = tmp_path / "x.tar.gz"
    assert main(["bundle", str(root), "-o", str(out), "--no-verdict"]) == 0
    text = "\n".join(text for name, text in members(out) if name.endswith(".log"))
    assert LINE in text
    assert "our customer is pleased" not in text
    assert "another word of ours" not in text
    assert [one for one in leaked(some, text) if not one.beyond] == []
