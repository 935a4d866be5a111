"""Finding and Fix: one report of a fault, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Fix:
    """What to write instead, and what became of it when it was tried on the operands that failed."""

    title: str
    code: str
    verified: bool | None = None  # True: re-run forward and backward, and finite; None: cannot be tried on one operation
    distortion: float | None = None  # largest relative change on the healthy elements, against float64
    gradient_max: float | None = None


@dataclass(frozen=True)
class Finding:
    """One fault: what, where, why, the evidence, and the fixes that were tried."""

    cause: str
    severity: Severity
    title: str
    explanation: str
    phase: str
    op: str
    node: int | None
    module: str
    step: int
    file: str
    line: int
    source: str
    symptom: str
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: list[int] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    position: int = -1  # row of trace.ops where it began, -1 if there is none
    harmful: bool = False  # it explains the symptom: may be the culprit

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "unknown line"
        module = f", in {self.module}" if self.module else ""
        return f"{self.title}  ({where}{module}, step {self.step})"
