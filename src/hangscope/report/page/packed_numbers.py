"""Columns of numbers as text: little-endian int32, bytes of one weight together, deflated, base64.

A page of a thousand ranks holds a hundred thousand operations: as objects they would be ten times as large. The script
has the other half of this (`unpack` in page.js).
"""

from __future__ import annotations

import base64
import zlib

import numpy as np
import numpy.typing as npt


def pack(values: npt.NDArray[np.int64]) -> str:
    """One column. Numbers that int32 cannot hold are cut to its ends."""
    bounds = np.iinfo(np.int32)
    small = np.clip(values, bounds.min, bounds.max).astype("<i4")
    planes = small.view(np.uint8).reshape(-1, 4).T.tobytes()
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(squeezed.compress(planes) + squeezed.flush()).decode("ascii")
