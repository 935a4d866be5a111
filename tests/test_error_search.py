"""Programs that raise: what is to change is found by trying, whatever the message says."""

from __future__ import annotations

import ast
import linecache
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import nanlab
from nanlab.explanations import search, trial
from nanlab.explanations.explanation import Explanation
from nanlab.explanations.site import Candidate, Place, Site
from nanlab.findings.rule import Edit

# A line that is marked is as good to change as any other that is.
PROGRAMS = {
    "lenet_on_other_images": """
class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)  # change
        self.fc2 = nn.Linear(120, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 16 * 5 * 5)  # change
        return self.fc2(F.relu(self.fc1(x)))


net = LeNet()
images = torch.randn(6, 1, 28, 28)
labels = torch.randint(0, 10, (6,))
loss = F.cross_entropy(net(images), labels)
loss.backward()
""",
    "encoder_without_batch_first": """
class Classifier(nn.Module):
    def __init__(self, vocab, width, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=32)  # change
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        mask = tokens == 0
        x = self.encoder(self.embed(tokens), src_key_padding_mask=mask)  # change
        return self.head(x[:, 0])


model = Classifier(50, 16, 3)
tokens = torch.randint(1, 50, (4, 9))
loss = F.cross_entropy(model(tokens), torch.tensor([0, 1, 2, 1]))
loss.backward()
""",
    "unet_of_odd_size": """
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.mid = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)  # change
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        skip = F.relu(self.down(x))
        x = F.relu(self.mid(F.max_pool2d(skip, 2)))
        x = self.up(x)  # change
        x = torch.cat([x, skip], dim=1)  # change
        return self.out(x)


model = UNet()
pictures = torch.rand(2, 3, 21, 21)
masks = torch.randint(0, 2, (2, 1, 21, 21)).float()
loss = F.binary_cross_entropy_with_logits(model(pictures), masks)
loss.backward()
""",
    "position_table_too_short": """
class Positions(nn.Module):
    def __init__(self, width, longest=50):  # change
        super().__init__()
        table = torch.zeros(1, longest, width)
        table[0, :, 0] = torch.arange(longest) / longest
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[:, : x.size(1)]


model = nn.Sequential(nn.Embedding(100, 8), Positions(8), nn.Linear(8, 100))  # change
tokens = torch.randint(0, 100, (2, 64))
logits = model(tokens)
loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
loss.backward()
""",
    "hidden_of_other_batch": """
class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.rnn = nn.GRU(3, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(1), self.hidden)  # change
        out, _ = self.rnn(x, h0)
        return self.head(out[:, -1])


model = Forecaster(8)
opt = torch.optim.Adam(model.parameters())
series, target = torch.randn(5, 12, 3), torch.randn(5, 1)
for epoch in range(2):
    opt.zero_grad()
    loss = F.mse_loss(model(series), target)
    loss.backward()
    opt.step()
""",
    "lstm_returns_a_pair": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, words):
        out = self.lstm(self.embed(words))  # change
        return self.head(out)  # change


model = Tagger()
words = torch.randint(0, 30, (3, 7))
tags = torch.randint(0, 5, (3, 7))
loss = F.cross_entropy(model(words).transpose(1, 2), tags)
loss.backward()
""",
    "no_super": """
class Net(nn.Module):
    def __init__(self, inside, outside):  # change
        self.layer = nn.Linear(inside, outside)  # change

    def forward(self, x):
        return self.layer(x)


net = Net(4, 2)
loss = net(torch.randn(3, 4)).square().mean()
loss.backward()
""",
    "parameters_not_called": """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters, lr=1e-3)  # change
x, y = torch.randn(16, 4), torch.randn(16, 1)
for epoch in range(3):
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
""",
    "misspelt_backward": """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    opt.zero_grad()
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backwards()  # change
    opt.step()
""",
    "loss_not_built": """
net = nn.Linear(6, 3)
criterion = nn.CrossEntropyLoss  # change
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
out = net(x)
loss = criterion(out, y)
loss.backward()
opt.step()
""",
    "mean_of_numbers": """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
for batch in torch.randn(5, 8, 4):
    loss = net(batch).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())  # change
average = torch.stack(losses).mean()  # change
""",
    "layers_in_a_list": """
class MLP(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = []  # change
        for a, b in zip(sizes[:-1], sizes[1:]):
            self.layers.append(nn.Linear(a, b))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


model = MLP([4, 8, 2])
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss = model(torch.randn(5, 4)).square().mean()
loss.backward()
opt.step()
""",
    "binary_target_without_column": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 16)
        self.b = nn.Linear(16, 1)

    def forward(self, x):
        return torch.sigmoid(self.b(F.relu(self.a(x))))


model = Net()
criterion = nn.BCELoss()
opt = torch.optim.Adam(model.parameters())
x = torch.randn(8, 10)
y = (x.sum(1) > 0).float()  # change
out = model(x)  # change
loss = criterion(out, y)  # change
loss.backward()
opt.step()
""",
    "labels_as_a_column": """
import numpy as np

table = np.random.default_rng(0).normal(size=(20, 5)).astype("float32")
labels = (table[:, :1] > 0).astype("int64")
net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
x = torch.from_numpy(table)
y = torch.from_numpy(labels)  # change
loss = nn.CrossEntropyLoss()(net(x), y)  # change
loss.backward()
""",
    "segmentation_with_a_channel": """
class Segmenter(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


net = Segmenter(4)
images = torch.rand(2, 3, 16, 16)
masks = torch.randint(0, 4, (2, 1, 16, 16))  # change
criterion = nn.CrossEntropyLoss()
loss = criterion(net(images), masks)  # change
loss.backward()
""",
    "ignored_label_minus_one": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, x):
        return self.head(self.table(x))


model = Model()
criterion = nn.CrossEntropyLoss()  # change
tokens = torch.randint(0, 20, (2, 6))
targets = tokens.roll(-1, dims=1)
targets[:, -1] = -1  # change
logits = model(tokens)
loss = criterion(logits.view(-1, 20), targets.view(-1))  # change
loss.backward()
""",
    "mask_of_unflattened_tokens": """
table = nn.Embedding(40, 6)
head = nn.Linear(6, 40)
tokens = torch.randint(0, 40, (3, 5))
mask = torch.rand(3, 5) < 0.5  # change
mask[0, 0] = True
hidden = table(tokens).view(-1, 6)
chosen = hidden[mask]  # change
loss = F.cross_entropy(head(chosen), tokens[mask])
loss.backward()
""",
    "scatter_of_messages": """
