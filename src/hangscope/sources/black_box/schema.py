"""Saved as nodes/<host>/blackbox/*.ncclbb. What lies where in such a file, as far as Python has to know it:
native/blackbox_layout.h is the other side.

The recorder copies the file, the reader understands it, redaction exchanges the names in it.
"""

from __future__ import annotations

FOLDER = "blackbox"
KIND = "black box"
SUFFIX = ".ncclbb"
VARIABLE = "HANGSCOPE_BLACKBOX_DIR"
"""Where the processes of a job write theirs."""
MAGIC = b"\xffHSNCCLB"
"""No text begins like this."""
VERSION = 1
MAX_BYTES = 80 << 20
"""Of one file: no real one is larger."""
LEAST_BYTES = 1024

VERSION_AT = 8
TABLES_AT = 128
"""One entry a table: offset, bytes of a slot, slots, nothing; four numbers of 32 bits."""
TABLES = 5
"""Communicators, operations, links, transfers, events, in this order."""
COPIED_AT = 208
"""When the recorder took this copy, in ns since the epoch; 0 in the file itself."""

HOST_AT = 64
HOST_BYTES = 64
COMM_BYTES = 768
COMM_NAME_AT = 72
COMM_NAME_BYTES = 56
"""A communicator's name, within its slot."""
