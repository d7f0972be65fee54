"""AWS Neuron: its collectives (CCOM) and its runtime (NRT, TDRV). The number in brackets is a NeuronCore, no rank."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"\[(?P<device>-?\d+)\] \S+ CCOM WARN Timeout waiting for (?P<what>incoming connection|RX) \(waited (?P<s>\d+) sec\)",
        ("CCOM WARN Timeout",),
        "2023-Aug-01 16:14:43.0210 332066:332508 [31] bootstrap.cc:89 CCOM WARN Timeout waiting for incoming connection "
        "(waited 120 sec)",
        "Neuron 2.12-2.25; aws-neuron-sdk#713, #851; 2023-2025",
        library="Neuron",
        effect=True,
        explains=True,
        warns=True,
    ),
    Wording(
        FailureKind.SOCKET_ERROR,
        r"CCOM WARN (?P<what>(?:Call to connect|NET/OFI|OFI plugin|Connection closed|Connect to).{1,160}(?:fail|refused|error|closed)\w*.{0,60})",
        ("CCOM WARN",),
        "2024-May-21 16:14:20.0020 58091:58701 [0] nccl_net_ofi_init:1415 CCOM WARN NET/OFI aws-ofi-nccl initialization "
        "failed",
        "Neuron 2.18; aws-neuron-sdk#851; 2024",
        library="Neuron",
        detail="{what}",
        effect=True,
        warns=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"missing collectives status on Neuron Device (?P<device>\d+ NC \d+).{0,120}?suspected hang in collectives operation (?P<op>\d+ out of \d+)",
        ("missing collectives status",),
        "ERROR  TDRV:exec_consume_tpb_status_notifications   (FATAL-RT-UNDEFINED-STATE) missing collectives status on Neuron "
        "Device 0 NC 2, model 1 - suspected hang in collectives operation 3 out of 12",
        "Neuron 2.10-2.25, troubleshooting page; 2023-2025",
        library="Neuron",
        detail="Neuron device {device}, collective {op}",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.GPU_HANG,
        r"inference timeout \((?P<ms>\d+) ms\) on Neuron Device (?P<device>\d+ NC \d+)",
        ("on Neuron Device",),
        "ERROR  TDRV:exec_consume_infer_status_notifications (FATAL-RT-UNDEFINED-STATE) inference timeout (600000 ms) on "
        "Neuron Device 0 NC 4, waiting for execution completion notification",
        "Neuron 2.10-2.25, troubleshooting page; 2023-2025",
        library="Neuron",
        detail="Neuron device {device}",
        effect=True,
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.CUDA_ERROR,
        r"Nrt::(?P<op>\w{1,40}) failed on NeuronCores (?P<device>[\d-]{1,12})\S{0,12}: (?P<what>nrt_\w{1,40} status=\d{1,6})",
        (" failed on NeuronCores ",),
        '  (0) INTERNAL: Nrt::Load failed on NeuronCores 0-0(2): nrt_load status=1, error message="Non specific failure".',
        "torch-neuronx on XRT 1.13-2.1; aws-neuron-sdk#779; 2023-2024",
        library="Neuron",
        detail="{what} on NeuronCores {device}",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"Failure: (?P<what>NRT_TIMEOUT) in (?P<op>\w+)\(\)",
        ("NRT_TIMEOUT",),
        "2025-Jun-28 22:19:15.506590  8652:8728  ERROR   NRT:nrt_infodump      Failure: NRT_TIMEOUT in nrt_execute()",
        "Neuron 2.12-2.25; 2023-2025",
        library="Neuron",
        detail="{what} in {op}",
        effect=True,
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.CUDA_ERROR,
        r"Failure: (?P<what>NRT_(?!TIMEOUT|SUCCESS)\w+) in (?P<op>\w+)\(\)",
        ("Failure: NRT_",),
        "2025-Jun-28 22:19:15.506590  8652:8728  ERROR   NRT:nrt_infodump      Failure: NRT_EXEC_HW_ERR_COLLECTIVES in "
        "nrt_execute()",
        "Neuron 2.12-2.25; aws-neuron-sdk#1189; 2023-2025",
        library="Neuron",
        detail="{what} in {op}",
        explains=True,
        of_writer=True,
    ),
)
