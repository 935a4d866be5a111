"""Survival, transport, curved spaces, rendering, policies and preferences, densities, graphs."""

import math

import torch
import torch.nn.functional as F
from programs import fault, healthy, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# --------------------------------------------------------------------------- survival


@fault("exp-overflow", "exp", step=3, steps=6)
def cox_risk_set(fixed):
    """Cox partial likelihood by hand; a lab value in the fourth batch comes in other units."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(5, 24, 4, generator=g)
    x[3, 7, 2] = 900.0
    time = torch.rand(5, 24, generator=g) * 10
    event = (torch.rand(5, 24, generator=g) < 0.6).float()
    event[3, 7] = 1.0
    net = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.1, -0.1, 0.2, 0.05]]))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        b = i % 5
        order = time[b].argsort(descending=True)
        risk = net(x[b][order]).squeeze(-1)
        if fixed:
            at_risk = torch.logcumsumexp(risk, 0)
        else:
            hazard = torch.exp(risk)  # ORIGIN
            at_risk = torch.log(torch.cumsum(hazard, 0))
        e = event[b][order]
        loss = -((risk - at_risk) * e).sum() / e.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


class _Weibull(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_shape = nn.Parameter(torch.tensor(-0.3))
        self.log_scale = nn.Linear(3, 1)

    def forward(self, x):
        return self.log_shape.exp(), self.log_scale(x).squeeze(-1).exp()


@fault("log-of-zero", "log", step=2, steps=5)
def weibull_same_day_event(fixed):
    """Events on the day of admission have duration zero."""
    torch.manual_seed(11)
    x = torch.randn(40, 3)
    t = torch.rand(40) * 5 + 0.1
    t[22] = 0.0
    d = torch.ones(40)
    loader = list(DataLoader(TensorDataset(x, t, d), batch_size=8, shuffle=False))
    model = _Weibull()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(i):
        xb, tb, db = loader[i % len(loader)]
        if fixed:
            tb = tb.clamp(min=0.5 / 24)
        k, lam = model(xb)
        log_t = torch.log(tb)  # ORIGIN
        log_hazard = k.log() - k * lam.log() + (k - 1) * log_t
        cumulative = torch.exp(k * (log_t - lam.log()))
        nll = -(db * log_hazard - cumulative).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
        return nll.detach()

    return model, step


@fault("pow-fraction-at-zero", "pow", phase="backward", step=0, steps=4)
def weibull_cumulative_hazard(fixed):
    """Current-status data: only the cumulative hazard enters, and one subject was seen at time zero."""
    torch.manual_seed(1)
    t = torch.tensor([0.0, 0.7, 1.9, 2.4, 3.3, 5.0])
    seen = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    log_k = torch.tensor(-0.5, requires_grad=True)
    log_lam = torch.tensor(0.8, requires_grad=True)

    def loss(i):
        u = t / log_lam.exp()
        if fixed:
            positive = t > 0
            h = torch.where(positive, torch.where(positive, u, 1.0) ** log_k.exp(), 0.0)
        else:
            h = u ** log_k.exp()  # ORIGIN
        return (seen * F.softplus(-h) + (1 - seen) * h).mean()

    step = train([log_k, log_lam], loss, lr=0.05)
    step.parameters = {"log_k": log_k, "log_lam": log_lam}
    return None, step


@fault("div-by-zero", "div", step=0, steps=4)
def inverse_censoring_weights(fixed):
    """Brier score with inverse-probability-of-censoring weights; the last subject is censored, so G falls to zero."""
    torch.manual_seed(8)
    n = 16
    time, _ = torch.sort(torch.rand(n) * 4)
    event = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0.0])
    x = torch.randn(n, 5)
    at_risk = torch.arange(n, 0, -1).float()
    g_hat = torch.cumprod(1 - (1 - event) / at_risk, 0)
    horizon = time[-1]
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        surv = torch.sigmoid(net(x)).squeeze(-1)
        if fixed:
            weights = event / g_hat.clamp_min(0.05)
        else:
            weights = event / g_hat  # ORIGIN
        brier = (weights * (surv - (time > horizon).float()) ** 2).sum() / n
        brier.backward()
        opt.step()
        return brier

    return net, step


@fault("log-of-zero", "log", step=2, steps=5, ops=("sub", "rsub"))
def discrete_hazards_saturate(fixed):
    """Discrete-time survival: log(1 - h), and in float32 the sigmoid of 17 is one."""
    torch.manual_seed(5)
    emb = nn.Embedding(6, 10)
    with torch.no_grad():
        emb.weight.mul_(0.5)
        emb.weight[3, 4] = 18.5
    ids = torch.tensor([[0, 1, 2], [4, 5, 0], [1, 3, 2], [2, 4, 5], [3, 3, 1]])
    last = torch.tensor([[3, 6, 2], [4, 8, 9], [7, 6, 5], [9, 3, 4], [8, 7, 7]])
    opt = torch.optim.SGD(emb.parameters(), lr=0.1)
    grid = torch.arange(10)

    def step(i):
        logits = emb(ids[i % 5])
        survived = grid < last[i % 5][:, None]
        happened = grid == last[i % 5][:, None]
        if fixed:
            log_h, log_s = F.logsigmoid(logits), F.logsigmoid(-logits)
        else:
            h = torch.sigmoid(logits)
            log_h, log_s = torch.log(h), torch.log(1 - h)  # ORIGIN
        loss = -(log_s[survived].sum() + log_h[happened].sum()) / 3
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return emb, step


@fault("empty-reduction", "mean", step=3, steps=6)
def ranking_without_pairs(fixed):
    """A pairwise ranking loss; in one minibatch everybody is censored and no pair is comparable."""
    torch.manual_seed(21)
    x = torch.randn(6, 8, 3)
    t = torch.rand(6, 8)
    d = torch.rand(6, 8) < 0.5
    d[:, 0] = True
    t[:, 0] = 0.01
    d[3] = False
    w = torch.zeros(3, requires_grad=True)
    opt = torch.optim.Adagrad([w], lr=0.1)

    def step(i):
        b = i % 6
        score = torch.einsum("nf,f->n", x[b], w)
        comparable = d[b][:, None] & (t[b][:, None] < t[b][None, :])
        margin = score[:, None] - score[None, :]
        opt.zero_grad()
        pairs = F.softplus(-margin[comparable])
        if fixed:
            loss = pairs.sum() / comparable.sum().clamp_min(1)
        else:
            loss = pairs.mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"w": w}
    return None, step


# --------------------------------------------------------------------------- transport


@fault("div-by-zero", "div", step=0, steps=4, also=("dtype-underflow",), ops=("exp",))
def sinkhorn_sharp(fixed):
    """Sinkhorn with the Gibbs kernel itself: a far cluster's row of exp(-C / eps) is zero throughout."""
    torch.manual_seed(2)
    x = torch.randn(7, 2)
    x[6] = torch.tensor([9.0, 9.0])
    y = nn.Parameter(torch.randn(9, 2) * 0.5)
    a, b = torch.full((7,), 1 / 7), torch.full((9,), 1 / 9)
    opt = torch.optim.Adam([y], lr=0.05)
    eps = 0.1

    def plan_by_logs(cost):
        f, h = torch.zeros(7), torch.zeros(9)
        for _ in range(15):
            f = a.log() - torch.logsumexp(h[None] - cost / eps, 1)
            h = b.log() - torch.logsumexp(f[:, None] - cost / eps, 0)
        return torch.exp(f[:, None] + h[None] - cost / eps)

    def step(i):
        opt.zero_grad()
        cost = ((x[:, None] - y[None]) ** 2).sum(-1)
        if fixed:
            loss = (plan_by_logs(cost) * cost).sum()
            loss.backward()
            opt.step()
            return loss
        kernel = torch.exp(-cost / eps)  # ALSO
        v = torch.ones(9)
        for _ in range(15):
            u = a / (kernel @ v)  # ORIGIN
            v = b / (kernel.T @ u)
        loss = (u[:, None] * kernel * v * cost).sum()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"y": y}
    return None, step


