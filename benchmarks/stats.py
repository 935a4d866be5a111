"""What a row of statistics costs, against the passes over a tensor that it replaces.

Run: python benchmarks/stats.py
Candidates take turns, so that a slow moment of the machine meets all of them; medians, one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from nanlab.stats import StatsTable

SIZES = {"16": 16, "4 Ki": 1 << 12, "1 Mi": 1 << 20, "16 Mi": 1 << 24}
ROUNDS = 15


def seven_reductions(t: torch.Tensor) -> None:
    """What a watch made of plain torch would compute, and no histogram."""
    t.isnan().sum()
    t.isinf().sum()
    (t == 0).sum()
    t.aminmax()
    t.abs().amin()
    t.mean()
    t.square().mean().sqrt()


def seconds_per_call(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def medians(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds per call of each candidate, the median over rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            times[name].append(seconds_per_call(call, repeats))
    return {name: statistics.median(of_one) for name, of_one in times.items()}


def report(label: str, t: torch.Tensor) -> None:
    table = StatsTable()
    candidates: dict[str, Callable[[], object]] = {
        "StatsTable.add": lambda: table.add(t),
        "aminmax": t.aminmax,
        "isfinite().all()": lambda: t.isfinite().all(),
        "seven reductions": lambda: seven_reductions(t),
    }
    for name, seconds in medians(
        candidates, repeats=max(1, (1 << 14) // max(t.numel(), 16))
    ).items():
        print(
            f"{label:<28}{name:<20}{seconds * 1e6:>12.2f} us {seconds / t.numel() * 1e9:>10.3f}"
            " ns/element"
        )


def main() -> None:
    torch.set_num_threads(1)
    start = time.perf_counter()
    table = StatsTable()
    table.add(torch.ones(1))
    table.add(torch.ones(1, dtype=torch.int64))
    print(f"first table, kernels loaded: {time.perf_counter() - start:.2f} s")
    torch.manual_seed(0)
    for name, numel in SIZES.items():
        report(f"float32 {name}", torch.randn(numel))
    million = torch.randn(1 << 20)
    report("float32 1 Mi, tiny values", million * 1e-6)
    report("float32 1 Mi, after relu", million.relu())
    report("float32 1 Mi, half -inf", million.masked_fill(million > 0, -torch.inf))
    report("float32 1 Mi, transposed", million.view(1024, 1024).t())
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        report(f"{str(dtype).removeprefix('torch.')} 1 Mi", million.to(dtype))


if __name__ == "__main__":
    main()
