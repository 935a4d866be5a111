"""Graph attention whose softmax over neighbours is written with index_add: an edge score of 98 overflows."""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 10.72751557,
    "fix": "the maximum of each neighbourhood subtracted first",
}


class GraphAttention(nn.Module):
    SLOPE = 0.2

    def __init__(self):
        super().__init__()
        self.lin = nn.Parameter(torch.tensor([[1.0, -0.5], [0.3, 0.8]]))
        self.source = nn.Parameter(torch.tensor([1.7, 0.7]))
        self.target = nn.Parameter(torch.tensor([0.4, -0.9]))
        self.register_buffer("x", torch.tensor([[60.0, 20.0], [59.0, 21.0], [-0.8, -0.5], [1.0, 0.3]]))
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 0, 1, 2, 3, 2, 3], [0, 0, 0, 1, 1, 2, 2, 3, 3]]))
        self.register_buffer("goal", torch.tensor([[59.0, 0.0], [60.0, 0.0], [0.0, 0.0], [1.0, 0.5]]))

    def attend(self, h, fixed):
        src, dst = self.edges
        score = F.leaky_relu(h[src] @ self.source + h[dst] @ self.target, self.SLOPE)
        if fixed:
            peak = torch.full_like(h[:, 0], float("-inf")).scatter_reduce(0, dst, score.detach(), "amax")
            score = score - peak[dst]
        weight = torch.exp(score)  # ORIGIN
        total = torch.zeros_like(h[:, 0]).index_add(0, dst, weight)
        alpha = weight / total[dst]
        return torch.zeros_like(h).index_add(0, dst, alpha[:, None] * h[src])

    def forward(self, fixed):
        h = self.x @ self.lin.T
        return F.smooth_l1_loss(self.attend(h, fixed), self.goal)


def build(fixed: bool = False):
    net = GraphAttention()
    opt = torch.optim.Adam(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(lin, source, target, x, edges, goal):
    h, rows = x @ lin.T, []
    for node in range(4):
        near = edges[0][edges[1] == node]
        score = F.leaky_relu(h[near] @ source + h[node] @ target, 0.2)
        rows.append(torch.softmax(score, 0) @ h[near])
    return F.smooth_l1_loss(torch.stack(rows), goal)


def truth():
    net = GraphAttention().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
