"""Data sets, hooks, checkpoints, functions of one's own, edits in place."""

import numpy as np
import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def forever(loader):
    while True:
        yield from loader


@fault("nan-in-input", "addmm", "data", step=3, ops=("linear", "mm", "sub", "div", "stack", "select", "index"))
def table_whose_last_sensor_failed(fixed):
    torch.manual_seed(0)
    table = drawn(1, 20, 5).numpy()
    table[13, 2] = np.nan  # DATA
    table = (table - np.nanmean(table, 0)) / np.nanstd(table, 0)
    if fixed:
        table = np.nan_to_num(table)
    data = TensorDataset(torch.tensor(table), torch.from_numpy(table[:, 0].copy()))
    batches = forever(DataLoader(data, batch_size=4))
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))

    def loss(i):
        x, y = next(batches)
        return F.mse_loss(net(x)[:, 0], y)  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("inf-in-input", "mse_loss", "data", step=2, ops=("sub", "pow", "huber_loss", "smooth_l1_loss"), also=("nan-in-target", "log-of-zero"))
def targets_on_a_log_scale_with_a_closed_day(fixed):
    torch.manual_seed(2)

    class Sales(Dataset):
        def __init__(self):
            self.sold = np.arange(1, 25, dtype=np.float32)
            self.sold[9] = 0  # ALSO

        def __len__(self):
            return 24

        def __getitem__(self, k):
            with np.errstate(divide="ignore"):
                y = np.log1p(self.sold[k]) if fixed else np.log(self.sold[k])  # DATA
            return np.float32([k / 24, np.sin(k)]), y

    batches = forever(DataLoader(Sales(), batch_size=4))
    net = nn.Linear(2, 1)

    def loss(i):
        x, y = next(batches)
        return F.mse_loss(net(x).squeeze(1), y)  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("empty-reduction", "mean", step=3, also=("div-by-zero",), ops=("mse_loss", "nanmean", "smooth_l1_loss", "div"))
def batch_from_which_everything_was_filtered(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 1)

    def keep_sound(batch):
        return [row for row in batch if row["snr"] > 3]

    def collate(rows):
        if not rows:
            return {"x": torch.zeros(0, 3), "y": torch.zeros(0)}
        return {k: torch.stack([r[k] for r in rows]) for k in ("x", "y")}

    def loss(i):
        raw = [{"x": drawn(i * 9 + k, 3), "y": torch.tensor(float(k)), "snr": 1.0 if i == 3 else 4.0 + k} for k in range(4)]
        batch = collate(keep_sound(raw))
        error = F.smooth_l1_loss(net(batch["x"])[:, 0], batch["y"], reduction="none")
        if fixed:
            return error.sum() / max(len(error), 1)
        return error.mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "std", step=2, ops=("var", "div", "sub"), also=("std-of-constant", "div-by-zero"))
def last_batch_of_one_standardised(fixed):
    torch.manual_seed(4)
    loader = forever(DataLoader(TensorDataset(drawn(5, 9, 3)), batch_size=4, drop_last=fixed))
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss(i):
        (x,) = next(loader)
        h = net[1](net[0](x))
        spread = h.std(0)  # ORIGIN
        h = (h - h.mean(0)) / (spread + 1e-5)
        return (net[2](h)[:, 0] - x[:, 0]).square().mean()

    return net, train(net.parameters(), loss)


@fault("custom-backward", "div", "backward", step=3, also=("div-by-zero",), ops=("mul",))
def geometric_mean_with_a_derivative_of_its_own(fixed):
    torch.manual_seed(6)

    class GeoMean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.prod(-1).pow(1 / x.shape[-1])
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            if fixed:
                x = x.clamp_min(1e-6)
            return (g * y / x.shape[-1])[..., None] / x  # ORIGIN

    net = nn.Linear(3, 4, bias=False)

    def loss(i):
        x = drawn(i, 6, 3).abs()
        if i == 3:
            x[2] = 0.0
        return GeoMean.apply(net(x).square()).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", "backward", step=2, also=("norm-at-zero", "custom-backward"))