class GraphLayer(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.lin = nn.Linear(inside, outside)

    def forward(self, x, edges):
        source, target = edges
        messages = self.lin(x)[source]
        out = torch.zeros(x.size(0), messages.size(1))
        return out.scatter_add(0, target, messages)  # change


layer = GraphLayer(4, 8)
edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
loss = layer(torch.randn(4, 4), edges).pow(2).mean()
loss.backward()
""",
    "average_of_weights": """
import copy

net = nn.Linear(4, 2)
average = copy.deepcopy(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(6, 4)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for slow, fast in zip(average.parameters(), net.parameters()):
        slow.mul_(0.9).add_(fast, alpha=0.1)  # change
""",
    "generator_not_detached": """
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
for step in range(2):
    real = torch.randn(8, 2)
    fake = G(torch.randn(8, 4))
    opt_d.zero_grad()
    loss_d = bce(D(real), torch.ones(8, 1)) + bce(D(fake), torch.zeros(8, 1))  # change
    loss_d.backward()  # change
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(D(fake), torch.ones(8, 1))
    loss_g.backward()
    opt_g.step()
""",
    "hidden_kept_with_retain": """
cell = nn.RNNCell(3, 5)
head = nn.Linear(5, 1)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
h = torch.zeros(2, 5)
for t in range(4):
    x, y = torch.randn(2, 3), torch.randn(2, 1)
    h = cell(x, h)  # change
    loss = F.mse_loss(head(h), y)
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
""",
    "actions_without_column": """
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target.load_state_dict(policy.state_dict())
opt = torch.optim.Adam(policy.parameters())
states, following = torch.randn(16, 4), torch.randn(16, 4)
actions = torch.randint(0, 2, (16,))  # change
rewards = torch.randn(16)
q = policy(states).gather(1, actions)  # change
with torch.no_grad():
    best = target(following).max(1).values
loss = F.smooth_l1_loss(q.squeeze(), rewards + 0.99 * best)
opt.zero_grad()
loss.backward()
opt.step()
""",
    "heads_merged_by_view": """
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        weights = (q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).view(b, t, c))  # change


layer = Attention(16, 4)
loss = layer(torch.randn(2, 5, 16)).square().mean()
loss.backward()
""",
    "mirrored_image": """
import numpy as np

image = np.random.default_rng(0).random((3, 16, 16), dtype=np.float32)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
mirrored = image[:, :, ::-1]  # change
x = torch.from_numpy(mirrored).unsqueeze(0)  # change
loss = F.cross_entropy(net(x), torch.tensor([1]))
loss.backward()
""",
    "tensor_of_tensors": """
encoder = nn.Linear(6, 4)
head = nn.Linear(4, 2)
features = []
for clip in torch.randn(5, 3, 6):
    features.append(encoder(clip).mean(0))
batch = torch.tensor(features)  # change
loss = F.cross_entropy(head(batch), torch.tensor([0, 1, 0, 1, 1]))
loss.backward()
""",
    "vocabulary_grew": """
corpus = ["the cat sat", "the dog ran", "a cat ran"]
vocab = {}
for sentence in corpus:
    for word in sentence.split():
        vocab.setdefault(word, len(vocab))


class Bag(nn.Module):
    def __init__(self, n_words):
        super().__init__()
        self.table = nn.EmbeddingBag(n_words, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.table(ids))


model = Bag(len(vocab))  # change
vocab["<pad>"] = len(vocab)
rows = [[vocab[word] for word in sentence.split()] + [vocab["<pad>"]] for sentence in corpus]
loss = F.cross_entropy(model(torch.tensor(rows)), torch.tensor([0, 1, 0]))
loss.backward()
""",
    "groups_of_channels": """
class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(32, outside)  # change

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


net = nn.Sequential(Block(3, 48), Block(48, 48))  # change
loss = net(torch.randn(2, 3, 8, 8)).square().mean()
loss.backward()
""",
    "weights_without_a_row": """
class Pooling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        weights = self.score(x).squeeze(-1).softmax(-1)  # change
        return torch.bmm(weights, x).squeeze(1)  # change


pool = Pooling(6)
head = nn.Linear(6, 3)
x = torch.randn(4, 7, 6)
loss = F.cross_entropy(head(pool(x)), torch.tensor([0, 1, 2, 0]))
loss.backward()
""",
    "sequential_of_a_list": """
def build(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(layers[:-1])  # change


net = build([3, 8, 8, 1])
loss = net(torch.randn(4, 3)).mean()
loss.backward()
""",
    "batch_is_a_list": """
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(12, 5), torch.randn(12, 1))
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(data, batch_size=4):  # change
    opt.zero_grad()
    loss = net(x).square().mean()  # change
    loss.backward()
    opt.step()
""",
    "bias_by_fan": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 1)
        for layer in (self.a, self.b):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.kaiming_normal_(layer.bias)  # change

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


net = Net()
net(torch.randn(2, 4)).mean().backward()
""",
    "one_hot_of_too_few": """
classes = 4
net = nn.Linear(6, 5)
labels = torch.tensor([0, 3, 4, 2])
target = F.one_hot(labels, num_classes=classes).float()  # change
loss = F.binary_cross_entropy_with_logits(net(torch.randn(4, 6)), target)
loss.backward()
""",
    "upsampled_without_batch": """
net = nn.Conv2d(3, 8, 3, padding=1)
picture = torch.rand(3, 20, 20)
small = F.interpolate(picture, size=(10, 10), mode="bilinear", align_corners=False)  # change
loss = net(small).square().mean()
loss.backward()
""",
    "plateau_without_metric": """
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2)
for epoch in range(4):
    opt.zero_grad()
    loss = net(torch.randn(8, 3)).square().mean()
    loss.backward()
    opt.step()
    scheduler.step()  # change
""",
    "backward_returns_too_few": """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor  # change


x = torch.randn(4, requires_grad=True)
Scaled.apply(x, 3.0).sum().backward()
""",
    "picture_permuted_by_three": """
net = nn.Conv2d(3, 4, 3)
pictures = torch.rand(2, 12, 12, 3)
x = pictures.permute(2, 0, 1)  # change
loss = net(x).square().mean()
loss.backward()
""",
    "mean_of_channels": """
mean = torch.tensor([0.485, 0.456, 0.406])  # change
std = torch.tensor([0.229, 0.224, 0.225])
net = nn.Conv2d(3, 4, 3)
picture = torch.rand(3, 32, 32)
x = (picture - mean) / std  # change
loss = net(x.unsqueeze(0)).square().mean()
loss.backward()
""",
    "unsorted_lengths": """
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

rows = [torch.randn(n, 3) for n in (4, 7, 2)]
lengths = torch.tensor([len(row) for row in rows])
padded = pad_sequence(rows, batch_first=True)
rnn = nn.GRU(3, 5, batch_first=True)
packed = pack_padded_sequence(padded, lengths, batch_first=True)  # change
_, h = rnn(packed)
h.square().mean().backward()
""",
    "sampler_and_shuffle": """
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

data = TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))
sampler = WeightedRandomSampler(torch.ones(20), 20)
loader = DataLoader(data, batch_size=5, sampler=sampler, shuffle=True)  # change
net = nn.Linear(4, 2)
for x, y in loader:
    F.cross_entropy(net(x), y).backward()
""",
    "positions_of_odd_width": """
import math


class Positions(nn.Module):
    def __init__(self, width, longest=20):
        super().__init__()
        position = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))  # change
        table = torch.zeros(longest, width)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)  # change
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]


model = nn.Sequential(nn.Linear(3, 9), Positions(9), nn.Linear(9, 1))  # change
model(torch.randn(2, 6, 3)).mean().backward()
""",
    "buffer_of_a_taken_name": """
class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.ones(width)  # change
        self.register_buffer("scale", torch.ones(width))  # change
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x * self.scale)


net = Norm(4)
net(torch.randn(2, 4)).mean().backward()
""",
    "weights_of_whole_numbers": """
class Mixture(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))  # change
        self.layer = nn.Linear(4, len(weights))

    def forward(self, x):
        return (self.layer(x) * self.weights).sum(-1)


net = Mixture([1, 2, 3])  # change
net(torch.randn(5, 4)).mean().backward()
""",
    "autoencoder_decoder_width": """
class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
        self.dec = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 20))  # change

    def forward(self, x):
        return self.dec(self.enc(x))


model = AE()
x = torch.rand(6, 20)
loss = F.mse_loss(model(x), x)
loss.backward()
""",
    "wrong_method_name": """
net = nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(2):
    opt.zero_gard()  # change
    net(torch.randn(3, 4)).sum().backward()
    opt.step()
""",
    "keyword_of_the_layer": """
conv = nn.Conv2d(3, 8, 3, pading=1)  # change
net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 2))
loss = net(torch.randn(2, 3, 8, 8)).mean()
loss.backward()
""",
    "two_d_norm_on_rows": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 8)
        self.norm = nn.BatchNorm2d(8)  # change
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(F.relu(self.norm(self.lin(x))))  # change


