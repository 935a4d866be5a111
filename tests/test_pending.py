"""Statistics stay on the device until a step ends, and what went wrong is told as on the CPU, which
stands in for the device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanlab

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
from standin import stand_in

PROGRAMS = (
    "f001",  # forward
    "f038",  # where, backward
    "f042",  # repaired in place
    "f049",  # eigh, backward
    "f055",  # a custom Function
    "f058",  # autocast
    "f073",  # uninitialised memory
    "f080",  # reentrant checkpoint
    "f083",  # complex
    "f094",  # attention mask
    "t003",  # loss scaler, clipping
    "t025",  # a fault inside of an optimizer
    "t036",  # Adam with foreach, in half precision
    "t047",  # running statistics
    "t052",  # two optimizers
    "h007",  # healthy, a loss scaler calibrates
)
TRIED = ("f001", "f042", "f055", "f058", "f083", "t025")  # their fixes are tried on what was kept


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device."""
    stand_in(monkeypatch)


def run(name: str, on_fault: Any = "record") -> nanlab.Trace:
    """A program of the corpus under a watch."""
    (path,) = harness.case_files([name])
    torch.manual_seed(0)
    module = harness.load(path)
    model, step = module.build()
    with nanlab.watch(model, on_fault=on_fault, keep=99) as trace:
        for i in range(module.META["n_steps"]):
            step(i)
    return trace


