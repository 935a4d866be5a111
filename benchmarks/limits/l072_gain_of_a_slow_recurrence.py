"""Linear recurrent unit: input gain sqrt(1 - |lambda|^2) with |lambda| = exp(-exp(nu)); a mode with a very long memory has |lambda| = 1 in float32."""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "plain",
    "loss_truth": 1.578716731,
    "fix": "sqrt(-expm1(-2 exp(nu)))",
}

NU, THETA, B, C = [-1.0, -17.5, -2.5], [0.3, 0.002, 1.4], [0.9, 1.5, -0.7], [1.1, 0.6, 0.8]
LENGTH = 150
Y = [0.5, -0.4]


def series():
    t = torch.arange(LENGTH) / 10
    return torch.stack([0.8 + torch.sin(t), torch.cos(0.7 * t) - 0.3 * torch.sin(2 * t)])


class LRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.nu = nn.Parameter(torch.tensor(NU))
        self.theta = nn.Parameter(torch.tensor(THETA))
        self.B = nn.Parameter(torch.tensor(B))
        self.C = nn.Parameter(torch.tensor(C))

    def gain(self, modulus):
        return torch.sqrt(1 - modulus**2)  # ORIGIN

    def forward(self, x):
        modulus = torch.exp(-torch.exp(self.nu))
        re, im = modulus * torch.cos(self.theta), modulus * torch.sin(self.theta)
        u = x[..., None] * (self.gain(modulus) * self.B)
        a = b = torch.zeros(len(x), 3)
        for t in range(x.shape[1]):
            a, b = re * a - im * b + u[:, t], re * b + im * a
        return a @ self.C


class LRUStable(LRU):
    def gain(self, modulus):
        return torch.sqrt(-torch.expm1(-2 * torch.exp(self.nu)))


def build(fixed: bool = False):
    net = LRUStable() if fixed else LRU()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = series(), torch.tensor(Y)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    nu, theta, b, c = leaf(NU), leaf(THETA), leaf(B), leaf(C)
    x, y = series().double(), torch.tensor(Y, dtype=torch.float64)
    rate = nu.exp()
    gain = (2 * torch.exp(-rate) * torch.sinh(rate)).sqrt()
    age = torch.arange(LENGTH - 1, -1, -1, dtype=torch.float64)[:, None]  # the response to an input of that age, closed form
    kernel = torch.exp(-rate * age) * torch.cos(theta * age) * gain * b
    loss = (x @ kernel @ c - y).pow(2).mean()
    g = torch.autograd.grad(loss, [nu, theta, b, c])
    return {"nu": g[0], "theta": g[1], "B": g[2], "C": g[3]}
