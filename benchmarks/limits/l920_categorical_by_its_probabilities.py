"""Policy that is a Categorical of softmax probabilities, and the entropy by hand beside it; a logit of -200.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.1421711559,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[3.0, -200.0, 0.2], [0.1, 0.4, -0.3]]))

    def forward(self, fixed):
        a, adv = torch.tensor([0, 2]), torch.tensor([0.5, -0.2]).to(self.logits)
        if fixed:
            logp = torch.log_softmax(self.logits, -1)
            entropy = -(logp.exp() * logp).sum(-1)
            return -(logp[torch.arange(2), a] * adv).mean() - 0.01 * entropy.mean()
        probs = torch.softmax(self.logits, -1)
        dist = torch.distributions.Categorical(probs=probs, validate_args=False)
        entropy = -(probs * torch.log(probs)).sum(-1)  # ORIGIN
        return -(dist.log_prob(a) * adv).mean() - 0.01 * entropy.mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
