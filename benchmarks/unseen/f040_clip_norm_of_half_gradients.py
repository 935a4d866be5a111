"""clip_grad_norm_ on half gradients that carry a loss scale: the total norm is inf in half, the clip factor 0, and no parameter moves."""
import torch
from torch import nn

META = {
    "origin_op": "linalg_vector_norm", "also_ops": ("mul_", "_foreach_mul_", "_foreach_norm", "mul", "div", "clamp", "reciprocal"), "phase": "optimizer", "also_phase": "other",
    "cause": "clip-nonfinite-norm", "also_causes": ("dtype-overflow", "scaler-misuse", "loss-scale-overflow"), "symptom": "silent-underflow",
    "first_bad_step": 0, "n_steps": 4, "fix": "unscale into float32 before clipping",
}


def build(fixed: bool = False):
    torch.manual_seed(78)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).half()
    master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    opt = torch.optim.SGD(master, lr=0.05)
    gen = torch.Generator().manual_seed(79)
    scale = 16384.0

    def step(i):
        x = torch.randn(32, 10, generator=gen)
        y = 8 * x[:, :1]
        net.zero_grad()
        loss = (net(x.half()).float() - y).pow(2).mean()
        (loss * scale).backward()
        if not fixed:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0 * scale)  # ORIGIN
        for p, m in zip(net.parameters(), master):
            m.grad = p.grad.float() / scale
        if fixed:
            torch.nn.utils.clip_grad_norm_(master, 1.0)
        opt.step()
        with torch.no_grad():
            for p, m in zip(net.parameters(), master):
                p.copy_(m)
        return loss

    return net, step
