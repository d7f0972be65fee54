"""What a fourth generator plants, written blind: hardly any of it is in a bundle, and every innocent line still is."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from hangscope.bundle.pack import Keep, write_bundle
from hangscope.bundle.redact.redact_file import Redactor
from hangscope.reader.evidence_lines import keep_evidence
from kits.secrets.secretkit_fourth import leaked, members, plant
from kits.secrets.secretkit_fourth_innocent import innocents
from kits.secrets.secretkit_fourth_kinds import KINDS, Dice
from kits.secrets.secretkit_fourth_notations import NOTATIONS, PREFIXES
from kits.secrets.secretkit_fourth_whole import WHOLE

HERE = Path(__file__).parents[2]
SEED = 7
REMAIN = {"user tmp", "user ray tmp"}
"""Known to remain: a directory right below /tmp may be anybody's or anything's."""


def test_there_are_enough_of_them() -> None:
    """More than 130 kinds in more than 140 notations and 140 whole texts, behind a dozen prefixes of logs."""
    assert len(KINDS) > 130
    assert len(WHOLE) > 140
    assert len(NOTATIONS) > 140
    assert len(PREFIXES) > 12
    assert len(innocents(Dice(1))) > 240


KEEPERS: dict[str, tuple[Keep | None, bool]] = {
    "default": (None, False),
    "only evidence": (lambda _, source, out: keep_evidence(source, out), False),
    "aliases": (None, True),
}


@pytest.mark.parametrize("way", KEEPERS)
def test_no_place_of_an_incident_lets_one_through(tmp_path: Path, way: str) -> None:
    """Logs, settings, stacks, dumps, error files, the manifest's sentences, names of files and hosts: none of them."""
    planted, good = plant(tmp_path / "in", SEED, per_notation=1, per_kind=1)
    keep, alias = KEEPERS[way]
    write_bundle(tmp_path / "in", tmp_path / "x.tar.gz", keep=keep, pseudonymise=alias)
    everything = "\n".join(f"{name}\n{text}" for name, text in members(tmp_path / "x.tar.gz"))
    lost = [(place, one) for place, rows in planted.items() for one in leaked(rows, everything)]
    lost = [(place, one) for place, one in lost if one.kind not in REMAIN]
    assert not lost, "\n".join(f"{place} | {one.kind} | {one.notation} | {one.text!r}" for place, one in lost)
    if way == "default":
        assert [line for line in good if line not in everything] == []


def _redacted(text: str, tmp_path: Path) -> str:
    (tmp_path / "in").write_text(text)
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as out:
        Redactor().file(source, out)
    return (tmp_path / "out").read_text()


def test_a_column_of_secrets_is_empty_to_its_last_row(tmp_path: Path) -> None:
    """In a table with one separator every value below a secret's name goes, and the other columns stay."""
    rows = [f"{n},{n:032x},{n / 7:.4f}" for n in range(1000)]
    text = _redacted("run,api_token,loss\n" + "\n".join(rows) + "\nstep 3, fine\n", tmp_path)
    lines = text.splitlines()
    assert lines[0] == "run,api_token,loss"
    assert all(re.fullmatch(r"\d+,\[redacted:secret\],[\d.]+", line) for line in lines[1:-1])
    assert lines[-1] == "step 3, fine"


@pytest.mark.parametrize("front", ["", "[rank3]: ", "gpu-worker-1: ", "00:01:02.013 | DEBUG    | __main__:main:43 - "])
@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    "text",
    [
        "REMOTE=https://oauth2:tWTYIytRQsaTHhF6CHtbQ7nP3vK9xZ2mL8dR5wJ4cY6@gitlab.example.com/team/repo.git",
        "TENCENT_SECRET_KEY=36WfoovpRrfEO22gRkUIBI7fWmbpfVJHq8Zt5Lx2Nc9Vb4Ms7Kd1Pf6GhQ3Wy8Er5Tu2",
        "shard=https://b.s3.amazonaws.com/data/shard-0001.tar?X-Amz-Date=20261115T000000Z&X-Amz-Signature="
        "700014d5033aed61c43f9d0b82c7e5a6700014d5033aed61c43f9d0b82c7e5a6",
    ],
)
def test_a_secret_broken_into_short_lines_is_found(tmp_path: Path, front: str, width: int, text: str) -> None:
    """Whatever the width of the terminal that broke it, no line of it stays."""
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    found = _redacted("starting\n" + "".join(f"{front}{piece}\n" for piece in pieces) + "step 12\n", tmp_path)
    secret = re.search(r"(?<=:)\w{40,}|(?<=KEY=)\w+|(?<=Signature=)\w+", text)
    assert secret is not None
    windows = {secret.group()[at : at + 10] for at in range(len(secret.group()) - 9)}
    assert not [window for window in windows if window in found], found
    assert len(found.splitlines()) == len(pieces) + 2


