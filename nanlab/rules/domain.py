"""Logarithms, inverse functions and powers at the edge of their domain; exp overflow."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanlab.findings.fault import Fault, algebra, match, number, plural, verb
from nanlab.findings.rule import Match, rule
from nanlab.operators import card, having

# Powers.

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Power:
    """A power that failed."""

    base: Tensor
    values: Tensor  # of the base at the offending elements, in float64
    exponents: Tensor  # at the same

    @property
    def is_real(self) -> bool:
        """Whether base and exponents are real: complex numbers have no order."""
        return not (self.values.is_complex() or self.exponents.is_complex())


def _power(fault: Fault) -> _Power | None:
    """The power of a fault; None if it is none, or not kept."""
    if fault.forward not in ("pow", "float_power"):
        return None
    base, exponent = fault.subject(0, "self"), fault.subject(1, "exponent")
    run = fault.argument(1)
    if fault.backward and fault.name == "pow" and isinstance(run, (int, float)):
        exponent = run + 1  # of a second derivative less than the program wrote
    if isinstance(base, (int, float)):
        base = torch.tensor(float(base))
    if isinstance(exponent, complex):
        exponent = torch.tensor(exponent)
    values, exponents = fault.at(base), fault.at(exponent)
    if values is None or exponents is None:
        return None
    if len(exponents) == 1:
        exponents = exponents.expand(len(values))
    if len(exponents) != len(values):
        return None
    return _Power(base, _exact(values), _exact(exponents))


def _real_power(fault: Fault) -> _Power | None:
    """The power of a fault, if it is one of real numbers."""
    power = _power(fault)
    return power if power is not None and power.is_real else None


def _among(at: Tensor, base: Tensor, what: str, lowest: Tensor | None = None) -> str:
    """The number of bad bases, in words; a base with several exponents counts once."""
    bad = (base < 0) if lowest is not None else base == 0
    low = f" (lowest {number(lowest)})" if lowest is not None else ""
    return f"{plural(min(int(at.sum()), int(bad.sum())), what)}{low} among"


def _exact(values: Tensor) -> Tensor:
    return values.to(torch.complex128) if values.is_complex() else values.double()


@rule(
    example="""
        x = torch.tensor([0.0, 0.5], requires_grad=True)
        (x ** 0.4).sum().backward()  # here
    """,
    fix={"x ** 0.4": "x.clamp_min(1e-6) ** 0.4"},
)
def pow_fraction_at_zero(fault: Fault) -> Match | None:
    """The derivative p x^(p-1) of a power p < 1 is infinite at x = 0, and so is the power itself
    where p < 0.

    A ReLU or an empty region makes exact zeros; an epsilon inside the power keeps both finite.
    """
    power = _power(fault)
    if power is None:
        return None
    base, values, powers = power.base, power.values, power.exponents
    at = (values == 0) & (powers.real < (1 if fault.backward else 0))
    if not bool(at.any()) or 2 * int(at.sum()) < len(at) or bool((powers[at] == -1).all()):
        return None
    p = number(powers[at][0])
    if fault.backward:
        return match(
            fault,
            f"the derivative of x**{p} at {plural(int(at.sum()), 'zero')} is infinite",
            algebra(fault, "inf"),
            base=base,
        )
    return match(
        fault,
        f"x**{p} of {_among(at, base, 'zero')} {plural(base.numel(), 'value')} is inf",
        base=base,
    )


@rule(
    more_specific_than=("log-of-negative",),
    example="""
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        (x ** 0.4).sum().backward()  # here
    """,
    fix={"x ** 0.4": "x.abs().clamp_min(1e-6) ** 0.4"},
)
def pow_negative_base(fault: Fault) -> Match | None:
    """A negative number has no real fractional power, nor the real logarithm in the derivative by
    the exponent.

    The result is NaN. Rounding, a convolution or an unbounded output made the base negative: clamp
    it above zero, or take the power of its magnitude.
    """
    power = _real_power(fault)
    if power is None:
        return None
    base, values, powers = power.base, power.values, power.exponents
    # times the log of the base
    by_exponent = fault.backward and isinstance(fault.subject(1, "exponent"), torch.Tensor)
    at = (values < 0) & ((powers != powers.round()) | by_exponent)
    if not bool(at.any()) or 2 * int(at.sum()) < len(at):
        return None
    bases = f"{_among(at, base, 'negative base', values.min())} {base.numel():,}"
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
    power = _real_power(fault)
    if power is None or fault.low:
        return None
    fixed = not isinstance(fault.argument(1, "exponent"), torch.Tensor)
    base, values, powers = power.base, power.values, power.exponents
    grown = fixed and isinstance(fault.argument(0), torch.Tensor) and fault.dtype != "float64"
    if grown and bool((powers <= values.abs()).any()):
        return None  # the base grew, and the dtype does not hold its power
    large = (values.abs() > 1) & (powers > 2)
    if not bool(large.all()) or not len(large):
        return None
    alike = bool((powers == powers[0]).all())
    form = f"x**{number(powers[0])}" if alike else "x**y"
    largest = f"largest base {number(values.abs().max())}"
    if not alike:
        largest += f", largest exponent {number(powers.max())}"
    title = (
        f"{plural(len(values), 'power')} {form} ({largest})"
        f" {verb(len(values), 'overflows', 'overflow')} {fault.dtype}"
    )
    return match(fault, title, base=base)


def power_of_tiny(fault: Fault) -> Match | None:
    """A negative power of a base near zero (of a derivative, negative then): a quotient."""
    power = _real_power(fault)
    if power is None or not len(power.values):
        return None
    base, values = power.base, power.values
    powers = power.exponents - 1 if fault.backward else power.exponents
    if not bool(((values != 0) & (values.abs() < 0.1) & (powers < 0)).all()):
        return None
    where = "the derivative of x" if fault.backward else "x"
    p = number(powers[0] + 1 if fault.backward else powers[0])
    title = (
        f"{where}**{p} overflows {fault.dtype} for {plural(len(values), 'element')} of"
        f" {fault.numel:,}: it divides by a power of {number(values.abs().min())}"
    )
    return match(fault, title, base=base)


# -- logarithms

_LOGS = having("log_like")


def _logarithm(fault: Fault) -> str:
    """The logarithm that failed; a derivative may be a logarithm itself (by a target)."""
    own = fault.backward and fault.name in _LOGS and fault.forward not in _LOGS
    return fault.name if own else fault.forward


def _log_argument(fault: Fault) -> tuple[Tensor | None, Tensor | None]:
    """(argument of the logarithm, distance of its bad elements above the pole), if kept."""
    name = _logarithm(fault)
    operand = fault.subject if name == fault.forward else fault.argument
    if name in ("xlogy", "special_xlog1py"):
        argument = operand(1, "other")
        pole = -1.0 if name.endswith("1py") else 0.0
    else:
        argument, pole = operand(1 if name == "polygamma" else 0), card(name).poles[0]
    # saved by recomputation: its derivative 1 / x is at hand
    if argument is None and fault.backward and fault.name == "div":
        argument, pole = fault.argument(1), 0.0
    values = fault.at(argument)
    if values is None or values.is_complex():
        return argument, None if values is None else values.abs()
    values = values.double()
    if name == "logit":
        return argument, torch.minimum(values, 1 - values)
    order = fault.argument(1, "p") if name == "mvlgamma" and not fault.backward else None
    if isinstance(order, int):  # a product of gamma functions of x, x - 1/2, ..., x - (p - 1)/2
        distance = values - (order - 1) / 2
        return argument, torch.where(distance.abs() < 1e-6, torch.zeros_like(distance), distance)
    if name in having("gamma"):
        return argument, torch.where(
            (values <= 0) & (values == values.round()), torch.zeros_like(values), values.abs()
        )
    return argument, values - pole


def _log_at(fault: Fault, sign: int) -> Match | None:
    name = _logarithm(fault)
    if name not in _LOGS:
        return None
    argument, distance = _log_argument(fault)
    if distance is None or argument is None:
        return None
    zero, below = int((distance == 0).sum()), int((distance < 0).sum())
    if (zero < below or not zero) if sign == 0 else (below <= zero or not below):
        return None
    points = " or ".join(f"{pole:g}" for pole in card(name).poles)
    if sign:
        lowest = number(fault.at(argument).double().min())  # type: ignore[union-attr]
        return match(
            fault,
            f"{name} of {plural(below, 'value')} below {points} (lowest {lowest}) among"
            f" {argument.numel():,} is NaN",
            x=argument,
        )
    what = plural(zero, "zero") if points == "0" else f"{plural(zero, 'value')} equal to {points}"
    if fault.backward and name == fault.forward:
        return match(
            fault,
            f"the derivative of {name} at {what} among {argument.numel():,} is infinite",
            algebra(fault, "inf"),
            x=argument,
        )
    sample = fault.at(fault.result)
    gives = number(sample[0]) if sample is not None and len(sample) else "-inf"
    gives += "" if name == fault.forward else f", in the derivative of {fault.forward}"
    return match(
        fault,
        f"{name} of {what} among {plural(argument.numel(), 'value')} gives {gives}",
        x=argument,
    )


@rule(
    example="""
        p = torch.tensor([0.0, 0.5], requires_grad=True)
        p.log().sum().backward()  # here
    """,
    fix={"p.log()": "p.clamp_min(1e-12).log()"},
)
def log_of_zero(fault: Fault) -> Match | None:
    """A logarithm at its pole is infinite, and so is its derivative 1/x.

    Masking the result afterwards does not help: inf times the mask's 0 is NaN, forward and
    backward. A probability p, or 1 - p, becomes exactly 0 when softmax, sigmoid or a density
    underflows; the fused forms (log_softmax, logsigmoid, losses of logits, log_prob) avoid it.
    """
    return _log_at(fault, 0)


@rule(
    example="""
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        torch.log(x).sum().backward()  # here
    """,
    fix={"torch.log(x)": "torch.log(torch.nn.functional.softplus(x))"},
)
def log_of_negative(fault: Fault) -> Match | None:
    """A real logarithm has no value below its pole.

    The argument was meant to be positive: make it so by construction (softplus, exp, square, abs)
    rather than by a clamp, whose gradient is zero. For a determinant, torch.linalg.slogdet gives
    the logarithm of its magnitude.
    """
    determinant = fault.negative_determinant
    if determinant >= 0:
        return Match(
            "logdet of a matrix whose determinant is negative is NaN",
            position=determinant,
            phase="forward",
        )
    return _log_at(fault, -1)


# -- inverse functions

_INVERSE = having("inverse")


def _inverse(fault: Fault) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """(argument, its bad elements, mask of those at the edge, mask of those outside)."""
    if fault.forward not in _INVERSE:
        return None
    argument = fault.subject()
    values = fault.at(argument)
    if values is None or not isinstance(argument, torch.Tensor) or values.is_complex():
        return None
    low, high = card(fault.forward).domain
    return argument, values, (values == low) | (values == high), (values < low) | (values > high)


@rule(
    more_specific_than=("inverse-function-domain",),
    example="""
        c = torch.tensor([1.0, 0.5], requires_grad=True)
        torch.acos(c).sum().backward()  # here
    """,
    fix={"torch.acos(c)": "torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))"},
)
def inverse_function_at_edge(fault: Fault) -> Match | None:
    """At the edge of its domain an inverse function has a vertical tangent: its derivative is
    infinite there, and atanh and erfinv are infinite themselves.

    The edge is reached in practice: the cosine of a vector with itself is exactly 1, and so is tanh
    of a large number. Clamp inside the edge, not to it, or use atan2, which has none.
    """
    if fault.forward in ("angle", "atan2") and fault.backward:
        return match(
            fault,
            f"the derivative of {fault.forward} at {plural(fault.count, 'point')} next to the"
            " origin is not finite",
            algebra(fault, "0/0"),
        )
    found = _inverse(fault)
    if found is None or int(found[2].sum()) <= int(found[3].sum()):
        return None
    argument, values, edge, _ = found
    where = number(values[edge][0])
    count = plural(int(edge.sum()), "value")
    if fault.backward:
        return match(
            fault,
            f"the derivative of {fault.forward} at {count} equal to {where} is infinite",
            algebra(fault, "inf"),
            x=argument,
        )
    return match(
        fault,
        f"{fault.forward} of {count} equal to {where} among {argument.numel():,} is infinite",
        x=argument,
    )


@rule(
    example="""
        c = torch.tensor([1.001, 0.5], requires_grad=True)
        torch.acos(c).sum().backward()  # here
    """,
    fix={"torch.acos(c)": "torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))"},
)
def inverse_function_domain(fault: Fault) -> Match | None:
    """Outside its domain an inverse function is NaN.

    Rounding can make a cosine a few ulps larger than 1: clamp the argument inside the domain.
    """
    found = _inverse(fault)
    if found is None or not bool(found[3].any()):
        return None
    argument, values, _, outside = found
    values = values[outside]
    low, high = card(fault.forward).domain
    furthest = values[((values - low).abs().minimum((values - high).abs())).argmax()]
    title = (
        f"{fault.forward} of {plural(len(values), 'value')} outside [{number(low)}, {number(high)}]"
        f" (such as {_told_apart(furthest, low, high)}) is NaN"
    )
    return match(fault, title, x=argument)


def _told_apart(value: Tensor, low: float, high: float) -> str:
    """A value outside a domain with so many digits that it is seen to be outside."""
    shown = number(value)
    if low <= float(shown) <= high:
        longer = (f"{float(value):.{digits}g}" for digits in range(4, 18))
        shown = next((text for text in longer if not low <= float(text) <= high), shown)
    return shown


# -- exp

_EXPS = having("exponential")


@rule(
    example="""
        z = torch.tensor([100.0, 1.0], requires_grad=True)
        (torch.exp(z) / torch.exp(z).sum()).log().sum().backward()  # here
    """,
    fix={"(torch.exp(z) / torch.exp(z).sum()).log()": "torch.log_softmax(z, 0)"},
)
def exp_overflow(fault: Fault) -> Match | None:
    """`exp` overflows above 88.7 in float32 and above 11.09 in float16.

    Subtract the maximum first, stay in the log domain (logsumexp, log_softmax, softplus,
    logaddexp), or bound the argument.
    """
    if fault.forward in _EXPS:
        return _exponential(fault)
    return power_overflow(fault)


def _size(values: torch.Tensor) -> torch.Tensor:
    """The magnitude that drives an exponential: of the number, or of its real part."""
    return (values.real if values.is_complex() else values).abs()


def _exponential(fault: Fault) -> Match | None:
    argument = fault.subject()
    values = fault.at(argument)
    # the derivative of exp is its result, infinite here
    if values is None or not isinstance(argument, torch.Tensor):
        saved = fault.saved.get("result")
        if saved is None or not bool(torch.isinf(saved).any()):
            return None
        count = int(torch.isinf(saved).sum())
        return match(
            fault,
            f"{fault.forward} overflowed for {plural(count, 'value')} of {saved.numel():,}",
            algebra(fault, "inf"),
            result=saved,
        )
    largest = f" (largest {number(values[_size(values).argmax()])})" if len(values) else ""
    title = (
        f"{fault.forward} of {plural(len(values), 'value')} among {argument.numel():,}{largest}"
        f" overflows {fault.dtype}"
    )
    return match(fault, title, x=argument)
