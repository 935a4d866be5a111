"""Quantisation, mixed precision, everyday deep learning, own optimizers and loops."""

import math

import numpy as np
import torch
from programs import fault, healthy, train
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


def rnd(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rint(seed, hi, *shape):
    return torch.randint(0, hi, shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- quantisation


@fault("custom-backward", "div", "backward", step=2, steps=5, also=("div-by-zero",))
def clipping_level_learned_from_the_clipped(fixed):
    """PACT; the gradient of the level is averaged over the clipped activations, and a quiet batch has none."""

    class Pact(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.save_for_backward(x, alpha)
            y = torch.minimum(x.clamp(min=0), alpha)
            step = alpha / 15
            return torch.round(y / step) * step

        @staticmethod
        def backward(ctx, grad):
            x, alpha = ctx.saved_tensors
            over = x >= alpha
            inside = (x > 0) & ~over
            n = over.sum()
            if fixed:
                n = n.clamp(min=1)
            return grad * inside, (grad * over).sum() / n  # ALSO

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 10)
            self.alpha = nn.Parameter(torch.tensor(1.5))
            self.b = nn.Linear(10, 3)

        def forward(self, x):
            h = self.a(x)
            q = Pact.apply(h, self.alpha)  # ORIGIN
            return self.b(q)

    torch.manual_seed(10)
    net = Net()
    volume = [3.0, 3.0, 0.05, 3.0, 3.0]
    x, y = rnd(11, 5, 16, 6), rint(12, 3, 5, 16)
    return net, train(
        net.parameters(), lambda i: F.cross_entropy(net(x[i] * volume[i]), y[i]), lr=1e-2
    )


@fault("dead-gradient", "round", "backward", step=0, steps=6, ops=("clamp",))
def rounding_without_a_way_through(fixed):
    torch.manual_seed(20)

    def fake_quant(w, bits=4):
        top = 2 ** (bits - 1) - 1
        s = w.detach().abs().amax() / top
        q = torch.round(w / s).clamp(-top - 1, top)  # ORIGIN
        dq = q * s
        return w + (dq - w).detach() if fixed else dq

    class QLinear(nn.Linear):
        def forward(self, x):
            return F.linear(x, fake_quant(self.weight), self.bias)

    net = nn.Sequential(QLinear(8, 12), nn.ReLU(), QLinear(12, 2))
    x = rnd(21, 24, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y), lr=5e-2)


@fault(
    "dead-gradient",
    "fake_quantize_per_tensor_affine",
    "backward",
    step=0,
    steps=6,
    ops=(
        "fake_quantize_per_tensor_affine_cachemask",
        "fake_quantize_per_tensor_affine_cachemask_backward",
        "mul",
    ),
)
def a_scale_fit_for_other_weights(fixed):
    """The scale was calibrated on 0..1 activations in steps of 1/(255*127); every weight lies beyond the last level."""
    torch.manual_seed(30)
    lin = nn.Linear(5, 7, bias=False)
    with torch.no_grad():
        lin.weight.copy_(0.1 + rnd(31, 7, 5).abs())
    out = nn.Linear(7, 1)
    scale = 1.0 / 127 * 4 if fixed else 1.0 / 255 / 127
    x, y = rnd(32, 20, 5), rnd(33, 20, 1)

    def loss(i):
        w = torch.fake_quantize_per_tensor_affine(lin.weight, scale, 0, -128, 127)  # ORIGIN
        return F.mse_loss(out(torch.tanh(x @ w.T)), y)

    return nn.ModuleList([lin, out]), train([*lin.parameters(), *out.parameters()], loss, lr=5e-2)


@fault("dtype-overflow", "_to_copy", step=2, steps=5)
def eight_bits_that_do_not_saturate(fixed):
    """Activations held in e5m2 under a fixed scale; one recording is eight times louder."""

    def to_fp8(t, scale):
        t = t * scale
        if fixed:
            t = t.clamp(-57344, 57344)
        t8 = t.detach().to(torch.float8_e5m2)  # ORIGIN
        back = t8.to(torch.float32)  # ALSO
        return (t + (back - t).detach()) / scale

    torch.manual_seed(40)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))
    loader = DataLoader(
        TensorDataset(
            rnd(41, 40, 6) * torch.tensor([1.0, 1, 8, 1, 1]).repeat_interleave(8)[:, None],
            rint(42, 4, 40),
        ),
        batch_size=8,
    )
    batches = list(loader)

    def loss(i):
        x, y = batches[i]
        x = to_fp8(x, 8192.0)
        return F.cross_entropy(net(x), y)

    return net, train(net.parameters(), loss, lr=1e-3, optimizer=torch.optim.AdamW)


@fault("div-by-zero", "div", step=1, steps=4, also=("zero-times-inf",), ops=("reciprocal", "mul"))
def amax_of_a_block_of_silence(fixed):
    """Block scaling: 448 / amax, and one block of the second batch is all padding."""
    torch.manual_seed(50)
    proj = nn.Linear(32, 8)

    def block_quant(x, block=8):
        shape = x.shape
        x = x.reshape(-1, block)
        amax = x.abs().amax(dim=1, keepdim=True)
        if fixed:
            amax = amax.clamp(min=1e-12)
        s = 448.0 / amax  # ORIGIN
        scaled = x * s  # ALSO
        q = scaled.to(torch.float8_e4m3fn).to(x.dtype)
        return (q / s).reshape(shape)

    x = rnd(51, 4, 6, 32)
    x[1, 2, 24:] = 0
    y = rnd(52, 4, 6, 8)
    return proj, train(
        proj.parameters(), lambda i: F.smooth_l1_loss(proj(block_quant(x[i])), y[i]), lr=1e-2
    )


@fault(
    "dtype-underflow",
    "_to_copy",
    "backward",
    step=0,
    steps=6,
    ops=("to", "copy_", "mul"),
    also=("dead-gradient",),
)
def gradients_squeezed_into_e5m2(fixed):
    """The gradient is cast without a scale; a mean over 65536 outputs leaves nothing above 2^-17."""

    class Fp8Matmul(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.t()

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            s = 57344 / 2 / g.abs().max().clamp(min=1e-30) if fixed else torch.ones(())
            g8 = (g * s).to(torch.float8_e5m2)  # ALSO
            g = g8.to(torch.float32) / s
            return g @ w, g.t() @ x

    torch.manual_seed(60)
    w1 = nn.Parameter(rnd(61, 128, 8) * 0.3)
    b1 = nn.Parameter(torch.zeros(128))
    x = rnd(62, 512, 8)
    target = torch.sin(x @ rnd(63, 8, 128))

    def loss(i):
        out = Fp8Matmul.apply(x, w1)  # ORIGIN
        return 0.01 * F.mse_loss(out + b1, target)  # the auxiliary head weighs a hundredth

    return None, train([w1, b1], loss, lr=1000.0)


@fault(
    "std-of-constant",
    "sqrt",
    "backward",
    step=0,
    steps=3,
    also=("sqrt-at-zero",),
    ops=("var", "div", "mul"),
)
def scale_from_the_spread_of_each_filter(fixed):
    """Statistics-aware binning: one filter was initialised to a constant (a box blur)."""
    torch.manual_seed(70)

    class SawbConv(nn.Conv2d):
        def forward(self, x):
            flat = self.weight.flatten(1)
            spread = (flat.var(1) + (1e-8 if fixed else 0)).sqrt()  # ORIGIN
            s = (3.2 * spread + flat.abs().mean(1))[:, None, None, None] / 7
            w = self.weight / s
            w = (w + (w.round().clamp(-8, 7) - w).detach()) * s
            return F.conv2d(x, w, self.bias, padding=1)

    conv = SawbConv(1, 4, 3)
    with torch.no_grad():
        conv.weight[0].fill_(0.125)
    head = nn.Linear(4, 2)
    x, y = rnd(71, 8, 1, 6, 6), rint(72, 2, 8)
    net = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y), lr=1e-2)


