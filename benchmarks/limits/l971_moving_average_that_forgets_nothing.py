"""Bias-corrected moving average m / (1 - b^t), m = b m + (1 - b) x, in a head whose learned decay reaches 1: the plain mean of what has been seen."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3058682995,
    "fix": "the weighted mean with weights beta^(t - k)",
}


class DebiasedAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor([1.0, 0.8]))
        self.project = nn.Parameter(torch.tensor([[0.5, -0.3], [0.9, 0.4]]))
        self.register_buffer("tokens", torch.tensor([[[0.4, 1.0], [-0.7, 0.3], [1.2, -0.5], [0.1, 0.8]], [[1.0, -0.2], [0.6, 0.9], [-0.3, 0.5], [0.8, -1.1]]]))
        self.register_buffer("goal", torch.tensor([[0.3, 0.8], [-0.2, 0.4]]))

    def average(self, x, fixed):
        beta, outputs = self.decay, []
        state, mass = torch.zeros_like(x[:, 0]), torch.zeros_like(beta)
        for t in range(x.shape[1]):
            if fixed:
                state = beta * state + x[:, t]
                mass = beta * mass + 1
                outputs.append(state / mass)
                continue
            state = beta * state + (1 - beta) * x[:, t]
            correction = 1 - beta ** (t + 1)
            outputs.append(state / correction)  # ORIGIN
        return torch.stack(outputs, dim=1)

    def forward(self, fixed):
        hidden = self.average(self.tokens @ self.project, fixed)
        return (hidden[:, -1] - self.goal).square().mean() + 0.1 * hidden.square().mean()


def build(fixed: bool = False):
    net = DebiasedAverage()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(decay, project, tokens, goal):
    x = tokens @ project
    lag = (torch.arange(4)[:, None] - torch.arange(4)).clamp(min=0)
    weight = torch.tril(torch.ones(4, 4))[..., None] * decay ** lag[..., None]  # sum_j b^j = (1 - b^t) / (1 - b)
    hidden = torch.einsum("tsh,bsh->bth", weight / weight.sum(1, keepdim=True), x)
    return ((hidden[:, -1] - goal) ** 2).mean() + 0.1 * (hidden**2).mean()


def truth():
    net = DebiasedAverage().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
