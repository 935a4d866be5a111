"""What `nanlab.safe` guarantees where torch has no derivative: held against the limits of the
functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.nn import functional as F

from nanlab import safe
from nanlab.analysis.limits import agrees
from nanlab.errors import TypeMismatchError

Function = Callable[..., Tensor]
ZERO = torch.tensor([0.0, 0.5])
ROWS = torch.tensor([[0.0, 0.0], [0.3, -0.4]])

# safe, what it stands for, its operands: value and derivative are the limit, or a subgradient
RIGHT: dict[str, tuple[Function, Function, list[Tensor]]] = {
    "norm": (lambda x: safe.norm(x, dim=1), lambda x: (x**2).sum(1).sqrt(), [ROWS]),
    "hypot": (safe.hypot, lambda x, y: (x**2 + y**2).sqrt(), [ZERO, ZERO]),
    "hypot, large": (safe.hypot, lambda x, y: (x**2 + y**2).sqrt(), [ZERO + 3e30, ZERO + 4e30]),
    "logsigmoid": (
        safe.logsigmoid,
        lambda x: torch.log(torch.sigmoid(x)),
        [torch.tensor([-200.0, 1.0])],
    ),
    "log_softmax": (
        lambda x: safe.log_softmax(x, 1),
        lambda x: torch.log(torch.exp(x) / torch.exp(x).sum(1, keepdim=True)),
        [torch.tensor([[300.0, 0.0], [1.0, 2.0]])],
    ),
    "logsumexp": (
        lambda x: safe.logsumexp(x, 0),
        lambda x: torch.log(torch.exp(x).sum(0)),
        [torch.tensor([300.0, 299.0])],
    ),
    "sinc": (safe.sinc, lambda x: torch.sin(math.pi * x) / (math.pi * x), [ZERO]),
    "exprel": (safe.exprel, lambda x: (torch.exp(x) - 1) / x, [ZERO]),
    "removable": (
        lambda x: safe.removable(lambda t: torch.sin(t / 2) / t, x),
        lambda x: torch.sin(x / 2) / x,
        [ZERO],
    ),
}
# the true derivative is infinite: 0 is right for what is masked alone
STOPS: dict[str, tuple[Function, Function, Tensor]] = {
    "sqrt": (safe.sqrt, torch.sqrt, ZERO),
    "log": (safe.log, torch.log, ZERO),
    "log1p": (safe.log1p, torch.log1p, ZERO - 1),
    "pow": (lambda x: safe.pow(x, 0.5), lambda x: x**0.5, ZERO),
    "acos": (safe.acos, torch.acos, 1 - ZERO),
    "asin": (safe.asin, torch.asin, 1 - ZERO),
    "acosh": (safe.acosh, torch.acosh, 1 + ZERO),
    "atanh": (safe.atanh, torch.atanh, 1 - ZERO),
    "reciprocal": (safe.reciprocal, torch.reciprocal, ZERO),
}


@pytest.mark.parametrize("name", RIGHT)
def test_value_and_derivative_are_the_limit(name: str) -> None:
    ours, plain, operands = RIGHT[name]
    assert agrees(ours, plain, operands).kind == "agrees"


@pytest.mark.parametrize("name", STOPS)
def test_an_infinite_derivative_becomes_zero_which_the_limit_test_tells(name: str) -> None:
    ours, plain, x = STOPS[name]
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(ours(leaf).sum(), leaf)
    assert float(slope[0]) == 0
    assert float(slope[1]) != 0
    assert agrees(ours, plain, [x]).kind == "sign"
    removed = [torch.tensor([True, False])]
    assert agrees(ours, plain, [x], removed=removed).kind == "agrees"


def test_a_quotient_that_has_a_limit_is_not_for_div() -> None:
    found = agrees(lambda x: safe.div(torch.sin(x / 2), x), lambda x: torch.sin(x / 2) / x, [ZERO])
    assert found.why == "the value is 0, its limit 0.5"


AT = [0.0, 1e-6, -1e-3, 0.04, 0.3, -0.49, 0.51, 1.7, -3.0]


def exact(name: str, x: float, order: int) -> float:
    with mpmath.workdps(40):
        fn = {
            "sinc": lambda t: mpmath.sinc(mpmath.pi * t),
            "exprel": lambda t: mpmath.expm1(t) / t if t else mpf(1),
            "log1mexp": lambda t: mpmath.log(-mpmath.expm1(-t)),
            "logsigmoid": lambda t: -mpmath.log1p(mpmath.exp(-t)),
        }[name]
        if name in ("sinc", "exprel") and abs(x) < 1e-2:
            if name == "exprel":
                series = [1 / mpmath.factorial(k + 1) for k in range(12)]
            else:
                even = [(-(mpmath.pi**2)) ** k / mpmath.factorial(2 * k + 1) for k in range(6)]
                series = [c for e in even for c in (e, mpf(0))]
            return float(mpmath.diff(lambda t: mpmath.polyval(series[::-1], t), mpf(x), order))
        return float(mpmath.diff(fn, mpf(x), order))


@pytest.mark.parametrize("name", ["sinc", "exprel", "log1mexp", "logsigmoid"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_special_functions_are_right_with_two_derivatives(name: str, dtype: torch.dtype) -> None:
    positive = [0.01, 0.3, 0.68, 0.71, 3.0, 9.0]
    x = torch.tensor(positive if name == "log1mexp" else AT, dtype=torch.float64).to(dtype)
    leaf = x.clone().requires_grad_()
    value = getattr(safe, name)(leaf)
    (first,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    eps = torch.finfo(dtype).eps
    for order, got in enumerate((value, first, second)):
        expected = torch.tensor(
            [exact(name, v, order) for v in x.double().tolist()], dtype=torch.float64
        )
        low = name in ("log1mexp", "logsigmoid")  # computed in the dtype itself
        rtol = max(eps * (16 * 8**order if low else 2), 1e-9)
        atol = (4 if low else 1) * max(eps, 1e-11) * float(expected.abs().max())
        assert torch.allclose(got.detach().double(), expected, rtol=rtol, atol=atol), order


def test_exprel_and_log1mexp_stay_finite_at_their_ends() -> None:
    x = torch.tensor([1000.0, -1000.0], requires_grad=True)
    value = safe.exprel(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert value.isfinite().all()
    assert slope.isfinite().all()
    assert float(value[1].detach()) == pytest.approx(1e-3)
    edge = torch.tensor([0.0, -1.0, 200.0], requires_grad=True)
    (slope,) = torch.autograd.grad(safe.log1mexp(edge).sum(), edge)
    assert slope.tolist()[:2] == [0.0, 0.0]


def test_logsigmoid_has_the_bits_of_torch() -> None:
    x = torch.linspace(-50, 50, 101)
    assert torch.equal(safe.logsigmoid(x), F.logsigmoid(x))


def test_removable_says_what_it_expected() -> None:
    with pytest.raises(TypeMismatchError, match="expected x to be a tensor of floating-point"):
        safe.removable(torch.sin, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match="expected a function of one tensor, got int"):
        safe.removable(3, torch.zeros(2))  # type: ignore[arg-type]
