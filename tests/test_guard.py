"""A guarded loop stops before a bad gradient reaches the weights, and its replay is the step that
failed, bit for bit."""

from __future__ import annotations

import io
import itertools
import linecache
import os
import random
import signal
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture import FaultFound
from nanlab.guards.window import Now
from nanlab.rules import remedies

LAST = 25  # number of the turn in which the fault is made
HOOKS = sys.modules["torch.optim.optimizer"]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)
    )


def batches(count: int = 40) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 8, generator=generator) for _ in range(count)]


def length(out: torch.Tensor, fails: bool) -> torch.Tensor:
    """A loss whose gradient is infinite where a row is zero."""
    rows = out * 0 if fails else out
    return rows.pow(2).sum(1).sqrt().mean()  # FAULT


FAULT = next(
    i
    for i, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    if line.endswith("# FAULT")
)


pytestmark = pytest.mark.usefixtures("untried")


class Setup:
    """The model and optimizer of one run, and the weights with which the last step began."""

    def __init__(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self.model, self.optimizers = model, optimizers
        self.before: list[torch.Tensor] = []

    def step_begins(self) -> None:
        self.before = [p.detach().clone() for p in self.model.parameters()]


def run(program: Callable[[], Any]) -> nanlab.Trace:
    """The trace of the replay."""
    nanlab.last = None
    with pytest.raises(FaultFound):
        program()
    assert nanlab.last is not None
    return nanlab.last


def an_ordinary_loop(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        check.step_begins()
        opt.zero_grad()
        length(model(x), i == LAST).backward()
        opt.step()


def a_loop_at_whose_end_gradients_are_cleared(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    i = 0
    for x in nanlab.guard(batches(), model, opt):
        check.step_begins()
        length(model(x), i == LAST).backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
        i += 1


def recurrent_state(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    h = torch.zeros(4)
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        check.step_begins()
        opt.zero_grad()
        out = model(x) + 0.1 * h
        h = out.mean(0).detach()
        length(out, i == LAST).backward()
        opt.step()


def augmentation_by_numpy_and_python(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    log = []
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        check.step_begins()
        noise = torch.from_numpy(np.random.randn(16, 8)).float()  # noqa: NPY002  # as many programs do
        opt.zero_grad()
        loss = length(model(x + random.random() * noise), i == LAST)
        loss.backward()
        opt.step()
        log.append(loss.item())


def generators_of_its_own(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    drawn, noisy = torch.Generator().manual_seed(3), np.random.default_rng(4)
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        check.step_begins()
        opt.zero_grad()
        out = model(x + torch.randn(16, 8, generator=drawn)) + float(noisy.normal())
        length(out, i == LAST).backward()
        opt.step()


def a_method_that_keeps_state(check: Setup) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.seen, self.average = 0, torch.zeros(4)

        def train_step(self, x: torch.Tensor) -> None:
            check.optimizers[0].zero_grad()
            out = check.model(x) + self.average
            self.average = 0.9 * self.average + 0.1 * out.mean(0).detach()
            self.seen += 1
            length(out, self.seen == LAST + 1).backward()
            check.optimizers[0].step()

    trainer = Trainer()
    for x in nanlab.guard(batches(), check.model, check.optimizers[0]):
        check.step_begins()
        trainer.train_step(x)


def a_momentum_encoder_and_a_bank(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    key, bank = net(), torch.zeros(32, 4)
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        check.step_begins()
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            bank[i * 16 % 32 : i * 16 % 32 + 16] = key(x)
        opt.zero_grad()
        out = model(x)
        (length(out, i == LAST) + (out @ bank.T).square().mean()).backward()
        opt.step()


def a_loop_that_filters_and_goes_on(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    for i, x in enumerate(nanlab.guard(batches(50), model, opt)):
        if i % 5 == 4:
            continue
        check.step_begins()
        opt.zero_grad()
        length(model(x), i == 31).backward()
        opt.step()


def a_second_source_beside_it(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    noises = (0.1 * x for x in batches())
    for i, (x, noise) in enumerate(zip(nanlab.guard(batches(), model, opt), noises, strict=False)):
        check.step_begins()
        x = x.clone()  # as `x.to(device)` does
        opt.zero_grad()
        length(model(x + noise), i == LAST).backward()
        opt.step()


def a_function_of_its_own_around_it(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    for i, x in ((i, 2 * x) for i, x in enumerate(nanlab.guard(batches(), model, opt))):
        check.step_begins()
        opt.zero_grad()
        length(model(x), i == LAST).backward()
        opt.step()


def entries_taken_out_of_the_batch(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    loader = [{"x": x, "i": i} for i, x in enumerate(batches())]
    for batch in nanlab.guard(loader, model, opt):
        check.step_begins()
        i = batch.pop("i")
        opt.zero_grad()
        length(model(batch.pop("x")), i == LAST).backward()
        opt.step()


def gradients_that_are_never_cleared(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        check.step_begins()
        length(model(x), i == LAST).backward()
        opt.step()


def two_epochs(check: Setup) -> None:
    model, opt = check.model, check.optimizers[0]
    loader = nanlab.guard(batches(20), model, opt)
    for epoch in range(3):
        for i, x in enumerate(loader):
            check.step_begins()
            opt.zero_grad()
            length(model(x), epoch == 1 and i == LAST - 20).backward()
            opt.step()


ONE_A_TURN = [
    an_ordinary_loop,
    a_loop_at_whose_end_gradients_are_cleared,
    recurrent_state,
    augmentation_by_numpy_and_python,
    generators_of_its_own,
    a_method_that_keeps_state,
    a_momentum_encoder_and_a_bank,
    a_loop_that_filters_and_goes_on,
    a_second_source_beside_it,
    a_function_of_its_own_around_it,
    entries_taken_out_of_the_batch,
    gradients_that_are_never_cleared,
    two_epochs,
]


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("loop", ONE_A_TURN, ids=lambda f: f.__name__)
def test_the_replay_is_the_step_and_the_weights_are_those_it_began_with(
    loop: Callable[[Setup], None],
) -> None:
    model = net()
    check = Setup(model, torch.optim.Adam(model.parameters()))
    torch.manual_seed(2)
    trace = run(lambda: loop(check))
    assert trace.guarded == nanlab.trace.history.Guarded(LAST, True)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line, trace.culprit.step) == (
        "sqrt-at-zero",
        FAULT,
        LAST,
    )
    assert all(torch.equal(a, b) for a, b in zip(check.before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not HOOKS._global_optimizer_pre_hooks and not HOOKS._global_optimizer_post_hooks


def test_the_failing_step_of_a_long_run_is_replayed_and_cured_under_its_number_in_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remedies, "WORK", 10**9)
    trace = run(
        lambda: an_ordinary_loop(Setup(model := net(), torch.optim.SGD(model.parameters())))
    )
    assert trace.culprit is not None and trace.culprit.step == LAST
    assert trace.replay().identical and trace.replay(step=LAST).identical
    assert trace.replay().step == LAST
    assert trace.cure is not None and trace.cure.verified


class Centred(nn.Module):
    """Subtracts a running mean, which each call binds anew."""

    center: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(8))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.center = 0.9 * self.center + 0.1 * x.detach().mean(0)
        return x - self.center


def spoilt(model: nn.Module) -> tuple[nanlab.Trace, dict[str, bool]]:
    """The trace of a guarded run whose step LAST has NaN in its data, and which entries of the
    model's state are then as that step found them."""
    opt, before = torch.optim.SGD(model.parameters(), 0.1), dict[str, torch.Tensor]()

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            before.update({k: v.clone() for k, v in model.state_dict().items()})
            loss = model(x / (i != LAST)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    trace = run(loop)
    return trace, {k: torch.equal(v, before[k]) for k, v in model.state_dict().items()}


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), Centred()], ids=["BatchNorm", "bound anew"])
def test_buffers_that_the_failing_step_spoilt_are_those_it_began_with(layer: nn.Module) -> None:
    trace, kept = spoilt(nn.Sequential(layer, nn.Linear(8, 1)))
    assert trace.guarded is not None and trace.guarded.identical
    assert all(kept.values()) and not any("NaN is left" in note for note in trace.notes)


def test_a_buffer_of_which_guard_kept_no_copy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nanlab.guards.engine.Guard, "_chosen", lambda *_: (None, None))
    trace, kept = spoilt(nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 1)))
    assert not kept["0.running_mean"] and kept["1.weight"]
    assert any("model's `0.running_mean`, `0.running_var`: guard kept no" in n for n in trace.notes)


@pytest.mark.parametrize("both", [False, True], ids=["the critic", "both in turn"])
def test_networks_that_are_frozen_in_turn_are_replayed_from_how_the_step_found_them(
    both: bool,
) -> None:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
    critic = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    by_maker, by_critic = (torch.optim.Adam(m.parameters()) for m in (maker, critic))

    def learn(net: nn.Module, on: bool) -> None:
        net.requires_grad_(on).train(on)

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), {"g": maker, "d": critic})):
            if both:
                learn(maker, False)
            made = maker(torch.randn(len(x), 4))
            loss = nn.functional.softplus(critic(made.detach()) - critic(x)).mean()
            by_critic.zero_grad()
            loss.backward()
            by_critic.step()
            learn(critic, False)
            learn(maker, True)
            by_maker.zero_grad()
            length(critic(maker(torch.randn(len(x), 4))), i == LAST).backward()
            by_maker.step()
            learn(critic, True)

    trace = run(loop)
    assert trace.guarded == nanlab.trace.history.Guarded(LAST, True)
    assert trace.culprit is not None and trace.culprit.line == FAULT
    assert not any(p.requires_grad for p in critic.parameters()) and not critic.training
    assert all(bool(v.isfinite().all()) for v in maker.state_dict().values())


def test_updates_that_no_optimizer_makes_are_looked_at_by_the_loss_of_the_turn() -> None:
    model = net()
    before: list[torch.Tensor] = []

    def loop() -> None:
        nonlocal before
        for i, x in enumerate(nanlab.guard(batches(), model)):
            before = [p.detach().clone() for p in model.parameters()]
            loss = (model(x) / (i != LAST)).square().mean()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad

    kept: list[list[torch.Tensor]] = []
    trace = run(lambda: (loop(), kept.append(before)))
    assert trace.guarded == nanlab.trace.history.Guarded(LAST, True)
    assert trace.culprit is not None and trace.culprit.cause == "div-by-zero"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_gradient_that_the_body_spoils_after_backward_is_told_by_the_line_that_did() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    tokens = [0 if i == LAST else 16 for i in range(40)]

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            opt.zero_grad()
            model(x).square().sum().backward()
            for p in model.parameters():
                p.grad.div_(tokens[i])
            opt.step()

    trace = run(loop)
    assert trace.guarded == nanlab.trace.history.Guarded(LAST, True)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.source) == ("div-by-zero", "p.grad.div_(tokens[i])")


def test_a_variable_that_comes_from_beside_guard_and_is_bound_anew_is_named() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def loop() -> None:
        for x, i in zip(nanlab.guard(batches(), model, opt), itertools.count(), strict=False):
            fails = i == LAST
            i = None
            opt.zero_grad()
            length(model(x), fails).backward()
            opt.step()

    trace = run(loop)
    assert trace.guarded is not None and "loop variable `i`" in trace.guarded.reason


def test_accumulated_gradients_are_replayed_from_the_first_of_their_batches() -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            (length(model(x), i == 25) / 4).backward()
            if i % 4 == 3:
                opt.step()
                opt.zero_grad()

    trace = run(loop)
    assert trace.guarded is not None and trace.guarded.identical
    assert trace.culprit is not None and (trace.culprit.line, trace.culprit.step) == (
        FAULT,
        25 // 4,
    )
    assert len(trace.steps) == 1  # with four backward passes, the bad one the second
    assert len({*trace.backward["backward_pass"]}) == 4


@pytest.mark.parametrize("critics", [1, 3])
def test_optimizers_that_stepped_before_in_the_turn_step_again_from_where_they_were(
    critics: int,
) -> None:
    generator, critic = net(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    both = nn.ModuleList([generator, critic])
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.Adam(generator.parameters())

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), both, (second, first))):
            for _ in range(critics):
                first.zero_grad()
                critic(generator(x).detach()).square().mean().backward()
                first.step()
            second.zero_grad()
            out = generator(x)
            (length(out, i == LAST) + critic(out).mean()).backward()
            second.step()

    trace = run(loop)
    assert trace.guarded is not None and (trace.guarded.step, trace.guarded.identical) == (
        LAST,
        True,
    )
    assert trace.culprit is not None and (trace.culprit.line, trace.culprit.step) == (FAULT, LAST)
    assert all(bool(p.isfinite().all()) for p in both.parameters())


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize(
    "inside", [True, False], ids=["closure made in the loop", "closure made before the loop"]
)
def test_a_closure_that_fails_leaves_lbfgs_where_its_step_began(call: int, inside: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    check = Setup(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4))
    opt, calls, x, i = check.optimizers[0], 0, torch.empty(0), 0

    def made_before() -> torch.Tensor:
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = length(model(x), i == LAST and calls == call)
        loss.backward()
        return loss

    def loop() -> None:
        nonlocal calls, x, i
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):  # noqa: B007
            calls = 0
            check.step_begins()

            def made_in_the_loop() -> torch.Tensor:
                return made_before()

            opt.step(made_in_the_loop if inside else made_before)

    trace = run(loop)
    assert calls == call
    assert trace.guarded is not None and (trace.guarded.step, trace.guarded.identical) == (
        LAST,
        True,
    )
    assert trace.culprit is not None and trace.culprit.line == FAULT
    assert all(torch.equal(a, b) for a, b in zip(check.before, model.parameters(), strict=True))