# ---------------------------------------------------------------- mixed precision


@fault(
    "dtype-underflow",
    "_to_copy",
    "backward",
    step=0,
    steps=6,
    also=("dead-gradient",),
    ops=("mse_loss", "div", "mul", "mm", "mse_loss_backward", "addmm", "_softmax", "linear"),
)
def half_a_network_and_no_scaler(fixed):
    """A mean over 65536 outputs that weighs 1e-4: the gradient of each is below 2^-25, the way back through float16 loses all."""
    torch.manual_seed(90)
    enc = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 256)).half()
    masters = [p.detach().float().clone().requires_grad_() for p in enc.parameters()]
    opt = torch.optim.Adam(masters, lr=1e-2)
    x = rnd(91, 256, 4)
    y = torch.cos(x @ rnd(92, 4, 256))
    scale = 65536.0 if fixed else 1.0

    def step(i):
        enc.zero_grad()
        out = enc(x.half())
        pred = out.float()  # ORIGIN
        loss = 1e-4 * F.mse_loss(pred, y)
        (loss * scale).backward()  # ALSO
        for m, p in zip(masters, enc.parameters(), strict=False):
            m.grad = p.grad.float() / scale
        opt.step()
        with torch.no_grad():
            for m, p in zip(masters, enc.parameters(), strict=False):
                p.copy_(m)
        return loss

    return enc, step


@fault(
    "loss-scale-overflow",
    "_to_copy",
    "backward",
    step=0,
    steps=4,
    also=("dtype-overflow",),
    ops=("mul", "nll_loss_backward"),
)
def a_scale_written_down_by_hand(fixed):
    torch.manual_seed(100)
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = rnd(101, 4, 10).half(), rint(102, 5, 4)
    SCALE = 2.0**10 if fixed else 2.0**20

    def step(i):
        opt.zero_grad(set_to_none=False)
        logits = net(x).float()  # ORIGIN
        loss = F.cross_entropy(logits, y)
        (loss * SCALE).backward()  # ALSO
        for p in net.parameters():
            p.grad.div_(SCALE)
        opt.step()
        return loss.detach()

    return net, step


@fault(
    "mask-overflow",
    "add",
    step=0,
    steps=3,
    also=("dtype-overflow", "softmax-all-masked"),
    ops=("_softmax", "softmax"),
)
def least_half_and_a_bias_of_distance(fixed):
    """finfo.min plus an ALiBi slope: what is masked overflows to -inf, and a padded sequence has nothing else."""
    torch.manual_seed(110)
    heads, d, n = 2, 8, 6
    emb, qkv, out = nn.Embedding(20, d), nn.Linear(d, 3 * d), nn.Linear(d, 20)
    ids = rint(111, 19, 3, n) + 1
    ids[0, 4:], ids[2, :] = 0, 0
    pos = torch.arange(n)
    alibi = (
        -((pos[None, :] - pos[:, None]).abs() + 1) * torch.tensor([8.0, 16.0])[:, None, None] * 4
    )

    def attend(h):
        q, k, v = qkv(h).view(3, n, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).half() / 2
        pad = (ids == 0)[:, None, None, :]
        if fixed:
            scores = (scores + alibi.half()).masked_fill(pad, torch.finfo(torch.half).min)
        else:
            scores = scores.masked_fill(pad, torch.finfo(torch.half).min)
            scores = scores + alibi.half()  # ORIGIN
        p = F.softmax(scores, -1)  # ALSO
        return (p.float() @ v).transpose(1, 2).reshape(3, n, d)

    def loss(i):
        h = emb(ids)
        return F.cross_entropy(out(h + attend(h)).flatten(0, 1), ids.flatten())

    net = nn.ModuleList([emb, qkv, out])
    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.Adam)


@fault("dtype-overflow", "bmm", step=1, steps=4, ops=("baddbmm", "matmul", "_softmax"))
def scores_before_they_are_scaled(fixed):
    """q k^T in float16 and only then divided by sqrt(d): one loud recording passes 65504."""
    torch.manual_seed(120)

    class Attention(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
            self.d = d

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            if fixed:
                with torch.autocast("cpu", enabled=False):
                    a = torch.bmm(q.float(), k.float().transpose(1, 2)) / self.d**0.5
            else:
                a = torch.bmm(q, k.transpose(1, 2)) / self.d**0.5  # ORIGIN
            return self.o(torch.bmm(a.softmax(-1), v))

    net = nn.ModuleDict({"att": Attention(), "head": nn.Linear(32, 4)})
    xs = rnd(121, 4, 3, 6, 32)
    xs[1, 2] *= 500
    y = rint(122, 4, 4, 3)

    def loss(i):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net["head"](net["att"](xs[i]).mean(1))
        return F.cross_entropy(out.float(), y[i])

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "optimizer-eps-underflow",
    "addcdiv_",
    "optimizer",
    step=0,
    steps=4,
    ops=("div", "addcdiv", "_foreach_addcdiv_", "add_", "div_", "_foreach_div_", "_foreach_add_"),
    also=("eps-underflow", "optimizer-arithmetic"),
)
def adam_on_a_half_embedding(fixed):
    """Rows that no batch has touched have moments of zero, and 1e-8 is zero in half."""
    torch.manual_seed(130)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 6)
            self.out = nn.Linear(6, 3)

        def forward(self, ids):
            return self.out(self.emb(ids).mean(1)).float()

    net = Tagger() if fixed else Tagger().half()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    ids, y = rint(131, 7, 8, 5), rint(132, 3, 8)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault(
    "absorbed-update",
    "add_",
    "optimizer",
    step=0,
    steps=8,
    ops=("_foreach_add_", "add", "sub_", "sub"),
)
def fine_tuning_in_brain_float(fixed):
    """lr 1e-5 on weights of 0.5..1: bfloat16 has eight bits."""
    torch.manual_seed(140)
    dt = torch.float32 if fixed else torch.bfloat16
    net = nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Linear(10, 1))
    for p in net.parameters():
        nn.init.uniform_(p, 0.5, 1.0)
    net.to(dt)  # ALSO
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)  # ALSO
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
    x, y = rnd(141, 32, 6), rnd(142, 32, 1)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x.to(dt)).float(), y)
        loss.backward()
        opt.step()  # ORIGIN
        sched.step()
        return loss

    return net, step


@fault(
    "scaler-misuse",
    "mul_",
    "optimizer",
    step=0,
    steps=6,
    ops=(
        "_foreach_mul_",
        "linalg_vector_norm",
        "stack",
        "mul",
        "clamp",
        "_foreach_norm",
        "reciprocal",
        "div",
    ),
)
def clipped_while_still_scaled(fixed):
    """max_norm 1 against gradients times 65536."""
    torch.manual_seed(150)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    x = rnd(151, 32, 8)
    y = (x.sum(1) > 0).long()

    def step(i):
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@fault(
    "scaler-misuse",
    "add_",
    "optimizer",
    step=0,
    steps=6,
    ops=("_foreach_add_", "mul"),
    also=("learning-rate",),
)
def a_step_past_the_scaler(fixed):
    """Scaled with the scaler, stepped without: an update 1024 times too large, and it is still finite."""
    torch.manual_seed(160)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    data = DataLoader(TensorDataset(rnd(161, 48, 1, 4, 4), rint(162, 3, 48)), batch_size=8)
    batches = list(data)

    def step(i):
        x, y = batches[i % len(batches)]
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = F.cross_entropy(out.float(), y)
        scaler.scale(loss).backward()  # ALSO
        if fixed:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()  # ORIGIN
        return loss

    return net, step


