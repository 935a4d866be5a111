"""Truncated importance weights pi / mu over padded episodes: mu is 0 after the end, and so is the mask."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.17473406,
    "fix": "a behaviour probability of 1 at padded steps",
}


class OffPolicyCritic(nn.Module):
    RHO_MAX, GAMMA = 10.0, 0.95

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.4, -0.2, 0.1], [-0.6, 0.3, 0.5]]))
        self.value = nn.Parameter(torch.tensor([0.5, -0.1]))
        self.register_buffer("state", torch.tensor([[0, 1, 1], [1, 0, 0]]))
        self.register_buffer("action", torch.tensor([[2, 0, 1], [1, 0, 0]]))
        self.register_buffer("behaviour", torch.tensor([[0.5, 0.3, 0.4], [0.6, 0.0, 0.0]]))
        self.register_buffer("reward", torch.tensor([[1.0, 0.2, -0.5], [0.7, 0.0, 0.0]]))
        self.register_buffer("mask", torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))

    def weights(self, fixed):
        policy = self.logits.softmax(-1)[self.state, self.action]
        mu = self.behaviour.where(self.mask.bool(), torch.tensor(1.0)) if fixed else self.behaviour
        rho = policy / mu  # ORIGIN
        return self.mask * rho

    def forward(self, fixed):
        discount = self.GAMMA ** torch.arange(3.0)
        advantage = self.reward - self.value[self.state]
        rho = self.weights(fixed)
        gain = (rho * discount * advantage).sum(-1)
        critic = (self.mask * advantage.square()).sum() / self.mask.sum()
        return 0.5 * critic - gain.mean()


def build(fixed: bool = False):
    net = OffPolicyCritic()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(logits, value, state, action, behaviour, reward, mask):
    p, gain, critic = torch.softmax(logits, 1), 0.0, 0.0
    for b, t in ((0, 0), (0, 1), (0, 2), (1, 0)):
        s = state[b, t]
        adv = reward[b, t] - value[s]
        gain = gain + p[s, action[b, t]] / behaviour[b, t] * 0.95**t * adv
        critic = critic + adv**2
    return critic / 8 - gain / 2


def truth():
    net = OffPolicyCritic().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
