"""Clipping to norm 1 while the gradients still carry the loss scale: after unscaling nothing is left, SGD stands still."""
import torch
from torch import nn

META = {
    "origin_op": "mul_", "also_ops": ("_foreach_mul_", "linalg_vector_norm", "clip_grad_norm_", "stack", "clamp", "add_", "_amp_foreach_non_finite_check_and_unscale_", "_foreach_norm"),
    "phase": "optimizer", "also_phase": "other", "cause": "scaler-misuse", "also_causes": ("absorbed-update",), "symptom": "silent-underflow",
    "first_bad_step": 0, "n_steps": 6, "fix": "scaler.unscale_(opt) before clipping",
}


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.head(self.body(x))


def build(fixed: bool = False):
    torch.manual_seed(0)
    net = Segmenter()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    gen = torch.Generator().manual_seed(1)

    def step(i):
        x = torch.randn(2, 3, 12, 12, generator=gen)
        y = (x[:, 0] > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()  # ALSO
        if fixed:
            scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        scaler.step(opt)  # ALSO
        scaler.update()
        return loss

    return net, step