def told(trace: nanlab.Trace) -> dict[str, Any]:
    """What is said of the culprit, of every row, and of which operations operands are kept."""
    ops = trace.ops
    facts: dict[str, Any] = {
        "rows": list(zip(ops.position, ops.op, ops.line, ops.status, strict=True)),
        "kept": sorted(trace.recording.kept),
        "end": trace.recording.end,
    }
    if (found := trace.culprit) is not None:
        place = found.cause, found.file, found.line, found.op, found.phase, found.step, found.title
        # names are read where a fault shows, and on a device that is known too late
        told = [fix for fix in found.fixes if fix.left_out is None]
        tried = [(fix.title, fix.code, fix.verified, fix.distortion) for fix in told]
        facts |= {
            "place": place,
            "elements": found.evidence.to_string(),
            "samples": found.samples,
            "fixes": tried,
        }
    return facts


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_device_tells_what_the_cpu_tells(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name not in TRIED:
        request.getfixturevalue("untried")
    expected = told(run(name))
    stand_in(monkeypatch)
    trace = run(name)
    assert not trace.notes
    assert told(trace) == expected


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("name", ["f001", "f038", "t025"])
def test_watch_stops_where_it_stops_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(name, "stop")
    stand_in(monkeypatch)
    trace = run(name, "stop")
    assert trace.recording.ended == expected.recording.ended == "fault"
    assert told(trace) == told(expected)


def test_what_was_kept_is_bit_for_bit_what_the_cpu_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run("f042").recording.kept
    stand_in(monkeypatch)
    kept = run("f042").recording.kept
    assert kept.keys() == expected.keys()
    for position, one in kept.items():
        ours, theirs = _bits((one.args, one.outputs, one.saved)), _bits(_parts(expected[position]))
        assert ours == theirs and ours, position


def _parts(kept: Any) -> tuple[Any, ...]:
    return kept.args, kept.outputs, kept.saved


def _bits(values: Any) -> list[bytes]:
    if isinstance(values, torch.Tensor):
        return [values.contiguous().numpy().tobytes()]
    parts = (
        values.values()
        if isinstance(values, dict)
        else values
        if isinstance(values, (list, tuple))
        else ()
    )
    return [found for part in parts for found in _bits(part)]


# -- results
# ------------------------------------------------------------


def train(optimizer: Callable[..., Any]) -> list[bytes]:
    """Parameters, gradients and running statistics after a few steps, bit for bit."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 3)
    )
    stepper = optimizer(model.parameters())
    for i in range(4):
        x = torch.randn(32, 6)
        x[i] *= 2.0
        y = model(x)
        (y + y.detach().mul_(0.5)).square().mean().backward()
        model(x * 0.5).exp().mean().backward()  # gradients are added in place
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        stepper.zero_grad(set_to_none=i % 2 == 0)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return _bits([t.detach() for t in (*model.state_dict().values(), *grads)])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.usefixtures("device")
def test_results_are_the_same_bits_with_and_without_a_watch(foreach: bool) -> None:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, 0.01, foreach=foreach)

    expected = train(optimizer)
    with nanlab.watch(on_fault="record") as trace:
        watched = train(optimizer)
    assert not trace.notes
    assert watched == expected


# -- memory that is written afterwards
# ------------------------------------------------------------


@pytest.mark.usefixtures("device")
def test_operand_that_is_overwritten_afterwards_is_kept_as_it_was() -> None:
    with nanlab.watch(on_fault="record") as trace:
        divisor, total = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])
        ratio = total / divisor
        ratio.mul_(2.0)  # the result
        divisor[0] = 5.0  # an operand, by a view
        torch.add(total, 1.0, out=total)  # another
        torch._foreach_add_([ratio], 1.0)
        ratio.sum()
    kept = next(k for k in trace.recording.kept.values() if k.op is torch.ops.aten.div.Tensor)
    assert [t.tolist() for t in (*kept.args, *kept.outputs)] == [
        [1.0, 1.0],
        [0.0, 2.0],
        [float("inf"), 0.5],
    ]
    assert not trace.notes


def overwritten(x: torch.Tensor) -> None:
    x.add_(1.0)


def overwritten_unseen(x: torch.Tensor) -> None:
    with torch._C._DisableTorchDispatch():
        x.fill_(3.0)


def freed(x: torch.Tensor) -> None:  # as sharded parameters are
    x.untyped_storage().resize_(0)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("end", [overwritten, overwritten_unseen, freed])
def test_operands_that_are_gone_when_the_statistics_arrive_are_made_again(
    end: Callable[[torch.Tensor], None],
) -> None:
    with nanlab.watch(on_fault="record") as trace:
        x = torch.zeros(100)
        y = x.log()
        end(x)
        y.sum()
    assert trace.ops.status.tolist()[:2] == ["ok", "born"]
    (kept,) = trace.recording.kept.values()
    assert torch.equal(kept.args[0], torch.zeros(100))
    assert trace.notes == []


@pytest.mark.usefixtures("device")
def test_tensor_given_other_data_is_kept_with_what_it_held() -> None:
    with nanlab.watch(on_fault="record") as trace:
        p = nn.Parameter(torch.zeros(3))
        y = p.log()
        p.data = torch.ones(3)
        y.sum()
    (kept,) = trace.recording.kept.values()
    assert kept.args[0].tolist() == [0.0, 0.0, 0.0]


# -- what may come in the way
# ------------------------------------------------------------


@pytest.mark.parametrize("on_device", [torch.float32, torch.float64])
def test_operations_between_host_and_device_have_the_status_of_the_cpu(
    on_device: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> list[str]:
        with nanlab.watch(on_fault="record") as trace:
            x = torch.tensor([0.0, 1.0, 2.0])
            there = x.double().log()
            back = there.float()
            mask = torch.full((3,), float("-inf"))
            torch.softmax(back.double() + mask.double(), 0).float().nan_to_num().sum()
            (back * 0.0).double().exp()
        return trace.ops.status.tolist()

    expected = program()
    stand_in(monkeypatch, on_device=lambda tensor: tensor.dtype is on_device)
    assert program() == expected
    assert {"born", "carried", "turned", "intended", "healed"} <= set(expected)


@pytest.mark.usefixtures("device")
def test_odd_tensors_pass_through() -> None:
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(3):
            torch.empty(3, device="meta") + 1
            torch.eye(3).to_sparse() @ torch.ones(3, 2)
            (torch.eye(3).to_sparse_csr() @ torch.ones(3, 2)).log()
            torch.complex(torch.ones(2), torch.zeros(2)).conj().abs()
            torch.empty(0).sum()
            torch.vmap(torch.sin)(torch.ones(3, 2))
            torch.func.grad(lambda x: x.log().sum())(torch.zeros(3))
            with torch.inference_mode():
                (torch.zeros(4) / 0.0).add_(1.0)
    assert not trace.notes
    kept = list(trace.recording.kept.values())
    assert {k.op.__name__ for k in kept} == {"log.default", "div.Tensor"}
    assert not any(t.is_inference() for k in kept for t in k.outputs)


@pytest.mark.usefixtures("device")
def test_what_is_kept_while_the_program_is_in_inference_mode_can_be_differentiated() -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.zeros(3).log()
        with torch.inference_mode():
            x = torch.ones(3)
            for _ in range(20):
                x = x + 1.0
    (kept,) = trace.recording.kept.values()
    assert not kept.args[0].is_inference()


def test_memory_written_piece_by_piece_leads_back_to_the_bad_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program() -> nanlab.Trace:
        with nanlab.watch(on_fault="record") as trace:
            table = torch.zeros(4, 3)
            for i in (3, 1, 4, 2):
                table[i - 1] = torch.log(torch.full((3,), float(i)) - 2.5)
            (table * nn.Parameter(torch.ones(3))).sum().backward()
        return trace

    def pieces(trace: nanlab.Trace) -> list[list[int | None]]:
        """The rows that each bad snapshot came from; None stands for an earlier snapshot."""
        recording = trace.recording
        snapshots = [
            s
            for s in recording.sources.values()
            if s.kind == "snapshot" and s.number in recording.bad
        ]
        return [[row if row >= 0 else None for row in s.parents] for s in snapshots]

    expected = program()
    stand_in(monkeypatch)
    trace = program()
    assert pieces(trace) == pieces(expected) and len(pieces(trace)) == 3
    found = trace.culprit
    assert found is not None and (found.cause, found.op) == ("log-of-negative", "log")
    assert found.fixes and found.fixes[0].verified


# -- a CUDA device
# ------------------------------------------------------------


def waits(program: Callable[[], None]) -> int:
    """How often the host waited for a CUDA device."""
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both) as profile:
        program()
    names = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    return sum(event.count for event in profile.key_averages() if event.key in names)


@pytest.mark.cuda
def test_fault_on_cuda_has_cause_elements_and_fixes_and_no_operation_waits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *[layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.ReLU(inplace=True))]
    ).cuda()
    x = torch.rand(64, 32).cuda()

    def healthy() -> None:
        y = x
        for _ in range(10):
            y = torch.relu(model(y) + y)
        y.mean().backward()

    with nanlab.watch(model, on_fault="record"):
        healthy()  # kernels are loaded
    with nanlab.watch(model, on_fault="record") as trace:
        waited = waits(healthy)
    assert waited <= 4 and len(trace.ops) > 500
    with nanlab.watch(model, on_fault="record") as trace:
        healthy()
        torch.log(model(x).sum(1) * 0.0).sum().backward()
        for _ in range(4):
            healthy()
    found = trace.culprit
    assert found is not None and (found.cause, found.op) == ("log-of-zero", "log")
    assert len(found.evidence) and found.fixes and found.fixes[0].verified
    assert all(t.is_cuda for kept in trace.recording.kept.values() for t in kept.outputs)
