"""Several ranks on one GPU: NCCL must take each for a node of its own (tests/record/README.md).

To be set before torch is imported.
"""

import os

SETTINGS = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MAX_NCHANNELS": "2",
}


def settings(job):
    return {**SETTINGS, "NCCL_HOSTID": f"{job}{os.getppid()}-{os.environ.get('RANK', '0')}"}