net = Head()
F.cross_entropy(net(torch.randn(5, 6)), torch.tensor([0, 1, 0, 1, 0])).backward()
""",
    "lstm_pair_unpacked_wrong": """
lstm = nn.LSTM(4, 8, batch_first=True)
head = nn.Linear(8, 1)
x = torch.randn(3, 5, 4)
out, h, c = lstm(x)  # change
loss = head(h[-1]).square().mean()
loss.backward()
""",
    "labels_as_text_of_floats": """
import numpy as np

features = np.ones((6, 3))
labels = np.array([0, 1, 0, 1, 1, 0])
net = nn.Linear(3, 2)
out = net(torch.from_numpy(features))  # change
loss = F.cross_entropy(out, torch.from_numpy(labels))
loss.backward()
""",
    "dict_key": """
batch = {"input_ids": torch.randint(0, 9, (2, 4)), "labels": torch.tensor([0, 1])}
table, head = nn.Embedding(9, 6), nn.Linear(6, 2)
scores = head(table(batch["input_ids"]).mean(1))
loss = F.cross_entropy(scores, batch["label"])  # change
loss.backward()
""",
    "self_forgotten": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 5)
        self.b = nn.Linear(5, 1)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return b(x)  # change


net = Net()
net(torch.randn(4, 3)).mean().backward()
""",
    "shape_called": """
net = nn.Linear(6, 2)
x = torch.randn(4, 2, 3)
flat = x.view(x.shape(0), -1)  # change
net(flat).mean().backward()
""",
    "context_query_order": """
q, k, v = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
w = nn.Linear(8, 8)
scores = torch.bmm(w(q), k) / 8**0.5  # change
out = torch.bmm(scores.softmax(-1), v)
out.mean().backward()
""",
    "reparameterised_mean_of_ints": """
counts = torch.tensor([[1, 2], [3, 4]])
weight = nn.Parameter(torch.ones(2))
average = counts.mean(dim=0)  # change
(weight * average).sum().backward()
""",
    "missing_argument_of_forward": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 2)

    def forward(self, x, mask):
        return self.lin(x * mask)


model = Model()
x = torch.randn(3, 4)
mask = torch.ones(3, 4)
loss = model(x).mean()  # change
loss.backward()
""",
    "weights_of_embedding_frozen_write": """
table = nn.Embedding(6, 3)
vectors = torch.randn(6, 3)
for i in range(6):
    table.weight[i] = vectors[i]  # change
table(torch.tensor([1, 2])).sum().backward()
""",
    "pixel_shuffle_channels": """
class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 3, padding=1)  # change
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        return self.shuffle(self.conv(x))


net = Up()
net(torch.randn(1, 3, 6, 6)).mean().backward()
""",
    "softmax_third_dimension": """
class Policy(nn.Module):
    def __init__(self, obs, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.Tanh())
        self.logits = nn.Linear(32, actions)

    def forward(self, state):
        return torch.softmax(self.logits(self.body(state)), dim=2)  # change

policy = Policy(4, 3)
states = torch.randn(6, 4)
probs = policy(states)
dist = torch.distributions.Categorical(probs)
action = dist.sample()
loss = -(dist.log_prob(action) * torch.randn(6)).mean()
loss.backward()
assert torch.allclose(probs.sum(1), torch.ones(6))
""",
    "gather_labels_from_one": """
ratings = torch.tensor([5, 1, 3, 4, 2, 5, 1, 2])  # change
features = torch.randn(8, 7)
net = nn.Linear(7, 5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
logp = F.log_softmax(net(features), dim=1)
picked = logp.gather(1, ratings.unsqueeze(1))  # change
loss = -picked.mean()
loss.backward()
opt.step()
assert net.out_features == 5 and torch.allclose(loss, F.cross_entropy(logp, torch.tensor([4, 0, 2, 3, 1, 4, 0, 1])))
""",
    "ppo_old_log_probs": """
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
states, advantages = torch.randn(16, 4), torch.randn(16)
dist = Categorical(logits=actor(states))
actions = dist.sample()
old_logp = dist.log_prob(actions)  # change
for epoch in range(4):
    logp = Categorical(logits=actor(states)).log_prob(actions)
    ratio = (logp - old_logp).exp()  # change
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
assert (old_logp.requires_grad is False or True)
""",
    "head_replaced_before_freezing": """
def small_resnet():
    return nn.ModuleDict({
        "stem": nn.Conv2d(3, 8, 3, stride=2),
        "body": nn.Conv2d(8, 16, 3, stride=2),
        "fc": nn.Linear(16, 1000),
    })

class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.net = small_resnet()
        self.net["fc"] = nn.Linear(16, classes)  # change
        for p in self.net.parameters():
            p.requires_grad = False  # change

    def forward(self, x):
        h = torch.relu(self.net["body"](torch.relu(self.net["stem"](x))))
        return self.net["fc"](h.mean((2, 3)))

model = Classifier(4)
opt = torch.optim.SGD([p for p in model.parameters()], lr=0.1)
images, labels = torch.randn(5, 3, 16, 16), torch.tensor([0, 1, 2, 3, 0])
loss = nn.CrossEntropyLoss()(model(images), labels)
loss.backward()
opt.step()
assert model.net["fc"].weight.grad is not None
""",
    "critic_value_detached": """
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 16)
        self.actor = nn.Linear(16, 2)
        self.critic = nn.Linear(16, 1)

    def forward(self, s):
        h = torch.tanh(self.shared(s))
        return self.actor(h), self.critic(h).squeeze(-1)

model = ActorCritic()
opt = torch.optim.Adam(model.parameters())
state, returns = torch.randn(10, 4), torch.randn(10)
logits, value = model(state)
value = value.detach()  # change
value_loss = (returns - value).pow(2).mean()
opt.zero_grad()
value_loss.backward()
opt.step()
assert model.critic.weight.grad is not None
""",
    "optimizer_before_new_head": """
class Encoder(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Linear(12, 8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.trunk(x)))

model = Encoder(10)
optimizer = torch.optim.AdamW(model.fc.parameters(), lr=1e-3)  # change
model.fc = nn.Linear(8, 3)  # change
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(7, 12), torch.randint(0, 3, (7,))
for step in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
assert any(p is model.fc.weight for g in optimizer.param_groups for p in g["params"])
""",
    "layers_in_a_dict": """
class TwoTowers(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.towers = {name: nn.Linear(n, 8) for name, n in widths.items()}  # change

    def forward(self, batch):
        return sum(self.towers[name](x) for name, x in batch.items())

model = TwoTowers({"user": 5, "item": 9})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batch = {"user": torch.randn(4, 5), "item": torch.randn(4, 9)}
for _ in range(3):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert len(list(model.parameters())) == 4
""",
    "whole_checkpoint_loaded": """
import io

def build():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))

