"""Per-sample gradients with vmap(grad): one sample's target equals its prediction, where the root of the error is not differentiable."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

META = {
    "origin_op": "sqrt", "phase": "backward", "cause": "sqrt-at-zero", "symptom": "param-nan",
    "also_phase": "forward", "first_bad_step": 2, "n_steps": 4, "fix": "an epsilon under the root",
}


def build(fixed=False):
    torch.manual_seed(147)
    net = nn.Sequential(nn.Linear(3, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    gen = torch.Generator().manual_seed(148)
    eps = 1e-10 if fixed else 0.0

    def sample_loss(params, x, y):
        out = functional_call(net, params, (x.unsqueeze(0),))[0]
        return torch.sqrt(((out - y) ** 2).sum() + eps)  # ORIGIN

    per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))

    def step(i):
        x, y = torch.randn(6, 3, generator=gen), torch.randn(6, 2, generator=gen)
        if i == 2:
            x[1], y[1] = 0.0, 0.0  # a blank record
        params = {k: p.detach() for k, p in net.named_parameters()}
        grads = per_sample(params, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (1.0 / norm.clamp_min(1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for k, p in net.named_parameters():
                noisy = torch.einsum("b,b...->...", factor, grads[k]) / 6
                p.sub_(0.05 * noisy)
            return vmap(sample_loss, in_dims=(None, 0, 0))(params, x, y).mean()

    return net, step
