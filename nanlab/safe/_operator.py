"""An operator of torch, and what it gives where torch's answer is not finite: the double where,
once for all."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanlab.safe._operands import Dims

# (torch's value, *operands) -> the value to hold where torch's is not finite
Outside = Callable[..., Tensor]
Flat = Callable[..., tuple[Tensor, ...]]  # (torch's value, *operands) -> a mask per operand


def is_finite(x: Tensor) -> Tensor:
    """``torch.isfinite`` in two passes over memory instead of four."""
    return x.abs() <= torch.finfo(x.dtype).max


@dataclass(frozen=True)
class Operator:
    """An operator of torch, and what it is to give where torch's answer is not finite; see
    :func:`guard`."""

    fn: Callable[..., Tensor]
    benign: float
    outside: Outside | None
    flat: Flat | None
    dim: Dims
    reduces: bool
    valid: Callable[[Tensor], Tensor]

    def whole(self, mask: Tensor) -> Tensor:
        """A mask of elements as one of those slices all of whose elements are in it."""
        return _all(mask, self.dim) if self.reduces else mask

    def nan_came_in(self, operands: Sequence[Tensor]) -> Tensor:
        """Mask of where an operand is NaN."""
        return ~functools.reduce(torch.logical_and, [self.whole(x == x) for x in operands])

    def value(self, *operands: Tensor) -> Tensor:
        """Torch's value, mended where it may not stand. Looks at the numbers: one sum, and no more
        where all is well."""
        value = self.fn(*operands)
        if bool(self.valid(_total(value))):
            return value
        if self.reduces or not value.ndim:
            stands = self.valid(value) | self.nan_came_in(operands)
            return torch.where(stands, value, self._spare(value, *operands))
        at = (~self.valid(value)).nonzero(as_tuple=True)
        few = [x[at] for x in operands]
        value[at] = torch.where(self.nan_came_in(few), value[at], self._spare(value[at], *few))
        return value

    def _spare(self, value: Tensor, *operands: Tensor) -> Tensor:
        return torch.nan_to_num(self.outside(value, *operands) if self.outside else value)

    def gradients(
        self, wanted: Sequence[bool], grad: Tensor, *operands: Tensor
    ) -> tuple[Tensor, ...]:
        """Torch's vector-Jacobian product for each operand that is wanted, mended where it is not
        finite.

        What is bad is 0 where the value may not stand or the product with ones is not finite
        either; otherwise the gradient that came in was, and is passed on. Looks at the numbers, as
        :meth:`value` does.
        """
        with _unseen():
            leaves = [
                x.detach().requires_grad_(want) for x, want in zip(operands, wanted, strict=True)
            ]
            value, root = self._run(leaves)
            sought = [x for x in leaves if x.requires_grad]
            found = torch.autograd.grad(root, sought, grad, retain_graph=True)
            if root is value and all(bool(is_finite(_total(g))) for g in found):
                return found
            if self.reduces or not value.ndim:
                return self._mended(value, root, leaves, found)
            # of value and gradients at once; some may be sound
            suspect = ~is_finite(sum(found, value.detach()))
            at = suspect.nonzero(as_tuple=True)
            few = [x.detach()[at].requires_grad_(x.requires_grad) for x in leaves]
            mended = self._mended(*self._run(few), few, [g[at] for g in found])
        for g, part in zip(found, mended, strict=True):
            g[at] = part
        return found

    def _run(self, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The value, and the same to go backward from: 0 where it may not stand, lest a watch take
        it for a bad loss."""
        value = self.fn(*leaves)
        plain = value.detach()
        if bool(self.valid(_total(plain))):
            return value, value
        return value, torch.where(self.valid(plain) | self.nan_came_in(leaves), value, 0.0)

    def _mended(
        self, value: Tensor, root: Tensor, leaves: Sequence[Tensor], found: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The gradients ``found`` of the leaves, 0 where they are not to be kept; value and root as
        of :meth:`_run`."""
        slopes = torch.autograd.grad(
            root, [x for x in leaves if x.requires_grad], torch.ones_like(root)
        )
        stands = self.whole(self.valid(value.detach()))
        kept = self.nan_came_in(leaves)
        return tuple(
            torch.where(
                kept | (stands & (self.whole(is_finite(g)) | self.whole(is_finite(slope)))), g, 0.0
            )
            for g, slope in zip(found, slopes, strict=True)
        )

    def double_where(self, *operands: Tensor) -> Tensor:
        """Value and derivatives of every order, without a look at the numbers: ``where`` on the
        operands and on the value.

        Whether a derivative is finite is asked of torch by one product with ones, on detached
        operands.
        """
        plain = [x.detach() for x in operands]
        value, slopes = ask(self.fn, plain)
        valid_values = self.valid(value)
        alive = [self.whole(valid_values) & self.whole(is_finite(slope)) for slope in slopes]
        if self.flat:
            masks = zip(self.flat(value, *plain), slopes, strict=True)
            held = [mask & self.whole(slope == 0) for mask, slope in masks]
            alive = [a & ~h for a, h in zip(alive, held, strict=True)]
        kept = self.nan_came_in(plain)
        alive = [a | kept for a in alive]
        spare = (
            torch.where(valid_values, value, self.outside(value, *plain)) if self.outside else value
        )
        result = torch.nan_to_num(spare).detach()
        cut = list(operands)
        if len(plain) > 1:  # this makes the gradient that was cut a plain 0, see _replace
            cut = [torch.where(a, x, x.detach()) for a, x in zip(alive, operands, strict=True)]
        for mask, live in _cases(alive):
            chosen = [x if i in live else x.detach() for i, x in enumerate(cut)]
            result = torch.where(mask, self.fn(*_replace(mask, chosen, self.benign)), result)
        return result

    def pulled(self, wanted: Sequence[bool], grad: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        """The vector-Jacobian product of :meth:`double_where`, for each operand that is wanted;
        differentiable."""
        return tuple(
            g
            for g, want in zip(ask(self.double_where, operands, grad)[1], wanted, strict=True)
            if want
        )


def _total(x: Tensor) -> Tensor:
    """A sum that is finite only if all of ``x`` is; it may overflow where all is finite, which
    costs time alone."""
    return x.sum(dtype=torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x.sum()


@contextmanager
def _unseen() -> Iterator[None]:
    """Where torch is asked for a gradient that may be NaN: no anomaly detection, and no hooks on
    saved tensors.

    Inside torch.func.grad there are no such hooks, and torch refuses to set any.
    """
    possible = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    hooks = (
        torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)
        if possible
        else nullcontext()
    )
    with torch.enable_grad(), torch.autograd.set_detect_anomaly(False), hooks:
        yield


def _as_it_is(x: Tensor) -> Tensor:
    return x


def ask(
    fn: Callable[..., Any], operands: Sequence[Tensor], grad: Any = None
) -> tuple[Any, tuple[Tensor, ...]]:
    """Torch's value and its vector-Jacobian product with ``grad`` (None: ones), either of which may
    be non-finite.

    Anomaly detection would raise at the NaN that is asked after, so it rests meanwhile.
    """
    watched = not torch.compiler.is_compiling() and torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(False) if watched else nullcontext():
        answer = torch.func.vjp(fn, *operands)
        value, pull_back = answer[0], answer[1]
        return value, pull_back(torch.ones_like(value) if grad is None else grad)


def _all(mask: Tensor, dim: Dims) -> Tensor:
    """Whether all of ``mask`` is true along ``dim`` (None: everywhere), dimensions kept."""
    return mask.all(dim=tuple(range(mask.ndim)) if dim is None else dim, keepdim=True)


def _cases(alive: list[Tensor]) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Every non-empty set of operands that may carry a gradient, with the mask of where it is just
    these."""
    count = len(alive)
    sets = [
        live for size in range(1, count + 1) for live in itertools.combinations(range(count), size)
    ]
    masks = [
        functools.reduce(torch.logical_and, [a if i in live else ~a for i, a in enumerate(alive)])
        for live in sets
    ]
    return list(zip(masks, sets, strict=True))


def _replace(mask: Tensor, operands: list[Tensor], benign: float) -> list[Tensor]:
    """The operands where ``mask`` is true, ``benign`` elsewhere.

    With two operands there are several cases, whose gradients are summed. The double minus makes
    the gradient of the elements left out -0.0 rather than 0.0: only that leaves the other summand,
    which may be -0.0, as it was.
    """
    if len(operands) == 1:
        return [torch.where(mask, operands[0], benign)]
    return [-torch.where(mask, -x, -benign) for x in operands]
