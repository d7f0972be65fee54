"""Text made safe to show. Whatever comes from evidence (a file name, a log line, a group's description) is untrusted.

`safe` is what lies between it and a terminal. The command line needs these words before it needs numpy: nothing else is
imported here.
"""

from __future__ import annotations

import unicodedata


def whole(text: str) -> str:
    r"""`text` that any UTF-8 stream takes: bytes that were no UTF-8 (lone surrogates) are shown as ``\xff``."""
    if text.isascii():
        return text
    return "".join(_escape(c) if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)


def safe(text: str) -> str:
    r"""`text` that cannot move the cursor, ring, recolour or reorder: such characters are shown as ``\x1b``.

    Covers C0 and C1 controls, lone surrogates, line and paragraph separators, and invisible format characters, among
    them those that turn the direction of writing.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNSAFE else c for c in text.replace("\t", "    "))


_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
