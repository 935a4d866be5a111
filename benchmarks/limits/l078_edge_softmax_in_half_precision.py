"""Graph attention with an edge softmax by index_add and no maximum taken off, under float16 autocast: exp(13.75) is beyond 65504."""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "autocast",
    "loss_truth": 2.300455712,
    "fix": "scores in float32, or less the maximum of their node",
}

X = [[2.0, 1.0], [-1.0, 0.5], [1.5, 2.0], [0.5, -1.0]]
SRC = [0, 1, 2, 0, 2, 0, 3, 1, 3]
DST = [0, 0, 0, 1, 1, 2, 2, 3, 3]
W = [[1.0, 0.5], [-0.5, 1.0]]
A_SRC, A_DST = [3.0, -0.5], [-4.0, 3.25]


class GATLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        self.att_src = nn.Linear(2, 1, bias=False)
        self.att_dst = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor(W))
            self.att_src.weight.copy_(torch.tensor([A_SRC]))
            self.att_dst.weight.copy_(torch.tensor([A_DST]))

    def attention(self, score, dst, n):
        e = torch.exp(score)  # ORIGIN
        total = torch.zeros(n, dtype=e.dtype).index_add(0, dst, e)
        return e / total[dst]

    def forward(self, x, src, dst):
        h = self.lin(x)
        score = nn.functional.leaky_relu((self.att_src(h)[src] + self.att_dst(h)[dst])[:, 0], 0.25)
        alpha = self.attention(score, dst, len(x))
        message = alpha[:, None] * h[src]
        return torch.zeros(len(x), 2, dtype=message.dtype).index_add(0, dst, message)


class GATLayerFloat(GATLayer):
    def attention(self, score, dst, n):
        return super().attention(score.float(), dst, n)


def build(fixed: bool = False):
    net = GATLayerFloat() if fixed else GATLayer()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, src, dst = torch.tensor(X), torch.tensor(SRC), torch.tensor(DST)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x, src, dst)
        loss = out.float().pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    w, s, d = leaf(W), leaf([A_SRC]), leaf([A_DST])
    h = torch.tensor(X, dtype=torch.float64) @ w.T
    rows = []
    for node in range(4):
        near = [a for a, b in zip(SRC, DST) if b == node]
        score = nn.functional.leaky_relu((h[near] @ s[0]) + h[node] @ d[0], 0.25)
        rows.append(torch.softmax(score, 0) @ h[near])
    g = torch.autograd.grad(torch.stack(rows).pow(2).mean(), [w, s, d])
    return {"lin.weight": g[0], "att_src.weight": g[1], "att_dst.weight": g[2]}
