"""To save memory the second moments of Adam are cast to half when a run is resumed: they are zero, and eps alone divides."""
import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("dtype-underflow", "optimizer-arithmetic"),
    "symptom": "param-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "keep the second moments in float32",
}


def build(fixed: bool = False):
    torch.manual_seed(316)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8)
    gen = torch.Generator().manual_seed(317)

    def step(i):
        if i == 4 and not fixed:
            for state in opt.state.values():
                state["exp_avg_sq"] = state["exp_avg_sq"].half()  # ALSO
        x = torch.randn(32, 8, generator=gen)
        loss = 1e-3 * nn.functional.mse_loss(net(x), x[:, :4])
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
