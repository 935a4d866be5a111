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
from nanlab.capture import dispatch

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


@pytest.mark.parametrize("on_fault", ["stop", "record"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_culprit_fixes_and_table_are_those_of_a_full_watch(name: str, on_fault: str) -> None:
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
