"""Back-test of the forecast: how many overflows and underflows are foreseen five steps ahead, and
how often a healthy run is warned of.

    python benchmarks/forecast.py            # 157 runs that overflow, 73 that underflow, 243 healthy
    python benchmarks/forecast.py --quick    # a quarter of them

A fault in the first steps of a run cannot be foreseen (a fit takes four of them); each of these
runs lasts longer. Every run is recorded once; then each step is judged by what was known at its
end, as a user would have seen it.
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import courses
import drifts
import numpy as np
import ranges
import slopes
import torch
from torch import nn

import nanlab
from nanlab.topics.forecast import End, candidates, first_told, forecasts, towards

AHEAD = 5  # steps by which a warning must come before the overflow
Step = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class Run:
    """One program: a model, its step, and for how long it runs."""

    name: str
    model: nn.Module
    step: Step
    steps: int
    lines: frozenset[int] = frozenset()  # those that a warning must name; empty: any


class Encoder(nn.Module):
    """Token vectors, two layers, a mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(200, width)
        self.mix = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Dropout(0.4), nn.Linear(width, width)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mix(self.emb(ids)).mean(1)  # type: ignore[no-any-return]


def contrastive(seed: int, normalised: bool, steps: int) -> Run:
    """Two views by dropout, scores over a small temperature under float16: without normalisation
    the norms grow."""
    torch.manual_seed(seed)
    net = Encoder(48)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3 if normalised else (0.1, 0.08, 0.06)[seed % 3])
    gen = torch.Generator().manual_seed(seed)
    temperature = (0.05, 0.07, 0.1, 0.03)[seed % 4]

    def step(i: int) -> torch.Tensor:
        ids = torch.randint(0, 200, (16, 8), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = net(ids), net(ids)
            if normalised:
                a, b = (
                    nn.functional.normalize(a.float(), dim=-1),
                    nn.functional.normalize(b.float(), dim=-1),
                )
            scores = a @ b.T / temperature
        loss = nn.functional.cross_entropy(scores.float(), torch.arange(16))
        loss.backward()
        opt.step()
        return loss

    return Run(f"contrastive {seed}", net, step, steps)


def prototypes(seed: int, steps: int) -> Run:
    """Distances to prototypes in float16, pushed apart without end."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 32))
    opt = torch.optim.Adam(net.parameters(), lr=0.01 + 0.01 * seed)
    gen = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 32)

    def step(i: int) -> torch.Tensor:
        y = torch.randint(0, 5, (20,), generator=gen)
        x = torch.randn(20, 10, generator=gen) + 0.5 * y.unsqueeze(1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            z = net(x)
            distance = ((z.unsqueeze(1) - centres.to(z.dtype)) ** 2).sum(-1)
        loss = (
            distance.float().gather(1, y.unsqueeze(1)).squeeze(1) - distance.float().mean(1)
        ).mean()
        loss.backward()
        opt.step()
        return loss

    return Run(f"prototypes {seed}", net, step, steps)


def regression(seed: int, rate: float, steps: int) -> Run:
    """Least squares on raw features; above a rate of two over the curvature the weights oscillate
    and grow."""
    torch.manual_seed(seed)
    net = nn.Linear(8, 2)
    opt = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.5 * (seed % 2))
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        x = 3.0 * torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :2])
        loss.backward()
        opt.step()
        return loss

    return Run(f"regression {seed}", net, step, steps)


def recurrence(seed: int, gain: float, steps: int) -> Run:
    """A linear state in float16 whose matrix gains weight by decay of the wrong sign, or
    settles."""
    torch.manual_seed(seed)
    net = nn.Linear(6, 6, bias=False)
    nn.init.orthogonal_(net.weight)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        h = torch.randn(8, 6, generator=gen)
        opt.zero_grad()
        half, weight = h.half(), net.weight.half()
        for _ in range(6):
            half = half @ weight.T
        loss = (half.float() ** 2).clamp(max=100.0).mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            net.weight.mul_(gain)
        return loss

    return Run(f"recurrence {seed}", net, step, steps)


def classifier(seed: int, steps: int) -> Run:
    """An ordinary classifier under autocast to bfloat16 or in float32, by Adam."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 10, generator=gen) * (1 + 50 * (seed % 3))
        y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(seed % 2)):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        opt.step()
        return loss

    return Run(f"classifier {seed}", net, step, steps)