@pytest.mark.parametrize("call", [1, 3])
def test_a_watch_that_stops_in_a_closure_leaves_lbfgs_where_its_step_began(call: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    before, calls = [], 0
    with nanlab.watch(model) as trace:
        for i, x in enumerate(batches(6)):
            before, calls = [p.detach().clone() for p in model.parameters()], 0

            def closure(i: int = i, x: torch.Tensor = x) -> torch.Tensor:
                nonlocal calls
                calls += 1
                opt.zero_grad()
                loss = length(model(x), i == 4 and calls == call)
                loss.backward()
                return loss

            opt.step(closure)
    assert trace.culprit is not None and (trace.culprit.line, trace.culprit.step) == (FAULT, 4)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def scaled(
    fails: Callable[[int], bool],
    penalty: Callable[[torch.Tensor], torch.Tensor],
    turns: int = 40,
    every: int = 1,
    losses: list[float] | None = None,
) -> nn.Module:
    """every: batches in a step. losses: where each is put; penalty: makes those that fail."""
    model = net()
    opt = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    kept = [] if losses is None else losses
    for i, x in enumerate(nanlab.guard(batches(turns), model, opt)):
        loss = length(model(x), False)
        kept.append(loss.item())
        if fails(i):
            loss = penalty(length(model(x), penalty is of_zero))
        scaler.scale(loss).backward()
        if i % every == every - 1:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    return model


def of_zero(loss: torch.Tensor) -> torch.Tensor:
    """Stands for a loss of rows of zero."""
    return loss


def overflows(loss: torch.Tensor) -> torch.Tensor:
    """A loss whose gradients exceed float16 at the loss scale with which the runs begin."""
    return (loss.half() * 100).float()


def test_steps_that_a_loss_scaler_skips_for_an_overflow_are_no_fault() -> None:
    torch.manual_seed(1)
    guarded: list[float] = []
    told: list[float] = []
    nanlab.last = None
    scaled(lambda i: i % 7 == 3, penalty=overflows, losses=guarded)
    assert nanlab.last is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nanlab, "guard", lambda loader, *_: loader)
        torch.manual_seed(1)
        scaled(lambda i: i % 7 == 3, penalty=overflows, losses=told)
    assert guarded == told


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("penalty", "op"),
    [
        (lambda loss: loss + (loss * 0).log(), "log"),
        (lambda loss: loss + (loss * 0).sqrt(), "sqrt"),
        (of_zero, "sqrt"),
    ],
)
def test_a_skipped_step_that_no_loss_scale_would_make_finite_is_a_fault(
    penalty: Callable[[torch.Tensor], torch.Tensor], op: str, every: int
) -> None:
    trace = run(lambda: scaled(lambda i: i == LAST, penalty=penalty, every=every))
    assert trace.guarded is not None
    assert (trace.guarded.step, trace.guarded.identical) == (LAST // every, True)
    assert trace.culprit is not None and trace.culprit.op == op
    assert trace.culprit.step == LAST // every


def test_a_step_that_guard_stops_before_the_scaler_lowers_its_scale_is_no_calibration() -> None:
    trace = run(lambda: scaled(lambda i: i == LAST, of_zero))
    assert [f.cause for f in trace.findings] == ["sqrt-at-zero"]


def test_a_note_on_the_operation_of_an_error_leaves_the_fixes_to_it() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with nanlab.watch(model, on_fault="record") as trace:
        for i, x in enumerate(batches(4)):
            opt.zero_grad()
            scaler.scale(length(model(x), i == 2)).backward()
            scaler.step(opt)
            scaler.update()
    error, note = trace.findings
    assert (note.severity, note.line, note.op) == ("note", error.line, error.op)
    assert error.fixes and not note.fixes and "1,024 → 512" in note.title


def test_a_skipped_step_that_cannot_run_twice_unnoticed_is_left_alone() -> None:
    lines = io.StringIO()
    model = net()
    opt = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        opt.zero_grad()
        loss = length(model(x), i == LAST)
        lines.write(f"{i}\n")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    assert lines.getvalue().split() == [str(i) for i in range(40)]


def test_a_loss_scale_that_collapses_is_a_fault_of_the_first_step_it_skipped() -> None:
    trace = run(lambda: scaled(lambda i: i >= LAST, penalty=of_zero))
    assert trace.guarded is not None and (trace.guarded.step, trace.guarded.identical) == (
        LAST,
        True,
    )
    assert trace.culprit is not None and (trace.culprit.line, trace.culprit.step) == (FAULT, LAST)


def test_a_bad_loss_with_finite_gradients_stops_the_run() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            opt.zero_grad()
            penalty = torch.zeros(()).log() if i == LAST else torch.zeros(())
            (model(x).square().mean() + penalty).backward()
            opt.step()

    trace = run(loop)
    assert trace.guarded is not None and (trace.guarded.step, trace.guarded.identical) == (
        LAST,
        True,
    )
    assert trace.culprit is not None and trace.culprit.op == "log"


@pytest.mark.parametrize("every", [1, 7])
def test_with_a_snapshot_a_fault_inside_the_optimizer_is_replayed_and_its_weights_are_kept(
    every: int,
) -> None:
    model = net()
    check = Setup(model, torch.optim.SGD(model.parameters(), 0.1))
    opt = check.optimizers[0]

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt, snapshot=every)):
            check.step_begins()
            if i == LAST:
                opt.param_groups[0]["lr"] = float("inf")
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()

    trace = run(loop)
    assert trace.guarded is not None and (trace.guarded.step, trace.guarded.identical) == (
        LAST,
        True,
    )
    assert trace.culprit is not None and (trace.culprit.cause, trace.culprit.step) == (
        "learning-rate",
        LAST,
    )
    assert all(torch.equal(a, b) for a, b in zip(check.before, model.parameters(), strict=True))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_a_rate_that_is_no_number_stops_the_run_with_the_weights_as_they_were(kind: Any) -> None:
    model = net()
    opt = kind(model.parameters(), lr=0.01)
    made = Setup(model, opt)

    def program() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            if i == LAST:
                opt.param_groups[0]["lr"] = float("nan")
            made.step_begins()

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                opt.zero_grad()
                loss: torch.Tensor = model(x).square().mean()
                loss.backward()
                return loss

            if kind is torch.optim.LBFGS:
                opt.step(closure)
            else:
                closure()
                opt.step()

    trace = run(program)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("learning-rate", LAST)
    assert all(map(torch.equal, made.before, (p.detach() for p in model.parameters())))


