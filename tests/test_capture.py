"""What a watch records: every operation once, at the user's line, in the right phase and step, with
its status."""

from __future__ import annotations

import inspect
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nanlab
from nanlab.capture.location import Locator
from nanlab.errors import NanlabError, TypeMismatchError, UsageError


def line_of(text: str) -> int:
    """Number of the line of this file that ends with a mark."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, steps: int, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).pow(2).mean().backward()
        optimizer.step()


def rows(trace: nanlab.Trace, op: str, phase: str = "forward") -> list[int]:
    ops = trace.ops
    return ops[(ops.op == op) & (ops.phase == phase)].line.tolist()


# -- lines
# ------------------------------------------------------------


def test_a_line_in_a_nested_function_is_that_of_the_operation() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)  # nested

    with nanlab.watch() as trace:
        (lambda x: inner(x))(torch.ones(3))
    assert rows(trace, "sin") == [line_of("nested")]


def test_a_line_in_a_comprehension_is_that_of_the_comprehension() -> None:
    with nanlab.watch() as trace:
        [torch.cos(t) for t in (torch.ones(2), torch.zeros(2))]  # comprehension
    assert rows(trace, "cos") == [line_of("comprehension")] * 2


def test_a_line_inside_a_library_module_is_the_users_call() -> None:
    model = small_model()
    with nanlab.watch(model) as trace:
        model(torch.ones(6, 4))  # library
    assert set(rows(trace, "addmm")) == {line_of("library")}


def test_a_forward_hooks_operations_bear_the_hooks_line() -> None:
    model = small_model()

    def hook(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        return output.tanh()  # hook

    model[0].register_forward_hook(hook)
    with nanlab.watch(model) as trace:
        model(torch.ones(6, 4))
    assert rows(trace, "tanh") == [line_of("hook")]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_code_is_recomputed_at_its_own_lines(reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.exp(x))  # checkpointed

    x = torch.ones(3, requires_grad=True)
    with nanlab.watch() as trace:
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    ops = trace.ops
    assert set(ops[ops.op == "exp"].line) == {line_of("checkpointed")}
    assert set(ops[ops.op == "exp"].phase) == {"forward", "recompute"}
    assert set(ops[(ops.op == "cos") & (ops.phase == "backward")].line) == {line_of("checkpointed")}


def test_backward_operations_bear_the_line_of_their_forward_operation() -> None:
    x = torch.tensor([1.0, 4.0], requires_grad=True)
    with nanlab.watch() as trace:
        y = torch.sqrt(x)  # root
        y.sum().backward()
    ops, node = trace.ops, trace.ops[trace.ops.op == "sqrt"].node.iloc[0]
    tied = ops[(ops.phase == "backward") & (ops.node == node)]
    assert len(tied) > 0
    assert set(tied.line) == {line_of("root")}


def test_an_operation_in_the_backward_of_a_custom_function_bears_its_own_line() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return torch.exp(grad)  # inside

    x = torch.ones(2, requires_grad=True)
    with nanlab.watch() as trace:
        Twice.apply(x).sum().backward()
    assert rows(trace, "exp", "backward") == [line_of("inside")]


# -- modules
# ------------------------------------------------------------


def test_a_shared_module_bears_the_path_it_is_called_by() -> None:
    class Side(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.core = shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.core(x)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Linear(3, 3)
            self.left, self.right = Side(shared), Side(shared)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.right(self.left(x))

    model = Pair()
    with nanlab.watch(model) as trace:
        model(torch.ones(2, 3))
    assert trace.ops[trace.ops.op == "addmm"].module.tolist() == ["left.core", "right.core"]


def test_without_a_model_modules_are_named_as_they_run() -> None:
    model = small_model()
    with nanlab.watch() as trace:
        model(torch.ones(6, 4))
    assert trace.ops[trace.ops.op == "addmm"].module.tolist() == ["Sequential.0", "Sequential.3"]


# -- steps
# ------------------------------------------------------------


def test_each_optimizer_step_in_a_loop_is_one_training_step() -> None:
    model = small_model()
    with nanlab.watch(model) as trace:
        train(model, 4)
    assert len(trace.steps) == 4
    assert (trace.steps.optimizer_steps == 1).all()


def test_two_optimizers_in_one_iteration_share_a_step() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 1)
    one, two = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)
    with nanlab.watch() as trace:
        for _ in range(3):
            x = torch.randn(4, 3)
            one.zero_grad()
            first(x).sum().backward()
            one.step()
            two.zero_grad()
            second(first(x).detach()).sum().backward()
            two.step()
    assert trace.steps.optimizer_steps.tolist() == [2, 2, 2]


def test_accumulated_micro_batches_share_a_step() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nanlab.watch(model) as trace:
        for i in range(9):
            model(torch.randn(4, 3)).sum().backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert len(trace.steps) == 3


@pytest.mark.parametrize("bound", [None, 1e-3])
def test_accumulated_gradients_have_one_row_and_the_norm_that_torch_computes(
    bound: float | None,
) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    norms, last = [], {}
    with nanlab.watch(model) as trace:
        for _ in range(3):
            for _ in range(4):
                model(torch.randn(4, 4)).square().mean().backward()
            last = {
                name: p.grad.square().mean().sqrt().item() for name, p in model.named_parameters()
            }
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
            if bound is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
            optimizer.step()
            optimizer.zero_grad()
    assert trace.steps.gradient_norm.tolist() == pytest.approx(norms)
    rows = trace.parameters
    assert not rows.duplicated(["step", "parameter"]).any() and len(rows) == 3 * len(last)
    assert rows[rows.step == 2].set_index("parameter").gradient_rms.to_dict() == pytest.approx(last)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_the_loss_of_a_step_is_the_sum_of_its_micro_batches(
    scaled: bool, set_to_none: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
    told = []
    with nanlab.watch(model, keep=1) as trace:
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            total = 0.0
            for _ in range(3):
                loss = model(torch.randn(5, 4)).square().mean() / 3
                scaler.scale(loss).backward()
                total += loss.item()
            scaler.step(optimizer)
            scaler.update()
            told.append(total)
    assert trace.steps.loss.tolist() == pytest.approx(told)


def test_losses_that_are_no_parts_of_one_are_not_added() -> None:
    torch.manual_seed(0)
    critic, generator = nn.Linear(2, 1), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (critic, generator)]
    told = []
    with nanlab.watch() as trace:
        for _ in range(3):
            optimizers[0].zero_grad()
            critic(generator(torch.randn(4, 2)).detach()).mean().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            loss = -critic(generator(torch.randn(4, 2))).mean()
            loss.backward()  # adds to the critic's gradients
            optimizers[1].step()
            told.append(loss.item())
    assert trace.steps.loss.tolist() == pytest.approx(told)
    assert trace.steps.lr.tolist() == [0.1] * 3
    optimizers[0].param_groups[0]["lr"] = 0.2
    with nanlab.watch() as trace:
        for optimizer in optimizers:
            optimizer.step()
    assert trace.steps.lr.isna().all()


def test_a_program_that_was_stopped_has_no_step_in_which_nothing_ran() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    with nanlab.watch(model) as trace:
        for i in range(4):
            step(torch.full((4, 4), float("inf") if i == 2 else 1.0))
    assert trace.culprit is not None and trace.culprit.step == 2
    assert len(trace.steps) == 3 and (trace.steps.ops > 0).all()


def test_a_loop_that_never_steps_has_a_step_per_iteration() -> None:
    model = nn.Linear(3, 1)
    with nanlab.watch(model) as trace, torch.no_grad():
        for _ in range(5):
            model(torch.randn(4, 3))
    assert len(trace.steps) == 5


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("by_data", [False, True])
def test_without_an_optimizer_a_step_ends_with_the_update_by_hand(
    workers: int, by_data: bool
) -> None:
    model = nn.Linear(3, 1)

    def gradients() -> list[torch.Tensor]:
        loss = model(torch.randn(5, 3)).square().mean()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    def update(shares: list[list[torch.Tensor]]) -> None:
        for parameter, parts in zip(model.parameters(), zip(*shares, strict=True), strict=True):
            change = 0.1 * torch.stack(parts).mean(0)
            if by_data:
                parameter.data -= change
            else:
                with torch.no_grad():
                    parameter.sub_(change)

    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(5):
            update([gradients() for _ in range(workers)])
    assert len(trace.steps) == 5
    assert trace.ops.groupby("step").size().loc[[3, 4]].nunique() == 1


def test_a_rollout_under_no_grad_between_training_steps_is_no_step() -> None:
    policy = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    with nanlab.watch(policy) as trace:
        for _ in range(3):
            seen = torch.zeros(8, 3)
            state = torch.zeros(3)
            for t in range(8):
                seen[t] = state
                with torch.no_grad():
                    action = policy(state.unsqueeze(0)).argmax()
                state = state + action - 0.5
            for _ in range(2):
                optimizer.zero_grad()
                policy(seen).square().mean().backward()
                optimizer.step()
    assert len(trace.steps) == 6


@pytest.mark.parametrize("mode", ["stop", "record"])
def test_turns_of_an_inner_loop_are_no_steps_where_the_program_is_stopped_in_one(mode: Any) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def adapted(rate: float) -> dict[str, torch.Tensor]:
        weights = dict(model.named_parameters())
        for _ in range(6):
            loss = (
                torch.func.functional_call(model, weights, (torch.ones(4, 1),))
                .square()
                .log()
                .mean()
            )
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {
                name: w - rate * g for (name, w), g in zip(weights.items(), grads, strict=True)
            }
        return weights

    with nanlab.watch(model, on_fault=mode) as trace:
        for i in range(4):
            weights = adapted(1e-3 if i != 2 else 1e38)
            optimizer.zero_grad()
            torch.func.functional_call(
                model, weights, (torch.ones(4, 1),)
            ).square().mean().backward()
            optimizer.step()
    assert trace.culprit is not None and trace.culprit.step == 2
    assert len(trace.steps) == (3 if mode == "stop" else 4)


def test_time_steps_of_a_recurrent_loop_are_no_training_steps() -> None:
    cell = nn.RNNCell(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), 0.1)
    with nanlab.watch(cell) as trace:
        for _ in range(2):
            state = torch.zeros(2, 3)
            for _ in range(6):
                state = cell(torch.randn(2, 3), state)
            optimizer.zero_grad()
            state.sum().backward()
            optimizer.step()
    assert len(trace.steps) == 2


def test_evaluation_between_training_steps_adds_no_steps() -> None:
    model = small_model()
    with nanlab.watch(model) as trace:
        for _ in range(2):
            train(model, 1)
            with torch.no_grad():
                for _ in range(4):
                    model(torch.randn(6, 4))
    assert len(trace.steps) == 2


def test_a_skipped_scaler_step_is_a_step() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(3, 4)).pow(2).sum() * 1e3).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(trace.steps) == 3
    assert trace.steps.skipped.iloc[0] == 1


def test_steps_stops_after_that_many_training_steps() -> None:
    model = small_model()
    reached = []
    with nanlab.watch(model, steps=2) as trace:
        for i in range(10):
            train(model, 1)
            reached.append(i)
    assert len(trace.steps) == 2
    assert len(reached) < 10


def test_keep_bounds_the_table_and_every_step_keeps_its_summary() -> None:
    model = small_model()
    with nanlab.watch(model, keep=3) as trace:
        train(model, 12)
    assert sorted(set(trace.ops.step)) == [9, 10, 11]
    assert len(trace.steps) == 12
    assert trace.steps.loss.notna().all()
    assert set(trace.parameters.step) == set(range(12))


# -- statuses
# ------------------------------------------------------------


def status(trace: nanlab.Trace, op: str) -> list[str]:
    return trace.ops[trace.ops.op == op].status.tolist()


def test_statuses_say_what_became_of_a_bad_value() -> None:
    x = torch.tensor([0.0, 1.0])
    with nanlab.watch(on_fault="record") as trace:
        y = torch.log(x)
        z = y * 2
        w = z - z
        torch.nan_to_num(w)
    assert status(trace, "log") == ["born"]
    assert status(trace, "mul") == ["carried"]
    assert status(trace, "sub") == ["turned"]
    assert status(trace, "nan_to_num") == ["healed"]


@pytest.mark.parametrize(
    ("op", "use", "word"),
    [
        ("mul", lambda x: x * 0, "turned"),
        ("sub", lambda x: x - float("inf"), "turned"),
        ("sub", lambda x: x - x, "turned"),
        ("mul", lambda x: x * torch.tensor([1.0, 0.0]), "turned"),
        ("mul", lambda x: x * torch.tensor([0.0, 1.0]), "carried"),
        ("mul", lambda x: x * torch.tensor([1.0, torch.nan]), "carried"),
    ],
)
def test_an_infinity_beside_a_nan_is_told_where_it_becomes_nan_too(
    op: str, use: Callable[[torch.Tensor], torch.Tensor], word: str
) -> None:
    x = torch.tensor([float("nan"), float("inf")])
    with nanlab.watch(on_fault="record") as trace:
        use(x)
    assert status(trace, op) == [word]


def test_an_infinity_that_the_program_writes_is_intended() -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.full((3,), float("-inf"))
        torch.ones(3).masked_fill(torch.tensor([True, False, False]), float("-inf"))
    assert status(trace, "full") == ["intended"]
    assert status(trace, "masked_fill") == ["intended"]


@pytest.mark.parametrize(("bad", "word"), [("nan", "intended"), ("inf", "born")])
def test_an_infinity_written_over_a_nan_is_intended_too(bad: str, word: str) -> None:
    x = torch.tensor([[1.0, 2.0], [float(bad), float(bad)]])
    with nanlab.watch(on_fault="record") as trace:
        y = (x * 2).masked_fill(torch.tensor([False, True]), float("-inf"))
        y.masked_fill(torch.tensor([[False], [True]]), float("-inf"))
        (x * 2).masked_fill(torch.tensor([[True, False], [True, True]]), float("-inf"))
    kept, _, over = status(trace, "masked_fill")
    assert (kept, over) == ("born", word)


def test_a_birth_is_seen_beside_an_intended_infinity() -> None:
    mask = torch.tensor([0.0, 0.0, 1.0])
    with nanlab.watch(on_fault="record") as trace:
        scores = torch.tensor([1.0, 200.0, 3.0]).masked_fill(mask.bool(), float("-inf"))
        torch.exp(scores)
    assert status(trace, "exp") == ["born"]


def test_a_write_behind_the_watchs_back_is_data() -> None:
    x = torch.ones(3)
    with nanlab.watch(on_fault="record") as trace:
        y = x * 1.0
        y.numpy()[1] = float("nan")
        z = y + 1
        assert z.isnan().any()
    assert "born" not in status(trace, "add")


def test_running_statistics_are_rows_although_the_schema_does_not_say_so() -> None:
    model = small_model()
    model[1].running_mean.fill_(1.0)  # type: ignore[union-attr, operator]
    with nanlab.watch(model, on_fault="record") as trace:
        model(torch.full((6, 4), float("inf")))
    norm = trace.ops[trace.ops.op == "native_batch_norm"]
    assert len(norm) == 5
    assert (norm.nan.iloc[3:] + norm.posinf.iloc[3:] + norm.neginf.iloc[3:] > 0).any()


def test_foreach_results_are_the_mutated_arguments() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    with nanlab.watch(model) as trace:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    updates = trace.ops[trace.ops.op == "_foreach_addcdiv_"]
    assert updates["shape"].tolist() == [(2, 3), (2,)]
    assert set(updates.phase) == {"optimizer"}


# -- the tables
# ------------------------------------------------------------


def test_histogram_and_counts_add_up_to_numel_for_every_row() -> None:
    model = small_model()
    with nanlab.watch(model, keep=9) as trace:
        train(model, 2)
    ops = trace.ops
    floats = ops[ops.dtype.str.contains("float") & ops.numel.notna()]
    for row in floats.itertuples():
        inside = int(trace.histogram(row.position).sum())
        assert inside + row.zero + row.nan + row.posinf + row.neginf == row.numel


def test_every_executed_node_is_a_row_of_backward_in_order() -> None:
    x = torch.ones(3, requires_grad=True)
    with nanlab.watch() as trace:
        ((x * 2).exp() + 1).sum().backward()
    assert trace.backward.name.tolist() == [
        "SumBackward0",
        "AddBackward0",
        "ExpBackward0",
        "MulBackward0",
        "AccumulateGrad",
    ]
    assert trace.backward.order.tolist() == [0, 1, 2, 3, 4]
    assert trace.backward.gain.iloc[3] == pytest.approx(2.0)


def test_parameters_have_value_gradient_and_update() -> None:
    model = nn.Linear(2, 1, bias=False)
    with nanlab.watch(model) as trace:
        before = model.weight.detach().clone()
        model(torch.tensor([[3.0, 4.0]])).sum().backward()
        torch.optim.SGD(model.parameters(), 0.5).step()
    row = trace.parameters.iloc[0]
    assert row.parameter == "weight"
    assert row.gradient_absmax == 4.0
    assert row.update_absmax == pytest.approx(2.0)
    assert row.value_absmax == pytest.approx(
        (before - 0.5 * torch.tensor([[3.0, 4.0]])).abs().max().item()
    )


# -- the program itself
# ------------------------------------------------------------


def test_training_is_bit_identical_with_and_without_a_watch() -> None:
    def run(watched: bool) -> list[torch.Tensor]:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())
        if watched:
            with nanlab.watch(model):
                train(model, 5, optimizer)
        else:
            train(model, 5, optimizer)
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))


def test_stop_ends_the_block_before_the_parameters_are_poisoned() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nanlab.watch(model) as trace:
        for i in range(5):
            optimizer.zero_grad()
            (torch.sqrt(model(torch.randn(6, 4)) * 0.0).sum()).backward()
            optimizer.step()
            raise AssertionError(f"not reached {i}")
    assert trace.culprit is not None
    assert trace.culprit.op == "sqrt"
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_an_exception_of_the_program_passes_through_and_everything_recorded_is_kept() -> None:
    model = small_model()
    with pytest.raises(ValueError, match="mine"), nanlab.watch(model) as trace:  # noqa: PT012
        train(model, 2)
        raise ValueError("mine")
    assert len(trace.ops) > 0
    assert nanlab.last is trace


def test_every_hook_and_mode_is_undone_whatever_happens() -> None:
    from torch.nn.modules import module as hooks
    from torch.optim import optimizer as optim
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    def state() -> tuple[object, ...]:
        return (
            len(hooks._global_forward_hooks),
            len(hooks._global_forward_pre_hooks),
            len(optim._global_optimizer_pre_hooks),
            len(optim._global_optimizer_post_hooks),
            torch.autograd._engine_run_backward,
            torch.amp.GradScaler.scale,
            _get_current_dispatch_mode(),
        )

    before = state()
    for error in (None, KeyboardInterrupt, RuntimeError):
        try:
            with nanlab.watch(small_model()):
                torch.ones(2, requires_grad=True).sum().backward()
                if error is not None:
                    raise error
        except (KeyboardInterrupt, RuntimeError):
            pass
        assert state() == before


def test_an_interrupt_in_mid_backward_keeps_what_was_recorded() -> None:
    x = torch.ones(3, requires_grad=True)

    def interrupt(grad: torch.Tensor) -> None:
        raise KeyboardInterrupt

    y = x * 2
    y.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), nanlab.watch() as trace:
        y.exp().sum().backward()
    assert "exp" in trace.ops.op.tolist()
    with nanlab.watch() as again:
        (x * 3).sum().backward()
    assert not again.notes


@pytest.mark.parametrize(
    "where",
    [
        "nanlab.capture.evidence.Evidence.judge",
        "nanlab.stats.StatsTable.add",
        "nanlab.capture.dispatch.plan_for",
        "nanlab.capture.location.Locator.place",
        "nanlab.capture.training.TrainingRecorder.start",
        "nanlab.capture.places.ModuleRecorder.start",
        "nanlab.capture.backward.BackwardRecorder.start",
        "nanlab.topics.note_flushes",
        "nanlab.capture.watching.fold",
    ],
)
def test_a_failure_inside_nanlab_never_takes_the_run_down(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def run() -> list[float]:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (
                model(torch.randn(6, 4, generator=torch.Generator().manual_seed(1))).pow(2).mean()
            )
            (loss + torch.tensor(float("inf")).mul(0).nan_to_num()).backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    bare = run()

    def broken(*args: object, **kwargs: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(where, broken)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with nanlab.watch(on_fault="record") as trace:
            watched = run()
    assert watched == bare
    assert len(trace.notes) == 1
    assert "planted" in trace.notes[0]
    assert sum("nanlab itself failed" in str(w.message) for w in said) == 1
    assert not torch.nn.modules.module._global_forward_hooks


def run_with_fault(bad_step: int) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        out = model(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
        (
            (out - out.detach() * (step >= bad_step)).pow(2).sum() - (step < bad_step) * 0.0
        ).sqrt().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("where", "calls"),
    [
        ("evidence.Evidence.judge", 0),
        *[
            (name, calls)
            for name in ("location.Locator.place", "dispatch.OpRecorder.write")
            for calls in (0, 1, 40, 90)
        ],
    ],
)
def test_a_failure_inside_nanlab_accuses_nobody_of_what_came_after_it(
    monkeypatch: pytest.MonkeyPatch, where: str, calls: int
) -> None:
    owner, name = where.rsplit(".", 1)
    original, left = (
        getattr(pkgutil.resolve_name("nanlab.capture." + owner.replace(".", ":")), name),
        [calls],
    )

    def broken(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError("planted")
        return original(*args, **kwargs)

    monkeypatch.setattr(f"nanlab.capture.{where}", broken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nanlab.watch(on_fault="record") as trace:
            run_with_fault(2)
    assert left[0] < 0
    assert trace.culprit is None
    assert trace.findings == []
    assert "Incomplete: nanlab itself failed" in repr(trace.report())
    assert ">healthy<" not in trace.report()._repr_html_()
    assert "Incomplete" in trace.report()._repr_html_()


def test_a_fault_that_showed_before_a_failure_inside_nanlab_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Locator.place

    def broken(self: Locator, frame: object) -> object:
        if self.clock.starts[-1] and len(self.clock.starts) == 4:
            raise ZeroDivisionError("planted")
        return original(self, frame)

    monkeypatch.setattr("nanlab.capture.location.Locator.place", broken)
    with pytest.warns(RuntimeWarning, match="planted"), nanlab.watch(on_fault="record") as trace:
        run_with_fault(1)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("sqrt-at-zero", 1)


@pytest.mark.parametrize(
    "recorder", ["backward.BackwardRecorder", "places.ModuleRecorder", "training.TrainingRecorder"]
)
def test_a_recorder_that_fails_to_stop_leaves_no_hook_of_the_others(
    monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    where = f"nanlab.capture.{recorder}.stop"
    stop = pkgutil.resolve_name(f"nanlab.capture.{recorder.replace('.', ':')}").stop

    def broken(self: object) -> None:
        stop(self)
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(where, broken)
    engine = torch.autograd.graph._engine_run_backward
    with pytest.warns(RuntimeWarning, match="planted"), nanlab.watch(small_model()) as trace:
        torch.ones(2, requires_grad=True).sum().backward()
    assert any("planted" in note for note in trace.notes)
    assert not torch.nn.modules.module._global_forward_hooks
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    assert torch.autograd.graph._engine_run_backward is engine
    monkeypatch.undo()
    with nanlab.watch():  # the former is not taken for running still
        pass


def test_a_rule_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    import nanlab.rules as rules

    def broken(*args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("nanlab.rules.harmful_origins", broken)
    x = torch.zeros(2, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.sqrt(x).sum().backward()
    assert trace.culprit is None or rules
    assert any("planted" in note for note in trace.notes)
    assert len(trace.ops) > 0


def test_a_compiled_model_is_watched_without_a_warning_about_hooks_that_nobody_set() -> None:
    model = torch.compile(small_model(), backend="eager")
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with nanlab.watch(model) as trace:
            model(torch.randn(6, 4)).sum().backward()
    assert len(trace.ops) and not [w for w in said if "global hooks" in str(w.message)]
    assert warnings.filters == filters


# -- bad input
# ------------------------------------------------------------


def test_a_histogram_of_no_position_is_refused_with_what_was_seen() -> None:
    with nanlab.watch() as trace:
        torch.ones(2) * 2
    with pytest.raises(TypeMismatchError, match="got 'first'"):
        trace.histogram("first")  # type: ignore[arg-type]


@pytest.mark.parametrize("position", [-1, 10**9])
def test_a_position_without_a_row_is_refused_by_all_who_ask_for_one(position: int) -> None:
    layer = nn.Linear(2, 2)
    with nanlab.watch(layer) as trace:
        layer(torch.ones(1, 2))
    for take in (trace.histogram, trace.tensor, trace.why):
        with pytest.raises(UsageError, match=f"no row at position {position}"):
            take(position)


def test_a_model_that_is_no_module_is_refused() -> None:
    with pytest.raises(TypeMismatchError, match=r"expected a torch.nn.Module to watch.* got int"):
        nanlab.watch(3)  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match=r'a list of modules; try: .*"G": G'):
        nanlab.watch([nn.Linear(1, 1)])  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match=r'a list of modules; try: .*"G": G'):
        nanlab.watch(nn.Linear(1, 1), nn.Linear(1, 1))
    with pytest.raises(TypeMismatchError, match=r"got 10 as well; try: .*steps=10"):
        nanlab.watch(nn.Linear(1, 1), 10)
    layer = nn.Linear(1, 1)
    with pytest.raises(
        TypeMismatchError, match="got a value of SGD as well, which is seen without"
    ):
        nanlab.watch(layer, torch.optim.SGD(layer.parameters(), 0.1))
    with pytest.raises(TypeMismatchError, match=r'got the key 1; try: .*"G": G'):
        nanlab.watch({1: nn.Linear(1, 1)})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("keep", -1),
        ("steps", "3"),
        ("keep", 1.5),
        ("on_fault", "explode"),
        ("shadow", "int8"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_seen(name: str, value: object) -> None:
    with pytest.raises(NanlabError, match=str(value)):
        nanlab.watch(**{name: value})  # type: ignore[arg-type]


def test_watches_do_not_nest() -> None:
    with nanlab.watch(), pytest.raises(UsageError, match="already running"), nanlab.watch():
        pass


def test_a_watch_in_a_thread_is_refused() -> None:
    seen: list[Exception] = []

    def work() -> None:
        try:
            with nanlab.watch():
                pass
        except NanlabError as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(seen[0])


def test_forked_loader_workers_are_not_watched_and_do_no_harm() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(
        data, batch_size=2, num_workers=1, multiprocessing_context="fork"
    )
    with nanlab.watch() as trace:
        total = sum(batch[0].sum().item() for batch in loader)
    assert total == 28.0
    assert not trace.notes


def test_odd_tensors_are_rows_without_numbers_and_without_harm() -> None:
    with nanlab.watch() as trace:
        torch.empty(3, device="meta") + 1
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        torch.eye(3).to_sparse() @ torch.ones(3, 2)
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        torch.empty(0).sum()
        torch.complex(torch.ones(2), torch.zeros(2)).abs()
    assert not trace.notes
    assert len(trace.ops) > 5


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_fault_beside_tensors_without_memory_is_told_from_its_first_step() -> None:
    layer, degrees = nn.Linear(3, 2), torch.tensor([1.0, 0.0])

    def step(make: Callable[[], object]) -> None:
        held = make()  # as a name of the function in which the fault shows
        (layer(torch.ones(2, 3)) * degrees.pow(-0.5)[:, None]).sum().backward()
        del held

    for make in (
        torch.eye(3).to_sparse,
        torch.eye(3).to_sparse_csr,
        torch.eye(3).to_mkldnn,
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.empty(3, device="meta"),
    ):
        with nanlab.watch(layer, on_fault="record") as trace:
            for _ in range(3):
                step(make)
        assert not trace.notes
        assert trace.culprit is not None
        assert (trace.culprit.cause, trace.culprit.step) == ("pow-fraction-at-zero", 0)
        assert trace.replay().identical


def test_a_fault_inside_of_vmap_is_told() -> None:
    def share(row: torch.Tensor) -> torch.Tensor:
        total = row.sum() * 0
        return row / total

    layer = nn.Linear(3, 1)
    with nanlab.watch(layer, on_fault="record") as trace:
        layer(torch.func.vmap(share)(torch.ones(4, 3))).mean().backward()
    assert not trace.notes
    assert trace.culprit is not None
    assert trace.culprit.cause == "div-by-zero"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_odd_parameters_are_trained_without_harm() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    ragged = nn.Parameter(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))
    double = nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))
    turning = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = torch.optim.SGD([double, turning], 0.1)
    with nanlab.watch() as trace:
        (ragged * 2).to_padded_tensor(0).sum().backward()
        for _ in range(2):
            optimizer.zero_grad()
            (double * 3).sum().backward()
            turning.abs().sum().backward()
            optimizer.step()
    assert not trace.notes and trace.culprit is None
    assert "parameter 0 (nested)" in set(trace.parameters.parameter)


def test_ragged_leaves_with_gradients_are_computed_with() -> None:
    def leaf(*rows: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor(list(rows), layout=torch.jagged, requires_grad=True)

    with nanlab.watch(on_fault="record") as trace:
        healthy = leaf(torch.ones(2, 3), torch.ones(3, 3))
        (healthy * 2).values().sum().backward()
        holed = leaf(torch.zeros(2), torch.ones(3))
        (holed / holed).values().sum().backward()
    assert healthy.grad is not None and healthy.grad.values().eq(2).all()
    assert trace.culprit is not None and "holed / holed" in trace.culprit.source


def test_a_trace_keeps_no_tensor_of_a_healthy_run() -> None:
    import gc
    import weakref

    model = small_model()
    with nanlab.watch(model) as trace:
        batch = torch.randn(6, 4)
        loss = model(batch).sum()
        loss.backward()
    gone = weakref.ref(batch)
    del batch, loss
    gc.collect()
    assert gone() is None
    assert len(trace.ops) > 0


def test_statuses_and_culprit_are_the_same_when_statistics_come_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU a row stays on the device until the step ends; here every row is treated so."""
    from nanlab.stats import StatsTable

    def run() -> nanlab.Trace:
        torch.manual_seed(1)
        model = small_model()
        optimizer = torch.optim.Adam(model.parameters())
        with nanlab.watch(model, on_fault="record", keep=9) as trace:
            for i in range(4):
                x = torch.randn(6, 4)
                mask = torch.zeros(6, 4).masked_fill(torch.eye(6, 4).bool(), float("-inf"))
                optimizer.zero_grad()
                y = model(torch.softmax(x + mask, 1))
                loss = torch.log(y.relu() * (i != 2) + (i == 2) * 0.0 + (i != 2) * 1.0).sum()
                loss.backward()
                optimizer.step()
        return trace

    at_once = run()
    add = StatsTable.add

    def late(self: StatsTable, t: torch.Tensor) -> int:
        row = add(self, t)
        self.bad = -1
        return row

    monkeypatch.setattr(StatsTable, "add", late)
    later = run()
    assert not later.notes
    assert later.ops.status.tolist() == at_once.ops.status.tolist()
    first, second = at_once.culprit, later.culprit
    assert first is not None and second is not None
    assert (first.line, first.op, first.phase, first.step) == (
        second.line,
        second.op,
        second.phase,
        second.step,
    )


