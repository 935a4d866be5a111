"""Which tool names what: programs of the corpus under nanlab and five other tools, as a markdown
table.

    pip install -e '.[bench]'
    python benchmarks/tools.py [f001 ...] [--folder tests/corpus/cases] [--only nanlab sherlorch]
    [--limit 60] [--output FILE]

Without a folder these are the programs of corpus/fields/forums.py and laboratory.py.

Each program, and the repaired twin of each fault, runs under each tool in a forked process with a
time limit. A tool is asked the way its documentation shows. It "names the line" if its first answer
is a line that the program marks; for a backward fault that is the forward line. An answer of any
kind in a healthy program or a twin is an alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pickle
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import date
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
for folder in ("tests/corpus", "tests", "."):
    sys.path.insert(0, str(ROOT / folder))

import harness  # noqa: E402
import torch  # noqa: E402
from programs import Program, programs  # noqa: E402
from score import Answer, Score, judge, watch  # noqa: E402

NEWEST = ("forums", "laboratory")  # the latest programs that nanlab had not met
TRACED_STEPS = 5  # TorchLens needs about a second a step
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def opened(program: Path | Program) -> tuple[Path, Callable[..., Any], dict[str, Any]]:
    """(file, what builds it, what it declares of itself)."""
    if isinstance(program, Program):
        return program.path, program.build, program.meta
    module = harness.load(program)
    return program, module.build, module.META


def line_in(text: str, path: Path) -> int:
    """The innermost line of a program in the text of a traceback; 0 if it is not there."""
    lines = [int(line) for file, line in FRAME.findall(text) if Path(file).name == path.name]
    return lines[-1] if lines else 0


def said(path: Path, line: int) -> Answer:
    """The answer of a tool that reports a line, or (0) that something is wrong, and no cause."""
    return Answer(cause="not told", file=str(path), line=line)


def bad(value: Any) -> bool:
    """Whether a tensor, or one of several, holds NaN or inf."""
    if isinstance(value, (list, tuple)):
        return any(bad(v) for v in value)
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and not bool(torch.isfinite(value).all())
    )


def nanlab(program: Path | Program, fixed: bool) -> Answer:
    """The culprit of ``nanlab.watch``, or its first finding of severity "error"."""
    return watch(program, fixed)


def detect_anomaly(program: Path | Program, fixed: bool) -> Answer:
    """``torch.autograd.set_detect_anomaly(True)``: the forward traceback that it warns with."""
    path, build, meta = opened(program)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True):
                _, step = build(fixed)
                for i in range(meta["n_steps"]):
                    step(i)
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            told = [str(w.message) for w in seen if "Traceback of forward call" in str(w.message)]
            return said(path, line_in(told[0], path) if told else 0)
    return Answer()


def debug_mode(program: Path | Program, fixed: bool) -> Answer:
    """torch's ``DebugMode`` with an ``isfinite`` hook: the first operation that fails it,
    allocations left out."""
    from torch.utils._debug_mode import DebugMode

    def finite(func: Any, types: Any, args: Any, kwargs: Any, result: Any) -> dict[str, bool]:
        return {"finite": "empty" in str(func) or not bad(result)}

    path, build, meta = opened(program)
    with DebugMode(record_stack_trace=True) as mode, mode.dispatch_hooks(log_hook=finite):
        _, step = build(fixed)
        for i in range(-1, meta["n_steps"]):
            if i >= 0:
                step(i)
            for call in mode.operators:
                if call.log and not call.log.get("finite", True):
                    return said(path, line_in(call.fwd_stack_trace or call.stack_trace or "", path))
            mode.operators.clear()
    return Answer()


def torchlens(program: Path | Program, fixed: bool) -> Answer:
    """``torchlens.debug.find_nan`` on the whole step as a module, for a few steps around the first
    bad one."""
    import torchlens

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.number = model, 0

        def forward(self, _: torch.Tensor) -> Any:
            return step(self.number)

    path, build, meta = opened(program)
    model, step = build(fixed)
    last = min(meta.get("first_bad_step", TRACED_STEPS), meta["n_steps"] - 1)
    whole = Step()
    for whole.number in range(last + 1):
        if whole.number <= last - TRACED_STEPS:
            step(whole.number)
            continue
        found = torchlens.debug.find_nan(whole, torch.zeros(1))
        if found.found:
            file, _, line = (found.source_line or ":0").rpartition(":")
            return said(path, int(line) if Path(file).name == path.name else 0)
    return Answer()


def debug_underflow_overflow(program: Path | Program, fixed: bool) -> Answer:
    """transformers' ``DebugUnderflowOverflow``: the line of the program that called the module at
    which it gives up."""
    from transformers.debug_utils import DebugUnderflowOverflow

    path, build, meta = opened(program)
    model, step = build(fixed)
    if model is None:
        return Answer(error="needs a module")
    DebugUnderflowOverflow(model)
    try:
        for i in range(meta["n_steps"]):
            step(i)
    except ValueError as error:
        if "DebugUnderflowOverflow" not in str(error):
            raise
        return said(path, line_in("".join(traceback.format_tb(error.__traceback__)), path))
    return Answer()


def sherlorch(program: Path | Program, fixed: bool) -> Answer:
    """``sherlorch.trace``: the first culprit of its diagnosis of the loss, else that a gradient or
    parameter is bad."""
    import sherlorch

    path, build, meta = opened(program)
    with sherlorch.trace(capture_stack=True) as tracker:
        model, step = build(fixed)
        for i in range(meta["n_steps"]):
            loss = step(i)
            if isinstance(loss, torch.Tensor) and tracker.has_issue(loss):
                culprits = tracker.diagnose(loss).culprits
                file, _, line = ((culprits and culprits[0].location) or ":0").rpartition(":")
                return said(path, int(line) if Path(file).name == path.name else 0)
            held = [
                t for _, p in harness.parameters(model, step) for t in (p, p.grad) if t is not None
            ]
            if any(tracker.has_issue(t) for t in held):
                return said(path, 0)
    return Answer()


TOOLS: dict[str, tuple[Callable[[Path | Program, bool], Answer], str]] = {
    "nanlab": (nanlab, ""),
    "detect_anomaly": (detect_anomaly, ""),
    "DebugMode + isfinite": (debug_mode, ""),
    "TorchLens": (torchlens, "torchlens"),
    "DebugUnderflowOverflow": (debug_underflow_overflow, "transformers"),
    "sherlorch": (sherlorch, "sherlorch"),
}


def answer(
    tool: Callable[[Path | Program, bool], Answer], program: Path | Program, fixed: bool
) -> Answer:
    """What a tool says, or how it failed; nothing is printed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return tool(program, fixed)
        except Exception as error:
            return Answer(error=f"{type(error).__name__}: {error}"[:120].replace("\n", " "))


