"""What is kept of an operation that is looked into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import nanlab


def test_a_birth_inside_torch_func_vjp_leaves_the_watch_going() -> None:
    x = torch.tensor([0.0, 0.5, 2.0])
    p = torch.tensor(0.3)
    with nanlab.watch(on_fault="record") as trace:
        _, pull_back = torch.func.vjp(torch.pow, x, p)
        pull_back(torch.ones(3))
        (x + 1).exp()
    assert not [note for note in trace.notes if "nanlab itself failed" in note]
    assert "exp" in set(trace.ops["op"])


def test_a_safe_power_at_zero_is_watched_to_its_end_and_is_no_fault() -> None:
    x = torch.tensor([0.0, 0.5, 2.0], requires_grad=True)
    p = torch.tensor(0.3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        nanlab.safe.pow(x, p).sum().backward()
        (x + 1).exp()
    assert not [note for note in trace.notes if "nanlab itself failed" in note]
    assert "exp" in set(trace.ops["op"]) and trace.culprit is None


class _LogOfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.log()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad / x


@pytest.mark.parametrize("function", [_LogOfItsOwn.apply, torch.log, nanlab.safe.log])
def test_what_a_checkpoint_had_saved_is_left_to_the_checkpoint(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)

    def run() -> torch.Tensor:
        x.grad = None
        loss = checkpoint(lambda t: (function(t) * t).sum(), x, use_reentrant=False)
        loss.backward()
        return x.grad

    bare = run().clone()
    with nanlab.watch(on_fault="record"):
        watched = run()
    assert torch.equal(bare.nan_to_num(7.0), watched.nan_to_num(7.0))


def test_the_most_extreme_elements_come_first() -> None:
    with nanlab.watch(on_fault="record") as trace:
        rate = torch.cat([torch.arange(89.0, 139.0), torch.ones(60)]).requires_grad_()
        torch.exp(rate).sum().backward()
    assert trace.culprit is not None
    shown = trace.culprit.evidence
    assert shown.iloc[:, 1].tolist() == [138.0 - i for i in range(len(shown))]
    assert shown.attrs["total"] == 50


def over_budget() -> nanlab.Trace:
    """A root at zero, in a program whose optimizer overwrites more than may be copied."""
    root, scale = (torch.nn.Parameter(torch.full((1000,), v)) for v in (0.0, 1.0))
    optimizer = torch.optim.SGD([root, scale], lr=0.1)
    with nanlab.watch(on_fault="record", budget=100) as trace:
        for _ in range(2):
            optimizer.zero_grad()
            ((root.sqrt() * 0).sum() + (scale * 2).sum()).backward()
            optimizer.step()
    return trace


def test_evidence_is_made_before_what_the_step_began_with_is_overwritten() -> None:
    trace = over_budget()
    assert trace.culprit is not None
    assert trace.culprit.cause == "sqrt-at-zero"
    assert trace.culprit.evidence["root"].tolist() == [0.0] * len(trace.culprit.evidence)
    assert trace.notes == []


def test_what_was_computed_from_an_overwritten_parameter_is_not_made_from_its_new_value() -> None:
    trace = over_budget()
    ops = trace.ops
    products = ops[(ops.op == "mul") & (ops.phase == "forward") & (ops["max"] > 1)]
    assert products["max"].round(3).tolist() == [2.0, 1.6]
    for position in products.position:
        with pytest.raises(nanlab.NanlabError, match="do not fit into the budget"):
            trace.tensor(position)


def test_where_a_step_cannot_be_run_again_the_operands_are_copied() -> None:
    with nanlab.watch(on_fault="record", budget=0) as trace:
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        (x.sqrt() * 0).sum().backward()
    assert trace.culprit is not None
    assert trace.culprit.cause == "sqrt-at-zero"
    assert trace.culprit.evidence["root"].tolist() == [0.0]


def test_a_step_that_gives_other_numbers_when_it_is_run_again_is_no_evidence() -> None:
    with nanlab.watch(on_fault="record") as trace:
        x = torch.ones(2) * 2.0
        x.numpy()[0] = 0.0  # behind torch's back
        x.log().sum()
    assert len(trace.recording.kept) == 0
    assert [note for note in trace.notes if note.startswith("no cause and no fixes for log")]


def test_first_fault_is_kept_whole_where_its_step_calls_the_model_twice() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 4)
    first, second = torch.randn(5, 3), torch.randn(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(6):
            a, b = (F.normalize(net(view), dim=-1) for view in (first, second))
            loss = torch.acos(1.5 * (a * b).sum(-1).abs().clamp_min(0.9)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert trace.culprit is not None
    assert trace.culprit.step == 0
    assert trace.culprit.cause == "inverse-function-domain"
    assert trace.culprit.fixes[0].verdict != "untried"
