"""Autoencoder of Bernoulli pixels: sigmoid in the decoder, x log p + (1 - x) log(1 - p) and the
divergence in the loss; one pixel is certain.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 37.03566131,
}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[30.0, 20.0], [0.5, -0.4], [1.0, 0.3]]))
            self.fc.bias.copy_(torch.tensor([60.0, 0.1, -0.2]))

    def forward(self, z):
        return torch.sigmoid(self.fc(z))


def elbo(recon, x, mu, logvar):
    bce = -(x * torch.log(recon) + (1 - x) * torch.log(1 - recon)).sum(-1)  # ORIGIN
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=-1)
    return (bce + kld).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()
        self.mu = nn.Parameter(torch.tensor([[1.0, 0.5], [0.2, -0.1]]))
        self.logvar = nn.Parameter(torch.tensor([[-1.0, -0.5], [0.1, -2.0]]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
        eps = torch.tensor([[0.3, -0.2], [0.1, 0.4]])
        z = self.mu + torch.exp(0.5 * self.logvar) * eps
        if fixed:
            logits = self.decoder.fc(z)
            bce = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
            kld = -0.5 * torch.sum(1 + self.logvar - self.mu**2 - self.logvar.exp(), dim=-1)
            return (bce + kld).mean()
        return elbo(self.decoder(z), x, self.mu, self.logvar)


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