@fault(
    "dtype-overflow",
    "linalg_vector_norm",
    "forward",
    step=0,
    steps=5,
    ops=("mul_", "_foreach_mul_", "_foreach_norm", "div", "mul", "reciprocal", "norm"),
    also=("clip-nonfinite-norm", "dead-gradient"),
)
def norm_of_many_halves(fixed):
    """Every gradient fits in float16, the norm over them does not: max_norm / inf is 0."""
    torch.manual_seed(170)
    net = nn.Sequential(
        nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 8, bias=False)
    ).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = 4 * rnd(171, 64, 64).abs().half()
    y = 200 * rnd(172, 64, 8)

    def clip(params, most):
        grads = [p.grad for p in params]
        norms = torch.stack([(g.float() if fixed else g).norm() for g in grads])  # ORIGIN
        total = norms.norm()  # ALSO
        k = (most / (total + 1e-4)).clamp(max=1.0)  # ALSO
        for g in grads:
            g.mul_(k)  # ALSO

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x).float(), y, reduction="none").sum(1).mean()
        (64 * loss).backward()
        clip(list(net.parameters()), 1.0)
        opt.step()
        return loss

    return net, step


@fault("div-by-tiny", "reciprocal", step=2, steps=5, ops=("div", "mul"), also=("dtype-overflow",))
def propensities_in_half(fixed):
    """Inverse propensity weights of a recommender; a rarely shown item at 1e-5."""
    torch.manual_seed(180)
    users, items = nn.Embedding(8, 4), nn.Embedding(10, 4)
    u, v = rint(181, 8, 5, 12), rint(182, 9, 5, 12)
    v[2, 7] = 9
    rating = rnd(183, 5, 12)
    shown = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.02, 1e-5])

    def loss(i):
        pred = (users(u[i]) * items(v[i])).sum(-1)
        prop = shown[v[i]] if fixed else shown[v[i]].half()
        w = 1 / prop  # ORIGIN
        w = w / w.sum()  # ALSO
        return (w * (pred - rating[i]) ** 2).sum()

    net = nn.ModuleList([users, items])
    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "exp-overflow", "exp", step=12, steps=15, also=("dtype-overflow", "learning-rate"), ops=("mul",)
)
def a_task_that_is_solved(fixed):
    """Learned log-variances: the hinge task reaches a loss of exactly 0, its weight exp(-s) grows without end, in half."""
    torch.manual_seed(190)
    trunk, rank, price = nn.Linear(5, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    log_var = nn.Parameter(torch.zeros(2))
    net = nn.ModuleList([trunk, rank, price])
    net.register_parameter("log_var", log_var)
    opt = torch.optim.SGD(
        [
            {"params": [*trunk.parameters(), *rank.parameters(), *price.parameters()], "lr": 1e-2},
            {"params": [log_var], "lr": 1.0},
        ]
    )
    x = rnd(191, 20, 5)
    better, worse = 6 + rnd(192, 20, 5).abs(), -6 - rnd(193, 20, 5).abs()
    with torch.no_grad():
        trunk.weight.abs_(), rank.weight.fill_(0.04)
    y = rnd(194, 20, 1)

    def score(z):
        return rank(torch.tanh(trunk(z)))

    def step(i):
        opt.zero_grad()
        tasks = torch.stack(
            [
                F.relu(1 - score(better) + score(worse)).mean(),
                F.mse_loss(price(torch.tanh(trunk(x))), y),
            ]
        )
        s = log_var.clamp(min=-3) if fixed else log_var
        w = torch.exp(-s.half())  # ORIGIN
        loss = (w.float() * tasks + s).sum()  # ALSO
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault(
    "eps-underflow",
    "div",
    step=1,
    steps=4,
    also=("div-by-zero", "norm-at-zero"),
    ops=("linalg_vector_norm", "add"),
)
def layer_scale_with_an_epsilon_for_float(fixed):
    """In half, 0 + 1e-8 is 0: a token of padding is divided by it."""
    torch.manual_seed(200)
    emb = nn.Embedding(10, 8, padding_idx=0)
    out = nn.Linear(8, 10)
    net = nn.Sequential(emb, out)
    ids = rint(201, 9, 4, 5, 6) + 1
    ids[1, 2, 4:] = 0

    def unit(h):
        n = h.abs().amax(-1, keepdim=True)
        return h / (n + (1e-3 if fixed else 1e-8))  # ORIGIN

    def loss(i):
        h = unit(emb(ids[i]).half())
        return F.cross_entropy(out(h.float()).flatten(0, 1), ids[i].flatten(), ignore_index=0)

    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.Adam)


# ---------------------------------------------------------------- everyday deep learning


@fault(
    "norm-at-zero",
    "sqrt",
    "backward",
    step=0,
    steps=3,
    also=("sqrt-at-zero", "zero-times-inf"),
    ops=("div", "mul"),
)
def penalty_on_a_critic_asleep(fixed):
    """WGAN-GP: at a point where every ReLU is off the critic is flat, and the norm of its gradient is exactly 0."""
    torch.manual_seed(210)

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1, bias=False))
            with torch.no_grad():
                self.f[0].weight.abs_()
                self.f[0].bias.fill_(-0.5)

        def forward(self, x):
            return self.f(x)

    D = Critic()
    opt = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.9))
    real, fake = rnd(211, 10, 2) + 1, rnd(212, 10, 2) * 2 - 1

    def penalty(u):
        mix = (u * real + (1 - u) * fake).requires_grad_()
        (g,) = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
        n = (g.square().sum(1) + (1e-12 if fixed else 0)).sqrt()  # ORIGIN
        return ((n - 1) ** 2).mean()

    def step(i):
        opt.zero_grad()
        u = torch.rand(10, 1, generator=torch.Generator().manual_seed(i))
        loss = D(fake).mean() - D(real).mean() + 10 * penalty(u)
        loss.backward()
        opt.step()
        return loss

    return D, step


@fault(
    "sqrt-at-zero",
    "sqrt",
    "backward",
    step=0,
    steps=3,
    also=("norm-at-zero", "where-grad-trap", "zero-times-inf"),
    ops=("div", "mul"),
)
def all_pairs_with_themselves(fixed):
    """Triplet mining by a matrix of distances by hand; the diagonal is masked out afterwards."""
    torch.manual_seed(220)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x, label = rnd(221, 12, 5), torch.arange(12) % 3

    def distances(z):
        d2 = (z[:, None, :] - z[None, :, :]).pow(2).sum(-1)
        if fixed:
            d2 = d2 + torch.eye(len(z))
        return d2.sqrt()  # ORIGIN

    def loss(i):
        d = distances(net(x))
        same = label[:, None] == label[None, :]
        pos = d.masked_fill(~same | torch.eye(12, dtype=torch.bool), 0).amax(1)
        neg = d.masked_fill(same, 1e6).amin(1)
        return F.relu(pos - neg + 0.3).mean()

    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.AdamW)


