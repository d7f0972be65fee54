"""Kubernetes: the kubelet's, containerd's and the node controller's words about nodes and containers."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.NODE_NOT_READY,
        r"Recording NodeNotReady event message for node(?:=|\s)\"?(?P<node>[\w.-]{1,255})",
        ("Recording NodeNotReady",),
        "Jan 31 15:46:40 gpu-3 kubelet[3072]: I0131 15:46:40.357340    3072 kubelet_node_status.go:446] Recording NodeNotReady "
        "event message for node gpu-3",
        "kubelet 1.14-1.30; kubernetes#72533; 2019-2026",
        library="Kubernetes",
        explains=True,
    ),
    Wording(
        FailureKind.NODE_NOT_READY,
        r"(?P<what>PLEG is not healthy: pleg was last seen active \S+ ago|[Cc]ontainer runtime is down|KubeletNotReady\b.{0,120})",
        ("PLEG is not healthy", "untime is down", "KubeletNotReady"),
        "  Ready            False   Mon, 03 Jun 2019 13:54:18 +0000   Sun, 02 Jun 2019 21:39:37 +0000   KubeletNotReady    PLEG "
        "is not healthy: pleg was last seen active 16h17m50.79s ago; threshold is 3m0s",
        "kubelet 1.9-1.30; kubernetes#61117, #77728; 2018-2026",
        library="Kubernetes",
        detail="{what}",
        explains=True,
    ),
    Wording(
        FailureKind.NODE_REBOOTED,
        r"\bNode (?P<node>[\w.-]{1,255}) has been rebooted, boot id",
        ("has been rebooted",),
        "Warning  Rebooted   5m    kubelet    Node gpu-3 has been rebooted, boot id: 5f3a7e0c",
        "kubelet 1.9-1.30; 2018-2026",
        library="Kubernetes",
        explains=True,
    ),
    Wording(
        FailureKind.PROCESS_DIED,
        r"\b(?P<what>\w{2,12}Job) (?P<name>[\w.-]{1,255}) (?:has failed|is failed) because (?P<n>\d{1,6}) (?P<task>\w{1,40}) replica\(s\) failed",
        ("replica(s) failed",),
        "  Message:               PyTorchJob llm-8b is failed because 1 Worker replica(s) failed.",
        "Kubeflow's training operator 0.5-1.9; kubeflow/trainer#999; 2019-2026",
        library="Kubernetes",
        detail="{n} {task} of {what} {name}",
        explains=True,
    ),
    Wording(
        FailureKind.EVICTED,
        r"message: (?P<what>\d{1,6}/\d{1,6} workers are evicted)",
        ("workers are evicted",),
        "    message: 1/8 workers are evicted",
        "mpi-operator 0.4-0.6; kubeflow/mpi-operator#647; 2024-2026",
        library="Kubernetes",
        detail="{what}",
        explains=True,
    ),
    Wording(
        FailureKind.HOST_OOM,
        r"TaskOOM event.{0,40}?(?:container_id|container):?\\?\"?(?P<container>[0-9a-f]{6,64})?",
        ("TaskOOM event",),
        'time="2026-03-01T10:00:00.1Z" level=info msg="TaskOOM event container_id:\\"b2c3d4e5f6a7\\""',
        "containerd 1.4-2.0; 2020-2026",
        library="Kubernetes",
        detail="a container",
        code=-9,
        explains=True,
    ),
    Wording(
        FailureKind.HOST_OOM,
        r"System OOM encountered, victim process: (?P<what>[^,]{1,60}), pid: (?P<pid>\d+)",
        ("System OOM encountered",),
        "Warning  SystemOOM  2m  kubelet  System OOM encountered, victim process: python3, pid: 81233",
        "kubelet 1.14-1.30; 2019-2026",
        library="Kubernetes",
        code=-9,
        explains=True,
    ),
    Wording(
        FailureKind.POD_STOPPED,
        r"node\(s\) had (?:untolerated )?taint|Stopping container (?P<what>[\w.-]{1,80})\s*$|Marking for deletion Pod (?P<node>[\w./-]{1,200})",
        ("Marking for deletion Pod",),
        "Normal  TaintManagerEviction  3m  taint-eviction-controller  Marking for deletion Pod training/llm-worker-3",
        "kubernetes 1.20-1.30; 2021-2026",
        library="Kubernetes",
        detail="marked for deletion by a taint of its node",
        explains=True,
    ),
)
