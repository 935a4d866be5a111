"""``detail="fault"``: nothing is summarised until a loss, a gradient or a parameter turns bad."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture import dispatch, program
from nanlab.capture.learned_step import LearnedStep

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness

PROGRAMS = (
    "f001",  # forward
    "f013",  # backward
    "f042",  # repaired in place
    "f049",  # eigh, backward
    "f055",  # a custom Function
    "f058",  # autocast
    "f060",  # signal that is lost from the first step on
    "f080",  # reentrant checkpoint
    "f083",  # complex
    "f094",  # attention mask
    "t003",  # loss scaler, clipping
    "t025",  # a fault inside of an optimizer
    "t047",  # running statistics
    "h007",  # healthy, a loss scaler calibrates
)


@pytest.fixture(autouse=True)
def everything_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors too, of which those programs have many."""
    monkeypatch.setattr(dispatch, "WORTH_PUTTING_OFF", 2)


def run(name: str, on_fault: Any, detail: Any) -> nanlab.Trace:
    (path,) = harness.case_files([name])
    torch.manual_seed(0)
    module = harness.load(path)
    model, step = module.build()
    with nanlab.watch(model, on_fault=on_fault, detail=detail) as trace:
        for i in range(module.META["n_steps"]):
            step(i)
    return trace


def told(trace: nanlab.Trace) -> Any:
    culprit = trace.culprit
    if culprit is None:
        return None
    fixes = [(fix.title, fix.verdict) for fix in culprit.fixes]
    found = (culprit.cause, culprit.title, culprit.phase, culprit.op, culprit.line, culprit.step)
    return found, culprit.symptom, culprit.library, culprit.samples, fixes


@pytest.mark.examples(every=5)
@pytest.mark.parametrize("on_fault", ["stop", "record"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_culprit_fixes_and_table_are_those_of_a_full_watch(
    name: str, on_fault: str, request: pytest.FixtureRequest
) -> None:
    if on_fault == "record":  # the step on which fixes are tried is the same one
        request.getfixturevalue("untried")
    full, fault = (run(name, on_fault, detail) for detail in ("full", "fault"))
    assert told(fault) == told(full)
    assert fault.notes == full.notes
    start = fault.recording.starts[-2:][0]
    both = [t.ops[t.ops.index >= start].drop(columns="node") for t in (full, fault)]
    pd.testing.assert_frame_equal(both[0], both[1], rtol=1e-9, check_exact=False)


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.Adam(model.parameters(), 1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def test_healthy_run_is_summarised_when_somebody_asks() -> None:
    model, optimizer = network()
    with nanlab.watch(model, detail="fault") as trace:
        train(model, optimizer)
    assert trace.culprit is None and not trace.findings
    assert trace.steps.loss.notna().all() and trace.parameters.update_rms.notna().all()
    recording = trace.recording
    position = recording.program.segments[-1].start + 2
    assert not recording.stats(position).known
    expected = trace.tensor(position)
    assert trace.histogram(position).sum() == int((expected != 0).sum())
    assert recording.stats(position).known
    kept = trace.ops[trace.ops.index >= recording.program.segments[0].start]
    assert kept["rms"].notna().any() and trace.replay().identical


def test_results_are_those_of_a_run_without_watch() -> None:
    model, optimizer = network()
    bare = train(model, optimizer), [p.clone() for p in model.parameters()]
    model, optimizer = network()
    with nanlab.watch(model, detail="fault"):
        losses = train(model, optimizer)
    assert losses == bare[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), bare[1], strict=True))


def test_gradient_that_is_flushed_as_a_whole_is_found() -> None:
    told_by = []
    for detail in ("full", "fault"):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.full((32,), 0.5))
        with nanlab.watch(on_fault="record", detail=detail) as trace:
            for _ in range(3):
                weight.grad = None
                (weight.half() * 1e-4).float().mul(1e-5).sum().backward()
        told_by.append([(f.cause, f.severity, f.line) for f in trace.findings])
    assert told_by[0] == told_by[1] != []


def test_a_dead_gradient_is_told_of_the_steps_that_were_summarised() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    layers[0].bias.data.fill_(-100.0)
    with nanlab.watch(detail="fault") as trace:
        for _ in range(6):
            layers.zero_grad()
            layers(torch.randn(6, 4)).square().mean().backward()
    (found,) = (f for f in trace.findings if f.cause == "dead-gradient")
    assert "in all 4 steps that were summarised" in found.title


def test_step_that_gives_other_results_when_it_is_run_again_says_so() -> None:
    with nanlab.watch(detail="fault", on_fault="record") as trace:
        warm_up = torch.ones(40, requires_grad=True)
        warm_up.sum().backward()  # from the first backward on statistics are put off
        x = torch.full((40,), 3.0, requires_grad=True)
        y = x * 2
        # the memory is another's: NumPy writes it between two operations
        y.detach().numpy()[:] = -1.0
        torch.log(y).sum().backward()
    assert trace.culprit is not None
    note = next(note for note in trace.notes if "cannot be summarised" in note)
    assert "step 0 cannot be summarised: run again it gives other results" in note
    assert 'watch it with detail="full"' in note


def test_step_that_cannot_be_run_again_says_so() -> None:
    with nanlab.watch(detail="fault", on_fault="record") as trace:
        torch.ones(40, requires_grad=True).sum().backward()
        x = torch.zeros(600, requires_grad=True)
        grown = torch.zeros(600)
        grown.resize_(1200)
        torch.log(x).sum().backward()
    assert trace.culprit is not None and trace.culprit.op == "log"
    assert any("resize_ changes the size of a storage" in note for note in trace.notes)


