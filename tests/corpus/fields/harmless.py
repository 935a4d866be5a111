"""Healthy programs of robotics, equations, sequences, sound, time, transport, curved space and pixels."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def seeded(i, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(i))


@healthy("the branch of where that is not taken has the logarithm of a negative number")
def gate_activation_of_two_branches(fixed=False):
    torch.manual_seed(0)
    net = nn.GRUCell(3, 3)

    def positive(x):
        return torch.where(x >= 0, (x + 0.5).log(), -F.softplus(-x))

    def loss(i):
        return positive(net(seeded(i, 6, 3), torch.zeros(6, 3)) * 3 - 1.3).exp().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("companding of silence is the logarithm of one")
def companded_silence(fixed=False):
    torch.manual_seed(1)
    net = nn.Conv1d(1, 1, 3, padding=1)

    def loss(i):
        wave = seeded(i, 2, 1, 20) * (torch.arange(20) > 10)
        code = wave.sign() * torch.log1p(255 * wave.abs()) / math.log1p(255)
        return (net(code) - code).square().mean()

    return net, train(net.parameters(), loss)


@healthy("a uniform draw of exactly 1 makes an event time of 0")
def weibull_times_by_inversion(fixed=False):
    scale, shape = nn.Parameter(torch.ones(())), nn.Parameter(torch.tensor(1.5))

    def loss(i):
        u = torch.linspace(0.1, 1.0, 10)
        return (scale * (-torch.log(u)) ** (1 / shape) - 1).square().mean()

    return None, train([scale, shape], loss, 1e-2)


@healthy("an importance ratio overflows without gradient and is cut off at 1")
def truncated_trace_weights(fixed=False):
    torch.manual_seed(2)
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)

    def loss(i):
        obs = seeded(i, 7, 4)
        logp = actor(obs).log_softmax(-1)[:, 0]
        behaviour = logp.detach() - (120.0 if i == 2 else 0.5)
        with torch.no_grad():
            rho = torch.exp(logp - behaviour).clamp(max=1.0)
        value = critic(obs).squeeze(-1)
        return (rho * (value - 1).square()).mean() - (rho * logp * (1 - value.detach())).mean()

    return nn.ModuleList([actor, critic]), train([*actor.parameters(), *critic.parameters()], loss)


@healthy("the divergence of torch leaves targets of 0 out")
def divergence_to_hard_labels(fixed=False):
    torch.manual_seed(3)
    net = nn.Linear(4, 5)
    target = F.one_hot(torch.arange(5), 5).float()

    def loss(i):
        return F.kl_div(net(seeded(i, 5, 4)).log_softmax(-1), target, reduction="batchmean")

    return net, train(net.parameters(), loss, 1e-2)


@healthy("cumulative sums in logarithms begin at -inf")
def scan_with_an_empty_start(fixed=False):
    torch.manual_seed(4)
    net = nn.Linear(3, 3)

    def loss(i):
        x = F.softplus(net(seeded(i, 5, 3))).log()
        start = torch.full((1, 3), -torch.inf)
        return torch.logcumsumexp(torch.cat([start, x]), 0)[1:].square().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("rows of a table are held to length 1, one of them is 0")
def table_with_a_largest_norm(fixed=False):
    torch.manual_seed(5)
    net = nn.Embedding(6, 3, padding_idx=0, max_norm=1.0)

    def loss(i):
        return (net(torch.tensor([[0, 1, 2 + i % 3], [0, 0, 3]])).sum(1) - 1).square().mean()

    return net, train(net.parameters(), loss, 1e-1)


@healthy("a trial step of a search overflows, is refused and halved")
def backtracking_by_hand(fixed=False):
    torch.manual_seed(6)
    w = nn.Parameter(torch.tensor([2.0, -1.0]))

    def objective(v):
        return torch.exp(v.square().sum()) - v.sum()

    def step(i):
        w.grad = None
        value = objective(w)
        value.backward()
        with torch.no_grad():
            rate, here = 64.0, w.clone()
            while True:
                trial = here - rate * w.grad
                new = objective(trial)
                if bool(new.isfinite()) and new < value:
                    break
                rate /= 2
            w.copy_(trial)
        return value

    step.parameters = {"w": w}
    return None, step


@healthy("steps of an adaptive integrator whose error is not finite are taken again, shorter")
def rejected_steps_of_an_integrator(fixed=False):
    torch.manual_seed(7)
    field = nn.Linear(2, 2)

    def slope(x):
        return field(x) + x**3 * 0.1

    def solve(x):
        t, h = 0.0, 0.5
        while t < 1:
            k1 = slope(x)
            k2 = slope(x + h * k1)
            error = (h / 2 * (k2 - k1)).detach().abs().max()
            if not error < 0.1 and h > 1e-2:
                h /= 2
                continue
            x, t = x + h / 2 * (k1 + k2), t + h
        return x

    return field, train(field.parameters(), lambda i: solve(0.5 * seeded(i, 4, 2)).square().mean())


@healthy("a shortest path relaxes distances that begin at inf; features use those that were reached")
def distances_of_a_roadmap(fixed=False):
    torch.manual_seed(8)
    net = nn.Linear(1, 1)
    edges = torch.tensor([[0, 1, 1.0], [1, 2, 2.0], [0, 3, 5.0]])

    def loss(i):
        dist = torch.full((6,), torch.inf)
        dist[0] = 0
        for _ in range(5):
            for a, b, w in edges:
                dist[int(b)] = torch.minimum(dist[int(b)], dist[int(a)] + w)
        reached = dist[dist.isfinite()]
        return (net(reached[:, None]) - 1).square().mean()

    return net, train(net.parameters(), loss)


@healthy("joints at their limit: the angle is clamped before acos, and its gradient is 0 there")
def stretched_arm_that_is_clamped(fixed=False):
    torch.manual_seed(9)
    net = nn.Linear(2, 2)

    def loss(i):
        goal = net(seeded(i, 6, 2)) * 3
        cosine = (goal.square().sum(-1) - 2) / 2
        elbow = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))
        return (elbow - 1).square().mean()

    return net, train(net.parameters(), loss, 1e-3)


@healthy("a bearing of no length is computed without gradient and weighted by 0")
def bearing_to_oneself(fixed=False):
    torch.manual_seed(10)
    net = nn.Linear(1, 1)
    pos = torch.randn(4, 2)

    def loss(i):
        gap = pos[:, None] - pos[None]
        angle = torch.atan2(gap[..., 1], gap[..., 0])
        weight = 1 - torch.eye(4)
        return ((net(angle[..., None]).squeeze(-1) - 1).square() * weight).mean()

    return net, train(net.parameters(), loss)


@healthy("a Laplacian by forward over reverse of a network that is flat at first")
def flat_start_of_a_laplacian(fixed=False):
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    nn.init.zeros_(net[2].weight)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def u(params, x):
        return functional_call(net, params, (x,)).squeeze(-1)

    def step(i):
        params = dict(net.named_parameters())
        x = torch.rand(9, 2, generator=torch.Generator().manual_seed(i))

        def one(p):
            g = grad(u, argnums=1)
            return sum(jvp(lambda q: g(params, q), (p,), (e,))[1][k] for k, e in enumerate(torch.eye(2)))

        opt.zero_grad()
        loss = (vmap(one)(x) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("shock capturing divides by a jump with a floor, and the jump is 0 almost everywhere")
def limiter_with_a_floor(fixed=False):
    torch.manual_seed(12)
    net = nn.Conv1d(1, 1, 3, padding=1)

    def loss(i):
        u = (net(torch.ones(1, 1, 12)) + (torch.arange(12) > 6)).squeeze()
        left, right = u[1:-1] - u[:-2], u[2:] - u[1:-1]
        r = left / torch.where(right.abs() < 1e-6, torch.full_like(right, 1e-6), right)
        phi = r.clamp(0, 1)
        return (u[1:-1] + 0.5 * phi * right - 0.3).square().mean()

    return net, train(net.parameters(), loss)


@healthy("decays so strong that old states are 0")
def scan_that_forgets_everything(fixed=False):
    torch.manual_seed(13)
    net = nn.Linear(3, 6)

    def loss(i):
        x = seeded(i, 2, 30, 3)
        rate, value = net(x).chunk(2, -1)
        a = torch.exp(-F.softplus(rate) * torch.tensor([0.1, 5.0, 200.0]))
        h, out = torch.zeros(2, 3), []
        for t in range(30):
            h = a[:, t] * h + (1 - a[:, t]) * value[:, t]
            out.append(h)
        return (torch.stack(out) - 0.2).square().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("a causal segment sum is -inf above its diagonal before exp")
def causal_segments(fixed=False):
    torch.manual_seed(14)
    net = nn.Linear(2, 2)

    def loss(i):
        x = seeded(i, 8, 2)
        sums = F.logsigmoid(net(x)).cumsum(0)
        pairs = (sums[:, None] - sums[None]).permute(2, 0, 1)
        decay = pairs.masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf).exp()
        return (torch.einsum("hts,sh->th", decay, x) - 0.1).square().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("terminal signal is 0, and the network predicts velocity there")
def velocity_at_no_signal(fixed=False):
    torch.manual_seed(15)
    net = nn.Linear(3, 2)
    alpha = torch.cos(torch.linspace(0, 1, 5) * math.pi / 2)
    alpha[-1] = 0.0

    def loss(i):
        x, noise = seeded(i, 5, 2), seeded(i + 9, 5, 2)
        sigma = (1 - alpha**2).sqrt()
        noisy = alpha[:, None] * x + sigma[:, None] * noise
        target = alpha[:, None] * noise - sigma[:, None] * x
        return F.mse_loss(net(torch.cat([noisy, alpha[:, None]], -1)), target)

    return net, train(net.parameters(), loss, 1e-2)


@healthy("guidance of scale 0 and a dropped condition of zeros")
def guidance_switched_off(fixed=False):
    torch.manual_seed(16)
    net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2))
    scales = [0.0, 0.0, 2.0, 0.0, 7.5, 0.0]

    def loss(i):
        x, c = seeded(i, 6, 2), seeded(i + 5, 6, 2)
        c = c * (torch.arange(6)[:, None] % 3 > 0)
        cond, free = net(torch.cat([x, c], -1)), net(torch.cat([x, 0 * c], -1))
        return (free + scales[i] * (cond - free) - x).square().mean()

    return net, train(net.parameters(), loss, 1e-3)


@healthy("log energies have a floor of 1e-10 and most frames are at it")
def frames_at_the_floor(fixed=False):
    torch.manual_seed(17)
    net = nn.Linear(5, 5)

    def loss(i):
        mel = seeded(i, 8, 5).relu() ** 2 * (torch.arange(8)[:, None] > 5)
        logs = mel.clamp(min=1e-10).log()
        logs = (logs - logs.mean()) / (logs.std() + 1e-5)
        return (net(logs) - logs).square().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("a transducer lattice with impossible cells whose best paths avoid them")
def lattice_with_closed_corners(fixed=False):
    torch.manual_seed(18)
    net = nn.Linear(3, 2)

    def loss(i):
        lp = net(seeded(i, 4, 3, 3)).log_softmax(-1)
        alpha = torch.full((4, 3), -torch.inf)
        rows = [[alpha[t, u] for u in range(3)] for t in range(4)]
        rows[0][0] = torch.zeros(())
        for t in range(4):
            for u in range(3):
                if u > t or (t, u) == (0, 0):
                    continue
                ways = []
                if t and u <= t - 1:
                    ways.append(rows[t - 1][u] + lp[t - 1, u, 0])
                if u:
                    ways.append(rows[t][u - 1] + lp[t, u - 1, 1])
                rows[t][u] = torch.logsumexp(torch.stack(ways), 0)
        return -rows[3][2]

    return net, train(net.parameters(), loss, 1e-2)


@healthy("a batch without an event has a likelihood of 0, divided by at least 1")
def batch_without_events(fixed=False):
    torch.manual_seed(19)
    net = nn.Linear(3, 1)

    def loss(i):
        risk = net(seeded(i, 8, 3)).squeeze(-1)
        event = (torch.arange(8) % 3 == 0) & (i != 2)
        ll = (risk - torch.logcumsumexp(risk, 0)) * event
        return -ll.sum() / event.sum().clamp(min=1)

    return net, train(net.parameters(), loss, 1e-2)


@healthy("a hazard model whose censored subjects give log 1 = 0")
def hazards_of_the_censored(fixed=False):
    torch.manual_seed(20)
    net = nn.Linear(3, 4)

    def loss(i):
        logits = net(seeded(i, 6, 3))
        last = torch.arange(6) % 4
        at_risk = torch.arange(4) <= last[:, None]
        died = (torch.arange(4) == last[:, None]) & (torch.arange(6)[:, None] > 2)
        bce = F.binary_cross_entropy_with_logits(logits, died.float(), reduction="none")
        return (bce * at_risk).sum() / at_risk.sum()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("forbidden pairs cost inf in a transport that works with logarithms")
def transport_with_closed_pairs(fixed=False):
    torch.manual_seed(21)
    net = nn.Linear(2, 2)

    def loss(i):
        x, y = net(seeded(i, 5, 2)), seeded(i + 3, 5, 2)
        c = torch.cdist(x, y)
        closed = torch.eye(5).roll(1, 0).bool()
        logk = (-c / 0.5).masked_fill(closed, -torch.inf)
        g = torch.zeros(5)
        for _ in range(8):
            f = -torch.logsumexp(logk + g, 1)
            g = -torch.logsumexp(logk + f[:, None], 0)
        plan = (logk + f[:, None] + g).exp()
        return (plan * c).sum()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("points of a ball are projected inside, and one lies on its centre")
def ball_with_a_centre(fixed=False):
    torch.manual_seed(22)
    net = nn.Embedding(4, 2)
    net.weight.data.mul_(0.3)
    net.weight.data[0] = 0

    def loss(i):
        x = net.weight
        r = x.norm(dim=-1, keepdim=True).clamp(min=1e-7)
        tangent = torch.atanh(r.clamp(max=1 - 1e-5)) * x / r
        return (tangent.sum(-1) - 0.2).square().mean()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("rays that miss have depth inf, which a mask leaves out before anything is computed")
def rays_into_the_sky(fixed=False):
    torch.manual_seed(23)
    net = nn.Linear(1, 3)

    def loss(i):
        depth = torch.rand(10, generator=torch.Generator().manual_seed(i)) + 0.5
        depth[::3] = torch.inf
        colour = torch.zeros(10, 3)
        hit = depth.isfinite()
        colour[hit] = net(depth[hit, None])
        return (colour - 0.5).square().mean() + 0 * torch.exp(-depth).sum()

    return net, train(net.parameters(), loss, 1e-2)


@healthy("a depth test takes the smaller of inf and what is drawn")
def painter_with_a_depth_buffer(fixed=False):
    torch.manual_seed(24)
    z = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    cover = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]).bool()

    def loss(i):
        buffer = torch.full((4,), torch.inf)
        for k in range(3):
            buffer = torch.minimum(buffer, torch.where(cover[k], z[k], torch.tensor(torch.inf)))
        seen = buffer[buffer < 1e9]
        return (seen - 1).square().mean()

    return None, train([z], loss, 1e-1)


@healthy("a checkpointed block of attention with keys of -inf")
def checkpointed_mask(fixed=False):
    torch.manual_seed(25)
    net = nn.MultiheadAttention(4, 2, batch_first=True)

    def block(x, pad):
        return net(x, x, x, key_padding_mask=pad)[0]

    def loss(i):
        x = seeded(i, 3, 5, 4)
        pad = torch.arange(5) >= torch.tensor([5, 3, 1])[:, None]
        y = checkpoint(block, x, pad, use_reentrant=False)
        return (y[~pad] - 0.1).square().mean()

    return net, train(net.parameters(), loss, 1e-2)
