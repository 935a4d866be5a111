"""Running one operation, forward and backward, with a change, and measuring what the change
costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Value and gradient stay this factor below the dtype's maximum, or below what healthy elements had:
# sums and products follow. Of float16 less, where nothing else would be left.
HEADROOM = 64.0
HEADROOM_HALF = 8.0
# of an elementwise operation; of more, the offending ones and a sample of the others
MOST_ELEMENTS = 1 << 16
MOST_OFFENDING = 1 << 12


@dataclass(frozen=True)
class Trial:
    """What became of an operation when it was run with a change."""

    finite: bool  # value and gradients, with headroom
    # largest relative change of a healthy value or gradient against float64
    distortion: float | None
    gradient_max: float | None  # largest finite magnitude; None: not differentiable
    why: str = ""  # what is wrong where it is not finite
    zeros: bool = False  # its value holds a 0
    value_max: float = 0.0  # largest finite magnitude of its value
    doubt: str = ""  # the operation is finite, and why the program may not be

    @property
    def holds(self) -> bool:
        """Finite, and nothing recorded says that what stands around it is not."""
        return self.finite and not self.doubt


@dataclass(frozen=True)
class _Outcome:
    value: Tensor
    gradients: tuple[Tensor, ...]


def attempt(
    changed: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    operands: Sequence[Any],
    gradient: Tensor | None = None,
    *,
    carrying: Sequence[int] | None = None,
    hooked: bool = False,
    twice: bool = False,
) -> Trial:
    """Run ``changed`` on the operands and compare it with ``plain``, the operation as it was.

    operands: tensors and numbers. carrying: places of those that get gradients; None: all floating
    tensors do.
    gradient: that came into the operation, in the shape of its result; None or another shape: from
    0.5 to 1.5.
    hooked: run under hooks on saved tensors, as activation checkpointing does.
    twice: differentiate twice, as a loss on a gradient does; second derivatives count as gradients.
    Distortion is measured on the elements whose value (or gradient) was finite before the change,
    relative to the reference in float64 or to its median magnitude, whichever is larger.
    """
    setting = torch.autograd.graph.saved_tensors_hooks(_same, _same) if hooked else nullcontext()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with setting:
                seen = _evaluate(changed, operands, gradient, carrying, twice)
        except (
            Exception
        ):  # a kernel that torch lacks, a shape or kind that the other form does not take
            return Trial(False, None, None, f"it does not take {_kinds(operands)}")
        before, exact = _references(plain, operands, gradient, carrying, twice)
        why = _complaint(seen, before)
        largest = max((_largest_finite(g) for g in seen.gradients), default=None)
        zeros, size = bool((_held(seen.value) == 0).any()), _largest_finite(seen.value)
        read = [t for i, t in enumerate(operands) if _is_leaf(t, i, carrying)]
        return Trial(not why, _distortion(seen, before, exact, read), largest, why, zeros, size)


def _kinds(operands: Sequence[Any]) -> str:
    """Dtypes in words: ``tensors of complex64``."""
    dtypes = dict.fromkeys(
        str(t.dtype).removeprefix("torch.") for t in operands if isinstance(t, Tensor)
    )
    return f"tensors of {' and '.join(dtypes)}" if dtypes else "these numbers"


def _same(value: Any) -> Any:
    return value


def _references(
    plain: Callable[..., Tensor],
    operands: Sequence[Any],
    gradient: Tensor | None,
    carrying: Sequence[int] | None,
    twice: bool,
) -> tuple[_Outcome | None, _Outcome | None]:
    """The operation as it was, and the same in float64; None where it cannot be run."""
    try:
        before = _evaluate(plain, operands, gradient, carrying, twice)
        wide = None if gradient is None else _wide(gradient)
        return before, _evaluate(plain, [_wide(t) for t in operands], wide, carrying, twice)
    except Exception:
        return None, None


def _evaluate(
    fn: Callable[..., Tensor],
    operands: Sequence[Any],
    gradient: Tensor | None,
    carrying: Sequence[int] | None,
    twice: bool = False,
) -> _Outcome:
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        leaves = [
            t.detach().clone().requires_grad_(_is_leaf(t, i, carrying))
            if isinstance(t, Tensor)
            else t
            for i, t in enumerate(operands)
        ]
        value = fn(*leaves)
        wanted = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        if not (value.requires_grad and wanted):
            return _Outcome(value.detach(), ())
        fits = gradient is not None and gradient.shape == value.shape
        start = (
            gradient.detach().to(value.dtype) if fits and gradient is not None else _uneven(value)
        )
        found = _pulled([value], wanted, [start], twice)
        found = tuple(g.detach() for g in found) + (_again(found, wanted) if twice else ())
    return _Outcome(value.detach(), found)


def _is_leaf(operand: Any, place: int, carrying: Sequence[int] | None) -> bool:
    return (
        isinstance(operand, Tensor)
        and _differentiable(operand)
        and (carrying is None or place in carrying)
    )


def _again(first: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The second derivatives: of the gradients, each multiplied by about 1."""
    roots = [g for g in first if g.requires_grad]
    if not roots:
        return ()
    return _pulled(roots, wanted, [_uneven(g) for g in roots])


