"""Long runs, wide models and deep graphs: what a watch costs stays bounded, and the program is what
it would have been."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture import backward, folding, watching
from nanlab.trace.recording import MOST_SINKS


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few steps each, so that a run of a second has many of them."""
    monkeypatch.setattr(watching, "CHUNK_ROWS", 128)


def _training(model: nn.Module, steps: int, poisoned: int = -1, **options: object) -> nanlab.Trace:
    """``steps`` steps of Adam under watch; a log of zero joins the loss of step ``poisoned``."""
    optimizer = torch.optim.Adam(model.parameters())
    with nanlab.watch(model, on_fault="record", **options) as trace:  # type: ignore[arg-type]
        for i in range(steps):
            out = model(torch.randn(4, 8))
            loss = out.pow(2).mean()
            if i == poisoned:
                loss = loss + (out.flatten()[0] * 0).log()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return trace


def test_a_folded_step_leaves_no_table_of_its_own_behind(short: None) -> None:
    recording = _training(nn.Linear(8, 2), 100).recording
    folded = [chunk for chunk in recording.chunks if chunk.positions is not None]
    assert len(folded) >= 10
    assert len({id(chunk.stats) for chunk in folded if not len(chunk.stats)}) == 1
    assert sum(len(chunk.stats) > 0 for chunk in folded) <= 2


def test_the_symptoms_of_a_poisoned_run_do_not_pile_up(short: None) -> None:
    steps = 60
    trace = _training(nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)]), steps, poisoned=20)
    assert (
        len(trace.recording.sinks) < MOST_SINKS + 10 * steps
    )  # 20 gradients, 20 parameters and 40 moments are bad in each step
    assert len(trace.recording.sinks) > MOST_SINKS
    assert (trace.culprit.cause, trace.culprit.step) == ("log-of-zero", 20)


def test_rows_of_parameters_that_were_folded_are_what_they_were_before(short: None) -> None:
    torch.manual_seed(0)
    whole = _training(nn.Linear(8, 2), 100, keep=100).parameters
    torch.manual_seed(0)
    trace = _training(nn.Linear(8, 2), 100)
    assert trace.recording.folded_parameters
    np.testing.assert_array_equal(trace.parameters.to_numpy(object), whole.to_numpy(object))


def test_packing_keeps_every_number_and_shares_what_is_equal() -> None:
    block = {
        "position": np.arange(100),
        "gradient_nan": np.zeros(100, np.int64),
        "gradient_rms": np.where(np.arange(100) % 7, np.arange(100.0), np.nan),
        "gradient_stat": np.arange(100),
        "used_rms": np.where(np.arange(100) % 7, np.arange(100.0), np.nan),
        "update_rms": np.full(100, np.nan),
        "value_rms": np.arange(1600.0).reshape(16, 100)[3],
    }
    packed = folding.packed(block)
    assert set(packed) == set(block) - {"gradient_stat"}
    for name, column in packed.items():
        np.testing.assert_array_equal(column, block[name])
        assert column.dtype == block[name].dtype
    assert packed["used_rms"] is packed["gradient_rms"]
    assert packed["value_rms"].base is None
    assert packed["gradient_nan"].strides == packed["update_rms"].strides == (0,)


def test_rows_of_parameters_are_thinned_out_where_there_are_too_many(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "MOST_ROWS", 200)
    monkeypatch.setattr(folding, "NEAR", 3)
    trace = _training(nn.Linear(8, 2), 300, poisoned=150)
    table = trace.parameters
    seen = set(table.step)
    assert len(table) < 300 and folding.THINNED in trace.notes
    assert {0, 1, 2, *range(147, 154), *range(260, 300)} <= seen
    # a step is there with all its parameters, or not at all
    assert (table.groupby("step").size() == 2).all()
    assert table.step.is_monotonic_increasing
    assert len(trace.steps) == 300


