"""Mixture of two Bernoulli images (160 pixels) as a classifier: each likelihood is a product of 160 factors near 1/2, 0 in float32, so the posterior is 0 / 0. LBFGS."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "closure",
    "loss_truth": 0.9482672731,
    "fix": "the softmax of the sums of logarithms",
}


class Mixture(nn.Module):
    def __init__(self, pixels=160):
        super().__init__()
        phase = torch.arange(pixels) * 0.7
        self.prior = nn.Parameter(torch.tensor([0.2, -0.1]))
        self.template = nn.Parameter(0.1 * torch.stack([torch.sin(phase), torch.cos(phase)]))


def posterior(prior, template, image):
    p = torch.sigmoid(template)
    likelihood = torch.where(image.bool(), p, 1 - p).prod(dim=-1)
    joint = torch.softmax(prior, 0) * likelihood
    return joint / joint.sum()  # ORIGIN


def posterior_by_logs(prior, template, image):
    pixel = nn.functional.logsigmoid(torch.where(image.bool(), template, -template))
    return torch.softmax(prior + pixel.sum(-1), 0)


def build(fixed: bool = False):
    net = Mixture()
    opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=1)
    infer = posterior_by_logs if fixed else posterior
    images = torch.stack([(torch.arange(160) * 7 % 5 < 2).float(), (torch.arange(160) * 3 % 11 < 6).float()])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    def step(i):
        def closure():
            opt.zero_grad()
            guess = torch.stack([infer(net.prior, net.template, image) for image in images])
            loss = (guess - labels).pow(2).sum()
            loss.backward()
            return loss

        return opt.step(closure)

    return net, step


def truth():
    phase = torch.arange(160, dtype=torch.float32) * 0.7
    template = (0.1 * torch.stack([torch.sin(phase), torch.cos(phase)])).double().requires_grad_()
    prior = torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True)
    images = torch.stack([(torch.arange(160) * 7 % 5 < 2).double(), (torch.arange(160) * 3 % 11 < 6).double()])
    # log odds of component 0: prior, plus sum of x t - log(1 + e^t)
    evidence = images @ template.T - torch.log1p(torch.exp(template)).sum(1)
    first = torch.sigmoid(prior[0] - prior[1] + evidence[:, 0] - evidence[:, 1])
    loss = 2 * (1 - first[0]) ** 2 + 2 * first[1] ** 2
    g = torch.autograd.grad(loss, [prior, template])
    return {"prior": g[0], "template": g[1]}
