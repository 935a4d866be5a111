"""Loops written by hand under watch: what is one step and its loss, and which of their gradients
and updates came to nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

import nanlab

Update = Callable[[torch.Tensor], torch.Tensor]


# -- steps and losses
# ------------------------------------------------------------


def test_loss_of_a_closure_is_the_one_that_step_returns() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(3, 1), torch.randn(20, 3)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=5)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = (net(x) - x[:, :1]).square().mean()
        loss.backward()
        return loss

    with nanlab.watch(net) as trace:
        returned = [float(opt.step(closure).detach()) for _ in range(3)]
    assert trace.steps.loss.tolist() == pytest.approx(returned)


def test_loss_scale_of_the_program_itself_is_divided_out_also_once_it_is_small() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    losses = []
    with nanlab.watch(net) as trace:
        for scale in (1024.0, 32.0, 0.5):
            opt.zero_grad()
            loss = net(torch.randn(8, 3)).square().mean()
            (loss * scale).backward()
            for p in net.parameters():
                p.grad /= scale
            opt.step()
            losses.append(float(loss.detach()))
    assert trace.steps.loss.tolist() == pytest.approx(losses)


def by_grad(skip: int = -1) -> tuple[nanlab.Trace, list[float]]:
    """Gradients asked of autograd.grad, after an inner loop whose turns are independent in the
    graph; a step may skip its update."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    with nanlab.watch(net, keep=9) as trace:
        for i in range(4):
            x = torch.randn(8, 4)
            fast = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
            for _ in range(3):
                grads = torch.autograd.grad(
                    functional_call(net, fast, (x,)).square().mean(), list(fast.values())
                )
                fast = {
                    n: (p - 0.1 * g).detach().requires_grad_()
                    for (n, p), g in zip(fast.items(), grads, strict=True)
                }
            loss = functional_call(net, fast, (x,)).square().mean()
            losses.append(float(loss.detach()))
            grads = torch.autograd.grad(loss, list(fast.values()))
            if i == skip:
                continue
            for p, g in zip(net.parameters(), grads, strict=True):
                p.grad = g
            opt.step()
    return trace, losses


def test_inner_loop_belongs_to_the_step_whose_gradients_came_from_it() -> None:
    trace, losses = by_grad()
    assert trace.steps.optimizer_steps.tolist() == [1, 1, 1, 1]
    assert trace.steps.loss.tolist() == pytest.approx(losses)


def test_turns_from_which_no_gradient_was_taken_stay_out_of_the_next_step() -> None:
    trace, losses = by_grad(skip=2)
    taken = trace.steps[trace.steps.optimizer_steps == 1]
    assert taken.loss.tolist() == pytest.approx([loss for i, loss in enumerate(losses) if i != 2])
    assert len(trace.steps) > len(taken)


def turns(
    body: Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], None], nets: int, rounds: int
) -> nanlab.Trace:
    """One helper called from two lines in each turn of a loop, with as many networks as are asked
    for."""
    torch.manual_seed(0)
    net = nn.ModuleList(nn.Linear(4, 2) for _ in range(nets))
    opts = [torch.optim.SGD(part.parameters(), lr=0.01) for part in net]
    with nanlab.watch(net) as trace:
        for _ in range(rounds):
            body(net[0], opts[0], torch.randn(8, 4))
            body(net[-1], opts[-1], torch.randn(8, 4))
    return trace


def whole(net: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> None:
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()


def test_networks_that_a_helper_updates_in_turn_share_a_step() -> None:
    assert turns(whole, nets=2, rounds=3).steps.optimizer_steps.tolist() == [2, 2, 2]


def paired(before_the_loop: bool) -> list[int]:
    """Optimizer steps in each step of two networks that a loop over their optimizers updates."""
    torch.manual_seed(0)
    nets = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
    opts = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]
    with nanlab.watch(nets) as trace:
        for turn in range(4):
            x = torch.randn(8, 4)
            losses = [net(x).square().mean() for net in nets] if before_the_loop else []
            for k, opt in enumerate(opts if before_the_loop else opts[turn % 2 :][:1]):
                opt.zero_grad()
                loss = losses[k] if before_the_loop else nets[turn % 2](x).square().mean()
                loss.backward()
                opt.step()
    return list(trace.steps.optimizer_steps)


def test_losses_that_are_computed_together_and_stepped_in_a_loop_share_a_step() -> None:
    assert paired(before_the_loop=True) == [2] * 4


def test_networks_that_take_turns_have_a_step_each() -> None:
    assert paired(before_the_loop=False) == [1] * 4


