"""Lets a coverage-guided fuzzer loose on the C decoder, under the sanitizers. By hand: it needs clang.

    python tests/hostile/fuzz_decoder.py --seconds 600

The corpus starts from the recorded dumps and the hostile files, and is kept in --work from run to run. The last line
of libFuzzer's output says how many files were tried; a crash ends it and leaves the file that did it there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]
NATIVE = HERE.parent / "native"
WORDS = (
    "entries", "profiling_name", "collective_seq_id", "seq_id", "process_group", "pg_id", "state", "input_sizes",
    "output_dtypes", "record_id", "retired", "time_created_ns", "time_created_us", "duration_ms", "frames", "name",
    "filename", "line", "thread_name", "thread_id", "timeout_ms", "completed",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "hangscope-fuzz"))
    given = parser.parse_args()
    compiler = shutil.which("clang")
    if compiler is None:
        print("error: no clang here, which brings libFuzzer\nhint: apt-get install clang", file=sys.stderr)
        return 2
    corpus = given.work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    program = given.work / "fuzz_decoder"
    flags = ["-std=gnu11", "-g", "-O1", "-DFUZZER", "-fsanitize=fuzzer,address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{NATIVE}"]
    sources = [NATIVE / "dump_decoder.c", HERE / "native" / "decode_files.c"]
    subprocess.run([compiler, *flags, *sources, "-lm", "-o", program], check=True)
    _seed(corpus)
    words = given.work / "words"
    words.write_text("".join(f'"\\x8c\\x{len(word):02x}{word}"\n' for word in WORDS))
    limits = [f"-max_total_time={given.seconds}", "-max_len=65536", "-timeout=10", "-rss_limit_mb=2048"]
    command = [program, *limits, f"-dict={words}", f"-artifact_prefix={given.work}/", "-print_final_stats=1", corpus]
    return subprocess.run(command, check=False).returncode


def _seed(corpus: Path) -> None:
    sys.path.insert(0, str(HERE))
    from hostile.inputs import files as hostile_files

    for number, data in enumerate(hostile_files.originals()):
        (corpus / f"original-{number}").write_bytes(data[:65536])
    for number in range(600):
        _, data = hostile_files.make(1, number)
        if data[:1] == b"\x80" and len(data) <= 65536:
            (corpus / f"hostile-{number}").write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
