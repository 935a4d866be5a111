"""A replay without some rows of the batch is the step of the program that was given the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nanlab

ROWS, OUT = 6, (1, 4)
KEPT = [r for r in range(ROWS) if r not in OUT]


class Attention(nn.Module):
    """Heads, a class token, positions: sizes of the batch in views and in expand."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(8, 24), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        x = torch.cat([self.token.expand(b, -1, -1), x.view(b, 4, 8)], 1)
        q, k, v = self.inside(x).view(b, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).reshape(b, 5, 8)
        return self.outside(self.layer(mixed).reshape(b * 5, 8)).view(b, 5, 3).mean(1)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.group, self.head = nn.GroupNorm(2, 4), nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 2, 4, 4)
        return self.head(self.group(self.norm(self.conv(x)).relu()).flatten(1))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x.view(-1, 4, 8).transpose(0, 1), x.new_zeros(1, len(x), 8))
        return self.head(states[-1])


def plain(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def by_hand(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    chosen = net(x).log_softmax(-1)[torch.arange(len(x)), y]
    return -chosen.sum() / len(x)


def contrastive(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(net(x), dim=-1)
    return F.cross_entropy(z @ z.t() / 0.1, torch.arange(x.shape[0]))


def drawn(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (net(x) * torch.linspace(1, 2, 3)).square().mean(-1).mul(1.5).mean()


NETS: list[Callable[[], nn.Module]] = [lambda: nn.Linear(32, 3), Attention, Pictures, Sequence]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("loss", [plain, by_hand, contrastive, drawn])
def test_the_gradients_are_those_of_the_other_rows(net: Any, loss: Any) -> None:
    torch.manual_seed(0)
    model, x, y = net(), torch.randn(ROWS, 32), torch.randint(0, 3, (ROWS,))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with nanlab.watch(model) as trace:
        loss(model, x, y).backward()
    again = trace.replay(without=OUT)
    model.load_state_dict(state)
    model.zero_grad()
    expected = loss(model, x[KEPT], y[KEPT])
    expected.backward()
    assert again.identical is None
    assert again.loss == pytest.approx(expected.item(), rel=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(again.gradients[name], p.grad, rtol=1e-4, atol=1e-6)


def test_random_numbers_are_those_of_the_rows_that_stay() -> None:
    x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))

    def run(rows: list[int]) -> nn.Parameter:
        torch.manual_seed(3)
        w = nn.Parameter(torch.ones(5))
        noise = torch.randn(ROWS, 5)
        ((x * w + noise) * F.dropout(x, 0.5)).sum(-1)[rows].mean().backward()
        return w

    torch.manual_seed(3)
    w = nn.Parameter(torch.ones(5))
    with nanlab.watch() as trace:
        noise = torch.randn(ROWS, 5)
        ((x * w + noise) * F.dropout(x, 0.5)).sum(-1).mean().backward()
    (gradient,) = trace.replay(without=OUT).gradients.values()
    torch.testing.assert_close(gradient, run(KEPT).grad)


def test_the_bad_sample_left_out_leaves_a_healthy_step() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(8, 3), torch.randn(ROWS, 8), torch.randint(0, 3, (ROWS,))
    x[4, 2] = float("nan")
    with nanlab.watch(net, on_fault="record") as trace:
        plain(net, x, y).backward()
    assert not trace.replay().finite
    again = trace.replay(without=trace.culprit.samples or [4])
    assert again.finite and again.culprit is None
    assert {shape[0] for shape in again.ops.loc[again.ops.op == "addmm", "shape"]} == {ROWS - 1}
    assert trace.replay(without=4).finite and trace.replay(without=[-2]).finite
    assert not trace.replay(without=3).finite


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda net, x: net(x)[torch.randperm(ROWS)].mean(), "order of the rows|by their numbers"),
        (lambda net, x: net(x)[: ROWS // 2].mean(), "part of the rows"),
        (lambda net, x: net(x).sum() / 6, "may be the count of the rows"),
        (lambda net, x: net(x).chunk(2)[0].mean(), "part of the rows"),
    ],
)
def test_what_is_not_clear_is_refused_with_the_reason(loss: Any, reason: str) -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(8, 3), torch.randn(ROWS, 8)
    with nanlab.watch(net) as trace:
        loss(net, x).backward()
    with pytest.raises(nanlab.NotReplayable, match=reason) as refused:
        trace.replay(without=[1])
    assert "without row 1: " in str(refused.value)
    assert "leave them out where the program makes the batch" in str(refused.value)
    assert refused.value.__context__ is None


def test_rows_that_are_not_there_are_refused() -> None:
    net, x = nn.Linear(8, 3), torch.randn(ROWS, 8)
    with nanlab.watch(net) as trace:
        net(x).mean().backward()
    with pytest.raises(nanlab.NanlabError, match="rows 0 to 5; row 6"):
        trace.replay(without=[6])
    with pytest.raises(nanlab.NanlabError, match="leave at least one"):
        trace.replay(without=range(6))
    with pytest.raises(nanlab.NanlabError, match="row numbers"):
        trace.replay(without="first")
    with pytest.raises(nanlab.NanlabError, match="does not go together with without="):
        trace.replay(without=[1], dtype=torch.float32)


@pytest.mark.parametrize("kind", ["view", "stack"])
def test_rows_of_a_batch_that_the_step_makes_of_something_else_are_left_out(kind: str) -> None:
    torch.manual_seed(0)
    model, every = nn.Linear(4, 3), torch.randn(5, ROWS, 4)
    every[2, 3] = 0.0
    rows = every.reshape(-1, 4).clone()

    def loss_of(x: Tensor) -> Tensor:
        scores = model(x)
        return scores.pow(2).mean() + (x / x.norm(dim=1, keepdim=True)).sum()

    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(3):
            x = every[i] if kind == "view" else torch.stack([rows[ROWS * i + k] for k in range(6)])
            model.zero_grad()
            loss_of(x).backward()
    assert trace.culprit is not None and trace.culprit.samples == [3]
    again = trace.replay(without=[3])
    kept = loss_of(every[2][[0, 1, 2, 4, 5]])
    assert again.finite and again.loss == pytest.approx(kept.item())


class Doubled(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples that are computed, one of which is NaN, and a label."""

    def __init__(self) -> None:
        self.x = torch.randn(24, 5)
        self.x[9] = torch.nan

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i] * 2 + torch.linspace(0, 1, 5), i % 3


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_a_dataset_computes_are_left_out_wherever_it_runs(workers: int) -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), Doubled()
    batches: list[Any] = []
    with nanlab.watch(model, on_fault="record") as trace:
        for x, y in torch.utils.data.DataLoader(data, batch_size=6, num_workers=workers):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            batches.append((x, y))
    assert trace.culprit is not None and trace.culprit.samples == [3]
    assert trace.replay(step=1, without=[3]).finite
    model.eval()  # in which the same rows have the same loss, whatever was dropped
    with nanlab.watch(model, on_fault="record") as trace:
        for x, y in torch.utils.data.DataLoader(data, batch_size=6, num_workers=workers):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
    kept, (x, y) = [0, 3, 4, 5], batches[2]
    loss = F.cross_entropy(model(x[kept]), y[kept]).item()
    assert trace.replay(step=2, without=[1, 2]).loss == pytest.approx(loss)


# Numbers of rows: as data they stay those of the rows, as places they are told anew.


def labelled(z: Tensor, rows: Tensor) -> Tensor:
    return F.cross_entropy(z[:, :2], rows % 2) + (z.mean(1) * rows.float()).mean()


def pairs(z: Tensor, rows: Tensor) -> Tensor:
    label = rows // 2
    same = (label[:, None] == label[None, :]).float()
    return -((z @ z.t()).log_softmax(1) * same).sum(1).mean()


def places(z: Tensor, rows: Tensor) -> Tensor:
    scores, at = (z @ z.t()).log_softmax(1), torch.searchsorted(rows, rows)
    if len(rows) == ROWS:
        at = rows
    return scores[at, at].mean() + scores.gather(1, at[:, None]).mean() + F.nll_loss(scores, at)


def hardest(z: Tensor, rows: Tensor) -> Tensor:
    scores = (z @ z.t()).masked_fill(rows[:, None] == rows[None, :], -1e9)
    found = scores.argmax(1)
    best = found if len(rows) == ROWS else rows[found]
    return (z * z[found]).sum(1).mean() + (best == rows - 1).float().mean() * z.mean()


@pytest.mark.parametrize("loss", [labelled, pairs, places, hardest])
def test_numbers_of_rows_are_data_or_places_as_they_are_used(loss: Any) -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(8, 3), torch.randn(ROWS, 8)
    with nanlab.watch(net) as trace:
        loss(net(x), torch.arange(ROWS)).backward()
    kept = loss(net(x[KEPT]), torch.arange(ROWS)[KEPT])
    assert trace.replay(without=OUT).loss == pytest.approx(kept.item(), rel=1e-5)


def test_a_row_that_picks_one_that_is_left_out_says_so() -> None:
    net, x = nn.Linear(8, 3), torch.randn(ROWS, 8)
    with nanlab.watch(net) as trace:
        z = net(x)
        F.cross_entropy(z @ z.t(), (torch.arange(ROWS) + 1) % ROWS).backward()
    with pytest.raises(nanlab.NotReplayable, match="picks row 1, which is left out"):
        trace.replay(without=OUT)


def test_classes_that_were_drawn_stay_those_of_the_rows() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(8, 3), torch.randn(ROWS, 8)
    with nanlab.watch(net) as trace:
        scores = net(x).log_softmax(1)
        drawn = scores.detach().exp().multinomial(2)
        (scores.gather(1, drawn).mean() / ROWS).backward()
    kept = net(x[KEPT]).log_softmax(1).gather(1, drawn[KEPT]).mean() / ROWS
    assert trace.replay(without=OUT).loss == pytest.approx(kept.item(), rel=1e-5)


def test_rows_that_are_drawn_are_refused() -> None:
    net, x = nn.Linear(8, 3), torch.randn(ROWS, 8)
    with nanlab.watch(net) as trace:
        z = net(x)
        z[z.detach().exp().mean(1).multinomial(2)].mean().backward()
    with pytest.raises(nanlab.NotReplayable, match="draws rows of the batch"):
        trace.replay(without=OUT)
