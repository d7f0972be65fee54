"""What is added to pods: over many shapes of them, and never against what their manifest says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangscope.admission import pod_patch
from hangscope.admission.pod_patch import KINDS, PatchOptions, patch

yaml = pytest.importorskip("yaml")
MANIFESTS = Path(__file__).parents[2] / "docs" / "manifests"
PLAIN = PatchOptions()
FULL = PatchOptions(claim="hangs", library="/var/lib/hangscope/library")


def pod(*containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p", "labels": {"hangscope": "on"} if labels is None else labels}
    rows = list(containers) or [{"name": "train", "image": "train:1"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": rows, **spec}}


def applied(value: dict[str, Any], options: PatchOptions = PLAIN) -> dict[str, Any]:
    """The pod as the API server makes it, by the patch's operations alone."""
    made = copy.deepcopy(value)
    for each in patch(value, options)[0]:
        assert each["op"] == "add"
        *above, last = each["path"].strip("/").split("/")
        place: Any = made
        for name in above:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if isinstance(place, list):
            assert last == "-"
            place.append(each["value"])
        else:
            assert last not in place
            place[last] = each["value"]
    return made


def environment(value: dict[str, Any], index: int = 0) -> dict[str, Any]:
    rows = value["spec"]["containers"][index].get("env", [])
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)), "no variable twice"
    return {row["name"]: row.get("value", row.get("valueFrom")) for row in rows}


