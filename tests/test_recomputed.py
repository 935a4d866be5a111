"""Checkpointing and torch.func hide what a node saved: cause and fixes are those of the same
program without them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import pytest
import torch
from fixing import holds
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nanlab

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": torch.sqrt,
    "pow": lambda x: x**0.4,
    "pow of two tensors": lambda x: torch.pow(x, torch.full_like(x, 0.4)),
    "acos": torch.acos,
    "acosh": lambda x: torch.acosh(1 + x),
    "hypot": lambda x: torch.hypot(x, x),
    "rsqrt behind where": lambda x: torch.where(x > 0, torch.rsqrt(x), 0.0),
    "quotient behind where": lambda x: torch.where(x > 0, 1 / x, 0.0),
    "lgamma behind where": lambda x: torch.where(x > 0, torch.lgamma(x), 0.0),
    "xlogy": lambda x: torch.xlogy(x, x),
    "eigenvectors": lambda x: torch.linalg.eigh(x[:, :2] * 0 + torch.eye(2))[1] * x[:, :2],
    "twice, of which the second fails": lambda x: torch.acos(torch.acos(0.5 * x) * 0 + x),
}


def watched(operation: Callable[[Tensor], Tensor], how: str) -> nanlab.Finding:
    weight = nn.Parameter(torch.ones(3))

    def block(x: Tensor, factor: Tensor) -> Tensor:
        y = operation(x * factor)
        return (y * torch.linspace(1, 2, y.numel()).view(y.shape)).sum()

    with nanlab.watch(on_fault="record") as trace:
        for i in range(2):
            x = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])
            x = x * 0.2 + 0.3 if i == 0 else x
            weight.grad = None
            if how == "checkpoint":
                checkpoint(block, x, weight, use_reentrant=False).backward()
            elif how == "torch.func":
                (torch.func.grad(block, 1)(x, weight.detach()) * weight).sum().backward()
            else:
                with torch.autograd.graph.save_on_cpu() if how == "save_on_cpu" else nullcontext():
                    loss = block(x, weight)
                loss.backward()
    assert not trace.notes
    assert trace.culprit is not None
    return trace.culprit


@cache
def plainly(name: str) -> nanlab.Finding:
    return watched(OPERATIONS[name], "plain")


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("how", ["checkpoint", "save_on_cpu", "torch.func"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_hidden_derivative_has_the_cause_and_the_fixes_of_the_plain_one(
    name: str, how: str
) -> None:
    plain, hidden = plainly(name), watched(OPERATIONS[name], how)
    assert (hidden.cause, hidden.op, hidden.phase, hidden.step) == (
        plain.cause,
        plain.op,
        plain.phase,
        plain.step,
    )
    assert hidden.cause != "unknown"
    assert bool(hidden.fixes) == bool(plain.fixes)
    assert any(map(holds, hidden.fixes)) == any(map(holds, plain.fixes))
    if how != "torch.func":
        assert {f.code for f in hidden.fixes} == {f.code for f in plain.fixes}


def test_a_product_of_elements_may_be_checkpointed() -> None:
    weight = nn.Parameter(torch.ones(3))
    with nanlab.watch(on_fault="record") as trace:
        checkpoint(
            lambda x: (x * weight).prod(-1), torch.tensor([[0.5, 2.0, 3.0]]), use_reentrant=False
        ).sum().backward()
    assert trace.notes == []
    assert trace.culprit is None
    assert torch.equal(weight.grad, torch.tensor([3.0, 3.0, 3.0]))


@pytest.mark.parametrize(
    ("operation", "cause"),
    [
        (lambda x: x**0.4, "pow-fraction-at-zero"),
        (torch.asin, "inverse-function-at-edge"),
        (lambda x: torch.acosh(1 + x), "inverse-function-at-edge"),
    ],
)
def test_hooks_of_the_program_itself_hide_neither_line_nor_cause(
    operation: Callable[[Tensor], Tensor], cause: str
) -> None:
    weight = nn.Parameter(torch.ones(3))
    with nanlab.watch(on_fault="record") as trace:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.detach().numpy(), torch.from_numpy
        ):
            y = operation(torch.tensor([0.0, 0.5, 1.0]) * weight)
        y.sum().backward()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.phase) == (cause, "backward")
    assert trace.culprit.source.startswith("y = operation(") or "lambda x:" in trace.culprit.source