def test_a_compiled_model_is_watched_without_being_recompiled_for_us(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    compiled = torch.compile(model, backend="eager")
    with warnings.catch_warnings(), nanlab.watch(model, on_fault="record") as trace:
        warnings.simplefilter("ignore")  # torch's own, of global module hooks
        for _ in range(3):
            (compiled(torch.ones(8, 4)) * 0).log().mean().backward()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    assert "recompile" not in caplog.text


def test_a_trace_tells_its_size_and_what_to_ask() -> None:
    model = nn.Linear(2, 1)
    with nanlab.watch(model) as trace:
        model(torch.ones(1, 2)).sum().backward()
    rows = len(trace.ops)
    assert repr(trace) == f"<nanlab.Trace: {rows} rows, 1 step; try .report(), .culprit, .ops>"


class Measured(torch.Tensor):
    """A tensor type with a protocol of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_the_line_of_an_operation_is_not_in_the_protocol_of_a_tensor_type() -> None:
    x = torch.zeros(2).as_subclass(Measured)
    with nanlab.watch() as trace:
        x.log()
    assert trace.ops["source"].iloc[-1] == "x.log()"
    assert trace.ops["site_line"].iloc[-1] != trace.ops["line"].iloc[-1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda trace, path: trace.save(path),
        lambda trace, path: trace.replay().finite,
        lambda trace, path: (trace.tensor(0), trace.why(5)),
        lambda trace, path: (str(trace.report()), trace.culprit, trace.cure),
        lambda trace, path: (str(trace.underflow()), str(trace.stepper())),
        lambda trace, path: nanlab.advise_eps(lambda x, eps: torch.log(x + eps), KNOWN),
        lambda trace, path: nanlab.explain(ValueError("shape")),
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_what_nanlab_computes_inside_of_a_watch_is_none_of_the_programs(
    ask: Any, steps: int, tmp_path: Path
) -> None:
    def watched(ask: Any) -> nanlab.Trace:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        with nanlab.watch(net) as trace:
            for i in range(steps + 1):
                if i == steps:
                    ask(trace, tmp_path / "run.nanlab")
                opt.zero_grad()
                net(torch.randn(3, 4)).square().mean().backward()
                opt.step()
        return trace

    asked, plain = watched(ask), watched(lambda trace, path: None)
    assert asked.ops.op.tolist() == plain.ops.op.tolist()
    assert len(asked.steps) == len(plain.steps) and asked.findings == [] and not asked.notes


KNOWN = torch.zeros(3)


def test_histogram_of_whole_numbers_and_truth_values_counts_their_exponents_too() -> None:
    with nanlab.watch() as trace:
        whole = torch.tensor([0, 1, 2, 3, -4, 100]).clone()
        truth = whole > 1
        most = torch.full((3,), torch.iinfo(torch.int64).min)
    del truth, most
    rows = trace.ops.set_index("op").position
    found = {op: trace.histogram(rows[op]).to_dict() for op in ("clone", "gt", "full")}
    assert found == {"clone": {0: 1, 1: 2, 2: 1, 6: 1}, "gt": {0: 3}, "full": {63: 3}}


def test_a_watch_in_which_nothing_ran_has_no_steps() -> None:
    with nanlab.watch() as trace:
        pass
    assert "0 rows, 0 steps" in repr(trace)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"guard": True}, r"nanlab\.guard\(loader, model, optimizer\)"),
        ({"save": "x.nanlab"}, r"trace\.save\("),
        ({"onfault": "stop"}, "try: on_fault"),
    ],
)
def test_an_option_that_watch_has_not_is_refused_with_the_right_way(
    option: dict[str, Any], told: str
) -> None:
    with pytest.raises(TypeMismatchError, match=told):
        nanlab.watch(nn.Linear(2, 1), **option)
