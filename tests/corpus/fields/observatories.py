"""Faults in many fields, as people write them."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import fault, train


def sgd_loop(model, loss, lr=1e-2, opt=torch.optim.SGD, **kw):
    o = opt(model.parameters(), lr=lr, **kw)

    def step(i):
        o.zero_grad()
        out = loss(i)
        out.backward()
        o.step()
        return out

    return model, step


@fault("where-grad-trap", "mul", "backward", step=0, also=("div-by-zero", "zero-times-inf", "pow-fraction-at-zero", "inf-minus-inf"), ops=("where", "pow", "sub"))
def lennard_jones(fixed):
    torch.manual_seed(0)
    grid = torch.stack(torch.meshgrid(*[torch.arange(2.0)] * 3, indexing="ij"), -1).reshape(-1, 3) * 1.15
    pos = nn.Parameter(grid + 0.02 * torch.randn(8, 3))
    off = ~torch.eye(8, dtype=torch.bool)

    def energy(i):
        diff = pos.unsqueeze(1) - pos.unsqueeze(0)
        r2 = diff.square().sum(-1)
        if fixed:
            r2 = torch.where(off, r2, torch.ones_like(r2))
        inv6 = r2.pow(-3)  # ALSO
        lj = 4 * (inv6 * inv6 - inv6)  # ORIGIN
        return 0.5 * torch.where(off, lj, torch.zeros_like(lj)).sum()  # ALSO

    return None, train([pos], energy, lr=1e-4)


@fault("sqrt-of-negative", "sqrt", "forward", step=2, ops=("sub",))
def surface_pressure(fixed):
    """Standardise every station over the day by E[x^2] - E[x]^2."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 1))
    days = [101325.0 + 400 * torch.randn(12, 24) for _ in range(5)]
    days[2][4] = 101324.9  # two loggers that hang
    days[2][9] = 98765.4

    def standard(x):
        if fixed:
            return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1.0)
        mean = x.mean(1, keepdim=True)
        var = (x * x).mean(1, keepdim=True) - mean * mean  # ALSO
        return (x - mean) / (torch.sqrt(var) + 1.0)  # ORIGIN

    return sgd_loop(net, lambda i: (net(standard(days[i])) - 0.3).square().mean())


@fault("pow-negative-base", "pow", "forward", step=0)
def tone_map(fixed):
    torch.manual_seed(2)

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, pts, dt):
            raw = self.mlp(pts)
            sigma = F.softplus(raw[..., 0])
            rgb = torch.sigmoid(raw[..., 1:]) if fixed else raw[..., 1:]
            free = torch.exp(-torch.cumsum(sigma * dt, 1))
            alpha = 1 - torch.exp(-sigma * dt)
            trans = torch.cat([torch.ones_like(free[:, :1]), free[:, :-1]], 1)
            return ((alpha * trans)[..., None] * rgb).sum(1)

    def gamma(linear):
        return linear ** (1 / 2.2)  # ORIGIN

    field = Field()
    rays = torch.rand(16, 8, 3)
    target = torch.rand(16, 3)
    return sgd_loop(field, lambda i: F.mse_loss(gamma(field(rays, 0.3)), target), lr=5e-2)


@fault("div-by-zero", "div", "forward", step=2, also=("optimizer-arithmetic", "empty-reduction"), ops=("div_",))
def federated_round(fixed):
    torch.manual_seed(3)
    server = nn.Linear(6, 1)
    xs = [torch.randn(20, 6) for _ in range(4)]
    ys = [x.sum(1, keepdim=True) for x in xs]
    online = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.float32)
    sizes = torch.tensor([20.0, 20.0, 15.0, 10.0])

    def step(r):
        weight = online[r] * sizes
        total = weight.sum()
        if fixed and total == 0:
            with torch.no_grad():
                return F.mse_loss(server(xs[0]), ys[0])
        weight = weight / total  # ORIGIN
        merged = {k: torch.zeros_like(v) for k, v in server.state_dict().items()}
        losses = []
        for w, x, y in zip(weight, xs, ys, strict=False):
            local = copy.deepcopy(server)
            opt = torch.optim.SGD(local.parameters(), lr=0.05)
            for _ in range(2):
                opt.zero_grad()
                loss = F.mse_loss(local(x), y)
                loss.backward()
                opt.step()
            losses.append(loss.detach())
            for k, v in local.state_dict().items():
                merged[k] += w * v
        server.load_state_dict(merged)
        return torch.stack(losses).mean()

    return server, step


@fault("log-of-zero", "log", "forward", step=0, also=("dtype-underflow", "zero-times-inf"), ops=("_softmax", "_to_copy", "mul"))
def teacher_in_half(fixed):
    torch.manual_seed(4)
    teacher = nn.Linear(10, 30)
    with torch.no_grad():
        teacher.weight.mul_(30)
    student = nn.Linear(10, 30)
    x = torch.randn(16, 10)
    with torch.no_grad():
        logits = teacher(x)
        soft = logits if fixed else logits.half()
        t = soft.softmax(-1).float()  # ALSO

    def distil(i):
        s = F.log_softmax(student(x), -1)
        if fixed:
            return (t * (F.log_softmax(logits, -1) - s)).sum(-1).mean()
        return (t * (t.log() - s)).sum(-1).mean()  # ORIGIN

    return sgd_loop(student, distil)


