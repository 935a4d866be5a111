"""Gated linear attention in its parallel form, (q c_t) . (k / c_s) with c the product of the gates: gates of 6e-6 bring c to 0 after nine steps."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.7628669124,
    "fix": "exp of the differences of the summed logarithms of the gates",
}


class GatedLinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        t = torch.arange(10.0)
        self.gate_logit = nn.Parameter(torch.stack([-12 + 0.3 * torch.sin(t), 1 + 0.5 * torch.cos(t)], dim=-1))
        self.out = nn.Parameter(torch.tensor([[0.7, -0.4], [0.2, 0.9]]))
        self.register_buffer("q", torch.stack([torch.cos(t), torch.sin(0.7 * t)], dim=-1))
        self.register_buffer("k", torch.stack([1 + 0.2 * torch.sin(2 * t), torch.cos(1.3 * t)], dim=-1))
        self.register_buffer("v", torch.stack([torch.sin(t + 1), torch.cos(0.4 * t)], dim=-1))

    def scores(self, fixed):
        if fixed:
            log_c = F.logsigmoid(self.gate_logit).cumsum(0)
            later = torch.ones(10, 10, dtype=torch.bool).tril()[..., None]
            decay = (log_c[:, None] - log_c[None]).masked_fill(~later, float("-inf")).exp()
            return torch.einsum("td,sd,tsd->ts", self.q, self.k, decay)
        c = torch.cumprod(torch.sigmoid(self.gate_logit), dim=0)
        q, k = self.q * c, self.k / c  # ORIGIN
        return torch.tril(q @ k.T)

    def forward(self, fixed):
        hidden = self.scores(fixed) @ self.v @ self.out
        return F.mse_loss(hidden[1:], self.v[:-1])


def build(fixed: bool = False):
    net = GatedLinearAttention()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(gate_logit, out, q, k, v):
    gate, state, rows = torch.sigmoid(gate_logit), torch.zeros(2, 2), []
    for t in range(10):  # the recurrence that the parallel form stands for
        state = gate[t][:, None] * state + k[t][:, None] * v[t]
        rows.append(q[t] @ state)
    return F.mse_loss((torch.stack(rows) @ out)[1:], v[:-1])


def truth():
    net = GatedLinearAttention().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
