"""torch.logit(p, eps=1e-4) on bfloat16 soft labels of a cropped teacher: the clamp bound 0.9999 is 1 in bfloat16 and the logit is inf."""
import torch
from torch import nn

META = {
    "origin_op": "logit", "phase": "forward", "cause": "eps-underflow", "also_causes": ("inverse-function-at-edge", "log-of-zero"), "symptom": "loss-inf",
    "first_bad_step": 2, "n_steps": 5, "fix": "take the logit in float32",
}


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.blend = nn.Parameter(torch.zeros(3))

    def forward(self, x, prior, wide):
        p = prior.float() if wide else prior
        evidence = torch.logit(p, eps=1e-4)  # ORIGIN
        return self.net(x) + torch.sigmoid(self.blend) * evidence.float()


def build(fixed: bool = False):
    torch.manual_seed(48)
    net = Mixer()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(49)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        prior = torch.rand(16, 3, generator=gen) * 0.9 + 0.05
        if i >= 2:
            prior[3, 1] = 0.9995
        y = (x[:, :3] > 0).float()
        loss = nn.functional.mse_loss(torch.tanh(net(x, prior.bfloat16(), fixed)), y) + 1e-3 * net(x, prior.bfloat16(), fixed).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