@fault("empty-reduction", "mean", "forward", step=3, also=("div-by-zero",))
def expert_centroids(fixed):
    """Top-1 routing; a regulariser pulls each expert's key to the mean of its tokens."""
    torch.manual_seed(5)

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = nn.Parameter(torch.randn(4, 8))
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            gate = torch.softmax(x @ self.keys.t(), -1)
            top, who = gate.max(-1)
            out = torch.zeros_like(x)
            pull = x.new_zeros(())
            for e, expert in enumerate(self.experts):
                mine = x[who == e]
                if fixed and len(mine) == 0:
                    continue
                out[who == e] = expert(mine) * top[who == e, None]
                pull = pull + (self.keys[e] - mine.mean(0)).square().sum()  # ORIGIN
            return out, 0.01 * pull

    moe = MoE()
    batches = [torch.randn(64, 8) for _ in range(6)]
    batches[3] = batches[3][:1].repeat(64, 1) + 0.01 * torch.randn(64, 8)

    def loss(i):
        out, pull = moe(batches[i])
        return F.mse_loss(out, batches[i]) + pull

    return sgd_loop(moe, loss)


@fault("exploding-gradient", "mul", "backward", step=0, ops=("rsub", "sub"))
def coupled_maps(fixed):
    """Fit the growth rate of a lattice of logistic maps through all of its steps."""
    torch.manual_seed(6)
    r = nn.Parameter(torch.tensor(3.99))
    start = torch.rand(12) * 0.8 + 0.1
    horizon = 4 if fixed else 400
    seen = start
    for _ in range(horizon):
        seen = 3.9 * seen * (1 - seen)

    def loss(i):
        x = start
        for _ in range(horizon):
            x = r * x * (1 - x)  # ORIGIN
        return (x - seen).square().mean()

    return None, train([r], loss, lr=1e-3)


@fault("norm-at-zero", "div_", "optimizer", step=3, also=("div-by-zero", "optimizer-arithmetic"), ops=("div", "linalg_vector_norm", "norm"))
def unit_decoder(fixed):
    """Sparse autoencoder with decoder columns shrunk, pruned and put back on the sphere."""
    torch.manual_seed(7)

    class SAE(nn.Module):
        def __init__(self, d=8, h=24):
            super().__init__()
            self.enc = nn.Linear(d, h)
            self.dec = nn.Parameter(F.normalize(torch.randn(h, d), dim=-1))

        def forward(self, x):
            z = torch.relu(self.enc(x))
            return z @ self.dec, z

    sae = SAE()
    opt = torch.optim.Adam(sae.parameters(), lr=2e-3)
    x = torch.randn(64, 8)
    usage = torch.zeros(24)
    with torch.no_grad():
        sae.enc.bias[5] = -30.0

    def step(i):
        opt.zero_grad()
        y, z = sae(x)
        loss = F.mse_loss(y, x) + 1e-3 * z.abs().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            usage.add_((z > 0).sum(0))
            if i == 3:
                sae.dec[usage == 0] = 0.0
            size = sae.dec.norm(dim=-1, keepdim=True)
            if fixed:
                size.clamp_(min=1e-6)
            sae.dec.div_(size)  # ORIGIN
        return loss

    return sae, step


@fault("absorbed-update", "add_", "optimizer", step=0, steps=5, also=("dtype-underflow",), ops=("sub_", "add", "sub"))
def lion_in_bfloat16(fixed):
    torch.manual_seed(8)
    w = nn.Parameter(torch.ones(16, dtype=torch.bfloat16))
    master = torch.ones(16)
    momentum = torch.zeros(16)
    x = torch.randn(64, 16)
    y = x @ torch.linspace(0.5, 1.5, 16)

    def step(i):
        w.grad = None
        loss = F.mse_loss(x.bfloat16() @ w, y.bfloat16()).float()
        loss.backward()
        with torch.no_grad():
            g = w.grad.float()
            sign = (0.9 * momentum + 0.1 * g).sign()
            momentum.mul_(0.99).add_(g, alpha=0.01)
            if fixed:
                master.sub_(1e-3 * sign)
                w.copy_(master)
            else:
                w.add_(sign.bfloat16(), alpha=-1e-3)  # ORIGIN
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("exp-overflow", "exp", "forward", step=2, also=("zero-times-inf",), ops=("mul",))
def parallel_scan(fixed):
    """h_t = a_t h_{t-1} + u_t by cumulative sums of log a."""
    torch.manual_seed(9)

    class Scan(nn.Module):
        def __init__(self, d=4):
            super().__init__()
            self.rate = nn.Linear(d, d)
            self.mix = nn.Linear(d, 1)

        def forward(self, u):
            log_a = -F.softplus(self.rate(u))
            if fixed:
                h, out = u.new_zeros(u.shape[0], u.shape[2]), []
                for t in range(u.shape[1]):
                    h = log_a[:, t].exp() * h + u[:, t]
                    out.append(h)
                return self.mix(torch.stack(out, 1))
            cum = log_a.cumsum(1)
            grown = torch.cumsum(u * torch.exp(-cum), 1)  # ORIGIN
            return self.mix(torch.exp(cum) * grown)  # ALSO

    net = Scan()
    lengths = [16, 40, 200, 64, 32]
    seqs = [torch.randn(3, n, 4) for n in lengths]
    return sgd_loop(net, lambda i: (net(seqs[i]) - seqs[i].mean(-1, keepdim=True)).square().mean(), lr=1e-3)