def scaled(seed: int, steps: int) -> Run:
    """float16 autocast with a GradScaler that starts too high."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.SiLU(), nn.Conv1d(8, 2, 3, padding=1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=40)
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(8, 2, 12, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), x.cumsum(-1) * (1 + min(i, 20)))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return Run(f"scaled {seed}", net, step, steps)


def fading(seed: int, steps: int) -> Run:
    """Likelihoods multiplied in float16 while training sharpens them, a kernel whose width anneals,
    a decaying auxiliary loss."""
    torch.manual_seed(seed)
    net = nn.Linear(6, 6)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(seed)
    pace = 0.7 + 0.05 * (seed // 3)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        if seed % 3 == 0:
            loss = out.float().square().mean() * pace**i
        elif seed % 3 == 1:
            loss = (
                1.0
                + (-(0.05 * i / pace) * (4.0 + out.square().mean(1))).exp().half().float().mean()
            )
        else:
            loss = (
                out.float().square().mean()
                + (out[:, :3].sigmoid() * pace ** (i / 2)).prod(1).float().mean()
            )
        loss.backward()
        opt.step()
        return loss

    return Run(f"fading {seed}", net, step, steps)


def halves(seed: int, steps: int) -> Run:
    """Healthy float16 without a scaler: gradients shrink as it converges, and come to rest on the
    noise of the data."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        noise = 0.05 * torch.randn(32, 2, generator=gen)
        loss = nn.functional.mse_loss(out.float(), x[:, :2].tanh() + noise) * 0.1
        loss.backward()
        opt.step()
        return loss

    return Run(f"halves {seed}", net, step, steps)