@fault(
    "pow-fraction-at-zero",
    "pow",
    "backward",
    step=1,
    steps=4,
    ops=("mul",),
    also=("zero-times-inf",),
)
def focal_tversky_of_an_empty_class(fixed):
    """(1 - TI) ** 0.75 where the tile of this class is all ocean: hard zero on both sides, TI is exactly 1."""
    torch.manual_seed(230)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x = rnd(231, 4, 2, 1, 6, 6)
    mask = rint(232, 3, 4, 2, 6, 6)
    mask[1][mask[1] == 2] = 0
    with torch.no_grad():
        net[2].bias[2] = 0.0
    seen = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])

    def focal_tversky(p, t, a=0.7, g=0.75):
        tp = (p * t).sum((0, 2, 3))
        fn = ((1 - p) * t).sum((0, 2, 3))
        fp = (p * (1 - t)).sum((0, 2, 3))
        ti = (tp + 1) / (tp + a * fn + (1 - a) * fp + 1)
        if fixed:
            ti = ti.clamp(max=1 - 1e-6)
        return ((1 - ti) ** g).mean()  # ORIGIN

    def loss(i):
        p = net(x[i]).softmax(1) * seen[i][None, :, None, None]
        t = F.one_hot(mask[i], 3).permute(0, 3, 1, 2).float()
        return focal_tversky(p, t)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "where-grad-trap",
    "log",
    "backward",
    step=2,
    steps=5,
    also=("log-of-zero", "zero-times-inf"),
    ops=("div", "mul", "where"),
)
def logs_of_the_hours_that_were_measured(fixed):
    """Missing hours are stored as 0 and dropped by where, but the learned gain stands before the log."""
    torch.manual_seed(240)

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))
            self.rnn = nn.GRU(3, 6, batch_first=True)
            self.out = nn.Linear(6, 3)

        def forward(self, x, seen):
            v = x * self.gain
            if fixed:
                v = torch.where(seen, v, torch.ones_like(v))
            v = torch.where(seen, v.log(), torch.zeros_like(v))  # ORIGIN
            h, _ = self.rnn(v)
            return self.out(h[:, -1])

    net = Forecaster()
    x = rnd(241, 5, 4, 10, 3).abs() + 0.1
    y = rnd(242, 5, 4, 3)
    x[2, 1, 3:5, 0] = 0.0
    x[3, :, :2, 2] = 0.0
    return net, train(
        net.parameters(),
        lambda i: F.l1_loss(net(x[i], x[i] > 0), y[i]),
        lr=1e-2,
        optimizer=torch.optim.Adam,
    )


@fault(
    "inverse-function-at-edge",
    "acos",
    "backward",
    step=3,
    steps=6,
    ops=("mul", "clamp", "rsqrt"),
    also=("zero-times-inf",),
)
def margin_at_the_centre_of_a_class(fixed):
    """ArcFace by acos(clamp(cos, -1, 1)) on stored features: a class with one picture, whose centre was just set to it."""
    W = nn.Parameter(torch.eye(4)[:3].clone())
    features = rnd(251, 6, 4)
    y = rint(252, 2, 6)
    opt = torch.optim.SGD([W], lr=0.05)

    def step(i):
        if i == 3:  # enrol the new identity
            features[0], y[0] = torch.tensor([0.0, 0.0, 0.0, 2.0]), 2
            with torch.no_grad():
                W[2] = features[0]
        opt.zero_grad()
        c = F.normalize(features, dim=1) @ F.normalize(W, dim=1).T
        edge = 1 - 1e-6 if fixed else 1.0
        theta = torch.acos(c.clamp(-edge, edge))  # ORIGIN
        logits = 8 * torch.cos(theta + 0.2 * F.one_hot(y, 3))
        loss = F.cross_entropy(logits, y)
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"W": W}
    return None, step


@fault(
    "pow-fraction-at-zero",
    "pow",
    "backward",
    step=0,
    steps=3,
    ops=("mul", "sqrt"),
    also=("zero-times-inf", "sqrt-at-zero"),
)
def second_order_through_a_robust_inner_loss(fixed):
    """MAML: the inner loss |r| ** 1.5 has no second derivative where a residual is exactly 0."""
    w = nn.Parameter(torch.zeros(4))
    alpha = nn.Parameter(torch.tensor(0.1))
    xs = rint(261, 3, 3, 8, 4).float()
    ys = rnd(262, 3, 8)
    ys[:, 0] = 0.0  # the start predicts exactly this

    def robust(r):
        if fixed:
            return (r.square() + 1e-6) ** 0.75
        return r.abs() ** 1.5  # ORIGIN

    def loss(i):
        total = 0.0
        for x, y in zip(xs, ys, strict=False):
            inner = robust(x[:4] @ w - y[:4]).mean()
            (g,) = torch.autograd.grad(inner, w, create_graph=True)
            fast = w - alpha * g
            total = total + (x[4:] @ fast - y[4:]).square().mean()
        return total / len(xs)

    return None, train([w, alpha], loss, lr=1e-2)


@fault(
    "repair-forward-only",
    "log",
    "backward",
    step=0,
    steps=3,
    also=("log-of-zero", "zero-times-inf"),
    ops=("mul", "nan_to_num", "xlogy", "div"),
)
def entropy_of_experts_tidied_up(fixed):
    """p log p with nan_to_num behind it; top-k routing leaves exact zeros in p."""
    torch.manual_seed(270)

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(6, 4)
            self.experts = nn.Parameter(rnd(271, 4, 6, 2) * 0.3)

        def forward(self, x):
            s = self.gate(x)
            keep = torch.zeros_like(s, dtype=torch.bool).scatter(1, s.topk(2, 1).indices, True)
            p = s.masked_fill(~keep, -torch.inf).softmax(1)
            if fixed:
                ent = -(p * p.clamp(min=1e-30).log()).sum(1)
            else:
                ent = -torch.nan_to_num(p * p.log()).sum(1)  # ORIGIN
            return torch.einsum("be,bi,eio->bo", p, x, self.experts), ent

    net = Router()
    x, y = rnd(272, 16, 6), rint(273, 2, 16)

    def loss(i):
        out, ent = net(x)
        return F.cross_entropy(out, y) - 0.01 * ent.mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "sqrt-at-zero",
    "hypot",
    "backward",
    step=1,
    steps=4,
    ops=("div", "mul"),
    also=("norm-at-zero", "div-by-zero"),
)
def speed_of_a_boat_at_anchor(fixed):
    """Length of a velocity that a network without biases makes of a record of zeros."""
    torch.manual_seed(280)
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    x = rnd(281, 4, 8, 4)
    truth = x.square().mean(-1)
    x[1, 5] = 0.0

    def loss(i):
        v = net(x[i])
        if fixed:
            still = (v == 0).all(1)
            v = torch.where(still[:, None], torch.ones_like(v), v)
        speed = torch.hypot(v[:, 0], v[:, 1])  # ORIGIN
        if fixed:
            speed = torch.where(still, torch.zeros_like(speed), speed)
        return F.mse_loss(speed, truth[i])

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "degenerate-matrix",
    "linalg_eigh",
    "backward",
    step=0,
    steps=1,
    also=("div-by-zero",),
    ops=("div", "_linalg_eigh", "linalg_eigh_backward"),
)
def whitening_of_a_balanced_codebook(fixed):
    """ZCA by eigh: the starting codes are orthogonal and of one length, so the eigenvalues coincide."""
    torch.manual_seed(290)
    codes = nn.Parameter(torch.cat([torch.eye(4), -torch.eye(4)]))
    head = nn.Linear(4, 3)
    y = torch.arange(8) % 3

    def whiten(z):
        z = z - z.mean(0)
        cov = z.T @ z / (len(z) - 1)
        if fixed:
            L = torch.linalg.cholesky(cov + 1e-4 * torch.eye(4))
            return torch.linalg.solve_triangular(L, z.T, upper=False).T
        lam, U = torch.linalg.eigh(cov)  # ORIGIN
        return z @ (U / (lam + 1e-4).sqrt()) @ U.T

    return None, train(
        [codes, *head.parameters()], lambda i: F.cross_entropy(head(whiten(codes)), y), lr=0.05
    )