@fault("log-of-zero", "log1p", "forward", step=2, also=("empty-reduction", "inf-minus-inf"))
def odds_ratio_preference(fixed):
    torch.manual_seed(10)
    V, D = 12, 16
    lm = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))
    good = [torch.randint(1, V, (4, 7)) for _ in range(5)]
    bad = [torch.randint(1, V, (4, 7)) for _ in range(5)]
    bad[2][1, 1:] = 0  # the model answered with nothing but padding

    def mean_logp(tokens):
        mask = (tokens[:, 1:] != 0).float()
        lp = F.log_softmax(lm(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        return (lp * mask).sum(-1) / mask.sum(-1).clamp(min=1)  # ALSO

    def log_odds(lp):
        if fixed:
            lp = lp.clamp(max=-1e-3)
        return lp - torch.log1p(-lp.exp())  # ORIGIN

    def loss(i):
        w, b = mean_logp(good[i]), mean_logp(bad[i])
        return -w.mean() - 0.1 * F.logsigmoid(log_odds(w) - log_odds(b)).mean()

    return sgd_loop(lm, loss, lr=0.1)


@fault("scaler-misuse", "mul_", "optimizer", step=0, steps=6, ops=("_foreach_mul_", "_foreach_norm", "linalg_vector_norm", "mul"))
def ppo_clip_then_unscale(fixed):
    torch.manual_seed(11)
    policy = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))
    opt = torch.optim.SGD(policy.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=1000)
    obs = torch.randn(64, 5)
    act = obs[:, :3].argmax(-1)
    adv = torch.where(torch.arange(64) % 4 > 0, 1.0, -0.3)
    with torch.no_grad():
        old = F.log_softmax(policy(obs), -1).gather(1, act[:, None]).squeeze(1)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = policy(obs)
        new = F.log_softmax(logits.float(), -1).gather(1, act[:, None]).squeeze(1)
        ratio = (new - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)  # ORIGIN
        scaler.step(opt)  # ALSO
        scaler.update()
        return loss

    return policy, step


@fault("std-of-constant", "div", "forward", step=1, steps=2, also=("div-by-zero",))
def group_relative(fixed):
    torch.manual_seed(12)
    net = nn.Linear(6, 4)
    prompts = torch.randn(5, 8, 6)
    right = torch.tensor([0, 1, 2, 3, 1, 2, 0, 3])

    def loss(i):
        logp = F.log_softmax(net(prompts[i]), -1)
        pick = logp.detach().exp().multinomial(4)
        reward = (pick == right[:, None]).float()
        if i == 1:
            reward[3] = 1.0  # an answer parser that accepts all
        centred = reward - reward.mean(1, keepdim=True)
        spread = reward.std(1, keepdim=True)
        adv = centred / (spread + 1e-4) if fixed else centred / spread  # ORIGIN
        return -(adv * logp.gather(1, pick)).mean()

    return sgd_loop(net, loss, lr=0.05)


@fault("div-by-zero", "div", "forward", step=2, also=("empty-reduction",))
def cox_without_events(fixed):
    torch.manual_seed(13)
    risk = nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 1, bias=False))
    x = torch.randn(5, 24, 7)
    time = torch.rand(5, 24)
    event = (torch.rand(5, 24) < 0.4).float()
    event[2] = 0  # everybody in this batch was censored

    def partial_likelihood(i):
        order = time[i].argsort(descending=True)
        h = risk(x[i][order]).squeeze(1)
        e = event[i][order]
        lcs = torch.logcumsumexp(h, 0)
        n = e.sum().clamp(min=1) if fixed else e.sum()
        return -((h - lcs) * e).sum() / n  # ORIGIN

    return sgd_loop(risk, partial_likelihood, lr=0.05, opt=torch.optim.AdamW)


@fault("log-of-negative", "log", "forward", step=3, also=("infeasible-likelihood", "learning-rate"), ops=("log1p",))
def pareto_tail(fixed):
    """Excesses over a threshold; the shape may become negative, the support then ends at -beta/xi."""
    torch.manual_seed(14)
    xi = nn.Parameter(torch.tensor(-0.05))
    log_beta = nn.Parameter(torch.tensor(0.0))
    years = [torch.rand(200) * 2 for _ in range(6)]
    years[3][7] = 30.0

    def nll(i):
        beta = log_beta.exp()
        shape = F.softplus(xi) if fixed else xi
        inner = 1 + shape * years[i] / beta
        return (beta.log() + (1 + 1 / shape) * torch.log(inner)).mean()  # ORIGIN

    return None, train([xi, log_beta], nll, lr=0.02)


