"""A hundred and one more runs for the back-test of the forecast: other shapes of growth, and healthy ones that
look like them."""

from __future__ import annotations

import math
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


def reservoir_that_learns_by_hebb() -> Made:
    gen, net = _random(41), nn.Linear(8, 2)
    weight = 0.3 * torch.randn(8, 8, generator=gen)

    def loss(i: int) -> torch.Tensor:
        nonlocal weight
        state = torch.randn(16, 8, generator=gen)
        after = state @ weight.T
        weight = weight + 0.02 * after.T @ state / 16
        return net(state).square().mean() + 0 * after.half().float().mean()

    return trained(net, loss, 700, lr=1e-3)


def rate_that_is_looked_for() -> Made:
    gen, net = _random(42), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 1.1)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 300


def generator_and_critic_without_a_bound() -> Made:
    gen, net = _random(43), nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 1)])
    opt = torch.optim.Adam(net.parameters(), lr=0.5)

    def step(i: int) -> torch.Tensor:
        z = torch.randn(16, 4, generator=gen)
        real = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = (net[1](net[0](z)).half() - net[1](real).half()).float().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step, 700


def priorities_of_a_growing_buffer() -> Made:
    gen, net = _random(44), nn.Linear(4, 1)
    priorities: list[torch.Tensor] = []

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 4, generator=gen)
        error = (net(x) - x[:, :1]).squeeze(1)
        priorities.append(error.detach().abs().pow(0.6) * 12)
        weights = torch.cat(priorities).half().cumsum(0)
        return error.square().mean() + 0 * weights[-1].float()

    return trained(net, loss, 400, lr=1e-4)


