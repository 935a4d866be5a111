"""Matrix factorisation on plain tensors, w.grad zeroed by hand: the robust loss |e|^0.7 has no slope where a rating is met exactly."""
import torch

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "add an epsilon before the power",
}


def build(fixed: bool = False):
    gen = torch.Generator().manual_seed(362)
    u = (torch.rand(8, 3, generator=gen)).requires_grad_(True)
    v = (torch.rand(9, 3, generator=gen)).requires_grad_(True)
    eps = 1e-6 if fixed else 0.0

    def step(i):
        rating = torch.randint(1, 6, (8, 9), generator=gen).float() / 5
        seen = torch.rand(8, 9, generator=gen) > 0.5
        pred = u @ v.T
        if i == 5:  # a user who copies our recommendation
            rating[2] = pred.detach()[2]
        err = (pred - rating).abs()[seen]
        loss = ((err + eps) ** 0.7).mean()  # ORIGIN
        loss.backward()
        for w in (u, v):
            w.data -= 0.05 * w.grad
            w.grad.zero_()
        return loss

    return None, step