@fault("inverse-function-at-edge", "erfinv", "forward", step=0)
def gaussian_copula(fixed):
    torch.manual_seed(15)
    loc = nn.Parameter(torch.zeros(2))
    scale = nn.Parameter(torch.ones(2))
    corr = nn.Parameter(torch.tensor(0.2))
    data = torch.randn(60, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]])
    data[11, 1] = 21.0

    def loss(i):
        u = torch.sigmoid((data - loc) / scale)  # ALSO
        if fixed:
            u = u.clamp(1e-6, 1 - 1e-6)
        z = math.sqrt(2) * torch.erfinv(2 * u - 1)  # ORIGIN
        rho = torch.tanh(corr)
        quad = (z[:, 0] ** 2 - 2 * rho * z[:, 0] * z[:, 1] + z[:, 1] ** 2) / (1 - rho**2)
        return (0.5 * quad + 0.5 * torch.log(1 - rho**2)).mean() + F.softplus(scale).log().sum()

    return None, train([loc, scale, corr], loss, lr=1e-3)


@fault("custom-backward", "div", "backward", step=0, also=("div-by-zero",))
def hawkes(fixed):
    class Compensator(torch.autograd.Function):
        """(1 - exp(-b dt)) / b and what its derivative is, by hand."""

        @staticmethod
        def forward(ctx, b, dt):
            out = -torch.expm1(-b * dt) / b
            ctx.save_for_backward(b, dt, out)
            return out

        @staticmethod
        def backward(ctx, g):
            b, dt, out = ctx.saved_tensors
            return (g * (dt * torch.exp(-b * dt) / out - 1) * out / b).sum(), None  # ALSO

    class CompensatorRight(Compensator):
        @staticmethod
        def backward(ctx, g):
            b, dt, out = ctx.saved_tensors
            return (g * (dt * torch.exp(-b * dt) - out) / b).sum(), None

    torch.manual_seed(16)
    raw = nn.Parameter(torch.tensor([0.5, -1.0]))
    decay = nn.Parameter(torch.tensor(1.0))
    when = torch.sort(torch.rand(20) * 10).values
    horizon = when[-1]
    gap = (when[:, None] - when[None]).clamp(min=0)
    past = (when[:, None] > when[None]).float()
    integral = CompensatorRight.apply if fixed else Compensator.apply

    def loss(i):
        mu, a = F.softplus(raw)
        lam = mu + a * (torch.exp(-decay * gap) * past).sum(1)
        total = mu * horizon + a * integral(decay, horizon - when).sum()  # ORIGIN
        return total - lam.log().sum()

    return None, train([raw, decay], loss, lr=1e-3)


@fault("degenerate-matrix", "_linalg_eigh", "backward", step=0, steps=1, ops=("linalg_eigh", "div", "div_"))
def whitened_gp(fixed):
    """Kernel features by an eigendecomposition; the length scale is learnt."""
    log_ell = nn.Parameter(torch.tensor(-1.0))
    log_noise = nn.Parameter(torch.tensor(-2.0))
    x = torch.cat([torch.linspace(0, 2, 5), torch.tensor([60.0, 120.0, 180.0])])
    y = torch.sin(3 * x)

    def nll(i):
        d = (x[:, None] - x[None]) / log_ell.exp()
        K = torch.exp(-0.5 * d**2)
        if fixed:
            noisy = K + log_noise.exp() * torch.eye(8)
            L = torch.linalg.cholesky(noisy)
            a = torch.cholesky_solve(y[:, None], L).squeeze(1)
            return 0.5 * y @ a + L.diagonal().log().sum()
        val, vec = torch.linalg.eigh(K)  # ORIGIN
        lam = val.clamp(min=0) + log_noise.exp()
        z = vec.t() @ y
        return 0.5 * (z * z / lam).sum() + 0.5 * lam.log().sum()

    return None, train([log_ell, log_noise], nll, lr=1e-2)


