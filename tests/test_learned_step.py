"""A step that makes the calls of the last one leaves the record of one that was worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanlab
from nanlab.capture.learned_step import LearnedStep

pytestmark = pytest.mark.usefixtures("untried")
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


def kept_gradient(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["first"](x)
    if i == 5:
        y.retain_grad()
    return (model["last"](y.sigmoid()) + y[:, :5]).square().mean()


def bad_gradient(model: nn.ModuleDict, x: torch.Tensor, i: int) -> torch.Tensor:
    y = model["first"](x)
    return model["last"](((y - y.detach()) ** 2 + (0.0 if i == 6 else 1e-3)).sqrt()).mean()


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
        kept_gradient,
        bad_gradient,
    )
}


@contextmanager
def learning(alike: bool) -> Iterator[list[LearnedStep]]:
    """Watches that learn steps, which are listed, or work out each."""
    seen: list[LearnedStep] = []
    begin = LearnedStep.begin

    def noticed(self: LearnedStep) -> None:
        seen.append(self)
        begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearnedStep, "begin", noticed if alike else lambda self: None)
        yield seen


def train(
    forward: Forward, alike: bool, detail: Any = "fault"
) -> tuple[nanlab.Trace, list[bool], Any]:
    """A watched run; which of its steps were those of the last one; the parameters."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"first": nn.Linear(32, 48), "norm": nn.BatchNorm1d(48), "last": nn.Linear(48, 5)}
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = [torch.randn(16, 32) for _ in range(STEPS)]
    if forward is bad_batch:
        batches[7][3] = 1e4
    with (
        learning(alike) as seen,
        nanlab.watch(model, on_fault="record", detail=detail, keep=STEPS) as trace,
    ):
        for i, x in enumerate(batches):
            optimizer.zero_grad()
            forward(model, x, i).backward()
            optimizer.step()
    came = seen[-1].came if seen else []
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
    for step in range(len(a.recording.starts)):
        assert b.replay(step=step).identical is True
        assert a.replay(step=step).identical is True


@pytest.mark.parametrize("detail", ["full", "fault"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_step_that_comes_again_leaves_the_same_record(name: str, detail: str) -> None:
    one, came, end = train(PROGRAMS[name], alike=True, detail=detail)
    other, _, same_end = train(PROGRAMS[name], alike=False, detail=detail)
    if name in ("plain", "normalised", "dropped", "joined", "in_place", "targets"):
        assert all(came[1:]) and len(came) >= STEPS - 3, came
    assert_same(one, other)
    assert all(map(torch.equal, end, same_end)) or name in ("late_nan", "bad_batch", "bad_gradient")


# Several models.


def adversaries(alike: bool, detail: Any) -> tuple[nanlab.Trace, list[bool]]:
    """A generator and a discriminator, each with an optimizer; which steps came again."""
    torch.manual_seed(0)
    generator, judge = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
    one, two = (torch.optim.Adam(m.parameters(), 1e-3) for m in (generator, judge))
    real = [torch.randn(32, 8) for _ in range(STEPS)]
    with (
        learning(alike) as seen,
        nanlab.watch(on_fault="record", detail=detail, keep=STEPS) as trace,
    ):
        for i in range(STEPS):
            one.zero_grad()
            fake = generator(torch.randn(32, 6))
            F.softplus(-judge(fake)).mean().backward()
            nn.utils.clip_grad_norm_(generator.parameters(), 0.1)
            one.step()
            two.zero_grad()
            (F.softplus(-judge(real[i])) + F.softplus(judge(fake.detach()))).mean().backward()
            two.step()
    return trace, seen[-1].came if seen else []


@pytest.mark.parametrize("detail", ["full", "fault"])
def test_step_of_two_models_comes_again(detail: str) -> None:
    (a, _), (b, came) = (adversaries(alike, detail) for alike in (False, True))
    assert sum(came) >= 3
    assert_same(a, b)


# Optimizers.

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p),
    "AdamW": lambda p: torch.optim.AdamW(p, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RAdam, which takes another way in its sixth step": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
}


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 5)
        self.extra = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor, extra: bool) -> torch.Tensor:
        x = self.first(x).tanh()
        return self.second(x) + self.extra(x) if extra else self.second(x)


def optimise(
    make: Make, detail: Any, alike: bool, extra: set[int], spoilt: int = -1
) -> tuple[nanlab.Trace, int, list[torch.Tensor]]:
    """A watched run of 8 steps; how many of them were those of the last one; the parameters."""
    torch.manual_seed(0)
    model = _Net()
    optimizer = make(model.parameters())
    with (
        learning(alike) as seen,
        nanlab.watch(model, on_fault="record", detail=detail, keep=8) as trace,
    ):
        for i in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 32), i in extra).square().mean().backward()
            if i == spoilt:
                optimizer.param_groups[0]["eps"] = 0.0
                state = optimizer.state[model.first.weight]
                state["exp_avg_sq"][0], state["exp_avg"][0] = 0.0, 0.0
                model.first.weight.grad[0] = 0.0  # type: ignore[index]
            optimizer.step()
    came = sum(seen[-1].came) if seen else 0
    return trace, came, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("detail", ["full", "fault"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_record_is_that_of_a_step_whose_calls_were_worked_out(name: str, detail: str) -> None:
    (a, none, theirs), (b, some, ours) = (
        optimise(OPTIMIZERS[name], detail, alike, set(range(8))) for alike in (False, True)
    )
    assert none == 0 and some >= 3
    assert all(torch.equal(p, q) for p, q in zip(theirs, ours, strict=True))
    assert_same(a, b)
    assert all(b.replay(step=step).identical for step in range(8))


@pytest.mark.parametrize("detail", ["full", "fault"])
def test_parameters_that_have_no_gradient_in_some_steps(detail: str) -> None:
    (a, _, _), (b, some, _) = (
        optimise(OPTIMIZERS["Adam"], detail, alike, {0, 1, 5}) for alike in (False, True)
    )
    assert some
    assert_same(a, b)


@pytest.mark.parametrize("detail", ["full", "fault"])
def test_division_by_zero_in_a_step_that_began_as_the_last_one(detail: str) -> None:
    (a, _, theirs), (b, some, ours) = (
        optimise(OPTIMIZERS["Adam"], detail, alike, set(range(8)), spoilt=6)
        for alike in (False, True)
    )
    assert some >= 3
    assert a.culprit is not None and b.culprit is not None
    for name in ("cause", "title", "phase", "op", "line", "step", "symptom"):
        assert getattr(a.culprit, name) == getattr(b.culprit, name)
    assert a.culprit.step == 6 and a.culprit.phase == "optimizer"
    pd.testing.assert_frame_equal(a.culprit.evidence, b.culprit.evidence)
    assert all(torch.equal(p, q) or p.isnan().any() for p, q in zip(theirs, ours, strict=True))
    assert_same(a, b)