def penalty_that_doubles_every_tenth_step() -> Made:
    gen, net = _random(45), nn.Linear(5, 3)

    def loss(i: int) -> torch.Tensor:
        out = net(torch.randn(16, 5, generator=gen))
        penalty = torch.tensor(2.0 ** (i // 10)).half() * (out.sum(1) - 1).abs().mean().half()
        return out.square().mean() + 0 * penalty.float()

    return trained(net, loss, 400, lr=1e-3)


def weight_of_a_noise_that_anneals() -> Made:
    gen, net = _random(46), nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        sigma = 1.0 * 0.96**i
        x = torch.randn(16, 4, generator=gen)
        noise = torch.randn(16, 4, generator=gen)
        score = (net(x + sigma * noise) + noise).half() / sigma**2
        return score.float().square().mean().log1p()

    return trained(net, loss, 300, lr=1e-3)


def momentum_above_one() -> Made:
    gen, net = _random(47), nn.Linear(6, 2)
    velocity = torch.zeros(2, 6)

    def after(i: int) -> None:
        nonlocal velocity
        with torch.no_grad():
            velocity = 1.06 * velocity + net.weight.grad
            net.weight.sub_(1e-3 * velocity)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        out = net(x)
        return (out - x[:, :2]).half().float().abs().mean()

    return trained(net, loss, 500, lr=0.0, after=after)


def sampler_with_too_large_a_step() -> Made:
    gen, net = _random(48), nn.Linear(3, 1)
    at = torch.randn(32, 3, generator=gen)

    def loss(i: int) -> torch.Tensor:
        nonlocal at
        at = at - 1.15 * 2 * at + 0.1 * torch.randn(32, 3, generator=gen)
        energy = at.square().sum(1)
        return net(at / at.norm()).square().mean() + 0 * energy.mean()

    return trained(net, loss, 400, lr=1e-3)


def scores_of_queries_under_warm_up() -> Made:
    gen, net = _random(49), nn.Linear(8, 16, bias=False)
    opt = torch.optim.Adam(net.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 50))

    def step(i: int) -> torch.Tensor:
        q, k = net(torch.randn(2, 6, 8, generator=gen)).chunk(2, -1)
        opt.zero_grad()
        scores = q.half() @ k.half().mT
        loss = -scores.float().diagonal(dim1=1, dim2=2).mean() / 100
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 500


def hazard_over_longer_and_longer_series() -> Made:
    gen, net = _random(50), nn.Linear(3, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(40 + 3 * i, 3, generator=gen)
        hazard = F.softplus(net(x)).squeeze(1) * torch.linspace(0, 2 * i, len(x))
        return net(x).square().mean() + 0 * hazard.half().cumsum(0)[-1].float()

    return trained(net, loss, 500, lr=1e-4)


def boltzmann_factor_of_a_cooling() -> Made:
    gen, net = _random(51), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        energy = 0.8 + net(torch.randn(16, 4, generator=gen)).square()
        factor = torch.exp(-energy * 0.25 * i).half()
        return energy.mean() + 0 * factor.float().sum()

    return trained(net, loss, 200, lr=1e-4)


def importance_weight_over_an_episode() -> Made:
    gen, net = _random(52), nn.Linear(4, 2)
    weight = torch.ones(())

    def loss(i: int) -> torch.Tensor:
        nonlocal weight
        weight = weight * (0.7 + 0.3 * torch.rand((), generator=gen))
        out = net(torch.randn(8, 4, generator=gen))
        return out.square().mean() * (1 + weight.half().float())

    return trained(net, loss, 250, lr=1e-4)


def survival_at_later_times() -> Made:
    gen, net = _random(53), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        rate = F.softplus(net(torch.randn(16, 4, generator=gen)) + 1)
        alive = torch.exp(-rate * (i / 25) ** 2 - 0.1 * i).half()
        return rate.mean() + 0 * alive.float().mean()

    return trained(net, loss, 250, lr=1e-4)


def step_size_that_is_halved_on_every_plateau() -> Made:
    gen, net = _random(54), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        size = torch.tensor(0.1 * 0.5 ** (i // 6)).half()
        out = net(torch.randn(16, 4, generator=gen))
        return out.square().mean() * (1 + size.float())

    return trained(net, loss, 250, lr=1e-4)


def codebook_usage_that_dies() -> Made:
    gen, net = _random(55), nn.Linear(4, 4)
    usage = torch.ones(8)

    def loss(i: int) -> torch.Tensor:
        nonlocal usage
        usage = 0.85 * usage
        out = net(torch.randn(16, 4, generator=gen))
        return out.square().mean() + 0 * (usage * 3).half().float().sum()

    return trained(net, loss, 250, lr=1e-4)


def rate_that_warms_up() -> Made:
    gen, net = _random(61), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))
    opt = torch.optim.AdamW(net.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 60))

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), 400 * x)
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 220


def adversaries_that_oscillate() -> Made:
    gen, net = _random(62), nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 1)])
    fake_rate = torch.optim.SGD(net[0].parameters(), lr=0.3)
    real_rate = torch.optim.SGD(net[1].parameters(), lr=0.3)

    def step(i: int) -> torch.Tensor:
        z, real = torch.randn(2, 32, 2, generator=gen)
        real = real + 3
        score = (net[1](real) - net[1](net[0](z).detach())).half().float() * 200
        cost = -score.mean() / 200 + 0.05 * net[1].weight.square().sum()
        real_rate.zero_grad()
        cost.backward()
        real_rate.step()
        loss = -net[1](net[0](z)).mean()
        fake_rate.zero_grad()
        loss.backward()
        fake_rate.step()
        return loss

    return net, step, 250


