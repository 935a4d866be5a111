"""Limits of expressions against what analysis says, and fixes against these limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nanlab.exact import limits
from nanlab.exact.limits import Truth, Wide, agrees, evaluate, truth
from nanlab.exact.numbers import AllExact, digits, lift, rounded

INF = math.inf
NONE = math.nan

# expression, where, the limits of its value and of its derivative there
ONE_VARIABLE: dict[str, tuple[Callable[[Tensor], Tensor], float, float, float]] = {
    "sin(x) / x": (lambda x: torch.sin(x) / x, 0.0, 1.0, 0.0),
    "x / (exp(x) - 1)": (lambda x: x / (torch.exp(x) - 1), 0.0, 1.0, -1 / 2),
    "(1 - cos(x)) / x^2": (lambda x: (1 - torch.cos(x)) / x**2, 0.0, 1 / 2, 0.0),
    "(x - sin(x)) / x^3": (lambda x: (x - torch.sin(x)) / x**3, 0.0, 1 / 6, 0.0),
    "log(1 + x) / x": (lambda x: torch.log(1 + x) / x, 0.0, 1.0, -1 / 2),
    "(1 - g^5) / (1 - g)": (lambda g: (1 - g**5) / (1 - g), 1.0, 5.0, 10.0),
    "coth(x) - 1 / x": (lambda x: 1 / torch.tanh(x) - 1 / x, 0.0, 0.0, 1 / 3),
    "(2^l - 1) / l": (lambda x: (2.0**x - 1) / x, 0.0, math.log(2), math.log(2) ** 2 / 2),
    "erf(x) / x": (lambda x: torch.erf(x) / x, 0.0, 2 / math.sqrt(math.pi), 0.0),
    "sqrt(x)": (torch.sqrt, 0.0, 0.0, INF),
    "acos(x) at 1": (torch.acos, 1.0, 0.0, -INF),
    "acos(x) at -1": (torch.acos, -1.0, math.pi, -INF),
    "log(x)": (torch.log, 0.0, -INF, INF),
    "x log(x)": (lambda x: x * torch.log(x), 0.0, 0.0, -INF),
    "1 / x": (lambda x: 1 / x, 0.0, NONE, -INF),
    "1 / x^2": (lambda x: 1 / x**2, 0.0, INF, NONE),
    "x sin(1 / x)": (lambda x: x * torch.sin(1 / x), 0.0, 0.0, NONE),
    "exp(-1 / x^2)": (lambda x: torch.exp(-1 / x**2), 0.0, 0.0, 0.0),
}
# beyond float64, or of digits that float64 does not have
OUT_OF_RANGE: dict[str, tuple[Callable[[Tensor], Tensor], float, float, float]] = {
    "log(1 + exp(x))": (lambda x: torch.log(1 + torch.exp(x)), 2000.0, 2000.0, 1.0),
    "log(sigmoid(x))": (lambda x: torch.log(torch.sigmoid(x)), -3000.0, -3000.0, 1.0),
    "sqrt(x^2)": (lambda x: torch.sqrt(x**2), 1e-30, 1e-30, 1.0),
    "log(cosh(x))": (lambda x: torch.log(torch.cosh(x)), 1e4, 1e4 - math.log(2), 1.0),
    "exp(x) / (1 + exp(x))": (lambda x: torch.exp(x) / (1 + torch.exp(x)), 900.0, 1.0, 0.0),
    "(1 - cos(x)) / x^2, tiny": (lambda x: (1 - torch.cos(x)) / x**2, 1e-25, 0.5, 0.0),
    "sin(1e9 x) / x": (lambda x: torch.sin(1e9 * x) / x, 0.0, 1e9, 0.0),
}


def limits_at(fn: Callable[[Tensor], Tensor], at: float) -> tuple[float, float]:
    found = truth(fn, [torch.tensor([at, at])])
    gradient = found.gradients[0]
    assert gradient is not None
    assert not found.values[0].unknown.any()
    return float(found.values[0].value[0]), float(gradient.value[0])


def same(found: float, expected: float) -> bool:
    return found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", ONE_VARIABLE)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "float64"])
def test_value_and_derivative_tend_to_what_analysis_says(
    name: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, at, value, slope = ONE_VARIABLE[name]
    if not exact:
        monkeypatch.setattr(limits, "EXACT", ())
        monkeypatch.setattr(limits, "SAME", 1e-3)
    found = truth(fn, [torch.tensor([at, at])])
    gradient = found.gradients[0]
    assert gradient is not None
    for limit, expected in ((found.values[0], value), (gradient, slope)):
        got = limit.value.tolist()
        assert got == pytest.approx([expected] * 2, rel=2e-3, abs=1e-3, nan_ok=True)
        if exact:
            assert got == pytest.approx([expected] * 2, rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_what_float64_cannot_hold_has_its_exact_value(name: str) -> None:
    fn, at, value, slope = OUT_OF_RANGE[name]
    got = limits_at(fn, float(torch.tensor(at)))
    assert same(got[0], value if at > 1e-20 else float(torch.tensor(value)))
    assert same(got[1], slope)


def test_an_expression_that_nobody_can_evaluate_is_unknown_and_not_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "EXACT", ())
    found = truth(lambda x: torch.log(1 + torch.exp(x)), [torch.tensor([2000.0, 1.0])])
    assert found.values[0].unknown.tolist() == [True, False]


def test_the_domain_is_approached_from_inside() -> None:
    found = truth(lambda x: torch.acos(x).sum(), [torch.tensor([1.0, -1.0, 0.5])])
    gradient = found.gradients[0]
    assert gradient is not None
    assert gradient.value.tolist() == pytest.approx([-INF, -INF, -1 / math.sqrt(0.75)])


def test_directions_that_disagree_leave_no_limit_but_a_bound() -> None:
    found = truth(lambda w: (w**2).sum(1).sqrt(), [torch.tensor([[0.0, 0.0], [3.0, 4.0]])])
    gradient = found.gradients[0]
    assert gradient is not None
    assert found.values[0].value.tolist() == pytest.approx([0.0, 5.0])
    assert gradient.value.tolist()[0] == pytest.approx([NONE, NONE], nan_ok=True)
    assert gradient.value.tolist()[1] == pytest.approx([0.6, 0.8])
    assert not gradient.unknown.any()
    assert float(gradient.bound[0].max()) <= 1.0  # of a unit vector


def test_rotation_by_a_zero_vector_has_the_generators_as_derivative() -> None:
    def hat(v: Tensor) -> Tensor:
        zero = torch.zeros_like(v[..., 0])
        x, y, z = v.unbind(-1)
        return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(3, 3)

    def rotation(w: Tensor) -> Tensor:
        k, t = hat(w), w.norm()
        return torch.eye(3) + torch.sin(t) / t * k + (1 - torch.cos(t)) / t**2 * (k @ k)

    weights = torch.arange(9.0).reshape(3, 3) ** 2
    gradient = truth(lambda w: rotation(w) * weights, [torch.zeros(3)]).gradients[0]
    assert gradient is not None
    value = truth(rotation, [torch.zeros(3)]).values[0].value
    assert torch.equal(value, torch.eye(3).double())
    skew = weights - weights.T  # of the generator: hat(e_i) has two entries, 1 and -1
    expected = [float(skew[2, 1]), float(skew[0, 2]), float(skew[1, 0])]
    assert gradient.value.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_constant_that_is_singular_is_moved_where_the_parameters_do_not_help() -> None:
    distance = torch.tensor([[0.0], [0.9]])
    rate = torch.tensor([1.0, 2.1], requires_grad=True)
    found = truth(lambda k, r: torch.sin(k * r) / r, [rate, distance])
    gradient = found.gradients[0]
    assert gradient is not None
    assert found.gradients[1] is None
    assert found.values[0].value[0].tolist() == pytest.approx([1.0, 2.1], rel=1e-6)
    assert gradient.value.tolist() == pytest.approx(
        [1 + math.cos(0.9), 1 + math.cos(1.89)], rel=1e-6
    )


def test_what_is_singular_whatever_the_operands_are_is_approached_from_within() -> None:
    def relative(x: Tensor) -> Tensor:
        z = x - x.amax()  # 0 at the largest, always
        return z / (torch.exp(z) - 1)

    found = truth(relative, [torch.tensor([0.5, 2.0])])
    gradient = found.gradients[0]
    assert gradient is not None
    z = -1.5
    rest = math.exp(z) - 1
    slope = (rest - z * math.exp(z)) / rest**2  # at the other; each moves with and against it
    assert found.values[0].value.tolist() == pytest.approx([z / rest, 1.0], rel=1e-6)
    assert gradient.value.tolist() == pytest.approx([slope, -slope], rel=1e-6)


def test_a_divisor_is_not_moved_without_the_numerator_that_vanishes_with_it() -> None:
    def slopes(x: Tensor) -> Tensor:
        a, b = x[:, None], x[None, :]  # equal on the diagonal, wherever x is
        return (torch.atan(a) - torch.atan(b)) / (a - b)

    x = [0.3, -0.8]
    found = truth(slopes, [torch.tensor(x)])
    assert found.values[0].value.diagonal().tolist() == pytest.approx(
        [1 / (1 + t * t) for t in x], rel=1e-6
    )
    assert found.gradients[0] is not None
    assert bool(found.gradients[0].exists.all())


def test_what_one_of_several_ways_to_the_singular_point_gives_is_no_limit() -> None:
    def slopes(x: Tensor) -> Tensor:
        gap = x.unsqueeze(0) - x.unsqueeze(1)
        return (x.log().unsqueeze(0) - x.log().unsqueeze(1)) / gap

    x = torch.tensor([0.5, 1.5], requires_grad=True)
    assert agrees(lambda t: t * torch.eye(2), slopes, [x]).kind == "unknown"


def test_what_moves_of_one_result_inside_give_and_another_does_not_is_no_limit() -> None:
    def scaled(w: Tensor, x: Tensor) -> Tensor:
        low, high = x.amin(), x.amax()
        return w * (x - low) / (high - low)  # 1 next to another low, 0 next to another high

    operands = [torch.tensor(2.0), torch.tensor([0.5, 0.5])]
    found = truth(scaled, operands, [True, False])
    assert not found.values[0].exists.any()


def test_a_constant_inside_of_the_expression_is_moved_too() -> None:
    def filter_of(f: Tensor) -> Tensor:
        n = torch.arange(-1.0, 2.0)
        return torch.sin(2 * math.pi * f * n) / (math.pi * n)

    found = truth(filter_of, [torch.tensor(0.25)])
    gradient = found.gradients[0]
    assert gradient is not None
    assert found.values[0].value.tolist() == pytest.approx(
        [1 / math.pi, 0.5, 1 / math.pi], rel=1e-6
    )
    # 2 at the centre, 2 cos(pi / 2) beside it
    assert float(gradient.value) == pytest.approx(2.0, abs=1e-6)


def test_a_softmax_by_hand_beyond_every_dtype_is_a_softmax() -> None:
    z = torch.tensor([[5000.0, 4999.0], [1.0, -1.0]])
    found = truth(lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True), [z])
    assert torch.allclose(found.values[0].value, z.double().softmax(1))


def test_a_large_tensor_is_judged_in_float64() -> None:
    x = torch.arange(-20_000, 20_001) / 10_000
    found = truth(lambda x: x / torch.expm1(x), [x])
    gradient = found.gradients[0]
    assert gradient is not None
    assert float(found.values[0].value[20_000]) == pytest.approx(1.0, rel=1e-4)
    assert float(gradient.value[20_000]) == pytest.approx(-0.5, rel=1e-3)


@pytest.mark.parametrize(
    "fn",
    [
        torch.exp,
        torch.lgamma,
        torch.erfinv,
        torch.atanh,
        torch.expm1,
        F.softplus,
        F.logsigmoid,
        F.gelu,
        F.silu,
        lambda x: x.softmax(1) * x,
        lambda x: x.log_softmax(1) * x,
        lambda x: F.layer_norm(x, (4,)) * x,
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, 2])),
        lambda x: F.normalize(x, dim=1) * x,
        lambda x: x.std(1),
        lambda x: x.cumsum(0) ** 2,
        lambda x: x.gather(1, torch.tensor([[0, 1], [1, 1], [2, 3]])) ** 2,
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.vmap(lambda row: row / row.norm())(x)[:, 0],
        lambda x: x.diff(dim=1) ** 2,
        lambda x: torch.cdist(x, x[:2] ** 2),
        lambda x: torch.cdist(x[None], x.exp(), p=1.5),
        lambda x: F.embedding(torch.tensor([0, 0, 2]), x) ** 2,
        lambda x: x.topk(2, 1)[0] ** 2,
        lambda x: F.conv2d(x[None, None], x[:, :2].reshape(1, 1, 3, 2), x[:1, 0], 1, (0, 1)),
        lambda x: F.conv1d(x[None], x[:, None, :2] ** 2, None, 2, 2, 2, 3),
        lambda x: F.conv3d(x.reshape(1, 1, 2, 2, 3), x.reshape(3, 1, 2, 2, 1)),
        lambda x: F.avg_pool2d(x[None], (2, 3), 1) ** 2,
        lambda x: F.adaptive_avg_pool2d(x[None], (3, 2)) ** 2,
        lambda x: F.max_pool2d(x[None], 2, 1, 1) ** 2,
        lambda x: torch.logcumsumexp(x, 0) ** 2,
        lambda x: x.masked_fill(x > 0.5, 2) * x,
        lambda x: torch.where(x > 0.5, 3, x) * x,
        lambda x: x.round(decimals=1) * x,
        lambda x: torch.logit(x, 0.3),
        lambda x: x[:0].sum(0) + x,
        lambda x: torch.empty(3, 4, dtype=torch.float64).fill_(x.detach()[1, 2]) * x,
        lambda x: x[0, 0].clone().mul_(3).copy_(x[1, 1]) * x,
    ],
)
def test_exact_numbers_give_what_float64_gives(fn: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x = 0.1 + 0.8 * torch.rand(3, 4, dtype=torch.float64)
    plain = x.clone().requires_grad_()
    expected = fn(plain)
    (slope,) = torch.autograd.grad(expected.sum(), plain)
    with digits(60), AllExact():
        exact = lift(x).requires_grad_()
        value = fn(exact)
        (gradient,) = torch.autograd.grad(value.sum(), exact)
    assert torch.allclose(rounded(value), expected, rtol=1e-12, atol=1e-14)
    assert torch.allclose(rounded(gradient), slope, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fn", [F.relu, F.softplus, F.logsigmoid, F.silu, torch.tanh])
def test_the_derivative_at_a_nan_is_that_of_torch_in_exact_numbers(
    fn: Callable[[Tensor], Tensor],
) -> None:
    x = torch.tensor([math.nan, 0.5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(fn(x).sum(), x)
    with digits(60), AllExact():
        exact = lift(x.detach()).requires_grad_()
        (gradient,) = torch.autograd.grad(fn(exact).sum(), exact)
    assert torch.allclose(rounded(gradient), slope, equal_nan=True)


def test_a_matrix_filled_in_place_keeps_its_exact_numbers() -> None:
    def turn(angle: Tensor) -> Tensor:
        made = torch.zeros(2, 2)
        made[0, 0] = made[1, 1] = torch.cos(angle)
        made[0, 1] = -torch.sin(angle)
        made[1, 0] = torch.sin(angle)
        return made

    gradient = truth(lambda angle: turn(angle)[1, 0], [torch.tensor(0.3)]).gradients[0]
    assert gradient is not None
    assert float(truth(turn, [torch.tensor(0.3)]).values[0].value[0, 1]) == pytest.approx(
        -math.sin(0.3), rel=1e-6
    )
    assert float(gradient.value) == pytest.approx(math.cos(0.3), rel=1e-6)


# --- fixes ---------------------------------------------------------------------------------------


def half_sine(x: Tensor) -> Tensor:
    return torch.sin(x / 2) / x


def test_a_fix_that_kills_the_gradient_is_told_what_it_should_be() -> None:
    def fn(k: Tensor, x: Tensor) -> Tensor:
        return torch.sin(k * x) / x

    def fix(k: Tensor, x: Tensor) -> Tensor:
        return torch.where(x == 0, 0.0, torch.sin(k * x) / torch.where(x == 0, 1.0, x))

    k, x = torch.tensor(0.146, requires_grad=True), torch.tensor([0.0])
    assert agrees(fix, fn, [k, x]).why == "the value is 0, its limit 0.146"
    right = agrees(lambda k, x: k * torch.sinc(k * x / math.pi), fn, [k, x])
    assert right.kind == "agrees"
    assert right.holds


def test_an_epsilon_under_a_removable_singularity_is_wrong_in_value_or_gradient() -> None:
    x = torch.tensor([0.0, 0.7])
    found = agrees(lambda x: x / (torch.exp(x) - 1 + 1e-6), lambda x: x / (torch.exp(x) - 1), [x])
    assert found.kind == "value"
    assert not found.holds
    clamped = agrees(
        lambda x: torch.where(x == 0, 1.0, x / (torch.exp(x) - 1).clamp_min(1e-6)),
        lambda x: x / (torch.exp(x) - 1),
        [x],
    )
    assert clamped.kind in ("infinite", "gradient")


def test_an_infinite_slope_has_to_stay_finite_and_keep_its_sign() -> None:
    x = torch.tensor([0.0, 4.0])
    assert agrees(lambda x: torch.sqrt(x + 1e-6), torch.sqrt, [x]).kind == "agrees"
    dead = agrees(lambda x: torch.sqrt(x.clamp_min(1e-12)) * (x > 0), torch.sqrt, [x])
    assert dead.kind == "sign"
    assert dead.why == "the gradient is 0, it tends to inf"
    assert agrees(torch.sqrt, torch.sqrt, [x]).kind == "infinite"


def test_a_subgradient_is_right_and_a_larger_one_is_not() -> None:
    w = torch.tensor([[0.0, 0.0], [0.6, -0.8]])

    def length(w: Tensor) -> Tensor:
        return torch.sqrt((w**2).sum(1))

    assert agrees(lambda w: torch.linalg.vector_norm(w, dim=1), length, [w]).kind == "agrees"
    tilted = agrees(lambda w: torch.linalg.vector_norm(w, dim=1) + 3 * w.sum(1), length, [w])
    assert tilted.kind == "unbounded"


def test_a_fix_is_tried_in_the_dtype_of_the_program() -> None:
    x = torch.tensor([12.0, 1.0], dtype=torch.float16)
    wide = agrees(F.softplus, lambda x: torch.log(1 + torch.exp(x)), [x])
    assert wide.kind == "agrees"
    narrow = agrees(
        lambda x: torch.log(2 + torch.exp(x)), lambda x: torch.log(1 + torch.exp(x)), [x]
    )
    assert narrow.kind == "infinite"


def test_the_truth_can_be_asked_once_for_many_fixes() -> None:
    x = torch.tensor([0.0, 0.5])
    known = truth(half_sine, [x])
    assert isinstance(known, Truth)
    right = agrees(lambda x: torch.sinc(x / 2 / math.pi) / 2, half_sine, [x], known=known)
    assert right.kind == "agrees"
    assert agrees(lambda x: 0 * x, half_sine, [x], known=known).kind == "value"


def test_the_random_state_of_the_program_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    truth(half_sine, [torch.tensor([0.0])])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_a_mask_takes_out_has_a_gradient_of_zero() -> None:
    """Next to b = 0 the quotient stands in the place of the 0, and diverges."""

    def rate(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b != 0, a / b, torch.zeros_like(a)).square().sum()

    true = truth(rate, [torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])])
    assert true.values[0].value == 0.25
    assert [t.value.tolist() for t in true.gradients if t is not None] == [[0, 0.25], [0, -0.125]]


def test_a_mask_that_changes_no_value_hides_no_limit() -> None:
    """As written the gradient at 0 is NaN; the function that it continues has the slope 1 / 2."""

    def growth(x: Tensor) -> Tensor:
        return torch.where(x == 0, torch.ones_like(x), torch.expm1(x) / x).sum()

    true = truth(growth, [torch.tensor([0.0, 1.0])])
    assert true.gradients[0] is not None
    assert true.gradients[0].value[0] == pytest.approx(0.5)


def test_numbers_far_below_the_distances_of_float64_are_no_zeros() -> None:
    """Complex numbers are computed in float64; 0.25 away from 1e-24 everything is another value."""

    def power(re: Tensor, im: Tensor) -> Tensor:
        z = torch.complex(re, im)
        return torch.log(z.real**2 + z.imag**2).sum()

    true = truth(power, [torch.tensor([6e-25]), torch.tensor([8e-25])])
    assert true.values[0].value == pytest.approx(2 * math.log(1e-24))
    assert [float(t.value) for t in true.gradients if t is not None] == pytest.approx(
        [1.2e24, 1.6e24]
    )


def test_what_has_values_far_off_and_none_near_by_has_no_limit_in_float64() -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def known_beyond(t: Tensor) -> Tensor:  # the Bessel function is not known in exact numbers
        hole = torch.where(t.abs() < 3e-5, torch.nan, 0.0)
        return torch.special.bessel_j0(t) * hole

    assert not truth(known_beyond, [x]).values[0].exists.any()


def test_what_the_rounding_of_a_constant_decides_is_no_value() -> None:
    rho = -0.3  # 1 + 0.3 and 1 - -0.3 differ in their last digit

    def smile(z: Tensor) -> Tensor:
        root = torch.sqrt(1 - 2 * rho * z + z * z)
        return z / torch.log((root + z - rho) / (1 - rho))

    (value,), (slope,) = (lambda t: (t.values, t.gradients))(truth(smile, [torch.zeros(1)]))
    assert float(value.value) == pytest.approx(1.0, rel=1e-4)
    assert slope is not None
    assert float(slope.value) == pytest.approx(-rho / 2, rel=1e-3)


@pytest.mark.parametrize("c", [4 / 3, math.sqrt(3), 2 * math.pi / 3, 0.7, 1 / math.log(10)])
def test_a_number_is_what_it_is_the_rounding_of(c: float) -> None:
    def poles(x: Tensor) -> Tensor:  # c / (c x) - (1 / c) / (x / c), and what is left
        return c / torch.tanh(c * x) - (1 / c) / torch.tanh((1 / c) * x)

    (value,), (slope,) = (lambda t: (t.values, t.gradients))(truth(poles, [torch.zeros(1)]))
    assert slope is not None
    assert float(value.value) == pytest.approx(0.0, abs=1e-9)
    assert float(slope.value) == pytest.approx((c**2 - c**-2) / 3, rel=1e-6)


def test_a_value_that_a_mask_keeps_from_its_neighbours_stays() -> None:
    def chosen(x: Tensor) -> Tensor:
        return torch.where(x != 0, torch.sin(x) / x, 0.0) + 2 * x

    (value,), (slope,) = (lambda t: (t.values, t.gradients))(truth(chosen, [torch.zeros(1)]))
    assert slope is not None
    assert (float(value.value), float(slope.value)) == (0.0, 2.0)


def test_a_value_that_jumps_without_a_mask_is_its_limit() -> None:
    def power(x: Tensor) -> Tensor:  # 1 to the power of infinity is 1, its limit e
        return (1 + x) ** (1 / x)

    assert float(truth(power, [torch.zeros(1)]).values[0].value) == pytest.approx(math.e)


def test_a_value_that_a_mask_gives_at_the_point_alone_stays() -> None:
    def masked(x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.log(x), 5.0)

    found = truth(masked, [torch.zeros(1)])
    assert float(found.values[0].value) == 5.0


def test_a_label_is_what_it_is_and_a_sure_probability_shows_what_it_lacks() -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        return -torch.log(torch.where(y == 1, p, 1 - p)).mean()

    z = torch.tensor([73.0, 216.0, 800.0], requires_grad=True)
    known = truth(loss, [z, torch.tensor([1.0, 0.0, 0.0])], [True, False])
    gradient = known.gradients[0]
    assert float(known.values[0].value) == pytest.approx((216.0 + 800.0) / 3)
    assert gradient is not None and bool(gradient.exists.all())
    assert gradient.value.tolist() == pytest.approx([0.0, 1 / 3, 1 / 3], abs=1e-30)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (4,))])
@pytest.mark.parametrize("extremes", [(), (1e300, 5e-320), (math.inf, math.nan)])
def test_products_of_matrices_are_exact(
    shapes: tuple[tuple[int, ...], ...], extremes: tuple[float, ...]
) -> None:
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    a.view(-1)[: len(extremes)] = torch.tensor(extremes, dtype=torch.float64)
    with digits(60):
        got = torch.matmul(lift(a), lift(b))
        rows = lift(a).numbers.reshape(-1, a.shape[-1])
        few = lift(b).numbers.reshape(-1, *b.shape[-2:]) if b.ndim > 2 else None
        columns = [lift(b).numbers.reshape(b.shape[0], -1)] if few is None else few
        many = rows.reshape(len(columns), -1, a.shape[-1])
        want = [
            mpmath.fdot(row, column)
            for left, right in zip(many, columns, strict=True)
            for row in left
            for column in right.T
        ]
    assert [str(v) for v in got.numbers.reshape(-1)] == [str(v) for v in want]


def test_where_a_value_jumps_its_gradient_is_that_of_its_own_side() -> None:
    """atan(w / h) at h = 0 is pi / 2, as for h > 0; for h < 0 it is -pi / 2."""

    def aspect(w: Tensor, h: Tensor) -> Tensor:
        return (1.0 - torch.atan(w / h)).square().sum()

    true = truth(aspect, [torch.tensor([0.8]), torch.tensor([0.0])])
    slope = 2 * (1.0 - math.pi / 2) / 0.8
    assert [float(t.value) for t in true.gradients if t is not None] == pytest.approx([0.0, slope])


def test_a_move_that_leaves_a_value_unknown_tells_no_gradient() -> None:
    """Entropy of causal attention: the constant that makes the mask, moved, masks everything."""

    def entropy(scores: Tensor) -> Tensor:
        hidden = torch.triu(torch.ones_like(scores), 1).bool()
        p = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
        return -(p * torch.log(p)).sum()

    scores = torch.tensor([[0.3, 0.0], [0.5, -0.4]])
    true = truth(entropy, [scores])
    row = scores[1:].double().requires_grad_()
    p = torch.softmax(row, -1)
    (-(p * torch.log(p)).sum()).backward()
    assert row.grad is not None and true.gradients[0] is not None
    torch.testing.assert_close(true.gradients[0].value[1:], row.grad)


@pytest.mark.parametrize(
    ("fn", "at", "value"),
    [
        (lambda z: torch.log(1 - torch.sigmoid(z)), 2000.0, -2000.0),
        (lambda z: torch.log(1 + torch.erf(z)), -100.0, -10005.1774),
        (lambda z: torch.log(torch.special.ndtr(z)), -270.0, -36456.5174),
        (lambda z: torch.log1p(-torch.tanh(z)), 300.0, -600 + math.log(2)),
        (lambda z: torch.atanh(torch.tanh(z)), -2000.0, -2000.0),
        (lambda z: torch.log(-torch.log(torch.sigmoid(z))), 2000.0, -2000.0),
        (lambda z: torch.log(torch.expm1(-z) + 1), 2000.0, -2000.0),
        (lambda z: torch.log(1 - torch.tanh(z) ** 2) / 2, 500.0, -500 + math.log(2)),
        (lambda z: torch.log(torch.cosh(z) - torch.sinh(z)), 2000.0, -2000.0),
        (lambda z: torch.log(F.softplus(z) - z), 2000.0, -2000.0),
        (lambda z: torch.log(1 - torch.softmax(torch.stack([z, 0 * z]), 0)[0]), 3e3, -3e3),
    ],
)
def test_what_is_left_of_a_saturated_number_is_known_however_small(
    fn: Callable[[Tensor], Tensor], at: float, value: float
) -> None:
    found = truth(fn, [torch.tensor([at, 0.3], requires_grad=True)])
    assert float(found.values[0].value.flatten()[0]) == pytest.approx(value, rel=1e-6)
    floor = agrees(lambda z: fn(z).clamp_min(-23), fn, [torch.tensor([at], requires_grad=True)])
    assert floor.kind in ("value", "infinite")


@pytest.mark.parametrize("at", [60.3, 61.0, 92.1, 150.0, 2000.0])
def test_what_two_saturated_numbers_differ_by_has_its_value_and_slope(at: float) -> None:
    x = torch.tensor([at], requires_grad=True)
    found = truth(lambda z: torch.log(torch.sigmoid(z) - torch.sigmoid(z - 0.5)), [x])
    assert found.gradients[0] is not None
    value = math.log(math.expm1(0.5)) - float(x.detach())
    assert float(found.values[0].value) == pytest.approx(value, rel=1e-9)
    assert float(found.gradients[0].value) == pytest.approx(-1.0, rel=1e-9)


def test_what_is_drawn_next_to_the_singular_point_is_the_same_at_all_distances() -> None:
    state = torch.Generator().manual_seed(3).get_state()

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.set_rng_state(state)  # as a replay of recorded calls does
        chosen = torch.randint(0, 4, (16,))
        return (torch.sin(x) / x * torch.arange(1.0, 5.0))[chosen].sum()

    torch.set_rng_state(state)
    expected = float((torch.randint(0, 4, (16,)) + 1).sum())
    limit = truth(fn, [torch.zeros(4)]).values[0]
    assert float(limit.value) == pytest.approx(expected)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, a: x @ a,
        lambda x, a: a @ x,
        lambda x, a: x @ x,
        lambda x, a: torch.nn.functional.linear(x, a, x),
        lambda x, a: torch.mv(a, x),
    ],
)
def test_products_with_vectors_are_exact(product: Callable[..., Tensor]) -> None:
    x, a = torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with digits(30), AllExact(math.inf):
        exact = lift(x).requires_grad_()
        found = product(exact, lift(a))
        (gradient,) = torch.autograd.grad(found.sum(), exact)
    x.requires_grad_()
    known = product(x, a)
    assert torch.equal(rounded(found), known.double())
    assert torch.equal(rounded(gradient), torch.autograd.grad(known.sum(), x)[0].double())


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "float64"])
def test_an_absolute_error_of_what_has_no_value_tells_no_gradient_of_zero(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exact:
        monkeypatch.setattr(limits, "EXACT", ())
    found = truth(
        lambda base, a: (a + base**1.5).abs().sum(), [torch.full((3,), -0.5), torch.tensor([-3.0])]
    )
    gradient = found.gradients[1]
    assert gradient is not None
    assert not bool((gradient.exists & (gradient.value == 0)).any())


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (lambda x: x.clamp(min=0.0), math.nan),
        (lambda x: torch.maximum(x, torch.zeros_like(x)), math.nan),
        (lambda x: F.margin_ranking_loss(x, x.detach() + 1, torch.ones_like(x)), math.nan),
        (lambda x: F.leaky_relu(x), math.nan),
        (lambda x: x.clamp(-1.0, 1.0), math.nan),
        (lambda x: x.nansum(), 0.0),
        (lambda x: x.nan_to_num(0.0), 0.0),
        (lambda x: torch.where(x.isnan(), torch.zeros_like(x), x), 0.0),
        (lambda x: x[~x.isnan()].sum(), 0.0),
    ],
)
def test_nan_that_is_compared_has_a_gradient_only_where_the_program_leaves_it_out(
    function: Any, gradient: float
) -> None:
    with Wide():
        (found,) = evaluate(function, [torch.tensor([math.nan, 0.5]).double()], [True]).gradients
    assert found is not None and found[1] != 0
    assert torch.allclose(found[0], torch.tensor(gradient).double(), equal_nan=True)


def test_limit_of_what_a_comparison_with_nan_hides_is_that_next_to_it() -> None:
    def short(rate: Tensor) -> Tensor:
        paid = torch.expm1(-rate) / rate
        return torch.where(paid + 2.0 > 0, paid + 2.0, torch.zeros_like(paid)).sum()

    known = truth(short, [torch.tensor([0.0, 1.0])], [True])
    assert float(known.values[0].value) == pytest.approx(1.0 + 2.0 - (1.0 - math.exp(-1.0)))
    assert known.gradients[0] is not None
    assert float(known.gradients[0].value[0]) == pytest.approx(0.5)


def test_nan_that_is_given_is_left_out_by_a_comparison() -> None:
    def seen(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(y > 0, x * y, torch.zeros_like(x)).sum()

    known = truth(seen, [torch.tensor([2.0, 3.0]), torch.tensor([math.nan, 1.0])], [True, False])
    assert float(known.values[0].value) == 3.0


def test_comparison_behind_a_derivative_is_as_before_it() -> None:
    def penalised(x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
        lost = slope * torch.tensor([math.nan, 1.0]).double()
        return torch.where(lost > 0, slope, torch.zeros_like(slope)).sum()

    with Wide():
        (found,) = evaluate(penalised, [torch.tensor([1.0, 2.0]).double()], [True]).values
    assert float(found) == 4.0


def test_a_view_that_is_moved_alone_leaves_no_value_that_was_overwritten() -> None:
    def share(w: Tensor) -> Tensor:
        with torch.no_grad():
            w[1] -= 0.1  # which leaves the rounding of 0.1, not 0
            w[1] = 0.0
        return w.detach() / w

    gradient = truth(share, [torch.tensor([0.3, 0.1])]).gradients[0]
    assert gradient is not None
    assert not bool(gradient.exists[1] & gradient.value[1].isfinite())


def by_hand(x: Tensor) -> Tensor:
    return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)


SCORES = [[124.0, 3.0, -50.0, 80.0], [0.1, 0.2, 0.3, 0.4], [95.0, -20.0, 60.0, 1.0]]


@pytest.mark.parametrize(
    ("fix", "kind"),
    [
        (lambda x: torch.softmax(x, -1), "agrees"),
        (lambda x: torch.exp(x - x.logsumexp(-1, keepdim=True)), "agrees"),
        (lambda x: torch.softmax(x, -1) + 2e-5 * torch.sin(x), "gradient"),
        (lambda x: torch.softmax(x, -1) * (1 + 1e-4 * (x / 200).tanh()), "gradient"),
        (lambda x: torch.softmax(x.detach(), -1) + 1e-4 * (x - x.detach()), "gradient"),
    ],
)
def test_what_cancels_out_is_held_against_the_rounding_of_its_terms(fix: Any, kind: str) -> None:
    # 1 for all classes: what is summed in each gradient is 0 together
    assert agrees(fix, by_hand, [torch.tensor(SCORES, requires_grad=True)]).kind == kind
