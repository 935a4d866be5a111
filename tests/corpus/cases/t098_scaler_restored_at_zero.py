"""A GradScaler restored from the checkpoint of a run that had collapsed: its scale is zero, and stays so."""

import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "also_ops": ("_amp_foreach_non_finite_check_and_unscale_", "mul"),
    "phase": "optimizer",
    "also_phase": "other",
    "cause": "loss-scale-overflow",
    "also_causes": ("scaler-misuse", "div-by-zero", "zero-times-inf"),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 6,
    "fix": "start the scaler afresh where the restored scale is below one",
}


def build(fixed: bool = False):
    torch.manual_seed(472)
    net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.GELU(), nn.Conv1d(8, 2, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    saved = scaler.state_dict() | {"scale": 0.0}
    if not fixed:
        scaler.load_state_dict(saved)
    gen = torch.Generator().manual_seed(572)

    def step(i):
        x = torch.randn(6, 2, 16, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), x[..., 2:-2])
        scaler.scale(loss).backward()
        scaler.step(opt)  # ORIGIN
        scaler.update()
        return loss

    return net, step