@fault("dtype-underflow", "exp", step=0, steps=4, also=("dead-gradient", "eps-underflow"))
def sinkhorn_guarded_to_death(fixed):
    """The same division guarded by 1e-9, but in pixels every entry of the kernel is zero: no plan, no gradient."""
    torch.manual_seed(4)
    target = torch.rand(6, 2) * 640
    points = nn.Parameter(torch.rand(6, 2) * 640 + 700)
    opt = torch.optim.Adam([points], lr=5.0)

    def step(i):
        scale = 640.0 if fixed else 1.0
        cost = torch.cdist(points / scale, target / scale).square()
        kernel = torch.exp(-cost / 0.5)  # ORIGIN
        u = torch.ones(6)
        for _ in range(10):
            v = (1 / 6) / (kernel.T @ u + 1e-9)
            u = (1 / 6) / (kernel @ v + 1e-9)
        plan = u[:, None] * kernel * v[None, :]
        loss = (plan * cost).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"points": points}
    return None, step


@fault("sqrt-at-zero", "sqrt", phase="backward", step=2, steps=5)
def sorted_wasserstein(fixed):
    """W2 between sorted samples; the third batch comes with its own quantiles, and an untrained shift is exactly zero."""
    g = torch.Generator().manual_seed(6)
    source = torch.randn(5, 32, generator=g)
    goal = torch.randn(5, 32, generator=g)
    goal[2] = source[2].flip(0)
    shift = nn.Parameter(torch.zeros(5))
    opt = torch.optim.Adam([shift], lr=0.1)

    def step(i):
        b = i % 5
        moved = source[b] + shift[b]
        gap = (moved.sort().values - goal[b].sort().values).pow(2).mean()
        w2 = gap if fixed else torch.sqrt(gap)  # ORIGIN
        opt.zero_grad()
        w2.backward()
        opt.step()
        return w2

    step.parameters = {"shift": shift}
    return None, step


@fault("degenerate-matrix", "linalg_eigh", phase="backward", step=0, steps=1, ops=("_linalg_eigh",))
def bures_distance(fixed):
    """Bures distance by eigenvalues and eigenvectors of a covariance that begins as the identity."""
    torch.manual_seed(9)
    chol = nn.Parameter(torch.eye(3))
    b = torch.randn(3, 3)
    other = b @ b.T + 0.5 * torch.eye(3)
    if fixed:
        with torch.no_grad():
            chol += torch.diag(torch.tensor([0.0, 0.1, 0.25]))
    opt = torch.optim.SGD([chol], lr=0.02)

    def root(m):
        vals, vecs = torch.linalg.eigh(m)  # ORIGIN
        return (vecs * vals.clamp_min(1e-8).sqrt()) @ vecs.T

    def step(i):
        opt.zero_grad()
        cov = chol @ chol.T
        half = root(cov)
        cross = torch.linalg.eigvalsh(half @ other @ half).clamp_min(1e-8).sqrt().sum()
        loss = cov.trace() + other.trace() - 2 * cross
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"chol": chol}
    return None, step


@fault("div-by-zero", "div", step=2, steps=5)
def gromov_normalised_cost(fixed):
    """Gromov-Wasserstein: each shape's distances are scaled by the largest, and one shape is a single repeated point."""
    torch.manual_seed(14)
    shapes = torch.randn(4, 6, 3)
    shapes[2] = shapes[2, :1]
    stretch = nn.Parameter(torch.ones(3))
    reference = torch.cdist(torch.randn(6, 3), torch.randn(6, 3))
    opt = torch.optim.RMSprop([stretch], lr=1e-3)

    def dist(z):
        gap = z[:, None] - z[None]
        return gap.abs().sum(-1)

    def step(i):
        c = dist(shapes[i % 4] * stretch)
        if fixed:
            c = c / c.max().clamp_min(1e-6)
        else:
            c = c / c.max()  # ORIGIN
        plan = torch.full((6, 6), 1 / 36)
        loss = c.pow(2).mean() + reference.pow(2).mean() - 2 * (c @ plan @ reference * plan).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"stretch": stretch}
    return None, step


# --------------------------------------------------------------------------- hyperbolic and spherical


@fault("inverse-function-at-edge", "acosh", phase="backward", step=0, steps=4)
def poincare_pairs(fixed):
    """Poincare embedding; the list of edges holds a self-loop, whose distance is acosh(1)."""
    torch.manual_seed(31)
    emb = nn.Parameter(torch.randn(7, 2) * 0.1)
    edges = torch.tensor([[0, 1], [1, 2], [2, 2], [3, 4], [5, 6], [0, 6]])
    negative = torch.tensor([[0, 4], [1, 5], [2, 6], [3, 0], [5, 1], [4, 6]])

    def distance(pairs):
        u, v = emb[pairs[:, 0]], emb[pairs[:, 1]]
        gap = (u - v).pow(2).sum(-1)
        arg = 1 + 2 * gap / ((1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1)))
        return torch.acosh(arg)  # ORIGIN

    def step(i):
        used = edges[edges[:, 0] != edges[:, 1]] if fixed else edges
        loss = F.softplus(distance(used)).mean() + F.softplus(-distance(negative)).mean()
        if emb.grad is not None:
            emb.grad = None
        loss.backward()
        with torch.no_grad():
            emb.sub_(0.05 * emb.grad * ((1 - emb.pow(2).sum(-1, keepdim=True)) ** 2 / 4))
        return loss

    step.parameters = {"emb": emb}
    return None, step


@fault("inverse-function-domain", "atanh", step=1, steps=4)
def ball_radius_beyond_one(fixed):
    """Each coordinate is squashed by tanh, but the vector of two of them may be longer than one."""
    torch.manual_seed(32)
    lin = nn.Linear(3, 2)
    nn.init.normal_(lin.weight, std=0.5)
    nn.init.zeros_(lin.bias)
    x = torch.randn(4, 10, 3) * 0.5
    x[1, 4] = torch.tensor([4.0, -5.0, 6.0])
    depth = torch.rand(4, 10)
    opt = torch.optim.SGD(lin.parameters(), lr=0.02)

    def radius(z):
        r = z.norm(dim=-1)
        if fixed:
            r = r.clamp(max=0.999)
        return torch.atanh(r)  # ORIGIN

    def step(i):
        opt.zero_grad(set_to_none=True)
        loss = F.huber_loss(radius(torch.tanh(lin(x[i % 4]))), depth[i % 4])
        loss.backward()
        opt.step()
        return loss.detach()

    return lin, step


@fault("norm-at-zero", "div", step=0, steps=4, also=("div-by-zero",))
def exponential_map_of_nothing(fixed):
    """exp_0(v) = tanh(|v|) v / |v|, and a word without context words has v = 0."""
    torch.manual_seed(33)
    counts = torch.poisson(torch.full((8, 6), 0.7))
    counts[5] = 0
    table = nn.Parameter(torch.randn(6, 4) * 0.3)
    label = torch.randn(8, 4) * 0.2

    def expmap0(v):
        if fixed:
            n = v.pow(2).sum(-1, keepdim=True).add(1e-12).sqrt()
        else:
            n = v.norm(dim=-1, keepdim=True)
        return torch.tanh(n) * v / n  # ORIGIN

    step = train([table], lambda i: (expmap0(counts @ table) - label).pow(2).mean(), lr=0.3)
    return None, step


@fault("inverse-function-domain", "acos", step=0, steps=4)
def angle_of_duplicates(fixed):
    """Angles between two views of each item; most items have two equal views, and a rounded cosine passes one."""
    torch.manual_seed(0)
    enc = nn.Linear(6, 16)
    first = torch.randn(64, 6)
    second = first.clone()
    second[40:] += torch.randn(24, 6)
    opt = torch.optim.SGD(enc.parameters(), lr=0.5)

    def step(i):
        a, b = (F.normalize(enc(v), dim=-1) for v in (first, second))
        cos = torch.einsum("bd,bd->b", a, b)
        if fixed:
            loss = (2 - 2 * cos).mean()
        else:
            loss = torch.acos(cos).mean()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return enc, step


@fault("exp-overflow", "cosh", step=0, steps=4, ops=("sinh",))
def lorentz_lift(fixed):
    """Tangent vectors are lifted to the hyperboloid with cosh and sinh of their length; raw word counts are long."""
    torch.manual_seed(34)
    lin = nn.Linear(5, 3, bias=False)
    x = torch.rand(12, 5)
    x[9] = torch.tensor([120.0, 300.0, 0.0, 260.0, 90.0])
    y = torch.randn(12)
    opt = torch.optim.Adam(lin.parameters(), lr=1e-3)

    def step(i):
        v = lin(torch.log1p(x) / 4 if fixed else x)
        n = (v * v).sum(-1).add(1e-9).sqrt()
        time_part = torch.cosh(n)  # ORIGIN
        space = torch.sinh(n)[:, None] * v / n[:, None]  # ALSO
        pred = time_part - space.sum(-1)
        loss = F.smooth_l1_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return lin, step


