"""Thirty-six more runs for the back-test of the forecast: other shapes of growth, and healthy ones that
look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[int], torch.Tensor]
Made = tuple[nn.Module, Step, int]  # a model, its step, and for how long it runs


def trained(
    net: nn.Module,
    loss: Step,
    steps: int,
    lr: float = 1e-2,
    optimizer: Any = torch.optim.SGD,
    after: Callable[[int], None] | None = None,
) -> Made:
    """The usual training step around a loss."""
    opt = optimizer(net.parameters(), lr=lr)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        if after is not None:
            after(i)
        return value

    return net, step, steps


def _random(seed: int) -> torch.Generator:
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def log_variance_that_rises() -> Made:
    gen, net = _random(1), nn.Linear(4, 4)
    net.logvar = nn.Parameter(torch.zeros(4))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(8, 4, generator=gen)
        spread = torch.exp(net.logvar).half().float().sum()
        return net(x).square().mean() - net.logvar.mean() * 0.4 + 0 * spread

    return trained(net, loss, 300, lr=1.0)


def logits_of_growing_queries() -> Made:
    gen, net = _random(2), nn.Linear(8, 16, bias=False)

    def loss(i: int) -> torch.Tensor:
        q, k = net(torch.randn(2, 6, 8, generator=gen)).chunk(2, -1)
        scores = q.half() @ k.half().mT
        return -(q * k).sum(-1).mean() + 0 * scores.float().mean()

    return trained(net, loss, 300, lr=0.02)


def values_that_chase_themselves() -> Made:
    gen, net = _random(3), nn.Linear(6, 1)

    def loss(i: int) -> torch.Tensor:
        state = torch.rand(16, 6, generator=gen)
        target = 1.3 * net(state * 1.2).detach() + 1
        with torch.autocast("cpu", dtype=torch.float16):
            shown = net(state)
        return F.mse_loss(net(state), target) + 0 * shown.float().mean()

    return trained(net, loss, 400, lr=0.2)


def critic_without_a_bound() -> Made:
    gen, net = _random(4), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        real, fake = torch.randn(16, 4, generator=gen) + 1, torch.randn(16, 4, generator=gen)
        return (net(fake) - net(real)).half().float().mean()

    return trained(net, loss, 400, lr=50.0)


def weights_that_grow_by_jumps() -> Made:
    _random(5)
    net, x = nn.Linear(6, 6, bias=False), torch.randn(16, 6)

    def after(i: int) -> None:
        with torch.no_grad():
            net.weight.add_(net.weight, alpha=0.08 + 0.04 * (i % 5 == 0))

    return trained(
        net, lambda i: net(x).half().float().square().mean().sqrt(), 250, lr=1e-4, after=after
    )


def counter_of_samples() -> Made:
    _random(6)
    net, x = nn.Linear(3, 1), torch.randn(32, 3)
    seen = torch.zeros((), dtype=torch.float16)

    def loss(i: int) -> torch.Tensor:
        nonlocal seen
        seen = seen + torch.tensor(512.0 + 300 * (i % 3)).half()
        return net(x).square().mean() / (1 + 0 * seen.float())

    return trained(net, loss, 300)


def energy_of_a_simulation() -> Made:
    _random(7)
    net, at = nn.Linear(2, 2), torch.randn(8, 2)

    def loss(i: int) -> torch.Tensor:
        nonlocal at
        at = at + 0.1 * torch.stack([-at[:, 1], at[:, 0]], 1) + 0.02 * at
        return (net(at).half() ** 2).sum().float() * 1e-3

    return trained(net, loss, 600, lr=1e-7)


def temperature_that_sharpens() -> Made:
    _random(8)
    net, x = nn.Linear(4, 3), torch.randn(16, 4)

    def loss(i: int) -> torch.Tensor:
        gap = 1.0 + net(x).square()
        return torch.exp(-gap / 0.95**i).half().float().mean() + net(x).square().mean()

    return trained(net, loss, 120, lr=1e-3)


def weights_that_are_discounted() -> Made:
    _random(9)
    net, x = nn.Linear(4, 3), torch.randn(16, 4)

    def loss(i: int) -> torch.Tensor:
        weight = torch.full((16, 1), 0.82) ** i
        return (net(x).square() * weight).half().float().mean() + net(x).square().mean()

    return trained(net, loss, 160, lr=1e-3)


def likelihood_of_a_longer_sequence() -> Made:
    gen, net = _random(10), nn.Linear(4, 5)

    def loss(i: int) -> torch.Tensor:
        p = net(torch.randn(i + 1, 4, generator=gen)).softmax(-1)[:, 0].half()
        return 1 - p.prod().float()

    return trained(net, loss, 60, lr=1e-3)


def log_variance_that_settles() -> Made:
    _random(11)
    net = nn.Linear(4, 4)
    net.logvar = nn.Parameter(torch.zeros(4))

    def loss(i: int) -> torch.Tensor:
        spread = torch.exp(net.logvar).half().float().sum()
        return (net.logvar.exp() - net.logvar * 300).mean() / 300 + 0 * spread

    return trained(net, loss, 150, lr=0.5)


def curriculum() -> Made:
    gen, net = _random(12), nn.Linear(6, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen) * (1 + min(i // 20, 5) * 4)
        return F.mse_loss(net(x).half().float(), x.sum(1, keepdim=True))

    return trained(net, loss, 150, lr=1e-4)


def one_cycle() -> Made:
    _random(13)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)), torch.randn(64, 6)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=160)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), x[:, :1] * 5)
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 150


def level_that_wanders() -> Made:
    gen, net = _random(14), nn.Linear(4, 1)
    level = torch.tensor(3000.0)

    def loss(i: int) -> torch.Tensor:
        nonlocal level
        level = level * 0.9 + 300 * torch.randn((), generator=gen) + 300
        x = torch.randn(8, 4, generator=gen)
        return net(x).square().mean() + 0 * level.half().float()

    return trained(net, loss, 150)


def noisy_labels() -> Made:
    gen, net = _random(15), nn.Linear(8, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 8, generator=gen)
        y = torch.randint(0, 4, (16,), generator=gen)
        return F.cross_entropy(net(x).half().float() * 3, y)

    return trained(net, loss, 150, lr=0.05, optimizer=torch.optim.Adam)


def norms_under_decay() -> Made:
    _random(16)
    net = nn.Embedding(10, 8)

    def loss(i: int) -> torch.Tensor:
        e = net.weight
        scores = (e.half() @ e.half().T).float()
        return 0.5 * (e**2).sum(1).mean() - 20 * e.norm(dim=1).mean() + 0 * scores.mean()

    return trained(net, loss, 200, lr=0.3)


def width_that_stops() -> Made:
    _random(17)
    net, x = nn.Linear(4, 3), torch.randn(16, 4)

    def loss(i: int) -> torch.Tensor:
        width = max(0.6, 0.98**i)
        distance = 1 + net(x).square().sum(1)
        return 1 - torch.exp(-distance / (2 * width**2)).half().float().mean()

    return trained(net, loss, 150, lr=1e-3)


def exploration_that_decays() -> Made:
    _random(18)
    net, x = nn.Linear(4, 2), torch.randn(16, 4)

    def loss(i: int) -> torch.Tensor:
        share = max(0.01, 0.95**i)
        p = (1 - share) * net(x).softmax(-1) + share / 2
        return -p.half().float().log().mean()

    return trained(net, loss, 150)


def sum_that_is_reset() -> Made:
    _random(19)
    net, x, total = nn.Linear(3, 1), torch.randn(16, 3), torch.zeros(())

    def loss(i: int) -> torch.Tensor:
        nonlocal total
        total = total + 900 if i % 30 else torch.zeros(())
        return net(x).square().mean() + 0 * total.half().float()

    return trained(net, loss, 150)


def convergence_in_half() -> Made:
    _random(20)
    net, x = nn.Linear(4, 1), torch.randn(64, 4)
    return trained(
        net, lambda i: F.mse_loss(net(x).half().float(), x.sum(1, keepdim=True)), 150, lr=0.1
    )


def hidden_state_without_decay() -> Made:
    gen, net = _random(21), nn.Linear(6, 6)
    state = torch.zeros(4, 6)

    def loss(i: int) -> torch.Tensor:
        nonlocal state
        x = torch.randn(4, 6, generator=gen).abs()
        state = state + net(x).detach().abs() * 300
        return net(x).square().mean() + 0 * state.half().float().mean()

    return trained(net, loss, 400, lr=1e-3)


def temperature_that_is_learned() -> Made:
    gen, net = _random(22), nn.Linear(8, 8)
    net.scale = nn.Parameter(torch.tensor(2.0))

    def loss(i: int) -> torch.Tensor:
        x = F.normalize(net(torch.randn(8, 8, generator=gen)), dim=1)
        scores = (x @ x.T).half() * net.scale.exp().half()
        return -scores.float().diagonal().mean() / net.scale.exp().detach() - 0.5 * net.scale

    return trained(net, loss, 200, lr=0.1)


def residuals_that_pile_up() -> Made:
    _random(23)
    net, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)

    def after(i: int) -> None:
        with torch.no_grad():
            net.weight.mul_(1.03)

    def loss(i: int) -> torch.Tensor:
        h = x.half()
        for _ in range(8):
            h = h + F.gelu(h @ net.weight.half().T)
        return h.float().abs().mean().log1p()

    return trained(net, loss, 300, lr=1e-5, after=after)


def reward_to_go_of_longer_episodes() -> Made:
    gen, net = _random(24), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        rewards = 20 * torch.rand(20 + 10 * i, generator=gen)
        returns = rewards.flip(0).cumsum(0).half()
        x = torch.randn(8, 4, generator=gen)
        return net(x).square().mean() + 0 * returns.float().mean()

    return trained(net, loss, 700)


def polynomial_of_a_wandering_input() -> Made:
    gen, net = _random(25), nn.Linear(3, 1)
    at = torch.ones(())

    def loss(i: int) -> torch.Tensor:
        nonlocal at
        at = at + 0.05 + 0.02 * torch.randn((), generator=gen)
        x = at * torch.rand(8, 3, generator=gen)
        return (net(x) - 1).square().mean() + 0 * (x.half() ** 5).float().mean()

    return trained(net, loss, 500, lr=1e-5)


def ascent_on_a_penalty() -> Made:
    gen, net = _random(26), nn.Linear(4, 4)
    multiplier = torch.ones(())

    def loss(i: int) -> torch.Tensor:
        nonlocal multiplier
        x = torch.randn(8, 4, generator=gen)
        gap = net(x).square().mean() + 0.5
        multiplier = multiplier * (1 + 0.1 * gap.detach())
        return gap * (1 + 0 * multiplier.half().float())

    return trained(net, loss, 400, lr=1e-4)


def gate_that_closes() -> Made:
    _random(27)
    net, x = nn.Linear(4, 4), torch.randn(8, 4)

    def loss(i: int) -> torch.Tensor:
        gate = torch.sigmoid(torch.full((4,), -0.15 * i)).half()
        return (net(x).half() * gate).float().square().mean() + net(x).square().mean()

    return trained(net, loss, 200, lr=1e-3)


def discount_of_a_growing_horizon() -> Made:
    _random(28)
    net, x = nn.Linear(4, 1), torch.randn(8, 4)

    def loss(i: int) -> torch.Tensor:
        weight = torch.tensor(0.9) ** (2 * i)
        return net(x).square().mean() + (weight.half() * net(x).half()).float().mean()

    return trained(net, loss, 150, lr=1e-3)


def hidden_state_with_decay() -> Made:
    gen, net = _random(31), nn.Linear(6, 6)
    state = torch.zeros(4, 6)

    def loss(i: int) -> torch.Tensor:
        nonlocal state
        x = torch.randn(4, 6, generator=gen).abs()
        state = 0.97 * state + net(x).detach().abs() * 600
        return net(x).square().mean() + 0 * state.half().float().mean()

    return trained(net, loss, 200, lr=1e-3)


def temperature_that_is_bounded() -> Made:
    gen, net = _random(32), nn.Linear(8, 8)
    net.scale = nn.Parameter(torch.tensor(2.0))

    def loss(i: int) -> torch.Tensor:
        x = F.normalize(net(torch.randn(8, 8, generator=gen)), dim=1)
        bounded = net.scale.clamp(max=4.6).exp()
        return -((x @ x.T).half() * bounded.half()).float().mean() / 100 - 0.5 * net.scale

    return trained(net, loss, 200, lr=0.05)


def episodes_of_changing_length() -> Made:
    gen, net = _random(33), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        length = int(torch.randint(100, 3000, (), generator=gen))
        returns = (20 * torch.rand(length, generator=gen)).cumsum(0).half()
        x = torch.randn(8, 4, generator=gen)
        return net(x).square().mean() + 0 * returns.float().mean()

    return trained(net, loss, 150)


def seasons() -> Made:
    _random(34)
    net, x = nn.Linear(3, 1), torch.randn(8, 3)

    def loss(i: int) -> torch.Tensor:
        demand = 20000 + 18000 * torch.sin(torch.tensor(i / 25.0)) + 40 * (i % 7)
        return net(x).square().mean() + 0 * demand.half().float()

    return trained(net, loss, 200)


def multiplier_that_saturates() -> Made:
    gen, net = _random(35), nn.Linear(4, 4)
    multiplier = torch.ones(())

    def loss(i: int) -> torch.Tensor:
        nonlocal multiplier
        multiplier = (multiplier * 1.2).clamp(max=3e4)
        x = torch.randn(8, 4, generator=gen)
        return net(x).square().mean() + 0 * multiplier.half().float()

    return trained(net, loss, 150, lr=1e-3)


def warmed_up_transformer_block() -> Made:
    gen, net = _random(36), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(4, 5, 8, generator=gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        return F.mse_loss(out.float(), 3 * x)

    return trained(net, loss, 120, lr=3e-3, optimizer=torch.optim.AdamW)


def gate_that_stays_open_a_little() -> Made:
    _random(37)
    net, x = nn.Linear(4, 4), torch.randn(8, 4)

    def loss(i: int) -> torch.Tensor:
        gate = torch.sigmoid(torch.full((4,), max(-0.15 * i, -3.0))).half()
        return (net(x).half() * gate).float().square().mean() + net(x).square().mean()

    return trained(net, loss, 150, lr=1e-3)


def loss_that_falls_to_its_floor() -> Made:
    _random(38)
    net, x = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(32, 4)

    def loss(i: int) -> torch.Tensor:
        error = (net(x) - x[:, :1]).half()
        return error.square().float().mean()

    return trained(net, loss, 200, lr=1e-2, optimizer=torch.optim.Adam)


OVERFLOW = (
    log_variance_that_rises,
    logits_of_growing_queries,
    values_that_chase_themselves,
    critic_without_a_bound,
    weights_that_grow_by_jumps,
    counter_of_samples,
    energy_of_a_simulation,
    hidden_state_without_decay,
    temperature_that_is_learned,
    residuals_that_pile_up,
    reward_to_go_of_longer_episodes,
    polynomial_of_a_wandering_input,
    ascent_on_a_penalty,
)
UNDERFLOW = (
    temperature_that_sharpens,
    weights_that_are_discounted,
    likelihood_of_a_longer_sequence,
    gate_that_closes,
    discount_of_a_growing_horizon,
)
HEALTHY = (
    log_variance_that_settles,
    curriculum,
    one_cycle,
    level_that_wanders,
    noisy_labels,
    norms_under_decay,
    width_that_stops,
    exploration_that_decays,
    sum_that_is_reset,
    convergence_in_half,
    hidden_state_with_decay,
    temperature_that_is_bounded,
    episodes_of_changing_length,
    seasons,
    multiplier_that_saturates,
    warmed_up_transformer_block,
    gate_that_stays_open_a_little,
    loss_that_falls_to_its_floor,
)