def test_a_body_that_takes_from_an_iterator_cannot_be_replayed_and_says_so() -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())
    stream = (x * (i != LAST) for i, x in enumerate(batches()))

    def loop() -> None:
        for _ in nanlab.guard(range(40), model, opt):
            opt.zero_grad()
            length(next(stream) @ model[0].weight.T, False).backward()
            opt.step()

    trace = run(loop)
    guarded = trace.guarded
    assert guarded is not None and (guarded.step, guarded.identical) == (LAST, False)
    assert "`next(stream)`" in guarded.reason
    told = repr(trace.report())
    assert "could not be replayed" in told and "--detail fault" in told and "No harmful" not in told
    assert ">healthy<" not in trace.report()._repr_html_()


def test_a_generator_around_the_loop_says_that_its_body_yields() -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def losses() -> Iterator[float]:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            opt.zero_grad()
            loss = length(model(x), i == LAST)
            loss.backward()
            opt.step()
            yield loss.item()

    trace = run(lambda: list(losses()))
    assert trace.guarded is not None and not trace.guarded.identical
    assert "yields" in trace.guarded.reason


def test_what_the_replay_prints_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            print("turn", i)
            opt.zero_grad()
            length(model(x), i == LAST).backward()
            opt.step()

    run(loop)
    assert capsys.readouterr().out.splitlines() == [f"turn {i}" for i in range(LAST + 1)]