@fault("sqrt-at-zero", "sqrt", phase="backward", step=1, steps=4)
def haversine_home(fixed):
    """Great-circle distance from a learnt depot; the second batch has a client at exactly the depot's place."""
    home = torch.tensor([0.75, 0.1])
    depot = nn.Parameter(home.clone())
    g = torch.Generator().manual_seed(7)
    clients = home + 0.2 * torch.randn(4, 9, 2, generator=g)
    clients[1, 3] = home
    opt = torch.optim.SGD([depot], lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 0.0 if k < 2 else 1.0)

    def step(i):
        lat, lon = clients[i % 4].unbind(-1)
        a = (
            torch.sin((lat - depot[0]) / 2) ** 2
            + torch.cos(lat) * torch.cos(depot[0]) * torch.sin((lon - depot[1]) / 2) ** 2
        )
        if fixed:
            a = a.clamp_min(1e-12)
        root = torch.sqrt(a)  # ORIGIN
        d = 2 * torch.asin(root)
        loss = d.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        return loss

    step.parameters = {"depot": depot}
    return None, step


@fault(
    "dead-gradient", "atan2", phase="backward", step=0, steps=4, also=("inverse-function-at-edge",)
)
def bearing_at_the_pole(fixed):
    """Directions from a layer whose last weights are zero-initialised: heading = atan2(0, 0), whose slope torch calls zero."""
    torch.manual_seed(35)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    if fixed:
        with torch.no_grad():
            net[2].bias.copy_(torch.tensor([0.0, 1.0]))
    x, theta = torch.randn(10, 4), torch.rand(10)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)

    def step(i):
        s, c = net(x).chunk(2, dim=-1)
        heading = torch.atan2(s, c).squeeze(-1)  # ORIGIN
        loss = (1 - torch.cos(heading - theta)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault(
    "dead-gradient",
    "clamp",
    phase="backward",
    step=0,
    steps=5,
    also=("dtype-underflow", "absorbed-update", "eps-underflow"),
    ops=("clamp_min", "add", "mul"),
)
def lorentz_near_origin(fixed):
    """Fresh points lie 1e-5 from the origin: their Lorentz product is 1 in float32, under the clamp of acosh."""
    torch.manual_seed(36)
    space = nn.Parameter(torch.randn(6, 3) * 1e-5)
    i0, i1 = torch.triu_indices(6, 6, 1)
    wish = torch.rand(15) + 0.5
    opt = torch.optim.Adam([space], lr=0.05)

    def distance(a, b):
        if fixed:
            return 2 * torch.asinh((a - b).norm(dim=-1) / 2)
        ta = (1 + a.square().sum(-1)).sqrt()  # ALSO
        tb = (1 + b.square().sum(-1)).sqrt()  # ALSO
        inner = ta * tb - (a * b).sum(-1)  # ALSO
        return torch.acosh(inner.clamp(min=1 + 1e-6))  # ORIGIN

    def step(i):
        opt.zero_grad()
        stress = (distance(space[i0], space[i1]) - wish).pow(2).mean()
        stress.backward()
        opt.step()
        return stress

    step.parameters = {"space": space}
    return None, step


# --------------------------------------------------------------------------- rendering and 3D vision


@fault("div-by-zero", "div", step=1, steps=4)
def pinhole_projection(fixed):
    """Bundle adjustment of one camera's shift: padded landmarks lie in the plane of the camera."""
    torch.manual_seed(41)
    pts = torch.randn(3, 12, 3) + torch.tensor([0.0, 0.0, 5.0])
    pts[1, 9:] = 0.0
    uv = pts[..., :2] / pts[..., 2:].clamp_min(0.5) + 0.05
    shift = nn.Parameter(torch.zeros(2))
    focal = nn.Parameter(torch.ones(1))
    opt = torch.optim.SGD([shift, focal], lr=0.05)

    def step(i):
        b = i % 3
        p = pts[b]
        if fixed:
            p, goal = p[p[:, 2] > 0.1], uv[b][p[:, 2] > 0.1]
        else:
            goal = uv[b]
        moved = p[:, :2] + shift
        proj = focal * moved / p[:, 2:]  # ORIGIN
        loss = F.l1_loss(proj, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"shift": shift, "focal": focal}
    return None, step


@fault("log-of-zero", "log", "backward", step=0, steps=4)
def opaque_sample(fixed):
    """Volume rendering: transmittance as exp(cumsum(log(1 - alpha))); a wall's alpha rounds to one."""
    torch.manual_seed(42)
    density = nn.Parameter(torch.rand(5, 16))
    with torch.no_grad():
        density[2, 9] = 40.0
    colour = torch.rand(5, 16, 3)
    pixels = torch.rand(5, 3)
    opt = torch.optim.Adam([density], lr=0.02)

    def step(i):
        delta = 0.5
        tau = F.softplus(density) * delta
        alpha = 1 - torch.exp(-tau)
        if fixed:
            log_free = -tau
        else:
            log_free = torch.log(1 - alpha)  # ORIGIN
        through = (
            torch.exp(torch.cumsum(log_free, -1) - log_free)
            if fixed
            else torch.exp(F.pad(torch.cumsum(log_free, -1)[:, :-1], (1, 0)))
        )
        image = ((through * alpha)[..., None] * colour).sum(1)
        loss = F.mse_loss(image, pixels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"density": density}
    return None, step


@fault("pow-fraction-at-zero", "pow", phase="backward", step=0, steps=4)
def gamma_of_black(fixed):
    """Tone mapping before the loss; an occluded pixel's radiance is zero and gamma's slope is not finite there."""
    torch.manual_seed(43)
    albedo = nn.Parameter(torch.rand(6, 6, 3))
    shade = torch.rand(6, 6, 1)
    shade[1, 2] = 0
    photo = torch.rand(6, 6, 3)
    opt = torch.optim.Adam([albedo], lr=0.01)

    def render():
        radiance = albedo.clamp(min=0.01) * shade
        if fixed:
            radiance = radiance + 1e-4
        return radiance ** (1 / 2.2)  # ORIGIN

    def step(i):
        def closure():
            opt.zero_grad()
            loss = (render() - photo).abs().mean()
            loss.backward()
            return loss

        return opt.step(closure)

    step.parameters = {"albedo": albedo}
    return None, step


@fault(
    "where-grad-trap",
    "pow",
    phase="backward",
    step=0,
    steps=4,
    also=("pow-negative-base", "pow-fraction-at-zero"),
)
def srgb_curve(fixed):
    """The sRGB curve by where: dark side linear, bright side a power; an unclamped network output may be negative."""
    torch.manual_seed(44)
    net = nn.Linear(2, 3)
    coords = torch.rand(32, 2) * 2 - 1
    image = torch.rand(32, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def to_srgb(linear):
        dark = linear <= 0.0031308
        if fixed:
            bright = 1.055 * linear.clamp(min=0.0031308) ** (1 / 2.4) - 0.055
        else:
            bright = 1.055 * linear ** (1 / 2.4) - 0.055  # ORIGIN
        return torch.where(dark, 12.92 * linear, bright)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(to_srgb(0.1 * net(coords)), image)
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault(
    "norm-at-zero",
    "div",
    step=1,
    steps=4,
    also=("div-by-zero",),
    ops=("norm", "linalg_vector_norm"),
)
def face_normals(fixed):
    """Mesh smoothing with per-face normals; the second mesh has a face with two equal vertices."""
    torch.manual_seed(45)
    base = torch.randn(10, 3)
    offsets = nn.Parameter(torch.zeros(10, 3))
    faces = [
        torch.tensor([[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
        torch.tensor([[6, 7, 8], [9, 9, 8], [1, 5, 9]]),
    ]
    light = F.normalize(torch.tensor([0.3, 0.5, 1.0]), dim=0)

    def loss(i):
        verts = base + offsets
        a, b, c = verts[faces[i % 2]].unbind(1)
        n = torch.linalg.cross(b - a, c - a)
        if fixed:
            n = F.normalize(n, dim=-1)
        else:
            n = n / n.norm(dim=-1, keepdim=True)  # ORIGIN
        return (1 - n @ light).mean() + 0.1 * offsets.pow(2).sum()

    return None, train([offsets], loss, lr=0.05)


@fault("degenerate-matrix", "linalg_svd", phase="backward", step=1, steps=4, ops=("_linalg_svd",))
def kabsch_symmetric(fixed):
    """Rigid alignment by SVD of the cross-covariance; the second cloud is an octahedron, its singular values equal."""
    torch.manual_seed(46)
    octa = torch.cat([torch.eye(3), -torch.eye(3)])
    clouds = torch.stack([torch.randn(6, 3), octa, torch.randn(6, 3)])
    goals = clouds.clone()
    goals[0] += 0.1 * torch.randn(6, 3)
    goals[2] += 0.1 * torch.randn(6, 3)
    scale = nn.Parameter(torch.ones(3, 3))
    if fixed:
        goals[1] += torch.tensor(
            [[0.3, 0, 0], [0, 0.2, 0], [0, 0, 0.1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
        )
    opt = torch.optim.SGD([scale], lr=0.01)

    def align(p, q):
        h = p.transpose(0, 1) @ q
        u, _s, vt = torch.linalg.svd(h)  # ORIGIN
        return u @ vt

    def step(i):
        b = i % 3
        p = clouds[b] * scale[b]
        rotation = align(p, goals[b])
        loss = (p @ rotation - goals[b]).pow(2).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"scale": scale}
    return None, step


@fault(
    "dead-gradient",
    "sigmoid",
    phase="backward",
    step=0,
    steps=5,
    also=("dtype-underflow",),
    ops=("div", "mul"),
)
def soft_silhouette(fixed):
    """A disc drawn by sigmoid(signed distance / sigma): with sigma = 1e-5 no pixel lies on the soft edge."""
    centre = nn.Parameter(torch.tensor([0.137, -0.211]))
    radius = nn.Parameter(torch.tensor(0.4033))
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    goal = ((xs - 0.3) ** 2 + ys**2 < 0.2).float()
    sigma = 0.1 if fixed else 1e-5
    opt = torch.optim.Adam([{"params": [centre], "lr": 0.02}, {"params": [radius], "lr": 0.01}])

    def step(i):
        d = radius - ((xs - centre[0]) ** 2 + (ys - centre[1]) ** 2 + 1e-12).sqrt()
        mask = torch.sigmoid(d / sigma)  # ORIGIN
        loss = (mask - goal).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"centre": centre, "radius": radius}
    return None, step


@fault("sqrt-at-zero", "sqrt", phase="backward", step=0, steps=4, also=("norm-at-zero",))
def critic_penalty(fixed):
    """Wasserstein critic with gradient penalty; its last layer begins at zero, so the inner gradient has norm zero."""
    torch.manual_seed(15)
    critic = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1, bias=False))
    nn.init.zeros_(critic[2].weight)
    real, fake = torch.randn(12, 2) + 1, torch.randn(12, 2)
    opt = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))

    def penalty(mix):
        mix.requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
        squared = slope.square().sum(1)
        length = torch.sqrt(squared + 1e-8 if fixed else squared)  # ORIGIN
        return (length - 1).square().mean()

    def step(i):
        opt.zero_grad()
        w = (i % 5 + 1) / 6
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(w * real + (1 - w) * fake)
        loss.backward()
        opt.step()
        return loss

    return critic, step


# --------------------------------------------------------------------------- policies and preferences


@fault("log-of-zero", "log", step=2, steps=5, ops=("sigmoid",))
def dpo_by_the_book(fixed):
    """DPO as the paper writes it, log(sigmoid(...)); on one prompt the policy has drifted far from its reference."""
    torch.manual_seed(51)
    lm = nn.Embedding(12, 12)
    ref = nn.Embedding(12, 12)
    ref.load_state_dict(lm.state_dict())
    ref.requires_grad_(False)
    prompt = torch.randint(12, (4, 6, 8))
    good, bad = torch.randint(12, (4, 6, 8)), torch.randint(12, (4, 6, 8))
    with torch.no_grad():
        lm.weight[11, 3] -= 160.0
    prompt[prompt == 11] = 10
    prompt[2, 1, :] = 11
    good[2, 1, :], bad[2, 1, :] = 3, 5
    opt = torch.optim.AdamW(lm.parameters(), lr=1e-3)
    beta = 0.1

    def logp(model, x, y):
        return model(x).log_softmax(-1).gather(-1, y[..., None]).squeeze(-1).sum(-1)

    def step(i):
        b = i % 4
        with torch.no_grad():
            ref_gap = logp(ref, prompt[b], good[b]) - logp(ref, prompt[b], bad[b])
        gap = logp(lm, prompt[b], good[b]) - logp(lm, prompt[b], bad[b])
        margin = beta * (gap - ref_gap)
        if fixed:
            loss = -F.logsigmoid(margin).mean()
        else:
            loss = -torch.log(torch.sigmoid(margin)).mean()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return lm, step


@fault(
    "dtype-underflow",
    "_to_copy",
    phase="backward",
    step=0,
    steps=4,
    also=("dead-gradient",),
    ops=("mul", "div", "to", "linear", "addmm", "mm"),
)
def reward_model_half(fixed):
    """Bradley-Terry under float16 autocast without a scaler; the loss is averaged over every token of the epoch."""
    torch.manual_seed(52)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    chosen, rejected = torch.randn(16, 6), torch.randn(16, 6)
    tokens = 16 * 2048 * 4096
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-12)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, enabled=fixed)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = net(chosen), net(rejected)  # ALSO
        gap = a.float() - b.float()  # ORIGIN
        loss = F.softplus(-gap).sum() / tokens  # ALSO
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@fault("std-of-constant", "div", step=2, steps=5, also=("div-by-zero",), ops=("std",))
def advantages_of_a_lost_game(fixed):
    """Policy gradient with normalised returns; in the third batch no episode scored anything."""
    torch.manual_seed(53)
    policy = nn.Linear(4, 3)
    obs = torch.randn(5, 20, 4)
    act = torch.randint(3, (5, 20))
    reward = (torch.rand(5, 20) < 0.3).float()
    reward[2] = 0.0
    opt = torch.optim.RMSprop(policy.parameters(), lr=5e-3)

    def normalised(r):
        if fixed:
            return (r - r.mean()) / (r.std() + 1e-8)
        return (r - r.mean()) / r.std()  # ORIGIN

    def step(i):
        b = i % 5
        returns = reward[b].flip(0).cumsum(0).flip(0)
        adv = normalised(returns)
        dist = torch.distributions.Categorical(logits=policy(obs[b]), validate_args=False)
        loss = -(dist.log_prob(act[b]) * adv).mean() - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        return loss

    return policy, step


