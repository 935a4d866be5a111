"""Faults inside a hand-written backward: the line there, and the line that applied the Function."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import nanlab


def line_of(function: Any, words: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if words in line)


class Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, n)
        return x / n.clamp_min(1e-12)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, n = ctx.saved_tensors
        inverse = 1 / n
        return (g - x * (x * g).sum(-1, keepdim=True) * inverse * inverse) * inverse


class Adjoint(torch.autograd.Function):
    """Computes its gradient as an adjoint method does: by a graph of its own inside backward."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(y, w)
        return torch.tanh(y @ w)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        y, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            inner = y @ w
            length = inner.pow(2).sum(-1).sqrt()
            z = torch.tanh(inner) + 0 * length[:, None]
        return torch.autograd.grad(z, (y, w), g)


class Penalty(torch.autograd.Function):
    """Differentiates twice inside backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
            energy = slope.sum(-1).sqrt().sum()
        (second,) = torch.autograd.grad(energy, x)
        return g + second


def run(function: Any) -> nanlab.Trace:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    with nanlab.watch() as trace:
        for step in range(3):
            x = torch.ones(3, 4)
            if step == 2:
                x[1] = 0
            weight.grad = None
            call(function, x, weight).sum(0)[0].backward()
    return trace


def call(function: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if function is Adjoint:
        return function.apply(x, weight)
    return function.apply(x @ weight) if function is Unit else function.apply(x * weight[0])


def test_a_bad_gradient_is_told_with_the_line_inside_backward_and_with_the_call() -> None:
    found = run(Unit).culprit
    assert found is not None
    assert (found.cause, found.op, found.step, found.phase) == (
        "custom-backward",
        "reciprocal",
        2,
        "backward",
    )
    assert (found.line, found.source) == (
        line_of(Unit.backward, "inverse = 1 / n"),
        "inverse = 1 / n",
    )
    place = f"test_functions.py:{line_of(call, 'if function is Unit')}"
    assert place in found.explanation and "function.apply(x @ weight)" in found.explanation
    assert found.fixes[0].code == "inverse = nanlab.safe.div(1, n)"


@pytest.mark.parametrize(
    ("function", "words", "op"), [(Adjoint, "length = ", "sqrt"), (Penalty, "energy = ", "sqrt")]
)
def test_a_fault_in_a_graph_made_inside_backward_is_told_by_its_operation_and_line(
    function: Any, words: str, op: str
) -> None:
    found = run(function).culprit
    assert found is not None
    assert (found.cause, found.op, found.step) == ("sqrt-at-zero", op, 2)
    assert found.line == line_of(function.backward, words)
    assert any("nanlab.safe.sqrt" in fix.code for fix in found.fixes)


@pytest.mark.parametrize("function", [Unit, Adjoint, Penalty])
def test_gradients_of_a_function_are_the_same_bits_with_and_without_a_watch(function: Any) -> None:
    def gradient() -> torch.Tensor:
        weight = (
            torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).abs().requires_grad_()
        )
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).abs()
        call(function, x, weight).sum().backward()
        assert weight.grad is not None
        return weight.grad

    bare = gradient()
    with nanlab.watch() as trace:
        watched = gradient()
    assert torch.equal(bare, watched)
    assert trace.culprit is None and not trace.notes


def test_a_double_backward_of_a_function_names_the_line_of_its_backward() -> None:
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with nanlab.watch() as trace:
        (slope,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        slope.sum().backward()
    assert trace.culprit is not None
    assert trace.culprit.line == line_of(Cube.backward, "x.sqrt()")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**1.5

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * 1.5 * x.sqrt()
