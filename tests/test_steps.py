"""What counts as a training step: loops inside of loops, phases one after the other, functions that
are a step, programs without an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nanlab

Data = Callable[[], torch.Tensor]


def draw() -> torch.Tensor:
    return torch.randn(8, 4)


def update(net: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> None:
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()


def pair() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    one, other = nn.Linear(4, 2), nn.Linear(4, 2)
    return (
        one,
        other,
        torch.optim.SGD(one.parameters(), lr=0.01),
        torch.optim.Adam(other.parameters(), lr=0.01),
    )


def optimizer_steps(trace: nanlab.Trace) -> list[int]:
    return [int(n) for n in trace.steps.optimizer_steps]


# -- loops inside of loops
# ------------------------------------------------------------


@pytest.mark.parametrize("in_functions", [False, True])
def test_a_critic_that_learns_several_times_before_its_generator_shares_its_step(
    in_functions: bool,
) -> None:
    critic, generator, opt_d, opt_g = pair()

    def critics() -> None:
        for _ in range(3):
            update(critic, opt_d, draw())

    with nanlab.watch() as trace:
        for _ in range(5):
            if in_functions:
                critics()
            else:
                for _ in range(3):
                    update(critic, opt_d, draw())
            update(generator, opt_g, draw())
    assert optimizer_steps(trace) == [4] * 5


def test_a_generator_that_learns_on_every_third_batch_makes_no_longer_steps() -> None:
    critic, generator, opt_d, opt_g = pair()
    with nanlab.watch() as trace:
        for i in range(6):
            update(critic, opt_d, draw())
            if i % 3 == 2:
                update(generator, opt_g, draw())
    assert optimizer_steps(trace) == [1, 1, 2, 1, 1, 2]


def test_an_epoch_that_ends_with_another_optimizer_is_no_step() -> None:
    net, other, opt, opt_other = pair()
    with nanlab.watch() as trace:
        for _ in range(2):
            for _ in range(40):
                update(net, opt, draw())
            update(other, opt_other, draw())
    assert optimizer_steps(trace) == [1] * 82


def test_a_chain_that_only_samples_is_no_row_of_steps() -> None:
    net, _, opt, _ = pair()
    with nanlab.watch() as trace:
        for _ in range(4):
            x = draw()
            for _ in range(3):
                x = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(net(x).sum(), x)
                x = x - 0.1 * slope
            update(net, opt, x.detach())
    assert optimizer_steps(trace) == [1] * 4


# -- phases one after the other
# ------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("in_functions", [False, True])
def test_the_last_step_of_a_phase_and_the_first_of_the_next_are_two(
    in_functions: bool, rounds: int
) -> None:
    net, other, opt, opt_other = pair()

    def phase(net: nn.Module, opt: torch.optim.Optimizer) -> None:
        for _ in range(3):
            update(net, opt, draw())

    with nanlab.watch() as trace:
        for _ in range(rounds):
            if in_functions:
                phase(net, opt)
                phase(other, opt_other)
            else:
                for _ in range(3):
                    update(net, opt, draw())
                for _ in range(3):
                    update(other, opt_other, draw())
    assert optimizer_steps(trace) == [1] * 6 * rounds


def test_an_evaluation_after_the_loop_or_between_epochs_is_no_step() -> None:
    net, _, opt, _ = pair()
    with nanlab.watch() as trace:
        for _ in range(3):
            for _ in range(2):
                update(net, opt, draw())
            with torch.no_grad():
                for _ in range(2):
                    net(draw()).mean()
    assert optimizer_steps(trace) == [1] * 6


# -- functions that are a step
# ------------------------------------------------------------


def test_every_call_of_a_training_step_is_one_whatever_loops_inside_of_it() -> None:
    net, _, opt, _ = pair()

    def train_step(x: torch.Tensor) -> None:
        for part in x.split(4):
            update(net, opt, part)

    with nanlab.watch() as trace:
        for _ in range(2):
            for _ in range(3):
                train_step(draw())
            with torch.no_grad():
                net(draw())
    assert optimizer_steps(trace) == [2] * 6


def test_while_a_debugger_traces_the_program_its_loops_are_the_steps_and_it_goes_on_as_before() -> (
    None
):
    net, _, opt, _ = pair()

    def trace_nothing(frame: object, event: str, arg: object) -> None:
        return None

    def step(i: int) -> None:
        update(net, opt, draw())
        update(net, opt, draw())

    before = sys.gettrace()
    with nanlab.watch() as trace:
        for i in range(6):
            if i == 2:
                sys.settrace(trace_nothing)
            step(i)
            if i == 3:
                sys.settrace(before)
    assert sum(optimizer_steps(trace)) == 12 and trace.notes == []
    assert optimizer_steps(trace)[:2] == [2, 2] and optimizer_steps(trace)[-1] == 2


def test_calls_that_skip_their_batch_and_calls_before_the_first_update_count_too() -> None:
    net, _, opt, _ = pair()
    buffer: list[torch.Tensor] = []

    def step(i: int) -> None:
        x = draw()
        buffer.append(x)
        if len(buffer) < 3 or i == 4:
            return
        update(net, opt, x)

    with nanlab.watch() as trace:
        for i in range(7):
            step(i)
    assert optimizer_steps(trace) == [0, 0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("on_fault", ["record", "stop"])
def test_a_fault_is_in_the_step_of_its_call_where_the_program_stops_inside_of_a_loop(
    on_fault: str,
) -> None:
    net, _, opt, _ = pair()

    def step(i: int) -> None:
        for k in range(4):
            x = draw()
            opt.zero_grad()
            (net(x).square().mean() / (0.0 if (i, k) == (2, 2) else 1.0)).backward()
            opt.step()

    with nanlab.watch(on_fault=on_fault) as trace:
        for i in range(4):
            step(i)
    assert trace.culprit is not None and trace.culprit.step == 2


def test_calls_that_add_to_the_gradients_of_the_one_before_are_steps_too() -> None:
    net, _, opt, _ = pair()

    def train_step(i: int) -> None:
        net(draw()).square().mean().backward()
        if i % 3 == 2:
            opt.step()
            opt.zero_grad()

    with nanlab.watch() as trace:
        for i in range(6):
            train_step(i)
    assert optimizer_steps(trace) == [0, 0, 1] * 2


def test_networks_that_are_stepped_by_one_method_in_turn_share_a_step() -> None:
    one, other, opt, opt2 = pair()

    class Agent:
        def __init__(self, net: nn.Module, opt: torch.optim.Optimizer) -> None:
            self.net, self.opt = net, opt

        def train_step(self) -> None:
            update(self.net, self.opt, draw())

    def ran(steps: int | None = None, again: bool = False) -> list[int]:
        first, second = Agent(one, opt), Agent(other, opt2)
        with nanlab.watch(steps=steps) as trace:
            for _ in range(4):
                first.train_step()
                (first if again else second).train_step()
        return optimizer_steps(trace)

    assert ran() == [2] * 4
    assert ran(steps=2) == [2] * 2
    assert ran(again=True) == [1] * 8


def test_networks_that_are_stepped_by_one_method_in_loops_of_their_own_do_not() -> None:
    one, other, opt, opt2 = pair()

    def train_step(net: nn.Module, opt: torch.optim.Optimizer) -> None:
        update(net, opt, draw())

    with nanlab.watch() as trace:
        for _ in range(2):
            for _ in range(3):
                train_step(one, opt)
            for _ in range(3):
                train_step(other, opt2)
    assert optimizer_steps(trace) == [1] * 12


def test_a_training_step_that_goes_on_with_another_optimizer_on_a_later_line_of_its_own_is_the_next_step() -> (
    None
):
    one, other, opt, opt2 = pair()

    def train_step(i: int) -> None:
        if i < 2:
            update(one, opt, draw())
        else:
            update(other, opt2, draw())

    with nanlab.watch() as trace:
        for i in range(5):
            train_step(i)
    assert optimizer_steps(trace) == [1] * 5


def test_a_watch_that_begins_inside_of_a_call_counts_the_next_as_the_second_step() -> None:
    net, _, opt, _ = pair()
    watching = nanlab.watch()

    def step(i: int) -> None:
        if i == 2:
            watching.__enter__()
        update(net, opt, draw())

    for i in range(6):
        step(i)
    watching.__exit__(None, None, None)
    assert optimizer_steps(watching.trace) == [1] * 4


def test_a_generator_named_like_a_training_step_that_never_returns_has_the_steps_of_its_loop() -> (
    None
):
    net, _, opt, _ = pair()

    def train_step() -> Iterator[None]:
        while True:
            update(net, opt, draw())
            yield

    training = train_step()
    with nanlab.watch() as trace:
        for _ in range(4):
            next(training)
    assert optimizer_steps(trace) == [1] * 4


def test_a_shuffled_loader_that_finds_its_data_exhausted_begins_no_step() -> None:
    net, _, opt, _ = pair()
    loader = torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4, shuffle=True)
    with nanlab.watch(net) as trace:
        for _ in range(2):
            for x in loader:
                update(net, opt, x)
    assert optimizer_steps(trace) == [1] * 6


def test_a_turn_that_is_left_before_it_trains_is_no_step_but_one_that_failed_is() -> None:
    net, _, opt, _ = pair()

    def train(error: type[Exception] | None) -> nanlab.Trace:
        with nanlab.watch(net) as trace:
            for i in range(10):
                x = draw()
                if i == 4 and error is not None:
                    raise error("no more data")
                if i == 4:
                    break
                update(net, opt, x)
        return trace

    assert optimizer_steps(train(None)) == [1] * 4
    with pytest.raises(ValueError, match="no more data"):
        train(ValueError)
    assert nanlab.last is not None
    assert optimizer_steps(nanlab.last) == [1] * 4 + [0]


def test_backward_passes_of_a_sampler_before_the_first_update_are_part_of_its_step() -> None:
    net, _, opt, _ = pair()
    with nanlab.watch(net) as trace:
        for _ in range(4):
            x = draw()
            net.requires_grad_(False)
            for _ in range(3):
                x = x.detach().requires_grad_(True)
                net(x).sum().backward()
                x = x.data - 0.05 * x.grad
            net.requires_grad_(True)
            update(net, opt, x.detach())
    assert optimizer_steps(trace) == [1] * 4


def test_updates_by_hand_before_an_optimizer_stay_steps() -> None:
    net, _, opt, _ = pair()
    with nanlab.watch(net) as trace:
        for _ in range(3):
            net.zero_grad()
            net(draw()).square().mean().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.01 * p.grad
        for _ in range(2):
            update(net, opt, draw())
    assert optimizer_steps(trace)[:2] == [0, 0]
    assert optimizer_steps(trace)[-2:] == [1, 1]


def test_the_step_of_an_environment_or_of_an_optimizer_is_no_training_step() -> None:
    net, _, opt, _ = pair()

    class World:
        def step(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return 0.9 * state + action.sum()

    class Descent:
        def step(self) -> None:
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.01 * p.grad

    def played(end: Callable[[], None]) -> nanlab.Trace:
        world = World()
        with nanlab.watch() as trace:
            for _ in range(4):
                state, gains = draw(), []
                for _ in range(3):
                    action = net(state)
                    state = world.step(state, action.detach())
                    gains.append(action.mean())
                net.zero_grad()
                torch.stack(gains).sum().backward()
                end()
        return trace

    assert optimizer_steps(played(opt.step)) == [1] * 4
    assert len(played(Descent().step).steps) == 4


def test_a_helper_that_gets_a_loss_made_outside_of_it_is_no_training_step() -> None:
    net, _, opt, _ = pair()

    def step(loss: torch.Tensor) -> None:
        opt.zero_grad()
        loss.backward()
        opt.step()

    with nanlab.watch() as trace:
        for _ in range(4):
            step(net(draw()).square().mean())
    assert optimizer_steps(trace) == [1] * 4


# -- programs without an optimizer
# ------------------------------------------------------------


def test_gradients_that_are_only_asked_for_make_steps_with_a_loss() -> None:
    torch.manual_seed(0)
    w, losses = torch.randn(4), []
    with nanlab.watch() as trace:
        for _ in range(5):
            w = w.detach().requires_grad_()
            loss = (draw() @ w).square().mean()
            (slope,) = torch.autograd.grad(loss, w)
            losses.append(float(loss.detach()))
            w = w - 0.1 * slope
    assert trace.steps.loss.tolist() == pytest.approx(losses)


def test_an_inner_loop_of_asked_gradients_belongs_to_the_outer_turn() -> None:
    torch.manual_seed(0)
    w, log_rate = torch.randn(4), torch.zeros(())
    with nanlab.watch() as trace:
        for _ in range(4):
            log_rate, fast = log_rate.detach().requires_grad_(), w.detach().requires_grad_()
            for _ in range(3):
                (slope,) = torch.autograd.grad(
                    (draw() @ fast).square().mean(), fast, create_graph=True
                )
                fast = fast - 0.1 * log_rate.exp() * slope
            (hyper,) = torch.autograd.grad((draw() @ fast).square().mean(), log_rate)
            log_rate, w = log_rate - 0.1 * hyper, fast
    assert len(trace.steps) == 4


def rooted(eps: float, by_data: bool) -> nanlab.Trace:
    """Weights without a module, updated in place with gradients that were asked for; a row of zeros
    comes in step 2."""
    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)

    def step(i: int) -> None:
        x = torch.randn(5, 3) * (i != 2)
        loss = ((x * w).square().sum(1) + eps).sqrt().mean()  # here
        (slope,) = torch.autograd.grad(loss, w)
        if by_data:
            w.data -= 0.1 * slope
        else:
            with torch.no_grad():
                w.sub_(0.1 * slope)

    with nanlab.watch(on_fault="record") as trace:
        for i in range(5):
            step(i)
    return trace


@pytest.mark.parametrize("by_data", [False, True])
def test_a_leaf_that_is_written_with_the_gradient_that_was_asked_for_is_a_parameter(
    by_data: bool,
) -> None:
    found = rooted(0.0, by_data).culprit
    assert found is not None
    assert (found.cause, found.phase, found.step, found.symptom) == (
        "sqrt-at-zero",
        "backward",
        2,
        "param-nan",
    )
    assert found.source.endswith("# here")
    assert rooted(1e-6, by_data).culprit is None


def em(mass: float) -> nanlab.Trace:
    """Expectation-maximisation by hand; from step 3 on nothing belongs to any component, and
    ``mass`` is added to what does."""
    torch.manual_seed(0)
    mean = torch.tensor([-1.0, 1.0])

    def step(i: int) -> None:
        nonlocal mean
        x = torch.randn(20) + (100.0 if i == 3 else 0.0)
        share = (-((x[:, None] - mean) ** 2)).exp()
        total = share.sum(0)
        mean = (share * x[:, None]).sum(0) / (total + mass)  # here

    with nanlab.watch() as trace:
        for i in range(6):
            step(i)
    return trace


def test_a_nan_that_is_carried_from_step_to_step_is_harm_where_nothing_has_gradients() -> None:
    found = em(0.0).culprit
    assert found is not None
    assert (found.cause, found.phase, found.step) == ("div-by-zero", "forward", 4)
    assert found.source.endswith("# here")
    assert em(1e-3).culprit is None


def test_a_nan_in_a_record_of_one_step_is_no_harm() -> None:
    kept = []

    def step(i: int) -> None:
        x = torch.randn(5)
        kept.append(x[x > 10].mean())

    with nanlab.watch() as trace:
        for i in range(4):
            step(i)
    assert trace.culprit is None and len(trace.steps) == 4


@pytest.mark.parametrize("on_fault", ["stop", "record"])
def test_turns_that_make_new_parameters_of_their_gradients_are_steps_in_a_run_that_stops_too(
    on_fault: Any,
) -> None:
    random, w = torch.Generator().manual_seed(0), {"weight": torch.ones(2, 4)}

    def loss(w: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ w["weight"].T - y).pow(2).sum().sqrt()

    with nanlab.watch(on_fault=on_fault) as trace:
        for step in range(5):
            x, y = torch.randn(5, 4, generator=random), torch.randn(5, 2, generator=random)
            if step == 3:
                x[2], y[2] = 0.0, 0.0
            slope = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(w, x, y)
            with torch.no_grad():
                w = {name: value - 0.01 * slope[name].mean(0) for name, value in w.items()}
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("sqrt-at-zero", 3)
    assert len(trace.steps) in (4, 5)


def test_turns_that_only_collect_gradients_are_one_step_in_a_run_that_stops() -> None:
    x = torch.tensor([1.0, 2.0, 0.0], requires_grad=True)
    rows = []
    with nanlab.watch() as trace:
        y = x.sqrt()
        for i in range(3):
            rows.append(torch.autograd.grad(y[i], x, retain_graph=True)[0])
        torch.stack(rows).sum().item()
    assert trace.culprit is None or trace.culprit.step == 0
    assert len(trace.steps) <= 3
