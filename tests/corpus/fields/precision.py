"""Quantised and mixed precision."""

import torch
from programs import fault, healthy, train
from torch import nn


@fault("dtype-underflow", "mul", step=0, ops=("prod", "cumprod"), also=("dead-gradient",))
def path_probability_in_half(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 5)
    x = torch.randn(40, 4)

    def loss(i):
        p = net(x).softmax(-1)[:, 0]
        if fixed:
            return -p.log().mean()
        total = torch.ones((), dtype=torch.float16)
        for value in p.half():
            total = total * value  # ORIGIN
        return 1 - total.float()

    return net, train(net.parameters(), loss)


@fault("absorbed-update", "add_", step=1, ops=("add",), phase="forward")
def elements_seen_in_bfloat16(fixed):
    torch.manual_seed(1)
    net = nn.Linear(4, 4)
    net.register_buffer("seen", torch.zeros(4, dtype=torch.float32 if fixed else torch.bfloat16))

    def loss(i):
        for row in torch.ones(200, 4):
            net.seen[:] += row.to(net.seen.dtype)  # ORIGIN
        y = net(torch.randn(6, 4, generator=torch.Generator().manual_seed(i)))
        return (y / net.seen.float().sqrt()).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def scale_of_a_dead_channel(fixed):
    torch.manual_seed(2)
    net = nn.Linear(4, 3, bias=False)

    def loss(i):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        y = net(x) if i < 2 else net(x) * torch.tensor([1.0, 0.0, 1.0])
        scale = y.detach().abs().amax(0) / 127
        if fixed:
            scale = scale.clamp_min(1e-8)
        levels = y / scale  # ORIGIN
        q = (levels.round() - levels).detach() + levels
        return (q * scale - 0.1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "round", step=0, phase="backward", ops=("zeros_like", "mul", "round_backward"))
def rounding_without_a_straight_through_gradient(fixed):
    torch.manual_seed(3)
    net = nn.Linear(4, 3)
    head = nn.Linear(3, 1)
    x = torch.randn(16, 4)

    def loss(i):
        h = net(x) * 8
        q = (h.round() - h).detach() + h if fixed else torch.round(h)  # ORIGIN
        return (head(q / 8) - 1).square().mean()

    both = nn.ModuleList([net, head])
    return both, train(both.parameters(), loss)


@fault("absorbed-update", "add_", step=0, ops=("mul_", "lerp_", "add", "copy_"), phase="optimizer")
def average_of_weights_in_bfloat16(fixed):
    torch.manual_seed(4)
    net = nn.Linear(8, 8)
    dtype = torch.float32 if fixed else torch.bfloat16
    shadow = [torch.ones_like(p).to(dtype) for p in net.parameters()]

    def loss(i):
        with torch.no_grad():
            for s, p in zip(shadow, net.parameters(), strict=True):
                s.add_(0.001 * (p - s).to(dtype))  # ORIGIN
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i))
        return (net(x) - x).square().mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "var", step=1, ops=("pow", "sum", "mean", "square"))
def variance_of_counts_in_half(fixed):
    torch.manual_seed(5)
    net = nn.Linear(6, 2)

    def loss(i):
        x = torch.rand(8, 6, generator=torch.Generator().manual_seed(i)) * (10 if i < 1 else 3000)
        x = x / 3000 if fixed else x.half()
        spread = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)  # ORIGIN
        return net(((x - x.mean(-1, keepdim=True)) * spread.float()).float()).tanh().square().mean()

    return net, train(net.parameters(), loss)


@fault("poisoned-gradient", "add_", step=0, phase="backward", ops=("add", "AccumulateGrad", "mul", "mm"))
def gradient_left_over_from_a_trial(fixed):
    torch.manual_seed(6)
    net = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    (net(x) * torch.inf).sum().backward()
    if fixed:
        net.zero_grad()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(i):
        loss = (net(x) - 1).square().mean()
        loss.backward()  # ORIGIN
        opt.step()  # ALSO
        opt.zero_grad()
        return loss

    return net, step


