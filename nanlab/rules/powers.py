"""Powers: of zero, of negative numbers, and beyond the largest number."""

from __future__ import annotations

import torch

from nanlab.rules._evidence import algebra, match, number, plural, verb
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Match, rule

Tensor = torch.Tensor


def _power(fault: Fault) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(base, base of the offending elements, their exponents)."""
    if fault.forward not in ("pow", "float_power"):
        return None, None, None
    base, exponent = fault.subject(0, "self"), fault.subject(1, "exponent")
    if base is None and isinstance(exponent, torch.Tensor) and fault.backward:
        return None, None, None
    if (
        fault.backward
        and fault.name == "pow"
        and isinstance(run := fault.argument(1), (int, float))
    ):
        exponent = run + 1  # of a second derivative less than the program wrote
    if isinstance(base, (int, float)):
        base = torch.tensor(float(base))
    if isinstance(exponent, complex):
        exponent = torch.tensor(exponent)
    values, powers = fault.at(base), fault.at(exponent)
    if values is None or powers is None:
        return None, None, None
    if len(powers) == 1:
        powers = powers.expand(len(values))
    return (
        (base, _exact(values), _exact(powers)) if len(powers) == len(values) else (None, None, None)
    )


def _real(fault: Fault) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The same of a power of real numbers: complex ones have no order, and a power of each."""
    found = _power(fault)
    return (None, None, None) if any(v is not None and v.is_complex() for v in found) else found


def _exact(values: Tensor) -> Tensor:
    return values.to(torch.complex128) if values.is_complex() else values.double()


@rule(
    "error",
    example="""
        x = torch.tensor([0.0, 0.5], requires_grad=True)
        (x ** 0.4).sum().backward()  # here
    """,
    fix="""
        x = torch.tensor([0.0, 0.5], requires_grad=True)
        (x.clamp_min(1e-6) ** 0.4).sum().backward()
    """,
)
def pow_fraction_at_zero(fault: Fault) -> Match | None:
    """The derivative p x^(p-1) of a power p < 1 is infinite at x = 0, and so is the power itself
    where p < 0.

    A ReLU or an empty region makes exact zeros; an epsilon inside the power keeps both finite.
    """
    base, values, powers = _power(fault)
    if base is None or values is None or powers is None:
        return None
    at = (values == 0) & (powers.real < (1 if fault.backward else 0))
    if not bool(at.any()) or 2 * int(at.sum()) < len(at) or bool((powers[at] == -1).all()):
        return None
    p = number(powers[at][0])
    if fault.backward:
        return match(
            fault,
            f"the derivative of x**{p} at {plural(int(at.sum()), 'zero')} is infinite",
            algebra(fault, "inf") + ".",
            base=base,
        )
    return match(
        fault,
        f"x**{p} of {plural(int(at.sum()), 'zero')} among {plural(base.numel(), 'value')} is inf",
        base=base,
    )


@rule(
    "error",
    example="""
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        (x ** 0.4).sum().backward()  # here
    """,
    fix="""
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        (x.abs().clamp_min(1e-6) ** 0.4).sum().backward()
    """,
)
def pow_negative_base(fault: Fault) -> Match | None:
    """A negative number has no real fractional power, and no real logarithm, which the derivative
    in the exponent takes.

    The result is NaN. Rounding, a convolution or an unbounded output made the base negative; clamp
    it above zero or take the power of its magnitude.
    """
    base, values, powers = _real(fault)
    if base is None or values is None or powers is None:
        return None
    # times the log of the base
    by_exponent = fault.backward and isinstance(fault.subject(1, "exponent"), torch.Tensor)
    at = (values < 0) & ((powers != powers.round()) | by_exponent)
    if not bool(at.any()) or 2 * int(at.sum()) < len(at):
        return None
    bases = (
        f"{plural(int(at.sum()), 'negative base')} (lowest {number(values.min())}) among"
        f" {base.numel():,}"
    )
    whole = at & (powers == powers.round())  # the powers themselves are fine
    if bool(whole.any()):
        p = number(powers[whole][0])
        return match(
            fault,
            f"the derivative of x**{p} in its exponent is NaN for {bases}: x**{p} log x",
            base=base,
        )
    return match(fault, f"{bases} raised to {number(powers[at][0])} gives NaN", base=base)


def power_overflow(fault: Fault) -> Match | None:
    """A power of a large base, beyond the largest number of float32 or float64."""
    if fault.name not in ("pow", "float_power") or fault.backward:
        return None
    base, values, powers = _real(fault)
    if base is None or values is None or powers is None or fault.low:
        return None
    large = (values.abs() > 1) & (powers > 2)
    if not bool(large.all()) or not len(large):
        return None
    title = (
        f"{plural(len(values), 'power')} x**{number(powers[0])} (largest base"
        f" {number(values.abs().max())}) {verb(len(values), 'overflows', 'overflow')} {fault.dtype}"
    )
    return match(fault, title, base=base)


def power_of_tiny(fault: Fault) -> Match | None:
    """A negative power (or, of a derivative, one that is negative then) of a base near zero: a
    quotient."""
    if fault.forward not in ("pow", "float_power"):
        return None
    base, values, powers = _real(fault)
    if base is None or values is None or powers is None or not len(values):
        return None
    powers = powers - 1 if fault.backward else powers
    if not bool(((values != 0) & (values.abs() < 0.1) & (powers < 0)).all()):
        return None
    where = "the derivative of x" if fault.backward else "x"
    p = number(powers[0] + 1 if fault.backward else powers[0])
    title = (
        f"{where}**{p} overflows {fault.dtype} for {plural(len(values), 'element')} of"
        f" {fault.numel:,}: it divides by a power of {number(values.abs().min())}"
    )
    return match(fault, title, base=base)