def ask(
    tool: Callable[[Path | Program, bool], Answer],
    program: Path | Program,
    fixed: bool,
    limit: float,
) -> Score:
    """One program under one tool, in a forked process; TorchLens refuses those of
    multiprocessing."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        with open(there, "wb") as pipe:
            pickle.dump(answer(tool, program, fixed), pipe)
        os._exit(0)
    os.close(there)
    said = b""
    end = time.monotonic() + limit
    while select.select([here], [], [], max(0.0, end - time.monotonic()))[0]:
        block = os.read(here, 1 << 16)
        said += block
        if not block:
            break
    else:
        os.kill(child, signal.SIGKILL)
    os.close(here)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        said = b""
    told = pickle.loads(said) if said else Answer(error="died or out of time")
    return judge(program, told, fixed)


def row(tool: str, scores: list[Score]) -> str:
    """A line of the table: counts of what the tool said of the programs."""
    faults = [s for s in scores if s.right]
    quiet = [s for s in scores if not s.right]
    cells = [
        sum(s.right[part] for s in faults) for part in ("detected", "line", "cause", "verified")
    ]
    alarms = sum(s.alarm for s in quiet)
    failed = sum(bool(s.answer.error) and s.answer.error != "needs a module" for s in scores)
    counts = [*(f"{n} of {len(faults)}" for n in cells), f"{alarms} of {len(quiet)}", str(failed)]
    return f"| {tool} | {' | '.join(counts)} |"


HEAD = [
    (
        "| tool | faults noticed | line named | cause named | fix verified | alarms in healthy ones"
        " | runs it failed in |"
    ),
    "|---|---|---|---|---|---|---|",
]


PACKAGES = ("torch", "torchlens", "transformers", "sherlorch")
CAVEATS = f"""Healthy ones: the healthy programs and the repaired twins. A run fails where the tool breaks the program.

