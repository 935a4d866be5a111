"""A half model with a hand-made loss scale accumulates many micro-batches: the sum in .grad passes 65504 though each part fits."""
import torch
from torch import nn

META = {
    "origin_op": "add_", "also_ops": ("add", "AccumulateGrad"), "phase": "backward", "cause": "loss-scale-overflow", "also_causes": ("dtype-overflow",), "symptom": "grad-inf",
    "first_bad_step": 0, "n_steps": 3, "fix": "accumulate in float32, divide the loss by the number of micro-batches",
}


def build(fixed: bool = False):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).half()
    master = [p.detach().float().clone() for p in net.parameters()]
    scale, micro = 8192.0, 24
    gen = torch.Generator().manual_seed(7)

    def step(i):
        net.zero_grad()
        total = 0.0
        for _ in range(micro):
            x = torch.randn(8, 8, generator=gen).half()
            y = 1.0 + x[:, :1].float()
            loss = (net(x).float() - y).pow(2).mean()  # ALSO
            if fixed:
                loss = loss / micro
            total += loss.item()
            (loss * scale).backward()  # ORIGIN
        with torch.no_grad():
            for p, m in zip(net.parameters(), master):
                m -= 0.05 * p.grad.float() / scale
                p.copy_(m.half())
        return loss

    return net, step
