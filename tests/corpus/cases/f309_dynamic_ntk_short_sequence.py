"""Dynamic NTK scaling of rotary embeddings raises a length ratio to a fractional power; a short batch makes the base negative."""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-negative-base",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "use the larger of the batch's length and the trained length",
}


class Rotary(nn.Module):
    def __init__(self, dim, trained, factor, guard):
        super().__init__()
        self.dim, self.trained, self.factor, self.guard = dim, trained, factor, guard
        self.register_buffer("theta", torch.tensor(10000.0))

    def forward(self, length):
        n = max(length, self.trained) if self.guard else length
        ratio = self.theta.new_tensor(self.factor * n / self.trained - (self.factor - 1))
        base = self.theta * ratio ** (self.dim / (self.dim - 2))  # ORIGIN
        inv = base ** (-torch.arange(0, self.dim, 2) / self.dim)
        angle = torch.outer(torch.arange(length).float(), inv)
        return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class TinyLM(nn.Module):
    def __init__(self, guard, dim=16, vocab=40):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.rope = Rotary(dim, 16, 4.0, guard)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        q, k, v = self.qkv(h).chunk(3, -1)
        cos, sin = self.rope(ids.shape[1])
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        h = h + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h)


def build(fixed: bool = False):
    torch.manual_seed(11)
    net = TinyLM(fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(12)
    lengths = [16, 24, 20, 9, 18, 16]  # the last bucket of the epoch is short

    def step(i):
        ids = torch.randint(0, 40, (6, lengths[i] + 1), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
