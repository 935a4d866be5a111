"""Row norms by hand as a penalty: a row of zeros has no gradient, any of length up to 0.3 will do.

Source: well-known fault (group penalties)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.9,
    "bound": 0.3,
}


class Ridge(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, -2.0]]))

    def forward(self, fixed):
        if fixed:
            loss = 0.3 * torch.linalg.vector_norm(self.w, dim=1).sum()
        else:
            loss = 0.3 * torch.sqrt((self.w**2).sum(1)).sum()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Ridge()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    w = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, -2.0]], dtype=torch.float64, requires_grad=True)
    loss = 0.3 * torch.linalg.vector_norm(w, dim=1).sum()
    dw_, = torch.autograd.grad(loss, [w])
    dw_[0] = float("nan")
    return {"w": dw_}
