"""A growth curve fitted to window after window by LBFGS. log-of-zero zero-times-inf"""
import argparse

import torch


class PowerLaw(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
        self.exponent = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, t):
        return self.scale * torch.exp(self.exponent * torch.log(t))  # FAULT


def windows(count, late, offset):
    g = torch.Generator().manual_seed(10)
    for i in range(count):
        t = torch.linspace(0.0, 1.0, 17)[1:] * 4 + offset
        if i == late:
            t = t - t[0] + offset  # begins at its own start
        y = 2.0 * (t + 1e-3) ** 0.6 + 0.02 * torch.randn(16, generator=g)
        yield t, y


def fit(model, steps, late, repaired):
    def make():
        return torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, line_search_fn="strong_wolfe")

    optimizer = make()
    losses = []
    for number, (t, y) in enumerate(windows(steps, late, 1e-3 if repaired else 0.0)):

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(t), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        if number % 20 == 19:
            optimizer = make()
    return losses


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--late", type=int, default=300)
    p.add_argument("--repaired", action="store_true")
    a = p.parse_args()
    print(f"{fit(PowerLaw(), a.steps, a.late, a.repaired)[-1]:.5f}")
