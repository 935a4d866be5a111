"""Mean readout of a batch of graphs as a product with their membership, in half precision by autocast: forty nodes of 3000 sum to 120000."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mm",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.1539429444,
    "fix": "float32 before the sum",
}


class Readout(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.bias = nn.Parameter(torch.tensor([0.1, -0.2]))
        node = torch.arange(40.0)
        big = torch.stack([3000 + 400 * torch.sin(node), 2500 + 300 * torch.cos(node)], -1)
        small = torch.stack([20 + 4 * torch.cos(node), 10 + 3 * torch.sin(node)], -1)
        self.register_buffer("nodes", torch.stack([big, small]))
        self.register_buffer("member", torch.eye(2).repeat_interleave(40, dim=1))
        self.register_buffer("goal", torch.tensor([[2.5, 1.5], [0.2, 0.0]]))

    def pool(self, fixed):
        h = self.gain * self.nodes
        with torch.autocast("cpu", dtype=torch.float16, enabled=not fixed):
            total = self.member @ h.flatten(0, 1)  # ORIGIN
        return total / self.member.sum(1, keepdim=True)

    def forward(self, fixed):
        pooled = self.pool(fixed).float() / 1000 + self.bias
        return F.mse_loss(pooled, self.goal)


def build(fixed: bool = False):
    net = Readout()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(gain, bias, nodes, member, goal):
    return ((gain * nodes.mean(1) / 1000 + bias - goal) ** 2).mean()


def truth():
    net = Readout().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