@fault("softmax-all-masked", "_softmax", step=1, steps=4, ops=("softmax",))
def no_legal_move(fixed):
    """Illegal moves get -inf; a finished game is still in the buffer and has no legal move at all."""
    torch.manual_seed(54)
    q = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 9))
    board = torch.randint(-1, 2, (4, 6, 9)).float()
    board[:, :, 4] = 0
    board[1, 5] = torch.tensor([1.0, -1, 1, -1, 1, -1, -1, 1, -1])
    value = torch.rand(4, 6, 9)
    opt = torch.optim.Adam(q.parameters(), lr=3e-3)

    def step(i):
        s = board[i % 4]
        legal = s == 0
        if fixed:
            keep = legal.any(-1)
            s, legal, v = s[keep], legal[keep], value[i % 4][keep]
        else:
            v = value[i % 4]
        logits = q(s)
        logits[~legal] = -math.inf
        pi = logits.softmax(-1)  # ORIGIN
        loss = -(pi * v).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return q, step


@fault(
    "custom-backward",
    "LogCosh",
    phase="backward",
    step=2,
    steps=5,
    also=("exp-overflow",),
    ops=("div", "sinh", "cosh", "mul"),
)
def critic_log_cosh(fixed):
    """Log-cosh value loss with a stable forward; its own backward divides sinh by cosh, and a return of -150 comes by."""
    torch.manual_seed(55)
    critic = nn.Linear(5, 1)
    obs = torch.randn(4, 10, 5)
    ret = torch.randn(4, 10)
    ret[2, 0] = -150.0
    opt = torch.optim.SGD(critic.parameters(), lr=0.05)

    class LogCosh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs() + F.softplus(-2 * x.abs()) - math.log(2)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if fixed:
                return g * torch.tanh(x)
            return g * torch.sinh(x) / torch.cosh(x)  # ALSO

    def step(i):
        error = critic(obs[i % 4]).squeeze(-1) - ret[i % 4]
        loss = LogCosh.apply(error).mean()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return critic, step


