"""Candidates for casts to a dtype that cannot hold the value."""

from __future__ import annotations

import ast
import math

import torch

from nanlab.analysis.fixes._candidate import IN_FLOAT32, MASK, Candidate, Form, number
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, called
from nanlab.analysis.fixes._trial import ceiling


def _cast_to_half(node: ast.AST) -> Found | None:
    """``x.half()``, ``x.to(torch.float16)``, ``x.to(dtype)``."""
    found = called("half", "bfloat16")(node)
    if found is not None and not found.rest:
        return found
    found = called("to", arity=2)(node)
    dtype = found.operands[1] if found is not None and not found.rest else None
    if found is None or not isinstance(dtype, ast.Attribute | ast.Name):
        return None
    named = dtype.attr if isinstance(dtype, ast.Attribute) else dtype.id
    return None if "dev" in named else Found(found.operands[:1])  # of what failed it is a dtype


def copied(op: Operation) -> list[Candidate]:
    """A copy into a tensor of a dtype that cannot hold the value: a teacher, an average or a buffer
    in half precision."""
    into, value = (*op.operands[:2], None, None)[:2]
    if not isinstance(into, torch.Tensor) or not isinstance(value, torch.Tensor) or not op.low:
        return []
    return [
        Candidate(
            "keep what is written to in float32",
            (),
            lambda a, b: op.plain(a.float(), b),
            snippet=(
                "teacher.float()   # whatever holds the copy; or .bfloat16(), whose range is that"
                " of float32"
            ),
        )
    ]


def cast(op: Operation) -> list[Candidate]:
    """A cast to a dtype that cannot hold the value."""
    dtype = op.options.get("dtype")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return []
    limits = torch.finfo(dtype)
    wide = op.x.float() if op.x.element_size() == 1 else op.x
    x = wide[wide.abs() <= limits.max]
    largest = float(x.abs().max()) if x.numel() else 0.0
    room = limits.max if limits.bits == 8 else ceiling(dtype)
    bound = float(math.floor(min(max(MASK, largest), max(room, largest))))
    share = 10.0 ** math.ceil(
        math.log10(max(float(wide[torch.isfinite(wide)].abs().max()) / min(room, 1e3), 1.0))
    )
    clamp = f".clamp(-{bound:.0f}, {bound:.0f})"
    explicit = [
        Form((called("half"),), f"{{X}}{clamp}.half()"),
        Form((called("to"),), f"{{X}}{clamp}.to({{args}})"),
    ]
    name = str(dtype).removeprefix("torch.")
    return [
        Candidate(
            IN_FLOAT32,
            forms(_cast_to_half, "{X}.float()"),
            lambda t: t.float(),
            snippet="x.float()",
        ),
        Candidate(
            f"clamp at {bound:.0f} before the cast, within what {name} holds",
            tuple(explicit),
            lambda t: op.plain(t.clamp(-bound, bound)),
        ),
        Candidate(
            f"bring the values into range before the cast, here by {number(share)}; what follows"
            " must expect that",
            tuple(
                Form((called(name),), f"({{X}} / {number(share)}).{call}")
                for name, call in (
                    ("half", "half()"),
                    ("to", "to({args})"),
                    ("bfloat16", "bfloat16()"),
                )
            ),
            lambda t: op.plain(t / share),
            snippet=f"x / {number(share)}",
        ),
    ]