def test_a_plain_pod_gets_recorder_volume_and_its_own_name() -> None:
    """Every file that is named lies in the volume that is mounted, in no folder that somebody would have to make."""
    made = applied(pod())
    found = environment(made)
    assert found["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert found["HANGSCOPE_NODE"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert found["HANGSCOPE_MACHINE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    for value in found.values():
        if isinstance(value, str) and value.startswith("/"):
            assert value.startswith("/hangscope/")
            assert value.count("/") == 2
    assert "NCCL_PROFILER_PLUGIN" not in found
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in found
    assert made["spec"]["volumes"] == [{"name": "hangscope-evidence", "emptyDir": {}}]
    assert made["spec"]["containers"][0]["volumeMounts"] == [{"name": "hangscope-evidence", "mountPath": "/hangscope"}]
    assert "shareProcessNamespace" not in made["spec"]
    assert "initContainers" not in made["spec"]


def test_a_claim_gives_each_pod_a_folder_and_the_library_is_read_only() -> None:
    """The claim's folder is the pod's own name; the black box comes from the machine, whether it is there or not."""
    made = applied(pod(), FULL)
    evidence, library = made["spec"]["containers"][0]["volumeMounts"]
    assert evidence["subPathExpr"] == "$(HANGSCOPE_NODE)"
    assert library["readOnly"] is True
    assert made["spec"]["volumes"][1]["hostPath"]["type"] == "DirectoryOrCreate"
    found = environment(made)
    assert found["NCCL_PROFILER_PLUGIN"] == f"{library['mountPath']}/libhangscope_blackbox.so"
    assert found["HANGSCOPE_BLACKBOX_DIR"] == "/dev/shm/"


def test_the_users_own_settings_win() -> None:
    """By either name of a variable, given as a value or taken from elsewhere; another profiler plugin is kept."""
    secret = {"name": "NCCL_DEBUG_FILE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
    mine = [
        {"name": "TORCH_NCCL_TRACE_BUFFER_SIZE", "value": "500"},
        {"name": "NCCL_PROFILER_PLUGIN", "value": "inspector"},
        {"name": "HANGSCOPE_JOB", "value": "mine"},
        secret,
    ]
    made = applied(pod({"name": "train", "env": mine}, labels={"hangscope": "on", "job-name": "theirs"}), FULL)
    rows = made["spec"]["containers"][0]["env"]
    assert rows[: len(mine)] == mine
    found = environment(made)
    assert "TORCH_FR_BUFFER_SIZE" not in found
    assert found["NCCL_PROFILER_PLUGIN"] == "inspector"


def test_settings_that_cannot_be_seen_are_left_alone_with_a_warning() -> None:
    """A variable of ours would win over one of a config map."""
    value = pod({"name": "train", "envFrom": [{"configMapRef": {"name": "settings"}}]})
    operations, (warning,) = patch(value, PLAIN)
    assert "envFrom" in warning
    assert set(environment(applied(value))) == {"HANGSCOPE_NODE", "HANGSCOPE_MACHINE"}
    assert operations


@pytest.mark.parametrize(
    "value",
    [
        pod(labels={}),
        pod(labels={"hangscope": "off", "ray.io/cluster": "c"}),
        pod({"name": "train", "env": [{"name": "HANGSCOPE", "value": "off"}]}),
        pod({"name": "train", "command": ["hangscope", "run", "--dir=/hangscope/j", "--", "torchrun", "t.py"]}),
        pod({"name": "train", "command": ["/opt/hangscope/bin/hangscope"], "args": ["run", "--", "python"]}),
        {**pod(), "metadata": {"labels": {"hangscope": "on"}, "annotations": {"kubernetes.io/config.mirror": "x"}}},
        {"metadata": {"labels": {"hangscope": "on"}}},
    ],
    ids=["no label", "off", "HANGSCOPE=off", "run", "run by path", "mirror", "no spec"],
)
def test_pods_that_are_left_as_they_are(value: dict[str, Any]) -> None:
    """Not asked for, switched off by their user, under `hangscope run`, or not the API server's to change."""
    assert patch(value, FULL) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_known_by_their_controllers_labels_and_owners(kind: str) -> None:
    """And only those that the operator chose."""
    by_label = pod(labels={KINDS[kind][0]: "llm-7b"})
    by_owner = {**pod(labels={}), "metadata": {"ownerReferences": [{"kind": kind, "name": "llm-7b"}]}}
    for value in (by_label, by_owner):
        assert patch(value, PLAIN)[0]
        assert patch(value, PatchOptions(kinds=frozenset()))[0] == []


def test_the_jobs_name_comes_from_its_label() -> None:
    """So that an agent on the machine calls it as its user does."""
    made = applied(
        pod(labels={"jobset.sigs.k8s.io/jobset-name": "llm-7b", "batch.kubernetes.io/job-name": "llm-7b-w-0"})
    )
    assert environment(made)["HANGSCOPE_JOB"] == "llm-7b"


def test_init_containers_and_sidecars_in_them_are_not_touched() -> None:
    """What prepares the pod has no ranks."""
    init = [{"name": "data", "image": "d"}, {"name": "proxy", "restartPolicy": "Always"}]
    made = applied(
        pod({"name": "train"}, {"name": "off", "env": [{"name": "HANGSCOPE", "value": "0"}]}, initContainers=init)
    )
    assert made["spec"]["initContainers"] == init
    assert made["spec"]["containers"][1] == {"name": "off", "env": [{"name": "HANGSCOPE", "value": "0"}]}


def test_volumes_and_mounts_of_the_user_stay() -> None:
    """A mount of theirs at our place serves as it is; another volume of any name is no reason for a second one."""
    mounts = [{"name": "hangs", "mountPath": "/hangscope"}]
    volumes = [{"name": "hangs", "persistentVolumeClaim": {"claimName": "hangs"}}]
    made = applied(pod({"name": "train", "volumeMounts": mounts}, volumes=volumes))
    assert made["spec"]["containers"][0]["volumeMounts"] == mounts
    assert made["spec"]["volumes"][0] == volumes[0]


def test_processes_are_shared_where_the_pod_asks_and_nowhere_else() -> None:
    """Its own word on it wins."""
    asked = {"hangscope/share-processes": "true"}
    value = pod()
    value["metadata"]["annotations"] = asked
    assert applied(value)["spec"]["shareProcessNamespace"] is True
    value["spec"]["shareProcessNamespace"] = False
    assert applied(value)["spec"]["shareProcessNamespace"] is False
    del value["spec"]["shareProcessNamespace"]
    value["spec"]["hostPID"] = True
    assert "shareProcessNamespace" not in applied(value)["spec"]


def test_a_second_call_adds_nothing() -> None:
    """The API server may ask again about what we made."""
    once = applied(pod(), FULL)
    assert patch(once, FULL)[0] == []


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    def pods_in(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                yield value
            for each in value.values():
                yield from pods_in(each)
        elif isinstance(value, list):
            for each in value:
                yield from pods_in(each)

    for file in sorted(MANIFESTS.glob("*.yaml")):
        for number, spec in enumerate(pods_in(list(yaml.safe_load_all(file.read_text())))):
            yield f"{file.stem}-{number}", spec


@pytest.mark.parametrize(("name", "spec"), list(manifests()))
def test_every_manifest_of_the_docs_stays_whole(name: str, spec: dict[str, Any]) -> None:
    """Nothing of it is lost or changed, whatever is added."""
    value = {"metadata": {"labels": {"hangscope": "on"}}, "spec": spec}
    made = applied(value, FULL)
    for before, after in zip(spec["containers"], made["spec"]["containers"], strict=True):
        for key, was in before.items():
            now = after[key]
            assert now[: len(was)] == was if isinstance(was, list) else now == was


KEYS = (
    *("metadata", "labels", "annotations", "ownerReferences", "spec", "containers", "env", "envFrom", "name", "value"),
    *("valueFrom", "volumes", "volumeMounts", "command", "args", "kind", "hangscope", "mountPath"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=40,
)


@settings(max_examples=150, deadline=None)
@given(JSON, JSON, JSON)
def test_no_pod_of_any_shape_is_an_error(spec: Any, container: Any, metadata: Any) -> None:
    """Values of the wrong kind are left as they are, and what is added is JSON."""
    labels = {"hangscope": "on"}
    for value in ({"metadata": metadata, "spec": spec}, {"metadata": {"labels": labels}, "spec": spec}):
        assert json.dumps(patch(value, FULL))
    odd = {"metadata": {"labels": labels}, "spec": {"containers": [container, {"name": "t"}]}}
    assert json.dumps(patch(odd, FULL))


def test_a_pod_of_a_thousand_containers_is_bounded() -> None:
    """What is added to one pod stays small."""
    value = pod(*({"name": f"c{number}"} for number in range(1000)))
    assert len(json.dumps(patch(value, FULL)[0])) < 1 << 19
    assert pod_patch.MOST_CONTAINERS == 64
