"""ORPO: the odds ratio takes log(1 - exp(mean log-probability)) of a rejected answer that the model is certain of, whose mean is 0.

Source: well-known fault (LLM preference tuning)
"""
import torch
from torch import nn

META = {
    "origin_op": "log1p",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "trainer class, token masks",
    "loss_truth": 11.36572666,
    "fix": "log p = -softplus(logsumexp(other tokens) - logit), log(1 - exp(lp)) = log(-expm1(lp))",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 2)
        self.lm_head = nn.Linear(2, 5, bias=False)
        with torch.no_grad():
            self.embed.weight.copy_(torch.tensor([[0.5, 0.2], [-0.3, 0.7], [4.0, 1.0], [3.5, 1.5], [0.1, -0.6]]))
            self.lm_head.weight.copy_(torch.tensor([[0.4, -0.2], [-0.8, 0.3], [6.0, 0.5], [-1.0, 0.6], [0.2, 0.9]]))

    def forward(self, ids):
        return self.lm_head(self.embed(ids))


class ORPOTrainer:
    def __init__(self, model, fixed, beta=0.4):
        self.model = model
        self.fixed = fixed
        self.beta = beta

    def get_batch_logps(self, logits, labels):
        mask = labels != -100
        index = labels.masked_fill(~mask, 0)[..., None]
        if self.fixed:
            target = logits.gather(2, index)
            others = torch.logsumexp(logits.scatter(2, index, float("-inf")), 2)
            per_token = -nn.functional.softplus(others - target.squeeze(2))
        else:
            per_token = logits.log_softmax(-1).gather(2, index).squeeze(2)
        return (per_token * mask).sum(-1) / mask.sum(-1)

    def odds_ratio_loss(self, chosen, rejected):
        if self.fixed:
            log_odds = (chosen - rejected) - (torch.log(-torch.expm1(chosen)) - torch.log(-torch.expm1(rejected)))
        else:
            log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))  # ORIGIN
        return -self.beta * nn.functional.logsigmoid(log_odds)

    def compute_loss(self, chosen_ids, rejected_ids):
        logps = []
        for ids in (chosen_ids, rejected_ids):
            labels = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)
            logps.append(self.get_batch_logps(self.model(ids[:, :-1]), labels))
        return (-logps[0] + self.odds_ratio_loss(*logps)).mean()


CHOSEN, REJECTED = [[1, 4, 3, 1], [4, 1, 3, 0]], [[3, 2, 2, 2], [1, 3, 0, 0]]


def build(fixed: bool = False):
    net = Policy()
    trainer = ORPOTrainer(net, fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    chosen, rejected = torch.tensor(CHOSEN), torch.tensor(REJECTED)

    def step(i):
        opt.zero_grad()
        loss = trainer.compute_loss(chosen, rejected)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact():
    embed = torch.tensor([[0.5, 0.2], [-0.3, 0.7], [4.0, 1.0], [3.5, 1.5], [0.1, -0.6]], dtype=torch.float64, requires_grad=True)
    head = torch.tensor([[0.4, -0.2], [-0.8, 0.3], [6.0, 0.5], [-1.0, 0.6], [0.2, 0.9]], dtype=torch.float64, requires_grad=True)

    def mean(ids):
        each = []
        for here, after in zip(ids, ids[1:]):
            if after:
                s = head @ embed[here]
                each.append(-torch.log1p(sum(torch.exp(s[k] - s[after]) for k in range(5) if k != after)))
        return sum(each) / len(each)

    loss = 0
    for good, bad in zip(CHOSEN, REJECTED):
        a, b = mean(good), mean(bad)
        # -log sigmoid(log odds) = log(1 + exp(-log odds)), odds(b) / odds(a)
        ratio = torch.exp(b - a) * torch.expm1(a) / torch.expm1(b)
        loss = loss + (-a + 0.4 * torch.log1p(ratio)) / 2
    g = torch.autograd.grad(loss, [embed, head])
    return loss, {"embed.weight": g[0], "lm_head.weight": g[1]}


def truth():
    return exact()[1]