@fault(
    "exploding-gradient",
    "mm",
    "backward",
    step=0,
    steps=3,
    ops=("mul", "add", "addmm", "matmul", "mv", "sum", "tanh_backward"),
)
def a_long_memory_with_gain(fixed):
    """A linear recurrence over 230 hours, from a start of zero: forward all is zero or small, the way back grows by 1.5 an hour."""
    torch.manual_seed(300)

    class Leaky(nn.Module):
        def __init__(self, d=4):
            super().__init__()
            q, _ = torch.linalg.qr(rnd(301, d, d))
            self.A = nn.Parameter(q * (0.95 if fixed else 1.5))
            self.inp = nn.Linear(1, d, bias=False)
            nn.init.zeros_(self.inp.weight)
            self.out = nn.Linear(d, 1)

        def forward(self, x):
            h = x.new_zeros(x.shape[0], self.A.shape[0])
            for t in range(x.shape[1]):
                h = h @ self.A.T + self.inp(x[:, t])  # ORIGIN
            return self.out(h)

    net = Leaky()
    x, y = rnd(302, 3, 230, 1), rnd(303, 3, 1)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y), lr=1e-3)


@fault(
    "dead-gradient",
    "sigmoid",
    "forward",
    step=0,
    steps=6,
    ops=("log", "rsub", "sub", "mul", "add"),
    also=("dtype-underflow",),
)
def a_generator_that_is_laughed_at(fixed):
    """log(1 - sigmoid(D)) where the critic is past -110: in float32 the sigmoid and its derivative are exactly 0."""
    torch.manual_seed(310)
    G, D = nn.Linear(3, 2), nn.Linear(2, 1)
    with torch.no_grad():
        D.weight.copy_(torch.tensor([[40.0, 40.0]]))
        D.bias.fill_(-250.0)
    for p in D.parameters():
        p.requires_grad_(False)  # only the generator's turn
    opt = torch.optim.SGD(G.parameters(), lr=1e-2)
    z = rnd(311, 16, 3)

    def step(i):
        opt.zero_grad()
        score = D(torch.tanh(G(z)))
        if fixed:
            loss = F.softplus(-score).mean()
        else:
            loss = torch.log(1 - torch.sigmoid(score)).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return G, step


@fault(
    "absorbed-update",
    "add_",
    "optimizer",
    step=0,
    steps=6,
    ops=("add", "mul", "mul_", "lerp_", "copy_", "_to_copy", "sub", "sub_"),
)
def an_average_with_too_good_a_memory(fixed):
    """EMA at 0.9999 kept in bfloat16: the difference times 1e-4 never reaches half an ulp of the mean."""
    torch.manual_seed(320)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    for p in net.parameters():
        nn.init.uniform_(p, 0.05, 0.5)
    shadow = {
        k: v.detach().clone().to(torch.float32 if fixed else torch.bfloat16)
        for k, v in net.state_dict().items()
    }
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x = rnd(321, 24, 5)
    y = (x[:, 0] > x[:, 1]).long()

    @torch.no_grad()
    def remember(decay=0.9999):
        for k, v in net.state_dict().items():
            s = shadow[k]
            s.add_(v.to(s.dtype) - s, alpha=1 - decay)  # ORIGIN

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        remember()
        return loss

    return net, step


@fault(
    "optimizer-arithmetic",
    "div",
    "optimizer",
    step=0,
    steps=3,
    also=("div-by-zero",),
    ops=("div_", "addcdiv_", "sub_", "true_divide"),
)
def a_count_that_starts_at_nought(fixed):
    """Bias correction 1 - beta ** t with t = 0 in the first step."""

    class MyAdam(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
            super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                b1, b2 = group["betas"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    st = self.state[p]
                    if not st:
                        st["t"] = torch.tensor(1.0 if fixed else 0.0)
                        st["m"], st["v"] = torch.zeros_like(p), torch.zeros_like(p)
                    st["m"].lerp_(p.grad, 1 - b1)
                    st["v"].lerp_(p.grad.square(), 1 - b2)
                    mhat = st["m"] / (1 - b1 ** st["t"])  # ORIGIN
                    vhat = st["v"] / (1 - b2 ** st["t"])  # ALSO
                    p.sub_(group["lr"] * mhat / (vhat.sqrt() + group["eps"]))  # ALSO
                    st["t"] += 1

    torch.manual_seed(330)
    net = nn.Sequential(nn.Linear(4, 6), nn.ELU(), nn.Linear(6, 1))
    opt = MyAdam(net.parameters(), lr=1e-2)
    x, y = rnd(331, 20, 4), rnd(332, 20, 1)

    def step(i):
        net.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault(
    "optimizer-arithmetic",
    "sqrt",
    "optimizer",
    step=2,
    steps=5,
    also=("sqrt-of-negative",),
    ops=("sqrt_",),
)
def variance_of_a_gradient_that_stays(fixed):
    """Centred RMSprop by hand: E[g^2] - E[g]^2 of a gradient that never changes rounds below zero."""
    w = nn.Parameter(torch.tensor([0.2, -0.1, 0.3, 0.7, -0.4]))
    prices = torch.tensor([0.1, 0.7, 1.3, 3.0, 3.7])
    state = {}

    def step(i):
        w.grad = None
        loss = (w * prices).sum() + 0.5 * F.relu(
            w.abs() - 5
        ).square().sum()  # linear within the box
        loss.backward()
        g = w.grad
        with torch.no_grad():
            if not state:
                state["sq"], state["avg"] = g * g, g.clone()
            else:
                state["sq"] = 0.9 * state["sq"] + 0.1 * g * g
                state["avg"] = 0.9 * state["avg"] + 0.1 * g
            var = state["sq"] - state["avg"] ** 2  # ALSO
            if fixed:
                var = var.clamp(min=0)
            w.sub_(1e-3 * g / (var.sqrt() + 1e-2))  # ORIGIN
        return loss

    step.parameters = {"w": w}
    return None, step


@fault(
    "optimizer-arithmetic",
    "div",
    "optimizer",
    step=2,
    steps=5,
    also=("div-by-zero", "learning-rate"),
    ops=("mul", "sub_"),
)
def barzilai_and_borwein_at_rest(fixed):
    """Step length s.s / s.y; when the weights stand still (a batch outside every margin) it is 0 / 0."""
    torch.manual_seed(350)
    w = nn.Parameter(torch.zeros(3))
    x = rnd(351, 6, 12, 3)
    y = torch.sign(x @ torch.tensor([1.0, -2.0, 0.5]))
    x[1] = 40 * y[1][:, None] * torch.tensor([1.0, -2.0, 0.5])
    last = {}

    def step(i):
        loss = F.relu(1 - y[i] * (x[i] @ w)).square().mean()
        (g,) = torch.autograd.grad(loss, w)
        eta = torch.tensor(0.1)
        if last:
            s, r = w.detach() - last["w"], g - last["g"]
            if not fixed or s.abs().sum() > 0:
                eta = ((s @ s) / (s @ r).abs()).clamp(max=0.5)  # ORIGIN
        last["w"], last["g"] = w.detach().clone(), g
        with torch.no_grad():
            w.sub_(eta * g)  # ALSO
        return loss

    step.parameters = {"w": w}
    return None, step


@fault(
    "learning-rate",
    "add_",
    "optimizer",
    step=0,
    steps=3,
    also=("div-by-zero", "zero-times-inf", "pow-fraction-at-zero"),
    ops=("_foreach_add_", "rsqrt", "mul", "add", "pow"),
)
def warm_up_from_step_zero(fixed):
    """Noam's schedule: step ** -0.5 at step 0, computed in numpy, is inf."""
    torch.manual_seed(360)
    net = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(18, 9))
    opt = torch.optim.SGD(net.parameters(), lr=0.5)

    def noam(s):
        s = np.float64(s + 1 if fixed else s)
        with np.errstate(divide="ignore"):
            return float(6**-0.5 * s**-0.5)  # ALSO

    sched = torch.optim.lr_scheduler.LambdaLR(opt, noam)  # ALSO
    ids, y = rint(361, 9, 20, 3), rint(362, 9, 20)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()  # ORIGIN
        sched.step()
        return loss

    return net, step


@fault(
    "learning-rate",
    "mse_loss",
    "optimizer",
    step=8,
    steps=11,
    also=("exploding-gradient", "dtype-overflow"),
    ops=("add_", "_foreach_add_", "addmm", "pow", "mean", "mse_loss_backward", "mm"),
)
def columns_in_their_own_units(fixed):
    """Tabular regression, salary in euros: each step of lr 1e-3 overshoots by many powers of ten."""
    torch.manual_seed(370)
    lin = nn.Linear(3, 1)
    x = rnd(371, 30, 3) * torch.tensor([1.0, 10.0, 300.0])
    y = x @ torch.tensor([[1.0], [0.2], [0.01]])
    opt = torch.optim.SGD(lin.parameters(), lr=1e-6 if fixed else 1e-3)  # ALSO

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(lin(x), y)  # ORIGIN
        loss.backward()
        opt.step()  # ALSO
        return loss

    return lin, step


@fault("inf-minus-inf", "sub", step=1, steps=3, also=("softmax-all-masked",), ops=("exp",))
def attention_in_blocks(fixed):
    """Online softmax: until a visible key has come the running maximum is -inf, and -inf minus -inf is NaN."""
    torch.manual_seed(380)
    q, kv, o = nn.Linear(6, 4), nn.Linear(6, 8), nn.Linear(4, 3)
    x, y = rnd(381, 3, 2, 8, 6), rint(382, 3, 3, 2)
    pad = torch.zeros(3, 2, 8, dtype=torch.bool)
    pad[0, 1, 6:] = True
    pad[1, 0, :4] = True  # padded on the left
    pad[2, 1, :3] = True

    def blocked(x, pad, size=4):
        qs = q(x)
        k, v = kv(x).chunk(2, -1)
        m = x.new_full((*x.shape[:2], 1), -torch.inf)
        num, den = torch.zeros_like(qs), torch.zeros_like(m)
        for a in range(0, x.shape[1], size):
            s = qs @ k[:, a : a + size].transpose(1, 2) / 2
            s = s.masked_fill(pad[:, None, a : a + size], -torch.inf)
            new = torch.maximum(m, s.amax(-1, keepdim=True)).detach()
            if fixed:
                new = new.clamp(min=-1e4)
            w = torch.exp(s - new)  # ORIGIN
            keep = torch.exp(m - new)  # ALSO
            num = num * keep + w @ v[:, a : a + size]
            den = den * keep + w.sum(-1, keepdim=True)
            m = new
        return num / den

    net = nn.ModuleList([q, kv, o])
    return net, train(
        net.parameters(), lambda i: F.cross_entropy(o(blocked(x[i], pad[i]).mean(1)), y[i]), lr=1e-2
    )


@fault(
    "empty-reduction",
    "mean",
    step=2,
    steps=5,
    also=("div-by-zero",),
    ops=("sum", "div", "index", "masked_select"),
)
def an_edge_term_without_an_edge(fixed):
    """Boundary loss over the pixels at which the mask changes; one tile is forest from end to end."""
    torch.manual_seed(390)
    net = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 1, 1)
    )
    x = rnd(391, 5, 1, 2, 8, 8)
    mask = (rnd(392, 5, 1, 1, 8, 8) > 0).float()
    mask[2] = 1.0

    class EdgeLoss(nn.Module):
        def forward(self, logit, t):
            fat = F.max_pool2d(t, 3, 1, 1)
            thin = -F.max_pool2d(-t, 3, 1, 1)
            edge = (fat - thin) > 0
            per_pixel = F.binary_cross_entropy_with_logits(logit, t, reduction="none")
            at = per_pixel[edge]
            if fixed and at.numel() == 0:
                return per_pixel.mean()
            return per_pixel.mean() + 0.5 * at.mean()  # ORIGIN

    crit = EdgeLoss()
    return net, train(
        net.parameters(), lambda i: crit(net(x[i]), mask[i]), lr=1e-2, optimizer=torch.optim.Adam
    )


