"""The opcodes of pickles that hold plain data, and the names of those that do not belong into one.

PyTorch writes dumps with about twenty opcodes (protocol 2; `torch::jit::Pickler`, the same from 2.2 to 2.15); tools
that re-pickle them with Python add about twelve more (protocols 3 to 5). One table for whoever reads a dump
(reader/dumps/pickle_machine.py) and whoever exchanges the strings in one (bundle/redact/rewrite_pickle.py).
"""

from __future__ import annotations

MARK = 0x28
EMPTY_TUPLE = 0x29
STOP = 0x2E
BINFLOAT = 0x47
BININT = 0x4A
BININT1 = 0x4B
BININT2 = 0x4D
NONE = 0x4E
BINUNICODE = 0x58
EMPTY_LIST = 0x5D
APPEND = 0x61
APPENDS = 0x65
BINGET = 0x68
LONG_BINGET = 0x6A
BINPUT = 0x71
LONG_BINPUT = 0x72
SETITEM = 0x73
TUPLE = 0x74
SETITEMS = 0x75
EMPTY_DICT = 0x7D
PROTO = 0x80
TUPLE1 = 0x85
TUPLE2 = 0x86
TUPLE3 = 0x87
NEWTRUE = 0x88
NEWFALSE = 0x89
LONG1 = 0x8A
LONG4 = 0x8B
SHORT_BINUNICODE = 0x8C
BINUNICODE8 = 0x8D
MEMOIZE = 0x94
FRAME = 0x95

ARGUMENT_BYTES = {
    **dict.fromkeys((MARK, NONE, NEWTRUE, NEWFALSE, MEMOIZE, STOP), 0),
    **dict.fromkeys((EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE, APPEND, APPENDS, SETITEM, SETITEMS), 0),
    **dict.fromkeys((TUPLE, TUPLE1, TUPLE2, TUPLE3), 0),
    **dict.fromkeys((PROTO, BININT1, BINGET, BINPUT), 1),
    BININT2: 2,
    **dict.fromkeys((BININT, LONG_BINGET, LONG_BINPUT), 4),
    **dict.fromkeys((BINFLOAT, FRAME), 8),
}
"""Opcode → bytes of its argument, for those whose argument has always the same length."""

STRING_LENGTH_BYTES = {BINUNICODE: 4, SHORT_BINUNICODE: 1, BINUNICODE8: 8}
"""Opcode of a string → bytes of the length that comes before its own bytes."""

INTEGER_LENGTH_BYTES = {LONG1: 1, LONG4: 4}
"""The same for whole numbers of any length."""

FOREIGN = {
    0x30: "POP",
    0x31: "POP_MARK",
    0x32: "DUP",
    0x42: "BINBYTES",
    0x43: "SHORT_BINBYTES",
    0x46: "FLOAT",
    0x49: "INT",
    0x4C: "LONG",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x52: "REDUCE",
    0x53: "STRING",
    0x54: "BINSTRING",
    0x55: "SHORT_BINSTRING",
    0x56: "UNICODE",
    0x62: "BUILD",
    0x63: "GLOBAL",
    0x64: "DICT",
    0x67: "GET",
    0x69: "INST",
    0x6C: "LIST",
    0x6F: "OBJ",
    0x70: "PUT",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x8E: "BINBYTES8",
    0x8F: "EMPTY_SET",
    0x90: "ADDITEMS",
    0x91: "FROZENSET",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x96: "BYTEARRAY8",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
"""Opcodes that could make another reader look something up or call it, or that no dump has, with their names."""

PROTOCOLS = range(2, 6)


def is_pickle(head: bytes) -> bool:
    """Whether the content starts like a pickle of protocol 2 to 5, whatever it holds."""
    return len(head) > 2 and head[0] == PROTO and head[1] in PROTOCOLS
