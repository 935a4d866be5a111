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
from nanlab.errors import TypeMismatchError
from nanlab.exact.limits import agrees

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


def _rows(f: Callable[[list[mpf]], list[mpf]]) -> Callable[[list[mpf]], mpf]:
    return lambda v: sum((mpf(w) * y for w, y in zip(WEIGHTS, f(v), strict=False)), mpf(0))


def _each(f: Callable[[mpf], mpf]) -> Callable[[list[mpf]], mpf]:
    return _rows(lambda v: [f(t) for t in v])


def _softmax(v: list[mpf]) -> list[mpf]:
    total = sum(map(mpmath.exp, v))
    return [mpmath.exp(t) / total for t in v]


def _norm(v: list[mpf]) -> mpf:
    return mpmath.sqrt(sum(t * t for t in v))


def _var(v: list[mpf]) -> mpf:
    middle = sum(v) / len(v)
    return sum((t - middle) ** 2 for t in v) / (len(v) - 1)


def _cosine(v: list[mpf]) -> mpf:
    inner = sum(t * mpf(w) for t, w in zip(v, OTHER, strict=True))
    return inner / _norm(v) / _norm([mpf(w) for w in OTHER])


WEIGHTS, OTHER, KEPT = (1.0, -2.0, 0.5), (0.75, 0.5, 1.5), (True, False, True)
INNER, OUTER, AROUND = (-0.75, 0.25, 0.5), (1.25, 2.0, 5.0), (-1.25, 0.5, 2.0)
OTHERS = torch.tensor(OTHER, dtype=torch.float64)
# operands, what nanlab computes, what it stands for in mpmath
CHECKED: dict[str, tuple[tuple[float, ...], Function, Callable[[list[mpf]], mpf]]] = {
    "acos": (INNER, safe.acos, _each(mpmath.acos)),
    "acosh": (OUTER, safe.acosh, _each(mpmath.acosh)),
    "asin": (INNER, safe.asin, _each(mpmath.asin)),
    "atanh": (INNER, safe.atanh, _each(mpmath.atanh)),
    "exp": (AROUND, safe.exp, _each(mpmath.exp)),
    "log": (OUTER, safe.log, _each(mpmath.log)),
    "log1p": (INNER, safe.log1p, _each(mpmath.log1p)),
    "log2": (OUTER, safe.log2, _each(lambda t: mpmath.log(t, 2))),
    "log10": (OUTER, safe.log10, _each(mpmath.log10)),
    "logit": ((0.125, 0.5, 0.875), safe.logit, _each(lambda t: mpmath.log(t / (1 - t)))),
    "reciprocal": (AROUND, safe.reciprocal, _each(lambda t: 1 / t)),
    "rsqrt": (OUTER, safe.rsqrt, _each(lambda t: 1 / mpmath.sqrt(t))),
    "sqrt": (OUTER, safe.sqrt, _each(mpmath.sqrt)),
    "pow": (OUTER, lambda x: safe.pow(x, 1.5), _each(lambda t: t ** mpf(1.5))),
    "pow of the exponent": (
        AROUND,
        lambda x: safe.pow(torch.full_like(x, 1.5), x),
        _each(lambda t: mpf(1.5) ** t),
    ),
    "div": (AROUND, lambda x: safe.div(1.5, x), _each(lambda t: mpf(1.5) / t)),
    "xlogy": (OUTER, lambda x: safe.xlogy(x, x), _each(lambda t: t * mpmath.log(t))),
    "atan2": (
        AROUND,
        lambda x: safe.atan2(x, OTHERS.to(x.dtype)),
        _rows(lambda v: [mpmath.atan2(t, mpf(w)) for t, w in zip(v, OTHER, strict=True)]),
    ),
    "hypot": (
        AROUND,
        lambda x: safe.hypot(x, OTHERS.to(x.dtype)),
        _rows(lambda v: [_norm([t, mpf(w)]) for t, w in zip(v, OTHER, strict=True)]),
    ),
    "softmax": (AROUND, lambda x: safe.softmax(x, 0), _rows(_softmax)),
    "log_softmax": (
        AROUND,
        lambda x: safe.log_softmax(x, 0),
        _rows(lambda v: [mpmath.log(p) for p in _softmax(v)]),
    ),
    "logsumexp": (
        AROUND,
        lambda x: safe.logsumexp(x, 0),
        lambda v: mpmath.log(sum(map(mpmath.exp, v))),
    ),
    "entropy": (
        (0.25, 0.25, 0.5),
        lambda x: safe.entropy(x, 0),
        lambda v: -sum((p * mpmath.log(p) for p in v), mpf(0)),
    ),
    "norm": (AROUND, safe.norm, _norm),
    "normalize": (AROUND, lambda x: safe.normalize(x, dim=0), _rows(lambda v: [
        t / _norm(v) for t in v
    ])),
    "cosine_similarity": (
        AROUND,
        lambda x: safe.cosine_similarity(x, OTHERS.to(x.dtype), 0),
        _cosine,
    ),
    "var": (AROUND, safe.var, _var),
    "std": (AROUND, safe.std, lambda v: mpmath.sqrt(_var(v))),
    "masked_mean": (
        AROUND,
        lambda x: safe.masked_mean(x.square(), torch.tensor(KEPT)),
        lambda v: (v[0] ** 2 + v[2] ** 2) / 2,
    ),
    "cdist": (
        AROUND,
        lambda x: safe.cdist(x[None], OTHERS.to(x.dtype)[None])[0],
        lambda v: _norm([t - mpf(w) for t, w in zip(v, OTHER, strict=True)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CHECKED)
def test_value_and_two_derivatives_are_those_of_exact_arithmetic(
    name: str, dtype: torch.dtype
) -> None:
    numbers, fn, true = CHECKED[name]
    leaf = torch.tensor(numbers, dtype=dtype, requires_grad=True)  # exact in every dtype

    def total(x: Tensor) -> Tensor:
        value = fn(x)
        weights = torch.tensor(WEIGHTS, dtype=value.dtype)
        return (value * weights).sum() if value.numel() == 3 and value.dim() else value.sum()

    value = total(leaf)
    (first,) = torch.autograd.grad(value, leaf, create_graph=True)
    second = [torch.autograd.grad(g, leaf, retain_graph=True)[0][i] for i, g in enumerate(first)]
    found = [float(value.detach()), *first.tolist(), *(float(s) for s in second)]
    with mpmath.workdps(40):
        point = tuple(map(mpf, numbers))
        orders = [
            (0, 0, 0),
            *((*(k * (i == j) for j in range(3)),) for k in (1, 2) for i in range(3)),
        ]
        expected = [
            float(mpmath.diff(lambda *v: true(list(v)), point, n))
            if any(n)
            else float(true(list(point)))
            for n in orders
        ]
    eps = torch.finfo(dtype).eps
    for got, want in zip(found, expected, strict=True):
        assert got == pytest.approx(want, rel=64 * eps, abs=64 * eps * max(map(abs, expected)))


def test_removable_of_a_complex_function_of_real_numbers() -> None:
    def phasor(t: Tensor) -> Tensor:
        return (torch.exp(2j * t) - 1) / (1j * t)

    x = torch.tensor([0.0, 0.5], requires_grad=True)
    made = safe.removable(phasor, x)
    made.imag.sum().backward()
    assert made.dtype == torch.complex64
    assert made.tolist() == pytest.approx([2 + 0j, complex(phasor(torch.tensor(0.5)))])
    slope = 2 * math.sin(1.0) / 0.5 - (1 - math.cos(1.0)) / 0.25  # of (1 - cos 2t) / t
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([2.0, slope], rel=1e-5)


def test_removable_under_vmap_of_a_function_that_knows_no_complex_numbers() -> None:
    x, scale = torch.tensor([0.0, 1e-4, 0.5]), torch.tensor([1.0, 2.0, 3.0])

    def made(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return safe.removable(lambda t: (torch.erf(scale * t) - torch.erf(-t)) / t, x)

    expected = torch.stack([made(*each) for each in zip(x, scale, strict=True)])
    assert torch.allclose(torch.func.vmap(made)(x, scale), expected)
    assert expected[0] == pytest.approx(4 / math.sqrt(math.pi))


def test_removable_under_vmap_of_a_sum_that_is_rounded() -> None:
    p = torch.softmax(
        torch.tensor([[0.2, 1.0, -0.5], [0.4, 0.0, 0.9]]), 1
    )  # its sum is not quite 1

    def tsallis(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return safe.removable(lambda t: (1 - (p**t).sum()) / (t - 1), q, at=1)

    entropy = -(p * p.log()).sum(1)
    made = torch.func.vmap(tsallis)(p, torch.ones(2))
    assert torch.allclose(made, entropy, rtol=1e-5)


def test_removable_under_vmap_of_a_function_of_other_tensors() -> None:
    rows, weights = torch.tensor([[0.2, 0.0], [0.0, 0.5]]), torch.tensor([2.0, 3.0])
    made = torch.func.vmap(lambda x: safe.removable(lambda t: weights * torch.log1p(t) / t, x))(
        rows
    )
    expected = weights * torch.where(rows == 0, 1.0, torch.log1p(rows) / rows)
    assert torch.allclose(made, expected)


FUNCTIONS = {  # of eigenvalues, and their derivatives
    "sqrt": (torch.sqrt, lambda x: 0.5 * x.rsqrt()),
    "log": (torch.log, torch.reciprocal),
    "exp": (torch.exp, torch.exp),
}


def with_equal_values(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """All eigenvalues equal; two of them; all but the largest."""
    made = torch.Generator().manual_seed(count)
    basis = torch.linalg.qr(torch.randn(count, count, generator=made, dtype=torch.float64))[0]
    two = torch.linspace(2, 3, count, dtype=torch.float64)
    two[1] = two[0]
    most = torch.cat([torch.full((count - 1,), 2.0), torch.full((1,), 9.0)]).double()
    matrices = [torch.eye(count) * 2.25, (basis * two) @ basis.T, (basis * most) @ basis.T]
    return [((m + m.T) / 2).to(dtype) for m in matrices]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 3, 16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_matrix_with_equal_eigenvalues_have_their_divided_differences(
    name: str, count: int, dtype: torch.dtype
) -> None:
    fn, slope = FUNCTIONS[name]
    weight = torch.linspace(-1, 1, count * count, dtype=torch.float64).reshape(count, count) ** 2
    weight = weight + weight.T
    matrices = with_equal_values(count, dtype)
    leaf = torch.stack(matrices).requires_grad_()
    values, vectors = safe.eigh(leaf)
    found = (vectors * fn(values).unsqueeze(-2)) @ vectors.mH
    (gradients,) = torch.autograd.grad((found * weight.to(dtype)).sum(), leaf)
    near = (2 * torch.finfo(dtype).eps * count) ** 0.5
    for value, gradient, matrix in zip(found, gradients, matrices, strict=True):
        at, basis = torch.linalg.eigh(matrix.double())
        gap, middle = at[:, None] - at, (at[:, None] + at) / 2
        same = gap.abs() < 1e-5
        quotients = (fn(at)[:, None] - fn(at)) / torch.where(same, 1.0, gap)
        divided = torch.where(same, slope(middle), quotients)
        true = basis @ (divided * (basis.T @ weight @ basis)) @ basis.T
        plain = (basis * fn(at)) @ basis.T
        assert (value.detach().double() - plain).norm() < near * plain.norm()
        assert ((gradient + gradient.T).double() / 2 - true).norm() < near * true.norm()


def test_the_nearest_rotation_to_a_rotation_has_the_gradient_of_its_polar_factor() -> None:
    x = (2 * torch.eye(3, dtype=torch.float64)).requires_grad_()
    weight = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    u, _, vh = safe.svd(x)
    (slope,) = torch.autograd.grad((u @ vh * weight).sum(), x)
    assert torch.allclose(u @ vh, torch.eye(3, dtype=torch.float64), atol=1e-7)
    assert torch.allclose(slope, (weight - weight.T) / 4, atol=1e-6)


def test_decompositions_of_values_that_are_apart_have_the_bits_of_torch() -> None:
    x = torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x + x.mT, torch.eye(5)[None]]).requires_grad_()
    for mine, theirs in ((safe.eigh, torch.linalg.eigh), (safe.svd, torch.linalg.svd)):
        for got, expected in zip(mine(x), theirs(x), strict=True):
            assert torch.equal(got[:4], expected[:4])
        slopes = [
            torch.autograd.grad(fn(x)[1].square().cumsum(-1).sum(), x)[0] for fn in (mine, theirs)
        ]
        assert torch.equal(slopes[0][:4], slopes[1][:4])
        assert slopes[0].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (3, 3)])
def test_decompositions_of_nothing_and_of_zeros_are_finite(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    for parts in (safe.eigh(x), safe.svd(x)):
        (slope,) = torch.autograd.grad(sum(p.cumsum(-1).sum() for p in parts), x)
        assert slope.isfinite().all()
    with pytest.raises(TypeMismatchError, match="expected a tensor for A, got list"):
        safe.eigh([[1.0]])  # type: ignore[arg-type]


def test_decompositions_compile_and_vmap() -> None:
    x = torch.eye(3).expand(4, 3, 3)
    whole = safe.eigh(x)[0]
    assert torch.equal(torch.func.vmap(safe.eigh)(x)[0], whole)
    assert torch.equal(torch.compile(safe.eigh, backend="eager")(x)[0], whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_infinity_that_comes_in_is_finite_after(dtype: torch.dtype) -> None:
    x = torch.tensor([math.inf, -math.inf, 0.0], dtype=dtype, requires_grad=True)
    for fn, ends in ((safe.sinc, [0.0, 0.0]), (safe.exprel, [torch.finfo(dtype).max, 0.0])):
        y = fn(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x)
        assert y[:2].tolist() == ends and slope[:2].tolist() == [0.0, 0.0]
        assert y[2] == 1 and bool(bend.isfinite().all())