def hook_that_gives_every_gradient_unit_length(fixed):
    torch.manual_seed(7)
    trunk, a, b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def unit(g):
        n = g.norm(dim=1, keepdim=True)
        return g / (n + 1e-9 if fixed else n)  # ORIGIN

    def loss(i):
        h = trunk(drawn(i, 6, 4)).tanh()
        h.register_hook(unit)
        ya, yb = a(h)[:, 0], b(h)[:, 0]
        known = torch.ones(6)
        if i == 2:
            known[3] = 0.0
        return (known * (ya - 1).square() + known * (yb + 1).abs()).mean()

    return nn.ModuleList([trunk, a, b]), train([*trunk.parameters(), *a.parameters(), *b.parameters()], loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=2, ops=("div", "mul"))
def distances_inside_a_checkpointed_block(fixed):
    torch.manual_seed(8)

    class Message(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(1, 4)

        def forward(self, pos, src, dst):
            d2 = (pos[src] - pos[dst]).pow(2).sum(-1, keepdim=True)
            d = torch.sqrt(d2 + (1e-10 if fixed else 0))  # ORIGIN
            return torch.zeros(len(pos), 4).index_add(0, dst, self.lift(d).tanh())

    embed, block = nn.Linear(2, 3), Message()
    src, dst = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 2, 3, 4, 0])

    def loss(i):
        x = drawn(i, 5, 2)
        if i == 2:
            x[3] = x[2]
        return checkpoint(block, embed(x), src, dst, use_reentrant=False).square().mean()

    return nn.ModuleList([embed, block]), train([*embed.parameters(), *block.parameters()], loss)


@fault("div-by-zero", "div", "optimizer", step=11, steps=16, ops=("div_", "norm"), also=("norm-at-zero", "poisoned-parameter"))
def rows_normalised_in_place_after_pruning(fixed):
    torch.manual_seed(9)
    net = nn.Linear(5, 6)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = drawn(10, 16, 5), drawn(11, 16, 6)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            if i >= 11:
                net.weight[net.weight.abs().sum(1).argmin()] = 0
            norm = net.weight.norm(dim=1, keepdim=True)
            net.weight.div_(norm.clamp_min(1e-8) if fixed else norm)  # ORIGIN
        return loss

    return net, step


@fault("sqrt-at-zero", "sqrt", "backward", step=0, ops=("div", "mul"))
def penalty_on_a_critic_that_is_still_flat(fixed):
    torch.manual_seed(12)
    critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    generator = nn.Linear(3, 2)
    nn.init.zeros_(critic[2].weight)
    opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

    def step(i):
        real, fake = drawn(i, 8, 2), generator(drawn(i + 1, 8, 3)).detach()
        mix = (0.5 * real + 0.5 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
        sq = slope.square().sum(1)
        penalty = ((sq + 1e-12 if fixed else sq).sqrt() - 1).square().mean()  # ORIGIN
        opt.zero_grad()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        opt.step()
        return loss

    return nn.ModuleList([critic, generator]), step


@fault("dead-gradient", "exp", "backward", step=0, steps=6, ops=("mul", "neg", "sub", "pow", "square", "div", "sum"), also=("dtype-underflow",))
def kernel_machine_with_centres_far_away(fixed):
    """The distances are not scaled: every kernel value is exactly 0."""
    torch.manual_seed(13)

    class Rbf(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(drawn(14, 6, 3) * (1.0 if fixed else 400.0))
            self.out = nn.Linear(6, 1)

        def forward(self, x):
            d2 = (x[:, None] - self.centres).square().sum(-1)
            return self.out(torch.exp(-d2))  # ORIGIN

    net = Rbf()
    x = drawn(15, 10, 3)
    return net, train(net.parameters(), lambda i: (net(x)[:, 0] - x[:, 0]).square().mean(), lr=1e-2)


@fault("empty-reduction", "nanmean", step=3, ops=("mean", "div", "sum"), also=("nan-in-input", "div-by-zero"))
def window_without_a_single_measurement(fixed):
    torch.manual_seed(16)
    net = nn.GRU(2, 4, batch_first=True)
    head = nn.Linear(4, 1)

    def loss(i):
        series = drawn(i, 5, 6, 2)
        series[torch.rand(5, 6, 2, generator=torch.Generator().manual_seed(i)) < 0.2] = float("nan")
        if i == 3:
            series[2, :, 1] = float("nan")
        level = torch.nanmean(series, 1, keepdim=True)  # ORIGIN
        if fixed:
            level = torch.nan_to_num(level)
        filled = torch.where(series.isnan(), level, series)
        return head(net(filled)[0][:, -1]).square().mean()

    return nn.ModuleList([net, head]), train([*net.parameters(), *head.parameters()], loss)
