"""Series fixes, and `nanlab.safe.removable`, against high-precision arithmetic and known series."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

import nanlab
from nanlab.errors import TypeMismatchError
from nanlab.fixes.removable import series_text
from nanlab.safe.series import NotRemovableError

Expression = Callable[[Any], Any]
# the expression's text; T is torch or mpmath; where; its series there as far as it is written here
SERIES = {
    "T.sin(x) / x": (0.0, [1, 0, -1 / 6, 0, 1 / 120]),
    "x / (T.exp(x) - 1)": (0.0, [1, -1 / 2, 1 / 12, 0, -1 / 720]),
    "(1 - T.cos(x)) / x**2": (0.0, [1 / 2, 0, -1 / 24, 0, 1 / 720]),
    "(x - T.sin(x)) / x**3": (0.0, [1 / 6, 0, -1 / 120, 0, 1 / 5040]),
    "x / T.tanh(x)": (0.0, [1, 0, 1 / 3, 0, -1 / 45]),
    "T.erf(x) / x": (0.0, [2 / math.sqrt(math.pi), 0, -2 / (3 * math.sqrt(math.pi))]),
    "T.log(x) / (x - 1)": (1.0, [1, -1 / 2, 1 / 3, -1 / 4, 1 / 5]),
    "(1 - x**5) / (1 - x)": (1.0, [5, 10, 10, 5, 1]),
    "T.sin(abs(x)) / abs(x)": (0.0, [1, 0, -1 / 6, 0, 1 / 120]),
}
AWAY = [0.0, 1e-12, 1e-5, -3e-3, 0.04, -0.13, 0.21, -0.4, 0.6]


def of(text: str, library: Any) -> Expression:
    return eval(f"lambda x: {text}", {"T": library, "abs": abs})


def derivatives(fn: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    value = fn(leaf)
    (first,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    return [t.detach().double() for t in (value, first, second)]


def exact(text: str, at: float, x: Tensor, order: int) -> Tensor:
    """A derivative in 60 digits; at the singular point itself, and next to it, of the series
    there."""
    with mpmath.workdps(60):
        fn, found = of(text, mpmath), []
        around = mpmath.taylor(
            lambda t: fn(at + t) if t else fn(at + mpf(10) ** -25), mpf(10) ** -14, 6
        )
        for v in x.double().tolist():
            distance = mpf(v) - at
            if abs(distance) < 1e-4:
                found.append(
                    float(mpmath.diff(lambda t: mpmath.polyval(around[::-1], t), distance, order))
                )
            else:
                found.append(float(mpmath.diff(fn, mpf(v), order, h=mpf(10) ** -15)))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("text", SERIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_removable_has_value_first_and_second_derivative_to_rounding(
    text: str, dtype: torch.dtype
) -> None:
    at = SERIES[text][0]
    x = (at + torch.tensor(AWAY, dtype=torch.float64)).to(dtype)
    found = derivatives(lambda x: nanlab.safe.removable(of(text, torch), x, at), x)
    tolerance = max(2 * torch.finfo(dtype).eps, 1e-8)
    for order, got in enumerate(found):
        assert torch.allclose(got, exact(text, at, x, order), rtol=tolerance, atol=tolerance), order


def test_removable_reaches_what_the_function_closes_over() -> None:
    k = torch.tensor([1.0, 2.1], requires_grad=True)
    r = torch.tensor([[0.0], [1e-5], [0.9]])
    value = nanlab.safe.removable(lambda r: torch.sin(k * r) / r, r)
    (slope,) = torch.autograd.grad(value.sum(), k)
    assert torch.allclose(value[0], k)
    assert torch.allclose(slope, 2 + torch.cos(0.9 * k.detach()))  # the derivative in k is cos(k r)


def test_removable_takes_a_tensor_of_points() -> None:
    at = torch.tensor([1.0, 2.0, -0.5])
    x = torch.tensor([[1.0, 2.0, -0.5], [1.001, 1.5, 3.0]])
    value = nanlab.safe.removable(lambda x: torch.sinh(x - at) / (x - at), x, at)
    d = (x - at).double()
    expected = torch.where(d == 0, 1.0, torch.sinh(d) / torch.where(d == 0, 1.0, d))
    assert torch.allclose(value.double(), expected, rtol=1e-6)


def test_removable_of_a_function_that_gives_its_tensor_more_dimensions() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], requires_grad=True)
    order = torch.tensor([1.0, 2.0], requires_grad=True)

    def hill(q: torch.Tensor) -> torch.Tensor:
        return (p ** q[:, None]).sum(1) ** (1 / (1 - q))

    value = nanlab.safe.removable(hill, order, at=1)
    value[0].backward()
    entropy = -(p * p.log()).sum(1).detach()
    assert value.tolist() == pytest.approx([math.exp(entropy[0]), 1 / (0.2**2 * 2 + 0.6**2)])
    assert p.grad is not None
    assert order.grad is not None
    expected = -math.exp(entropy[0]) * (1 + p[0].detach().log())
    assert torch.allclose(p.grad[0] - p.grad[0].mean(), expected - expected.mean(), rtol=1e-5)
    spread = (p[0] * p[0].log() ** 2).sum().item() - entropy[0].item() ** 2
    assert order.grad.tolist() == pytest.approx([-math.exp(entropy[0]) * spread / 2, 0], rel=1e-5)


def test_removable_refuses_a_function_of_all_elements_together() -> None:
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    with pytest.raises(NotRemovableError, match="several elements"):
        nanlab.safe.removable(lambda t: (2 * t).sum(0) / t.sum(0), y)


def test_removable_looks_at_each_function_by_itself() -> None:
    x = torch.tensor([0.0, 0.5, 1.0])

    def mended(fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return nanlab.safe.removable(lambda t: fn(t), x)

    assert mended(lambda t: torch.sin(t) / t)[0] == 1
    with pytest.raises(NotRemovableError, match="several elements"):
        mended(lambda t: torch.sin(t) / t.sum())


def test_removable_keeps_a_nan_that_came_in() -> None:
    x = torch.tensor([0.0, math.nan])
    value = nanlab.safe.removable(lambda x: torch.sin(x) / x, x)
    assert value[0] == 1
    assert value[1].isnan()


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x: 1 / x, "a pole of order 1 at 0"),
        (lambda x: torch.cos(x) / x**2, "a pole of order 2 at 0"),
        (torch.log, "values on one side only"),
        (lambda x: torch.sqrt(x) / x, "values on one side only"),
        (lambda x: x.abs() / x, "a jump or a kink"),
        (lambda x: torch.sin(x.abs().sqrt() / 4) / x.abs().sqrt(), "a jump or a kink"),
        (lambda x: torch.erf(x) / x**3, "a pole of order 2"),
    ],
)
def test_removable_says_what_a_function_has_that_is_not_removable(
    fn: Expression, what: str
) -> None:
    with pytest.raises(nanlab.NanlabError, match=what):
        nanlab.safe.removable(fn, torch.zeros(3))


# --- the text ------------------------------------------------------------------------------------


def test_the_text_is_what_one_would_write() -> None:
    made = series_text(lambda x: x / torch.expm1(x), "x / torch.expm1(x)", "x")
    assert made.terms.startswith("1 - x / 2 + x**2 / 12")
    assert made.lines[1] == "safe = torch.where(near, 1, x)"
    assert made.expression == f"torch.where(near, {made.terms}, safe / torch.expm1(safe))"


def test_the_text_does_not_use_names_that_are_taken() -> None:
    made = series_text(torch.sinc, "torch.sin(near) / near", "near", taken={"safe"})
    assert made.lines[0].startswith("near_ = near.abs()")
    assert made.lines[1].startswith("safe_ = ")


def test_a_point_other_than_zero_gets_a_name_of_its_own() -> None:
    made = series_text(
        lambda g: (1 - g**5) / (1 - g), "(1 - self.g**5) / (1 - self.g)", "self.g", at=1.0
    )
    assert made.lines[0] == "d = self.g - 1"
    assert made.terms == "5 + 10 * d + 10 * d**2 + 5 * d**3 + d**4"


@pytest.mark.parametrize("text", SERIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_the_text_is_right_in_value_and_derivatives(text: str, dtype: torch.dtype) -> None:
    at, known = SERIES[text]
    plain = text.replace("T.", "torch.")
    made = series_text(of(text, torch), plain, "x", at, dtype)

    def run(x: Tensor) -> Tensor:
        names: dict[str, Any] = {"torch": torch, "x": x}
        exec("\n".join((*made.lines, f"y = {made.expression}")), names)
        return names["y"]

    x = (at + torch.tensor(AWAY, dtype=torch.float64)).to(dtype)
    x = x[(x.double() - at).abs() <= 1.5 * made.radius]  # farther off it is the expression itself
    eps = torch.finfo(dtype).eps
    scale = max(abs(c) for c in known)
    steps = zip(derivatives(run, x), (32, 512, 16384), (0.004, 0.02, 0.1), strict=True)
    for order, (got, within, most) in enumerate(steps):
        tolerance = min(max(within * eps, 1e-9), most) * scale
        assert torch.allclose(got, exact(text, at, x, order), rtol=0.0, atol=tolerance), order


def test_removable_where_two_operands_meet_has_both_gradients() -> None:
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    b = torch.tensor([2.0, 1.5], requires_grad=True)
    mean = nanlab.safe.removable(lambda t: (t - b) / (torch.log(t) - torch.log(b)), a, at=b)
    slopes = torch.autograd.grad(mean.sum(), [a, b])
    assert float(mean[0].detach()) == pytest.approx(2.0)
    assert [float(s[0]) for s in slopes] == pytest.approx([0.5, 0.5])  # symmetric, and of degree 1
    logs = math.log(2.0)
    assert float(mean[1].detach()) == pytest.approx(1.5 / logs)
    assert float(slopes[0][1]) == pytest.approx((logs - 1.5 / 3.0) / logs**2)


def test_removable_takes_a_number_that_meets_a_larger_tensor() -> None:
    power = torch.tensor(0.0, requires_grad=True)
    y = torch.tensor([0.5, 1.7, 3.0])
    value = nanlab.safe.removable(lambda p: (y**p - 1) / p, power)
    (slope,) = torch.autograd.grad(value.sum(), power)
    assert torch.allclose(value, y.log())
    assert float(slope) == pytest.approx(float((y.log() ** 2).sum()) / 2)


def test_under_vmap_each_sample_has_its_own_series() -> None:
    """(log a - log b) / (a - b) is 1 / a, and its derivative by a -1 / (2 a^2), where b is a."""
    a = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.5, 1.4, 2.0], dtype=torch.float64)

    def slope(a: Tensor, b: Tensor) -> Tensor:
        return nanlab.safe.removable(lambda t: (torch.log(t) - torch.log(b)) / (t - b), a, at=b)

    found = torch.vmap(slope)(a, b)
    want = [2.0, math.log(1 / 1.4) / -0.4, 0.5]
    assert found.tolist() == pytest.approx(want, rel=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), a)
    assert gradient[[0, 2]].tolist() == pytest.approx([-2.0, -0.125], rel=1e-9)


def test_a_sample_without_a_series_is_nan_under_vmap() -> None:
    x = torch.tensor([0.0, 2.0])
    found = torch.vmap(lambda v: nanlab.safe.removable(lambda t: 1 / t, v))(x)
    assert found.isnan().tolist() == [True, False]
    assert found[1] == 0.5


def test_shares_that_float32_has_rounded_have_a_series() -> None:
    """A Hill number of order 1 is the exponential of the entropy."""
    p = torch.tensor([0.2, 0.3, 0.5])
    order = torch.tensor([1.0])
    found = nanlab.safe.removable(lambda q: (p**q).sum(-1) ** (1 / (1 - q)), order, at=1)
    assert found.tolist() == pytest.approx([math.exp(-float((p * p.log()).sum()))], rel=1e-6)


def test_a_pole_is_none_in_float32_either() -> None:
    with pytest.raises(NotRemovableError):
        nanlab.safe.removable(lambda x: 1e-5 / x, torch.tensor([0.0, 1.0]))
    with pytest.raises(NotRemovableError):
        nanlab.safe.removable(torch.sqrt, torch.tensor([0.0, 1.0]))


def test_a_place_or_a_result_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeMismatchError, match="at to be a number"):
        nanlab.safe.removable(lambda t: torch.sin(t) / t, torch.zeros(1), at="a")  # type: ignore
    for x in (torch.zeros(1), 0.0):
        with pytest.raises(TypeMismatchError, match="return a tensor, got str"):
            nanlab.safe.removable(lambda t: "x", x)  # type: ignore