def test_an_output_of_an_operation_on_lists_comes_from_its_own_elements() -> None:
    a, b = [torch.randn(3) for _ in range(3)], [torch.randn(3) for _ in range(3)]
    with nanlab.watch() as trace:
        torch._foreach_addcmul_(a, b, b, 0.5)
        torch._foreach_mul_(a, torch.tensor(2.0))
        torch._foreach_norm(a)
    recording, ops = trace.recording, trace.ops
    for name, slots in (
        ("_foreach_addcmul_", [0, 3, 6]),
        ("_foreach_mul_", [0, 3]),
        ("_foreach_norm", [0]),
    ):
        rows = ops[ops.op == name]
        for output, position in zip(rows.output, rows.position, strict=True):
            own = recording.own_operands(position)
            everything = {slot: source for source, slot in recording.operands(position)}
            shared = [3] if name == "_foreach_mul_" else []
            assert [slot for _, slot in own] == [s if s in shared else s + output for s in slots]
            assert all(everything[slot] == source for source, slot in own)


def test_a_trace_lets_the_model_go() -> None:
    model = nn.Linear(8, 2)
    trace = _training(model, 3)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert len(trace.parameters) == 6


DEEP = """
import torch, nanlab
w = torch.nn.Parameter(torch.ones(2))
with nanlab.watch(on_fault="record") as trace:
    x = w
    for _ in range(45_000):
        x = x * 1.0
    x.sum().backward()
    del x
print(w.grad.tolist(), trace.culprit, len(trace.ops[trace.ops.phase == "backward"]))
"""


@pytest.mark.examples(every=0)
def test_a_graph_deeper_than_the_stack_is_freed_without_a_crash() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("]")[0] == "[1.0, 1.0"
    assert " None " in done.stdout


def test_the_nodes_of_a_deep_graph_are_held_until_the_program_frees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backward, "MOST_NODES", 30)
    w, late = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with nanlab.watch(on_fault="record") as trace:
        x = late * 1.0
        for _ in range(100):
            x = x * w
        x.sum().backward()
        assert len(backward._held) > 100
        gc.collect()
        assert len(backward._held) > 100  # x is alive
    del x
    gc.collect()
    assert not backward._held
    # the gradient of the leaf at the far end is seen too
    assert set(trace.parameters.gradient_rms) == {100.0, 1.0}


def test_nodes_of_a_graph_that_is_kept_and_grows_are_held_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backward, "MOST_NODES", 30)
    w = nn.Parameter(torch.ones(2))
    with nanlab.watch(on_fault="record"):
        x = w * 1.0
        for _ in range(4):
            for _ in range(25):
                x = x * 1.0
            x.sum().backward(retain_graph=True)
        assert len(set(backward._held)) == len(backward._held) <= 102
        x.sum().backward()
        del x
        torch.ones(2, requires_grad=True).sum().backward()
        assert not backward._held  # let go when the next backward begins


class _Busy(nn.Module):
    """Another thread uses another model whenever this one is called."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(8, 4), [nn.Sequential(nn.Linear(3, 3), nn.ReLU())]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: self.other[0](torch.randn(2, 3)).sum().backward())
        thread.start()
        thread.join()
        return self.own(x)  # type: ignore[no-any-return]


def test_what_other_threads_do_is_not_taken_for_the_watched_program() -> None:
    trace = _training(_Busy(), 4)
    assert not trace.notes
    assert len(trace.steps) == 4
    assert set(trace.ops[trace.ops.phase == "forward"].module) == {"own", ""}
    assert set(trace.backward.module) == {"own", ""}
    assert set(trace.parameters.parameter) == {"own.weight", "own.bias"}


def test_a_cut_far_from_the_loss_is_found() -> None:
    w = nn.Parameter(torch.ones(2))

    def cut() -> None:
        x = w.detach()
        for _ in range(21_000):
            x = x + 1.0
        x.sum().backward()

    with nanlab.watch(), pytest.raises(RuntimeError) as caught:
        cut()
    assert "detach" in str(nanlab.explain(caught.value))


def test_the_errors_of_a_comparison_are_not_measured_against_every_gradient_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)]), torch.randn(2, 4)
    roots, square = [], torch.Tensor.square
    monkeypatch.setattr(torch.Tensor, "square", lambda t: roots.append(1) or square(t))

    def step() -> torch.Tensor:
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss

    nanlab.compare(step, dtype=torch.bfloat16, search=False)
    assert len(roots) == 61  # each of 60 gradients and the loss, once