trained = build()
opt = torch.optim.Adam(trained.parameters())
store = {"epoch": 7, "model_state_dict": trained.state_dict(), "optimizer": opt.state_dict()}
model = build()
model.load_state_dict(store)  # change
model.eval()
with torch.no_grad():
    out = model(torch.ones(2, 6))
assert torch.equal(out, trained(torch.ones(2, 6)))
""",
    "ragged_pairs_in_loader": """
from torch.utils.data import Dataset, DataLoader

class Sentences(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.rows = [torch.randint(1, 50, (int(n),), generator=g) for n in (5, 9, 3, 7, 6, 4)]
        self.labels = [0, 1, 0, 1, 1, 0]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], self.labels[i]

loader = DataLoader(Sentences(), batch_size=3)  # change
emb = nn.Embedding(50, 8, padding_idx=0)
head = nn.Linear(8, 2)
for tokens, labels in loader:
    logits = head(emb(tokens).mean(1))
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()
assert tokens.shape[0] == 3 and logits.shape == (3, 2)
""",
    "single_picture_in_training_mode": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        return self.head(self.features(x))

model = Net()
opt = torch.optim.Adam(model.parameters())
for _ in range(2):
    x, y = torch.randn(8, 1, 12, 12), torch.randint(0, 10, (8,))
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()

digit = torch.rand(1, 1, 12, 12)
with torch.no_grad():
    scores = model(digit)  # change
print(scores.argmax(1))
assert scores.shape == (1, 10) and not model.training
""",
    "attention_mask_per_sample": """
class Encoder(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, pad):
        out, _ = self.attn(x, x, x, attn_mask=pad)  # change
        return self.norm(x + out)

tokens = torch.tensor([[4, 5, 6, 0, 0], [7, 8, 9, 3, 0], [1, 2, 0, 0, 0]])
embed = nn.Embedding(10, 8)
encoder = Encoder(8, 2)
y = encoder(embed(tokens), tokens == 0)
loss = y.mean(1).square().mean()
loss.backward()
assert y.shape == (3, 5, 8)
""",
    "last_batch_and_hidden": """
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 12, num_layers=2, batch_first=True)
        self.fc = nn.Linear(12, 1)

    def forward(self, x):
        h = torch.zeros(2, BATCH, 12)  # change
        c = torch.zeros(2, BATCH, 12)  # change
        out, _ = self.lstm(x, (h, c))
        return self.fc(out[:, -1])

data = TensorDataset(torch.randn(21, 10, 3), torch.randn(21, 1))
loader = DataLoader(data, batch_size=BATCH)  # change
net = Net()
opt = torch.optim.Adam(net.parameters())
seen = 0
for x, y in loader:
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen += len(x)
assert seen in (21, 16)
""",
    "one_cycle_too_short": """
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
EPOCHS = 5
scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=EPOCHS)  # change
for epoch in range(EPOCHS):
    for x, y in loader:
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        scheduler.step()
assert scheduler.last_epoch == 20
""",
    "ragged_samples_that_are_dicts": """
rows = [{"ids": torch.arange(n + 2), "label": n % 2} for n in range(6)]
for batch in torch.utils.data.DataLoader(rows, batch_size=3):  # change
    assert batch["ids"].dim() == 2 and batch["label"].shape == (3,)
""",
    "ragged_samples_of_a_worker": """
rows = [{"ids": torch.arange(n + 2), "label": n % 2} for n in range(6)]
loader = torch.utils.data.DataLoader(rows, batch_size=3, num_workers=1)  # change
for batch in loader:
    assert batch["ids"].dim() == 2 and batch["label"].shape == (3,)
""",
    "unscale_of_half_weights": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).half()  # change
opt = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x, y = torch.randn(5, 6), torch.randn(5, 1)
for _ in range(2):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
assert next(model.parameters()).dtype == torch.float32
""",
    "targets_of_minus_one": """
torch.manual_seed(3)
x = torch.randn(16, 4)
y = torch.sign(x[:, :1])  # change
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
criterion = nn.BCELoss()  # change
opt = torch.optim.Adam(model.parameters())
for epoch in range(2):
    p = model(x)
    loss = criterion(p, y)  # change
    opt.zero_grad()
    loss.backward()
    opt.step()
assert loss.item() > 0 and y.min() == 0
""",
    "accuracy_of_a_batch": """
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
correct, total = 0, 0
for step in range(3):
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    out = net(x)
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    correct += (out.argmax(1) == y).item()  # change
    total += len(y)
accuracy = correct / total
assert 0 <= accuracy <= 1 and isinstance(correct, int)
""",
    "running_mean_in_place": """
class Whiten(nn.Module):
    def __init__(self, width, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(width))
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        with torch.no_grad():
            self.mean += self.momentum * (x - self.mean)  # change
        return self.layer(x - self.mean)

model = Whiten(5)
out = model(torch.randn(8, 5) + 3)
out.square().mean().backward()
assert model.mean.shape == (5,)
""",
    "gradient_penalty_through_checkpoint": """
from torch.utils.checkpoint import checkpoint

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=True))  # change

critic = Critic()
opt = torch.optim.Adam(critic.parameters())
real, fake = torch.randn(8, 4), torch.randn(8, 4)
mixed = torch.lerp(real, fake, torch.rand(8, 1)).requires_grad_()
score = critic(mixed).sum()
(grad,) = torch.autograd.grad(score, mixed, create_graph=True)
penalty = (grad.norm(dim=1) - 1).square().mean()
loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
loss.backward()
opt.step()
assert critic.body[0].weight.grad is not None
""",
    "per_sample_gradients_with_dropout": """
from torch.func import functional_call, grad, vmap

model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
params = dict(model.named_parameters())

def loss_fn(params, x, y):
    out = functional_call(model, params, (x.unsqueeze(0),))
    return nn.functional.mse_loss(out, y.unsqueeze(0))

x, y = torch.randn(6, 4), torch.randn(6, 1)
per_sample = vmap(grad(loss_fn), in_dims=(None, 0, 0))(params, x, y)  # change
norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample.values()]).norm(dim=0)
assert norms.shape == (6,)
""",
    "function_gradient_of_bias": """
class Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x * weight + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0), grad.sum(1)  # change

class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return Affine.apply(x, self.weight, self.bias)

net = nn.Sequential(nn.Linear(3, 4), Scale(4))
loss = net(torch.randn(8, 3)).square().mean()
loss.backward()
assert net[1].bias.grad.shape == (4,)
""",
    "average_model_keeps_activations": """
import copy

class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.last = None

    def forward(self, x):
        h = torch.relu(self.a(x))
        self.last = h  # change
        return self.b(h)

model = Probe()
opt = torch.optim.Adam(model.parameters())
best, kept = float("inf"), None
for epoch in range(3):
    loss = model(torch.randn(6, 4)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if loss.item() < best:
        best, kept = loss.item(), copy.deepcopy(model)  # change
assert isinstance(kept, Probe)
""",
    "spectrum_into_linear": """
class Spectral(nn.Module):
    def __init__(self, n, classes):
        super().__init__()
        self.fc = nn.Linear(n // 2 + 1, classes)

    def forward(self, wave):
        spectrum = torch.fft.rfft(wave, dim=-1)  # change
        return self.fc(spectrum)  # change

net = Spectral(64, 3)
out = net(torch.randn(5, 64))
loss = nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 1, 0]))
loss.backward()
assert not out.is_complex()
""",
    "seq2seq_decoder_single_token": """