def test_options_that_contradict_it_are_refused() -> None:
    with pytest.raises(nanlab.errors.UsageError, match="budget"):
        nanlab.watch(detail="fault", budget=0)
    with pytest.raises(nanlab.errors.UsageError, match="detail"):
        nanlab.watch(detail="half")  # type: ignore[arg-type]


# -- steps that repeat the last one: the engine and the optimizer run unobserved


def plain(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def accumulated(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    optimizer.zero_grad()
    for half in (slice(0, 8), slice(8, 16)):
        (nn.functional.mse_loss(model(x[half]), y[half]) / 2).backward()
    optimizer.step()


def zeroed(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def alternating(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    (loss if i % 3 else loss * 2 + model(-x).square().mean()).backward()
    optimizer.step()


def hooked(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    optimizer.zero_grad()
    out = model(x)
    if i == 4:
        out.register_hook(lambda gradient: gradient * 0.5)
    nn.functional.mse_loss(out, y).backward()
    optimizer.step()


def scheduled(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 / (1 + i)
        group["weight_decay"] = 0.1 if i == 4 else 0.0
    plain(model, optimizer, x, y, i)


def twice(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, i: int) -> None:
    plain(model, optimizer, x, y, i)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


LOOPS = (plain, clipped, accumulated, zeroed, alternating, hooked, scheduled, twice)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.dropout(self.norm(x @ self.weight), 0.2, True)
        return self.head(torch.sqrt((h @ self.weight.t()).relu().sum(1, keepdim=True)) + h)


def late(
    loop: Any, kind: Any, detail: Any, bad: int = 7, steps: int = 9
) -> tuple[nanlab.Trace, nn.Module]:
    """A run with a bad batch in a late step."""
    torch.manual_seed(2)
    model = Tied()
    optimizer = kind(model.parameters(), lr=1e-2)
    batches = [(torch.randn(16, 8) * (2 + i), torch.randn(16, 4)) for i in range(steps)]
    if bad < steps:
        batches[bad][0][:] = -3e38
    with nanlab.watch(model, detail=detail) as trace:
        for i, (x, y) in enumerate(batches):
            loop(model, optimizer, x, y, i)
    return trace, model


def tables(trace: nanlab.Trace) -> dict[str, pd.DataFrame]:
    start = trace.recording.starts[-2:][0]
    ops = trace.ops[trace.ops.index >= start].drop(columns="node")
    backward = trace.backward[trace.backward.step >= trace.backward.step.max() - 1]
    parameters = trace.parameters
    return {
        "ops": ops,
        "backward": backward.drop(columns="node").reset_index(drop=True),
        "parameters": parameters,
        # what results hold is not looked at in steps that are not kept
        "steps": trace.steps.drop(columns=["seconds", "nonfinite", "born"]),
    }


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("bad", [7, 99])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_late_fault_and_healthy_end_are_those_of_a_full_watch(
    loop: Any, bad: int, request: pytest.FixtureRequest
) -> None:
    if loop is not plain:  # fixes are tried on one step, whatever the loop
        request.getfixturevalue("untried")
    (full, one), (fault, two) = (late(loop, torch.optim.Adam, d, bad) for d in ("full", "fault"))
    assert (full.culprit is None) == (bad == 99)
    assert told(fault) == told(full) and fault.notes == full.notes
    for name, table in tables(full).items():
        other = tables(fault)[name]
        pd.testing.assert_frame_equal(table, other, rtol=1e-9, check_exact=False)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_engine_that_does_what_it_did_runs_unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = []
    note = LearnedStep._was_silent
    monkeypatch.setattr(LearnedStep, "_was_silent", lambda *a: notes.append(a) or note(*a))
    model, optimizer = network()
    with nanlab.watch(model, detail="fault") as trace:
        train(model, optimizer, 8)
    assert len(notes) >= 5 and not trace.notes


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-2),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, 1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 1e-2),
    "foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_of_an_optimizer_are_replayed_as_they_were(kind: str) -> None:
    ends = []
    for detail in ("full", "fault"):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        scale = nn.Parameter(torch.tensor(0.5))
        optimizer = OPTIMIZERS[kind]([*model.parameters(), scale])
        rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        batches = [torch.randn(16, 8) for _ in range(7)]
        with nanlab.watch(model, detail=detail) as trace:
            for x in batches:
                optimizer.zero_grad()
                (model(x) * scale).square().mean().backward()
                optimizer.step()
                rates.step()
        assert trace.replay().identical and not trace.notes
        ends.append([trace, *model.parameters()])
    for a, b in zip(ends[0][1:], ends[1][1:], strict=True):
        assert torch.equal(a, b)
    first, second = (tables(trace) for trace, *_ in ends)
    for name, table in first.items():
        pd.testing.assert_frame_equal(table, second[name], rtol=1e-9, check_exact=False)


def test_step_of_an_optimizer_that_fails_leaves_the_program_as_it_is() -> None:
    model, optimizer = network()
    with nanlab.watch(model, detail="fault") as trace:
        train(model, optimizer, 6)
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.state[model[0].weight]["exp_avg"].resize_(3)
        with pytest.raises(RuntimeError):
            optimizer.step()
        optimizer.state.clear()
        train(model, optimizer, 2)
    assert trace.culprit is None
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_step_of_too_many_calls_says_so_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "_CALLS_A_SEGMENT", 60)
    model, optimizer = network()
    with nanlab.watch(model, detail="fault") as trace:
        train(model, optimizer, 6)
    assert trace.culprit is None
    with pytest.raises(nanlab.errors.NanlabError, match="more than 60 calls"):
        trace.replay()
