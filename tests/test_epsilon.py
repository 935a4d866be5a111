"""The advised epsilon is finite where it is used, and harmless, or the advice says why it cannot
be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from nanlab.analysis.epsilon import COLUMNS, HEADROOM, advise_eps
from nanlab.errors import NanlabError, TypeMismatchError, UsageError

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
GENERATOR = torch.Generator().manual_seed(0)
WITH_ZEROS = torch.cat([torch.zeros(4), torch.rand(60, generator=GENERATOR) + 0.05])
WITH_ZERO_ROW = torch.randn(16, 8, generator=GENERATOR)
WITH_ZERO_ROW[3] = 0

EXAMPLES: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "sqrt": (lambda x, eps: torch.sqrt(x + eps), WITH_ZEROS),
    "unit vector": (lambda x, eps: x / (x.norm(dim=-1, keepdim=True) + eps), WITH_ZERO_ROW),
    "log": (lambda x, eps: torch.log(x + eps), WITH_ZEROS),
    "rsqrt": (lambda x, eps: (x * x).sum(-1).add(eps).rsqrt(), WITH_ZERO_ROW),
    "normalize": (lambda x, eps: F.normalize(x, dim=-1, eps=eps), WITH_ZERO_ROW),
}


def value_and_gradient(fn: Callable[..., Tensor], x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = fn(x, eps)
    (grad,) = torch.autograd.grad(value.sum(), x)
    return value.detach().double(), grad.double()


def change(found: Tensor, reference: Tensor) -> float:
    """Largest change of the elements that are finite without eps, relative to them or to their
    median."""
    healthy = torch.isfinite(reference)
    found, reference = found[healthy], reference[healthy]
    size = reference.abs()
    return float(((found - reference).abs() / size.clamp_min(size[size > 0].median())).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_recommended_eps_is_finite_in_value_and_gradient_with_headroom(
    name: str, dtype: torch.dtype
) -> None:
    fn, x = EXAMPLES[name]
    eps = advise_eps(fn, x, dtype).recommended
    value, grad = value_and_gradient(fn, x.to(dtype), eps)
    assert torch.isfinite(value).all() and torch.isfinite(grad).all()
    assert grad.abs().max() * HEADROOM <= torch.finfo(dtype).max


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_recommended_eps_distorts_by_a_few_ulps_or_the_reason_says_that_it_cannot(
    name: str, dtype: torch.dtype
) -> None:
    fn, x = EXAMPLES[name]
    advice = advise_eps(fn, x, dtype)
    rounded = x.to(dtype)
    found = value_and_gradient(fn, rounded, advice.recommended)
    reference = value_and_gradient(fn, rounded.double(), 0.0)
    distortion = max(change(f, r) for f, r in zip(found, reference, strict=True))
    # 4 ulp are allowed, or twice the dtype's own rounding
    few = max(6 * torch.finfo(dtype).eps, 1e-3)
    assert distortion < few or "no epsilon" in advice.reason
    if dtype == torch.float32:
        assert distortion < 1e-3 and "no epsilon" not in advice.reason


def test_twice_the_recommended_eps_would_distort_more_than_is_harmless() -> None:
    fn, x = EXAMPLES["sqrt"]
    advice = advise_eps(fn, x)
    reference = value_and_gradient(fn, x.double(), 0.0)
    doubled = value_and_gradient(fn, x, 2 * advice.recommended)
    assert max(change(f, r) for f, r in zip(doubled, reference, strict=True)) > advice.tolerance


def test_eps_1e_8_is_shown_as_zero_in_float16() -> None:
    fn, x = EXAMPLES["sqrt"]
    table = advise_eps(fn, x, torch.float16).table
    below = table[table["eps"] <= 1e-8]
    assert len(below) and not below["representable"].any() and (below["in_dtype"] == 0).all()
    assert (
        below["vanishes"].all() and not below["finite_gradient"].any() and not below["usable"].any()
    )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_sweep_is_all_powers_of_two_that_the_dtype_holds_up_to_1_and_a_decade_beyond(
    dtype: torch.dtype,
) -> None:
    table = advise_eps(lambda x, eps: torch.sqrt(x + eps), torch.tensor([0.0, 0.5]), dtype).table
    exponents = table["eps"].map(lambda eps: math.frexp(eps)[1] - 1).tolist()
    assert exponents == list(range(exponents[0], exponents[-1] + 1)) and exponents[-1] >= 0
    expected = [torch.tensor(eps, dtype=torch.float64).to(dtype).item() for eps in table["eps"]]
    assert table["in_dtype"].tolist() == expected
    assert (table["representable"] == [e != 0 for e in expected]).all()
    if dtype != torch.float64:  # nothing lies below its smallest number
        assert (table["in_dtype"] == 0).sum() >= 3


def test_eps_vanishes_only_where_no_element_feels_it() -> None:
    lonely = advise_eps(lambda x, eps: torch.sqrt(x + eps), torch.tensor([1000.0, 2000.0])).table
    assert lonely["vanishes"].tolist() == [
        bool(torch.tensor(1000.0) + eps == 1000) for eps in lonely["eps"]
    ]
    needed = advise_eps(
        lambda x, eps: torch.sqrt(x + eps), torch.tensor([0.0, 1000.0, 2000.0])
    ).table
    assert (needed["vanishes"] == ~needed["representable"]).all()


def test_eps_is_absorbed_at_half_an_ulp_of_what_it_is_added_to() -> None:
    table = advise_eps(lambda x, eps: torch.sqrt(1000 * x + eps), torch.tensor([0.0, 1.0])).table
    thousand = torch.tensor(1000.0)
    expected = [bool(thousand + eps == thousand) for eps in table["eps"]]
    assert table["absorbed"].tolist() == expected and any(expected) and not all(expected)


def test_absorption_is_unknown_where_eps_is_added_to_nothing() -> None:
    table = advise_eps(EXAMPLES["normalize"][0], WITH_ZERO_ROW).table
    assert table["absorbed"].isna().all()


def test_floor_of_a_norm_is_kept_small_beside_the_norms_of_the_data() -> None:
    advice = advise_eps(EXAMPLES["normalize"][0], WITH_ZERO_ROW)
    norms = WITH_ZERO_ROW.norm(dim=-1)
    assert advice.recommended <= 2 * advice.tolerance * norms[norms > 0].median()


def test_table_has_no_nan_and_the_stated_columns() -> None:
    for fn, x in EXAMPLES.values():
        table = advise_eps(fn, x, torch.float16).table
        assert list(table.columns) == list(COLUMNS)
        numbers = table.select_dtypes("Float64").to_numpy(dtype=float, na_value=0.0)
        assert not pd.isna(numbers).any() and math.isfinite(abs(numbers).max())


def test_function_that_is_not_differentiable_is_judged_by_its_values() -> None:
    advice = advise_eps(lambda x, eps: 1 / (x + eps).detach(), torch.tensor([0.0, 1.0, 2.0]))
    assert math.isfinite(1 / advice.recommended)
    assert (
        advice.table["gradient_max"].isna().all()
        and advice.table["gradient_distortion"].isna().all()
    )


def test_fault_that_no_epsilon_cures_gets_none_and_the_reason() -> None:
    advice = advise_eps(lambda x, eps: torch.log(x + eps), torch.tensor([-1e30, 1.0]))
    assert advice.recommended is None
    assert "value is not finite" in advice.reason and "nanlab.safe" in advice.reason
    overflow = advise_eps(
        lambda x, eps: x * x / (x + eps), torch.tensor([0.0, 1000.0]), torch.float16
    )
    assert overflow.recommended is None and "wider dtype" in overflow.reason


def test_epsilon_that_would_drown_the_data_is_not_advised() -> None:
    x = torch.tensor([-2.0, 0.1, 0.2, 1.0])
    advice = advise_eps(lambda x, eps: torch.log(x + eps), x)
    assert advice.recommended is None and "by more than its size" in advice.reason


def test_several_tensors_come_one_by_one_or_as_one_tuple() -> None:
    a, b = WITH_ZEROS.flip(0), WITH_ZEROS
    apart = advise_eps(lambda a, b, eps: a / (b + eps), (a, b))
    together = advise_eps(lambda pair, eps: pair[0] / (pair[1] + eps), (a, b))
    named = advise_eps(lambda a, b, *, eps: a / (b + eps), [a, b])
    assert apart.recommended == together.recommended == named.recommended


def test_operands_and_random_state_are_left_as_they_were() -> None:
    def dropped_in_place(x: Tensor, eps: float) -> Tensor:
        return F.dropout(x.add_(eps), 0.5).sqrt()

    x = WITH_ZEROS.clone()
    state = torch.get_rng_state()
    advise_eps(dropped_in_place, x)
    assert torch.equal(x, WITH_ZEROS) and torch.equal(state, torch.get_rng_state())


def test_advice_works_under_no_grad_as_well() -> None:
    fn, x = EXAMPLES["sqrt"]
    with torch.no_grad():
        assert advise_eps(fn, x).recommended == advise_eps(fn, x).recommended
        assert advise_eps(fn, x).table["gradient_max"].notna().all()


def test_dtype_of_x_is_the_default_and_repr_names_value_dtype_and_reason() -> None:
    fn, x = EXAMPLES["sqrt"]
    advice = advise_eps(fn, x.half())
    assert advice.dtype == torch.float16
    assert repr(advice) == f"EpsilonAdvice({advice.recommended:.2g} in float16: {advice.reason})"
    assert "\n" not in repr(advice)


def test_tolerance_can_be_chosen() -> None:
    fn, x = EXAMPLES["sqrt"]
    assert advise_eps(fn, x, tolerance=1e-2).recommended > advise_eps(fn, x).recommended


@pytest.mark.parametrize(
    ("fn", "x", "dtype", "error", "message"),
    [
        ("sqrt", torch.ones(2), None, TypeMismatchError, "a function fn"),
        (lambda x: x, torch.ones(2), None, UsageError, "lambda x, eps"),
        (lambda x, eps: x, torch.ones(2, dtype=torch.int64), None, TypeMismatchError, "int64"),
        (
            lambda x, eps: x,
            torch.ones(2, dtype=torch.complex64),
            None,
            TypeMismatchError,
            "complex64",
        ),
        (lambda x, eps: x, [1.0, 2.0], None, TypeMismatchError, "float"),
        (lambda x, eps: x, torch.ones(2), torch.int32, TypeMismatchError, "int32"),
        (lambda x, eps: x, torch.ones(0), None, UsageError, "no elements"),
        (lambda x, eps: x, torch.tensor([1.0, math.nan]), None, UsageError, "1 of 2"),
        (
            lambda x, eps: x,
            torch.tensor([1e10]),
            torch.float16,
            UsageError,
            "range of torch.float16",
        ),
        (lambda x, eps: 1.0, torch.ones(2), None, TypeMismatchError, "return a real tensor"),
    ],
)
def test_misuse_is_refused_with_what_was_seen(
    fn: object, x: object, dtype: torch.dtype | None, error: type[NanlabError], message: str
) -> None:
    with pytest.raises(error, match=message):
        advise_eps(fn, x, dtype)


@pytest.mark.parametrize("name", EXAMPLES)
def test_plot_draws_on_the_axes_it_is_given(name: str) -> None:
    axes = Figure().subplots()
    assert advise_eps(*EXAMPLES[name]).plot(axes) is axes
    assert axes.get_xscale() == "log" and axes.lines


@pytest.mark.parametrize("fn", [lambda x, eps: 1 / (x + eps), lambda x, eps: torch.log(x + eps)])
def test_without_a_healthy_element_nothing_is_said_of_what_an_epsilon_costs(
    fn: Callable[[Tensor, float], Tensor],
) -> None:
    advice = advise_eps(fn, torch.zeros(3))
    assert advice.recommended is None
    assert advice.reason.startswith("x holds no element that is finite without an epsilon")