class Decoder(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, token, hidden):
        x = self.emb(token)  # change
        y, hidden = self.gru(x, hidden)  # change
        return self.out(y).squeeze(1), hidden

decoder = Decoder(25, 16)
hidden = torch.zeros(1, 4, 16)
target = torch.randint(0, 25, (4, 6))
loss = 0
token = target[:, 0]
for t in range(1, 6):
    logits, hidden = decoder(token, hidden)  # change
    loss = loss + nn.functional.cross_entropy(logits, target[:, t])
    token = target[:, t]
loss.backward()
assert logits.shape == (4, 25) and hidden.shape == (1, 4, 16)
""",
    "vae_loss_of_images_and_vectors": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(64, 32)
        self.mu, self.logvar = nn.Linear(32, 4), nn.Linear(32, 4)
        self.dec = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.enc(x.view(-1, 64)))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar

vae = VAE()
x = torch.rand(5, 1, 8, 8)
recon, mu, logvar = vae(x)  # change
bce = F.binary_cross_entropy(recon, x, reduction="sum")  # change
kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
(bce + kld).backward()
assert bce.item() > 100
""",
    "gradient_of_input_not_required": """
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
x = torch.rand(2, 6)  # change
y = torch.tensor([0, 2])
loss = nn.functional.cross_entropy(net(x), y)
grad, = torch.autograd.grad(loss, x)  # change
adversarial = (x + 0.1 * grad.sign()).clamp(0, 1)
out = net(adversarial)
assert grad.shape == (2, 6)
""",
    "quantised_weights_rounded": """
class FakeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, levels):
        return (x / scale).round().clamp(-levels, levels) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad  # change

class QLinear(nn.Linear):
    def forward(self, x):
        w = FakeQuant.apply(self.weight, 0.1, 7)
        return nn.functional.linear(x, w, self.bias)

net = nn.Sequential(QLinear(4, 6), nn.ReLU(), QLinear(6, 1))
net(torch.randn(3, 4)).mean().backward()
assert net[0].weight.grad is not None
""",
    "index_of_best_as_boolean": """
emb = nn.Embedding(40, 8)
queries = torch.randint(0, 40, (5,))
scores = emb(queries) @ emb.weight.T
top = scores.topk(3, dim=1)  # change
picked = emb(top)  # change
loss = picked.mean()
loss.backward()
assert picked.shape == (5, 3, 8)
""",
    "pinn_second_derivative": """
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.linspace(0, 1, 15).unsqueeze(1).requires_grad_()
for it in range(2):
    u = net(x)
    du = torch.autograd.grad(u.sum(), x)[0]  # change
    d2u = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
    loss = (d2u + u).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
assert du.requires_grad
""",
    "transformer_width_not_divisible": """
class Forecaster(nn.Module):
    def __init__(self, n_features, heads=4):  # change
        super().__init__()
        layer = nn.TransformerEncoderLayer(n_features, heads, 32, batch_first=True)  # change
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(n_features, 1)

    def forward(self, x):
        return self.head(self.encoder(x)[:, -1])

model = Forecaster(9)  # change
y = model(torch.randn(5, 12, 9))
y.square().mean().backward()
assert y.shape == (5, 1)
""",
}


pytestmark = pytest.mark.filterwarnings("error:internal error in nanlab")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 120.0)  # however busy the machine is


def run(path: Path, text: str) -> dict[str, Any]:
    """The names of a program that ran."""
    torch.manual_seed(0)
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n", names)
    with torch.enable_grad():  # it may leave them off
        exec(compile(text, str(path), "exec", dont_inherit=True), names)
    return names


