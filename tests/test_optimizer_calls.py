"""The calls of an optimizer's step that are those of its last step: the record is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture.optimizer_calls import OptimizerCalls

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p),
    "AdamW": lambda p: torch.optim.AdamW(p, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RAdam, which takes another way in its sixth step": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 5)
        self.extra = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor, extra: bool) -> torch.Tensor:
        x = self.first(x).tanh()
        return self.second(x) + self.extra(x) if extra else self.second(x)


def train(
    make: Make, detail: Any, alike: bool, extra: set[int], spoilt: int = -1
) -> tuple[nanlab.Trace, int, list[torch.Tensor]]:
    """A watched run of 8 steps; how many of them were begun as the last one; the parameters."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())
    begun: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        if not alike:
            patch.setattr(OptimizerCalls, "begin", lambda self, optimizer: None)
        start = OptimizerCalls._start
        patch.setattr(
            OptimizerCalls, "_start", lambda self, *args: begun.append(1) or start(self, *args)
        )
        with nanlab.watch(model, on_fault="record", detail=detail, keep=8) as trace:
            for i in range(8):
                optimizer.zero_grad()
                model(torch.randn(16, 32), i in extra).square().mean().backward()
                if i == spoilt:
                    optimizer.param_groups[0]["eps"] = 0.0
                    state = optimizer.state[model.first.weight]
                    state["exp_avg_sq"][0], state["exp_avg"][0] = 0.0, 0.0
                    model.first.weight.grad[0] = 0.0  # type: ignore[index]
                optimizer.step()
    return trace, len(begun), [p.detach().clone() for p in model.parameters()]


def assert_same(a: nanlab.Trace, b: nanlab.Trace) -> None:
    for name in ("ops", "backward", "parameters", "steps"):
        frames = [
            getattr(t, name).drop(columns=["node", "seconds"], errors="ignore") for t in (a, b)
        ]
        pd.testing.assert_frame_equal(*frames)
    chunks = [[chunk.edges for chunk in t.recording.chunks] for t in (a, b)]
    assert chunks[0] == chunks[1]
    assert a.recording.scalars == b.recording.scalars
    assert a.notes == b.notes
    for step in range(8):
        assert b.replay(step=step).identical == a.replay(step=step).identical


@pytest.mark.parametrize("detail", ["full", "fault"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_record_is_that_of_a_step_whose_calls_were_worked_out(name: str, detail: str) -> None:
    (a, none, theirs), (b, some, ours) = (
        train(OPTIMIZERS[name], detail, alike, set(range(8))) for alike in (False, True)
    )
    assert none == 0 and some >= 4
    assert all(torch.equal(p, q) for p, q in zip(theirs, ours, strict=True))
    assert_same(a, b)
    assert all(b.replay(step=step).identical for step in range(8))


@pytest.mark.parametrize("detail", ["full", "fault"])
def test_parameters_that_have_no_gradient_in_some_steps(detail: str) -> None:
    (a, _, _), (b, some, _) = (
        train(OPTIMIZERS["Adam"], detail, alike, {0, 1, 5}) for alike in (False, True)
    )
    assert some
    assert_same(a, b)


@pytest.mark.parametrize("detail", ["full", "fault"])
def test_division_by_zero_in_a_step_that_began_as_the_last_one(detail: str) -> None:
    (a, _, theirs), (b, some, ours) = (
        train(OPTIMIZERS["Adam"], detail, alike, set(range(8)), spoilt=6) for alike in (False, True)
    )
    assert some >= 4
    assert a.culprit is not None and b.culprit is not None
    for name in ("cause", "title", "phase", "op", "line", "step", "symptom"):
        assert getattr(a.culprit, name) == getattr(b.culprit, name)
    assert a.culprit.step == 6 and a.culprit.phase == "optimizer"
    pd.testing.assert_frame_equal(a.culprit.evidence, b.culprit.evidence)
    assert all(torch.equal(p, q) or p.isnan().any() for p, q in zip(theirs, ours, strict=True))
    assert_same(a, b)