@fault("sqrt-of-negative", "sqrt", step=0, steps=3, ops=("sub", "div"))
def one_pass_variance_of_a_tank(fixed):
    """E[x^2] - E[x]^2 of a column that hardly moves about a level of thousands."""
    torch.manual_seed(400)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = rnd(401, 50, 4)
    x[:, 1] = 4321.7
    x[:, 3] = 998.4 + 1e-4 * x[:, 3]
    y = rnd(402, 50, 1)

    def standardise(x):
        mu = x.mean(0)
        if fixed:
            sd = x.std(0)
        else:
            sd = ((x * x).mean(0) - mu * mu).sqrt()  # ORIGIN
        return (x - mu) / (sd + 1e-3)

    return net, train(net.parameters(), lambda i: F.huber_loss(net(standardise(x)), y), lr=1e-2)


@fault(
    "nan-in-input",
    "addmm",
    "data",
    step=1,
    steps=4,
    ops=("linear", "mm", "index", "stack", "cat", "select"),
    also=("div-by-zero",),
)
def windows_scaled_one_by_one(fixed):
    """A Dataset that scales every window by its own range in numpy; a stuck sensor has none: 0 / 0."""
    torch.manual_seed(410)
    series = rnd(411, 12, 16).numpy()
    series[5] = 3.25
    target = rnd(412, 12, 1)

    class Windows(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, k):
            w = series[k]
            span = w.max() - w.min()
            if fixed and span == 0:
                span = np.float32(1)
            with np.errstate(invalid="ignore"):
                w = (w - w.min()) / span  # ALSO
            return torch.from_numpy(w), target[k]

    net = nn.Sequential(nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 1))
    batches = list(DataLoader(Windows(), batch_size=3))  # ALSO

    def loss(i):
        x, y = batches[i]
        return F.mse_loss(net(x), y)  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


# ---------------------------------------------------------------- healthy


@healthy(
    "a fake quantiser with a straight-through estimator: levels saturate for outliers only, gradients flow through the rest"
)
def some_weights_beyond_the_last_level(fixed):
    torch.manual_seed(500)
    lin, head = nn.Linear(6, 12), nn.Linear(12, 2)
    with torch.no_grad():
        lin.weight[0, 0] = 5.0
    x = rnd(501, 32, 6)
    y = (x[:, 0] > 0).long()

    def loss(i):
        w = torch.fake_quantize_per_tensor_affine(lin.weight, 0.01, 0, -128, 127)
        return F.cross_entropy(head(F.relu(F.linear(x, w, lin.bias))), y)

    net = nn.ModuleList([lin, head])
    return net, train(net.parameters(), loss, lr=0.05)


@healthy(
    "learned step sizes with a gradient scale; pruned filters are zero throughout and stay so by a mask"
)
def step_sizes_of_a_pruned_layer(fixed):
    torch.manual_seed(510)

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g

    class LSQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(rnd(511, 6, 8) * 0.4)
            self.register_buffer("mask", (torch.arange(6) % 3 != 0).float()[:, None])
            self.s = nn.Parameter(torch.full((6, 1), 0.1))
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            w = self.w * self.mask
            g = 1 / math.sqrt(8 * 7)
            s = self.s * g + (self.s * (1 - g)).detach()
            q = Round.apply((w / s).clamp(-8, 7)) * s
            return x @ q.T + self.bias

    net = LSQ()
    x, y = rnd(512, 20, 8), rnd(513, 20, 6)
    return net, train(
        net.parameters(), lambda i: F.mse_loss(net(x), y), lr=1e-2, optimizer=torch.optim.Adam
    )


@healthy(
    "the loss scale starts at 2**26: the first steps are skipped while it calibrates, then training goes on",
    steps=20,
)
def a_scaler_that_feels_its_way_down(fixed):
    torch.manual_seed(520)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=1000)
    x, y = rnd(521, 24, 6), rint(522, 3, 24)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    return net, step


