"""The verdict as JSON: the contract that other programs build on."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import hangscope.report
from hangscope.diagnosis.verdict import CauseKind, Culprit, Lateness, Place, SeenIn, Victim
from hangscope.model import Frame
from hangscope.report.contract_schema import schema
from hangscope.report.export import to_dict, to_json
from hangscope.verdict_words import Outcome
from kits import sample_verdicts

CONTRACT = [
    "schema",
    "hang",
    "kind",
    "culprits",
    "victims",
    "operation",
    "last_completed",
    "link",
    "first_reported",
    "confidence",
    "summary",
    "why",
    "ruled_out",
    "next_steps",
    "evidence",
    "gaps",
]
VALIDATOR = Draft202012Validator(schema())


def test_the_published_schema_is_a_valid_json_schema() -> None:
    """The schema file itself follows JSON Schema 2020-12 and names the contract's version."""
    Draft202012Validator.check_schema(schema())
    assert schema()["title"] == "hangscope.diagnosis/1"
    assert schema()["properties"]["schema"]["const"] == "hangscope.diagnosis/1"


def test_the_schema_knows_exactly_the_kinds_of_the_verdict() -> None:
    """A kind that is added to the verdict must be added to the schema."""
    assert schema()["properties"]["kind"]["enum"] == list(CauseKind)
    assert schema()["properties"]["outcome"]["enum"] == list(Outcome)


@pytest.mark.parametrize("name", sample_verdicts.BY_NAME)
def test_every_verdict_follows_the_schema(name: str) -> None:
    """Every kind of verdict validates, after a trip through JSON text."""
    value = json.loads(to_json(sample_verdicts.BY_NAME[name]()))
    assert [error.message for error in VALIDATOR.iter_errors(value)] == []


@pytest.mark.parametrize("name", sample_verdicts.BY_NAME)
def test_keys_stand_in_the_order_of_the_contract(name: str) -> None:
    """The keys of the contract come in its order; added ones do not disturb it."""
    keys = list(to_dict(sample_verdicts.BY_NAME[name]()))
    assert [key for key in keys if key in CONTRACT] == CONTRACT


def test_the_schema_requires_every_key_that_is_written() -> None:
    """Unknown values are null and never left out: whatever is written is required, at every level."""

    def check(value: object, rule: dict[str, object]) -> None:
        while "$ref" in rule:
            rule = schema()["$defs"][str(rule["$ref"]).rsplit("/", 1)[1]]
        if "anyOf" in rule:
            rule = rule["anyOf"][0]  # type: ignore[index]
        if isinstance(value, dict) and "properties" in rule:
            assert list(value) == rule["required"] == list(rule["properties"])  # type: ignore[call-overload]
            for key, item in value.items():
                check(item, rule["properties"][key])  # type: ignore[index]
        elif isinstance(value, list):
            for item in value:
                check(item, rule["items"])  # type: ignore[arg-type]

    check(to_dict(sample_verdicts.absent()), schema())
    check(to_dict(sample_verdicts.network()), schema())
    check(to_dict(sample_verdicts.slow()), schema())


def test_what_is_not_known_is_null() -> None:
    """A verdict that knows next to nothing has all its keys, with null."""
    value = to_dict(sample_verdicts.small("unknown", completeness=None))
    for key in ("operation", "last_completed", "link", "first_reported", "completeness", "waiting_s", "headline"):
        assert value[key] is None
    culprit = to_dict(sample_verdicts.gpu())["culprits"][0]
    assert culprit["pid"] is None
    gap = to_dict(sample_verdicts.absent())["gaps"][0]
    assert gap == {
        "what": "NCCL logs of ranks 4, 5",
        "why": "not found",
        "rank": None,
        "node": "gpu-a016",
        "source": None,
    }