def trained(loader: Any, model: nn.Module, opt: torch.optim.Optimizer) -> None:
    for x in loader:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()


def test_a_guarded_run_has_the_bits_of_a_bare_one() -> None:
    results = []
    for guarded in (False, True):
        model = net()
        opt = torch.optim.Adam(model.parameters())
        trained(nanlab.guard(batches(), model, opt) if guarded else batches(), model, opt)
        results.append([*model.state_dict().values(), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("at", range(6))
def test_a_run_that_is_interrupted_anywhere_leaves_hooks_and_names_as_they_were(at: int) -> None:
    def interrupt(place: int) -> None:
        if place == at:
            raise Interrupted

    def loader() -> Iterator[torch.Tensor]:
        for i, x in enumerate(batches(5)):
            if i == 3:
                interrupt(0)
            yield x

    class Late(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            interrupt(4)
            return super().step(closure)

    model = net()
    opt = Late(model.parameters(), 0.1)
    before = (torch.autograd.backward, torch.amp.GradScaler.scale, torch.amp.GradScaler.step)

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(loader(), model, opt)):
            interrupt(1)
            opt.zero_grad()
            loss = length(model(x), i == 4)
            interrupt(2)
            loss.backward()
            interrupt(3)
            opt.step()

    with pytest.raises((Interrupted, FaultFound)):
        loop()
    assert before == (
        torch.autograd.backward,
        torch.amp.GradScaler.scale,
        torch.amp.GradScaler.step,
    )
    assert not HOOKS._global_optimizer_pre_hooks and not HOOKS._global_optimizer_post_hooks
    assert all(bool(p.isfinite().all()) for p in model.parameters())


Place = tuple[str, int]  # a function of nanlab's guard, and a line of it


def interrupted(at: int) -> tuple[list[Place], nn.Module, dict[str, Any]]:
    """Run a guarded program that has a fault, and interrupt it at the line of nanlab's guard that
    is run as number ``at``: those that were run, the model, and the variables of the program."""
    model = net()
    run: list[Place] = []
    names: dict[str, Any] = {
        "model": model, "opt": torch.optim.SGD(model.parameters(), 0.1), "length": length,
        "loader": nanlab.guard(batches(5), model), "__name__": "program",
    }  # fmt: skip
    code = compile(PROGRAM, "program.py", "exec")
    linecache.cache["program.py"] = (len(PROGRAM), None, PROGRAM.splitlines(True), "program.py")

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if f"{os.sep}guards{os.sep}" not in frame.f_code.co_filename:
            return None
        # Python looks for interrupts after calls, never at a `try:` by itself
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line.strip() != "try:":
            run.append((frame.f_code.co_name, frame.f_lineno))
            if len(run) == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    # Interrupted by a trace function at the end of a handler, Python keeps the exception as the one
    # that is handled; in a generator it goes with that.
    def inside() -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            exec(code, names)
        except (KeyboardInterrupt, FaultFound):
            pass
        finally:
            sys.settrace(before)
        yield

    next(inside())
    return run, model, names


PROGRAM = """
total = 0
for i, x in enumerate(loader):
    total = total + 1
    opt.zero_grad()
    loss = length(model(x), i == 3)
    loss.backward()
    opt.step()
"""


PUTTING_BACK = (
    "__call__ __iter__ _bind _repeat_in_module _return _run_again _undo _unhook end put silenced stop"
).split()


# where the loop ends by an exception, Python reports one that comes while its iterator is closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_line_of_guard_leaves_weights_hooks_and_names_as_a_bare_run_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nanlab.guards.outcome.announce", lambda trace, shown: None)
    bare, course = net(), []
    opt = torch.optim.SGD(bare.parameters(), 0.1)
    for x in [None, *batches(5)[:3]]:  # weights after each step
        if x is not None:
            opt.zero_grad()
            length(bare(x), False).backward()
            opt.step()
        course.append([p.detach().clone() for p in bare.parameters()])
    originals = (torch.autograd.backward, torch.amp.GradScaler.scale, torch.amp.GradScaler.step)
    run, _, _ = interrupted(0)
    last = {place: number for number, place in enumerate(run, 1)}  # each place, as it runs last
    points = [number for (name, _), number in last.items() if name in PUTTING_BACK]
    assert len(points) > 40
    for at in [*points, *random.Random(7).sample(range(1, len(run)), 20)]:
        torch.manual_seed(0)
        ran, model, names = interrupted(at)
        told = f"interrupted in {ran[-1]}, as line {at} of {len(run)}"
        weights = list(model.parameters())
        assert any(all(map(torch.equal, weights, state)) for state in course), told
        assert originals == (
            torch.autograd.backward,
            torch.amp.GradScaler.scale,
            torch.amp.GradScaler.step,
        ), told
        assert not HOOKS._global_optimizer_pre_hooks, told
        assert not HOOKS._global_optimizer_post_hooks, told
        assert not [n for n in names if "nanlab" in n], told
        assert names.get("total", 0) <= 4, told


def test_an_interrupt_in_the_replay_leaves_the_state_in_which_the_run_was_stopped() -> None:
    model = net()
    check = Setup(model, torch.optim.Adam(model.parameters()))
    opt, turns = check.optimizers[0], itertools.count()
    buffers: list[torch.Tensor] = []

    def loop() -> None:
        nonlocal buffers
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            if next(turns) > LAST:
                raise KeyboardInterrupt  # the second time round
            check.step_begins()
            opt.zero_grad()
            loss = length(model(x), i == LAST)
            buffers = [b.clone() for b in model.buffers()]
            loss.backward()
            opt.step()

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert all(torch.equal(a, b) for a, b in zip(check.before, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))
    assert not HOOKS._global_optimizer_pre_hooks


def test_nothing_that_a_healthy_turn_made_is_kept() -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())
    old: list[weakref.ref[torch.Tensor]] = []
    for x in nanlab.guard((torch.randn(16, 8) for _ in range(12)), model, opt):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        old.append(weakref.ref(x))
        assert sum(r() is not None for r in old) <= 2


def test_a_guard_stands_for_its_loader() -> None:
    loader = torch.utils.data.DataLoader(batches(10), batch_size=2)
    guarded = nanlab.guard(loader, net())
    assert len(guarded) == 5 and guarded.batch_size == 2 and isinstance(guarded.dataset, list)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nanlab.guard(batches(), "model"),  # type: ignore[arg-type]
        lambda: nanlab.guard(3),  # type: ignore[arg-type]
        lambda: nanlab.guard(batches(), net(), [3]),  # type: ignore[list-item]
        lambda: nanlab.guard(batches(), net(), snapshot=0),
    ],
)
def test_a_wrong_argument_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(nanlab.NanlabError):
        make()


