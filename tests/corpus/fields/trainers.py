"""Training loops in every style: closures, schedules, averages, accumulation, torch.func, checkpoints."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Trainer:
    """A class that owns model, optimizer and scaler, as many projects have one."""

    def __init__(self, net, lr=1e-2, **more):
        self.net = net
        self.opt = torch.optim.AdamW(net.parameters(), lr=lr, **more)
        self.history = []

    def loss(self, batch):
        raise NotImplementedError

    def fit_one(self, batch):
        self.net.train()
        self.opt.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        self.opt.step()
        self.history.append(loss.item())
        return loss


@fault("scaler-misuse", "sub", "optimizer", step=1, steps=6, ops=("add_", "_foreach_add_", "add"), also=("learning-rate", "exploding-gradient"))
def step_of_the_optimizer_instead_of_the_scaler(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1000)
    x, y = torch.randn(32, 6), torch.randn(32, 1)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if fixed:
            scaler.step(opt)
        else:
            opt.step()  # ORIGIN
        scaler.update() if fixed else None
        return loss

    return net, step


@fault("div-by-zero", "div", step=3)
def tokens_of_an_accumulation_window(fixed):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(1)

    def summed_loss(ids, labels):
        logits = net(ids)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")

    def step(i):
        micro = []
        for _ in range(2):
            ids = torch.randint(0, 20, (3, 5), generator=gen)
            labels = ids.clone()
            if i == 3:
                labels[:] = -100
            micro.append((ids, labels))
        tokens = sum((labels != -100).sum() for _, labels in micro)
        if fixed:
            tokens = tokens.clamp(min=1)
        opt.zero_grad()
        total = 0.0
        for ids, labels in micro:
            loss = summed_loss(ids, labels) / tokens  # ORIGIN
            loss.backward()
            total = total + loss.detach()
        opt.step()
        return total

    return net, step


@fault("log-of-negative", "log", step=3, also=("learning-rate",))
def likelihood_inside_a_closure(fixed):
    torch.manual_seed(2)
    rate = nn.Parameter(torch.tensor([0.5, 1.5, 3.0]))
    counts = torch.tensor([[0.0, 2.0, 4.0], [0.0, 1.0, 3.0], [0.0, 1.0, 2.0]])
    opt = torch.optim.SGD([rate], lr=0.2)

    def negative_log_likelihood(rate):
        lam = F.softplus(rate) if fixed else rate
        return (lam - counts * torch.log(lam)).mean(0).sum()  # ORIGIN

    def step(i):
        def closure():
            opt.zero_grad()
            loss = negative_log_likelihood(rate)
            loss.backward()
            return loss

        return opt.step(closure)

    step.parameters = {"rate": rate}
    return None, step


@fault("div-by-zero", "div", step=1, ops=("div_",), also=("poisoned-buffer", "poisoned-parameter"))
def average_corrected_from_step_zero(fixed):
    """The teacher's first average is divided by 1 - decay**0."""
    torch.manual_seed(3)
    student, teacher = nn.Linear(4, 4), nn.Linear(4, 4)
    teacher.requires_grad_(False)
    shadow = [torch.zeros_like(p) for p in student.parameters()]
    opt = torch.optim.SGD(student.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(4)

    @torch.no_grad()
    def update_teacher(t, decay=0.9):
        power = torch.tensor(decay) ** t
        for s, p, target in zip(shadow, student.parameters(), teacher.parameters(), strict=True):
            if t > 0:
                s.mul_(decay).add_(p, alpha=1 - decay)
            target.copy_(s / (1 - power))  # ORIGIN

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        y = teacher(x) if i else torch.zeros(8, 4)
        opt.zero_grad()
        loss = F.mse_loss(student(x), y)
        loss.backward()
        opt.step()
        update_teacher(i + 1 if fixed else i)
        return loss

    return student, step


@fault("zero-times-inf", "mul", step=2, ops=("div", "reciprocal"), also=("div-by-zero", "norm-at-zero"))
def private_gradients_of_a_silent_sample(fixed):
    """A sample whose gradient is zero is scaled by clip / 0."""
    torch.manual_seed(5)
    net = nn.Linear(5, 1)
    gen = torch.Generator().manual_seed(6)

    def sample_loss(params, x, y):
        out = torch.func.functional_call(net, params, (x[None],))
        return F.relu(1 - y * out.squeeze()).mean()

    def step(i):
        params = {k: v.detach() for k, v in net.named_parameters()}
        x = 0.3 * torch.randn(6, 5, generator=gen)
        y = torch.randint(0, 2, (6,), generator=gen).float() * 2 - 1
        if i == 2:
            x[0] = net.weight.detach()[0] * 50 * y[0]
        per_sample = torch.func.vmap(torch.func.grad(sample_loss), (None, 0, 0))(params, x, y)
        norms = torch.cat([g.flatten(1) for g in per_sample.values()], 1).square().sum(1).sqrt()
        factor = (0.5 / (norms + 1e-6 if fixed else norms))  # ALSO
        for name, p in net.named_parameters():
            g = per_sample[name].flatten(1) * factor[:, None]  # ORIGIN
            p.grad = g.mean(0).view_as(p)
        loss = torch.stack([sample_loss(params, a, b) for a, b in zip(x, y, strict=True)]).mean()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
        return loss

    return net, step


@fault("sqrt-at-zero", "sqrt", "backward", step=2, ops=("pow", "div"))
def amplitude_in_a_checkpoint(fixed):
    torch.manual_seed(7)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.real, self.imag = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)

        def envelope(self, x):
            power = self.real(x) ** 2 + self.imag(x) ** 2
            if fixed:
                power = power + 1e-8
            return torch.sqrt(power)  # ORIGIN

        def forward(self, x):
            return checkpoint(self.envelope, x, use_reentrant=False)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(6, 1)

        def forward(self, x):
            return self.head(self.block(x))

    net, gen = Net(), torch.Generator().manual_seed(8)

    def loss(i):
        x = torch.randn(5, 6, generator=gen)
        if i == 2:
            x[3] = 0
        return net(x).square().mean()

    return net, train(net.parameters(), loss)


