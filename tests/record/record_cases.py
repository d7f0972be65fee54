"""Record failures of real NCCL jobs, several ranks on one GPU, in the layout of tests/cases. README.md beside this.

python3 tests/record/record_cases.py --out cases.tar.gz
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from record_job import HERE, Outcome, RecordedJob, Setting
from record_neutral import leaks, pack, read_dump
from record_scenarios import SCENARIOS, Scenario

NEUTRAL = "/workspace"
PROGRAMS = ("train.py", "pretrain.py", "finetune.py", "startup.py", "evaluate.py", "train_tools.py")
EXPECTED_S = 75.0
SIZE_LIMIT = 16 << 20


def main() -> int:
    options = arguments()
    began = time.monotonic()
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if options.backend == "nccl" and not torch.cuda.is_available():
        say("error: no GPU here\nhint: --backend gloo tries the program without one; its dumps are no NCCL cases")
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="record."))
    cases = scratch / "cases"
    cases.mkdir()
    programs = place_programs(options.place, scratch)
    host = socket.gethostname().replace("localhost", "")  # that name gives nothing away
    replacements = neutral_paths(Path(torch.__file__), programs, scratch)
    named = can_name_nodes()
    say(f"torch {torch.__version__}, NCCL {nccl_version(torch)}, host names per node: {named}")
    setting = Setting(
        programs=programs,
        scratch=scratch,
        backend=options.backend,
        timeout_s=options.timeout,
        torch=torch.__version__.partition("+")[0],
        nccl=nccl_version(torch),
        replacements=replacements,
        host=host,
        ends_at=began + options.budget,
        open_store=lambda: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    )
    wanted = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only.split(",")]
    outcomes = run_all(wanted, setting, cases, options, began)
    say(summary := table(outcomes))
    found = leaks(cases, [word for word in (host, *(old for old, new in replacements if old != new)) if word])
    if found:
        say("NOT NEUTRAL:\n  " + "\n  ".join(found[:20]))
    (cases / "summary.txt").write_text(summary + "\n\n" + tails(outcomes, cases))
    pack(cases, options.out)
    size = options.out.stat().st_size
    say(f"{options.out.name}: {size / 1e6:.1f} MB, {time.monotonic() - began:.0f} s in all")
    if size > SIZE_LIMIT:
        say("LARGER THAN 16 MiB")
    if not options.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if len(outcomes) == len(wanted) and not found else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record failures of real NCCL jobs on one GPU.")
    parser.add_argument("--out", type=Path, required=True, help="the archive to write (.tar.gz)")
    parser.add_argument("--only", default="", help="names of scenarios, with commas")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: a try without GPU")
    parser.add_argument("--timeout", type=float, default=12.0, help="timeout of a collective, seconds")
    parser.add_argument("--capacity", type=int, default=16, help="how many ranks run at the same time")
    parser.add_argument("--budget", type=float, default=460.0, help="seconds for everything")
    parser.add_argument("--place", type=Path, default=Path("/workspace"), help="where the training program is put")
    parser.add_argument("--keep", action="store_true", help="leave the working folder")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


# ------------------------------------------------------------------------------------------------------------- running


def run_all(
    wanted: list[Scenario], setting: Setting, cases: Path, options: argparse.Namespace, began: float
) -> list[Outcome]:
    """Run the scenarios, as many at once as there is room for; the archive is rewritten after each."""
    waiting, running, outcomes = list(wanted), list[RecordedJob](), list[Outcome]()
    try:
        while waiting or running:
            for job in [job for job in running if not job.is_alive()]:
                running.remove(job)
                outcomes.append(job.outcome)
                say(f"{time.monotonic() - began:5.0f} s  {line(job.outcome)}")
                show_failure(job)
                put_away(job, cases)
                pack(cases, options.out)
            room = options.capacity - sum(job.scenario.world for job in running)
            late = time.monotonic() + EXPECTED_S > setting.ends_at
            fitting = next((scenario for scenario in waiting if scenario.world <= room), None)
            if waiting and late:
                say(f"no time left for {', '.join(scenario.name for scenario in waiting)}")
                waiting = []
            elif fitting is not None:
                waiting.remove(fitting)
                job = RecordedJob(fitting, setting, free_port(28200 + 10 * SCENARIOS.index(fitting)))
                running.append(job)
                job.start()
                time.sleep(1.0)
            time.sleep(0.3)
    finally:
        for job in running:
            job.stop()
            job.join()
    return outcomes


def put_away(job: RecordedJob, cases: Path) -> None:
    """Put a finished job where it is packed. One that broke before anything was injected is no case, but tells why."""
    if job.case.exists():
        target = cases if (job.case / "truth.json").exists() else cases / "failed"
        target.mkdir(exist_ok=True)
        job.case.rename(target / job.case.name)


def show_failure(job: RecordedJob) -> None:
    """The end of the logs of a job that did not become what it should."""
    if not job.outcome.problems:
        return
    for log in sorted(job.case.glob("*/rank_*.log"))[:8]:
        text = log.read_text(errors="replace").strip().splitlines()[-6:]
        say("\n".join(f"      {log.stem}: {row[:220]}" for row in text))


# ---------------------------------------------------------------------------------------------------------- neutrality


def place_programs(place: Path, scratch: Path) -> Path:
    """Copy the training programs to where the cases show them; elsewhere if something else lies there."""
    try:
        for name in PROGRAMS:
            taken = place / name
            if taken.exists() and not taken.read_text().startswith((HERE / name).read_text()[:100]):
                raise FileExistsError(taken)
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        place = scratch
    for name in PROGRAMS:
        shutil.copyfile(HERE / name, place / name)
    return place


def neutral_paths(torch_file: Path, programs: Path, scratch: Path) -> list[tuple[str, str]]:
    """What to write instead of this machine's paths."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = {
        str(torch_file.parent.parent): f"/usr/local/lib/{version}/dist-packages",
        str(scratch): f"{NEUTRAL}/run",
        str(programs): NEUTRAL,
        str(HERE): NEUTRAL,
    }
    library = sysconfig.get_paths()["stdlib"]
    if not library.startswith("/usr/"):
        paths[library] = f"/usr/lib/{version}"
    return list(paths.items())