def test_a_guard_entered_as_a_block_is_told_to_go_around_a_loop() -> None:
    told = pytest.raises(nanlab.NanlabError, match=r"for batch in nanlab\.guard\(")
    with told, nanlab.guard(batches(), net()):
        pass


def test_files_are_written_where_they_are_asked_for(tmp_path: Any) -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt, save=tmp_path / "out")):
            opt.zero_grad()
            length(model(x), i == LAST).backward()
            opt.step()

    run(loop)
    assert "infinite" in (tmp_path / "out" / "nanlab.txt").read_text()
    assert "<html" in (tmp_path / "out" / "nanlab.html").read_text()


def test_state_is_reached_through_functions_closures_and_containers() -> None:
    from nanlab.capture.state import Reached

    drawn, bank = torch.Generator(), {"h": torch.zeros(2)}

    def inner() -> Any:
        return drawn, bank

    reached = Reached([types.SimpleNamespace(call=inner)])
    assert reached.generators == [drawn]
    assert any(holder is bank for holder in reached.holders)


def test_a_failure_inside_the_guard_leaves_the_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nanlab.capture.state import Reached

    results = []
    for breaks in (False, True):
        model = net()
        opt = torch.optim.Adam(model.parameters())
        if breaks:
            monkeypatch.setattr(Reached, "take", lambda self: 1 / 0)
            with pytest.warns(RuntimeWarning, match="the guard is off"):
                trained(nanlab.guard(batches(5), model, opt), model, opt)
        else:
            trained(batches(5), model, opt)
        results.append([*model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_tensor_that_the_body_changes_is_found_though_it_has_another_shape_than_others() -> None:
    model = net()
    opt = torch.optim.Adam(model.parameters())
    first, second, third = torch.zeros(6), torch.zeros(2), torch.zeros(3, 3)

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            second.add_(1)
            third.mul_(0.5).add_(second.sum())
            opt.zero_grad()
            (length(model(x), i == LAST) * (second.sum() + third.sum() + first.sum())).backward()
            opt.step()

    trace = run(loop)
    assert trace.guarded is not None and trace.guarded.identical


@pytest.mark.parametrize("there", ["file/faults", "file", "/proc/faults"])
def test_a_report_that_cannot_be_written_takes_no_fault_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    (tmp_path / "file").write_text("")
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt, save=tmp_path / there)):
            opt.zero_grad()
            length(model(x), i == LAST).backward()
            opt.step()

    trace = run(loop)
    assert trace.guarded is not None and trace.guarded.step == LAST
    told = capsys.readouterr().err
    assert "the derivative of sqrt" in told and "the report could not be written to" in told


