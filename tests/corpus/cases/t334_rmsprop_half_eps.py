"""RMSprop on half parameters: the squares of small gradients flush to zero, eps 1e-8 is zero in float16, and the update is g / 0.

Source: NVIDIA/apex#240, afiaka87/glide-finetune#5 (the optimizer's default eps is zero in float16)
"""
import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "also_ops": ("_foreach_addcdiv_",),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "symptom": "param-inf",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-4, or float32 master weights",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(10, 24)
        self.pi = nn.Linear(24, 4)
        self.v = nn.Linear(24, 1)

    def forward(self, s):
        h = torch.tanh(self.body(s))
        return self.pi(h), self.v(h).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(338)
    net = Policy().half()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, alpha=0.99, eps=1e-3 if fixed else 1e-8)
    gen = torch.Generator().manual_seed(339)

    def step(i):
        s = torch.randn(32, 10, generator=gen).half()
        ret = 0.02 * torch.randn(32, generator=gen)
        act = torch.randint(0, 4, (32,), generator=gen)
        logits, value = net(s)
        adv = (ret - value.float()).detach()
        logp = logits.float().log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        loss = -(logp * adv).mean() + 0.5 * (ret - value.float()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
