"""Hyperbolic embeddings: exponential map at the origin of the Poincare ball, an item not seen yet sits at tangent vector 0."""
import torch
import torch.nn as nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "kind": "removable",
    "loss_truth": 0.4832863366,
    "fix": "the factor tanh(sqrt(c) n) / (sqrt(c) n) = 1 - c n^2 / 3 near n = 0",
}


class PoincareEmbedding(nn.Embedding):
    def __init__(self, weight, c=1.0):
        super().__init__(*weight.shape, _weight=weight)
        self.root_c = c**0.5

    def forward(self, index, fixed=False):
        v = super().forward(index)
        if fixed:
            n2 = v.square().sum(-1, keepdim=True)
            near = n2 < 1e-4
            s = torch.where(near, torch.ones_like(n2), n2).sqrt() * self.root_c
            return v * torch.where(near, 1 - self.root_c**2 * n2 / 3, torch.tanh(s) / s)
        n = v.norm(dim=-1, keepdim=True)
        return torch.tanh(self.root_c * n) * v / (self.root_c * n)  # ORIGIN


def build(fixed: bool = False):
    emb = PoincareEmbedding(torch.tensor([[0.3, -0.5], [0.0, 0.0], [1.0, 0.2], [-0.6, 0.9]]), c=0.5)
    opt = torch.optim.SGD(emb.parameters(), lr=1e-3)
    batches = [torch.tensor([0, 2, 3]), torch.tensor([3, 1, 1, 0])]
    anchor = torch.tensor([0.4, 0.1])

    def step(i):
        opt.zero_grad()
        z = emb(batches[i % 2], fixed)
        loss = (z - anchor).square().sum(-1).mean()
        loss.backward()
        opt.step()
        return loss

    return emb, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    w, anchor = t64([[0.3, -0.5], [0.0, 0.0], [1.0, 0.2], [-0.6, 0.9]], True), t64([0.4, 0.1])
    v, r = w[[3, 0]], 0.5**0.5  # the second batch; one plain SGD step of 1e-3 before it moves nothing by 1 %
    n = v.norm(dim=-1, keepdim=True)
    g = torch.autograd.grad((torch.tanh(r * n) * v / (r * n) - anchor).square().sum() / 4, w)[0]
    g[1] = 2 * 2 * (0 - anchor) / 4  # twice in the batch, identity as the map's derivative
    return {"weight": g}
