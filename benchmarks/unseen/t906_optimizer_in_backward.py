"""One optimizer per parameter, stepped by a hook as soon as its gradient is there; the loss normalises by a span that is zero."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "clamp the span",
}


def build(fixed: bool = False):
    torch.manual_seed(760)
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
    opts = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}

    def update(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    gen = torch.Generator().manual_seed(761)

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        y = x.sum(1)
        if i == 5:
            y = torch.full((8,), 2.0)
        span = y.max() - y.min()
        if fixed:
            span = span.clamp_min(1e-6)
        y = (y - y.min()) / span  # ORIGIN
        loss = nn.functional.mse_loss(net(x).squeeze(1), y)
        loss.backward()
        return loss

    return net, step
