"""Sixty-six more runs for the back-test of the forecast: other shapes of growth, and healthy ones that
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
)
