"""Float8 e5m2 activations with the scale of an old amax: the activations double, pass 57344, and the cast gives inf."""
import torch
from torch import nn

META = {
    "origin_op": "_to_copy", "phase": "forward", "cause": "dtype-overflow", "symptom": "loss-nan",
    "first_bad_step": 3, "n_steps": 6, "fix": "clamp to the format's maximum before the cast",
}
MAX = torch.finfo(torch.float8_e5m2).max


class Fp8Linear(nn.Module):
    def __init__(self, i, o, saturate):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i**0.5)
        self.register_buffer("amax", torch.tensor(4.0))
        self.saturate = saturate

    def quantise(self, x):
        scale = MAX / self.amax
        y = x * scale
        if self.saturate:
            y = y.clamp(-MAX, MAX)
        return y.to(torch.float8_e5m2).float() / scale  # ORIGIN

    def forward(self, x):
        q = x + (self.quantise(x) - x).detach()
        return q @ self.weight.T


def build(fixed: bool = False):
    torch.manual_seed(66)
    net = nn.Sequential(Fp8Linear(8, 16, fixed), nn.ReLU(), Fp8Linear(16, 4, fixed))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(67)

    def step(i):
        x = torch.randn(16, 8, generator=gen).clamp(-3, 3) * (0.8 if i < 3 else 3.0)  # the recipe changes to loud clips
        loss = nn.functional.mse_loss(net(x), x[:, :4])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