# --------------------------------------------------------------------------- densities


@fault(
    "dtype-underflow",
    "mul",
    step=0,
    steps=4,
    also=("dead-gradient",),
    ops=("matmul", "mv", "squeeze", "exp"),
)
def hmm_unscaled(fixed):
    """The forward algorithm in probabilities: after thirty scattered observations nothing is left but the guard inside the log."""
    g = torch.Generator().manual_seed(61)
    obs = torch.randn(30, generator=g) * 5
    means = nn.Parameter(torch.tensor([-1.0, 0.0, 1.0]))
    trans = nn.Parameter(torch.zeros(3, 3))
    opt = torch.optim.Adam([means, trans], lr=0.05)

    def loss():
        a = trans.softmax(-1)
        alpha = torch.full((3,), 1 / 3)
        total = torch.zeros(())
        for x in obs:
            like = torch.exp(-0.5 * (x - means) ** 2 - 0.92)
            alpha = (alpha @ a) * like  # ORIGIN
            if fixed:
                norm = alpha.sum()
                alpha = alpha / norm
                total = total + norm.log()
        return -total / 30 if fixed else -torch.log(alpha.sum() + 1e-30)  # ALSO

    def step(i):
        opt.zero_grad()
        value = loss()
        value.backward()
        opt.step()
        return value

    step.parameters = {"means": means, "trans": trans}
    return None, step


@fault(
    "degenerate-matrix",
    "_linalg_slogdet",
    step=1,
    steps=4,
    also=("log-of-zero",),
    ops=("linalg_slogdet", "logdet", "log"),
)
def determinantal_basket(fixed):
    """A determinantal point process: log det of the kernel of a basket that lists one item twice."""
    torch.manual_seed(62)
    items = nn.Embedding(9, 5)
    baskets = torch.tensor([[0, 1, 2], [3, 4, 4], [5, 6, 7], [8, 0, 3]])
    opt = torch.optim.Adam(items.parameters(), lr=0.01)

    def step(i):
        b = baskets[i % 4]
        if fixed:
            b = b.unique()
        v = items(b)
        kernel = v @ v.T
        everything = items.weight.T @ items.weight + torch.eye(5)
        loss = torch.logdet(everything) - torch.logdet(kernel)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return items, step


# --------------------------------------------------------------------------- graphs


@fault(
    "pow-fraction-at-zero",
    "pow",
    step=1,
    steps=4,
    also=("div-by-zero", "zero-times-inf"),
    ops=("mul",),
)
def isolated_node(fixed):
    """Symmetric normalisation D^-1/2 A D^-1/2; the second graph has a node without edges."""
    torch.manual_seed(71)
    adj = (torch.rand(3, 7, 7) < 0.5).float()
    adj = torch.maximum(adj, adj.transpose(1, 2))
    adj[:, 0, :] = adj[:, :, 0] = 1
    adj[1, 3, :] = adj[1, :, 3] = 0
    x = torch.randn(3, 7, 4)
    y = torch.randint(2, (3, 7))
    lin = nn.Linear(4, 2)
    opt = torch.optim.SGD(lin.parameters(), lr=0.1)

    def normalise(a):
        if fixed:
            a = a + torch.eye(7)
        d = a.sum(-1).pow(-0.5)  # ORIGIN
        return d[:, None] * a * d[None, :]  # ALSO

    def step(i):
        b = i % 3
        out = normalise(adj[b]) @ lin(x[b])
        loss = F.cross_entropy(out, y[b])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return lin, step