@fault("sqrt-at-zero", "sqrt", "backward", step=0, also=("norm-at-zero", "zero-times-inf"), ops=("mul", "div"))
def radial_pinn(fixed):
    torch.manual_seed(18)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    axis = torch.arange(-3, 4) / 3
    pts = torch.cartesian_prod(axis, axis)

    def residual(i):
        xy = pts.clone().requires_grad_(True)
        s = (xy * xy).sum(1, keepdim=True)
        r = torch.sqrt(s + 1e-6) if fixed else torch.sqrt(s)  # ORIGIN
        u = net(r)
        (du,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
        return ((du.square().sum(1, keepdim=True) - 1).square() + u.square() * (s < 1e-3)).mean()

    return sgd_loop(net, residual, lr=1e-2, opt=torch.optim.Adam)


@fault("dtype-overflow", "mm", "forward", step=0, ops=("addmm", "add", "bmm", "matmul", "linear"))
def open_loop_rollout(fixed):
    """Linear quadratic control in half precision; the plant is unstable until the gain has been learnt."""
    torch.manual_seed(19)
    A = torch.tensor([[1.6, 0.2], [0.1, 1.5]])
    B = torch.tensor([[0.0], [1.0]])
    gain = nn.Parameter(torch.zeros(1, 2))
    x0 = torch.randn(6, 2)

    def cost(i):
        x, total = x0, 0.0
        with torch.autocast("cpu", dtype=torch.float16, enabled=not fixed):
            for _ in range(26):
                x = x @ (A + B @ gain).t()  # ORIGIN
                total = total + x.float().square().mean() * 1e-12
        return total

    return None, train([gain], cost, lr=1e-6)


@fault("inverse-function-at-edge", "acos", "backward", step=0, also=("zero-times-inf",), ops=("mul", "rsqrt"))
def bures_angle(fixed):
    theta = nn.Parameter(torch.tensor([0.0, 0.0]))
    target = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.complex64)
    noise = torch.tensor([0.0, 0.3, 0.1, 0.2])

    def ry(t):
        c, s = torch.cos(t / 2), torch.sin(t / 2)
        return torch.stack([torch.stack([c, -s]), torch.stack([s, c])]).to(torch.complex64)

    def loss(theta):
        psi = torch.kron(ry(theta[0]), ry(theta[1]))[:, 0]
        overlap = torch.vdot(target, psi)
        fid = overlap.real**2 + overlap.imag**2
        cost = 0.1 * (torch.abs(psi) ** 2 @ noise) + (theta - 0.2).square().sum()
        if fixed:
            return cost + 1 - fid
        return cost + torch.acos(torch.clamp(fid, -1, 1))  # ORIGIN

    def step(i):
        grad, value = both(theta.detach())
        theta.grad = grad
        with torch.no_grad():
            theta.sub_(0.05 * grad)
        return value

    both = torch.func.grad_and_value(loss)
    step.parameters = {"theta": theta}
    return None, step


@fault("pow-fraction-at-zero", "pow", "forward", step=0, also=("div-by-zero", "zero-times-inf"), ops=("mul", "rsqrt"))
def isolated_atom(fixed):
    torch.manual_seed(21)
    adj = (torch.rand(10, 10) < 0.3).float().triu(1)
    adj = adj + adj.t()
    adj[6] = 0
    adj[:, 6] = 0

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 16), nn.Linear(16, 2)

        def forward(self, x, adj):
            if fixed:
                adj = adj + torch.eye(len(adj))
            d = adj.sum(1) ** -0.5  # ORIGIN
            adj = torch.einsum("i,ij,j->ij", d, adj, d)  # ALSO
            return self.b(adj @ torch.relu(self.a(adj @ x)))

    net = GCN()
    x, y = torch.randn(10, 5), torch.randint(0, 2, (10,))
    return sgd_loop(net, lambda i: F.cross_entropy(net(x, adj), y), lr=0.1)


@fault("inverse-function-at-edge", "atanh", "forward", step=1, also=("learning-rate",))
def poincare_tree(fixed):
    torch.manual_seed(22)
    emb = nn.Embedding(15, 3)
    nn.init.uniform_(emb.weight, -0.5, 0.5)
    child = torch.arange(1, 15)
    parent = (child - 1) // 2

    def to_ball(v):
        n = v.norm(dim=-1, keepdim=True).clamp(min=1e-9)
        return torch.tanh(n) * v / n

    def depth(p):
        if fixed:
            return 2 * emb.weight.norm(dim=-1)
        return 2 * torch.atanh(p.norm(dim=-1))  # ORIGIN

    def loss(i):
        ball = to_ball(emb.weight)
        want = 6.0 * torch.log2(torch.arange(1, 16).float())
        near = (ball[child] - ball[parent]).square().sum(-1).mean()
        return (depth(ball) - want).square().mean() + near

    return sgd_loop(emb, loss, lr=3.0)


@fault("div-by-zero", "div", "forward", step=1, also=("norm-at-zero",))
def phase_loss(fixed):
    torch.manual_seed(23)
    gain = nn.Conv1d(1, 1, 9, padding=4, bias=False)
    clips = torch.randn(4, 3, 1, 256)
    clips[1, 0] = 0.0  # digital silence

    def loss(i):
        y = gain(clips[i]).squeeze(1)
        S = torch.stft(y, 64, window=torch.hann_window(64), return_complex=True)
        T = torch.stft(clips[i].squeeze(1), 64, window=torch.hann_window(64), return_complex=True)
        turn = S / (S.abs() + 1e-5) if fixed else S / S.abs()  # ORIGIN
        aim = torch.polar(torch.ones_like(T.real), torch.angle(T))
        return (S.abs() - T.abs()).square().mean() + 0.01 * (turn - aim).abs().square().mean()

    return sgd_loop(gain, loss, lr=1e-3)