def test_a_loop_written_out_by_hand_has_a_step_for_each_call() -> None:
    assert turns(whole, nets=1, rounds=3).steps.optimizer_steps.tolist() == [1] * 6


def test_backward_in_a_helper_belongs_to_the_step_of_its_forward() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def update(loss: torch.Tensor) -> None:
        opt.zero_grad()
        loss.backward()
        opt.step()

    with nanlab.watch(net) as trace:
        for _ in range(3):
            update(net(torch.randn(8, 4)).square().mean())
            update(net(torch.randn(8, 4)).abs().mean())
    assert trace.steps.optimizer_steps.tolist() == [2, 2, 2]


# -- gradients that were flushed
# ------------------------------------------------------------


def chain(first: float, depth: int = 12) -> nanlab.Trace:
    """A chain of sigmoids in half precision; first: factor on the input of the last of them."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8).half() for _ in range(depth)]
    net = nn.Sequential(*layers)
    with nanlab.watch(net) as trace:
        for _ in range(3):
            net.zero_grad()
            h = torch.randn(16, 8).half()
            for layer in layers[:-1]:
                h = torch.sigmoid(layer(h))
            (1e-2 * torch.sigmoid(first * layers[-1](h)).float().mean()).backward()
    return trace


def test_gradient_that_fades_through_sigmoids_is_lost_where_the_last_of_it_is_flushed() -> None:
    culprit = chain(1.0).culprit
    assert culprit is not None
    assert (culprit.cause, culprit.phase, culprit.step) == ("dtype-underflow", "backward", 0)
    assert "torch.sigmoid(layer(h))" in culprit.source


def test_gradient_behind_a_saturated_sigmoid_is_zero_and_not_flushed() -> None:
    trace = chain(30000.0, depth=1)
    assert trace.backward.grad_out_zero.max() > 0
    causes = {f.cause for f in trace.findings}
    assert causes <= {"dead-gradient"} and "dtype-underflow" not in causes


def test_products_that_cancel_are_not_flushed() -> None:
    w = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float16, requires_grad=True)
    x = torch.ones(4, 2, dtype=torch.float16, requires_grad=True)
    with nanlab.watch() as trace:
        for _ in range(3):
            x.grad = None
            out = x @ w
            (out[:, 0] - out[:, 1]).sum().backward()
    assert not bool(x.grad.any())
    assert trace.findings == []


def test_gradients_of_torch_func_that_are_flushed_are_lost() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 6).half()
    params = {n: p.detach().clone() for n, p in net.named_parameters()}

    def objective(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        wide = functional_call(net, params, (x,)).float()  # here
        return 1e-7 * wide.square().mean()

    with nanlab.watch() as trace:
        for _ in range(3):
            grads, _ = grad_and_value(objective)(params, torch.randn(8, 6).half())
            params = {n: p - 0.1 * grads[n] for n, p in params.items()}
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.phase) == ("dtype-underflow", "backward")
    assert "(6x6)" in trace.culprit.title and trace.culprit.source.endswith("# here")


@pytest.mark.parametrize("widen_first", [False, True])
def test_half_gradients_are_divided_by_the_loss_scale_after_they_were_widened(
    widen_first: bool,
) -> None:
    torch.manual_seed(0)
    net = nn.Linear(64, 8, bias=False).half()
    master = net.weight.detach().float().clone()
    opt = torch.optim.SGD([master], lr=1e6)
    with nanlab.watch(net) as trace:
        for _ in range(3):
            net.zero_grad()
            loss = 1e-4 * (net(1e-2 * torch.randn(8, 64).half()).float()).square().mean()
            (loss * 2.0**16).backward()
            assert net.weight.grad is not None
            if widen_first:
                master.grad = net.weight.grad.float() / 2.0**16
            else:
                master.grad = net.weight.grad.div_(2.0**16).float()  # here
            opt.step()
            with torch.no_grad():
                net.weight.copy_(master)
    found = trace.culprit
    assert (found is None) == widen_first
    if found is not None:
        assert (found.cause, found.phase) == (
            "dtype-underflow",
            "optimizer",
        ) and found.source.endswith("# here")


# -- updates that are written back
# ------------------------------------------------------------


def written_back(
    update: Callable[[int, torch.Tensor], torch.Tensor], steps: int = 4
) -> nanlab.Trace:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Tanh(), nn.Linear(32, 4, bias=False))
    with torch.no_grad():
        for p in net.parameters():
            p.add_(p.sign() * 0.06)
    net.bfloat16()
    with nanlab.watch(net) as trace:
        for _ in range(steps):
            net.zero_grad()
            net(torch.randn(8, 16).bfloat16()).float().square().mean().backward()
            with torch.no_grad():
                for i, p in enumerate(net.parameters()):
                    p.copy_(update(i, p))
    return trace


def test_update_that_is_added_in_float32_and_rounded_away_on_the_way_back_is_absorbed() -> None:
    found = written_back(lambda _, p: p.float() * (1 - 1e-6) - 1e-5 * p.grad.float()).culprit
    assert found is not None
    assert (found.cause, found.op, found.phase, found.step) == (
        "absorbed-update",
        "copy_",
        "optimizer",
        0,
    )
    assert written_back(lambda _, p: p.float() - 0.5 * p.grad.float()).culprit is None


def test_wide_copy_that_is_kept_goes_on_adding_and_is_no_fault() -> None:
    masters: dict[int, torch.Tensor] = {}

    def update(i: int, p: torch.Tensor) -> torch.Tensor:
        masters.setdefault(i, p.float().clone())
        return masters[i].sub_(p.grad.float(), alpha=1e-5)

    assert written_back(update).culprit is None
    masters.clear()
    assert written_back(update, steps=1).culprit is None


# -- weights that run away
# ------------------------------------------------------------


def test_functional_updates_that_overshoot_are_blamed_without_gradients_of_parameters() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    params = {n: p.detach().clone() for n, p in net.named_parameters()}

    def objective(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (functional_call(net, params, (x,)) - x[:, :2]).square().sum()

    with nanlab.watch(net) as trace:
        for _ in range(50):
            grads, _ = grad_and_value(objective)(params, torch.randn(64, 6))
            params = {n: p - 0.05 * grads[n] for n, p in params.items()}
            with torch.no_grad():
                for n, p in net.named_parameters():
                    p.copy_(params[n])
    assert trace.culprit is not None and trace.notes == []
    assert (trace.culprit.cause, trace.culprit.phase) == ("learning-rate", "optimizer")


@pytest.mark.parametrize("optimized", [False, True])
def test_factor_of_the_loss_that_is_never_divided_out_is_part_of_the_loss(optimized: bool) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    losses = []
    with nanlab.watch(net) as trace:
        for _ in range(3):
            opt.zero_grad()
            loss = net(torch.randn(8, 3)).square().mean() * 2.0**10
            loss.backward()
            if optimized:
                opt.step()
            losses.append(float(loss.detach()))
    assert trace.steps.loss.tolist() == pytest.approx(losses)
    assert trace.replay(step=2).loss == pytest.approx(losses[2])


@pytest.mark.examples(every=0)
@pytest.mark.parametrize("mode", ["record", "stop"])
def test_closure_that_never_clears_its_gradients_is_told_so(mode: str) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 1)), torch.randn(32, 4)
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=6)

    def closure() -> torch.Tensor:
        loss = (net(x) - x[:, :1]).square().mean()
        loss.backward()
        return loss

    with nanlab.watch(net, on_fault=mode) as trace:
        for _ in range(40):
            opt.step(closure)
    assert trace.culprit is not None and trace.culprit.cause == "learning-rate"
    assert "never cleared" in trace.culprit.explanation
    assert [fix.code for fix in trace.culprit.fixes] == ["optimizer.zero_grad()"]


def test_slow_weights_that_overshoot_are_blamed_rather_than_the_optimizer_between() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    slow = [p.detach().clone() for p in net.parameters()]
    with nanlab.watch(net) as trace:
        for i in range(120):
            x = torch.randn(16, 4)
            opt.zero_grad()
            (net(x) - x).square().mean().backward()
            opt.step()
            if i % 3 == 2:
                with torch.no_grad():
                    for s, p in zip(slow, net.parameters(), strict=True):
                        s.add_(p - s, alpha=60.0)
                        p.copy_(s)  # here
    assert trace.culprit is not None and trace.culprit.cause in (
        "learning-rate",
        "exploding-gradient",
    )
    assert trace.culprit.source.endswith("# here")


def test_momentum_that_outgrows_half_precision_is_told_from_a_parameter_that_does() -> None:
    def causes(rate: float, momentum: float) -> list[tuple[str, str, int]]:
        w = nn.Parameter(torch.zeros(4, dtype=torch.float16))
        opt = torch.optim.SGD([w], lr=rate, momentum=momentum)
        with nanlab.watch(on_fault="record") as trace:
            for _ in range(6):
                opt.zero_grad()
                (w * 30000.0).sum().backward()
                opt.step()
        return [(f.cause, f.phase, f.step) for f in trace.findings if f.severity == "error"]

    assert causes(1e-7, 0.9) == [("dtype-overflow", "optimizer", 2)]
    assert "dtype-overflow" not in {cause for cause, *_ in causes(1.0, 0.0)}
