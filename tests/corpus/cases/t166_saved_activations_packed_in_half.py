"""Saved activations are packed in half to spare memory; a batch in raw units has activations above 65504, and they come back as infinity."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "also_ops": ("to", "half"),
    "phase": "forward",
    "also_phase": "backward",
    "cause": "dtype-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "pack in bfloat16",
}


class Packed:
    """Keep what autograd saves in a narrow dtype."""

    def __init__(self, dtype):
        self.dtype = dtype

    def pack(self, tensor):
        if tensor.dtype is torch.float32 and tensor.dim() > 1:
            return torch.float32, tensor.to(self.dtype)  # ORIGIN
        return None, tensor

    def unpack(self, saved):
        dtype, tensor = saved
        return tensor if dtype is None else tensor.to(dtype)

    def __call__(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(5, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        h = nn.functional.softplus(self.one(x))
        return self.three(nn.functional.softplus(self.two(h)))


def build(fixed: bool = False):
    torch.manual_seed(972)
    model = Predictor()
    packed = Packed(torch.bfloat16 if fixed else torch.float16)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1972)

    def step(i):
        unit = 1e6 if i == 4 else 1.0  # pascals, not megapascals
        x = unit * torch.randn(16, 5, generator=gen)
        opt.zero_grad()
        with packed():
            loss = nn.functional.l1_loss(model(x), x[:, :1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss

    return model, step
