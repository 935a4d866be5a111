"""Which expression on a line a fix rewrites: the one that the interpreter stood at, and what fails
as it does."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pytest
import torch
from fixing import holds
from torch import Tensor, nn

import nanlab
from nanlab.rules import Finding

Forward = Callable[[Tensor], Tensor]
X = torch.tensor([[0.0, 0.5], [1.0, 2.0]])
ONE = 1.0


def told(forward: Forward) -> Finding:
    weight = nn.Parameter(torch.ones(2))
    with nanlab.watch(on_fault="record") as trace:
        forward(X * weight).sum().backward()
    assert trace.culprit is not None
    return trace.culprit


def holding(forward: Forward) -> list[str]:
    fixes = [fix for fix in told(forward).fixes if holds(fix)]
    return ["".join(row.strip() for row in fix.code.split("\n")) for fix in fixes]


class Wrapped:
    def __init__(self, fn: Callable[..., Tensor]) -> None:
        self.fn = fn
        self.table = {"divide": torch.div}

    def root(self, x: Tensor) -> Tensor:
        y = self.fn(x)
        return y * 2

    def quotient(self, x: Tensor) -> Tensor:
        y = self.table["divide"](x, x.abs())
        return y * 2


def with_numbers(x: Tensor) -> Tensor:
    delta, r = 0.0, 0.5
    y = (x + delta) ** r - delta**r
    return y


def with_a_healthy_one(x: Tensor) -> Tensor:
    y = torch.log(x + ONE) + torch.log(x)
    return y


def both_fail(x: Tensor) -> Tensor:
    y = torch.sqrt(x) + torch.sqrt(2 * x)
    return y


def over_lines(x: Tensor) -> Tensor:
    y = (
        x.mul(2)  # doubled
        .abs()
        .sqrt()
    )
    return y


def scaled_by_a_number(x: Tensor) -> Tensor:
    root = torch.sqrt(x)
    part = root * ONE
    return torch.where(x > 0, part, torch.zeros_like(part))


def by_a_parameter(x: Tensor, root: Callable[[Tensor], Tensor] = torch.sqrt) -> Tensor:
    y = root(x)
    return y


def next_to_another_spelling(x: Tensor, root: Callable[[Tensor], Tensor] = torch.sqrt) -> Tensor:
    y = root(x) + X**0.5
    return y


def by_operator(x: Tensor) -> Tensor:
    y = operator.truediv(x, x.abs())
    return y


def in_place_power(x: Tensor) -> Tensor:
    y = x * 2
    y **= 0.3
    return y


def into_a_buffer(x: Tensor) -> Tensor:
    buffer = torch.empty(2, 2)
    with torch.no_grad():
        torch.log(X, out=buffer)
    return x * buffer


def by_another_name(x: Tensor) -> Tensor:
    y = torch.arccos(x + 1)
    return y


def beside_a_layer(x: Tensor) -> Tensor:
    y = torch.nn.functional.normalize(x[:1, :1], dim=-1, eps=0.0) + x / 2.0 + X / X.mean()
    return y


def each_of(x: Tensor) -> Tensor:
    for fn in (torch.abs, torch.log):
        x = fn(x)
    return x


def mapped(x: Tensor) -> Tensor:
    (y,) = map(torch.log, [x])
    return y


def reduced(x: Tensor) -> Tensor:
    y = functools.reduce(torch.div, [x, x.abs()])
    return y


def by_a_layer(x: Tensor) -> Tensor:
    similar = nn.CosineSimilarity(dim=0, eps=0.0)
    y = similar(x[:, 0] * 0, x[:, 1])
    return y


REWRITTEN: dict[str, tuple[Forward, str]] = {
    "a power of numbers is left alone": (
        with_numbers,
        "y = nanlab.safe.pow(x + delta, r) - delta**r",
    ),
    "a healthy logarithm is left alone": (
        with_a_healthy_one,
        "y = torch.log(x + ONE) + nanlab.safe.log(x)",
    ),
    "a second that fails is mended with it": (
        both_fail,
        "y = nanlab.safe.sqrt(x) + nanlab.safe.sqrt(2 * x)",
    ),
    "a chain over lines is one expression": (over_lines, "y = (nanlab.safe.sqrt(x.mul(2).abs()))"),
    "a function that is an argument": (by_a_parameter, "y = nanlab.safe.sqrt(x)"),
    "a function beside one that is spelled out": (
        next_to_another_spelling,
        "y = nanlab.safe.sqrt(x) + X**0.5",
    ),
    "a function that is an attribute": (Wrapped(torch.sqrt).root, "y = nanlab.safe.sqrt(x)"),
    "a function out of a table": (Wrapped(torch.sqrt).quotient, "y = nanlab.safe.div(x, x.abs())"),
    "an augmented power": (in_place_power, "y = nanlab.safe.pow(y, 0.3)"),
    "a function by its other name": (by_another_name, "y = nanlab.safe.acos(x + 1)"),
    "a function of the operator module": (by_operator, "y = nanlab.safe.div(x, x.abs())"),
}


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("name", REWRITTEN)
def test_the_expression_that_failed_is_rewritten(name: str) -> None:
    forward, expected = REWRITTEN[name]
    assert expected in holding(forward)


@pytest.mark.parametrize(
    ("forward", "callee"),
    [(each_of, "fn("), (mapped, "map(torch.log"), (reduced, "reduce(torch.div")],
)
def test_a_call_that_does_more_than_the_operation_is_not_replaced_by_it(
    forward: Forward, callee: str
) -> None:
    fixes = (fix for fix in told(forward).fixes if not fix.code.startswith("@nanlab.safe.limit"))
    assert all(callee in fix.code for fix in fixes)


def test_a_layer_is_not_taken_for_the_one_operation_that_failed_in_it() -> None:
    assert not any("nanlab.safe.div(x[:, 0]" in fix.code for fix in told(by_a_layer).fixes)


def test_another_operation_of_the_kind_is_not_rewritten_for_one_inside_a_function() -> None:
    finding = told(beside_a_layer)
    assert finding.op == "div"
    assert not any(
        "X.mean().clamp_min" in fix.code or "div(X, X.mean())" in fix.code for fix in finding.fixes
    )


def test_a_factor_that_is_a_number_is_no_mask() -> None:
    assert not any("ONE != 0" in fix.code for fix in told(scaled_by_a_number).fixes)


def binary_entropy(x: Tensor) -> Tensor:
    p = x / 4
    h = p * torch.log(p) + (1 - p) * (1 - p).log()
    return h


def test_the_logarithm_of_the_complement_is_rewritten_too() -> None:
    fixes = holding(binary_entropy)
    assert "h = p * nanlab.safe.log(p) + (1 - p) * nanlab.safe.log(1 - p)" in fixes
    assert not any(
        fix.startswith("h =") and fix.count("torch.log(") == 1 and "safe" in fix for fix in fixes
    )


def test_a_result_that_has_its_place_is_written_there() -> None:
    found = [fix.code for fix in told(into_a_buffer).fixes]
    assert "buffer.copy_(torch.log(X + 1e-6))" in found