@pytest.mark.examples(every=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_edit_at_a_line_to_change_lets_the_program_run(name: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    text = PROGRAMS[name].strip() + "\n"
    wanted = {i for i, line in enumerate(text.splitlines(), 1) if "# change" in line}
    with pytest.raises(Exception) as caught:  # noqa: PT011
        run(path, text)
    told = nanlab.explain(caught.value)
    assert told is not None and told.change is not None, told
    assert told.change[0] == str(path) and told.change[1] in wanted
    lines = text.splitlines()
    for edit in sorted(told.fixes[0].edits, key=lambda each: -each.first):
        lines[edit.first - 1 : edit.last] = edit.rows()
    run(path, "\n".join(lines) + "\n")


def meant() -> dict[str, str]:
    """Programs by name; their comments ``# meant`` say what holds once each is as it was meant."""
    text = (Path(__file__).parent / "corpus" / "errors.txt").read_text()
    return dict(block.split("\n", 1) for block in text.split("=== ")[1:])  # type: ignore[misc]


@pytest.mark.examples(every=25)
@pytest.mark.parametrize("name", meant())
def test_edit_makes_the_program_do_what_was_meant(name: str, tmp_path: Path) -> None:
    does_what_was_meant(meant()[name], tmp_path / "program.py", nanlab.watch(on_fault="record"))


UNWATCHED = """
skip_added_in_place scaled_and_shifted_in_blocks exponential_doubled_in_place
first_row_of_attention_cleared halved_in_each_round buffer_cleared_before_the_backward
scores_of_queries_and_keys scores_by_bmm column_of_a_table last_of_each_row first_of_the_rows
one_class_too_few one_class_too_few_of_log_probabilities
loss_computed_without_gradients scored_without_gradients
rows_of_another_number images_of_a_smaller_batch last_slice_of_one_sample
last_slice_of_one_sample_in_training last_part_of_one_sample
""".split()


@pytest.mark.parametrize("name", UNWATCHED)
def test_edit_without_a_watch_keeps_what_the_program_says(name: str, tmp_path: Path) -> None:
    told = does_what_was_meant(meant()[name], tmp_path / "program.py", nullcontext())
    marked = {n for n, row in enumerate(meant()[name].splitlines(), 1) if "# change" in row}
    assert told.change is not None and (not marked or told.change[1] in marked)


def does_what_was_meant(text: str, path: Path, watched: AbstractContextManager[Any]) -> Explanation:
    """What is said of a program that raises, once it holds with the first edit what was meant."""
    with pytest.raises(Exception) as caught, watched:  # noqa: PT011
        run(path, text)
    told = nanlab.explain(caught.value)
    assert told is not None and told.fixes and told.fixes[0].edits, told
    lines = text.splitlines()
    for edit in sorted(told.fixes[0].edits, key=lambda each: -each.first):
        lines[edit.first - 1 : edit.last] = edit.rows()
    names = run(path, "\n".join(lines) + "\n")
    for line in lines:
        if line.startswith("# meant: "):
            assert eval(line.removeprefix("# meant: "), names), "\n".join(lines)
    return told


def failed(path: Path, text: str) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        run(path, text)
    return caught.value


def test_second_mistake_behind_the_first_is_mended_too(tmp_path: Path) -> None:
    text = """
q = nn.Linear(4, 2)(torch.randn(8, 4))
chosen = q.gather(1, torch.randint(0, 2, (8, 1))[:, 0])
expected = torch.rand(8)
loss = F.smooth_l1_loss(chosen, expected)
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None
    assert [edit.first for edit in told.fixes[0].edits] == [3, 5]
    assert told.change is not None
    assert told.change[1] == 3


def test_no_edit_lets_a_loop_run_less_often(tmp_path: Path) -> None:
    text = """
net = nn.Linear(2, 1)
for _ in range(4):
    loss = net(torch.ones(3, 2)).sum()
    loss.backward()
    torch._C._set_grad_enabled(False)
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    torch.set_grad_enabled(True)
    assert told is not None
    assert not any("range(" in edit.text for fix in told.fixes for edit in fix.edits)


def test_edit_with_which_the_loop_that_raised_does_not_run_evades(tmp_path: Path) -> None:
    text = """
x = torch.arange(3)
def total(n):
    whole = 0
    for t in range(n, -1, -1):
        whole = whole + x[t]
    return whole
y = total(3)
"""
    path = tmp_path / "program.py"
    site = Site.of(failed(path, text))
    assert site is not None
    old = "for t in range(n, -1, -1):"
    heads = [f"for t in range({bounds}):" for bounds in ("-1, n, -1", "n - 1, -1, -1")]
    tries = [[Edit(str(path), 5, 5, head, f"    {old}")] for head in heads]
    assert site.program.first(tries) == 1


@pytest.mark.parametrize(
    "text",
    [
        """
table, at = torch.zeros(3, 2), torch.tensor([0, 1])
table[at] = torch.ones(2, 2).bfloat16()
""",
        """
rows = [None] * 3
for i in range(2):
    rows[i] = torch.ones(2)
whole = torch.stack(rows)
""",
    ],
)
def test_no_edit_writes_into_a_copy_or_drops_what_was_never_filled(
    text: str, tmp_path: Path
) -> None:
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    edits = [edit.text for fix in told.fixes for edit in fix.edits] if told is not None else []
    assert not any("table.bfloat16()[" in edit or "is not None" in edit for edit in edits)


@pytest.mark.parametrize(
    "text",
    [
        "total, count = 2.0, 0\nmean = total / count\n",
        "losses = [torch.ones(1).item()]\nworse = losses[-1] > losses[-2]\n",
        "import os\nrate = float(os.environ['A_RATE_THAT_NOBODY_SET'])\n",
    ],
)
def test_no_edit_ends_an_error_by_chance(text: str, tmp_path: Path) -> None:
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is None or not any(fix.edits for fix in told.fixes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss.backward()", "penalty.backward()"),
        ("order = x.argsort(descending=True)", "order = x.argsort()"),
        ("best = max(names, reverse=True)", "best = max(names, reverse=False)"),
    ],
)
def test_an_edit_that_derives_or_sorts_something_else_evades(
    old: str, new: str, tmp_path: Path
) -> None:
    text = """
w = torch.ones(3, requires_grad=True)
loss, penalty = (w - 1).square(), w.square().sum()
loss.backward()
"""
    site = Site.of(failed(tmp_path / "program.py", text))
    assert site is not None
    assert search._evades(site, Candidate(0.5, (Edit("program.py", 3, 3, new, old),)))
    assert not search._evades(site, Candidate(0.5, (Edit("program.py", 3, 3, old, old),)))


def test_an_edit_after_which_what_raised_is_never_reached_is_no_cure() -> None:
    raised = trial.Outcome("raised", begun=(0, 0))
    ran = trial.Outcome("ran", begun=(0, 0), reached=False)
    assert ran.judged(raised, ()).kind == "evades"


def test_data_is_not_cut_so_that_a_loop_has_no_rounds(tmp_path: Path) -> None:
    text = """
import csv, io

table = io.StringIO("name,width,rate\\nsmall,eight,0.1\\n")
for row in csv.DictReader(table):
    layer = nn.Linear(3, row["width"])
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is None or not any(fix.edits for fix in told.fixes)


def test_what_is_computed_again_is_not_cut_from_the_loss(tmp_path: Path) -> None:
    text = """
from torch.utils.checkpoint import checkpoint

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.extra, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        x = torch.tanh(self.lin(x))
        return x + torch.sigmoid(self.extra(x)) if self.calls == 1 else x

loss = checkpoint(Gated(), torch.randn(5, 4), use_reentrant=False).square().mean()
loss.backward()
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None and not any(fix.edits for fix in told.fixes)
    assert told.line == text.splitlines().index("loss.backward()") + 1


@pytest.mark.parametrize(
    "text",
    [
        """
rows = []
x = torch.ones(2, 3) @ torch.tensor(rows).view(*torch.ones(2, 3, 0).shape[2:])
""",
        "layer = nn.Linear(8, ['6', '4'])\n",
        """
import collections, numpy
memory = collections.deque()
batch = numpy.random.choice(memory, 4)
""",
        """
class Settings:
    def load(self):
        return nn.Linear(3, 2, **self.read())
    def read(self):
        return {"dropout": 0.1}
layer = Settings().load()
""",
        """
def map(x):
    return x
y = torch.where(torch.ones(4) > 0, [1, 2], [-1, 1]) if map([1]) else map([-1])
""",
        """
import pandas
rows = pandas.Series([[1], [2], "a"]).map({"A": 0, 3: 1})
loss = F.cross_entropy(torch.randn(3, 2), torch.tensor([1 if n else [0] for n in (1, 0, -1)]))
""",
        '"""Counts."""\nx: any | None = None\n',
        """
class Settings:
    __slots__ = ("kind",)
settings = Settings()
settings.kind = torch.tensor
def take(x: settings.kind | None, y: any | None = None): return x
""",
    ],
)
def test_every_kind_of_edit_reads_lists_and_other_values_than_are_usual(
    text: str, tmp_path: Path
) -> None:
    site = Site.of(failed(tmp_path / "program.py", text))
    assert site is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(search._candidates(site))


def test_edit_that_others_of_its_kind_contradict_gives_way() -> None:
    texts = {"a": 0.5, "b": 0.55, "c": 0.6}
    edits = {name: (Edit("train.py", 1, 1, name),) for name in texts}
    kinds = {"a": "other_forms", "b": "other_forms", "c": "options"}
    found = [Candidate(cost, edits[name], kinds[name]) for name, cost in texts.items()]

    outcomes = [trial.Outcome("ran", result=name) for name in texts]
    assert search._likeliest(found, outcomes) is found[2]


def test_edit_by_which_less_is_differentiated_is_no_cure() -> None:
    raised = trial.Outcome("raised", begun=(3, 2))
    edits = (Edit("train.py", 1, 1, "epoch(train=False)", "epoch(train=True)"),)
    later = (Edit("train.py", 1, 1, "loss.mean().backward()", "loss.backward()"),)
    for begun, idle, tried, kind in (
        ((3, 2), 0, edits, "ran"),
        ((2, 2), 0, edits, "evades"),
        ((2, 2), 0, later, "ran"),  # of the call itself
        ((3, 2), 1, later, "evades"),  # nothing has a gradient
    ):
        ran = trial.Outcome("ran", begun=begun, idle=idle)
        assert ran.judged(raised, tried).kind == kind


def test_edits_of_lines_of_several_depths_write_each_as_deep_as_it_stands() -> None:
    text = "def f(x):\n    return x.a\nf(1)\n"
    for new in (
        text.replace("x.a", "x.b").replace("f(1)", "f(2)"),
        text.replace("    return x.a\nf(1)", "    y = x.b\n    return y\n\nf(2)"),
        text + "f(3)\n",
    ):
        source = trial.Source("train.py", text, ast.parse(text))
        assert trial.edited(source, trial.difference(source, new)) == new


@pytest.mark.parametrize(
    ("written", "meant", "lines"),
    [
        ("a = f(\n    x, y=1,\n    v=2)  # rate\n", "a = f(x, y=1)", {3: ["    )  # rate"]}),
        ("a = f(\n    x,\n    v=2,\n    z=3,\n)\n", "a = f(x, z=3)", {3: []}),
        ("a = f(\n    x, v=2,\n    z=3,\n)\n", "a = f(x, z=3)", {2: ["    x,"]}),
        ("a = [\n    1,\n    2,\n]\n", "a = [5, 2]", {2: ["    5,"]}),
        ("a = f(x,\n      y, v=2)\n", "a = f(y, x)", None),
        ("a = f(\n    x,\n)\n", "a = f(x)\nb = 1", None),
    ],
)
def test_edit_of_a_statement_of_several_lines_keeps_those_that_it_does_not_change(
    written: str, meant: str, lines: dict[int, list[str]] | None
) -> None:
    source = trial.Source("train.py", written, ast.parse(written))
    whole = Edit("train.py", 1, len(source.lines), meant, written.rstrip("\n"))
    edits = trial.laid_out(source, [whole])
    assert ast.dump(ast.parse(trial.edited(source, edits))) == ast.dump(ast.parse(meant))
    assert lines is None or {each.first: each.rows() for each in edits} == lines


def test_trying_leaves_files_and_names_as_they_were(tmp_path: Path) -> None:
    kept, made = tmp_path / "kept.pt", tmp_path / "made.txt"
    text = f"""
calls = globals().setdefault("calls", [])
calls.append(1)
torch.save(torch.ones(2), {str(kept)!r})
open({str(made)!r}, "a").write("once ")
net = nn.Linear(3, 2)
net(torch.randn(4, 3)).backwards()
"""
    error = failed(tmp_path / "program.py", text)
    before = kept.read_bytes()
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
        names = traceback.tb_frame.f_globals
    nanlab.explain(error)
    assert kept.read_bytes() == before
    assert made.read_text() == "once "
    assert "calls" not in names or names["calls"] == [1]


def test_nothing_is_printed_by_what_is_tried(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
import os
print("begun")
os.write(1, b"raw")
torch.zeros(3).summ()
"""
    error = failed(tmp_path / "program.py", text)
    capfd.readouterr()
    told = nanlab.explain(error)
    assert told is not None and told.fixes[0].edits[0].text.endswith(".sum()")
    assert capfd.readouterr() == ("", "")


def test_program_that_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 2.0)
    text = """
x = torch.zeros(3)
while x.summ() == 0:
    pass
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None and not told.fixes


@pytest.mark.parametrize(("shown", "meant"), [("saved", ""), ("losss", "loss")])
def test_name_that_is_only_shown_is_taken_for_one_that_is_almost_it(
    tmp_path: Path, shown: str, meant: str
) -> None:
    told = nanlab.explain(failed(tmp_path / "program.py", f"scale = loss = 1.0\n{shown}\n"))
    edits = [edit.text for fix in (told.fixes if told else ()) for edit in fix.edits]
    assert edits == ([meant] if meant else [])


def test_program_that_waits_is_given_up_as_soon_as_it_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that a thread held when the process was forked is never let go."""
    monkeypatch.setattr(trial, "_IDLE", 0.5)
    monkeypatch.setattr(trial, "_PATIENCE", 1000)  # else it would wait for an hour
    text = """
lock.acquire()
lock.release()
net = nn.Linear(4, 2)
net(torch.randn(3, 5))
"""
    lock = threading.Lock()
    monkeypatch.setattr("builtins.lock", lock, raising=False)
    error = failed(tmp_path / "program.py", text)
    with lock:
        told = nanlab.explain(error)
    assert told is not None and told.change is not None


def test_errors_that_the_program_raises_itself_are_not_searched(tmp_path: Path) -> None:
    text = "raise ValueError('no data')\n"
    assert search.mend(failed(tmp_path / "program.py", text)) is None


def test_random_state_and_gradient_mode_stay(tmp_path: Path) -> None:
    error = failed(tmp_path / "program.py", "torch.randn(3).summ()\n")
    state = torch.get_rng_state()
    with torch.no_grad():
        assert nanlab.explain(error) is not None
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_line_to_change_may_be_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = """
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width // 2))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))
"""
    (tmp_path / "layers_of_another_file.py").write_text(layers)
    monkeypatch.syspath_prepend(tmp_path)
    text = """
from layers_of_another_file import Classifier

loss = F.cross_entropy(Classifier(16)(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0]))
loss.backward()
"""
    told = nanlab.explain(failed(tmp_path / "train.py", text))
    assert told is not None and told.change is not None
    assert told.change[0].endswith("layers_of_another_file.py")
    assert told.fixes[0].code == "self.head = nn.Linear(width // 2, 3)"


def test_program_that_writes_files_is_tried_in_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    log = tmp_path / "data" / "log.txt"
    text = f"""
import json, os

folder = {str(tmp_path)!r}
os.makedirs(folder + "/data/rows", exist_ok=True)
with open(folder + "/data/log.txt", "a") as file:
    file.write("once ")
with open(folder + "/data/rows/0.json", "w") as file:
    json.dump([1, 2, 3], file)
torch.save(torch.ones(2), folder + "/data/two.pt")
with open(folder + "/data/rows/0.json") as file:
    rows = torch.tensor(json.load(file))
assert os.path.exists(folder + "/data/rows/0.json") and torch.load(folder + "/data/two.pt").sum()
nn.Embedding(3, 2)(rows)
"""
    error = failed(tmp_path / "program.py", text)
    before = sorted(tmp_path.rglob("*"))
    told = nanlab.explain(error)
    assert told is not None and told.fixes[0].edits
    assert log.read_text() == "once " and sorted(tmp_path.rglob("*")) == before


def test_line_where_a_refused_value_was_born_is_named(tmp_path: Path) -> None:
    text = """
logits = torch.randn(2, 5, requires_grad=True)
scaled = logits / 0.0
chosen = torch.multinomial(scaled.softmax(-1), 1)
"""
    with pytest.raises(RuntimeError) as caught, nanlab.watch(on_fault="record"):
        run(tmp_path / "program.py", text)
    told = nanlab.explain(caught.value)
    assert told is not None and told.line == 3


def test_what_was_tried_and_does_not_run_is_not_told(tmp_path: Path) -> None:
    text = """
x = torch.randn(2, 3, 4)
y = x.view(7, 7)
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None and told.change is None
    assert not any(fix.edits for fix in told.fixes)


@pytest.mark.skipif(torch.cuda.device_count() > 2, reason="the device is there")
@pytest.mark.parametrize(
    ("line", "edit"),
    [
        ("state = torch.load(path)", "state = torch.load(path, map_location=device)"),
        (
            'state = dict(torch.load(path, weights_only=True, map_location="cuda:2"))',
            "state = dict(torch.load(path, weights_only=True, map_location=device))",
        ),
    ],
)
def test_a_file_of_another_device_is_loaded_to_the_one_here(
    line: str, edit: str, tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "cpu.pt")
    path = tmp_path / "cuda.pt"
    with zipfile.ZipFile(tmp_path / "cpu.pt") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            moved = old.read(name).replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:2")
            new.writestr(name, moved)
    text = f'path = {str(path)!r}\ndevice = torch.device("cpu")\n{line}\n'
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None and told.title.startswith("the file was saved from cuda:2, and")
    assert told.fixes[0].code == edit


_RESIZABLE = """
class Settings:
    def __init__(self, vocab_size=3000, type_vocab_size=2):
        self.vocab_size = vocab_size

class Net(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.table = nn.Embedding(settings.vocab_size, 3)
    def resize_token_embeddings(self, count):
        self.table = nn.Embedding(count, 3)
    def forward(self, ids):
        return self.table(ids)

model = Net(Settings(vocab_size=20))
"""


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        (
            'vocab = {f"w{i}": i for i in range(20)}\nfor new in ("a", "b"):\n'
            "    vocab[new] = len(vocab)\nids = torch.tensor([vocab['b']])\n",
            "    vocab[new] = len(vocab)\nmodel.resize_token_embeddings(len(vocab))",
        ),
        ("ids = torch.tensor([3, 21])\n", "model = Net(Settings(vocab_size=22))"),
    ],
)
def test_a_table_of_words_grows_and_its_size_is_not_left_to_a_default(
    words: str, edit: str, tmp_path: Path
) -> None:
    told = nanlab.explain(failed(tmp_path / "program.py", f"{_RESIZABLE}{words}model(ids).sum()\n"))
    assert told is not None
    assert told.fixes[0].edits[0].text.strip().endswith(edit)