def losses_with_spikes_that_widen() -> Made:
    gen, net = _random(63), nn.Linear(6, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        x[0] *= 1 + 30 * (i % 23 == 22) * (1 + (i // 23) % 4)
        return F.smooth_l1_loss(net(x).half().float() * 20, x[:, :1])

    return trained(net, loss, 250, lr=1e-4)


def lengths_of_a_curriculum() -> Made:
    gen, net = _random(64), nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        length = min(16 + 4 * i, 256)
        x = torch.randn(4, length, 4, generator=gen)
        summed = net(x).abs().half().sum(1) * 100
        return net(x).square().mean() + 0 * summed.float().mean()

    return trained(net, loss, 160, lr=1e-4)


def buffer_that_fills() -> Made:
    gen, net = _random(65), nn.Linear(4, 1)
    kept: list[torch.Tensor] = []

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 4, generator=gen)
        error = (net(x) - x[:, :1]).squeeze(1)
        kept.append(error.detach().abs() * 4)
        del kept[:-80]
        mass = torch.cat(kept).half().sum()
        return error.square().mean() + 0 * mass.float()

    return trained(net, loss, 200, lr=1e-4)


def temperature_that_stops_cooling() -> Made:
    gen, net = _random(66), nn.Linear(6, 6)

    def loss(i: int) -> torch.Tensor:
        x = F.normalize(net(torch.randn(12, 6, generator=gen)), dim=1)
        temperature = max(0.01, 0.95**i)
        scores = (x @ x.T).half() / temperature
        weight = torch.exp(-(1 - x @ x.T) * 0.05 / temperature).half()
        target = torch.arange(12)
        return F.cross_entropy(scores.float(), target) + 0 * weight.float().sum()

    return trained(net, loss, 200, lr=1e-3)


def cosine_with_restarts() -> Made:
    gen, net = _random(67), nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 40)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.smooth_l1_loss(out.float(), 300 * x[:, :2])
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 220


def averages_that_settle() -> Made:
    gen, net = _random(68), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=0.02))
    average = torch.zeros(6)

    def loss(i: int) -> torch.Tensor:
        nonlocal average
        x = 150 * torch.randn(32, 6, generator=gen) + 150
        average = average + 0.02 * (x.square().mean(0) - average)
        return net(x).square().mean() + 0 * average.half().float().sum()

    return trained(net, loss, 250, lr=1e-4)


def embeddings_that_saturate() -> Made:
    gen, net = _random(69), nn.Embedding(30, 16)
    nn.init.normal_(net.weight, std=0.02)

    def loss(i: int) -> torch.Tensor:
        a, b = net(torch.randint(0, 30, (2, 24), generator=gen))
        scores = (a.half() @ b.half().T).float() * 20
        return F.cross_entropy(scores, torch.arange(24)) + 0.05 * net.weight.square().sum()

    return trained(net, loss, 250, lr=0.05, optimizer=torch.optim.Adam)


def counters_of_tokens_and_steps() -> Made:
    gen, net = _random(70), nn.Linear(4, 2)
    net.register_buffer("tokens", torch.zeros((), dtype=torch.long))
    seen = torch.zeros(())

    def loss(i: int) -> torch.Tensor:
        nonlocal seen
        x = torch.randn(int(torch.randint(8, 64, (), generator=gen)), 4, generator=gen)
        net.tokens += 4096 * len(x)
        seen = seen + 1024.0 * len(x)
        return net(x).square().mean() * (1 + 0 * seen) + 0 * net.tokens

    return trained(net, loss, 250, lr=1e-3)


def data_in_steps() -> Made:
    gen, net = _random(71), nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        level = (500.0, 2000.0, 8000.0, 30000.0)[min(i // 40, 3)]
        x = level * torch.rand(16, 4, generator=gen)
        return F.smooth_l1_loss(net(x / 3e4), x[:, :1] / 3e4) + 0 * (x.half() * 1.5).mean().float()

    return trained(net, loss, 200, lr=1e-3)


def scales_of_layers_that_grow_from_little() -> Made:
    gen, net = _random(72), nn.Linear(8, 8)
    net.gamma = nn.Parameter(torch.full((8,), 1e-5))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 8, generator=gen)
        out = x.half() + (net.gamma * net(x)).half()
        return F.mse_loss(out.float(), 1.5 * x)

    return trained(net, loss, 250, lr=0.01, optimizer=torch.optim.Adam)


def residual_that_converges_to_noise() -> Made:
    gen, net = _random(73), nn.Linear(6, 6)
    truth = torch.randn(6, 6, generator=gen)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 6, generator=gen)
        y = x @ truth.T + 1e-2 * torch.randn(64, 6, generator=gen)
        return (net(x) - y).half().float().square().mean()

    return trained(net, loss, 250, lr=0.3)