def tally(seed: int, steps: int) -> Run:
    """A float16 sum that grows by a batch a step: linearly, quadratically, by jumps with noise, or
    faster and faster."""
    torch.manual_seed(seed)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float16)
    size = 700.0 + 150.0 * (seed // 4)

    def step(i: int) -> torch.Tensor:
        nonlocal total
        x = torch.rand(16, 6, generator=gen)
        part = (size, size * i / 12, size * 4.0 * (i % 4 == 0), 40.0 * 1.12**i)[seed % 4]
        total = total + (part * (0.8 + 0.4 * torch.rand((), generator=gen))).half()
        opt.zero_grad()
        loss = (net(x) - 1).square().mean() + 0.0 * total.float()
        loss.backward()
        opt.step()
        return loss

    return Run(f"tally {seed}", net, step, steps)


def norms(seed: int, steps: int) -> Run:
    """Scores of embeddings in float16 that are pushed apart at a constant pace: norms grow
    linearly, scores quadratically."""
    torch.manual_seed(seed)
    net = nn.Embedding(12, 16)
    opt = torch.optim.SGD(net.parameters(), lr=(0.5, 0.8, 1.2, 2.0)[seed % 4])
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        ids = torch.randperm(12, generator=gen)[:8]
        e = net(ids)
        scores = e.half() @ e.half().T / 0.05
        opt.zero_grad()
        loss = -e.norm(dim=-1).sum() + 0.0 * scores.float().sum()
        loss.backward()
        opt.step()
        return loss

    return Run(f"norms {seed}", net, step, steps)


def kernel(seed: int, steps: int) -> Run:
    """A Gaussian kernel in float16 whose bandwidth shrinks by a factor a step."""
    torch.manual_seed(seed)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(seed)

    def step(i: int) -> torch.Tensor:
        x = torch.rand(16, 4, generator=gen)
        width = 2.0 * (0.97 - 0.01 * (seed % 4)) ** i
        opt.zero_grad()
        distance = 1.0 + net(x).square().sum(1)
        loss = 1.0 - (-distance / (2 * width**2)).exp().half().float().mean()
        loss.backward()
        opt.step()
        return loss

    return Run(f"kernel {seed}", net, step, steps)


def settling(seed: int, steps: int) -> Run:
    """Healthy float16: a sum with decay, a norm that levels off, cycles, spikes, a warm-up that
    ends, a slow random walk."""
    torch.manual_seed(seed)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float16)
    scale = 1.0 + 0.5 * (seed // 6)

    def step(i: int) -> torch.Tensor:
        nonlocal total
        noise = 1 + 0.1 * torch.randn((), generator=gen)
        course = (
            18000.0 * scale * (1 - 0.93**i) / 1.5,
            9000.0 * scale * (i / (i + 20.0)),
            12000.0 + 8000.0 * torch.sin(torch.tensor(i / (5.0 + seed))),
            3000.0 * (6.0 if i % 17 == 16 else 1.0),
            350.0 * scale * min(i, 40),
            15000.0 + 150.0 * (i % 50) * scale,
        )[seed % 6]
        total = (course * noise).half() if seed % 6 in (2, 3) else torch.as_tensor(course).half()
        x = torch.rand(16, 6, generator=gen)
        opt.zero_grad()
        loss = (net(x) - 1).square().mean() + 0.0 * (total * 1.5).float()
        loss.backward()
        opt.step()
        return loss

    return Run(f"settling {seed}", net, step, steps)


def vanishing(part: int) -> Iterator[Run]:
    """Runs in which a float16 result or gradient becomes zero as a whole."""
    for seed in range(0, 9, part):
        yield fading(seed, 90)
    for seed in range(0, 4, part):
        yield kernel(seed, 90)
    yield from others(drifts.UNDERFLOW[::part])
    yield from others(courses.UNDERFLOW[::part])
    yield from others(slopes.UNDERFLOW[::part])
    yield from others(ranges.UNDERFLOW[::part])


def diverging(part: int) -> Iterator[Run]:
    """Runs that overflow."""
    for seed in range(0, 6, part):
        yield contrastive(seed, False, 200)
    for seed in range(0, 4, part):
        yield prototypes(seed, 120)
    for seed in range(0, 5, part):
        yield regression(seed, 0.3 + 0.05 * seed, 200)
    for seed in range(0, 5, part):
        yield recurrence(seed, 1.03 + 0.015 * seed, 120)
    for seed in range(0, 12, part):
        yield tally(seed, 200)
    for seed in range(0, 4, part):
        yield norms(seed, 300)
    yield from others(drifts.OVERFLOW[::part])
    yield from others(courses.OVERFLOW[::part])
    yield from others(slopes.OVERFLOW[::part])
    yield from others(ranges.OVERFLOW[::part])


def healthy(part: int, steps: int = 200) -> Iterator[Run]:
    """Runs that do not."""
    for seed in range(0, 5, part):
        yield contrastive(seed, True, steps)
        yield regression(seed, 0.004, steps)
        yield classifier(seed, steps)
    for seed in range(0, 3, part):
        yield scaled(seed, steps)
    for seed in range(0, 2, part):
        yield recurrence(seed, 1.0, steps)
    for seed in range(0, 4, part):
        yield halves(seed, steps)
    for seed in range(0, 18, part):
        yield settling(seed, 120)
    yield from others(drifts.HEALTHY[::part])
    yield from others(courses.HEALTHY[::part])
    yield from others(slopes.HEALTHY[::part])
    yield from others(ranges.HEALTHY[::part])


def others(programs: Iterable[Callable[[], drifts.Made]]) -> Iterator[Run]:
    """The runs of drifts.py, courses.py, slopes.py and ranges.py."""
    for program in programs:
        text, first = inspect.getsourcelines(program)
        marked = (n for n, line in enumerate(text, first) if line.rstrip().endswith("flows"))
        yield Run(program.__name__, *program(), frozenset(marked))


def record(run: Run) -> nanlab.Trace:  # type: ignore[name-defined]
    """Train it under a watch, until the first non-finite loss."""
    with nanlab.watch(run.model, on_fault="record") as trace:
        for i in range(run.steps):
            if not bool(torch.isfinite(run.step(i).detach())):
                break
    return trace


def lead(trace: nanlab.Trace, end: End, lines: frozenset[int]) -> int | None:  # type: ignore[name-defined]
    """Steps between the first warning and the first fault of that kind; None without one.

    An overflow is the first infinity or NaN anywhere. A result underflowed once nothing of it is
    left though there was something before; each is judged by itself, and the shortest lead counts.
    """
    told = {
        f.column: f
        for f in forecasts(trace.recording)
        if f.end == end and f.reached is not None and on(trace, f.column, lines)
    }
    table = towards(trace.recording.training.series, end)
    if not np.isposinf(table).any():
        return None
    if end == "overflow":
        row = int(np.flatnonzero(np.isposinf(table).any(axis=1))[0])
        began = trace.recording.training.series.steps[row]
        first = int(np.searchsorted(trace.recording.starts, began, side="left")) - 1
        return max((first - f.step for f in told.values()), default=0)
    return min(
        (told[c].lead or 0 if c in told else 0 for c in faded(trace, lines)),
        default=None,
    )


def on(trace: nanlab.Trace, column: int, lines: frozenset[int]) -> bool:  # type: ignore[name-defined]
    """Whether a result comes from one of the lines, if any are marked."""
    line = trace.recording.places[trace.recording.training.series.places[column].line][1]
    return not lines or line in lines


def faded(trace: nanlab.Trace, lines: frozenset[int]) -> list[int]:  # type: ignore[name-defined]
    """The first results of their step that underflowed for good: zero after a step in which they
    were subnormal. Of float16, or on one of the lines."""
    series = trace.recording.training.series
    table = series.table
    found: dict[int, list[int]] = {}
    for column, place in enumerate(series.places):
        values = table[:, column]
        gone = np.flatnonzero(np.isneginf(values))
        meant = on(trace, column, lines) if lines else place.dtype == "float16"
        if meant and len(gone) and gone[0] > 1 and values[gone[0] - 1] < _normal(place.dtype):
            found.setdefault(int(gone[0]), []).append(column)
    return found[min(found)] if found else []


def _normal(dtype: str) -> float:
    """log2 of the smallest normal number."""
    return float(np.log2(torch.finfo(getattr(torch, dtype)).smallest_normal))


def false_warnings(trace: nanlab.Trace) -> int:  # type: ignore[name-defined]
    """Results of which a user would have been warned at the end of some step."""
    count = 0
    series = trace.recording.training.series
    for end in ("overflow", "underflow"):
        table = towards(series, end)
        for column, limit, wide in candidates(trace.recording, end):
            count += first_told(table[:, column], limit, wide) is not None
    return count


def back_test(runs: list[Run], end: End) -> str:
    """The leads of runs that end in a fault, told line by line, and their summary."""
    leads = []
    for run in runs:
        found = lead(record(run), end, run.lines)
        print(
            f"{run.name:16s} {f'no {end}' if found is None else f'foreseen {found} steps ahead'}",
            flush=True,
        )
        if found is not None:
            leads.append(found)
    hits = sum(found >= AHEAD for found in leads)
    share = 100 * hits / max(len(leads), 1)
    return (
        f"{hits} of {len(leads)} {end}s foreseen {AHEAD} steps ahead ({share:.0f} %), median lead"
        f" {np.median(leads):.0f} steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    part = 4 if parser.parse_args().quick else 1
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    summaries = [
        back_test(list(diverging(part)), "overflow"),
        back_test(list(vanishing(part)), "underflow"),
    ]
    wrong = 0
    runs = list(healthy(part))
    for run in runs:
        count = false_warnings(record(run))
        wrong += count > 0
        if count:
            print(f"{run.name:16s} {count} false warnings", flush=True)
    print(*summaries, f"{wrong} of {len(runs)} healthy runs with a false warning", sep="\n")


if __name__ == "__main__":
    main()