def test_a_report_that_cannot_be_made_takes_no_fault_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nanlab.Trace, "save", lambda *given: 1 / 0)
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt, save=tmp_path)):
            opt.zero_grad()
            length(model(x), i == LAST).backward()
            opt.step()

    assert run(loop).culprit is not None
    assert "nanlab itself failed" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:internal error in nanlab")
def test_the_step_in_which_the_guard_fails_at_a_fault_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Now, "__init__", lambda *given: 1 / 0)
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for i, x in enumerate(nanlab.guard(batches(), model, opt)):
        opt.zero_grad()
        (model(x).sum() * (torch.nan if i == 3 else 1.0)).backward()
        before = model[0].weight.detach().clone()
        opt.step()
        assert not torch.equal(before, model[0].weight), i


@pytest.mark.parametrize(
    "given",
    [{"save": 3}, {"optimizer": 3}, {"optimizer": None}, {"optimizer": [3]}, {"loader": 3}],
    ids=str,
)
def test_an_argument_of_a_wrong_type_is_refused_before_the_loop(given: dict[str, Any]) -> None:
    model = net()
    right = {"loader": [1], "model": model, "optimizer": torch.optim.SGD(model.parameters())}
    with pytest.raises(nanlab.NanlabError, match="expected"):
        nanlab.guard(**{**right, **given})