@fault("sqrt-at-zero", "sqrt", phase="backward", step=0, steps=4, also=("std-of-constant",))
def std_of_one_neighbour(fixed):
    """Neighbourhood standard deviation as sqrt(clamp(E[m^2] - E[m]^2)): zero where one neighbour speaks."""

    class StdAggregator(nn.Module):
        def __init__(self):
            super().__init__()
            self.msg = nn.Linear(3, 4)
            self.out = nn.Linear(8, 1)

        def forward(self, x, src, dst, n):
            m = self.msg(x)[src]
            count = torch.zeros(n).index_add(0, dst, torch.ones(len(dst))).clamp(min=1)[:, None]
            mean = torch.zeros(n, 4).index_add(0, dst, m) / count
            second = torch.zeros(n, 4).index_add(0, dst, m * m) / count
            var = (second - mean * mean).clamp(min=0)
            std = torch.sqrt(var + 1e-5 if fixed else var)  # ORIGIN
            return self.out(torch.cat([mean, std], -1)).squeeze(-1)

    torch.manual_seed(72)
    model = StdAggregator()
    src = torch.tensor([0, 1, 2, 3, 4, 0, 2, 5])
    dst = torch.tensor([1, 2, 0, 0, 0, 2, 3, 4])
    x, y = torch.randn(6, 3), torch.randn(6)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(i):
        loss = F.mse_loss(model(x, src, dst, 6), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return model, step


# --------------------------------------------------------------------------- loops and optimizers


@fault(
    "scaler-misuse",
    "_foreach_mul_",
    phase="optimizer",
    step=0,
    steps=5,
    ops=("mul_", "clip_grad_norm_", "_foreach_norm", "linalg_vector_norm"),
)
def clip_then_unscale(fixed):
    """PPO update in float16: gradients are clipped to norm one while still multiplied by the loss scale."""
    torch.manual_seed(81)
    actor = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    obs, act = torch.randn(32, 5), torch.randint(3, (32,))
    adv = torch.randn(32)
    with torch.no_grad():
        old = actor(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
    opt = torch.optim.SGD(actor.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def step(i):
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = actor(obs)
        logp = logits.float().log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        ratio = (logp - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)  # ORIGIN
        scaler.step(opt)  # ALSO
        scaler.update()
        return loss

    return actor, step


@fault(
    "absorbed-update",
    "lerp_",
    phase="optimizer",
    step=0,
    steps=6,
    ops=("_foreach_lerp_", "add_", "copy_"),
)
def polyak_in_bfloat16(fixed):
    """The target network follows with tau = 0.002; in bfloat16 each move is less than half a unit in the last place."""
    torch.manual_seed(82)
    both = nn.ModuleDict({k: nn.Linear(4, 3) for k in ("online", "target")})
    with torch.no_grad():
        for p in both["online"].parameters():
            p.copy_(
                torch.where(torch.rand_like(p) < 0.5, -1.0, 1.0) * (0.2 + 0.3 * torch.rand_like(p))
            )
    both["target"].load_state_dict(both["online"].state_dict())
    both["target"].requires_grad_(False)
    if not fixed:
        both["target"].bfloat16()
    s, s2 = torch.randn(24, 4), torch.randn(24, 4)
    a, r = torch.randint(3, (24, 1)), torch.rand(24)
    opt = torch.optim.Adam(both["online"].parameters(), lr=5e-3)

    def step(i):
        with torch.no_grad():
            nxt = both["target"](s2.to(both["target"].weight.dtype)).float().amax(-1)
        q = both["online"](s).gather(1, a).squeeze(1)
        loss = F.smooth_l1_loss(q, r + 0.9 * nxt)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for t, p in zip(both["target"].parameters(), both["online"].parameters(), strict=False):
                t.lerp_(p.to(t.dtype), 0.002)  # ORIGIN
        return loss

    return both, step


@fault(
    "optimizer-eps-underflow",
    "addcdiv_",
    phase="optimizer",
    step=0,
    steps=4,
    also=("eps-underflow", "div-by-zero", "optimizer-arithmetic"),
    ops=("_foreach_addcdiv_", "div", "_foreach_div_"),
)
def half_entities(fixed):
    """Knowledge-graph embeddings kept in float16; Adam's 1e-8 is zero there, and so is the gradient of unseen entities."""
    torch.manual_seed(83)
    dtype = torch.float32 if fixed else torch.float16
    entity = nn.Parameter((torch.randn(10, 6) * 0.3).to(dtype))
    relation = nn.Parameter((torch.randn(2, 6) * 0.3).to(dtype))
    heads, tails = torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5, 6, 0])
    rel = torch.tensor([0, 1, 0, 1])
    opt = torch.optim.Adam([entity, relation], lr=1e-2)

    def step(i):
        score = (
            -(entity[heads].float() + relation[rel].float() - entity[tails].float()).abs().sum(-1)
        )
        corrupt = (
            -(entity[heads].float() + relation[rel].float() - entity[tails.roll(1)].float())
            .abs()
            .sum(-1)
        )
        loss = F.softplus(corrupt - score).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = {"entity": entity, "relation": relation}
    return None, step


@fault(
    "optimizer-arithmetic",
    "div",
    phase="optimizer",
    step=0,
    steps=4,
    also=("div-by-zero", "zero-times-inf", "norm-at-zero"),
    ops=("mul", "mul_", "add_"),
)
def layerwise_trust(fixed):
    """A hand-written LARS divides by the gradient's norm; behind a zero-initialised head there is no gradient yet."""

    class Lars(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    w, g = p.norm(), p.grad.norm()
                    if fixed:
                        trust = torch.where((w > 0) & (g > 0), w / g.clamp_min(1e-12), 1.0)
                    else:
                        trust = torch.where(w > 0, w / g, 1.0)  # ORIGIN
                    p.sub_(group["lr"] * trust * p.grad)  # ALSO

    torch.manual_seed(84)
    adj = torch.eye(6) * 0.5 + torch.eye(6).roll(1, 0) * 0.5
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    first, head = nn.Linear(4, 8), nn.Linear(8, 3)
    nn.init.zeros_(head.weight)
    model = nn.ModuleList([first, head])
    opt = Lars(model.parameters(), lr=0.05)

    def step(i):
        h = F.relu(adj @ first(x))
        loss = F.cross_entropy(adj @ head(h), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return model, step


# --------------------------------------------------------------------------- healthy: survival


@healthy(
    "risk sets by -inf masks and logsumexp; every event is in its own risk set, so no row is empty",
    steps=6,
)
def risk_set_by_mask(fixed):
    torch.manual_seed(101)
    x, t = torch.randn(30, 4), torch.rand(30)
    d = torch.rand(30) < 0.5
    net = nn.Linear(4, 1, bias=False)
    outside = t[None, :] < t[:, None]

    def loss(i):
        eta = net(x).squeeze(-1)
        table = eta[None, :].expand(30, 30).masked_fill(outside, -math.inf)
        return (table.logsumexp(1) - eta)[d].mean()

    return net, train(net.parameters(), loss, lr=0.3)


@healthy(
    "missing follow-up is NaN in the table and taken out by isfinite before anything is computed",
    steps=6,
)
def lost_to_follow_up(fixed):
    torch.manual_seed(102)
    x = torch.randn(60, 3)
    t = torch.rand(60) + 0.1
    t[::7] = math.nan
    loader = DataLoader(
        TensorDataset(x, t), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=0.02)
    batches = iter([b for _ in range(3) for b in loader])

    def step(i):
        xb, tb = next(batches)
        ok = torch.isfinite(tb)
        log_rate = net(xb[ok]).squeeze(-1)
        loss = (log_rate.exp() * tb[ok] - log_rate).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy(
    "G falls to zero only after the last event; 1/G is infinite there and where() drops it, and G carries no gradient",
    steps=6,
)
def censoring_tail_dropped(fixed):
    torch.manual_seed(103)
    n = 20
    x = torch.randn(n, 3)
    event = (torch.arange(n) % 3 != 1).float()
    event[-1] = 0.0
    g_hat = torch.cumprod(1 - (1 - event) / torch.arange(n, 0, -1), 0)
    inverse = torch.where(event > 0, 1 / g_hat, 0.0)
    target = (torch.arange(n) > 9).float()
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.5, nesterov=True, momentum=0.5)

    def step(i):
        opt.zero_grad()
        p = net(x).sigmoid().squeeze(1)
        brier = (inverse * (p - target).square()).mean()
        brier.backward()
        opt.step()
        return brier.detach()

    return net, step


@healthy(
    "piecewise exponential likelihood summed over person-days: the loss is millions and falls steadily",
    steps=8,
)
def person_days(fixed):
    torch.manual_seed(104)
    exposure = torch.rand(12, 5) * 2e5
    events = torch.poisson(exposure * 0.02)
    log_rate = nn.Parameter(torch.full((12, 5), -2.0))
    opt = torch.optim.Adam([log_rate], lr=0.1)

    def step(i):
        opt.zero_grad()
        nll = (log_rate.exp() * exposure - events * log_rate).sum()
        nll.backward()
        opt.step()
        return nll

    step.parameters = {"log_rate": log_rate}
    return None, step


# --------------------------------------------------------------------------- healthy: transport


@healthy(
    "Sinkhorn in logs; two points have no mass, so their potential is -inf and their row of the plan exactly zero",
    steps=5,
)
def sinkhorn_without_mass(fixed):
    torch.manual_seed(105)
    a = torch.tensor([0.25, 0.25, 0.0, 0.5, 0.0])
    b = torch.full((4,), 0.25)
    x = torch.randn(5, 2)
    y = nn.Parameter(torch.randn(4, 2))
    opt = torch.optim.Adam([y], lr=0.05)

    def step(i):
        cost = torch.cdist(x, y).square()
        g = torch.zeros(4)
        for _ in range(8):
            f = a.log() - torch.logsumexp(g - cost / 0.3, dim=1)
            g = b.log() - torch.logsumexp(f[:, None] - cost / 0.3, dim=0)
        plan = torch.exp(f[:, None] + g - cost / 0.3)
        loss = (plan * cost).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"y": y}
    return None, step


@healthy(
    "forbidden assignments have infinite cost: their score is -inf, and the cost that is paid is summed over the others",
    steps=6,
)
def forbidden_pairs(fixed):
    torch.manual_seed(106)
    left, right = nn.Parameter(torch.randn(6, 3)), torch.randn(6, 3)
    allowed = torch.rand(6, 6) < 0.6
    allowed.fill_diagonal_(True)
    wall = torch.zeros(6, 6).masked_fill_(~allowed, torch.inf)
    opt = torch.optim.SGD([left], lr=0.2)

    def step(i):
        opt.zero_grad()
        base = (left[:, None] - right).abs().mean(-1)
        attention = torch.softmax(-(base + wall) * 4, dim=1)
        paid = (attention[allowed] * base[allowed]).sum() / 6
        paid.backward()
        opt.step()
        return paid

    step.parameters = {"left": left}
    return None, step


@healthy(
    "the Gibbs kernel of far pairs is zero or subnormal, but each row has near partners and the scalings stay moderate",
    steps=5,
)
def kernel_with_zeros(fixed):
    torch.manual_seed(107)
    grid = torch.linspace(-12, 12, 25)
    kernel = torch.exp(-((grid[:, None] - grid) ** 2) / 2.5)
    logits = nn.Parameter(torch.randn(25) * 0.1)
    goal = torch.softmax(-(grid**2) / 40, 0)
    opt = torch.optim.Adam([logits], lr=0.1)

    def step(i):
        p = logits.softmax(0)
        u = torch.ones(25)
        for _ in range(6):
            v = goal / (kernel.T @ u)
            u = p / (kernel @ v)
        loss = 2.5 * (p * u.log()).sum() + 2.5 * (goal * v.log()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"logits": logits}
    return None, step


# --------------------------------------------------------------------------- healthy: curved spaces


@healthy(
    "points are pulled back inside the ball after each step; some sit at the rim with large but bounded distances",
    steps=8,
)
def ball_with_retraction(fixed):
    torch.manual_seed(108)
    emb = nn.Parameter(
        F.normalize(torch.randn(8, 2), dim=-1) * torch.linspace(0.1, 0.995, 8)[:, None]
    )
    pairs = torch.combinations(torch.arange(8))
    goal = torch.rand(28) * 3 + 0.5

    def step(i):
        u, v = emb[pairs[:, 0]], emb[pairs[:, 1]]
        gap = (u - v).square().sum(-1)
        z = 2 * gap / ((1 - u.square().sum(-1)) * (1 - v.square().sum(-1)))
        dist = torch.log1p(z + torch.sqrt(z * (z + 2)))
        loss = (dist - goal).square().mean()
        (grad,) = torch.autograd.grad(loss, [emb])
        with torch.no_grad():
            metric = ((1 - emb.square().sum(-1, keepdim=True)) / 2) ** 2
            emb.sub_(0.1 * metric * grad)
            norm = emb.norm(dim=-1, keepdim=True)
            emb.copy_(torch.where(norm > 0.995, emb / norm * 0.995, emb))
        emb.grad = grad
        return loss

    step.parameters = {"emb": emb}
    return None, step


@healthy(
    "slerp with a guarded angle: parallel ends get a linear mix, and acos sees only clamped and replaced cosines",
    steps=6,
)
def slerp_guarded(fixed):
    torch.manual_seed(109)
    a = nn.Parameter(torch.randn(9, 3))
    b = F.normalize(torch.randn(9, 3), dim=-1)
    with torch.no_grad():
        a[4] = b[4]
    mid = F.normalize(torch.randn(9, 3), dim=-1)
    opt = torch.optim.SGD([a], lr=0.1)

    def step(i):
        u = F.normalize(a, dim=-1)
        cos = (u * b).sum(-1, keepdim=True)
        near = cos.abs() > 0.9995
        theta = torch.acos(torch.where(near, 0.0, cos))
        arc = (torch.sin(0.5 * theta) * u + torch.sin(0.5 * theta) * b) / torch.sin(theta)
        point = torch.where(near, 0.5 * (u + b), arc)
        loss = (point - mid).square().sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"a": a}
    return None, step


