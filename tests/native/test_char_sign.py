"""What differs between x86_64 and aarch64 to C: there `char` has no sign. `make wheel` tries the rest under qemu."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from blackbox_build import COMPILER, HERE, NATIVE, build

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here"),
]
CASES = HERE.parent / "cases"


def test_the_decoder_does_not_care_whether_char_has_a_sign(tmp_path: Path) -> None:
    """Built either way, the decoder makes the same of recorded dumps and of their beginnings."""
    dumps = sorted((CASES / "mesh_absent").rglob("nccl_trace_rank_*")) + sorted(
        (CASES / "p2p").rglob("nccl_trace_rank_*")
    )
    assert len(dumps) > 8
    said = []
    for sign in ("-fsigned-char", "-funsigned-char"):
        program = tmp_path / sign
        sources = [NATIVE / "dump_decoder.c", HERE / "decode_files.c"]
        command = [str(COMPILER), "-std=gnu11", "-O1", sign, f"-I{NATIVE}", *sources, "-lm", "-o", program]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        said.append(subprocess.run([program, *dumps], check=True, capture_output=True, text=True, timeout=120).stdout)
    assert said[0] == said[1]
    assert int(said[0].split()[-1]) > 0


def test_the_black_box_builds_without_a_signed_char() -> None:
    """No warning, of a comparison that is always false for one, stops the black box where `char` has no sign."""
    assert build("-funsigned-char", "-Wtype-limits").plugin.exists()