ENDED = """
import torch
import nanlab

model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
for i in nanlab.guard(range(9), model, opt{save}):
    opt.zero_grad()
    try:
        (model(torch.ones(1, 2)) * (i != 4)).log().sum().backward()
        opt.step()
    except Exception:
        print("swallowed")
"""


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("save", ["", ", save='faults'"], ids=["nothing saved", "saved"])
def test_a_script_that_a_guard_ends_shows_no_traceback(tmp_path: Path, save: str) -> None:
    (tmp_path / "script.py").write_text(ENDED.format(save=save))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(nanlab.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and not done.stdout and "Traceback" not in done.stderr
    told = done.stderr.splitlines()
    assert told[0].startswith("nanlab: log of") and "script.py:10" in told[0]
    assert told[-1].startswith("nanlab stopped the program at") and "step" in told[-1]
    assert told[-1].endswith("faults/nanlab.html" if save else "kept with save=DIR")
    assert (tmp_path / "faults" / "nanlab.html").exists() == bool(save)


@pytest.mark.parametrize(
    ("owner", "identical"),
    [
        (None, True),  # its branch never runs
        (torch.amp.GradScaler("cpu", enabled=False), True),
        (types.SimpleNamespace(step=lambda x: x), False),
    ],
    ids=["none", "scaler", "environment"],
)
def test_only_what_may_have_been_called_is_held_against_a_replay(
    owner: Any, identical: bool
) -> None:
    model = nn.Linear(8, 4)
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def loop() -> None:
        for i, x in enumerate(nanlab.guard(batches(), model, opt)):
            opt.zero_grad()
            (model(x) * (torch.nan if i == LAST else 1.0)).sum().backward()
            if owner is None:
                opt.step()
            else:
                owner.step(opt)
                opt.step()

    trace = run(loop)
    assert trace.guarded is not None and trace.guarded.identical == identical
    assert ("`owner.step(opt)`" in trace.guarded.reason) != identical


@pytest.mark.parametrize("snapshot", [None, 7])
def test_an_explanation_numbers_its_step_as_the_run_does(snapshot: int | None) -> None:
    model, data = net(), batches()
    data[LAST][1, 2] = float("inf")
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def loop() -> None:
        for x in nanlab.guard(data, model, opt, snapshot=snapshot):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()

    culprit = run(loop).culprit
    assert culprit is not None and culprit.step == LAST
    assert f"It arrived in step {LAST}." in culprit.explanation


@pytest.mark.parametrize("anew", [False, True])
def test_steps_are_numbered_through_the_epochs_of_a_run(anew: bool) -> None:
    torch.manual_seed(0)
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.01)
    data = batches(3)
    one = nanlab.guard(data, model, opt)

    def loop() -> None:
        for epoch in range(3):
            for x in nanlab.guard(data, model, opt) if anew else one:
                opt.zero_grad()
                length(model(x), epoch == 2 and x is data[2]).backward()
                opt.step()

    trace = run(loop)
    assert trace.guarded is not None and trace.culprit is not None
    assert (trace.guarded.step, trace.culprit.step) == (8, 8)