def test_a_cell_after_one_that_raised_is_tried_from_its_beginning() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_cell(
        "import torch, nanlab\nw = torch.ones(3, requires_grad=True)\n", store_history=True
    )
    shell.run_cell("1 / 0", store_history=True)
    broken = (
        "with nanlab.watch():\n    shared = (w * w).sum()\n    shared.backward()\n"
        "    (shared * 2).backward()\n"
    )
    raised = shell.run_cell(broken, store_history=True).error_in_exec
    told = nanlab.explain(raised)
    assert told is not None
    assert told.fixes[0].code == "shared.backward(retain_graph=True)"


def test_an_error_inside_an_async_function_is_of_that_function(tmp_path: Path) -> None:
    text = """
import asyncio

async def train(width):
    x = torch.randn(4, 3)
    return nn.Linear(width, 2)(x)

out = asyncio.run(train(5))
"""
    error = failed(tmp_path / "program.py", text)
    site = Site.of(error)
    assert site is not None
    assert isinstance(site.raising[0].function, ast.AsyncFunctionDef)
    told = nanlab.explain(error)
    assert told is not None
    assert told.fixes[0].edits


def test_kind_of_edit_that_fails_at_one_statement_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
x = torch.randn(4, 3)
w = torch.randn(2, 3)
y = x @ w
"""

    def fails(site: Site, place: Place) -> Iterator[Candidate]:
        raise ZeroDivisionError
        yield

    kinds = search._OF_PLACES
    monkeypatch.setattr(search, "_OF_PLACES", (("places", (fails,)), *kinds))
    error = failed(tmp_path / "program.py", text)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError.*not every edit was tried"):
        told = nanlab.explain(error)
    assert told is not None
    assert told.fixes[0].edits


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("v = torch.topk(input=x, k=5, dim=1).values", "k=min(5, x.size(1))"),
        ("k = 5\nv, i = x.topk(k)", "k = min(5, x.size(-1))"),
        ("v, i = torch.topk(x, 5, 0)", "min(5, x.size(0))"),
    ],
)
def test_no_more_elements_are_asked_for_than_there_are(
    text: str, edit: str, tmp_path: Path
) -> None:
    told = nanlab.explain(failed(tmp_path / "program.py", f"x = torch.randn(4, 3)\n{text}\n"))
    assert told is not None
    assert [edit in each.text for each in told.fixes[0].edits] == [True]


@pytest.mark.parametrize(
    ("labels", "count", "edit"),
    [
        ("torch.tensor([1, 2, 3, 3])", "len(torch.unique(labels))", " - 1"),
        ("torch.tensor([1, 2, 3, 3])", "labels.unique().numel()", " - 1"),
        ("[1, 2, 3, 3]", "len(set(labels))", " - 1"),
        (
            "torch.tensor([0, 1, 3, 3])",
            "labels.unique().numel()",
            "n = int(labels.unique().max()) + 1",
        ),
        ("[0, 1, 3, 3]", "len(set(labels))", "n = int(max(labels)) + 1"),
    ],
)
def test_classes_that_begin_at_one_are_counted_from_zero(
    labels: str, count: str, edit: str, tmp_path: Path
) -> None:
    text = f"""labels = {labels}
