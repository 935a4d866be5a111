"""Two optimizers, one clipping over all parameters: only the first optimizer was unscaled before, so the second one's scaled gradients set the norm."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_mul_",
    "also_ops": ("mul_", "clip_grad_norm_"),
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "silent-scaler-misuse",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "progress",
    "fix": "unscale both optimizers before",
}


def build(fixed: bool = False):
    torch.manual_seed(648)
    net = nn.ModuleDict({"body": nn.Linear(6, 24), "head": nn.Linear(24, 3)})
    opts = [torch.optim.SGD(net["body"].parameters(), lr=0.1), torch.optim.SGD(net["head"].parameters(), lr=0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    gen = torch.Generator().manual_seed(748)

    def step(i):
        x = torch.randn(24, 6, generator=gen)
        y = x[:, :3].argmax(1)
        for opt in opts:
            opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net["head"](torch.tanh(net["body"](x)))
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        for opt in opts if fixed else opts[:1]:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        for opt in opts:
            scaler.step(opt)
        scaler.update()
        return loss

    return net, step
