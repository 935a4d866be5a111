"""Loading a program of the corpus and reading the marks at its line ends."""

from __future__ import annotations

import importlib.util
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

CASES = Path(__file__).parent / "cases"
MARKS = ("ORIGIN", "ALSO", "DATA", "FIRST")


def case_files(patterns: Iterable[str] = (), kind: str = "fth") -> list[Path]:
    """The programs in order of name; ``kind``: f = fault, t = training-loop fault, h = healthy."""
    wanted = list(patterns)
    found = sorted(path for path in CASES.glob("*.py") if re.match(rf"[{kind}]\d{{3}}_\w+\.py$", path.name))
    return [path for path in found if not wanted or any(p in path.name for p in wanted)]


def load(path: Path) -> ModuleType:
    """Import one program afresh; it has ``META`` and ``build(fixed=False) -> (model, step)``."""
    spec = importlib.util.spec_from_file_location(f"corpus_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def markers(path: Path) -> dict[str, list[int]]:
    """Line numbers of each mark: ``{"ORIGIN": [41], "ALSO": [], "DATA": [], "FIRST": []}``."""
    found: dict[str, list[int]] = {mark: [] for mark in MARKS}
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                for mark in re.findall(rf"\b({'|'.join(MARKS)})\b", token.string):
                    found[mark].append(token.start[0])
    return found


def parameters(model: Any, step: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Named parameters of the model, or of ``step.parameters`` (a dict) in a program without a module."""
    if model is not None:
        yield from model.named_parameters()
    else:
        yield from step.parameters.items()


def symptom(loss: torch.Tensor, parameters: Iterable[torch.Tensor]) -> str | None:
    """The first of loss, gradients and parameters that is not finite: ``"grad-nan"``."""
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    for place, tensors in (("loss", [loss.detach()]), ("grad", gradients), ("param", parameters)):
        if any(bool(t.isnan().any()) for t in tensors):
            return f"{place}-nan"
        if any(bool(t.isinf().any()) for t in tensors):
            return f"{place}-inf"
    return None


def course(path: Path, seed: int | None = None) -> list[str | None]:
    """The symptom of each step, without nanlab.

    seed: after each step the weights that it changed move by one unit in the last place, up or down at random, as
    sums in another order on another processor may leave them.
    """
    module = load(path)
    model, step = module.build()
    weights = [p for _, p in parameters(model, step)]
    random, seen = torch.Generator().manual_seed(seed or 0), []
    for i in range(module.META["n_steps"]):
        before = [p.detach().clone() for p in weights]
        seen.append(symptom(step(i), weights))
        if seed is not None:
            for weight, old in zip(weights, before, strict=True):
                _move(weight.data, old, random)
    return seen


def _move(weight: torch.Tensor, old: torch.Tensor, random: torch.Generator) -> None:
    """Move the elements that differ from ``old`` by one unit in the last place; zeros, which are exact, stay."""
    if not weight.is_floating_point() or weight.dtype.itemsize == 1:
        return
    up = torch.rand(weight.shape, generator=random) < 0.5
    ends = torch.where(up, torch.inf, -torch.inf).to(weight.dtype)
    moves = (weight != old) & (weight != 0) & weight.isfinite()
    weight.copy_(torch.where(moves, weight.nextafter(ends), weight))


@cache
def first_bad_step(path: Path) -> int:
    """The step in which the symptom first shows: that of META, or of a run where the course is chaotic."""
    meta = load(path).META
    if not meta.get("chaotic"):
        return int(meta["first_bad_step"])
    return next(i for i, seen in enumerate(course(path)) if seen is not None)
