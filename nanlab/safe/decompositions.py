"""Decompositions whose derivatives stand where eigenvalues or singular values are equal."""

from __future__ import annotations

import torch
from torch import Tensor

from nanlab.errors import TypeMismatchError
from nanlab.safe.series import is_mapped


def eigh(A: Tensor, UPLO: str = "L") -> tuple[Tensor, Tensor]:
    """``torch.linalg.eigh``, eigenvalues that are equal moved apart.

    A: symmetric or Hermitian matrices, shape (..., n, n), real or complex.
    Value: eigenvalues L, shape (..., n), ascending, and vectors V, shape (..., n, n). Torch's bits
    for a matrix whose eigenvalues are apart; equal ones are moved about their mean, by
    ``sqrt(eps * n / 2)`` of it at most: a relative 0.0003 for n = 2 in float32, 0.002 for n = 64.
    Those below an eighth of the largest are moved as if they were an eighth.
    Derivative: torch's at the moved eigenvalues. For whatever does not depend on the choice of
    vectors among those of equal eigenvalues, as a function of the matrix
    ``(V * f(L).unsqueeze(-2)) @ V.mH``, it is right up to as much; there torch's is NaN, or
    rounding errors over the tiny gap. For what depends on that choice there is none, and it is
    large.
    Raises TypeMismatchError (a TypeError) for what is no tensor; what torch raises for others.
    """
    found = torch.linalg.eigh(_as_matrix(A), UPLO)
    values, vectors = (each.detach() for each in found)
    shift = _apart(values) - values
    if not _is_nothing(shift):
        found = torch.linalg.eigh(A + (vectors * shift.unsqueeze(-2)) @ vectors.mH, UPLO)
    return found[0], found[1]


def svd(A: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.linalg.svd``, singular values that are equal moved apart.

    A: matrices, shape (..., m, n), real or complex.
    Value: U, singular values S, descending, and Vh, moved as by :func:`eigh`.
    Derivative: as of :func:`eigh`: right up to a relative ``sqrt(eps * n / 2)`` for whatever does
    not depend on the choice of vectors, as the nearest rotation ``U @ Vh``.
    Raises TypeMismatchError (a TypeError) for what is no tensor; what torch raises for others.
    """
    found = torch.linalg.svd(_as_matrix(A), full_matrices)
    u, s, vh = (each.detach() for each in found)
    moved = _apart(s.flip(-1)).flip(-1)
    shift = moved - moved[..., -1:].clamp_max(0.0) - s  # none below 0
    if not _is_nothing(shift):
        count = s.shape[-1]
        step = (u[..., :count] * shift.unsqueeze(-2)) @ vh[..., :count, :]
        found = torch.linalg.svd(A + step, full_matrices)
    return found[0], found[1], found[2]


def _as_matrix(A: Tensor) -> Tensor:
    if not isinstance(A, Tensor):
        raise TypeMismatchError(
            f"expected a tensor for A, got {type(A).__name__}; wrap it in torch.as_tensor"
        )
    return A


def _is_nothing(shift: Tensor) -> bool:
    """Whether no value is moved, where a program may look at its numbers: one decomposition is
    enough then."""
    if torch.compiler.is_compiling() or is_mapped():
        return False
    return not bool(shift.any())


def _apart(values: Tensor) -> Tensor:
    """Ascending values along the last dimension, each so far from the next that neither the
    rounding of what is computed of them nor the gap is large in a quotient of differences."""
    size, count = values.abs(), max(values.shape[-1], 1)
    largest = size.amax(-1, keepdim=True) if values.shape[-1] else size
    size = torch.maximum(size, largest / 8)  # near 0 what is computed need not be near 0
    eps = torch.finfo(values.dtype).eps
    least = (2 * eps / count) ** 0.5 * torch.where(largest == 0, 1.0, size)
    near = (values.diff() < least[..., 1:]).any(-1, keepdim=True)
    steps = least.cumsum(-1)
    flat = values - steps
    # the nearest that rise by the steps at least: between the ones above and the ones below
    above, below = flat.cummax(-1).values, flat.flip(-1).cummin(-1).values.flip(-1)
    return torch.where(near, (above + below) / 2 + steps, values)