@fault("eps-underflow", "div", step=0, also=("div-by-zero",), ops=("add",))
def epsilon_of_a_half_norm(fixed):
    torch.manual_seed(7)
    net = nn.Linear(6, 4, bias=False)
    x = torch.randn(5, 6)
    x[2] = 0

    def loss(i):
        h = net(x).half()
        size = h.detach().square().sum(-1, keepdim=True).sqrt() + (1e-4 if fixed else 1e-8)  # ALSO
        return ((h / size).float() - 0.1).square().sum()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "_to_copy", step=2, ops=("mul", "mm", "addmm", "linear"))
def logits_cast_for_a_half_head(fixed):
    torch.manual_seed(8)
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)

    def loss(i):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) * (1 if i < 2 else 2e5)
        h = body(x)
        h = (h.clamp(-6e4, 6e4) if fixed else h).to(torch.float16)  # ORIGIN
        return head(h.float()).log_softmax(-1)[:, 0].neg().mean() * 1e-6

    both = nn.ModuleList([body, head])
    return both, train(both.parameters(), loss)


@fault("dtype-underflow", "_to_copy", step=0, phase="backward", ops=("mul", "mm", "div"))
def tiny_loss_through_a_half_layer(fixed):
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(512, 4)

    def loss(i):
        with torch.autocast("cpu", torch.float16, enabled=not fixed):
            y = net(x)  # ALSO
        return (y.float() - 1).square().mean() * 1e-6  # ORIGIN

    return net, train(net.parameters(), loss, 100.0)


@fault("optimizer-arithmetic", "div", step=0, phase="optimizer", also=("div-by-zero", "norm-at-zero"))
def trust_ratio_of_a_zero_layer(fixed):
    torch.manual_seed(10)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    x = torch.randn(16, 4)
    x[:, 3] = 0

    def step(i):
        net.zero_grad()
        loss = (net(x.clamp(max=0) if i else x) - 1).square().mean()
        if i == 0:
            loss = loss + 0 * net[0].weight.sum()
        loss.backward()
        net[0].bias.grad.zero_()
        with torch.no_grad():
            for p in net.parameters():
                size = p.grad.norm()
                ratio = p.norm() / (size + 1e-8 * fixed)  # ORIGIN
                p.sub_(1e-3 * ratio * p.grad)  # ALSO
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", step=0, phase="optimizer", also=("div-by-zero", "norm-at-zero"), ops=("div_",))
def row_norm_of_a_zero_initialised_layer(fixed):
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.zeros_(net[2].weight)
    x = torch.randn(16, 4)

    def step(i):
        net.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(0.01 * p.grad)
                if p.dim() == 2 and i == 0:
                    rows = p if p is not net[2].weight else p * 0
                    p.copy_(rows / (rows.norm(dim=1, keepdim=True) + 1e-6 * fixed))  # ORIGIN
        return loss

    return net, step


@fault("log-of-negative", "log", step=2, also=("nan-in-target",))
def size_of_an_inverted_box(fixed):
    torch.manual_seed(12)
    net = nn.Linear(4, 2)
    gen = torch.Generator().manual_seed(13)

    def boxes(i):
        corner = torch.rand(6, 2, generator=gen)
        far = corner + torch.rand(6, 2, generator=gen) + 0.1
        if i == 2 and not fixed:
            far[4] = corner[4] - 0.2  # DATA
        return torch.cat([corner, far], -1)

    def loss(i):
        b = boxes(i)
        size = torch.log(b[:, 2:] - b[:, :2])  # ORIGIN
        return nn.functional.smooth_l1_loss(net(b), size)

    return net, train(net.parameters(), loss)


@fault("div-by-tiny", "div", step=1, also=("div-by-zero",), second=("learning-rate",))
def scale_thrown_into_the_tail_of_softplus(fixed):
    torch.manual_seed(14)
    raw = nn.Parameter(torch.zeros(3))
    x = torch.randn(20, 3) * 1e-3
    opt = torch.optim.SGD([raw], lr=0.1 if fixed else 400.0)

    def step(i):
        scale = nn.functional.softplus(raw)
        z = x / scale  # ORIGIN
        loss = (0.5 * z.square() + scale.clamp_min(1e-6).log()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"raw": raw}
    return None, step