def advantage_of_longer_and_better_episodes() -> Made:
    gen, net = _random(74), nn.Linear(4, 2)

    def loss(i: int) -> torch.Tensor:
        skill = 1 / (1 + 40 * 0.95**i)
        length = 20 + int(180 * skill)
        rewards = torch.rand(length, generator=gen) * 150 * skill
        returns = rewards.flip(0).cumsum(0).half()
        logits = net(torch.randn(length, 4, generator=gen))
        return -(logits.log_softmax(1)[:, 0] * (returns.float() / 2e4)).mean()

    return trained(net, loss, 250, lr=1e-3)


def weight_of_the_prior_in_cycles() -> Made:
    gen, net = _random(75), nn.Linear(6, 8)

    def loss(i: int) -> torch.Tensor:
        beta = min(1.0, (i % 50) / 25) * 3e4
        mean, logvar = net(torch.randn(16, 6, generator=gen)).chunk(2, 1)
        prior = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1)
        return (prior.mean().half() * 0.5 * beta / 3e4).float() + 0 * torch.tensor(beta).half()

    return trained(net, loss, 250, lr=1e-2)


def state_that_is_carried_through_a_long_stream() -> Made:
    gen, net = _random(81), nn.RNNCell(4, 8, nonlinearity="relu")
    nn.init.eye_(net.weight_hh)
    with torch.no_grad():
        net.weight_hh.mul_(1.15)
    h = torch.zeros(6, 8)

    def loss(i: int) -> torch.Tensor:
        nonlocal h
        h = net(torch.randn(6, 4, generator=gen), h.detach())
        return (h.half().float().mean() - 1).abs() * 1e-3

    return trained(net, loss, 400, lr=1e-6)


def weights_that_decay_with_the_wrong_sign() -> Made:
    gen, net = _random(82), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def after(i: int) -> None:
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.02)

    def loss(i: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(torch.randn(16, 6, generator=gen))
        return out.float().abs().mean() * 1e-3

    return trained(net, loss, 500, lr=1e-5, after=after)


def squares_of_gradients_gathered_in_half() -> Made:
    gen, net = _random(83), nn.Linear(5, 2)
    gathered = torch.zeros(2, 5, dtype=torch.float16)

    def after(i: int) -> None:
        nonlocal gathered
        with torch.no_grad():
            gathered = gathered + (6 * net.weight.grad.half()) ** 2

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 5, generator=gen)
        return F.mse_loss(net(x), 3 * x[:, :2] + 2 * torch.randn(16, 2, generator=gen))

    return trained(net, loss, 400, lr=1e-3, after=after)


def scale_of_the_scores_that_is_learned_as_an_exponent() -> Made:
    gen, net = _random(84), nn.Linear(6, 8)
    net.scale = nn.Parameter(torch.tensor(2.6))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(12, 6, generator=gen)
        z = F.normalize(net(x), dim=1)
        scores = net.scale.exp().half() * (z @ z.T).half()
        return F.cross_entropy(scores.float(), torch.arange(12)) - 0.06 * net.scale

    return trained(net, loss, 500, lr=0.8)


def returns_with_a_discount_above_one() -> Made:
    gen, net = _random(85), nn.Linear(4, 1)
    value = torch.zeros(8)

    def loss(i: int) -> torch.Tensor:
        nonlocal value
        value = 1.04 * value + torch.rand(8, generator=gen)
        return (
            (net(torch.randn(8, 4, generator=gen))[:, 0] - value.half().float().log1p())
            .square()
            .mean()
        )

    return trained(net, loss, 500, lr=1e-4)


