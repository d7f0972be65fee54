"""Aliases: no name of a host, no address and no path is left, however it is written."""

from __future__ import annotations

import ipaddress
import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from hangscope.bundle.aliases import Aliases
from hangscope.bundle.pack import Keep, write_bundle
from hangscope.bundle.unpack import extract
from hangscope.reader.evidence_lines import keep_evidence
from kits.secrets.plant import members

HERE = Path(__file__).parents[1]


def test_aliases_cover_ranges_pods_macs_and_hosts_of_addresses(tmp_path: Path) -> None:
    """With aliases, host ranges, pods, MAC addresses, the hosts of web addresses and stores, and paths are gone."""
    (tmp_path / "in").mkdir()
    text = (
        "srun on dgx[001-004] began; dgx003 is slow\n[pod/trainer-abc-0/main] hello from trainer-abc-0\n"
        "eth0 has 0c:42:a1:5e:77:0b\nstore tcp://head-node-7.corp.internal:29500 opened\n"
        "see s3://corp-secret-bucket/a/b and https://pytorch.org/docs\n"
        "nfs:/export/projects/apollo/x.py:3 -I/opt/apollo/inc/x.h\n"
    )
    (tmp_path / "in/rank_0.log").write_text(text)
    bundle = write_bundle(tmp_path / "in", tmp_path / "x.tar.gz", pseudonymise=True)
    extract(bundle.path, tmp_path / "out")
    found = (tmp_path / "out/rank_0.log").read_text()
    for name in ("dgx", "trainer-abc", "0c:42:a1", "head-node-7", "corp", "apollo"):
        assert name not in found, name
    assert "https://pytorch.org/docs" in found
    assert "eth0 has 02:00:" in found


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