def test_who_waits_for_whom_is_no_square() -> None:
    """Where thousands wait for thousands, each lists some, the culprit and its next among them, and says how many."""
    ranks = 4096
    ahead = tuple(range(ranks // 2, ranks))
    victims = [Victim(rank, ahead, "default_pg", "all_reduce #9", (rank, ranks - 2, ranks - 1)) for rank in range(2048)]
    culprit = Culprit(ranks - 1, None, None, None, None, "never launched it")
    verdict = replace(sample_verdicts.absent(), culprits=(culprit,), victims=tuple(victims))
    listed = to_dict(verdict)["victims"]
    assert all(v["waits_for_count"] == len(ahead) and len(v["waits_for"]) == 64 for v in listed)
    assert all({ranks - 2, ranks - 1} <= set(v["waits_for"]) <= set(ahead) for v in listed)
    assert all(v["waits_for"] == sorted(set(v["waits_for"])) for v in listed)
    few = to_dict(replace(verdict, victims=tuple(victims[:64])))["victims"]
    assert all(v["waits_for"] == list(ahead) for v in few)


def test_the_culprits_place_is_data() -> None:
    """File, line, function, the line's text and the frames are fields of their own, as the schema says."""
    place = Place(
        "/job/train.py",
        31,
        "save",
        SeenIn.CHILD,
        "torch.save(state, path)",
        (Frame("save", "/job/train.py", 31),),
        ((30, "def save():"), (31, "    torch.save(state, path)")),
        pid=900,
    )
    culprit = replace(sample_verdicts.absent().culprits[0], where=place)
    value = json.loads(to_json(replace(sample_verdicts.absent(), culprits=(culprit,))))
    assert [error.message for error in VALIDATOR.iter_errors(value)] == []
    assert value["culprits"][0]["where"] == {
        "file": "/job/train.py",
        "line": 31,
        "function": "save",
        "code": "torch.save(state, path)",
        "frames": [{"name": "save", "filename": "/job/train.py", "line": 31}],
        "around": [{"line": 30, "text": "def save():"}, {"line": 31, "text": "    torch.save(state, path)"}],
        "seen_in": "child",
        "pid": 900,
        "moves": False,
        "filename": "/job/train.py",
        "name": "save",
        "through": None,
    }
    assert list(value["culprits"][0]["where"]) == schema()["$defs"]["place"]["required"]
    assert schema()["$defs"]["place"]["properties"]["seen_in"]["enum"] == list(SeenIn)


def test_values_are_those_of_the_contract() -> None:
    """Names, units and forms are those that the design promises."""
    value = to_dict(sample_verdicts.absent())
    assert value["culprits"] == [
        {
            "rank": 14,
            "node": "gpu-a017",
            "local_rank": 6,
            "gpu": "0000:9d:00.0",
            "pid": 81233,
            "why": "never launched what 7 ranks wait in",
            "where": None,
            "storage": None,
            "role": None,
            "device": None,
            "task": None,
        }
    ]
    assert value["victims"][0] == {
        "rank": 0,
        "waits_for": [8],
        "group": "PIPELINE",
        "operation": "recv 0<-8",
        "chain": [0, 8, 14],
        "waits_for_count": 1,
    }
    assert value["operation"]["state_by_rank"]["14"] == "not launched"
    assert value["operation"]["frames"][1] == {"name": "dispatch", "filename": "/workspace/moe/layers.py", "line": 204}
    assert value["last_completed"]["at"] == "2026-11-15T02:22:10.991Z"
    assert value["confidence"] == "high"
    assert value["why"][1]["source"] == "hangs/job-48121/stacks/rank_14.1.txt line 12"
    link = to_dict(sample_verdicts.network())["link"]
    assert list(link) == ["from", "to", "channel", "evidence"]
    assert link["from"] == {"rank": 2, "node": "gpu-worker-7", "nic": "eth0"}


def test_culprits_and_victims_are_sorted() -> None:
    """Lists of ranks are sorted, whatever order they were found in."""
    verdict = sample_verdicts.large(64, culprits=(9, 1))
    value = to_dict(replace(verdict, victims=verdict.victims[::-1]))
    assert [c["rank"] for c in value["culprits"]] == [1, 9]
    ranks = [v["rank"] for v in value["victims"]]
    assert ranks == sorted(ranks)


def test_any_text_can_be_written_and_read_back() -> None:
    """Bytes that were no UTF-8 and control characters are escaped; the file is ASCII and plain JSON."""
    text = to_json(sample_verdicts.hostile())
    assert text.isascii()
    assert "\x1b" not in text
    assert "\\ud" not in text.lower().replace("\\\\ud", "")
    assert json.loads(text)["culprits"][0]["node"].startswith("node\x1b[31m")


def test_numbers_of_numpy_and_numbers_that_are_none_can_be_written() -> None:
    """Columns give numpy numbers, and a share may be undefined: both become plain JSON."""
    verdict = sample_verdicts.small(
        "slow",
        hang=False,
        waiting_s=float("inf"),
        lateness=(Lateness(np.int64(2), np.float32(1.5), float("nan"), np.int32(1), np.int64(2)),),  # type: ignore[arg-type]
        nodes={np.int64(0): "a"},
    )
    value = json.loads(to_json(verdict))
    assert value["waiting_s"] is None
    assert value["lateness"] == [
        {"rank": 2, "late_ms_median": 1.5, "share_of_step": None, "times_last": 1, "operations": 2}
    ]
    assert list(VALIDATOR.iter_errors(value)) == []


def test_the_schema_is_a_file_of_the_package() -> None:
    """The schema lies beside the code that writes it, for programs that are not Python, and is the one of the classes.

    `HANGSCOPE_UPDATE_GOLDEN=1 pytest tests/report/test_export.py` writes it anew.
    """
    file = Path(hangscope.report.__file__).parent / "diagnosis.schema.json"
    made = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("HANGSCOPE_UPDATE_GOLDEN"):
        file.write_text(made, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == made


def test_a_field_of_a_culprit_is_seen_in_json_and_schema() -> None:
    """A field is added to the class alone: the JSON has it, and the schema says what it may be."""
    properties = schema()["properties"]["culprits"]["items"]["properties"]
    value = to_dict(sample_verdicts.absent())["culprits"][0]
    for one in fields(Culprit):
        assert one.name in properties
        assert one.name in value