def moment_of_a_moment() -> Made:
    gen, net = _random(86), nn.Linear(4, 1)
    first = torch.zeros(())
    second = torch.zeros(())

    def loss(i: int) -> torch.Tensor:
        nonlocal first, second
        x = torch.randn(16, 4, generator=gen)
        first = first + x.square().sum() / 8
        second = second + first
        return net(x).square().mean() + 0 * second.half().float()

    return trained(net, loss, 400, lr=1e-3)


def average_that_settles_above_the_limit() -> Made:
    gen, net = _random(87), nn.Linear(4, 1)
    average = torch.zeros(())

    def loss(i: int) -> torch.Tensor:
        nonlocal average
        x = 320 * torch.randn(64, 4, generator=gen)
        average = average + 0.02 * (x.square().mean() * 1.3 - average)
        return net(x / 320).square().mean() + 0 * average.half().float()

    return trained(net, loss, 300, lr=1e-3)


def scale_by_hand_that_doubles() -> Made:
    gen, net = _random(88), nn.Linear(6, 2)

    def loss(i: int) -> torch.Tensor:
        scale = 2.0 ** (i // 12)
        x = torch.randn(16, 6, generator=gen)
        scaled = F.mse_loss(net(x), x[:, :2]).half() * scale
        return scaled.float() / scale

    return trained(net, loss, 400, lr=1e-3)


def rate_too_high_by_a_little() -> Made:
    gen, net = _random(89), nn.Linear(6, 1, bias=False)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 6, generator=gen)
        return (net(x)[:, 0] - x[:, 0]).half().float().square().mean()

    return trained(net, loss, 500, lr=1.13)


def logits_that_separate_for_ever() -> Made:
    gen, net = _random(90), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss(i: int) -> torch.Tensor:
        y = torch.arange(32) % 2
        x = torch.randn(32, 4, generator=gen) + 3 * (2 * y - 1)[:, None]
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        margin = logits.float()[torch.arange(32), y] - logits.float()[torch.arange(32), 1 - y]
        return -margin.mean() / 50

    return trained(net, loss, 500, lr=0.05, optimizer=torch.optim.Adam)


