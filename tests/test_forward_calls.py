"""The forward calls of a step that are those of the last step: the record is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanlab
from nanlab.capture.forward_calls import ForwardCalls

STEPS = 9
Forward = Callable[[nn.ModuleDict, torch.Tensor, int], torch.Tensor]


def plain(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    return model["last"](model["first"](x).relu()).square().mean()


def normalised(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    return model["last"](model["norm"](model["first"](x))).square().mean()


def dropped(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    return model["last"](F.dropout(model["first"](x), 0.3)).square().mean()


def joined(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    a, b = model["first"](x).chunk(2, dim=1)
    both = torch.cat([b.sigmoid(), a.tanh()], 1).reshape(4, -1, 48).transpose(0, 1)
    return model["last"](both.contiguous()).logsumexp(-1).mean()


def in_place(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["first"](x)
    y = (2.0 * y).add_(1.0).mul_(0.5)
    y[:, 0] += 0.5
    with torch.no_grad():
        scale = y.abs().amax()
    return model["last"](y / scale).square().mean()


def annealed(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    return (model["last"](model["first"](x) * (1.0 / (1 + i))) - 0.1 * (i % 3)).square().mean()


def branching(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["first"](x)
    if i % 4 == 3:
        y = y.relu()
    else:
        y = y.relu()
    return model["last"](y if i != 6 else y.detach() + y).square().mean()


def read(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["last"](model["first"](x))
    return y.square().mean() / max(y.abs().max().item(), 1.0)


def seen_as_data(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["first"](x)
    other = y.data if i == 5 else y
    return model["last"](other + y).square().mean()


def targets(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    return F.cross_entropy(model["last"](model["first"](x)), x.abs().long().sum(1) % 5)


def late_nan(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["first"](x).abs()
    return model["last"]((y - (y if i == 7 else 0.0 * y)).sqrt()).square().mean()


def masked(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    hidden = torch.full((5,), 0.0).masked_fill(torch.arange(5) > 2, -torch.inf)
    return -(model["last"](model["first"](x)) + hidden).softmax(-1)[:, 0].log().mean()


def bad_batch(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    return model["last"](model["first"](x).exp()).square().mean()


PROGRAMS: dict[str, Forward] = {
    f.__name__: f
    for f in (
        plain,
        normalised,
        dropped,
        joined,
        in_place,
        annealed,
        branching,
        read,
        seen_as_data,
        targets,
        masked,
        late_nan,
        bad_batch,
    )
}


def train(forward: Forward, alike: bool) -> tuple[nanlab.Trace, list[bool], Any]:
    """A watched run; which of its steps were those of the last one; the parameters."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"first": nn.Linear(32, 48), "norm": nn.BatchNorm1d(48), "last": nn.Linear(48, 5)}
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = [torch.randn(16, 32) for _ in range(STEPS)]
    if forward is bad_batch:
        batches[7][3] = 1e4
    came: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        if not alike:
            patch.setattr(ForwardCalls, "begin", lambda self: None)
        ended = ForwardCalls.ended
        patch.setattr(
            ForwardCalls,
            "ended",
            lambda self: (ended(self), came.append(self.current is not None))[0],
        )
        with nanlab.watch(model, on_fault="record", detail="fault", keep=STEPS) as trace:
            for i, x in enumerate(batches):
                optimizer.zero_grad()
                forward(model, x, i).backward()
                optimizer.step()
    return trace, came, [p.detach().clone() for p in model.parameters()]


def assert_same(a: nanlab.Trace, b: nanlab.Trace) -> None:
    for name in ("ops", "backward", "parameters", "steps"):
        frames = [
            getattr(t, name).drop(columns=["node", "seconds"], errors="ignore") for t in (a, b)
        ]
        pd.testing.assert_frame_equal(*frames)
    assert [c.edges for c in a.recording.chunks] == [c.edges for c in b.recording.chunks]
    assert a.recording.scalars == b.recording.scalars
    assert a.notes == b.notes
    assert [str(f) for f in a.findings] == [str(f) for f in b.findings]
    for step in range(STEPS):
        assert b.replay(step=step).identical is True
        assert a.replay(step=step).identical is True


@pytest.mark.parametrize("name", PROGRAMS)
def test_step_that_comes_again_leaves_the_same_record(name: str) -> None:
    one, came, end = train(PROGRAMS[name], alike=True)
    other, _, same_end = train(PROGRAMS[name], alike=False)
    if name in ("plain", "normalised", "dropped", "joined", "in_place", "targets"):
        assert all(came[1:]), came
    assert_same(one, other)
    assert all(map(torch.equal, end, same_end)) or name in ("late_nan", "bad_batch")
