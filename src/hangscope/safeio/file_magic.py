"""How files of each format begin. Each format's first bytes stand here and nowhere else; a black box's in
sources/black_box/schema.py, with the rest of its layout.
"""

from __future__ import annotations

GZIP = b"\x1f\x8b"
DEFLATE = b"\x08"
"""The method behind gzip's magic: the only one there is."""
TAR = b"ustar"
TAR_AT = 257

ZIP = b"PK\x03\x04"
XZ = b"\xfd7zXZ\x00"
ZSTD = b"\x28\xb5\x2f\xfd"
BZIP2 = b"BZh"
SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
LZ4 = b"\x04\x22\x4d\x18"
RAR = b"Rar!\x1a\x07"
COMPRESS = b"\x1f\x9d"
PACKED = (
    (XZ, "xz"),
    (ZSTD, "zstd"),
    (BZIP2, "bzip2"),
    (SEVEN_ZIP, "7z"),
    (LZ4, "lz4"),
    (RAR, "rar"),
    (COMPRESS, "compress"),
)
"""What nobody here opens, with its name."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Text as Windows' shell writes it: with a mark in front and two bytes a character."""


ELF = b"\x7fELF\x02\x01"
"""64-bit, little-endian."""
ELF_MACHINE_AT = 18
CUDA = b"\xbe\x00"
"""NVIDIA's machine: kernels, and cores of GPUs."""


def is_cuda_elf(head: bytes) -> bool:
    """Whether a file that begins so may be a core of a GPU. A compiled kernel begins so, too: its sections tell."""
    return head.startswith(ELF) and head.startswith(CUDA, ELF_MACHINE_AT)


def is_gzip(head: bytes) -> bool:
    return head.startswith(GZIP)