@healthy(
    "chordal distances of all pairs by cdist, the zero diagonal too: torch takes the subgradient 0 there",
    steps=6,
)
def repulsion_on_the_sphere(fixed):
    torch.manual_seed(110)
    raw = nn.Parameter(torch.randn(12, 3))
    opt = torch.optim.RMSprop([raw], lr=0.02)

    def step(i):
        opt.zero_grad()
        p = raw / raw.norm(dim=1, keepdim=True)
        energy = torch.exp(-3 * torch.cdist(p, p)).sum() - 12
        energy.backward()
        opt.step()
        return energy

    step.parameters = {"raw": raw}
    return None, step


# --------------------------------------------------------------------------- healthy: rendering


@healthy(
    "the last sample of each ray reaches to 1e10: its transmittance is exp(-1e10 sigma) = 0, as in every NeRF",
    steps=6,
)
def infinite_last_bin(fixed):
    torch.manual_seed(111)
    field = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 4))
    depth = torch.linspace(0.1, 2, 12)
    delta = torch.cat([depth[1:] - depth[:-1], torch.tensor([1e10])])
    offset = torch.rand(6, 1, 1)
    pixels = torch.rand(6, 3)
    opt = torch.optim.Adam(field.parameters(), lr=1e-2)

    def step(i):
        out = field(depth[None, :, None] + offset)
        sigma, rgb = F.softplus(out[..., 0]), out[..., 1:].sigmoid()
        alpha = 1 - torch.exp(-sigma * delta)
        clear = torch.cumprod(torch.cat([torch.ones(6, 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        loss = F.mse_loss(((clear * alpha)[..., None] * rgb).sum(1), pixels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return field, step


@healthy("the sky is infinitely far: its disparity is 1/inf = 0, a number like any other", steps=6)
def sky_disparity(fixed):
    torch.manual_seed(112)
    depth = torch.rand(4, 1, 8, 8) * 20 + 1
    depth[:, :, :2] = torch.inf
    image = torch.cat(
        [depth.reciprocal() + 0.05 * torch.randn(4, 1, 8, 8), torch.rand(4, 2, 8, 8)], 1
    )
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1))
    return net, train(
        net.parameters(),
        lambda i: F.l1_loss(net(image), 1 / depth),
        lr=3e-3,
        optimizer=torch.optim.Adam,
    )


@healthy(
    "a depth buffer begins at inf; pixels no point falls on stay so and are left out of the loss by isfinite",
    steps=6,
)
def z_buffer(fixed):
    torch.manual_seed(113)
    points = torch.rand(40, 3)
    shift = nn.Parameter(torch.zeros(1))
    pixel = (points[:, 0] * 6).long() * 6 + (points[:, 1] * 6).long()
    seen = torch.full((36,), torch.inf).scatter_reduce(0, pixel, points[:, 2] + 0.3, "amin")
    opt = torch.optim.SGD([shift], lr=0.2)

    def step(i):
        buffer = torch.full((36,), torch.inf).scatter_reduce(0, pixel, points[:, 2] + shift, "amin")
        hit = torch.isfinite(buffer) & torch.isfinite(seen)
        loss = (buffer[hit] - seen[hit]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"shift": shift}
    return None, step


@healthy(
    "the sRGB curve with both branches kept in their domain by a where before the power as well",
    steps=6,
)
def srgb_two_wheres(fixed):
    torch.manual_seed(114)
    net = nn.Linear(2, 3)
    xy, photo = torch.rand(40, 2) * 2 - 1, torch.rand(40, 3)
    opt = torch.optim.Adam(net.parameters(), lr=0.02)

    def step(i):
        lin = F.leaky_relu(net(xy))
        bright = lin > 0.0031308
        inside = torch.where(bright, lin, torch.ones_like(lin))
        out = torch.where(bright, 1.055 * inside.pow(1 / 2.4) - 0.055, 12.92 * lin)
        loss = F.l1_loss(out, photo)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


# --------------------------------------------------------------------------- healthy: policies and preferences


@healthy(
    "float16 under a scaler that begins at 2**19: the first steps overflow and are skipped until the scale fits",
    steps=12,
)
def scaler_warms_up(fixed):
    torch.manual_seed(121)
    critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    obs, ret = torch.randn(32, 6), torch.randn(32) * 3
    opt = torch.optim.SGD(critic.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=100)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            v = critic(obs).squeeze(-1)
        loss = F.mse_loss(v.float(), ret)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(critic.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return critic, step


@healthy(
    "illegal actions have logit -inf and probability zero; every state has a legal one, and Categorical's entropy knows masks",
    steps=6,
)
def masked_policy_entropy(fixed):
    torch.manual_seed(122)
    policy = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 6))
    obs = torch.randn(300, 5)
    legal = torch.rand(300, 6) < 0.4
    legal[:, 0] = True
    adv = obs @ torch.randn(5, 6)
    opt = torch.optim.Adam(policy.parameters(), lr=5e-3)

    def step(i):
        dist = torch.distributions.Categorical(logits=torch.where(legal, policy(obs), -torch.inf))
        g = torch.Generator().manual_seed(i)
        act = torch.multinomial(dist.probs.detach(), 1, generator=g)
        loss = (
            -(dist.log_prob(act.squeeze(1)) * adv.gather(1, act).squeeze(1)).mean()
            - 0.05 * dist.entropy().mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return policy, step


@healthy(
    "squashed Gaussian by the softplus formula: actions are exactly 1 in float32 and their log-density is right all the same",
    steps=6,
)
def saturated_actions(fixed):
    torch.manual_seed(123)
    actor = nn.Linear(4, 4)
    with torch.no_grad():
        actor.bias[0] = 9.5
    obs = torch.randn(256, 4)
    opt = torch.optim.Adam(actor.parameters(), lr=0.02)

    def step(i):
        mean, log_std = actor(obs).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn(256, 2, generator=torch.Generator().manual_seed(i))
        raw = mean + log_std.exp() * noise
        logp = (
            -0.5 * noise**2 - log_std - 0.919 - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        ).sum(-1)
        q = -(torch.tanh(raw) - 0.3).square().sum(-1)
        loss = (0.2 * logp - q).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return actor, step


@healthy(
    "V-trace: log-ratios of several hundred are cut before exp, so their weights are one by design",
    steps=6,
)
def truncated_importance(fixed):
    torch.manual_seed(124)
    net = nn.Linear(3, 4)
    obs, act = torch.randn(20, 3), torch.randint(4, (20,))
    behaviour = -torch.rand(20) * 300
    ret = torch.randn(20)
    value = nn.Linear(3, 1)
    model = nn.ModuleList([net, value])
    opt = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.99, eps=1e-5)

    def step(i):
        logp = net(obs).log_softmax(-1)[torch.arange(20), act]
        rho = (logp.detach() - behaviour).clamp(max=0).exp()
        v = value(obs).squeeze(-1)
        td = ret - v
        loss = -(rho * td.detach() * logp).mean() + 0.5 * (rho * td.square()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return model, step


@healthy(
    "DPO by logsigmoid with length-masked sums; some pairs are won by hundreds and rightly send no gradient any more",
    steps=6,
)
def settled_preferences(fixed):
    torch.manual_seed(125)
    head = nn.Linear(8, 10)
    state = torch.randn(2, 12, 5, 8)
    token = torch.randint(10, (2, 12, 5))
    length = torch.randint(1, 6, (2, 12))
    mask = torch.arange(5) < length[..., None]
    ref = torch.full((2, 12), 0.0)
    ref[0], ref[1] = -12.0, -12.0
    ref[0, :4] = -900.0
    opt = torch.optim.AdamW(head.parameters(), lr=0.01, weight_decay=0.0)

    def step(i):
        logp = head(state).log_softmax(-1).gather(-1, token[..., None]).squeeze(-1)
        total = torch.where(mask, logp, 0.0).sum(-1)
        won, lost = (total - ref).unbind(0)
        loss = -F.logsigmoid(0.5 * (won - lost)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return head, step


@healthy(
    "a reward head on a frozen body; the adapter's second factor begins at zero, so the first learns from step two on",
    steps=6,
)
def reward_adapter(fixed):
    torch.manual_seed(126)

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 10).requires_grad_(False)
            self.down = nn.Parameter(torch.randn(6, 2) * 0.4)
            self.up = nn.Parameter(torch.zeros(2, 10))
            self.head = nn.Linear(10, 1, bias=False)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x) + x @ self.down @ self.up)).squeeze(-1)

    model = Adapted()
    chosen, rejected = torch.randn(20, 6) + 0.3, torch.randn(20, 6)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)

    def step(i):
        opt.zero_grad()
        loss = F.softplus(model(rejected) - model(chosen)).mean()
        loss.backward()
        opt.step()
        return loss

    return model, step


