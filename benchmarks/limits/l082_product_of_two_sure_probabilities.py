"""ESMM conversion model: log(1 - pCTR pCVR) for a shown item that was not bought, both towers are sure and the product has rounded to 1."""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "module, embeddings, helper function",
    "loss_truth": 4.809600202,
    "fix": "log(1 - p q) = logaddexp(log(1 - p), log p + log(1 - q)) from the logits",
}


def log_loss(p, y):
    return -torch.where(y > 0, torch.log(p.clamp(min=1e-30)), torch.log(1 - p)).mean()  # ORIGIN


def log_loss_stable(ctr, cvr, y):
    logsigmoid = nn.functional.logsigmoid
    bought = logsigmoid(ctr) + logsigmoid(cvr)
    not_bought = torch.logaddexp(logsigmoid(-ctr), logsigmoid(ctr) + logsigmoid(-cvr))
    return -torch.where(y > 0, bought, not_bought).mean()


class ESMM(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(4, 2)
        self.ctr = nn.Linear(2, 1)
        self.cvr = nn.Linear(2, 1)
        with torch.no_grad():
            self.item.weight.copy_(torch.tensor([[2.5, 2.0], [0.3, -0.2], [-0.4, 0.5], [0.1, 0.6]]))
            self.ctr.weight.copy_(torch.tensor([[6.0, 2.0]]))
            self.ctr.bias.fill_(0.2)
            self.cvr.weight.copy_(torch.tensor([[4.0, 5.0]]))
            self.cvr.bias.fill_(-0.3)

    def forward(self, idx):
        e = self.item(idx)
        return self.ctr(e).squeeze(1), self.cvr(e).squeeze(1)


def build(fixed: bool = False):
    net = ESMM()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    idx, click, buy = torch.tensor([0, 1, 2, 3, 1]), torch.tensor([1.0, 0, 1, 1, 1]), torch.tensor([0.0, 0, 0, 1, 1])

    def step(i):
        opt.zero_grad()
        ctr, cvr = net(idx)
        ctcvr_loss = log_loss(torch.sigmoid(ctr) * torch.sigmoid(cvr), buy)
        loss = nn.functional.binary_cross_entropy_with_logits(ctr, click) + ctcvr_loss
        loss.backward()
        opt.step()
        return loss

    def step_of_the_twin(i):
        opt.zero_grad()
        ctr, cvr = net(idx)
        ctcvr_loss = log_loss_stable(ctr, cvr, buy)
        loss = nn.functional.binary_cross_entropy_with_logits(ctr, click) + ctcvr_loss
        loss.backward()
        opt.step()
        return loss

    return net, step_of_the_twin if fixed else step


def exact():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    item = leaf([[2.5, 2.0], [0.3, -0.2], [-0.4, 0.5], [0.1, 0.6]])
    wa, ba, wb, bb = leaf([[6.0, 2.0]]), leaf([0.2]), leaf([[4.0, 5.0]]), leaf([-0.3])
    loss = 0
    for k, click, buy in ((0, 1, 0), (1, 0, 0), (2, 1, 0), (3, 1, 1), (1, 1, 1)):
        a, b = (wa @ item[k] + ba).squeeze(), (wb @ item[k] + bb).squeeze()
        loss = loss + torch.log1p(torch.exp(-a if click else a)) / 5
        odds = torch.log1p(torch.exp(-a)) + torch.log1p(torch.exp(-b))  # -log(p q)
        # 1 - p q = p q (e^-a + e^-b + e^-(a + b))
        loss = loss + (odds if buy else odds - torch.log(torch.exp(-a) + torch.exp(-b) + torch.exp(-a - b))) / 5
    g = torch.autograd.grad(loss, [item, wa, ba, wb, bb])
    return loss, dict(zip(["item.weight", "ctr.weight", "ctr.bias", "cvr.weight", "cvr.bias"], g))


def truth():
    return exact()[1]
