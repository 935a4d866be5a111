"""L-BFGS without a line search on square roots of predicted times: one long step makes a time negative, and its root NaN."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "also_causes": ("learning-rate",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "a softplus link, and line_search_fn='strong_wolfe'",
}


class WaitingTime(nn.Module):
    def __init__(self, link):
        super().__init__()
        self.link = link
        self.mean = nn.Linear(4, 1)
        nn.init.constant_(self.mean.weight, 0.1)
        nn.init.constant_(self.mean.bias, 2.0)

    def forward(self, x):
        return self.link(self.mean(x).squeeze(-1))


def build(fixed: bool = False):
    torch.manual_seed(462)
    net = WaitingTime(nn.functional.softplus if fixed else nn.Identity())
    search = "strong_wolfe" if fixed else None
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0 if fixed else 30.0, max_iter=4, line_search_fn=search)
    gen = torch.Generator().manual_seed(562)
    x = torch.rand(40, 4, generator=gen)
    waited = torch.empty(40).exponential_(1.0, generator=gen) * (1.0 + 2.0 * x.sum(1))

    def closure():
        opt.zero_grad()
        mean = net(x)
        loss = nn.functional.mse_loss(torch.sqrt(mean), waited.sqrt())  # ORIGIN
        loss.backward()
        return loss

    def step(i):
        opt.step(closure)  # ALSO
        return closure().detach()

    return net, step
