"""A model in pure bfloat16 fine-tuned with a small learning rate: the norm's gain of one never moves, each update is below half an ulp."""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 10,
    "watch": "update:norm.weight",
    "fix": "float32 master weights",
}


class Block(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 32), nn.Linear(32, dim)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def build(fixed: bool = False):
    torch.manual_seed(22)
    net = Block() if fixed else Block().bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(23)
    teacher = torch.randn(16, 16, generator=gen) / 4

    def step(i):
        x = torch.randn(32, 16, generator=gen)
        opt.zero_grad(set_to_none=True)
        pred = net(x if fixed else x.bfloat16())
        loss = nn.functional.mse_loss(pred.float(), x @ teacher)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
