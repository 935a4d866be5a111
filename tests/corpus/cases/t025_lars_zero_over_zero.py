"""LARS: the trust ratio of a zero-initialised, masked-out head is zero over zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "norm-at-zero"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "a trust ratio of one where either norm is zero",
}


class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr=0.5, trust=1e-2, decay=1e-4, guard=False):
        super().__init__(params, {"lr": lr, "trust": trust, "decay": decay, "guard": guard})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                weight, slope = p.norm(), p.grad.norm()
                total = slope + group["decay"] * weight
                if group["guard"] and (weight == 0 or total == 0):
                    ratio = torch.ones_like(total)
                else:
                    ratio = group["trust"] * weight / total  # ORIGIN
                update = p.grad + group["decay"] * p
                p.sub_(group["lr"] * ratio * update)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.classes, self.boxes = nn.Linear(24, 3), nn.Linear(24, 4)
        nn.init.zeros_(self.boxes.weight)

    def forward(self, x):
        h = self.trunk(x)
        return self.classes(h), self.boxes(h)


def build(fixed: bool = False):
    torch.manual_seed(425)
    net = MultiTask()
    opt = Lars(net.parameters(), guard=fixed)
    gen = torch.Generator().manual_seed(525)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        y = torch.randint(0, 3, (16,), generator=gen)
        has_box = torch.zeros(16, 1)  # the first epoch has no boxes
        opt.zero_grad()
        logits, boxes = net(x)
        loss = nn.functional.cross_entropy(logits, y) + (has_box * boxes.abs()).mean()
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step
