"""Programs in the style of users, each held to the one answer that is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nanlab


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def culprit(step: Callable[[int], Any], steps: int = 4) -> nanlab.Finding | None:
    with nanlab.watch(on_fault="record") as trace:
        for i in range(steps):
            step(i)
    assert not trace.notes
    return trace.culprit


def told(step: Callable[[int], Any], steps: int = 4) -> tuple[str, str, str, int]:
    """(cause, op, phase, step) of the culprit."""
    found = culprit(step, steps)
    assert found is not None
    return found.cause, found.op, found.phase, found.step


def trained(net: nn.Module, loss: Callable[[int], torch.Tensor]) -> Callable[[int], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i: int) -> None:
        optimizer.zero_grad()
        loss(i).backward()
        optimizer.step()

    return step


def test_the_scale_of_a_density_is_no_value_outside_its_support() -> None:
    net = nn.Linear(3, 2)

    def loss(i: int) -> torch.Tensor:
        mean, raw = net(torch.randn(4, 3)).unbind(-1)
        scale = raw.exp() if i < 2 else raw.relu() * 0
        density = torch.distributions.Normal(mean, scale, validate_args=False)
        return -density.log_prob(torch.randn(4)).mean()

    assert told(trained(net, loss)) == ("log-of-zero", "log", "forward", 2)


def test_a_logarithm_beside_log_prob_is_its_own() -> None:
    net = nn.Linear(3, 2)

    def loss(i: int) -> torch.Tensor:
        mean, raw = net(torch.randn(4, 3)).unbind(-1)
        density = torch.distributions.Normal(
            mean * (1 if i < 2 else 1e3), raw.exp(), validate_args=False
        )
        u = density.rsample()
        with torch.no_grad():
            weight = density.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return (weight * mean).mean()

    assert told(trained(net, loss)) == ("log-of-zero", "log", "forward", 2)


def test_what_hid_a_value_is_told_long_after_its_step_was_folded() -> None:
    frequency = nn.Parameter(torch.tensor([0.1, 0.2]))
    optimizer = torch.optim.Adam([frequency])

    def step(i: int) -> None:
        x = frequency[:, None] * torch.arange(-4.0, 5.0)
        kernel = torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)
        optimizer.zero_grad()
        (kernel.sum(1) - 1).square().mean().backward()
        optimizer.step()

    assert told(step, steps=8) == ("where-grad-trap", "div", "backward", 0)


def test_a_loop_that_is_all_closure_has_steps() -> None:
    net, data = nn.Linear(3, 1), torch.randn(8, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    now = {"step": 0}

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        out = net(data).square()
        loss = (out * 0 if now["step"] == 3 else out + 1).log().mean()
        loss.backward()
        return loss

    with nanlab.watch(on_fault="record") as trace:
        for now["step"] in range(5):
            optimizer.step(closure)
    assert len(trace.recording.starts) == 5
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("log-of-zero", 3)


def test_a_python_number_can_flush_a_half_precision_gradient() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
    step = trained(net, lambda i: (net(torch.randn(16, 8).half()) * 1e-4 * 1e-4).float().sum())
    assert told(step)[:2] == ("dtype-underflow", "mul")


def test_a_coefficient_of_zero_is_no_underflow() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
    assert (
        culprit(trained(net, lambda i: (net(torch.randn(16, 8).half()) * 0.0).float().sum()))
        is None
    )


def test_rays_that_miss_take_the_other_side_of_where_and_still_spoil_the_gradient() -> None:
    radius = nn.Parameter(torch.tensor(1.0))
    offset = torch.linspace(0.0, 1.4, 8)

    def step(i: int) -> None:
        inside = radius**2 - offset**2
        depth = torch.where(inside > 0, torch.sqrt(inside), torch.full_like(inside, 0.1))
        depth.sum().backward()

    assert told(step, steps=1) == ("where-grad-trap", "sqrt", "backward", 0)


def test_a_repaired_nan_is_told_in_the_backward_pass_that_read_it_again() -> None:
    share = nn.Parameter(torch.tensor([0.2, 0.9]))
    assert told(lambda i: torch.nan_to_num(torch.sqrt(0.5 - share)).sum().backward(), steps=1) == (
        "repair-forward-only",
        "sqrt",
        "backward",
        0,
    )


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(3, 4)
        forbidden = torch.zeros(4)
        forbidden[2] = -torch.inf
        self.register_buffer("forbidden", forbidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x) + self.forbidden


def test_a_buffer_of_minus_inf_is_a_mask_and_the_target_that_it_forbids_is_the_fault() -> None:
    net = Tagger()
    target = torch.tensor([0, 1, 2])

    def loss(i: int) -> torch.Tensor:
        scores = net(torch.randn(3, 4)[:, :3])
        return scores.logsumexp(-1).mean() - scores[torch.arange(3), target].mean()

    assert told(trained(net, loss), steps=1) == ("infeasible-likelihood", "index", "forward", 0)


def test_a_mask_made_before_the_watch_is_not_blamed_for_what_multiplies_it() -> None:
    net, mask = nn.Linear(3, 4), torch.tensor([0.0, 0.0, -torch.inf, 0.0])

    def loss(i: int) -> torch.Tensor:
        logp = (net(torch.randn(5, 3)) + mask).log_softmax(-1)
        return (logp.exp() * logp).sum(-1).mean()

    assert told(trained(net, loss), steps=1) == ("zero-times-inf", "mul", "forward", 0)


def test_a_distribution_without_any_possible_value_is_masked_throughout() -> None:
    net = nn.Linear(3, 4)

    def loss(i: int) -> torch.Tensor:
        logits = net(torch.randn(5, 3))
        logits = torch.where(torch.arange(5)[:, None] == 3, torch.tensor(-torch.inf), logits)
        pi = torch.distributions.Categorical(logits=logits, validate_args=False)
        return -pi.log_prob(torch.zeros(5, dtype=torch.long)).mean()

    assert told(trained(net, loss), steps=1) == ("softmax-all-masked", "sub", "forward", 0)


def test_a_quotient_of_a_number_and_a_tiny_tensor_is_a_division() -> None:
    net = nn.Linear(3, 1)
    found = told(
        trained(net, lambda i: (300.0 / (torch.sigmoid(net(torch.ones(1, 3))) * 1e-38)).mean()),
        steps=1,
    )
    assert found == ("div-by-tiny", "mul", "forward", 0)


def test_a_node_of_torch_func_is_named_by_its_operator() -> None:
    w = torch.nn.Parameter(torch.zeros(3))

    def step(i: int) -> None:
        inner = torch.func.grad(lambda p: torch.sqrt((p * p).sum()))(w)
        (w - 0.1 * inner).sum().backward()

    assert told(step, steps=1)[:3] == ("sqrt-at-zero", "sqrt", "backward")


def test_a_silent_frame_that_the_gates_of_a_gru_swallow_is_told_at_its_logarithm() -> None:
    net = nn.GRU(1, 4, batch_first=True)
    f0 = torch.rand(2, 5, 1) + 1
    f0[1, 2] = 0

    assert told(trained(net, lambda i: net(torch.log2(f0))[0].mean()), steps=1) == (
        "log-of-zero",
        "log2",
        "forward",
        0,
    )


def test_an_exponential_of_a_matrix_overflows_and_is_not_singular() -> None:
    net = nn.Linear(3, 4)

    def loss(i: int) -> torch.Tensor:
        generator = torch.diag_embed(net(torch.ones(1, 3)).abs() + 1) * 1e4
        return torch.linalg.matrix_exp(generator).mean()

    assert told(trained(net, loss), steps=1)[:3] == ("exp-overflow", "linalg_matrix_exp", "forward")


def test_a_target_with_gaps_written_by_where_is_data() -> None:
    net = nn.Linear(3, 1)

    def loss(i: int) -> torch.Tensor:
        target = torch.where(torch.arange(5) < 4, torch.ones(5), torch.nan)
        return nn.functional.mse_loss(net(torch.randn(5, 3)).squeeze(-1), target)

    assert told(trained(net, loss), steps=1) == ("nan-in-target", "mse_loss", "data", 0)


def test_a_free_parameter_that_is_infinite_from_the_start_is_poisoned() -> None:
    frequency = torch.tensor([1.0, float("inf")], requires_grad=True)
    optimizer = torch.optim.SGD([frequency], lr=0.1)

    def step(i: int) -> None:
        optimizer.zero_grad()
        torch.sin(torch.rand(4, 1) * frequency).sum().backward()
        optimizer.step()

    assert told(step, steps=2)[::2] == ("poisoned-parameter", "init")


def test_a_bias_before_a_batch_norm_whose_gradient_is_rounding_noise_is_healthy() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    found = culprit(trained(net, lambda i: net(torch.randn(16, 4)).square().mean()), steps=6)
    assert found is None


def test_loader_workers_hooks_and_a_gradient_penalty_leave_results_as_they_are() -> None:
    rows = torch.utils.data.TensorDataset(
        torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    )

    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 1))
        net[0].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
        for (x,) in torch.utils.data.DataLoader(
            rows, batch_size=4, num_workers=1, multiprocessing_context="fork"
        ):
            x.requires_grad_()
            out = net(x).sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            first = torch.autograd.grad(out, list(net.parameters()), retain_graph=True)
            ((slope.square().sum(-1) + 1e-6).sqrt() - 1).square().mean().backward()
            with torch.no_grad():
                for p, g in zip(net.parameters(), first, strict=True):
                    p -= 0.1 * (g if p.grad is None else p.grad + g)
        return [p.detach().clone() for p in net.parameters()]

    plain = run()
    with nanlab.watch(on_fault="record") as trace:
        watched = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert trace.culprit is None and not trace.notes
