"""Programs written as functions, several in a file of ``fields``: what each one is, and where its marks stand."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FIELDS = Path(__file__).parent / "fields"
sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class Program:
    """One program: ``build(fixed)`` returns (model, step), as a file of ``cases`` does."""

    name: str
    build: Callable[[bool], Any]
    meta: dict[str, Any]
    path: Path
    lines: range

    @property
    def marks(self) -> dict[str, list[int]]:
        from harness import markers

        return {mark: [at for at in found if at in self.lines] for mark, found in markers(self.path).items()}


def _programs(build: Callable[[bool], Any], meta: dict[str, Any]) -> Program:
    text, first = inspect.getsourcelines(build)
    path = Path(inspect.getfile(build))
    name = f"{'h' if 'cause' not in meta else 'f'}_{path.stem}_{build.__name__}"
    return Program(name, build, meta, path, range(first, first + len(text)))


def fault(
    cause: str,
    op: str,
    phase: str = "forward",
    step: int = 0,
    steps: int = 0,
    also: tuple[str, ...] = (),
    ops: tuple[str, ...] = (),
    building: bool = False,
    second: tuple[str, ...] = (),
) -> Callable[[Callable[[bool], Any]], Program]:
    """A program with one fault.

    step: where the symptom first shows; building: the watch covers ``build`` too; second: causes that stand beside
    the culprit in the findings.
    """
    meta = {
        "cause": cause,
        "also_causes": also,
        "origin_op": op,
        "also_ops": ops,
        "phase": phase,
        "first_bad_step": step,
        "n_steps": steps or step + 3,
        "building": building or phase in ("init", "data"),
        "second": second,
    }
    return lambda build: _programs(build, meta)


def healthy(why: str, steps: int = 6) -> Callable[[Callable[[bool], Any]], Program]:
    """A program that looks suspicious and is not."""
    return lambda build: _programs(build, {"healthy": True, "why": why, "n_steps": steps})


def train(
    parameters: Iterable[torch.Tensor],
    loss: Callable[[int], torch.Tensor],
    lr: float = 1e-3,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> Callable[[int], torch.Tensor]:
    """The usual training step around a loss."""
    kept = list(parameters)
    opt = optimizer(kept, lr=lr)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        return value

    step.parameters = {f"p{n}": p for n, p in enumerate(kept)}  # type: ignore[attr-defined]
    return step


def programs(patterns: Iterable[str] = (), kind: str = "fh") -> list[Program]:
    """The programs of all fields, in order of file and place."""
    wanted = list(patterns)
    found = []
    for path in sorted(FIELDS.glob("[a-z]*.py")):
        module = importlib.import_module(f"fields.{path.stem}")
        found += [p for p in vars(module).values() if isinstance(p, Program)]
    return [p for p in found if p.name[0] in kind and (not wanted or any(w in p.name for w in wanted))]
