"""A NaN of the forward pass that the loss leaves out, and that reaches the gradients all the
same."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import nanlab


def test_a_masked_row_that_the_loss_ignores_is_blamed_on_its_softmax() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 8), torch.randn(3, 5, 8)
    padding, target = torch.zeros(3, 5, dtype=torch.bool), torch.randint(1, 8, (3, 5))
    padding[1], target[1] = True, 0  # an empty text: all padding, and no target
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(x)
        scores = (h @ x.transpose(1, 2)).masked_fill(padding[:, None, :], float("-inf"))
        loss = F.cross_entropy(
            (scores.softmax(-1) @ h).flatten(0, 1), target.flatten(), ignore_index=0
        )
        loss.backward()
    assert loss.isfinite()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.samples) == ("softmax-all-masked", [1])
