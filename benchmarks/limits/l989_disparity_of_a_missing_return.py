"""Disparity f b / depth of a depth camera whose missing returns are 0, taken out by a clamp and a mask: 0 times inf on the way back."""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.004951076265,
    "fix": "a depth of 1 where there is no return",
}


class DepthCalibration(nn.Module):
    FOCAL_BASELINE = 2.4

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([0.1, -0.05]))
        self.offset = nn.Parameter(torch.tensor([0.02, 0.0]))
        self.register_buffer("raw", torch.tensor([[[1.2, 0.0], [2.5, 3.1]], [[0.8, 1.9], [0.0, 0.0]]]))
        self.register_buffer("mask", torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]]]))
        self.register_buffer("stereo", torch.tensor([[[1.9, 0.4], [0.9, 0.7]], [[3.1, 1.2], [0.5, 0.6]]]))

    def disparity(self, fixed):
        depth = torch.exp(self.log_scale).view(-1, 1, 1) * self.raw
        if fixed:
            depth = torch.where(self.mask > 0, depth, torch.ones_like(depth))
        inverse = self.FOCAL_BASELINE / depth  # ORIGIN
        return inverse + self.offset.view(-1, 1, 1)

    def forward(self, fixed):
        error = (self.disparity(fixed) - self.stereo).abs().clamp(max=5.0) * self.mask
        return error.square().sum() / self.mask.sum()


def build(fixed: bool = False):
    net = DepthCalibration()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(log_scale, offset, raw, mask, stereo):
    loss = 0.0
    for b, i, j in mask.nonzero().tolist():
        loss = loss + (2.4 * torch.exp(-log_scale[b]) / raw[b, i, j] + offset[b] - stereo[b, i, j]) ** 2
    return loss / mask.sum()


def truth():
    net = DepthCalibration().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
