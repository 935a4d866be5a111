"""Candidates for decompositions of singular matrices, and of matrices with equal eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate, Form, default_eps, number
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._powers import EXP_BOUND
from nanlab.analysis.fixes._rewriting import called

_MATRIX = {
    "_linalg_slogdet": ("logdet", "slogdet"),
    "_linalg_det": ("det",),
    "linalg_inv_ex": ("inv", "inverse", "inv_ex"),
    "_linalg_solve_ex": ("solve", "solve_ex"),
    "linalg_cholesky_ex": ("cholesky", "cholesky_ex"),
    "_linalg_svd": ("svd",),
    "_linalg_eigh": ("eigh",),
    "linalg_eig": ("eig",),
    "linalg_qr": ("qr",),
}


def degenerate(op: Operation) -> list[Candidate]:
    """A singular matrix, or one with equal eigenvalues: a small diagonal sets it right."""
    a = op.x
    if a.dim() < 2 or not a.is_floating_point():
        return []
    n, spelled = min(a.shape[-2:]), called(*_MATRIX[op.name])
    size = float(a.abs().max()) or 1.0
    jitter = 10.0 ** round(torch.tensor(size * default_eps(op.dtype) * 100).log10().item())
    uneven = op.name in ("_linalg_svd", "_linalg_eigh", "linalg_eig")
    if uneven:
        ramp = torch.linspace(1, 2, n, dtype=a.dtype, device=a.device)
        diagonal = (
            "torch.diag(torch.linspace(1, 2, {X}.shape[-1], dtype={X}.dtype, device={X}.device))"
        )
        title = f"split equal eigenvalues by an uneven diagonal of {number(jitter)}"
    else:
        ramp = torch.ones(n, dtype=a.dtype, device=a.device)
        diagonal = "torch.eye({X}.shape[-1], dtype={X}.dtype, device={X}.device)"
        title = f"add {number(jitter)} to the diagonal"

    def run(matrix: Tensor, *rest: Any) -> Tensor:
        return op.plain(matrix + jitter * torch.diag(ramp), *rest)

    found: list[Candidate] = []
    if op.name == "linalg_qr":
        found.append(_tall(op, jitter))
    elif a.shape[-1] == a.shape[-2]:
        found += [
            Candidate(
                title,
                tuple(
                    Form((called(name),), _matrix_text(name, jitter, diagonal))
                    for name in _MATRIX[op.name]
                ),
                run,
            )
        ]
    if uneven and not op.only_way:
        found.append(
            Candidate(
                "cut the gradient of the decomposition, where the loss does not need it",
                forms(spelled, f"torch.linalg.{_MATRIX[op.name][0]}({{X}}.detach(){{rest}})"),
                lambda m: op.plain(m.detach()),
            )
        )
    return found


def _matrix_text(name: str, jitter: float, diagonal: str) -> str:
    home = "torch" if name in ("logdet", "inverse") else "torch.linalg"
    return f"{home}.{name}({{X}} + {number(jitter)} * {diagonal}{{rest}})"


def _tall(op: Operation, jitter: float) -> Candidate:
    """Columns of a matrix, square or not, that depend on each other."""
    eye = "torch.eye(*{X}.shape[-2:], dtype={X}.dtype, device={X}.device)"
    return Candidate(
        f"add {number(jitter)} to the diagonal",
        forms(called("qr"), f"torch.linalg.qr({{X}} + {number(jitter)} * {eye}{{rest}})"),
        lambda a: op.plain(a + jitter * torch.eye(*a.shape[-2:], dtype=a.dtype, device=a.device)),
    )


# slot of the triangular matrix
_FACTOR = {"linalg_solve_triangular": 0, "triangular_solve": 1, "cholesky_solve": 1}


def triangular(op: Operation) -> list[Candidate]:
    """A triangular matrix with a 0 on its diagonal."""
    slot = _FACTOR[op.name]
    if op.backward or slot >= len(op.operands) or not isinstance(op.operands[slot], Tensor):
        return []
    factor = op.operands[slot]
    jitter = 10.0 ** round(torch.tensor(default_eps(op.dtype) * 100).log10().item())

    def run(*ts: Any) -> Tensor:
        shifted = ts[slot] + jitter * torch.eye(
            factor.shape[-1], dtype=factor.dtype, device=factor.device
        )
        return op.plain(*ts[:slot], shifted, *ts[slot + 1 :])

    return [
        Candidate(
            f"add {number(jitter)} to the diagonal of the triangular factor, where it is made",
            (),
            run,
            snippet=f"factor = factor + {number(jitter)} * torch.eye(factor.shape[-1])",
        )
    ]


def matrix_exponential(op: Operation) -> list[Candidate]:
    """The exponential of a matrix whose entries are too large."""
    bound = max(1, int(EXP_BOUND) // op.x.shape[-1])
    return [
        Candidate(
            f"clamp the entries at {bound}",
            forms(called("matrix_exp"), f"torch.linalg.matrix_exp({{X}}.clamp(-{bound}, {bound}))"),
            lambda a: op.plain(a.clamp(-bound, bound)),
        )
    ]


MATRICES: dict[str, Callable[[Operation], list[Candidate]]] = {
    **dict.fromkeys(_MATRIX, degenerate),
    **dict.fromkeys(_FACTOR, triangular),
    **dict.fromkeys(("linalg_matrix_exp", "matrix_exp"), matrix_exponential),
}