- Only nanlab names causes and tries fixes.
- detect_anomaly stops at a NaN in the backward pass.
- DebugMode answers with the first operation that is not finite, so an intended -inf (a mask) is an answer too.
- TorchLens sees the forward half of the last {TRACED_STEPS} steps up to the symptom, about a second each.
- DebugUnderflowOverflow names a module; counted is the line that called it.
- detect_anomaly, DebugMode and sherlorch watch the building of every program, nanlab where the fault lies in it.
"""


def is_fault(program: Path | Program) -> bool:
    """Whether a program has a fault, and a repaired twin."""
    return not program.name.startswith("h")


def about(files: list[Any], folder: str, left_out: list[str], seconds: float) -> str:
    """What was run, and how to read it."""
    packages = [f"{name} {version(name)}" for name in PACKAGES if find_spec(name)]
    faults = sum(map(is_fault, files))
    without = f" Not installed, left out: {', '.join(left_out)}." if left_out else ""
    return (
        f"The programs of {folder}: {faults} faults, {faults} repaired twins, {len(files) - faults}"
        f" healthy programs; {', '.join(packages)}; {date.today():%d %B %Y}; {seconds / 60:.0f}"
        f" minutes in all.{without}\n\n{CAVEATS}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="parts of program names")
    parser.add_argument("--folder", type=Path, help="where other programs are")
    parser.add_argument(
        "--only", nargs="*", default=list(TOOLS), choices=list(TOOLS), metavar="TOOL"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds a program")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    files: list[Any]
    if arguments.folder:
        harness.CASES = arguments.folder.resolve()
        files, folder = harness.case_files(arguments.programs), os.path.relpath(harness.CASES, ROOT)
    else:
        every = programs(arguments.programs)
        files = [p for p in every if p.path.stem in NEWEST]
        folder = " and ".join(f"tests/corpus/fields/{name}.py" for name in NEWEST)
    tools = [t for t in arguments.only if not TOOLS[t][1] or find_spec(TOOLS[t][1])]
    left_out = [t for t in arguments.only if t not in tools]
    for package in ("sherlorch", "torchlens", "transformers.debug_utils"):
        if find_spec(package.partition(".")[0]):
            import_module(package)  # once, not in every process
    start, lines = time.monotonic(), list(HEAD)
    for tool in tools:
        scores = []
        for program in files:
            for fixed in (False, True) if is_fault(program) else (False,):
                scores.append(ask(TOOLS[tool][0], program, fixed, arguments.limit))
                wrong = [part for part, good in scores[-1].right.items() if not good]
                told = (
                    f"missed: {', '.join(wrong)}"
                    if wrong
                    else "ALARM"
                    if scores[-1].alarm
                    else "right"
                )
                print(
                    f"{tool:24s} {scores[-1].name:52s} {told} {scores[-1].answer.error}",
                    file=sys.stderr,
                    flush=True,
                )
        lines.append(row(tool, scores))
        text = (
            about(
                files,
                folder,
                left_out,
                time.monotonic() - start,
            )
            + "\n"
            + "\n".join(lines)
            + "\n"
        )
        if arguments.output:  # after each tool: a run that is interrupted leaves what it has
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