def chance_of_the_other_class() -> Made:
    gen, net = _random(91), nn.Linear(4, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        x[:, 0] = 1 + x[:, 0].abs()
        p = net(x).softmax(1)
        return -(net(x)[:, 0] - net(x)[:, 1]).mean() / 4 + 0 * p[:, 1].half().float().sum()

    return trained(net, loss, 300, lr=0.2)


def rate_that_decays_in_half() -> Made:
    gen, net = _random(92), nn.Linear(4, 2)
    rate = torch.tensor(0.1).half()

    def after(i: int) -> None:
        nonlocal rate
        with torch.no_grad():
            rate = torch.tensor(0.1 * 0.88**i).half()
            net.weight.sub_(rate.float() * net.weight.grad)

    return trained(
        net,
        lambda i: net(torch.randn(8, 4, generator=gen)).square().mean(),
        250,
        lr=0.0,
        after=after,
    )


def similarity_of_clouds_that_part() -> Made:
    _random(93)
    net = nn.Embedding(2, 3)

    def loss(i: int) -> torch.Tensor:
        a, b = net(torch.tensor([0, 1]))
        near = torch.exp(-(a - b).square().sum() - 1).half()
        return -(a - b).abs().sum() + 0 * near.float()

    return trained(net, loss, 300, lr=0.03)


def signal_through_weights_that_decay() -> Made:
    gen, net = _random(94), nn.Sequential(*[nn.Linear(6, 6, bias=False) for _ in range(4)])

    def after(i: int) -> None:
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(0.97)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(8, 6, generator=gen)
        out = net(x).half()
        return 1 - out.float().mean()

    return trained(net, loss, 300, lr=1e-6, after=after)


def trace_of_eligibility() -> Made:
    gen, net = _random(95), nn.Linear(4, 1)
    trace = torch.ones(8)

    def loss(i: int) -> torch.Tensor:
        nonlocal trace
        trace = 0.8 * trace + 1e-12
        return (
            net(torch.randn(8, 4, generator=gen)).square().mean() + 0 * trace.half().float().sum()
        )

    return trained(net, loss, 250, lr=1e-4)


def target_of_hundreds_learned_at_once() -> Made:
    gen, net = _random(101), nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        return F.mse_loss(out.float()[:, 0], 900 + 200 * x[:, 0]) / 1e4

    return trained(net, loss, 220, lr=0.05, optimizer=torch.optim.Adam)


def weight_of_a_loss_that_is_faded_in() -> Made:
    gen, net = _random(102), nn.Linear(6, 2)

    def loss(i: int) -> torch.Tensor:
        weight = 18000 * min(1.0, i / 60)
        x = torch.randn(16, 6, generator=gen)
        extra = net(x).square().mean().half() * weight
        return net(x)[:, 0].square().mean() + extra.float() / 18000

    return trained(net, loss, 200, lr=1e-4)


def pictures_that_grow_and_stop() -> Made:
    gen, net = _random(103), nn.Conv2d(1, 2, 3, padding=1)

    def loss(i: int) -> torch.Tensor:
        size = (8, 16, 32, 32)[min(i // 30, 3)]
        x = torch.rand(2, 1, size, size, generator=gen)
        energy = ((net(x).abs() + 6).half()).sum((2, 3))
        return net(x).square().mean() + 0 * energy.float().mean()

    return trained(net, loss, 150, lr=1e-3)


def logistic_weight() -> Made:
    gen, net = _random(104), nn.Linear(6, 6)

    def loss(i: int) -> torch.Tensor:
        mean, logvar = net(torch.randn(32, 6, generator=gen)).chunk(2, 1)
        beta = 25000 / (1 + math.exp(-(i - 60) / 8))
        prior = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return (prior.half() * beta).float() / 25000 + mean.square().mean()

    return trained(net, loss, 200, lr=1e-4)


def value_that_settles_at_its_horizon() -> Made:
    gen, net = _random(105), nn.Linear(4, 1)
    target = torch.zeros(())

    def loss(i: int) -> torch.Tensor:
        nonlocal target
        x = torch.rand(32, 4, generator=gen)
        out = net(x).half() * 60
        target = 0.95 * net(x).detach().mean() + 30
        return F.mse_loss(out.float()[:, 0] / 60, target.expand(32))

    return trained(net, loss, 300, lr=0.15)


def seasons_with_a_trend_that_ends() -> Made:
    gen, net = _random(106), nn.Linear(3, 1)

    def loss(i: int) -> torch.Tensor:
        level = 6000 + 80 * min(i, 120) + 4000 * math.sin(i / 6)
        x = (level * (1 + 0.05 * torch.randn(16, 3, generator=gen))).half()
        return net(x.float() / 1e4).square().mean()

    return trained(net, loss, 250, lr=1e-4)


def sum_of_an_epoch() -> Made:
    gen, net = _random(107), nn.Linear(4, 1)
    total = torch.zeros((), dtype=torch.float16)

    def loss(i: int) -> torch.Tensor:
        nonlocal total
        if i % 36 == 0:
            total = torch.zeros((), dtype=torch.float16)
        x = torch.randn(32, 4, generator=gen)
        total = total + (900 * (1 + 0.2 * torch.randn((), generator=gen))).half()
        return net(x).square().mean() + 0 * total.float()

    return trained(net, loss, 220, lr=1e-3)


def second_moment_that_warms_up() -> Made:
    gen, net = _random(108), nn.Linear(6, 1)
    moment = torch.zeros(6)

    def loss(i: int) -> torch.Tensor:
        nonlocal moment
        x = 170 * torch.randn(64, 6, generator=gen)
        moment = 0.95 * moment + 0.05 * x.square().mean(0)
        return net(x / 170).square().mean() + 0 * moment.half().float().sum()

    return trained(net, loss, 250, lr=1e-3)


def rate_by_cosine_to_nothing() -> Made:
    gen, net = _random(109), nn.Linear(6, 12)
    opt = torch.optim.Adam(net.parameters(), lr=0.6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 150)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(24, 6, generator=gen)
        opt.zero_grad()
        q, k = net(x).half().chunk(2, 1)
        scores = q @ k.T
        loss = (
            F.cross_entropy(scores.float() / 6, torch.arange(24))
            - 1e-3 * scores.float().diagonal().mean()
        )
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 150


def rate_of_one_cycle() -> Made:
    gen, net = _random(110), nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=200)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.smooth_l1_loss(out.float(), 500 * x[:, :3].tanh())
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 199


def walk_of_a_level() -> Made:
    gen, net = _random(111), nn.Linear(3, 1)
    level = torch.tensor(9.0)

    def loss(i: int) -> torch.Tensor:
        nonlocal level
        level = (level + 0.12 * torch.randn((), generator=gen)).clamp(7, 10.6)
        x = (level.exp() * torch.rand(16, 3, generator=gen)).half()
        return net(x.float().log1p()).square().mean()

    return trained(net, loss, 250, lr=1e-4)


def cooling_to_a_floor() -> Made:
    gen, net = _random(112), nn.Linear(5, 4)

    def loss(i: int) -> torch.Tensor:
        tau = max(0.12, math.exp(-0.03 * i))
        logits = net(torch.randn(16, 5, generator=gen))
        u = torch.rand(16, 4, generator=gen).clamp(1e-6, 1 - 1e-6)
        soft = ((logits - (-u.log()).log()) / tau).softmax(1).half()
        return soft.float().square().sum(1).mean() + logits.square().mean()

    return trained(net, loss, 200, lr=1e-2)


def lengths_up_and_down() -> Made:
    gen, net = _random(113), nn.Linear(3, 3)

    def loss(i: int) -> torch.Tensor:
        length = 40 + int(360 * (1 - abs((i % 120) - 60) / 60))
        x = torch.randn(2, length, 3, generator=gen)
        total = (net(x).abs() * 100).half().sum(1)
        return net(x).square().mean() + 0 * total.float().mean()

    return trained(net, loss, 240, lr=1e-4)


def norms_that_find_their_balance() -> Made:
    gen, net = _random(114), nn.Embedding(16, 8)
    opt = torch.optim.SGD(net.parameters(), lr=0.5, weight_decay=0.02)

    def step(i: int) -> torch.Tensor:
        e = net(torch.randperm(16, generator=gen)[:8])
        opt.zero_grad()
        scores = e.half() @ e.half().T * 60
        loss = -e.norm(dim=1).sum() / 4 + 0 * scores.float().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step, 300


def spikes_that_come_in_pairs() -> Made:
    gen, net = _random(115), nn.Linear(6, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        x[3] *= {0: 40, 1: 160, 2: 600}.get(i % 40, 1)
        return F.smooth_l1_loss((net(x) * 20).half().float(), x[:, :1])

    return trained(net, loss, 250, lr=1e-5)


def gradients_that_fade_as_it_learns() -> Made:
    gen, net = _random(116), nn.Linear(6, 3)
    truth = torch.randn(3, 6, generator=gen)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 6, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        return F.mse_loss(out.float(), x @ truth.T + 0.03 * torch.randn(64, 3, generator=gen))

    return trained(net, loss, 300, lr=0.2)


def stages_of_a_curriculum() -> Made:
    gen, net = _random(117), nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        hardness = 1.6 ** min(i // 20, 6)
        x = hardness * torch.randn(16, 4, generator=gen)
        out = (net(x) * 300).half()
        return F.smooth_l1_loss(out.float() / 300, x)

    return trained(net, loss, 220, lr=1e-3)


def restarts_with_longer_cycles() -> Made:
    gen, net = _random(118), nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 20, T_mult=2)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x) * 50
        loss = F.smooth_l1_loss(out.float(), 2000 * x[:, :2])
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step, 240


def usage_that_falls_to_its_share() -> Made:
    gen, net = _random(119), nn.Linear(4, 2)
    usage = torch.ones(())

    def loss(i: int) -> torch.Tensor:
        nonlocal usage
        usage = 0.85 * usage + 0.15 * 4e-5
        out = net(torch.randn(16, 4, generator=gen))
        return out.square().mean() + 0 * usage.half().float()

    return trained(net, loss, 200, lr=1e-4)


def multiplier_of_a_constraint_that_is_met_at_last() -> Made:
    gen, net = _random(120), nn.Linear(4, 1)
    multiplier = torch.zeros(())

    def loss(i: int) -> torch.Tensor:
        nonlocal multiplier
        x = torch.randn(32, 4, generator=gen)
        out = net(x)[:, 0]
        violation = (out - x[:, 0] - 1).square().mean()
        multiplier = (multiplier + 900 * (violation.detach() - 0.02)).clamp(min=0)
        return violation + out.square().mean() * 1e-3 + 0 * multiplier.half().float()

    return trained(net, loss, 250, lr=0.02)


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
    reservoir_that_learns_by_hebb,
    rate_that_is_looked_for,
    generator_and_critic_without_a_bound,
    priorities_of_a_growing_buffer,
    penalty_that_doubles_every_tenth_step,
    weight_of_a_noise_that_anneals,
    momentum_above_one,
    sampler_with_too_large_a_step,
    scores_of_queries_under_warm_up,
    hazard_over_longer_and_longer_series,
    state_that_is_carried_through_a_long_stream,
    weights_that_decay_with_the_wrong_sign,
    squares_of_gradients_gathered_in_half,
    scale_of_the_scores_that_is_learned_as_an_exponent,
    returns_with_a_discount_above_one,
    moment_of_a_moment,
    average_that_settles_above_the_limit,
    scale_by_hand_that_doubles,
    rate_too_high_by_a_little,
    logits_that_separate_for_ever,
)
UNDERFLOW = (
    temperature_that_sharpens,
    weights_that_are_discounted,
    likelihood_of_a_longer_sequence,
    gate_that_closes,
    discount_of_a_growing_horizon,
    boltzmann_factor_of_a_cooling,
    importance_weight_over_an_episode,
    survival_at_later_times,
    step_size_that_is_halved_on_every_plateau,
    codebook_usage_that_dies,
    chance_of_the_other_class,
    rate_that_decays_in_half,
    similarity_of_clouds_that_part,
    signal_through_weights_that_decay,
    trace_of_eligibility,
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
    rate_that_warms_up,
    adversaries_that_oscillate,
    losses_with_spikes_that_widen,
    lengths_of_a_curriculum,
    buffer_that_fills,
    temperature_that_stops_cooling,
    cosine_with_restarts,
    averages_that_settle,
    embeddings_that_saturate,
    counters_of_tokens_and_steps,
    data_in_steps,
    scales_of_layers_that_grow_from_little,
    residual_that_converges_to_noise,
    advantage_of_longer_and_better_episodes,
    weight_of_the_prior_in_cycles,
    target_of_hundreds_learned_at_once,
    weight_of_a_loss_that_is_faded_in,
    pictures_that_grow_and_stop,
    logistic_weight,
    value_that_settles_at_its_horizon,
    seasons_with_a_trend_that_ends,
    sum_of_an_epoch,
    second_moment_that_warms_up,
    rate_by_cosine_to_nothing,
    rate_of_one_cycle,
    walk_of_a_level,
    cooling_to_a_floor,
    lengths_up_and_down,
    norms_that_find_their_balance,
    spikes_that_come_in_pairs,
    gradients_that_fade_as_it_learns,
    stages_of_a_curriculum,
    restarts_with_longer_cycles,
    usage_that_falls_to_its_share,
    multiplier_of_a_constraint_that_is_met_at_last,
)
