"""The recorded step runs again above autograd, where fixes are tried, whatever its tensors are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanlab
from nanlab.trace import Trace

torch.set_num_threads(1)


def watched(step: Callable[[nn.Linear], torch.Tensor], before: int = 0) -> Trace:
    """A step whose loss has a root at 0 after what is tried; ``before``: backward passes whose
    gradients stand when the watch begins."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    for _ in range(before):
        layer(torch.ones(2, 4)).sum().backward()
    with nanlab.watch(layer, on_fault="record") as trace:
        y = step(layer)
        gap = y - y.detach()
        (gap.pow(2).sum(-1).sqrt().sum() + y.sum()).backward()
    return trace


def einsum(layer: nn.Linear) -> torch.Tensor:
    return torch.einsum("bij,bjk->bik", layer(torch.ones(2, 3, 4)), torch.ones(2, 4, 5))


def einsum_of_parameters(layer: nn.Linear) -> torch.Tensor:
    return torch.einsum("ij,jk->ik", layer.weight, layer.weight)


def batched_einsum_of_parameters(layer: nn.Linear) -> torch.Tensor:
    return torch.einsum("bij,bjk->bik", layer.weight[None], layer.weight.view(1, 4, 4))


def tensordot(layer: nn.Linear) -> torch.Tensor:
    return torch.tensordot(layer.weight, layer(torch.ones(3, 4)), dims=([1], [1]))


def circular_padding(layer: nn.Linear) -> torch.Tensor:
    return F.pad(layer(torch.ones(2, 3, 4)), (1, 1), mode="circular")


def buffer_filled_row_by_row(layer: nn.Linear) -> torch.Tensor:
    x = layer(torch.ones(3, 4))
    found = torch.empty(3, 4)
    for i in range(3):
        found[i] = x[i] * (i + 1)
    return found


def recurrent(layer: nn.Linear) -> torch.Tensor:
    torch.manual_seed(1)
    return nn.GRU(4, 4)(layer(torch.ones(3, 2, 4)))[0]  # type: ignore[no-any-return]


def attention(layer: nn.Linear) -> torch.Tensor:
    torch.manual_seed(1)
    x = layer(torch.ones(3, 2, 4))
    return nn.MultiheadAttention(4, 2)(x, x, x)[0]  # type: ignore[no-any-return]


STEPS = [
    einsum,
    einsum_of_parameters,
    batched_einsum_of_parameters,
    tensordot,
    circular_padding,
    buffer_filled_row_by_row,
    recurrent,
    attention,
]


@pytest.mark.parametrize("step", STEPS)
def test_fixes_are_tried_after_any_kind_of_operation(
    step: Callable[[nn.Linear], torch.Tensor],
) -> None:
    culprit = watched(step).culprit
    assert culprit is not None and culprit.cause in ("sqrt-at-zero", "norm-at-zero")
    assert culprit.fixes[0].verified, culprit.fixes


@pytest.mark.parametrize("before", [1, 2])
def test_gradients_that_stood_before_the_watch_are_added_to(before: int) -> None:
    trace = watched(einsum, before)
    fix = trace.culprit.fixes[0]  # type: ignore[union-attr]
    assert fix.verified
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    for _ in range(before):
        layer(torch.ones(2, 4)).sum().backward()
    einsum(layer).sum().backward()
    replayed = trace.replay(fix).gradients
    assert torch.equal(replayed["weight"], layer.weight.grad)  # type: ignore[arg-type]
