"""Query and key padding masks, each finfo(bfloat16).min, are added: in an empty sequence every entry is -inf."""
import torch
from torch import nn

META = {
    "origin_op": "add", "also_ops": ("_softmax",), "phase": "forward", "cause": "mask-overflow", "also_causes": ("softmax-all-masked", "dtype-overflow"), "symptom": "loss-nan",
    "first_bad_step": 1, "n_steps": 4, "fix": "combine boolean masks, fill once",
}


class Decoder(nn.Module):
    def __init__(self, proper):
        super().__init__()
        self.proper = proper
        self.emb, self.qkv, self.out = nn.Embedding(25, 8), nn.Linear(8, 24), nn.Linear(8, 25)

    def forward(self, ids, keep):
        x = self.emb(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        n, low = ids.shape[1], torch.finfo(x.dtype).min
        causal = torch.ones(n, n, dtype=torch.bool).triu(1)
        if self.proper:
            bias = torch.zeros(len(ids), n, n, dtype=x.dtype).masked_fill(causal | ~keep[:, None], low)
        else:
            query = torch.zeros(len(ids), n, 1, dtype=x.dtype).masked_fill(~keep[:, :, None], low)
            padding = torch.zeros(len(ids), 1, n, dtype=x.dtype).masked_fill(~keep[:, None], low)
            bias = query + padding  # ORIGIN
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(causal, low)
        att = torch.softmax(scores + bias, -1)  # ALSO
        return self.out(att @ v)


def build(fixed: bool = False):
    torch.manual_seed(54)
    net = Decoder(fixed).bfloat16()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(55)

    def step(i):
        ids = torch.randint(1, 25, (3, 7), generator=gen)
        keep = torch.ones(3, 7, dtype=torch.bool)
        if i >= 1:
            keep[1, :3] = False
            keep[2] = False
        logits = net(ids[:, :-1], keep[:, :-1])
        lost = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(3, 6)
        loss = (lost * keep[:, 1:]).sum() / keep[:, 1:].sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
