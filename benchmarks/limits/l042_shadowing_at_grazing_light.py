"""Smith masking of a GGX microfacet: tan^2 of a grazing view (cosine 0) is infinite, the masking term 0 with a finite slope."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.01766956056,
    "fix": "2 c / (c + sqrt(c^2 + a^2 (1 - c^2)))",
}


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.cos_v = nn.Parameter(torch.tensor([0.0, 0.3, 0.8]))
        self.alpha = nn.Parameter(torch.tensor([0.5, 0.4, 0.2]))

    def smith_g1(self, fixed):
        c, a = self.cos_v, self.alpha
        if fixed:
            return 2 * c / (c + torch.sqrt(c * c + a * a * (1 - c * c)))
        tan2 = (1 - c * c) / (c * c)  # ORIGIN
        lam = (torch.sqrt(1 + a * a * tan2) - 1) / 2
        return 1 / (1 + lam)


def build(fixed: bool = False):
    net = Surface()
    sgd = torch.optim.Adam(net.parameters(), lr=1e-4)
    measured = torch.tensor([0.2, 0.7, 0.9])

    def step(i):
        loss = torch.nn.functional.mse_loss(net.smith_g1(fixed), measured)
        sgd.zero_grad(set_to_none=True)
        loss.backward()
        sgd.step()
        return loss

    return net, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    c, a, measured = t64([0.0, 0.3, 0.8]), t64([0.5, 0.4, 0.2]), t64([0.2, 0.7, 0.9])
    root = torch.sqrt(c * c + a * a * (1 - c * c))
    g = 2 * c / (c + root)
    dc = 2 * (root - c * c * (1 - a * a) / root) / (c + root) ** 2
    da = -2 * c * a * (1 - c * c) / root / (c + root) ** 2
    left = 2 / 3 * (g - measured)
    return {"cos_v": left * dc, "alpha": left * da}