# --------------------------------------------------------------------------- healthy: densities


@healthy(
    "pixels of 0 and 255 are dequantised and squeezed before the logit, so the ends are far but finite",
    steps=6,
)
def logit_of_pixels(fixed):
    torch.manual_seed(127)
    raw = torch.randint(0, 256, (32, 6)).float()
    raw[:8] = 0.0
    raw[8:12] = 255.0
    squeezed = 1e-4 + (1 - 2e-4) * (raw + torch.rand(32, 6)) / 256
    z0 = torch.logit(squeezed)
    shift, log_scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
    opt = torch.optim.Adam([shift, log_scale], lr=0.05)

    def step(i):
        z = (z0 - shift) * torch.exp(-log_scale)
        log_det = -log_scale.sum() - (squeezed.log() + torch.log1p(-squeezed)).sum(-1)
        loss = (0.5 * z.square().sum(-1) - log_det).mean() / (6 * math.log(2))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"shift": shift, "log_scale": log_scale}
    return None, step


@healthy(
    "free bits: a latent whose KL is under the floor gets no pull from the prior, only from the reconstruction",
    steps=6,
)
def free_bits(fixed):
    torch.manual_seed(128)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(8, 6), nn.Linear(3, 8)
            nn.init.normal_(self.enc.weight, std=0.02)

        def forward(self, x, noise):
            mu, logvar = self.enc(x).chunk(2, -1)
            z = mu + torch.exp(0.5 * logvar.clamp(-10, 10)) * noise
            kl = 0.5 * (mu**2 + logvar.exp() - 1 - logvar).mean(0)
            return (self.dec(z) - x).square().sum(-1).mean() + kl.clamp(min=0.25).sum()

    vae, x = Vae(), torch.randn(40, 8)
    noise = torch.randn(40, 3)
    return vae, train(vae.parameters(), lambda i: vae(x, noise), lr=0.03)


@healthy(
    "a left-to-right HMM in logs: forbidden moves are -1e9, which float32 adds for a dozen steps without any trouble",
    steps=5,
)
def left_to_right(fixed):
    torch.manual_seed(129)
    mean = nn.Parameter(torch.tensor([-0.5, 0.0, 0.5, 1.0]))
    stay = nn.Parameter(torch.zeros(4))
    obs = torch.linspace(-2, 2, 12) + 0.2 * torch.randn(12)
    opt = torch.optim.Adam([mean, stay], lr=0.1)

    def step(i):
        trans = torch.full((4, 4), -1e9)
        idx = torch.arange(4)
        trans = trans.index_put((idx, idx), F.logsigmoid(stay))
        trans = trans.index_put((idx[:-1], idx[1:]), F.logsigmoid(-stay[:-1]))
        alpha = torch.tensor([0.0, -1e9, -1e9, -1e9]) - 0.5 * (obs[0] - mean) ** 2
        for x in obs[1:]:
            alpha = torch.logsumexp(alpha[:, None] + trans, 0) - 0.5 * (x - mean) ** 2
        loss = -alpha[-1] / 12
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"mean": mean, "stay": stay}
    return None, step


@healthy(
    "a mixture whose third component is far from all data: its responsibilities are zero, and the log-likelihood does not need it",
    steps=6,
)
def far_component(fixed):
    torch.manual_seed(130)
    x = torch.cat([torch.randn(20) - 3, torch.randn(20) + 3])
    logits = nn.Parameter(torch.zeros(3))
    means = nn.Parameter(torch.tensor([-1.0, 1.0, 40.0]))
    opt = torch.optim.SGD([logits, means], lr=0.2)

    def step(i):
        logp = logits.log_softmax(0) - 0.5 * (x[:, None] - means) ** 2 - 0.919
        loss = -torch.logsumexp(logp, 1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"logits": logits, "means": means}
    return None, step


@healthy(
    "the first Cholesky of a noiseless kernel with a repeated input fails by its info flag, and the one with jitter is used",
    steps=5,
)
def jitter_when_needed(fixed):
    torch.manual_seed(131)
    x = torch.rand(14)
    x[5] = x[4]
    y = torch.sin(6 * x)
    log_len = nn.Parameter(torch.tensor(-1.0))
    log_amp = nn.Parameter(torch.tensor(1.5))
    opt = torch.optim.Adam([log_len, log_amp], lr=0.05)

    def factor(k):
        jitter = 0.0
        while True:
            chol, info = torch.linalg.cholesky_ex(k + jitter * torch.eye(14))
            if int(info) == 0 and float(chol.detach().diagonal().min()) > 1e-3:
                return chol
            jitter = max(10 * jitter, 1e-4)

    def step(i):
        k = torch.exp(2 * log_amp - 0.5 * (x[:, None] - x) ** 2 * torch.exp(-2 * log_len))
        chol = factor(k)
        a = torch.cholesky_solve(y[:, None], chol)
        loss = (0.5 * y @ a.squeeze(1) + chol.diagonal().log().sum()) / 14
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"log_len": log_len, "log_amp": log_amp}
    return None, step


# --------------------------------------------------------------------------- healthy: graphs


@healthy(
    "degree to the power -1/2 is inf for nodes without edges and set to 0 at once; degrees carry no gradient",
    steps=6,
)
def lonely_nodes(fixed):
    torch.manual_seed(132)
    edge = torch.tensor([[0, 1, 1, 2, 3, 0, 5], [1, 0, 2, 1, 0, 3, 1]])
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    own, nbr = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)
    model = nn.ModuleList([own, nbr])
    opt = torch.optim.Adam(model.parameters(), lr=0.05)

    def step(i):
        src, dst = edge
        deg = torch.zeros(8).index_add_(0, dst, torch.ones(7))
        inv = deg.pow(-0.5)
        inv.masked_fill_(inv == math.inf, 0.0)
        message = (inv[src] * inv[dst])[:, None] * nbr(x)[src]
        loss = F.cross_entropy(own(x).index_add(0, dst, message), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return model, step


@healthy(
    "edge softmax with a running maximum that begins at -inf; nodes without incoming edges keep it and nobody reads it",
    steps=6,
)
def edge_softmax(fixed):
    torch.manual_seed(133)
    src = torch.tensor([0, 1, 2, 3, 4, 5, 2])
    dst = torch.tensor([1, 2, 1, 2, 0, 0, 4])
    x, y = torch.randn(6, 3), torch.randn(6)
    att, val = nn.Linear(6, 1), nn.Linear(3, 1)
    model = nn.ModuleDict({"att": att, "val": val})
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(i):
        score = F.leaky_relu(att(torch.cat([x[src], x[dst]], 1)).squeeze(1))
        top = torch.full((6,), -math.inf).scatter_reduce(0, dst, score.detach(), "amax")
        weight = (score - top[dst]).exp()
        total = torch.zeros(6).index_add(0, dst, weight)
        share = weight / total[dst]
        out = torch.zeros(6).index_add(0, dst, share * val(x).squeeze(1)[src])
        loss = F.mse_loss(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return model, step