n = {count}
scores = nn.Linear(2, n)(torch.randn(4, 2))
loss = F.cross_entropy(scores, torch.as_tensor(labels))
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None
    assert [edit in each.text for each in told.fixes[0].edits] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "sched = torch.optim.lr_scheduler.StepLR(opt)",
        "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt)",
        "head = nn.Linear(3)",
    ],
)
def test_number_that_is_lacking_is_no_module_of_the_program(text: str, tmp_path: Path) -> None:
    before = "net = nn.Linear(3, 2)\nopt = torch.optim.SGD(net.parameters())\nrows = [1, 2]\n"
    told = nanlab.explain(failed(tmp_path / "program.py", f"{before}{text}\n"))
    assert told is not None and not any(fix.edits for fix in told.fixes)
    told = nanlab.explain(failed(tmp_path / "program.py", f"{before}count = 5\n{text}\n"))
    assert told is not None and "count)" in told.fixes[0].edits[0].text


def test_objects_whose_attributes_raise_are_left_alone(tmp_path: Path) -> None:
    text = """
from refusing import *

net = nn.Linear(3, 2)
mask = torch.ones(2, 5)
loss = net(torch.randn(4, 5)).sum()
"""
    refusing = ModuleType("refusing")
    exec(
        "class Refuses(type):\n"
        "    def __getattribute__(cls, name):\n"
        "        raise ImportError(name)\n"
        "class Placeholder(metaclass=Refuses):\n"
        "    pass\n",
        vars(refusing),
    )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setitem(sys.modules, "refusing", refusing)
        warnings.simplefilter("error")
        told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None and told.fixes[0].edits[0].text == "net = nn.Linear(5, 2)"


def test_properties_of_the_programs_modules_are_not_read(tmp_path: Path) -> None:
    text = """
class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    @property
    def mode(self):
        raise SystemExit("read")

    def forward(self, x):
        return self.layer(x)

net = Net()
y = net(torch.randn(4, 6))
"""
    told = nanlab.explain(failed(tmp_path / "program.py", text))
    assert told is not None and "width=6" in told.fixes[0].edits[0].text


def test_program_that_asks_what_its_exceptions_mean_is_run_again_up_to_the_one(
    tmp_path: Path,
) -> None:
    text = """
import nanlab

def first():
    return nn.Linear(4, 3)(torch.randn(2, 5))

def second():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 2))
    return net(torch.randn(2, 4))

answers = []
for function in (first, second):
    try:
        function()
    except RuntimeError as error:
        answers.append(nanlab.explain(error))
"""
    answers = run(tmp_path / "program.py", text)["answers"]
    edits = [told.fixes[0].edits[0] for told in answers]
    assert [edit.first for edit in edits] == [5, 8]
    assert "nn.Linear(5, 3)" in edits[0].text and "nn.Linear(8, 2)" in edits[1].text
