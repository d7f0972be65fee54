"""Makes the table by which frames of another process's Python are read: by compiling CPython's own headers.

    python release/python_offsets.py /usr/include/python3.12 …

Each argument is a directory with a release's Python.h and internal/. For 3.10 to 3.12 the table has the offsets
themselves; from 3.13 on the interpreter tells them (_Py_DebugOffsets), and the table has where which stands. Of a
release that is not given, the table keeps what it has.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).parents[1] / "src" / "hangscope" / "sources" / "known_pythons.py"
COMMON = {
    "code.filename": "PyCodeObject, co_filename",
    "code.name": "PyCodeObject, co_name",
    "code.firstlineno": "PyCodeObject, co_firstlineno",
    "code.linetable": "PyCodeObject, co_linetable",
    "unicode.length": "PyASCIIObject, length",
    "unicode.state": "PyASCIIObject, state",
    "bytes.size": "PyBytesObject, ob_base.ob_size",
    "bytes.data": "PyBytesObject, ob_sval",
    "object.type": "PyObject, ob_type",
    "type.name": "PyTypeObject, tp_name",
    "interpreters": "_PyRuntimeState, interpreters.head",
    "runtime.finalizing": "_PyRuntimeState, _finalizing",
    "interpreter.next": "PyInterpreterState, next",
    "thread.next": "PyThreadState, next",
    "thread.id": "PyThreadState, thread_id",
    "dict.keys": "PyDictObject, ma_keys",
    "dict.values": "PyDictObject, ma_values",
    "tuple.size": "PyTupleObject, ob_base.ob_size",
    "tuple.items": "PyTupleObject, ob_item",
    "list.size": "PyListObject, ob_base.ob_size",
    "list.items": "PyListObject, ob_item",
}
WHOLE_NUMBERS = {"int.tag": "PyLongObject, ob_base.ob_size", "int.digits": "PyLongObject, ob_digit"}
"""Until 3.11; the tag is the number of digits then, negative where the number is."""
SIZES = {"unicode.ascii": "PyASCIIObject", "unicode.compact": "PyCompactUnicodeObject"}
BY_RELEASE = {
    10: {
        "interpreter.threads": "PyInterpreterState, tstate_head",
        "thread.frame": "PyThreadState, frame",
        "frame.previous": "PyFrameObject, f_back",
        "frame.code": "PyFrameObject, f_code",
        "frame.instruction": "PyFrameObject, f_lasti",
        "frame.locals": "PyFrameObject, f_localsplus",
        "code.names": "PyCodeObject, co_varnames",
        "interpreter.modules": "PyInterpreterState, modules",
        **WHOLE_NUMBERS,
        "runtime.gil_holder": "_PyRuntimeState, ceval.gil.last_holder",
        "runtime.gil_locked": "_PyRuntimeState, ceval.gil.locked",
    },
    11: {
        "interpreter.modules": "PyInterpreterState, modules",
        **WHOLE_NUMBERS,
        "runtime.gil_holder": "_PyRuntimeState, ceval.gil.last_holder",
        "runtime.gil_locked": "_PyRuntimeState, ceval.gil.locked",
    },
    12: {
        "interpreter.gil": "PyInterpreterState, ceval.gil",
        "gil.holder": "struct _gil_runtime_state, last_holder",
        "gil.locked": "struct _gil_runtime_state, locked",
        "interpreter.modules": "PyInterpreterState, imports.modules",
        "int.tag": "PyLongObject, long_value.lv_tag",
        "int.digits": "PyLongObject, long_value.ob_digit",
    },
}
SINCE_11 = {
    "interpreter.threads": "PyInterpreterState, threads.head",
    "thread.native_id": "PyThreadState, native_thread_id",
    "thread.cframe": "PyThreadState, cframe",
    "cframe.frame": "_PyCFrame, current_frame",
    "frame.previous": "_PyInterpreterFrame, previous",
    "frame.owner": "_PyInterpreterFrame, owner",
    "frame.code": "_PyInterpreterFrame, f_code",
    "frame.instruction": "_PyInterpreterFrame, prev_instr",
    "code.instructions": "PyCodeObject, co_code_adaptive",
    "frame.locals": "_PyInterpreterFrame, localsplus",
    "code.names": "PyCodeObject, co_localsplusnames",
}
DEBUG_FIELDS = {
    "free_threaded": "free_threaded",
    "interpreters": "runtime_state.interpreters_head",
    "runtime.finalizing": "runtime_state.finalizing",
    "interpreter.next": "interpreter_state.next",
    "interpreter.threads": "interpreter_state.threads_head",
    "interpreter.gil_locked": "interpreter_state.gil_runtime_state_locked",
    "interpreter.gil_holder": "interpreter_state.gil_runtime_state_holder",
    "thread.next": "thread_state.next",
    "thread.id": "thread_state.thread_id",
    "thread.native_id": "thread_state.native_thread_id",
    "thread.frame": "thread_state.current_frame",
    "frame.previous": "interpreter_frame.previous",
    "frame.owner": "interpreter_frame.owner",
    "frame.code": "interpreter_frame.executable",
    "frame.instruction": "interpreter_frame.instr_ptr",
    "code.filename": "code_object.filename",
    "code.name": "code_object.name",
    "code.firstlineno": "code_object.firstlineno",
    "code.linetable": "code_object.linetable",
    "code.instructions": "code_object.co_code_adaptive",
    "unicode.length": "unicode_object.length",
    "unicode.state": "unicode_object.state",
    "unicode.ascii": "unicode_object.asciiobject_size",
    "bytes.size": "bytes_object.ob_size",
    "bytes.data": "bytes_object.ob_sval",
    "object.type": "pyobject.ob_type",
    "type.name": "type_object.tp_name",
    "interpreter.modules": "interpreter_state.imports_modules",
    "frame.locals": "interpreter_frame.localsplus",
    "code.names": "code_object.localsplusnames",
    "dict.keys": "dict_object.ma_keys",
    "dict.values": "dict_object.ma_values",
    "tuple.size": "tuple_object.ob_size",
    "tuple.items": "tuple_object.ob_item",
    "list.size": "list_object.ob_size",
    "list.items": "list_object.ob_item",
    "int.tag": "long_object.lv_tag",
    "int.digits": "long_object.ob_digit",
}


def main(places: list[str]) -> int:
    if not places:
        raise SystemExit((__doc__ or "").strip())
    known = runpy.run_path(str(TABLE))
    direct = dict(known["OFFSETS"])
    by_itself = dict(known["DEBUG_OFFSETS_AT"])
    releases = {int(each.split(".")[1]): each for each in re.findall(r"3\.\d+\.\d+", known["__doc__"])}
    for place in map(Path, places):
        patch = (place / "patchlevel.h").read_text()
        version = re.findall(r'PY_VERSION\s+"([^"]+)"', patch)[0]
        minor = int(version.split(".")[1])
        releases[minor] = version
        if minor >= 13:
            by_itself[minor] = offsets(
                place, {name: f"_Py_DebugOffsets, {field}" for name, field in DEBUG_FIELDS.items()}, {}
            )
        else:
            fields = COMMON | BY_RELEASE.get(minor, {}) | (SINCE_11 if minor >= 11 else {})
            direct[minor] = offsets(place, fields, SIZES)
    TABLE.write_text(table(direct, by_itself, releases))
    return 0


def offsets(place: Path, fields: dict[str, str], sizes: dict[str, str]) -> dict[str, int]:
    headers = ["Python.h", "internal/pycore_runtime.h", "internal/pycore_interp.h", "internal/pycore_frame.h"]
    there = [name for name in headers if (place / name).exists()]
    # what the frame of 3.14 is, is in a header of its own
    there += [name for name in ("internal/pycore_interpframe_structs.h",) if (place / name).exists()]
    rows = [f'{{"{name}", offsetof({field})}},' for name, field in fields.items()]
    rows += [f'{{"{name}", sizeof({kind})}},' for name, kind in sizes.items()]
    source = "\n".join(
        [
            "#define Py_BUILD_CORE 1",
            "#include <stddef.h>",
            "#include <stdio.h>",
            *(f'#include "{name}"' for name in there),
            '#if PY_MINOR_VERSION == 10\n#include "frameobject.h"\n#endif',
            "struct row { const char *name; unsigned long value; } rows[] = {",
            *rows,
            "};",
            "int main(void) { for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)",
            'printf("%s %lu\\n", rows[i].name, rows[i].value); }',
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "offsets.c"
        path.write_text(source)
        program = str(path.with_suffix(""))
        also = [f"-I{each}" for each in place.parent.parent.glob("include/*/" + place.name)]
        include = [f"-I{place}", f"-I{place / 'internal'}", f"-I{place.parent}", *also]
        subprocess.run(["gcc", "-w", *include, str(path), "-o", program], check=True)
        done = subprocess.run([program], capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def table(direct: dict[int, dict[str, int]], by_itself: dict[int, dict[str, int]], releases: dict[int, str]) -> str:
    made = ", ".join(releases[minor] for minor in sorted(releases))
    lines = [
        '"""Where the fields of CPython\'s objects lie, by minor release of Python 3.',
        "",
        f'Made by release/python_offsets.py from the headers of {made}: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "OFFSETS: dict[int, dict[str, int]] = " + json.dumps(direct, indent=4, sort_keys=True),
        "",
        "DEBUG_OFFSETS_AT: dict[int, dict[str, int]] = " + json.dumps(by_itself, indent=4, sort_keys=True),
        '"""Where in _Py_DebugOffsets, with which _PyRuntime begins, the interpreter itself has each offset."""',
        "",
    ]
    text = re.sub(r'"(\d+)": \{', r"\1: {", "\n".join(lines))
    formatter = [sys.executable, "-m", "ruff", "format", "-", "--line-length", "120"]
    done = subprocess.run(formatter, input=text, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
