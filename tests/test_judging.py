"""When a watch stops a program: at harm that is done, not at gradients that the program may still
skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import nanlab

Step = Callable[[], None]
SCALE = 2.0**22  # at which the first gradients overflow float16


class Setting:
    """A small classifier under float16 autocast, and its data."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        self.generator = torch.Generator().manual_seed(1)

    def loss(self) -> torch.Tensor:
        x = torch.randn(16, 8, generator=self.generator)
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        return cross_entropy(out.float(), x[:, :3].argmax(1))

    def finite(self) -> bool:
        return all(
            bool(torch.isfinite(p.grad).all())
            for p in self.model.parameters()
            if p.grad is not None
        )


def accumulation(s: Setting) -> Step:
    def step() -> None:
        s.optimizer.zero_grad()
        for _ in range(4):
            s.scaler.scale(s.loss()).backward()
        s.scaler.step(s.optimizer)
        s.scaler.update()

    return step


def two_losses(s: Setting) -> Step:
    def step() -> None:
        s.optimizer.zero_grad()
        s.scaler.scale(s.loss()).backward()
        s.scaler.scale(0.5 * s.loss()).backward()
        s.scaler.step(s.optimizer)
        s.scaler.update()

    return step


def two_optimizers(s: Setting) -> Step:
    halves = [torch.optim.SGD(layer.parameters(), 1e-2) for layer in (s.model[0], s.model[2])]

    def step() -> None:
        s.model.zero_grad()
        s.scaler.scale(s.loss()).backward()
        for half in halves:
            s.scaler.step(half)
        s.scaler.update()

    return step


def own_scale(batches: int) -> Callable[[Setting], Step]:
    def program(s: Setting) -> Step:
        scale = [SCALE]

        def step() -> None:
            s.optimizer.zero_grad()
            for _ in range(batches):
                (s.loss() * scale[0]).backward()
            if not s.finite():
                scale[0] /= 2
                return
            for p in s.model.parameters():
                p.grad /= scale[0]
            s.optimizer.step()

        return step

    return program


@pytest.mark.parametrize("mode", ["record", "stop"])
@pytest.mark.parametrize(
    "program",
    [accumulation, two_losses, two_optimizers, own_scale(1), own_scale(2)],
    ids=["accumulation", "two losses", "two optimizers", "own scale", "own scale, accumulation"],
)
def test_gradients_that_the_program_skips_itself_stop_nothing(
    program: Callable[[Setting], Step], mode: Any
) -> None:
    setting = Setting()
    step, done = program(setting), 0
    with nanlab.watch(setting.model, on_fault=mode) as trace:
        for _ in range(8):
            step()
            done += 1
    assert done == 8 == len(trace.steps)
    assert trace.culprit is None and all(f.severity != "error" for f in trace.findings)


def test_gradients_that_an_optimizer_takes_unchecked_stop_the_program_before_it_does() -> None:
    setting = Setting()
    before = [p.detach().clone() for p in setting.model.parameters()]
    with nanlab.watch(setting.model) as trace:
        for _ in range(8):
            (setting.loss() * SCALE).backward()
            setting.optimizer.step()
            setting.optimizer.zero_grad()
    assert (
        trace.culprit is not None
        and trace.culprit.cause == "loss-scale-overflow"
        and trace.culprit.step == 0
    )
    assert all(torch.equal(p, q) for p, q in zip(setting.model.parameters(), before, strict=True))


def test_gradients_that_are_written_to_parameters_by_hand_stop_the_program_at_the_next_step() -> (
    None
):
    setting, done = Setting(), 0
    with nanlab.watch(setting.model) as trace:
        for _ in range(8):
            setting.model.zero_grad()
            (setting.loss() * SCALE).backward()
            with torch.no_grad():
                for p in setting.model.parameters():
                    p -= 1e-2 * p.grad
            done += 1
    assert done == 1
    assert trace.culprit is not None and (trace.culprit.cause, trace.culprit.step) == (
        "loss-scale-overflow",
        0,
    )


def test_a_bad_value_that_is_masked_does_no_harm_where_a_product_with_its_jacobian_was_asked_for() -> (
    None
):
    """What nanlab.safe computes first, and then mends, under a transform of torch.func."""
    offset = nn.Parameter(torch.tensor([0.0, 0.5]))

    def kernel(t: torch.Tensor) -> torch.Tensor:
        y = t - offset
        return torch.where(y == 0, 1.0, nanlab.safe.div(torch.sin(y), y)).sum()

    with nanlab.watch() as trace:
        torch.func.vmap(torch.func.jacrev(kernel))(
            torch.tensor([0.0, 1.0])
        ).square().sum().backward()
    assert trace.culprit is None
    assert offset.grad is not None and bool(torch.isfinite(offset.grad).all())
