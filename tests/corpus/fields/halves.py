"""Half and bfloat16 arithmetic."""


import torch
from programs import fault, train
from torch import nn


@fault("absorbed-update", "add", step=256, steps=262, ops=("add_",))
def token_counter_in_bfloat16(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    seen = torch.zeros(3, dtype=torch.float32 if fixed else torch.bfloat16)

    def loss(i):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        out = net(x)
        seen[:] += 1  # ORIGIN
        return out.square().mean() / (1 + 0 * seen.float().mean())

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "sum", step=1, ops=("square", "pow", "mul"))
def energy_of_half_features(fixed):
    torch.manual_seed(1)
    net = nn.Linear(8, 8)
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        h = (net(torch.randn(16, 8, generator=gen)) * (120.0 if i == 1 else 1.0)).half()
        energy = (h.float() if fixed else h).square().sum()  # ORIGIN
        return torch.log(energy.float() + 1)

    return net, train(net.parameters(), loss)


@fault("eps-underflow", "div", step=2, also=("div-by-zero",), ops=("rsqrt", "add"))
def layer_norm_by_hand_in_half(fixed):
    torch.manual_seed(3)
    net = nn.Linear(4, 8)
    gen = torch.Generator().manual_seed(4)

    def loss(i):
        h = net(torch.randn(5, 4, generator=gen)).half()
        if i == 2:
            h = h * 0 + 1
        middle = h.mean(-1, keepdim=True)
        spread = ((h - middle) ** 2).mean(-1, keepdim=True)
        eps = 1e-4 if fixed else 1e-8
        z = (h - middle) / torch.sqrt(spread + eps)  # ORIGIN
        return (z.float() - 0.1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "mul", step=0, also=("div-by-tiny",), ops=("div", "_to_copy"))
def sharp_temperature_in_half(fixed):
    torch.manual_seed(5)
    net = nn.Linear(4, 8)
    x = torch.randn(6, 4) * 60

    def loss(i):
        z = net(x) if fixed else net(x).half()
        score = torch.softmax(z / (50.0 if fixed else 0.0005), -1)  # ORIGIN
        return score.float().square().sum()

    return net, train(net.parameters(), loss)


@fault("optimizer-eps-underflow", "addcdiv_", "optimizer", step=0, also=("div-by-zero",), ops=("_foreach_addcdiv_", "div", "_foreach_div_"))
def adam_on_half_weights_with_an_unused_row(fixed):
    torch.manual_seed(6)
    table = nn.Embedding(6, 4).half()
    ids = torch.tensor([0, 1, 2])
    opt = torch.optim.Adam(table.parameters(), lr=1e-3, eps=1e-4 if fixed else 1e-8)

    def step(i):
        opt.zero_grad()
        loss = table(ids).float().square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = dict(table.named_parameters())
    return table, step


@fault("absorbed-update", "add", "optimizer", step=0, steps=4, ops=("add_", "_foreach_add_", "sub", "addcdiv_", "_foreach_addcdiv_"))
def slow_rate_on_bfloat16_weights(fixed):
    torch.manual_seed(7)
    weight = nn.Parameter(torch.full((4, 4), 1.5, dtype=torch.float32 if fixed else torch.bfloat16))
    x = torch.rand(5, 4)
    opt = torch.optim.SGD([weight], lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = (x.to(weight.dtype) @ weight).float().square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    step.parameters = {"weight": weight}
    return None, step
