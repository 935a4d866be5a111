"""A finding as the text of an issue: what was seen, where, a minimal reproduction, the fixes, the
versions."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from nanlab.analysis.reproduction import reproduction
from nanlab.rules import Path
from nanlab.trace.locations import location
from nanlab.views._evidence import operand_names
from nanlab.views._source import as_typed, excerpt

if TYPE_CHECKING:
    from nanlab.rules import Finding
    from nanlab.trace import Trace


def reproduction_of(trace: Trace, finding: Finding) -> str:
    """A program of a dozen lines that shows the fault; "" where none can be made."""
    if finding.position < 0 or not hasattr(trace, "kept"):
        return ""
    names = operand_names(as_typed(finding.source), finding.op)
    return reproduction(trace, finding.position, finding.title, names)


def as_issue(trace: Trace, finding: Finding, program: str) -> str:
    """The text, in Markdown."""
    place = location(finding.file, finding.line) or "unknown line"
    where = f"`{place}`" + (f", in `{finding.module}`" if finding.module else "")
    lines = excerpt(trace, finding.file, finding.line) if finding.file else []
    marked = [f"{'>' if n == finding.line else ' '} {n:>4}  {text}" for n, text in lines]
    parts = [
        f"### {finding.title}",
        f"At {where}, step {finding.step}, {finding.phase} (`{finding.cause}`).",
    ]
    parts += ["\n".join(["```", *marked, "```"])] if marked else []
    parts += [finding.explanation]
    parts += [f"Path: {Path(finding.path).chain()}"] if finding.path else []
    parts += [f"Minimal reproduction:\n\n```python\n{program.rstrip()}\n```"] if program else []
    tried = [
        f"- {fix.verdict}: {fix.title}\n  `{fix.code}`"
        for fix in finding.fixes
        if "\n" not in fix.code
    ]
    parts += ["Fixes that nanlab offers:\n\n" + "\n".join(tried)] if tried else []
    parts += [f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()}"]
    return "\n\n".join(parts) + "\n"
