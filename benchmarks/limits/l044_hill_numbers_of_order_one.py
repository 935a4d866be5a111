"""Hill number of order q = 1 of an ecological community: (sum p^q)^(1 / (1 - q)) is 1 to the power of infinity, its limit exp(H)."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "kind": "removable",
    "loss_truth": -2.828430392,
    "fix": "exp of the Shannon entropy, with slope in q, near q = 1",
}


class Community(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_abundance = nn.Parameter(torch.log(torch.tensor([[4.0, 2.0, 2.0], [1.0, 1.0, 2.0]])))

    def hill(self, q, fixed):
        n = self.log_abundance.exp()
        p = n / n.sum(1, keepdim=True)
        if fixed and abs(q - 1) < 1e-6:
            return torch.exp(-(p * p.log()).sum(1))
        order = torch.full((2,), float(q))
        return (p ** order[:, None]).sum(1) ** (1 / (1 - order))  # ORIGIN


def build(fixed: bool = False):
    net = Community()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    orders = [0.0, 2.0, 1.0]  # richness, Simpson, Shannon: one a step

    def step(i):
        opt.zero_grad()
        loss = -net.hill(orders[min(i, 2)], fixed).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    n = t64([[4.0, 2.0, 2.0], [1.0, 1.0, 2.0]])
    p = n / n.sum(1, keepdim=True)
    h = -(p * p.log()).sum(1, keepdim=True)
    return {"log_abundance": -h.exp() * -p * (p.log() + h) / 2}
