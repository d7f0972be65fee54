"""The opcodes that we know of pickles, beside those of Python."""

from __future__ import annotations

import pickletools

from hangscope.safeio import pickle_opcodes

KNOWN = {
    *pickle_opcodes.ARGUMENT_BYTES,
    *pickle_opcodes.STRING_LENGTH_BYTES,
    *pickle_opcodes.INTEGER_LENGTH_BYTES,
}


def test_opcodes_have_the_names_and_arguments_that_python_gives_them() -> None:
    """Every opcode has Python's number, and an argument or length field of Python's size."""
    of_python = {ord(op.code): op for op in pickletools.opcodes}
    for code in KNOWN:
        assert getattr(pickle_opcodes, of_python[code].name) == code
    for code, size in pickle_opcodes.ARGUMENT_BYTES.items():
        argument = of_python[code].arg
        assert (argument.n if argument is not None else 0) == size
    sizes = {
        pickletools.TAKEN_FROM_ARGUMENT1: 1,
        pickletools.TAKEN_FROM_ARGUMENT4: 4,
        pickletools.TAKEN_FROM_ARGUMENT4U: 4,
        pickletools.TAKEN_FROM_ARGUMENT8U: 8,
    }
    for code, size in {**pickle_opcodes.STRING_LENGTH_BYTES, **pickle_opcodes.INTEGER_LENGTH_BYTES}.items():
        argument = of_python[code].arg
        assert argument is not None
        assert sizes[argument.n] == size


def test_every_opcode_of_python_is_either_known_or_foreign() -> None:
    """No opcode is both, and none of Python's is neither."""
    assert not KNOWN & pickle_opcodes.FOREIGN.keys()
    names = {ord(op.code): op.name for op in pickletools.opcodes}
    assert {code: names[code] for code in names.keys() - KNOWN} == pickle_opcodes.FOREIGN
