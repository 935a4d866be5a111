"""Programs in many fields that look suspicious and are sound."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import fault, healthy, train  # noqa: F401


def sgd_loop(model, loss, lr=1e-2, opt=torch.optim.SGD, **kw):
    o = opt([p for p in model.parameters() if p.requires_grad], lr=lr, **kw)

    def step(i):
        o.zero_grad()
        out = loss(i)
        out.backward()
        o.step()
        return out

    return model, step


@healthy("the diagonal of the distances is set to infinity on purpose: 1/inf is 0, and so is its gradient")
def pair_energy_with_infinite_self(fixed):
    torch.manual_seed(0)
    pos = nn.Parameter(torch.rand(9, 3) * 3)
    eye = torch.eye(9, dtype=torch.bool)

    def energy(i):
        r2 = (pos[:, None] - pos[None]).square().sum(-1).masked_fill(eye, math.inf)
        soft = 1 / (1 + r2)
        return soft.sum() + 0.05 * pos.square().sum()

    return None, train([pos], energy, lr=1e-2)


@healthy("stations that did not report are NaN in the data and are selected away before anything is computed")
def missing_stations(fixed):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(6, 50, 4)
    t = x.sum(-1, keepdim=True)
    t[torch.rand(6, 50, 1) < 0.3] = float("nan")

    def loss(i):
        ok = ~torch.isnan(t[i]).squeeze(1)
        return F.mse_loss(net(x[i][ok]), t[i][ok])

    return sgd_loop(net, loss, lr=0.1)


@healthy("vectors of length zero pass a gate whose root has an epsilon inside")
def equivariant_gate(fixed):
    torch.manual_seed(2)

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(6, 6, bias=False)
            self.gate = nn.Linear(6, 6)

        def forward(self, v):
            v = self.mix(v.transpose(1, 2)).transpose(1, 2)
            size = torch.sqrt(v.square().sum(-1) + 1e-8)
            return v * torch.sigmoid(self.gate(size))[..., None]

    net = Gate()
    v = torch.randn(10, 6, 3)
    v[4] = 0.0
    R = torch.linalg.qr(torch.randn(3, 3)).Q
    return sgd_loop(net, lambda i: (net(v) @ R - 0.5 * v @ R).square().mean(), lr=0.2)


@healthy("the last interval of a ray is 1e10 long: nothing gets through it: exp(-1e10) is exactly 0, as it should be")
def volume_rendering(fixed):
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))
    pts = torch.rand(24, 10, 3)
    delta = torch.full((24, 10), 0.1)
    delta[:, -1] = 1e10
    want = torch.rand(24, 3)

    def loss(i):
        raw = mlp(pts)
        tau = F.softplus(raw[..., 0]) * delta
        alpha = 1 - torch.exp(-tau)
        clear = torch.exp(-F.pad(tau[:, :-1].cumsum(1), (1, 0)))
        rgb = ((alpha * clear)[..., None] * torch.sigmoid(raw[..., 1:])).sum(1)
        return F.mse_loss(rgb, want)

    return sgd_loop(mlp, loss, lr=5e-3, opt=torch.optim.Adam)


@healthy("most rows of the sparse embedding gradient are absent: the items were not in the batch")
def sparse_items(fixed):
    torch.manual_seed(4)
    net = nn.ModuleDict({"u": nn.Embedding(100, 8, sparse=True), "v": nn.Embedding(500, 8, sparse=True)})
    opt = torch.optim.SparseAdam(list(net.parameters()), lr=0.05)
    u, pos, neg = torch.randint(0, 100, (32,)), torch.randint(0, 500, (32,)), torch.randint(0, 500, (32,))

    def step(i):
        opt.zero_grad()
        user = net["u"](u)
        gap = (user * (net["v"](pos) - net["v"](neg))).sum(-1)
        loss = F.softplus(-gap).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("a client with no examples has weight zero; the sum of the weights is not")
def federated_idle_client(fixed):
    torch.manual_seed(5)
    server = nn.Linear(5, 2)
    sizes = torch.tensor([30, 0, 12])
    xs = [torch.randn(int(n), 5) for n in sizes]
    w_true = torch.randn(5, 2)

    def step(i):
        total, merged, seen = sizes.sum(), None, []
        for n, x in zip(sizes, xs, strict=False):
            local = copy.deepcopy(server)
            if len(x):
                loss = F.mse_loss(local(x), x @ w_true)
                g = torch.autograd.grad(loss, list(local.parameters()))
                seen.append(loss.detach())
                with torch.no_grad():
                    for p, d in zip(local.parameters(), g, strict=False):
                        p -= 0.1 * d
            part = [n / total * p.detach() for p in local.parameters()]
            merged = part if merged is None else [a + b for a, b in zip(merged, part, strict=False)]
        with torch.no_grad():
            for p, q in zip(server.parameters(), merged, strict=False):
                p.copy_(q)
        return torch.stack(seen).mean()

    return server, step


@healthy("teacher probabilities underflow to 0; kl_div takes 0 log 0 as 0")
def confident_teacher(fixed):
    torch.manual_seed(6)
    student = nn.Linear(12, 20)
    x = torch.randn(30, 12)
    target = F.softmax(300 * torch.randn(30, 20), -1)

    def loss(i):
        return F.kl_div(F.log_softmax(student(x), -1), target, reduction="batchmean")

    return sgd_loop(student, loss, lr=0.3)


@healthy("top-2 gate: -inf for the others before the softmax; every token has two finite scores")
def top_two_gate(fixed):
    torch.manual_seed(7)

    class MoE(nn.Module):
        def __init__(self, d=8, n=5):
            super().__init__()
            self.gate = nn.Linear(d, n)
            self.w = nn.Parameter(torch.randn(n, d, d) / d**0.5)

        def forward(self, x):
            s = self.gate(x)
            kth = s.topk(2, -1).values[:, -1:]
            p = torch.softmax(s.masked_fill(s < kth, -torch.inf), -1)
            return torch.einsum("be,edf,bd->bf", p, self.w, x)

    net = MoE()
    x = torch.randn(48, 8)
    return sgd_loop(net, lambda i: F.mse_loss(net(x), x.flip(-1)), lr=0.2)


@healthy("one expert has no tokens in most batches: its gradient is zero there and comes with the fifth batch", steps=7)
def unused_language_expert(fixed):
    torch.manual_seed(8)
    experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
    lang = torch.tensor([0, 1, 1, 3, 0, 3, 1, 0]).repeat(7, 1)
    lang[4:, :3] = 2
    x = torch.randn(8, 6)

    def loss(i):
        out = torch.stack([e(x) for e in experts], 1)
        pick = F.one_hot(lang[i], 4).float()
        return F.mse_loss((out * pick[..., None]).sum(1), torch.tanh(x))

    return sgd_loop(experts, loss, lr=0.3)


@healthy("the own document is masked by -inf on the diagonal of the logits, the targets are elsewhere")
def contrastive_pairs(fixed):
    torch.manual_seed(9)
    enc = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))
    base = torch.randn(12, 10)

    def loss(i):
        views = torch.cat([base + 0.2 * torch.randn_like(base), base + 0.2 * torch.randn_like(base)])
        z = F.normalize(enc(views), dim=-1)
        logits = (z @ z.t() / 0.07).fill_diagonal_(float("-inf"))
        target = torch.arange(24).roll(12)
        return F.cross_entropy(logits, target)

    return sgd_loop(enc, loss, lr=0.05)


@healthy("symexp of a clamped prediction; targets of many magnitudes go through symlog")
def symlog_rewards(fixed):
    torch.manual_seed(10)
    head = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 1))
    h = torch.randn(40, 6)
    reward = torch.sinh(8 * torch.tanh(h[:, :1]))

    def symlog(v):
        return torch.sign(v) * torch.log1p(v.abs())

    def symexp(v):
        v = v.clamp(-20, 20)
        return torch.sign(v) * torch.expm1(v.abs())

    seen = []

    def loss(i):
        p = head(h)
        seen.append(symexp(p.detach()).abs().max())
        return (p - symlog(reward)).square().mean()

    return sgd_loop(head, loss, lr=0.05)


@healthy("the path stops at t = 1 - 1e-3: the divisor is small, never 0")
def rectified_flow(fixed):
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))

    def loss(i):
        x0 = torch.randn(64, 2)
        x1 = torch.randn(64, 2) * 0.2 + torch.tensor([1.0, -1.0])
        t = torch.linspace(0, 1 - 1e-3, 64)[:, None]
        xt = (1 - t) * x0 + t * x1
        v = (x1 - xt) / (1 - t)
        return F.mse_loss(net(torch.cat([xt, t], -1)), v)

    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))

    def step(i):
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        ema.update_parameters(net)
        return value

    return net, step


@healthy("weights of the score loss span eight decades; the network predicts noise, so the loss stays near 1")
def noise_levels(fixed):
    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 4))
    sigma = torch.logspace(-4, 4, 33)
    data = torch.randn(33, 4)

    def loss(i):
        n = torch.randn(33, 4)
        noisy = data + sigma[:, None] * n
        scaled = noisy / torch.sqrt(1 + sigma[:, None] ** 2)
        return F.mse_loss(net(torch.cat([scaled, sigma.log()[:, None] / 4], -1)), n)

    return sgd_loop(net, loss, lr=0.1)


@healthy("log of a one-hot posterior is -inf where the state is impossible; xlogy keeps it out of the loss")
def absorbing_posterior(fixed):
    torch.manual_seed(13)
    net = nn.Sequential(nn.Embedding(6, 12), nn.Linear(12, 6))
    x0 = torch.randint(0, 5, (8, 10))

    def loss(i):
        keep = torch.rand(8, 10) < 0.6
        xt = torch.where(keep, x0, torch.full_like(x0, 5))
        q = F.one_hot(x0, 6) * 0.7 + F.one_hot(torch.full_like(x0, 5), 6) * 0.3
        lp = F.log_softmax(net(xt), -1)
        kl = torch.xlogy(q, q) - q * lp
        return kl.sum(-1).mean()

    return sgd_loop(net, loss, lr=0.5)


@healthy("a top-k autoencoder: most codes are exactly zero and so is the gradient of those that were not chosen")
def top_k_autoencoder(fixed):
    torch.manual_seed(14)

    class TopK(nn.Module):
        def __init__(self, d=10, h=64, k=4):
            super().__init__()
            self.k = k
            self.enc = nn.Linear(d, h)
            self.dec = nn.Linear(h, d)

        def forward(self, x):
            z = self.enc(x - self.dec.bias)
            v, at = z.topk(self.k, -1)
            code = torch.zeros_like(z).scatter(-1, at, torch.relu(v))
            return self.dec(code)

    net = TopK()
    x = torch.randn(100, 10)
    return sgd_loop(net, lambda i: F.mse_loss(net(x), x), lr=3e-3, opt=torch.optim.Adam)


@healthy("bfloat16 weights with a float32 master copy: single updates vanish in the weights, not in the master")
def master_weights(fixed):
    torch.manual_seed(15)
    low = nn.Linear(8, 1, bias=False).bfloat16()
    master = [p.detach().float().clone() for p in low.parameters()]
    opt = torch.optim.AdamW(master, lr=2e-3)
    x = torch.randn(128, 8)
    y = x @ torch.linspace(-1, 1, 8)[:, None]

    def step(i):
        low.zero_grad()
        loss = F.mse_loss(low(x.bfloat16()).float(), y)
        loss.backward()
        for m, p in zip(master, low.parameters(), strict=False):
            m.grad = p.grad.float()
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, low.parameters(), strict=False):
                p.copy_(m)
        return loss

    return low, step


@healthy("decays of the scan underflow to zero far back in time: forgotten, as meant")
def decaying_scan(fixed):
    torch.manual_seed(16)

    class Scan(nn.Module):
        def __init__(self, d=6):
            super().__init__()
            self.a = nn.Parameter(torch.linspace(-3, 3, d))
            self.out = nn.Linear(d, 6)

        def forward(self, u):
            n = u.shape[1]
            lag = (torch.arange(n)[:, None] - torch.arange(n)).float()
            k = torch.exp(-F.softplus(self.a) * lag.clamp(min=0)[..., None])
            k = k * (lag >= 0)[..., None]
            return self.out(torch.einsum("tsd,bsd->btd", k, u))

    net = Scan()
    u = torch.randn(3, 120, 6)
    return sgd_loop(net, lambda i: F.mse_loss(net(u), u), lr=2e-2)


@healthy("the features of linear attention are elu + 1: the normaliser is positive, and has an epsilon too")
def linear_attention(fixed):
    torch.manual_seed(17)
    qkv = nn.Linear(8, 24)
    x = 3 * torch.randn(4, 20, 8)

    def loss(i):
        q, k, v = qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bnd,bne->bde", k, v)
        z = torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6
        out = torch.einsum("bnd,bde->bne", q, kv) / z[..., None]
        return F.mse_loss(out, x.mean(1, keepdim=True).expand_as(x))

    return sgd_loop(qkv, loss, lr=5e-2)


@healthy("DPO begins at log 2 with a reference equal to the policy, and warm-up begins with a learning rate of 0", steps=8)
def dpo_from_reference(fixed):
    torch.manual_seed(18)
    policy = nn.Sequential(nn.Embedding(10, 12), nn.Linear(12, 10))
    ref = copy.deepcopy(policy).requires_grad_(False)
    win, lose = torch.randint(0, 10, (6, 8)), torch.randint(0, 10, (6, 8))

    def logp(m, t):
        return F.log_softmax(m(t[:, :-1]), -1).gather(-1, t[:, 1:, None]).sum((1, 2))

    def loss(i):
        up = logp(policy, win) - logp(ref, win)
        down = logp(policy, lose) - logp(ref, lose)
        return -F.logsigmoid(0.5 * (up - down)).mean()

    opt = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, n / 3))

    def step(i):
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        warm.step()
        return value

    return policy, step


@healthy("clipped ratios have no gradient; enough samples are inside the clip range")
def ppo_epochs(fixed):
    torch.manual_seed(19)
    pi = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    s = torch.randn(80, 4)
    a = torch.randint(0, 3, (80,))
    adv = torch.where(a == s[:, :3].argmax(-1), 1.0, -0.5)
    with torch.no_grad():
        old = torch.distributions.Categorical(logits=pi(s)).log_prob(a)
    opt = torch.optim.Adam(pi.parameters(), lr=2e-2)

    def step(i):
        opt.zero_grad()
        r = (torch.distributions.Categorical(logits=pi(s)).log_prob(a) - old).exp()
        loss = -torch.minimum(r * adv, r.clamp(0.8, 1.2) * adv).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(pi.parameters(), 0.5)
        opt.step()
        return loss

    return pi, step


@healthy("groups in which all answers earn the same have a standard deviation of zero and an advantage of zero")
def group_advantage(fixed):
    torch.manual_seed(20)
    net = nn.Linear(5, 6)
    prompt = torch.randn(12, 5)
    best = prompt[:, :4].argmax(-1)

    def loss(i):
        logp = F.log_softmax(net(prompt), -1)
        a = torch.multinomial(logp.detach().exp(), 16, replacement=True)
        r = (a == best[:, None]).float()
        r[3] = 1.0
        adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
        return -(adv * logp.gather(1, a)).mean()

    return sgd_loop(net, loss, lr=0.5)


@healthy("the risk set beyond a subject is -inf in the log domain; the diagonal keeps each row finite")
def cox_by_mask(fixed):
    torch.manual_seed(21)
    beta = nn.Linear(6, 1, bias=False)
    x, t = torch.randn(40, 6), torch.rand(40)
    d = torch.rand(40) < 0.5

    def loss(i):
        h = beta(x).squeeze(1)
        grid = h.expand(40, 40).masked_fill(t[None] < t[:, None], -torch.inf)
        return (torch.logsumexp(grid, 1) - h)[d].mean()

    return sgd_loop(beta, loss, lr=0.5)


@healthy("ranks divided by n + 1 never reach 0 or 1, so the quantile function stays finite")
def rank_copula(fixed):
    torch.manual_seed(23)
    raw = nn.Parameter(torch.tensor(0.0))
    data = torch.randn(80, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.4]])
    u = (data.argsort(0).argsort(0) + 1).float() / 81
    z = torch.special.ndtri(u)

    def loss(i):
        r = torch.tanh(raw)
        q = (z[:, 0] ** 2 + z[:, 1] ** 2 - 2 * r * z[:, 0] * z[:, 1]) / (1 - r * r)
        return 0.5 * (torch.log1p(-r * r) + q).mean()

    return None, train([raw], loss, lr=0.2)


@healthy("events far apart excite by exp(-500) = 0; the base rate keeps the logarithm finite")
def self_exciting(fixed):
    torch.manual_seed(24)
    raw = nn.Parameter(torch.tensor([0.0, 0.0, 1.0]))
    t = torch.cat([torch.rand(10), 300 + torch.rand(10), 900 + torch.rand(10)]).sort().values
    dt = t[:, None] - t

    def nll(i):
        mu, a, b = F.softplus(raw)
        kick = torch.exp(-b * dt.clamp(min=0)) * (dt > 0)
        lam = mu + a * b * kick.sum(1)
        return (mu * 901 + a * (1 - torch.exp(-b * (901 - t))).sum() - lam.log().sum()) / 30

    return None, train([raw], nll, lr=1e-2)


@healthy("duplicate inputs make the kernel singular; jitter of 1e-3 makes it definite before the factorisation")
def duplicate_inputs(fixed):
    torch.manual_seed(25)
    ell, amp = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0))
    x = torch.linspace(-2, 2, 10).repeat(2)
    y = torch.sin(2 * x) + 0.1 * torch.randn(20)

    def nll(i):
        K = amp.exp() * torch.exp(-0.5 * ((x[:, None] - x) / ell.exp()) ** 2)
        L = torch.linalg.cholesky(K + (1e-3 + 0.05) * torch.eye(20))
        a = torch.linalg.solve_triangular(L, y[:, None], upper=False)
        return 0.5 * a.square().sum() / 20 + L.diagonal().log().mean()

    opt = torch.optim.LBFGS([ell, amp], lr=0.3, max_iter=3)

    def step(i):
        def closure():
            opt.zero_grad()
            value = nll(i)
            value.backward()
            return value

        return opt.step(closure)

    step.parameters = {"ell": ell, "amp": amp}
    return None, step


@healthy("measurements that drop out: infinite noise gives a gain of exactly zero")
def dropout_kalman(fixed):
    torch.manual_seed(26)
    lq = nn.Parameter(torch.tensor(-2.0))
    n = 30
    truth = torch.cumsum(0.5 * torch.randn(n), 0)
    z = truth + 0.3 * torch.randn(n)
    R = torch.full((n,), 0.09)
    R[10:14] = math.inf

    def nll(i):
        m, P, total = torch.tensor(0.0), torch.tensor(100.0), 0.0
        for k in range(n):
            P = P + lq.exp()
            S = P + R[k]
            K = P / S
            if math.isfinite(R[k]):
                total = total + 0.5 * (S.log() + (z[k] - m) ** 2 / S)
            m = m + K * (z[k] - m)
            P = (1 - K) * P
        return total / n

    return None, train([lq], nll, lr=0.3)


@healthy("a ball that touches nothing has no contact force: relu is zero and so is its slope for most steps")
def bouncing_ball(fixed):
    v0 = nn.Parameter(torch.tensor(2.0))
    v0.register_hook(lambda d: d.clamp(-5, 5))
    stiff, g, dt = 2000.0, 9.81, 2e-3

    def loss(i):
        y, v = torch.tensor(0.5), v0
        for _ in range(300):
            push = stiff * torch.relu(-y)
            v = v + dt * (push - g)
            y = y + dt * v
        return (y - 0.3).square()

    return None, train([v0], loss, lr=0.3)


@healthy("tanh network: third derivatives through autograd.grad are tiny, of order 1e-3, and not needed larger")
def beam_pinn(fixed):
    torch.manual_seed(28)
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))

    def d(f, x):
        return torch.autograd.grad(f.sum(), x, create_graph=True)[0]

    def loss(i):
        x = torch.linspace(0, 1, 24)[:, None].requires_grad_(True)
        u = net(x)
        u1 = d(u, x)
        u3 = d(d(u1, x), x)
        edge = u[0].square() + u1[0].square() + (u[-1] - 1).square()
        return (u3 - 0.0).square().mean() + edge.sum()

    return sgd_loop(net, loss, lr=2e-2)


@healthy("saturated torque has no gradient in a few states; the controller learns from the rest")
def saturated_control(fixed):
    torch.manual_seed(29)
    K = nn.Parameter(torch.tensor([[-0.5, -0.2]]))
    A = torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    x0 = 2 * torch.randn(20, 2)

    def cost(i):
        x, c = x0, 0.0
        for _ in range(25):
            u = (x @ K.t()).clamp(-1, 1)
            x = x @ A.t() + torch.cat([torch.zeros_like(u), 0.1 * u], 1)
            c = c + x.square().mean() + 0.01 * u.square().mean()
        return c / 25

    return None, train([K], cost, lr=2e-2)


@healthy("the first rotation is about a state that it leaves alone: its gradient is 0 by symmetry and passes")
def variational_eigensolver(fixed):
    th = nn.Parameter(torch.tensor([0.3, 0.8, -0.4]))
    X = torch.tensor([[0, 1], [1, 0]], dtype=torch.complex64)
    Z = torch.tensor([[1, 0], [0, -1]], dtype=torch.complex64)
    E = torch.eye(2, dtype=torch.complex64)
    H = torch.kron(Z, Z) + 0.5 * torch.kron(X, E) + 0.5 * torch.kron(E, X)
    CZ = torch.diag(torch.tensor([1, 1, 1, -1], dtype=torch.complex64))

    def rot(t, P):
        return torch.linalg.matrix_exp(-0.5j * t * P)

    def energy(i):
        psi = torch.zeros(4, dtype=torch.complex64)
        psi[0] = 1
        psi = torch.kron(rot(th[0], Z), E) @ psi
        psi = CZ @ torch.kron(rot(th[1], X), rot(th[2], X)) @ psi
        return torch.vdot(psi, H @ psi).real

    return None, train([th], energy, lr=0.2)


@healthy("nodes without neighbours: the power -1/2 of degree 0 is infinite and is set to 0 at once, without gradient")
def sparse_graph(fixed):
    torch.manual_seed(31)
    src, dst = torch.randint(0, 18, (2, 50))
    deg = torch.zeros(20).index_add(0, dst, torch.ones(50))
    inv = deg.pow(-0.5)
    inv[torch.isinf(inv)] = 0
    A = torch.sparse_coo_tensor(torch.stack([dst, src]), inv[dst] * inv[src], (20, 20)).coalesce()
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    return sgd_loop(net, lambda i: F.cross_entropy(torch.sparse.mm(A, net(x)) + 0.5 * net(x), y), lr=0.3)


@healthy("points are pulled back from the edge of the ball after each step; acosh has its argument kept above 1")
def hyperbolic_pairs(fixed):
    torch.manual_seed(32)
    p = nn.Parameter(0.3 * torch.randn(14, 2))
    edges = torch.tensor([(i, (i - 1) // 2) for i in range(1, 14)])
    opt = torch.optim.SGD([p], lr=0.02)

    def step(i):
        opt.zero_grad()
        u, v = p[edges[:, 0]], p[edges[:, 1]]
        gap = (u - v).square().sum(-1)
        room = (1 - u.square().sum(-1)) * (1 - v.square().sum(-1))
        loss = (torch.acosh(1 + 2 * gap / room + 1e-5) - 1.0).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            n = p.norm(dim=-1, keepdim=True)
            p.mul_(torch.where(n > 0.95, 0.95 / n, 1.0))
        return loss

    step.parameters = {"p": p}
    return None, step


@healthy("ties in the sublevel filtration: features of persistence zero add nothing, their squared lifetime has slope 0")
def persistence(fixed):
    torch.manual_seed(33)
    f = nn.Parameter(torch.round(torch.rand(24) * 6) / 6)

    def loss(i):
        edge = torch.maximum(f[1:], f[:-1])
        birth = torch.minimum(f[1:], f[:-1])
        life = edge - birth
        return life.square().sum() + (f.mean() - 0.4).square()

    return None, train([f], loss, lr=0.05)


@healthy("missing columns are NaN, replaced before the network by a learnt value; a flag says so")
def tabular_missing(fixed):
    torch.manual_seed(34)

    class Tab(nn.Module):
        def __init__(self):
            super().__init__()
            self.fill = nn.Parameter(torch.zeros(5))
            self.mlp = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1))

        def forward(self, x):
            gone = torch.isnan(x)
            return self.mlp(torch.cat([torch.where(gone, self.fill, x), gone.float()], -1))

    net = Tab()
    x = torch.randn(90, 5)
    y = (x[:, :1] > 0).float()
    x[torch.rand(90, 5) < 0.2] = torch.nan
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=30, shuffle=True)

    def loss(i):
        xb, yb = next(iter(rows))
        return F.binary_cross_entropy_with_logits(net(xb), yb)

    return sgd_loop(net, loss, lr=5e-3, opt=torch.optim.RMSprop)


@healthy("digital silence in the clip: log of magnitude plus 1e-2, and the slope of |z| at 0 is taken as 0")
def silent_codec(fixed):
    torch.manual_seed(35)
    wn = nn.utils.parametrizations.weight_norm
    net = nn.Sequential(wn(nn.Conv1d(1, 8, 7, padding=3, bias=False)), nn.Tanh(), wn(nn.Conv1d(8, 1, 7, padding=3, bias=False)))
    wav = torch.randn(3, 1, 256)
    wav[1] = 0
    win = torch.hann_window(64)

    def spec(w):
        return torch.stft(w.squeeze(1), 64, window=win, return_complex=True).abs()

    def loss(i):
        a, b = spec(net(wav)), spec(wav)
        return (torch.log(a + 1e-2) - torch.log(b + 1e-2)).abs().mean() + 0.1 * F.l1_loss(a, b)

    return sgd_loop(net, loss, lr=5e-3)


@healthy("one transcript is too long for its frames; zero_infinity leaves it out on purpose")
def ctc_zero_infinity(fixed):
    torch.manual_seed(36)
    net = nn.LSTM(8, 16, batch_first=True)
    out = nn.Linear(16, 7)
    x = torch.randn(4, 14, 8)
    tgt = torch.randint(1, 7, (4, 18))
    lens = torch.tensor([4, 5, 18, 3])
    both = nn.ModuleDict({"rnn": net, "out": out})

    def loss(i):
        lp = F.log_softmax(out(net(x)[0]), -1).transpose(0, 1)
        return F.ctc_loss(lp, tgt, torch.full((4,), 14), lens, zero_infinity=True)

    return sgd_loop(both, loss, lr=0.1)


@healthy("a page without text: its targets are all ignored, the sum is divided by the count of the others, at least 1", steps=7)
def ignored_lines(fixed):
    torch.manual_seed(37)
    net = nn.Conv2d(1, 5, 3, padding=1)
    pages = torch.rand(7, 2, 1, 8, 8)
    lab = (pages[:, :, 0] * 5).long().clamp(max=4)
    lab[3] = 255

    def loss(i):
        s = F.cross_entropy(net(pages[i]), lab[i], ignore_index=255, reduction="sum")
        return s / (lab[i] != 255).sum().clamp(min=1)

    return sgd_loop(net, loss, lr=0.2)


@healthy("a scale of 2**24 overflows the half gradients at first: the scaler skips the first four steps and settles", steps=10)
def scaler_settles(fixed):
    torch.manual_seed(38)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=500)
    x = torch.rand(4, 1, 10, 10)
    y = (x > 0.5).float()

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            o = net(x)
        loss = F.binary_cross_entropy_with_logits(o.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy("boxes that do not meet have an IoU of 0; the generalised form still has a gradient")
def track_giou(fixed):
    torch.manual_seed(39)
    head = nn.Linear(6, 4)
    f = torch.randn(30, 6)
    c = torch.rand(30, 2) * 10
    gt = torch.cat([c, c + 1], -1)

    def loss(i):
        d = head(f)
        mid = c + 1.2 + d[:, :2]
        wh = F.softplus(d[:, 2:])
        b = torch.cat([mid - wh / 2, mid + wh / 2], -1)
        lo, hi = torch.maximum(b[:, :2], gt[:, :2]), torch.minimum(b[:, 2:], gt[:, 2:])
        inter = (hi - lo).clamp(min=0).prod(-1)
        union = wh.prod(-1) + 1 - inter
        hull = (torch.maximum(b[:, 2:], gt[:, 2:]) - torch.minimum(b[:, :2], gt[:, :2])).prod(-1)
        return (1 - inter / union + (hull - union) / hull).mean()

    return sgd_loop(head, loss, lr=0.2)


@healthy("invisible joints have target NaN; they are taken out by index, not by multiplying with zero")
def visible_joints(fixed):
    torch.manual_seed(40)
    net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 14))
    x = torch.randn(16, 12)
    kp = x[:, :14 - 2].repeat(1, 2)[:, :14].reshape(16, 7, 2).clone()
    kp[2, 3] = float("nan")
    kp[9, :4] = float("nan")

    def loss(i):
        seen = kp.isfinite().all(-1)
        return F.smooth_l1_loss(net(x).view(16, 7, 2)[seen], kp[seen])

    return sgd_loop(net, loss, lr=0.3)