def test_a_variable_that_a_traceback_draws_is_gone_by_its_name(tmp_path: Path) -> None:
    """loguru draws a line from a name in the code to its value: that of a secret's name goes, that of another stays."""
    code = (
        "    login(password, user)\n    │     │         └ 'abcd1234efgh'\n    │     └ 'Meadow6381%'\n    └ <function>\n"
    )
    found = _redacted(code, tmp_path)
    assert "Meadow6381%" not in found
    assert "abcd1234efgh" in found


NAMES = """
SLURM_JOB_NODELIST=dgx[001-004],hgx-[11-13,17]
NODELIST(REASON) zeus-[1-3,7],norma-5
quasar-7.cluster.acmecorp.internal:1190:1233 [0] NCCL INFO Bootstrap: Using eth0:10.23.45.67<0>
NCCL WARN NET/IB : Got completion from peer 172.19.33.7<47632> localGid fe80::a288:c2ff:fe3d:1b2a
NCCL WARN NET/IB : remoteGids ::ffff:172.19.33.8
[c10d] The client socket has failed to connect to [train-master-0.train-svc.mlns.svc.cluster.local]:29500
[c10d] The client socket has failed to connect to [::ffff:10.23.45.70]:29500, [fe80::1ff:fe23:4567:890a%eth0]:29500
--rdzv-endpoint=comet-head-1.acmecorp.internal:29400 --master_addr=meteor-2 hostname=hydra-31
pod/train-worker-9xk2p-abcde on ip-10-77-12-34.us-west-2.compute.internal/10.77.12.34
ether 0c:42:a1:7e:55:d0 0c42.a17e.55d1 0c-42-a1-7e-55-d2 node_guid: b859:9f03:001b:2a3c
nfs: server filer-3.acmecorp.internal not responding; https://10.88.1.2:8443/api etcd://etcd-1.acmecorp.internal:2379
  File "/projects/falconteam/llama/train.py", line 74, in train
C:\\Users\\agnieszkaxyz\\acmedir\\train.py
ssh agnieszkaxyz@lynx-44 nvidia-smi
Nov 15 00:00:01 lyra-77 kernel: [12345.6] NVRM: Xid (PCI:0000:9d:00): 79, pid=81233, name=python
""".strip()
TRACES = re.findall(
    r"\S+",
    """dgx hgx-1 zeus norma quasar acmecorp 10.23.45 172.19.33 a288:c2ff train-master-0 mlns 1ff:fe23 comet-head meteor
    hydra-31 9xk2p 10-77-12 10.77.12 0c:42:a1 0c42.a1 0c-42 b859:9f03 filer-3 10.88.1 etcd-1. falconteam agnieszka
    acmedir lynx-44 lyra-77 phoenix ara-1 gpu-worker""",
)


@pytest.mark.parametrize("way", ["aliases", "aliases, only evidence"])
def test_no_name_of_a_host_or_path_is_left_with_aliases(tmp_path: Path, way: str) -> None:
    """Ranges, domains, pods, MACs, addresses in every form, paths: no member, name or sentence has one."""
    root = tmp_path / "in"
    shutil.copytree(HERE / "incidents/stop", root)
    node = root / "nodes/gpu-worker-6"
    (node / "logs/launcher.log").write_text(f"{NAMES}\n" + "".join(f"[rank3]: {line}\n" for line in NAMES.splitlines()))
    manifest = json.loads((root / "incident.json").read_text())
    text = "rank 6 looks for tcp://ara-1.acmecorp.internal:29500 at 10.23.45.98, file /home/agnieszkaxyz/falconteam/x"
    manifest["elsewhere"] = [{"ranks": [6], "text": text, "by": "phoenix-8"}]
    manifest["gaps"] = [{"what": "/home/agnieszkaxyz/x", "why": "phoenix-7 did not answer", "node": "phoenix-7"}]
    manifest["nodes_expected"] = ["gpu-worker-6", "gpu-worker-7", "phoenix-7", "phoenix-8"]
    (root / "incident.json").write_text(json.dumps(manifest))
    dump = node / "dumps/nccl_trace_rank_0"
    value = pickle.loads(dump.read_bytes())
    frame = {"name": "main", "filename": "/home/agnieszkaxyz/falconteam/train.py", "line": 3}
    value["entries"][-1]["frames"].append(frame)
    dump.write_bytes(pickle.dumps(value, 2))
    keep: Keep | None = (lambda _, source, out: keep_evidence(source, out)) if "only" in way else None
    write_bundle(root, tmp_path / "x.tar.gz", keep=keep, pseudonymise=True)
    left = [
        (trace, name, line)
        for name, text in members(tmp_path / "x.tar.gz")
        for line in text.splitlines()
        for trace in TRACES
        if trace in line
    ]
    assert not left
