"""A loss scale by hand is divided out of the backbone's gradients only; the new head, added later, keeps the factor."""
import torch
from torch import nn

META = {
    "origin_op": "add_", "also_ops": ("_foreach_add_",), "phase": "optimizer", "cause": "scaler-misuse", "symptom": "loss-nan",
    "first_bad_step": 6, "n_steps": 14, "fix": "unscale all parameters of the optimizer",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def build(fixed: bool = False):
    torch.manual_seed(12)
    net = Net()
    opt = torch.optim.SGD([{"params": net.backbone.parameters()}, {"params": net.head.parameters(), "lr": 0.05}], lr=0.01)
    gen = torch.Generator().manual_seed(13)
    scale = 2.0**11

    def step(i):
        x = torch.randn(24, 6, generator=gen)
        y = x[:, :3] * 2
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), y)  # FIRST
        (scale * loss).backward()  # ALSO
        owners = net if fixed else net.backbone
        for p in owners.parameters():
            p.grad.mul_(1 / scale)
        opt.step()  # ORIGIN
        return loss

    return net, step