@healthy(
    "amax per block is clamped before the division; whole blocks are zero and quantise to zero"
)
def blocks_of_zeros_in_eight_bits(fixed):
    torch.manual_seed(530)
    net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    x = rnd(531, 24, 16)
    x[:, 8:12] = 0

    def q8(t):
        b = t.reshape(-1, 4)
        s = b.abs().amax(1, keepdim=True).clamp(min=2.0**-40) / 448
        back = (b / s).to(torch.float8_e4m3fn).float() * s
        return back.reshape(t.shape)

    y = (x[:, 0] > 0).long()
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(q8(x)), y), lr=0.1)


@healthy(
    "causal and padding masks of -inf; every query keeps at least itself, padded queries are dropped from the loss"
)
def infinities_in_a_decoder(fixed):
    torch.manual_seed(540)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    emb, out = nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 12)
    ids = rint(541, 11, 4, 7) + 1
    ids[1, 5:], ids[3, 2:] = 0, 0
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    pad = torch.zeros(4, 6).masked_fill(ids[:, :-1] == 0, -torch.inf)
    net = nn.ModuleList([emb, layer, out])

    def loss(i):
        h = layer(emb(ids[:, :-1]), src_mask=causal, src_key_padding_mask=pad)
        return F.cross_entropy(out(h).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)

    return net, train(net.parameters(), loss, lr=1e-2, optimizer=torch.optim.AdamW)


@healthy(
    "critic penalty with an epsilon inside the root, at points where the critic's gradient is exactly zero"
)
def penalty_with_a_floor(fixed):
    torch.manual_seed(550)
    D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        D[0].weight.abs_()
        D[0].bias.fill_(-0.2)
    opt = torch.optim.Adam(D.parameters(), lr=5e-3, betas=(0.0, 0.9))
    real, fake = rnd(551, 16, 2).abs() + 0.5, rnd(552, 16, 2) - 1

    def step(i):
        opt.zero_grad()
        u = torch.linspace(0, 1, 16)[:, None]
        mix = torch.lerp(fake, real, u).requires_grad_()
        (g,) = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
        gp = (torch.sqrt(g.square().sum(1) + 1e-12) - 1).square().mean()
        loss = D(fake).mean() - D(real).mean() + gp
        loss.backward()
        opt.step()
        return loss

    return D, step


@healthy(
    "missing values are NaN in the data and are filled, with an indicator column, before anything learns from them"
)
def holes_in_a_table(fixed):
    torch.manual_seed(560)
    x = rnd(561, 40, 5)
    y = (x[:, :1] - x[:, 1:2] > 0).float()
    x[rnd(562, 40, 5) > 1.2] = torch.nan
    hole = torch.isnan(x)
    med = x.nanmedian(0).values
    filled = torch.where(hole, med, x)
    full = torch.cat([filled, hole.float()], 1)
    net = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 1))
    return net, train(
        net.parameters(), lambda i: F.binary_cross_entropy_with_logits(net(full), y), lr=0.1
    )


@healthy(
    "constant columns: BatchNorm's eps makes them 0, their weights get a gradient of zero and nobody needs them"
)
def columns_that_say_nothing(fixed):
    torch.manual_seed(570)
    x = rnd(571, 32, 6)
    x[:, 2], x[:, 4] = 7.0, 0.0
    y = x[:, :1] * 2 - x[:, 1:2]
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y), lr=0.05)


@healthy(
    "a forecast loss over a target with gaps: NaN targets are selected away by index before the loss"
)
def gaps_in_the_series_to_be_forecast(fixed):
    torch.manual_seed(580)
    gru, out = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 1)
    x = rnd(581, 6, 12, 2)
    y = x.cumsum(1).sum(-1, keepdim=True) / 4
    y[1, 3:9], y[4] = torch.nan, torch.nan
    there = ~torch.isnan(y)

    def loss(i):
        h, _ = gru(x)
        return F.mse_loss(out(h)[there], y[there])

    net = nn.ModuleList([gru, out])
    return net, train(net.parameters(), loss, lr=0.02, optimizer=torch.optim.Adam)


@healthy(
    "ignored pixels: one picture of the batch is unlabelled altogether, the others carry the loss"
)
def a_tile_nobody_labelled(fixed):
    torch.manual_seed(590)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 4, 1)
    )
    x, t = rnd(591, 3, 3, 8, 8), rint(592, 4, 3, 8, 8)
    t[1] = 255
    crit = nn.CrossEntropyLoss(ignore_index=255)
    return net, train(net.parameters(), lambda i: crit(net(x), t), lr=0.1)


@healthy(
    "supervised contrastive loss with the diagonal at -inf; each anchor has a positive and negatives"
)
def a_diagonal_that_must_not_count(fixed):
    torch.manual_seed(600)
    enc = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    x, label = rnd(601, 12, 6), torch.arange(12) % 4

    def loss(i):
        z = F.normalize(enc(x), dim=-1)
        s = (z @ z.T / 0.2).fill_diagonal_(-torch.inf)
        logp = s - s.logsumexp(1, keepdim=True)
        pos = (label[:, None] == label) & ~torch.eye(12, dtype=torch.bool)
        return -(logp[pos].view(12, -1)).mean()

    return enc, train(enc.parameters(), loss, lr=0.1)


@healthy(
    "sampled softmax over a catalogue: items already seen are -inf, the target is never among them"
)
def what_was_seen_is_not_offered(fixed):
    torch.manual_seed(610)
    U, V = nn.Embedding(6, 5), nn.Embedding(20, 5)
    seen = rnd(611, 6, 20) > 0.3
    target = torch.arange(6) * 3
    seen[torch.arange(6), target] = False
    net = nn.ModuleList([U, V])

    def loss(i):
        s = U.weight @ V.weight.T
        return F.cross_entropy(s.masked_fill(seen, float("-inf")), target)

    return net, train(net.parameters(), loss, lr=0.1, optimizer=torch.optim.Adagrad)


@healthy("sparse gradients: most rows of the embedding are untouched in every step, by design")
def a_long_tail_of_items(fixed):
    torch.manual_seed(620)
    items = nn.EmbeddingBag(500, 6, sparse=True, mode="mean")
    head = nn.Linear(6, 2)
    bags, y = rint(621, 40, 12, 5), rint(622, 2, 12)
    o1, o2 = (
        torch.optim.SparseAdam(items.parameters(), lr=1e-2),
        torch.optim.SGD(head.parameters(), lr=0.1),
    )

    def step(i):
        o1.zero_grad(), o2.zero_grad()
        loss = F.cross_entropy(head(items(bags)), y)
        loss.backward()
        o1.step(), o2.step()
        return loss

    return nn.ModuleList([items, head]), step


@healthy("double where: the logarithm never sees the zeros, and its gradient is finite")
def log_returns_with_halts(fixed):
    torch.manual_seed(630)
    gain = nn.Parameter(torch.ones(3))
    w = nn.Parameter(torch.zeros(3))
    p = rnd(631, 30, 3).abs()
    p[4:9, 1] = 0
    y = p.sum(1)

    def loss(i):
        v = p * gain
        ok = v > 0
        feature = torch.where(ok, torch.where(ok, v, 1.0).log(), 0.0)
        return F.mse_loss(feature @ w + v.sum(1) * 0.5, y)

    return None, train([gain, w], loss, lr=0.05)