def can_name_nodes() -> bool:
    """Whether a rank can get a host name of its own here."""
    command = [sys.executable, str(HERE / "record_node.py"), "gpu-worker-0", "uname", "-n"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "gpu-worker-0"


def nccl_version(torch: Any) -> str | None:
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None


def free_port(first: int) -> int:
    for port in range(first, first + 10):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    return first


# ------------------------------------------------------------------------------------------------------------- telling


def line(outcome: Outcome) -> str:
    exits = " ".join("-" if status is None else str(status) for status in outcome.exits)
    world = outcome.scenario.world
    return (
        f"{outcome.scenario.name:<18} {outcome.seconds:5.0f} s  dumps {outcome.dumps}/{world} "
        f"(frames {outcome.dumps_with_frames})  stacks {outcome.stacks}/{2 * world}  ras {outcome.ras:<8} "
        f"hang {'yes' if outcome.hang else 'no':<3}  timed out {outcome.timed_out}  exits {exits}"
        + (f"  PROBLEM: {'; '.join(outcome.problems)}" if outcome.problems else "")
    )


def table(outcomes: list[Outcome]) -> str:
    order = {scenario.name: index for index, scenario in enumerate(SCENARIOS)}
    return "\n".join(line(outcome) for outcome in sorted(outcomes, key=lambda o: order[o.scenario.name]))


def tails(outcomes: list[Outcome], cases: Path) -> str:
    """What was injected, and the last operations of every dump: enough to check a truth by eye."""
    rows = []
    for outcome in outcomes:
        rows.append(f"| {outcome.scenario.name} | {outcome.scenario.injected} |")
    for outcome in outcomes:
        rows.append(f"\n{outcome.scenario.name}")
        for path in sorted((cases / outcome.scenario.name).glob("*/nccl_trace_rank_*[0-9]")):
            try:
                entries = read_dump(path).get("entries", [])
            except Exception as error:
                rows.append(f"  {path.name}: {error}")
                continue
            rows += [f"  {path.name} ({len(entries)} entries)"] + [f"    {operation(entry)}" for entry in entries[-4:]]
    return "\n".join(rows)


def operation(entry: dict[str, Any]) -> str:
    where = next((f for f in entry.get("frames", []) if f["filename"].startswith(f"{NEUTRAL}/")), None)
    return (
        f"{entry.get('process_group')} #{entry.get('collective_seq_id')} {entry.get('profiling_name')} "
        f"{entry.get('input_sizes')} {entry.get('state')}"
        + (f" at {where['filename'].rpartition('/')[2]}:{where['line']}" if where else "")
    )


if __name__ == "__main__":
    sys.exit(main())