@healthy("a loss scaler by hand: it unscales, looks for infinities, skips and halves")
def scaler_by_hand(fixed=False):
    torch.manual_seed(15)
    net = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    opt, scale = torch.optim.SGD(net.parameters(), lr=0.01), [2.0**18]

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            y = net(x)
        loss = (y.float() - 1).square().mean()
        (loss * scale[0]).backward()
        grads = [p.grad for p in net.parameters()]
        if all(torch.isfinite(g).all() for g in grads):
            for g in grads:
                g.div_(scale[0])
            opt.step()
        else:
            scale[0] /= 2
        return loss

    return net, step


@healthy("a scaler's gradients are unscaled for a look, and the step goes through the scaler")
def inspected_gradients(fixed=False):
    torch.manual_seed(16)
    net = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    opt, scaler = torch.optim.AdamW(net.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (net(x).float() - 1).square().mean()
        scaler.scale(loss).backward()
        total = sum(float(p.grad.norm()) for p in net.parameters()) / scaler.get_scale()
        assert total < 1e4
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy("gradients are divided by the scale by hand before a plain step; the scaler only scales")
def bypassed_and_unscaled(fixed=False):
    torch.manual_seed(17)
    net = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    opt, scaler = torch.optim.SGD(net.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=512.0)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - 1).square().mean()
        scaler.scale(loss).backward()
        for p in net.parameters():
            p.grad /= scaler.get_scale()
        opt.step()
        return loss

    return net, step


@healthy("quantised weights through a straight-through estimator; half of the levels are zero")
def straight_through(fixed=False):
    torch.manual_seed(18)
    net = nn.Linear(16, 4)
    x = torch.randn(8, 16)

    def loss(i):
        w = net.weight
        q = w + ((w * 4).round() / 4 - w).detach()
        return (nn.functional.linear(x, q, net.bias) - 1).square().mean()

    return net, train(net.parameters(), loss)


@healthy("a gate that is closed in the first steps and opens later")
def gate_that_opens(fixed=False):
    torch.manual_seed(19)
    net, extra = nn.Linear(4, 2), nn.Linear(4, 2)
    x = torch.randn(8, 4)
    both = nn.ModuleList([net, extra])
    return both, train(both.parameters(), lambda i: (net(x) + (0.0 if i < 2 else 1.0) * extra(x) - 1).square().mean())


@healthy("dropout of a whole branch in some steps")
def stochastic_depth(fixed=False):
    torch.manual_seed(20)
    net, extra = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.randn(8, 4)
    both = nn.ModuleList([net, extra])
    return both, train(both.parameters(), lambda i: (net(x) + float(i % 2) * extra(x) - 1).square().mean())


@healthy("a hinge that every sample satisfies: the run has converged")
def satisfied_hinge(fixed=False):
    torch.manual_seed(21)
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.0]]))
        net.bias.zero_()
    x = torch.tensor([[1.3, 0.0], [-1.3, 0.2], [1.2, 0.1]])
    y = torch.tensor([1.0, -1.0, 1.0])
    return net, train(net.parameters(), lambda i: torch.relu(1.25 - y * net(x).squeeze(-1)).mean(), 0.5)


@healthy("a term of weight zero keeps every parameter in the graph")
def zero_weight_term(fixed=False):
    torch.manual_seed(22)
    used, unused = nn.Linear(4, 2), nn.Linear(4, 2)
    x = torch.randn(8, 4)
    both = nn.ModuleList([used, unused])
    return both, train(both.parameters(), lambda i: (used(x) - 1).square().mean() + 0.0 * unused(x).sum())


@healthy("the bias before a batch normalisation has a gradient of zero, up to rounding, and no effect")
def bias_before_normalisation(fixed=False):
    torch.manual_seed(23)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    x = torch.randn(16, 4)
    return net, train(net.parameters(), lambda i: (net(x) - 1).square().mean())


@healthy(
    "key biases of attention have no effect on softmax; LoRA's first factor gets no gradient while the second is zero"
)
def low_rank_adapter(fixed=False):
    torch.manual_seed(24)
    base = nn.Linear(6, 6).requires_grad_(False)
    down, up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))
    x = torch.randn(8, 6)
    return None, train([down, up], lambda i: (base(x) + x @ down.T @ up.T - 1).square().mean(), 0.1)