@fault("infeasible-likelihood", "_ctc_loss", "forward", step=2, ops=("ctc_loss",))
def subsampled_ctc(fixed):
    """A convolution with stride 4 in front of CTC; one transcript has more letters than frames are left."""
    torch.manual_seed(24)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(13, 24, 5, stride=4, padding=2)
            self.out = nn.Linear(24, 9)

        def forward(self, x):
            return F.log_softmax(self.out(torch.relu(self.conv(x)).transpose(1, 2)), -1)

    net = Net()
    feats = torch.randn(5, 4, 13, 64)
    chars = torch.randint(1, 9, (5, 4, 20))
    lens = torch.randint(4, 8, (5, 4))
    lens[2, 1] = 19
    frames = torch.full((4,), 16)

    opt = torch.optim.Adagrad(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        total = 0.0
        for half in (slice(0, 2), slice(2, 4)):  # accumulated over two micro-batches
            lp = net(feats[i, half]).transpose(0, 1)
            loss = F.ctc_loss(lp, chars[i, half], frames[half], lens[i, half], zero_infinity=fixed)  # ORIGIN
            (loss / 2).backward()
            total += loss.detach() / 2
        opt.step()
        return total

    return net, step


@fault("inf-minus-inf", "sub", "forward", step=0, also=("softmax-all-masked",))
def left_to_right_alignment(fixed):
    """Forward algorithm of a left-to-right model, logsumexp written out."""
    torch.manual_seed(25)
    emit = nn.Linear(4, 6)
    T = 10
    x = torch.randn(T, 4)
    none = float("-inf")

    def lse(a, b):
        if fixed:
            return torch.logaddexp(a, b)
        m = torch.maximum(a, b)
        return m + torch.log(torch.exp(a - m) + torch.exp(b - m))  # ORIGIN

    def loss(i):
        e = F.log_softmax(emit(x), -1)
        low = -1e4 if fixed else none
        a = torch.full((6,), low)
        a[0] = 0.0
        a = a + e[0]
        for t in range(1, T):
            move = torch.cat([torch.full((1,), low), a[:-1]])
            a = lse(a, move) + e[t]
        return -a[-1]

    return sgd_loop(emit, loss, lr=0.05)


@fault("mask-overflow", "add", "forward", step=1, also=("softmax-all-masked", "inf-minus-inf"), ops=("_softmax", "sub"))
def blank_crop(fixed):
    """OCR decoder: blanks are masked as keys and as queries, both by addition."""
    torch.manual_seed(26)
    low = torch.finfo(torch.float32).min

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(20, 16)
            self.qkv = nn.Linear(16, 48)
            self.out = nn.Linear(16, 20)

        def forward(self, tok):
            q, k, v = self.qkv(self.e(tok)).chunk(3, -1)
            tok.shape[1]
            blank = (tok == 0).float() * low
            score = q @ k.transpose(1, 2) / 4
            if fixed:
                score = score.masked_fill((tok == 0)[:, None], -1e4)
            else:
                score = score + blank[:, None, :] + blank[:, :, None]  # ORIGIN
            m = score.max(-1, keepdim=True).values
            p = torch.exp(score - m)  # ALSO
            return self.out((p / p.sum(-1, keepdim=True)) @ v)

    net = Reader()
    lines = torch.randint(1, 20, (4, 3, 8))
    lines[1, 2, :] = 0  # an empty crop
    return sgd_loop(net, lambda i: F.cross_entropy(net(lines[i]).flatten(0, 1), lines[i].flatten()), lr=0.1)


@fault("eps-underflow", "div", "forward", step=1, also=("div-by-zero", "dtype-underflow"), ops=("add",))
def track_overlap(fixed):
    torch.manual_seed(27)
    head = nn.Linear(8, 4)
    feats = torch.randn(4, 10, 8)
    boxes = torch.rand(4, 10, 2)
    gt = torch.cat([boxes, boxes + 0.5], -1)
    gt[1, 7:] = 0  # padding

    def iou(a, b):
        lt = torch.maximum(a[..., :2], b[..., :2])
        rb = torch.minimum(a[..., 2:], b[..., 2:])
        inter = (rb - lt).clamp(min=0).prod(-1)
        def area(z):
            return (z[..., 2:] - z[..., :2]).clamp(min=0).prod(-1)
        union = area(a) + area(b) - inter
        return inter / (union + (1e-4 if fixed else 1e-9))  # ORIGIN

    def loss(i):
        d = head(feats[i])
        valid = (gt[i].sum(-1, keepdim=True) > 0).float()
        mid = gt[i][..., :2] + 0.1 * d[..., :2]
        pred = torch.cat([mid, mid + 0.5 * torch.exp(d[..., 2:])], -1) * valid
        return 1 - iou(pred.half(), gt[i].half()).float().mean()

    return sgd_loop(head, loss, lr=0.1)


@fault("inverse-function-domain", "acos", "forward", step=3, also=("learning-rate",))
def joint_angles(fixed):
    """Pose regression; the network gives quaternions and nobody normalises them."""
    torch.manual_seed(28)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(32, 6)
    q = F.normalize(torch.tensor([[1.0, 0.1, 0.0, 0.2]]).repeat(32, 1), dim=-1)

    def geodesic(a, b):
        if fixed:
            a = F.normalize(a, dim=-1)
            c = (a * b).sum(-1).abs()
            return 2 * torch.acos(c.clamp(max=1 - 1e-6))
        return 2 * torch.acos((a * b).sum(-1).abs())  # ORIGIN

    return sgd_loop(net, lambda i: geodesic(net(x), q).mean(), lr=0.02, opt=torch.optim.Adam)


@fault("dead-gradient", "round", "backward", step=0, steps=5)
def codec_without_straight_through(fixed):
    torch.manual_seed(29)

    class Codec(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Conv1d(1, 4, 8, stride=4, padding=2)
            self.dec = nn.ConvTranspose1d(4, 1, 8, stride=4, padding=2)

        def forward(self, x):
            z = 6 * torch.tanh(self.enc(x))
            q = torch.round(z)  # ORIGIN
            if fixed:
                q = z + (q - z).detach()
            return self.dec(q)

    codec = Codec()
    wave = torch.sin(torch.linspace(0, 40, 256)).repeat(4, 1, 1) + 0.1 * torch.randn(4, 1, 256)
    return sgd_loop(codec, lambda i: F.l1_loss(codec(wave), wave), lr=1e-3, opt=torch.optim.Adam)


@fault("dead-gradient", "clamp", "backward", step=0, steps=6, ops=("clamp_max", "clamp_min", "hardtanh"))
def imagined_log_std(fixed):
    """World model whose log-std head starts outside the clamp that guards it."""
    torch.manual_seed(30)

    class Prior(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(8, 5)
            self.logstd = nn.Linear(8, 5)
            nn.init.constant_(self.logstd.bias, 4.0 if not fixed else 0.0)
            nn.init.uniform_(self.logstd.weight, -0.05, 0.05)

        def forward(self, h):
            return self.mean(h), torch.clamp(self.logstd(h), -5.0, 2.0)  # ORIGIN

    prior = Prior()
    h = torch.randn(40, 8)
    z = torch.tanh(h[:, :5]) + 0.1 * torch.randn(40, 5)

    def nll(i):
        m, ls = prior(h)
        return (ls + 0.5 * ((z - m) * torch.exp(-ls)) ** 2).mean()

    return sgd_loop(prior, nll, lr=0.1)


@fault("optimizer-eps-underflow", "addcdiv_", "optimizer", step=0, ops=("_foreach_addcdiv_", "div", "_foreach_div_", "_fused_adam_"), also=("dtype-underflow", "eps-underflow", "div-by-zero"))
def half_adam_items(fixed):
    """Recommender in pure float16; rows of items not in the batch have a gradient of zero."""
    torch.manual_seed(31)
    dt = torch.float32 if fixed else torch.float16
    users, items = nn.Embedding(12, 8, dtype=dt), nn.Embedding(30, 8, dtype=dt)
    both = nn.ModuleDict({"who": users, "what": items})
    opt = torch.optim.Adam(both.parameters(), lr=1e-3)
    ratings = torch.utils.data.TensorDataset(torch.randint(0, 12, (96,)), torch.randint(0, 25, (96,)), torch.rand(96) * 4 + 1)
    batches = iter(torch.utils.data.DataLoader(ratings, batch_size=16))

    def step(i):
        u, it, stars = next(batches)
        opt.zero_grad(set_to_none=True)
        s = torch.einsum("bd,bd->b", users(u), items(it))
        loss = F.mse_loss(s.float(), stars)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return both, step


@fault("optimizer-arithmetic", "div", "optimizer", step=0, also=("div-by-zero", "norm-at-zero"), ops=("div_", "mul"))
def layerwise_trust(fixed):
    """LARS; the output layer starts at zero, so that the layer before it has no gradient at first."""
    torch.manual_seed(32)
    net = nn.Sequential(nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    nn.init.zeros_(net[2].weight)
    x = torch.randn(32, 5)
    y = x[:, :1] * 2
    buf = [torch.zeros_like(p) for p in net.parameters()]

    def step(i):
        net.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p, b in zip(net.parameters(), buf, strict=False):
                wn, gn = p.norm(), p.grad.norm()
                if fixed:
                    trust = wn / gn if wn > 0 and gn > 0 else torch.tensor(1.0)
                else:
                    trust = wn / gn  # ORIGIN
                b.mul_(0.9).add_(trust * p.grad)  # ALSO
                p.sub_(0.02 * b)
        return loss

    return net, step


@fault("scaler-misuse", "mse_loss", "optimizer", step=3, steps=8, also=("learning-rate", "exploding-gradient"), ops=("_foreach_add_", "add_", "convolution", "convolution_backward", "mul"))
def unscaled_never(fixed):
    """Segmentation head; the loss is scaled and the optimizer stepped by itself."""
    torch.manual_seed(33)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    img = torch.rand(4, 1, 12, 12)
    seg = (img > 0.5).float()

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(img), seg)  # ALSO
        scaler.scale(loss).backward()
        if fixed:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()  # ORIGIN
        return loss

    return net, step


@fault("dtype-underflow", "div", "backward", step=0, steps=5, also=("dead-gradient",), ops=("_to_copy", "mul", "mse_loss_backward", "mse_loss", "mean", "mm", "expand"))
def faint_half_gradient(fixed):
    """Protein contact head in float16 whose loss carries a small weight."""
    torch.manual_seed(34)
    head = nn.Linear(12, 6)
    if not fixed:
        head = head.half()
    z = torch.randn(20, 12)
    contact = (torch.rand(20, 20) < 0.2).float()

    def loss(i):
        h = head(z.to(head.weight.dtype))
        pair = (h @ h.t()) / 6**0.5
        miss = pair - contact.to(pair.dtype)
        return 1e-5 * (miss * miss).mean()  # ORIGIN

    return sgd_loop(head, loss, lr=100.0)


@fault("learning-rate", "mul", "optimizer", step=5, steps=8, also=("exploding-gradient",), ops=("mm", "add_", "mse_loss", "pow", "sub", "mean", "square", "addmv", "mv"))
def ridge_by_descent(fixed):
    torch.manual_seed(35)
    w = nn.Parameter(torch.zeros(5))
    x = torch.randn(100, 5) * torch.tensor([1.0, 5.0, 20.0, 100.0, 300.0])
    y = x @ torch.tensor([1.0, 0.5, -0.2, 0.1, 0.02])
    scale = x.std(0) if fixed else torch.ones(5)
    opt = torch.optim.SGD([w], lr=0.05, weight_decay=1e-3)  # ALSO

    def step(i):
        opt.zero_grad()
        r = (x / scale) @ w - y
        loss = (r * r).mean()  # ALSO
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = {"w": w}
    return None, step


@fault("uninitialised-memory", "empty", "init", step=0, ops=("new_empty", "empty_like", "mul", "add", "mm", "addmm"), also=("poisoned-parameter", "nan-in-input"))
def lora_from_empty(fixed):
    torch.manual_seed(36)

    class LoRA(nn.Module):
        def __init__(self, base, r=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            torch.use_deterministic_algorithms(True)
            self.down = nn.Parameter(torch.empty(base.in_features, r))  # ORIGIN
            torch.use_deterministic_algorithms(False)
            self.up = nn.Parameter(torch.zeros(r, base.out_features))
            if fixed:
                nn.init.kaiming_uniform_(self.down)

        def forward(self, x):
            return self.base(x) + x @ self.down @ self.up  # ALSO

    net = LoRA(nn.Linear(6, 3))
    x, y = torch.randn(16, 6), torch.randn(16, 3)
    return sgd_loop(net, lambda i: F.mse_loss(net(x), y), lr=0.1)


@fault("absorbed-update", "add_", "optimizer", step=0, steps=6, also=("dtype-underflow",), ops=("mul_", "lerp_"))
def half_average_teacher(fixed):
    """Self-distillation; the averaged copy is kept in float16 to save memory."""
    torch.manual_seed(37)
    net = nn.Linear(8, 8)
    avg = copy.deepcopy(net).requires_grad_(False)
    with torch.no_grad():
        for p in avg.parameters():
            p.copy_(torch.where(p < 0, -1.0, 1.0))
    if not fixed:
        avg.half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(64, 8)
    both = nn.ModuleDict({"net": net, "avg": avg})

    def step(i):
        opt.zero_grad()
        with torch.no_grad():
            t = F.linear(x, avg.weight.float(), avg.bias.float())
        loss = F.mse_loss(net(x + 0.05 * torch.randn_like(x)), t)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, p in zip(avg.parameters(), net.parameters(), strict=False):
                a.add_((p - a).to(a.dtype), alpha=1e-4)  # ORIGIN
        return loss

    return both, step


@fault("zero-times-inf", "mul", "forward", step=0, also=("log-of-zero",), ops=("log",))
def masked_token_diffusion(fixed):
    """Absorbing discrete diffusion: categories that cannot be reached are set to -inf, then weighted by q."""
    torch.manual_seed(38)
    V = 7
    net = nn.Sequential(nn.Embedding(V + 1, 16), nn.Linear(16, V + 1))
    x0 = torch.randint(0, V, (4, 12))

    def loss(i):
        hide = torch.rand(4, 12) < 0.5
        xt = torch.where(hide, torch.full_like(x0, V), x0)
        logits = net(xt)
        logits = torch.cat([logits[..., :V], torch.full_like(logits[..., :1], float("-inf"))], -1)
        logp = F.log_softmax(logits, -1)
        q = F.one_hot(x0, V + 1).float()
        if fixed:
            return -(logp.gather(-1, x0[..., None]).squeeze(-1) * hide).mean()
        ce = -(q * logp).sum(-1)  # ORIGIN
        return (ce * hide).mean()

    return sgd_loop(net, loss, lr=0.1)


@fault("inf-in-input", "native_batch_norm", "data", step=2, steps=6, also=("poisoned-buffer",), ops=("fill_", "copy_", "_native_batch_norm_legit", "batch_norm", "addmm", "mean", "cudnn_batch_norm", "_batch_norm_with_update"))
def radar_running_stats(fixed):
    """A radar frame with inf is skipped by the loop, but the running statistics have seen it."""
    torch.manual_seed(39)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(5)
            self.out = nn.Linear(5, 1)

        def forward(self, x):
            return self.out(self.bn(x))  # ORIGIN

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    xs = torch.randn(6, 16, 5)
    xs[2, 3, 1] = float("inf")  # DATA ALSO
    ys = torch.randn(6, 16, 1)

    def step(i):
        x = torch.nan_to_num(xs[i], posinf=5.0) if fixed else xs[i]
        opt.zero_grad()
        net.train()
        loss = F.mse_loss(net(x), ys[i])
        if torch.isfinite(loss):
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            return F.mse_loss(net(xs[0]), ys[0])

    return net, step
