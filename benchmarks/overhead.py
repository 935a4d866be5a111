"""What watching costs: bare, nanlab, set_detect_anomaly and DebugMode side by side, as ratios to
bare.

    python benchmarks/overhead.py [--rounds 15] [--only MLP CNN] [--threads 2] [--device cuda]
    [--output benchmarks/results/overhead-cpu.md] [--against ../nanlab-before]

``--against``: the root of another checkout, whose watches run in a process of their own, in turn
with these, and become columns of their own ("before").

Every round runs each tool once on each model, in turn; a ratio is the median over the rounds of
(tool / bare) of the same round. With one thread on the CPU the clock is the thread's own processor
time, which other programs on the machine disturb least; else the wall's. Peak memory is the peak of
Python-visible growth of the process during a step (resident set; on CUDA the allocator's peak).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from models import MODELS

import nanlab


@contextlib.contextmanager
def bare(model: Any) -> Iterator[None]:
    yield


@contextlib.contextmanager
def watched(model: Any) -> Iterator[None]:
    with nanlab.watch(model, on_fault="record"):
        yield


@contextlib.contextmanager
def watched_for_faults(model: Any) -> Iterator[None]:
    with nanlab.watch(model, on_fault="record", detail="fault"):
        yield


@contextlib.contextmanager
def anomaly(model: Any) -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextlib.contextmanager
def debug_mode(model: Any) -> Iterator[None]:
    from torch.utils._debug_mode import DebugMode

    def finite(func: Any, types: Any, args: Any, kwargs: Any, result: Any) -> dict[str, bool]:
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        return {
            "finite": all(
                bool(torch.isfinite(t).all())
                for t in tensors
                if isinstance(t, torch.Tensor) and t.is_floating_point()
            )
        }

    with DebugMode(record_stack_trace=True) as mode, mode.dispatch_hooks(log_hook=finite):
        yield


TOOLS: dict[str, Callable[[Any], Any]] = {
    "bare": bare,
    "nanlab": watched,
    "nanlab, detail fault": watched_for_faults,
    "detect_anomaly": anomaly,
    "DebugMode": debug_mode,
}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Peak:
    """The highest resident set while a block runs, above where it began."""

    def __enter__(self) -> Peak:
        gc.collect()
        self.start = self.high = _resident()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.done.wait(0.002):
            self.high = max(self.high, _resident())

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self.mib = (self.high - self.start) / 2**20


def time_steps(
    tool: Callable[[Any], Any], model: Any, step: Callable[[], None], count: int
) -> float:
    """Seconds per step, without the cost of entering and leaving, and without the first four: they
    make the buffers that later ones use again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tool(model):
            for _ in range(4):
                step()
            _wait()
            shared = torch.cuda.is_available() or torch.get_num_threads() > 1
            clock = time.perf_counter if shared else time.thread_time
            start = clock()
            for _ in range(count):
                step()
            _wait()
            return (clock() - start) / count


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def warm_up() -> None:
    """Load what a tool loads at its first use, such as nanlab its compiled kernels: it is no part
    of a step's memory."""
    for make in TOOLS.values():
        with make(None):
            for dtype in (torch.float32, torch.float64, torch.int64):
                torch.ones(2, dtype=dtype) + 1


class Before:
    """Another checkout's watches, timed in a process of their own when they are asked for."""

    def __init__(self, root: Path, threads: int, device: str) -> None:
        command = [sys.executable, __file__, "--serve", "--threads", str(threads)]
        self.process = subprocess.Popen(
            [*command, "--device", device],
            env=dict(os.environ, PYTHONPATH=str(root.resolve())),
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, model: str, tool: str, count: int) -> float:
        """Seconds per step."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(model, count, tool, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def serve(device: str) -> None:
    """Answer the lines that a ``Before`` sends."""
    torch.set_default_device(device)
    made: dict[str, Any] = {}
    for line in sys.stdin:
        name, count, tool = line.rstrip("\n").split(" ", 2)
        if name not in made:
            made = {name: MODELS[name]()}
            made[name][1]()
        print(time_steps(TOOLS[tool], *made[name], int(count)), flush=True)


def measure(name: str, rounds: int, device: str, before: Before | None) -> dict[str, Any]:
    torch.set_default_device(device)
    model, step = MODELS[name]()
    step()
    start = time.perf_counter()
    step()
    count = max(3, min(60, int(0.15 / (time.perf_counter() - start))))
    others = {f"before: {t}": t for t in TOOLS if before is not None and t.startswith("nanlab")}
    times: dict[str, list[float]] = {tool: [] for tool in (*TOOLS, *others)}
    memory = {}
    for tool, make in TOOLS.items():
        with Peak() as peak:
            time_steps(make, model, step, 2)
        memory[tool] = peak.mib
    for _ in range(rounds):
        for tool, make in TOOLS.items():
            times[tool].append(time_steps(make, model, step, count))
        for column, tool in others.items():
            assert before is not None
            times[column].append(before.time(name, tool, count))
    ratios = {
        tool: statistics.median(t / b for t, b in zip(times[tool], times["bare"], strict=True))
        for tool in times
        if tool != "bare"
    }
    return {"bare": statistics.median(times["bare"]), "ratios": ratios, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--against", type=Path, help="root of another checkout")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.serve:
        return serve(args.device)
    before = args.against and Before(args.against, args.threads, args.device)
    tools = [t for t in TOOLS if t != "bare"]
    tools += [f"before: {t}" for t in tools if before and t.startswith("nanlab")]
    lines = [
        "| model | bare step | "
        + " | ".join(f"{t} / bare" for t in tools)
        + " | peak memory above start, MiB ("
        + ", ".join(TOOLS)
        + ") |",
        "|---" * (3 + len(tools)) + "|",
    ]
    print("\n".join(lines))
    warm_up()
    for name in args.only:
        found = measure(name, args.rounds, args.device, before)
        ratios = " | ".join(f"{found['ratios'][t]:.2f}" for t in tools)
        memory = ", ".join(f"{found['memory'][t]:.0f}" for t in TOOLS)
        lines.append(f"| {name} | {found['bare'] * 1e3:.2f} ms | {ratios} | {memory} |")
        print(lines[-1], flush=True)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        threads = "one thread" if args.threads == 1 else f"{args.threads} threads"
        version = (
            f"torch {torch.__version__.split('+')[0]}, {threads}, {args.device}, medians of"
            f" {args.rounds} interleaved rounds"
        )
        args.output.write_text(f"{version}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
