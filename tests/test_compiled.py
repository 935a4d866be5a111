"""Code under torch.compile: watched eagerly, said so, and left as it was found."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture.execution import NOTE


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


class Backend:
    """A backend that counts what it compiles and what then runs, and is bit for bit its own: it
    adds no operation."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph.forward(*args)

        return run


def train(model: Any, steps: int, seed: int = 0) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    random, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4, generator=random)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_model_runs_eagerly_in_a_watch_and_compiled_before_and_after_it(
    fullgraph: bool, warm: bool
) -> None:
    backend = Backend()
    model = torch.compile(small_model(), backend=backend, fullgraph=fullgraph)
    bare = train(torch.compile(small_model(), backend="eager"), 6)
    if warm:
        train(torch.compile(small_model(), backend=backend), 1)
    first = train(model, 2)
    compiled, ran = backend.compiled, backend.ran
    with nanlab.watch(model) as trace:
        watched = train(model, 2)
    assert (backend.compiled, backend.ran) == (compiled, ran)
    assert trace.notes == [NOTE]
    assert {"addmm", "relu", "mm"} <= set(trace.ops.op)
    after = train(model, 2)
    assert backend.compiled == compiled and backend.ran > ran
    reference = small_model()
    assert first + watched + after == [
        *train(reference, 2),
        *train(reference, 2),
        *train(reference, 2),
    ]
    assert first == bare[:2]


def test_a_function_compiled_inside_a_watch_compiles_after_it() -> None:
    backend = Backend()

    with nanlab.watch() as trace:
        double = torch.compile(lambda x: x * 2, backend=backend, fullgraph=True)
        assert double(torch.ones(2)).tolist() == [2, 2]
    assert backend.compiled == 0 and trace.notes == [NOTE]
    assert double(torch.ones(2)).tolist() == [2, 2]
    assert backend.compiled == backend.ran == 1


def test_the_first_torch_compile_of_a_process_may_be_inside_a_watch() -> None:
    program = """
import sys, torch, nanlab
assert "torch._dynamo.eval_frame" not in sys.modules
before = torch.compile
with nanlab.watch() as trace:
    f = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
    f(torch.ones(2))
assert torch.compile is before
assert "mul" in set(trace.ops.op) and len(trace.notes) == 1, (trace.notes, trace.ops.op)
assert torch._dynamo.eval_frame._stance.stance == "default"
with nanlab.watch() as trace:
    torch.ones(2) * 2
assert not trace.notes
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_a_watch_imports_no_compiler() -> None:
    program = """
import sys, torch, nanlab
with nanlab.watch():
    torch.ones(2, requires_grad=True).sum().backward()
assert "torch._dynamo.eval_frame" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_operations_of_a_compiled_optimizer_that_has_run_before_are_seen() -> None:
    model, backend = small_model(), Backend()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step, backend=backend)

    def train_step() -> None:
        optimizer.zero_grad()
        model(torch.ones(6, 4)).pow(2).mean().backward()
        step()

    train_step()
    train_step()
    compiled = backend.compiled
    with nanlab.watch(model) as trace:
        train_step()
    assert backend.compiled == compiled
    assert "optimizer" in set(trace.ops.phase)
    assert trace.parameters.update_rms.gt(0).all()


def test_the_stance_that_the_program_took_is_given_back() -> None:
    with torch.compiler.set_stance("eager_on_recompile"):
        with nanlab.watch():
            torch.ones(2) * 2
        assert torch._dynamo.eval_frame._stance.stance == "eager_on_recompile"
    with pytest.raises(KeyError), nanlab.watch():
        raise KeyError
    assert torch._dynamo.eval_frame._stance.stance == "default"


def large_sum(x: torch.Tensor) -> torch.Tensor:
    wide = x * 60000 + x * 60000
    return wide / 60000


@pytest.mark.parametrize("compiles", [False, True])
def test_a_half_precision_fault_in_code_that_runs_compiled_otherwise_is_qualified(
    compiles: bool,
) -> None:
    function = torch.compile(large_sum, backend="eager") if compiles else large_sum
    x = torch.ones(3, dtype=torch.float16, requires_grad=True)
    with nanlab.watch() as trace:
        for _ in range(2):
            function(x).float().mean().backward()
    assert trace.culprit is not None and trace.culprit.cause == "dtype-overflow"
    assert trace.culprit.title.endswith("(run eagerly: compiled it may not)") == compiles
    assert ("torch.compile keeps" in trace.culprit.explanation) == compiles


def test_a_half_precision_fault_beside_compiled_code_and_a_float32_fault_inside_are_not_qualified() -> (
    None
):
    function = torch.compile(large_sum, backend="eager")
    root = torch.compile(lambda x: x.sqrt(), backend="eager")
    x = torch.ones(3, dtype=torch.float16, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        function(x.float()).mean().backward()
        large_sum(x).float().mean().backward()
    with nanlab.watch(on_fault="record") as other:
        root(torch.zeros(2, requires_grad=True)).sum().backward()
    for each in (trace, other):
        assert each.culprit is not None and "compiled" not in each.culprit.title
