"""AdamW with lr 1e-6 on a bfloat16 model loaded from a checkpoint: no matrix moves at all."""
import torch
from torch import nn

META = {
    "origin_op": "addcdiv_", "also_ops": ("mul_",), "phase": "optimizer", "cause": "absorbed-update", "symptom": "silent-underflow",
    "first_bad_step": 0, "n_steps": 5, "fix": "float32 master weights or stochastic rounding",
}


def build(fixed: bool = False):
    torch.manual_seed(24)
    net = nn.Sequential(nn.Embedding(40, 16), nn.Flatten(), nn.Linear(64, 32, bias=False), nn.SiLU(), nn.Linear(32, 40, bias=False))
    with torch.no_grad():  # a trained checkpoint has few weights next to zero
        for p in net.parameters():
            p.copy_(torch.where(p.abs() < 0.02, 0.02 * torch.sign(p + 1e-9), p))
    if not fixed:
        net = net.to(torch.bfloat16)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-6, weight_decay=0.01)
    gen = torch.Generator().manual_seed(25)

    def step(i):
        ids = torch.randint(0, 40, (16, 5), generator=gen)
        logits = net(ids[:, :4])
        loss = nn.functional.cross_entropy(logits.float(), ids[:, 4])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()  # ORIGIN
        return loss

    return net, step