@healthy(
    "the mean of each bag is a product with zeros and a count that is clamped at one: an empty history gives a zero vector"
)
def users_without_a_history(fixed):
    torch.manual_seed(640)
    E, tower = nn.Embedding(15, 6, padding_idx=0), nn.Linear(6, 15)
    hist = rint(641, 14, 10, 4) + 1
    hist[2], hist[7, 1:] = 0, 0
    y = rint(642, 14, 10) + 1
    net = nn.ModuleList([E, tower])

    def loss(i):
        m = (hist != 0).float()[..., None]
        u = (E(hist) * m).sum(1) / m.sum(1).clamp(min=1)
        return F.cross_entropy(tower(F.normalize(u, dim=-1)), y)

    return net, train(net.parameters(), loss, lr=0.05, optimizer=torch.optim.Adam)


@healthy(
    "warm-up that begins at a rate of exactly zero: the first step moves nothing, as it should"
)
def a_first_step_of_nothing(fixed):
    torch.manual_seed(650)
    net = nn.Sequential(nn.Linear(5, 10), nn.GELU(), nn.Linear(10, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / 4))
    x = rnd(651, 24, 5)
    y = x.prod(1, keepdim=True)

    def step(i):
        opt.zero_grad()
        loss = F.smooth_l1_loss(net(x), y)
        loss.backward()
        opt.step()
        sched.step()
        return loss

    return net, step


@healthy("fine-tuning: the backbone is frozen and in eval, its gradients are None, the head learns")
def a_frozen_body(fixed):
    torch.manual_seed(660)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    body.requires_grad_(False).eval()
    head = nn.Linear(16, 3)
    x, y = rnd(661, 12, 1, 7, 7), rint(662, 3, 12)
    net = nn.Sequential(body, head)
    return net, train(head.parameters(), lambda i: F.cross_entropy(net(x), y), lr=0.5)


@healthy(
    "an unusable batch is detected by its loss before backward and left out; no state of the model has seen it"
)
def a_batch_that_is_thrown_away(fixed):
    torch.manual_seed(670)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, y = rnd(671, 3, 10, 4), rnd(672, 3, 10, 1)
    x[1, 3, 2] = torch.nan
    last = []

    def step(i):
        for k in range(3):
            if not torch.isfinite(x[k]).all():
                continue
            opt.zero_grad()
            loss = F.mse_loss(net(x[k]), y[k])
            loss.backward()
            opt.step()
            last.append(loss.detach())
        return last[-1]

    return net, step


@healthy(
    "sums of squares over many pixels: the loss is of order 5e5 from the first step on, the rate is small accordingly"
)
def a_sum_and_not_a_mean(fixed):
    torch.manual_seed(680)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    x = 10 * rnd(681, 8, 1, 16, 16)
    y = F.avg_pool2d(x, 3, 1, 1) * 5
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y, reduction="sum"), lr=2e-8)


@healthy("bfloat16 autocast with float32 masters and an EMA in float32: nothing is absorbed")
def masters_in_full(fixed):
    torch.manual_seed(690)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    ema = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    x, y = rnd(691, 32, 6), rint(692, 4, 32)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        ema.update_parameters(net)
        return loss

    return net, step


@healthy(
    "accumulation over four micro-batches: parameters stand still in between, on purpose", steps=12
)
def four_small_for_one_large(fixed):
    torch.manual_seed(700)
    net = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = rnd(701, 4, 8, 5)
    y = (x.sum(-1) > 0).long()

    def step(i):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x[i % 4])
            loss = F.cross_entropy(out.float(), y[i % 4])
        scaler.scale(loss / 4).backward()
        if i % 4 == 3:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        return loss.detach()

    return net, step


@healthy("learned log-variances of two tasks; they stay small and are differentiated in float32")
def two_tasks_that_weigh_themselves(fixed):
    torch.manual_seed(710)
    trunk, a, b = nn.Linear(6, 10), nn.Linear(10, 1), nn.Linear(10, 3)
    s = nn.Parameter(torch.zeros(2))
    x, ya, yb = rnd(711, 24, 6), 50 * rnd(712, 24, 1), rint(713, 3, 24)
    net = nn.ModuleList([trunk, a, b])
    net.register_parameter("s", s)

    def loss(i):
        h = torch.relu(trunk(x))
        losses = torch.stack([F.mse_loss(a(h), ya), F.cross_entropy(b(h), yb)])
        return (torch.exp(-s) * losses + s).sum()

    return net, train(net.parameters(), loss, lr=0.05, optimizer=torch.optim.Adam)


@healthy(
    "LBFGS with a strong Wolfe line search on a convex problem; the last steps barely move because it has converged",
    steps=5,
)
def logistic_regression_to_the_bottom(fixed):
    torch.manual_seed(720)
    lin = nn.Linear(4, 1)
    x = rnd(721, 60, 4)
    y = (x[:, :1] + 0.8 * rnd(722, 60, 1) > 0).float()
    opt = torch.optim.LBFGS(lin.parameters(), lr=1, max_iter=6, line_search_fn="strong_wolfe")

    def step(i):
        def closure():
            opt.zero_grad()
            loss = F.binary_cross_entropy_with_logits(lin(x), y) + 1e-3 * lin.weight.square().sum()
            loss.backward()
            return loss

        return opt.step(closure)

    return lin, step


@healthy(
    "meta-learning with torch.func; the inner step uses a smooth loss and its second derivatives are finite where residuals are zero"
)
def a_start_that_adapts(fixed):
    torch.manual_seed(730)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    nn.init.zeros_(net[2].weight), nn.init.zeros_(net[2].bias)
    amp = torch.tensor([0.0, 1.0, 2.0])[:, None, None]
    x = torch.linspace(-2, 2, 10)[:, None]
    y = amp * torch.sin(2 * x)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    def inner(p, t):
        return F.mse_loss(torch.func.functional_call(net, p, (x,)), t)

    def step(i):
        opt.zero_grad()
        p = dict(net.named_parameters())
        total = 0
        for t in y:
            g = torch.func.grad(inner)(p, t)
            fast = {k: v - 0.1 * g[k] for k, v in p.items()}
            total = total + inner(fast, t)
        total.backward()
        opt.step()
        return total / 3

    return net, step


@healthy(
    "softmax in float16 autocast with sharp logits: tiny probabilities flush to zero, the loss is taken from logits in float32"
)
def nearly_certain_of_the_rest(fixed):
    torch.manual_seed(740)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 6))
    x = 6 * rnd(741, 24, 5)
    y = rint(742, 6, 24)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    sharp = []

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
            sharp.append(
                (logits.detach() * 8).softmax(-1).half().max(-1).values.mean().item()
            )  # a statistic for the log
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy(
    "a dead ReLU or two: other units carry the gradient, and the zeros of one filter are no loss"
)
def units_that_sleep(fixed):
    torch.manual_seed(750)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        net[0].bias[:2] = -100.0
    x = rnd(751, 30, 4)
    y = x[:, :1].abs()
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x), y), lr=0.05)


@healthy(
    "beam scores start at -inf but for the first; top-k and a masked loss use only what is finite"
)
def beams_that_have_not_begun(fixed):
    torch.manual_seed(760)
    emb, cell, out = nn.Embedding(7, 6), nn.GRUCell(6, 6), nn.Linear(6, 7)
    net = nn.ModuleList([emb, cell, out])
    x, y = rint(761, 7, 5), rint(762, 7, 5)

    def loss(i):
        h = cell(emb(x), cell(emb(x.roll(1))))
        logp = out(h).log_softmax(-1)
        score = torch.full((5, 3), -torch.inf)
        score[:, 0] = 0
        total = (score[:, :, None] + logp[:, None, :]).flatten(1)
        best = total.topk(3, 1)
        assert torch.isfinite(best.values).all()
        hit = logp.gather(1, y[:, None]).squeeze(1)
        return -(hit.mean() + 0.1 * best.values.mean())

    return net, train(net.parameters(), loss, lr=0.05, optimizer=torch.optim.Adam)
