"""Decompositions, inverses and determinants of matrices that are singular or have equal
eigenvalues."""

from __future__ import annotations

import torch

from nanlab.operators import having
from nanlab.rules._evidence import match, number, plural
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Match, rule

_MATRIX = having("matrix_function")


@rule(
    "error",
    example="""
        a = torch.eye(3, requires_grad=True)
        values, vectors = torch.linalg.eigh(a * 2)  # here
        vectors[0, 0].backward()
    """,
    fix="""
        a = torch.eye(3, requires_grad=True)
        values, vectors = torch.linalg.eigh(a * 2 + torch.diag(torch.tensor([0.0, 0.1, 0.2])))
        vectors[0, 0].backward()
    """,
    family="composite",
)
def degenerate_matrix(fault: Fault) -> Match | None:
    """A singular matrix has no inverse and no log-determinant; where eigenvalues or singular values
    coincide, or are zero, the derivative of their vectors divides by a difference of zero.

    Add a small multiple of the identity (or, for equal eigenvalues, a small diagonal of different
    numbers), use only the eigenvalues, or cut the gradient of the vectors.
    """
    if not any(part in fault.forward for part in _MATRIX):
        return None
    spectrum = next(
        (
            fault.saved[n]
            for n in ("S", "eigenvalues", "L")
            if isinstance(fault.saved.get(n), torch.Tensor)
        ),
        None,
    )
    if spectrum is not None and spectrum.dim() and spectrum.shape[-1] > 1:
        ordered = (
            spectrum.real.double().sort(-1).values
            if spectrum.is_complex()
            else spectrum.double().sort(-1).values
        )
        gap = number((ordered[..., 1:] - ordered[..., :-1]).min())
        title = (
            f"the derivative of {fault.forward} divides by differences of its values; the smallest"
            f" is {gap}, the smallest value {number(ordered.min())}"
        )
        return match(fault, title)
    verb = "the derivative of " if fault.backward else ""
    title = (
        f"{verb}{fault.forward.strip('_')} of a singular matrix: {plural(fault.count, 'element')}"
        f" of {fault.numel:,} not finite"
    )
    return match(fault, title)