@fault("learning-rate", "add", "optimizer", step=23, steps=26, ops=("addmm", "sub", "mse_loss", "pow", "mul", "add_", "mm"), also=("exploding-gradient",))
def warm_up_that_never_ends(fixed):
    torch.manual_seed(9)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(1.0, 1.6**t / 10) if fixed else 1.6**t)
    x = torch.randn(64, 6)
    y = x.sum(1, keepdim=True)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)  # ALSO
        loss.backward()
        opt.step()  # ORIGIN
        schedule.step()
        return loss

    return net, step


@fault("zero-times-inf", "mul", step=0, ops=("div", "reciprocal"), also=("div-by-zero",))
def loss_weights_by_class_frequency(fixed):
    """Inverse frequency of a class that the first data set lacks, turned at the first product with zero."""
    torch.manual_seed(10)

    def class_weights(labels, classes):
        counts = torch.bincount(labels, minlength=classes).float()
        if fixed:
            counts = counts.clamp(min=1)
        return counts.sum() / (classes * counts)  # ALSO

    class Model(nn.Module):
        def __init__(self, labels):
            super().__init__()
            self.fc = nn.Linear(4, 5)
            self.register_buffer("weights", class_weights(labels, 5))

        def loss(self, x, y):
            logp = self.fc(x).log_softmax(-1)
            target = F.one_hot(y, 5).float()
            return -(target * self.weights * logp).sum(-1).mean()  # ORIGIN

    labels = torch.tensor([0, 1, 2, 2, 1, 0, 4, 4])
    net = Model(labels)
    x = torch.randn(8, 4)

    class Fit(Trainer):
        def loss(self, batch):
            return self.net.loss(*batch)

    fit = Fit(net)
    return net, lambda i: fit.fit_one((x, labels))


@fault("poisoned-gradient", "add", "backward", step=3, ops=("add_", "accumulate", "mse", "_to_copy"), also=("nan-in-target",))
def gradient_kept_from_a_rejected_batch(fixed):
    """A bad batch is skipped, but its gradient stays in .grad when accumulation goes on."""
    torch.manual_seed(11)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(12)

    def step(i):
        x = torch.randn(8, 3, generator=gen)
        y = x.sum(1, keepdim=True)
        if i == 2:
            y[4] = float("nan")  # ALSO
        loss = F.mse_loss(net(x), y)  # ALSO
        loss.backward()  # ORIGIN
        if not torch.isfinite(loss):
            if fixed:
                opt.zero_grad()
            return torch.zeros(())
        opt.step()
        opt.zero_grad()
        return loss

    return net, step


@fault("optimizer-arithmetic", "div", "optimizer", step=0, ops=("div_", "sqrt", "_foreach_div_", "addcdiv_", "addcdiv", "_foreach_addcdiv_"), also=("div-by-zero", "optimizer-eps-underflow"))
def adagrad_without_epsilon(fixed):
    torch.manual_seed(13)
    table, head = nn.Embedding(10, 4), nn.Linear(4, 1)
    net = nn.ModuleList([table, head])
    opt = torch.optim.Adagrad(net.parameters(), lr=0.1, eps=1e-10 if fixed else 0.0)

    def step(i):
        ids = torch.tensor([1, 2, 3, 4])
        opt.zero_grad()
        loss = (head(table(ids)) - 1).square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
