"""What the stepper says of the tensors that a node keeps, held against what torch's nodes really
hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nanlab
from nanlab.analysis.graph import forward_tensors
from nanlab.views.stepper import stepper


def held(loss: torch.Tensor) -> dict[int, tuple[str, set[str]]]:
    """By sequence number: name of each node and the tensors that it holds, as its ``_saved_*``
    attributes say."""
    found: dict[int, tuple[str, set[str]]] = {}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node.name().endswith("AccumulateGrad") or node._sequence_nr() in found:
            continue
        names = [
            a
            for a in dir(node)
            if a.startswith("_saved_") and isinstance(getattr(node, a), torch.Tensor)
        ]
        found[node._sequence_nr()] = (node.name(), set(names))
        waiting.extend(following for following, _ in node.next_functions)
    return found


def convolution() -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 4)
    )
    return F.cross_entropy(net(torch.randn(3, 2, 6)), torch.tensor([0, 1, 2]))


def normalised() -> torch.Tensor:
    x = torch.linspace(1, 2, 12).reshape(3, 4).requires_grad_()
    h = F.layer_norm(
        F.layer_norm(
            x, (4,), torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
        ),
        (4,),
    )
    return torch.softmax(h, -1).log().sum()


def elementary() -> torch.Tensor:
    x = torch.linspace(1, 2, 12).reshape(3, 4).requires_grad_()
    h = torch.where(x > 1.5, x.pow(2), 0.5).clamp(max=3.0) / x.sum()
    values = torch.linalg.svd(h)[1]
    return (h.exp() * h.sqrt()).mean() + values.sum()


@pytest.mark.parametrize("made", [convolution, normalised, elementary])
def test_what_is_told_as_kept_is_what_the_nodes_of_torch_hold(
    made: Callable[[], torch.Tensor],
) -> None:
    with nanlab.watch(on_fault="record") as trace:
        loss = made()
        truth = held(loss)
        loss.backward()
    assert len(truth) > 4
    for node, (name, attributes) in truth.items():
        told = forward_tensors(trace, node, name)
        assert {t.attribute for t in told if t.kept == "yes"} == attributes, name


def test_a_factor_is_kept_only_where_its_partner_needs_a_gradient() -> None:
    x, data = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    with nanlab.watch(on_fault="record") as trace:
        y = x * data
        node, (_, truth) = y.grad_fn._sequence_nr(), next(iter(held(y).values()))
        y.sum().backward()
    told = forward_tensors(trace, node, "MulBackward0")
    assert {t.attribute for t in told if t.kept == "yes"} == truth == {"_saved_other"}
    assert [t.kept for t in told] == ["no", "yes", "no"]


def test_a_factor_of_a_number_is_not_kept() -> None:
    x = torch.ones(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        y = x * 2.0
        node, held_by_torch = y.grad_fn._sequence_nr(), y.grad_fn._saved_self
        y.sum().backward()
    assert held_by_torch is None
    assert [t.kept for t in forward_tensors(trace, node, "MulBackward0")] == ["no", "no"]


def test_what_a_custom_function_saved_is_told_where_its_backward_failed() -> None:
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return g / (2 * x.sqrt())

    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        y = Root.apply(x)
        node = y.grad_fn._sequence_nr()
        y.sum().backward()
    (saved,) = forward_tensors(trace, node, "RootBackward")
    assert (saved.name, saved.shape, saved.stats.zero, saved.stats.max) == (
        "saved_tensors[0]",
        (2,),
        1,
        4.0,
    )


def test_the_stepper_shows_the_saved_root_with_its_numbers() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.sqrt().sum().backward()
    made = stepper(trace)
    assert made.row is not None
    assert made.row["name"] == "SqrtBackward0"
    first, second = made.detail["tensors"]
    assert (first["as"], first["shape"], first["dtype"]) == ("_saved_result", "2", "float32")
    # one zero; no NaN, no inf; smallest, largest, rms
    assert first["numbers"] == ["1", "0", "0", "0", "2", "1.41"]
    assert second["as"] == "not kept"


def test_leaves_bear_the_name_of_their_parameter() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(2):
            net(torch.ones(3, 4)).sum().backward()
            net(torch.ones(3, 4)).mean().backward()
            optimizer.step()
    frame = trace.backward
    leaves = frame[frame["name"] == "AccumulateGrad"]
    for _, of_one in leaves.groupby("backward_pass"):
        assert sorted(of_one["parameter"]) == sorted(name for name, _ in net.named_parameters())
    assert set(leaves["module"]) == {"0", "1", "2"}
    assert set(frame[frame["name"] != "AccumulateGrad"]["parameter"]) == {""}


@pytest.mark.parametrize("keep", [1, 3])
def test_every_node_belongs_to_the_step_of_its_pass_and_a_folded_step_leaves_none(
    keep: int,
) -> None:
    net = nn.Linear(2, 2)
    with nanlab.watch(net, on_fault="record", keep=keep) as trace:
        for _ in range(5):
            net.zero_grad()
            net(torch.ones(1, 2)).sum().backward()
    sizes = trace.backward.groupby(["step", "backward_pass"]).size()
    assert list(sizes.index) == [(step, step) for step in range(5 - keep, 5)]
    assert sizes.nunique() == 1
