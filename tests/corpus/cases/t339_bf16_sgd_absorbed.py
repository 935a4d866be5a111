"""Fine-tuning in pure bfloat16 with a learning rate of 1e-6: every update is below half an ulp of its weight, nothing moves.

Source: Nerogar/OneTrainer#146, workofart/ml-by-hand#85 (bf16 storage, no master: 0 of 768 moved)
"""
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_", "sub_"),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "update:head.weight",
    "fix": "float32 master weights",
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(20, 32)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(torch.relu(self.emb(x)))


def build(fixed: bool = False):
    torch.manual_seed(348)
    net = Classifier()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.5 * p.sign())  # weights of a pretrained model, none near zero
    net = net if fixed else net.to(torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 0.1)
    gen = torch.Generator().manual_seed(349)
    dtype = next(net.parameters()).dtype

    def step(i):
        x = torch.randn(16, 20, generator=gen).to(dtype)
        y = torch.randint(0, 3, (16,), generator=gen)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()  # ORIGIN
        sched.step()
        return loss

    return net, step
