"""Loading a program of the corpus and reading the marks at its line ends."""

from __future__ import annotations

import importlib.util
import re
import tokenize
from collections.abc import Iterable, Iterator
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
