"""Run a command under a node's name: record_node.py NODE COMMAND…

The process gets a host name of its own (a UTS namespace, which needs root) and becomes the command, with the same pid.
Where that is not allowed the command runs all the same, under the machine's name.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import sys

CLONE_NEWUTS = 0x04000000


def take_name(node: str) -> bool:
    """Give this process the host name `node`, if the kernel allows it."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) != 0:
        return False
    try:
        socket.sethostname(node)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    take_name(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # ranks end with SIGABRT; their core files would be huge
    os.execvp(sys.argv[2], sys.argv[2:])
