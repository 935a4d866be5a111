"""Is a replay the step that was recorded? ``python benchmarks/replays.py [name ...] [--every N]``

Each program of the corpora, and each architecture of ``tests/architectures.py``, runs under a watch
that keeps all of its steps, each of which is run again.

    identical  every result has the statistics, to the last bit, that were recorded
    differs    some have not
    refused    the step says that it cannot be run again, and why
    above      it can be run above autograd too: fixes can be tried on it

Results of rows of every phase, spread over the last step, are held against what a dispatch mode of
its own saw, bit by bit. Exit status: how many steps differ, and tensors, at most 99.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import multiprocessing
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import nanlab
from nanlab.program.rebuild import same_bits
from nanlab.program.replay import check_rebuilt
from nanlab.program.rerun import window

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
FOLDERS = (TESTS / "corpus" / "cases", HERE / "unseen", HERE / "limits")
LIMIT = 180.0  # seconds for one program
COMPARED = 60  # results of the last step
Built = tuple[Any, Callable[[int], Any], int]


class Independent(TorchDispatchMode):
    """Copies of what each call of the program returned, taken without nanlab."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call, and keep what it returned."""
        out = func(*args, **(kwargs or {}))
        flat = out if isinstance(out, list | tuple) else [out]
        with _disable_current_modes():  # the copies are no part of the program
            kept = [t.detach().clone() for t in flat if isinstance(t, torch.Tensor)]
        self.seen.append((func, kept))
        return out


def programs(patterns: list[str]) -> Iterator[tuple[str, Callable[[], Built]]]:
    """Names, and what builds the model, the step and says how many steps there are."""
    from architectures import ARCHITECTURES, build
    from programs import programs as written  # type: ignore[import-not-found]

    found: list[tuple[str, Callable[[], Built]]] = []
    for folder in FOLDERS:
        for path in sorted(folder.glob("[a-z][0-9][0-9][0-9]_*.py")):
            found.append((path.stem, lambda path=path: _built(_loaded(path))))
    found += [(p.name, lambda p=p: (*p.build(False), p.meta["n_steps"])) for p in written()]
    found += [(f"architecture {n}", lambda n=n: (*build(n), 3)) for n in ARCHITECTURES]
    for name, make in found:
        if not patterns or any(each in name for each in patterns):
            yield name, make


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _built(module: Any) -> Built:
    return (*module.build(), getattr(module, "META", {"n_steps": 2}).get("n_steps", 2))


def tally(make: Callable[[], Built]) -> tuple[Counter[str], list[str]]:
    """What became of the steps of a program, and what is to be told."""
    counts, told = Counter[str](), list[str]()
    torch.manual_seed(0)
    independent, ended = Independent(), ""
    model, step, steps = make()
    named = model if isinstance(model, torch.nn.Module) else None
    with nanlab.watch(named, on_fault="record", keep=1000) as trace:
        try:
            for i in range(steps):
                independent.seen.clear()
                with independent:
                    step(i)
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
    recording = trace.recording
    last = 0
    for number, start in enumerate(recording.starts):
        if start >= recording.end:
            break
        last = number
        try:
            again = trace.replay(step=number)
        except nanlab.NotReplayable as error:
            counts["refused"] += 1
            told.append(f"step {number} refused: {error}")
            continue
        counts["identical" if again.identical else "differs"] += 1
        if not again.identical:
            ops = [recording.op(at) for at in again.different[:4]]
            names = ", ".join(f"{op.name} of line {op.line}" for op in ops if op is not None)
            told.append(f"step {number} differs: {names}")
        try:
            check_rebuilt(window(recording, number))
            counts["above"] += 1
        except nanlab.NotReplayable as error:
            told.append(f"step {number} not above autograd: {error}")
    if not ended:
        _compare(trace, last, independent, counts, told)
        if named is not None:
            _compare_parameters(trace, last, named, counts, told)
    return counts, told


def _compare(
    trace: nanlab.Trace, step: int, mode: Independent, counts: Counter[str], told: list[str]
) -> None:
    """Tensors of the last step against what the mode saw."""
    try:
        where = window(trace.recording, step)
    except nanlab.NotReplayable:
        return
    calls = [
        call
        for segment in where.segments
        for call in segment.calls
        if where.start <= call.position < where.end and "empty" not in str(call.func)
    ]
    known = {call.func for call in calls}
    seen = [each for each in mode.seen if each[0] in known]
    # an update is recorded as one call for many tensors, or in another order
    pairs = zip(calls, seen, strict=False)
    alike = list(itertools.takewhile(lambda each: each[0].func is each[1][0], pairs))
    counts["calls compared in order"] += len(alike)
    phases = trace.ops["phase"]
    by_phase: dict[str, list[int]] = {}
    for at, (call, _) in enumerate(alike):
        if call.position in phases.index and seen[at][1] and not seen[at][1][0].is_meta:
            by_phase.setdefault(str(phases[call.position]), []).append(at)
    for phase, places in by_phase.items():
        every = max(len(places) * len(by_phase) // COMPARED, 1)
        for at in places[::every]:
            try:
                found = trace.tensor(calls[at].position)
            except nanlab.NotReplayable as error:
                counts[f"{phase} tensors refused"] += 1
                told.append(f"tensor {calls[at].position} refused: {error}")
                continue
            same = same_bits(found.detach(), seen[at][1][0])
            counts[f"{phase} tensors {'equal' if same else 'differ'}"] += 1
            if not same:
                told.append(f"tensor {calls[at].position} ({calls[at].func}, {phase}) differs")


def _compare_parameters(
    trace: nanlab.Trace, step: int, model: torch.nn.Module, counts: Counter[str], told: list[str]
) -> None:
    """Parameters as the replay of the last step leaves them against the model's."""
    try:
        made = trace.replay(step=step).parameters
    except nanlab.NotReplayable:
        return
    for name, parameter in model.named_parameters():
        if name in made:
            same = same_bits(made[name], parameter.detach())
            counts[f"parameters {'equal' if same else 'differ'}"] += 1
            if not same:
                told.append(f"parameter {name} differs")


def _child(connection: Any, make: Callable[[], Built]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a program prints
    try:
        connection.send(tally(make))
    except Exception as error:
        connection.send((Counter(crashed=1), [f"{type(error).__name__}: {error}"]))


def ask(make: Callable[[], Built]) -> tuple[Counter[str], list[str]]:
    """The tally of one program, in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there, make))
    process.start()
    there.close()
    found = Counter(crashed=1), ["no answer in time"]
    try:
        if here.poll(LIMIT):
            found = here.recv()
    except EOFError:
        found = Counter(crashed=1), ["the process died"]
    if process.is_alive():
        process.terminate()
    process.join()
    return found


def main() -> int:
    """Print what is not identical, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    sys.path[:0] = [str(TESTS), str(TESTS / "corpus"), str(TESTS / "corpus" / "cases")]
    total = Counter[str]()
    for name, make in list(programs(arguments.names))[arguments.first :: arguments.every]:
        counts, told = ask(make)
        total += counts
        total["programs"] += 1
        for line in told:
            print(f"{name}: {line}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    wrong = total["differs"] + total["crashed"]
    wrong += sum(count for name, count in total.items() if name.endswith("s differ"))
    return min(wrong, 99)


if __name__ == "__main__":
    sys.exit(main())
