"""The training programs that the benchmarks run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Step = Callable[[], None]


def _trained(
    model: nn.Module, make_loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, Step]:
    def step() -> None:
        optimizer.zero_grad()
        make_loss().backward()
        optimizer.step()

    return model, step


def mlp() -> tuple[nn.Module, Step]:
    """A small MLP whose step takes about half a millisecond."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    return _trained(
        model,
        lambda: nn.functional.cross_entropy(model(x), y),
        torch.optim.Adam(model.parameters()),
    )


def transformer() -> tuple[nn.Module, Step]:
    """A 4-layer encoder, d 256, batch 8, sequence 64."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Linear(256, 10))
    x, y = torch.randn(8, 64, 256), torch.randint(0, 10, (8, 64))
    return _trained(
        model,
        lambda: nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()),
        torch.optim.AdamW(model.parameters()),
    )


def cnn() -> tuple[nn.Module, Step]:
    """A CNN with batch norm on 32 x 32 images."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return _trained(
        model,
        lambda: nn.functional.cross_entropy(model(x), y),
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(32, 128, num_layers=2, batch_first=True), nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


def lstm() -> tuple[nn.Module, Step]:
    """A 2-layer LSTM over 40 time steps."""
    torch.manual_seed(0)
    model = _Tagger()
    x, y = torch.randn(16, 40, 32), torch.randint(0, 5, (16, 40))
    return _trained(
        model,
        lambda: nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()),
        torch.optim.Adam(model.parameters()),
    )


def gpt2() -> tuple[nn.Module, Step]:
    """A GPT-2-shaped model of transformers: 4 layers, d 256, batch 4, sequence 128."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=2000, n_positions=128, n_embd=256, n_layer=4, n_head=4)
    )
    ids = torch.randint(0, 2000, (4, 128))
    return _trained(
        model, lambda: model(ids, labels=ids).loss, torch.optim.AdamW(model.parameters())
    )


MODELS = {"MLP": mlp, "transformer": transformer, "CNN": cnn, "LSTM": lstm, "GPT-2": gpt2}
