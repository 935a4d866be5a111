"""Fixes of masks: constants that half precision cannot hold, and buffers that were infinite from the start."""

from __future__ import annotations

import torch
from torch import nn

import nanlab
from nanlab.rules import Finding


class Masked(nn.Module):
    """Scores hidden by a constant that is kept as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(-1e9))
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.lin(x) + hidden * self.low, -1)


def hide_one(net: nn.Module) -> None:
    net(torch.ones(2, 3).half(), torch.tensor([0.0, 1.0, 0.0]).half())[:, 0].sum().backward()


def culprit_of(trace: nanlab.Trace) -> Finding:
    assert trace.culprit is not None
    return trace.culprit


def test_a_buffer_that_hides_scores_is_not_filled_with_zeros() -> None:
    with nanlab.watch(on_fault="record") as trace:
        hide_one(Masked().half())
    finding = culprit_of(trace)
    assert finding.cause == "poisoned-buffer"
    last = [fix.code.splitlines()[-1].strip() for fix in finding.fixes if fix.verified]
    assert last == ["table.clamp_(min=-10000)   # those that are masks"]


def test_a_finite_mask_is_one_that_half_precision_holds_with_room_to_spare() -> None:
    net = Masked().half()
    with nanlab.watch(net, on_fault="record") as trace:
        hide_one(net)
    finding = culprit_of(trace)
    assert finding.cause == "zero-times-inf"
    assert any(fix.verified and "hidden * self.low.clamp(-1000, 1000)" in fix.code for fix in finding.fixes)