def _pulled(
    roots: Sequence[Tensor], wanted: Sequence[Tensor], starts: Sequence[Tensor], again: bool = False
) -> tuple[Tensor, ...]:
    """The vector-Jacobian product. Real ones go by way of a sum: ``grad_outputs`` would import
    sympy, for half a second."""
    options: dict[str, Any] = {
        "create_graph": again,
        "allow_unused": True,
        "materialize_grads": True,
    }
    if any(r.is_complex() or r.element_size() == 1 for r in roots):  # float8 is not multiplied
        return torch.autograd.grad(roots, wanted, starts, **options)
    total = sum(((r * s).sum() for r, s in zip(roots, starts, strict=True)), torch.zeros(()))
    return torch.autograd.grad(total, wanted, **options)


def _uneven(value: Tensor) -> Tensor:
    """A gradient of about 1: of one that is 1 throughout, the derivative of a softmax is 0."""
    ramp = torch.linspace(0.5, 1.5, max(1, value.numel()), dtype=torch.float64)[: value.numel()]
    return ramp.reshape(value.shape).to(value.dtype).to(value.device)


def _differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _complaint(seen: _Outcome, before: _Outcome | None) -> str:
    """What is wrong with an outcome: "" if nothing."""
    parts = [("value", seen.value, None if before is None else before.value)]
    old = () if before is None else before.gradients
    parts += [
        ("gradient", g, old[i] if i < len(old) else None) for i, g in enumerate(seen.gradients)
    ]
    for part, raw, was in parts:
        t = _held(raw)
        if not bool(torch.isfinite(t).all()):
            return f"the {part} stays {'NaN' if bool(torch.isnan(t).any()) else 'infinite'}"
        known = 0.0 if was is None else _largest_finite(was)
        if _differentiable(t) and _largest_finite(t) > max(ceiling(raw.dtype), known):
            return f"the {part} comes close to the largest {str(raw.dtype).removeprefix('torch.')}"
    return ""


def ceiling(dtype: torch.dtype) -> float:
    """The largest magnitude that leaves room for what follows; in float8 the largest there is."""
    limits = torch.finfo(dtype)
    return limits.max / (
        1.0 if limits.bits == 8 else HEADROOM_HALF if dtype == torch.float16 else HEADROOM
    )


def _held(t: Tensor) -> Tensor:
    """Of float8, for which torch has few kernels, the same in float32."""
    return t.float() if t.is_floating_point() and t.element_size() == 1 else t


def _largest_finite(x: Tensor) -> float:
    x = _held(x)
    size = torch.where(torch.isfinite(x), x.abs(), 0.0)
    return float(size.max()) if size.numel() else 0.0


def _distortion(
    seen: _Outcome, before: _Outcome | None, exact: _Outcome | None, read: Sequence[Tensor]
) -> float | None:
    """read: the operands that have gradients."""
    if before is None or exact is None:
        return None
    found = [
        _largest_change(seen.value, before.value, exact.value, _spoilt(before, seen.value.shape))
    ]
    for i, (g, was, should) in enumerate(
        zip(seen.gradients, before.gradients, exact.gradients, strict=False)
    ):
        spoilt = _spoilt(before, g.shape)
        if read[i % len(read)].shape == g.shape:  # second derivatives follow the first
            spoilt = spoilt | ~torch.isfinite(_held(read[i % len(read)])).cpu()
        found.append(_largest_change(g, was, should, spoilt))
    known = [d for d in found if d is not None]
    return max(known) if known else None


def _spoilt(before: _Outcome, shape: torch.Size) -> Tensor:
    """Elements of which value or derivative was bad; told only of parts that have this shape."""
    mask = torch.zeros(shape, dtype=torch.bool)
    for part in (before.value, *before.gradients):
        if part.shape == shape:
            mask = mask | ~torch.isfinite(_held(part)).cpu()
    return mask


def _wide(t: Any) -> Any:
    if not isinstance(t, Tensor):
        return t
    return t.to(torch.complex128) if t.is_complex() else t.double() if t.is_floating_point() else t


def _largest_change(value: Tensor, before: Tensor, exact: Tensor, spoilt: Tensor) -> float | None:
    if not value.shape == before.shape == exact.shape:
        return None
    value, exact = _held(value), _held(exact)
    healthy = torch.isfinite(value) & torch.isfinite(exact) & ~spoilt.to(value.device)
    value, exact = _wide(value)[healthy], exact[healthy]
    if not value.numel():
        return None
    size = exact.abs()
    median = float(size[size > 0].median()) if bool((size > 0).any()) else 1.0
    return float(((value - exact).abs() / size.clamp_min(median)).max())


def sampled(
    operands: Sequence[Any], gradient: Tensor | None, bad: Tensor
) -> tuple[list[Any], Tensor | None]:
    """The operands of an elementwise operation, of many elements only the offending ones and a
    sample of the others.

    bad: mask of the offending elements, in the shape of the result.
    """
    if bad.numel() <= MOST_ELEMENTS:
        return list(operands), gradient
    flat = bad.flatten()
    offending = flat.nonzero().flatten()[:MOST_OFFENDING]
    healthy = (~flat).nonzero().flatten()
    chosen = torch.cat([offending, healthy[:: max(1, len(healthy) // MOST_ELEMENTS)]])

    def pick(t: Any) -> Any:
        return t.expand(bad.shape).flatten()[chosen] if isinstance(t, Tensor) and t.dim() else t

    fits = gradient is not None and gradient.shape == bad.shape
    return [pick(t) for t in operands], pick(gradient) if fits else None
