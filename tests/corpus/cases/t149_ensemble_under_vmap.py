"""An ensemble trained under vmap by the logarithm of its probabilities; one member starts so wide that a probability is zero."""

import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "log_softmax",
}


class Ensemble(nn.Module):
    def __init__(self, fixed, members=4):
        super().__init__()
        nets = [nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(members)]
        with torch.no_grad():
            nets[2][2].weight.mul_(500.0)
        params, _ = stack_module_state(nets)
        self.names = list(params)
        self.stacked = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in params.values()])
        self.base = [copy.deepcopy(nets[0]).to("meta")]
        self.fixed = fixed

    def member(self, params, x, y):
        logits = functional_call(self.base[0], params, (x,))
        if self.fixed:
            return -torch.log_softmax(logits, -1).gather(1, y).mean()
        return -torch.log(torch.softmax(logits, -1)).gather(1, y).mean()  # ORIGIN

    def forward(self, x, y):
        params = dict(zip(self.names, self.stacked, strict=True))
        return vmap(self.member, in_dims=(0, None, None))(params, x, y).mean()


def build(fixed: bool = False):
    torch.manual_seed(649)
    net = Ensemble(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(749)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = torch.randint(0, 3, (16, 1), generator=gen)
        opt.zero_grad()
        loss = net(x, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
