"""Losses of detection, retrieval and segmentation in classes with helper functions."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def box_iou_parts(p, t):
    lt = torch.maximum(p[:, :2], t[:, :2])
    rb = torch.minimum(p[:, 2:], t[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area_p = (p[:, 2:] - p[:, :2]).prod(1)
    area_t = (t[:, 2:] - t[:, :2]).prod(1)
    return inter, area_p + area_t - inter


@fault("div-by-zero", "div", step=0)
def aspect_term_of_a_perfect_box(fixed):
    """The trade-off of CIoU is v / (1 - iou + v): nothing over nothing for a box that fits."""
    anchors = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 4.0]])
    target = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.5, 3.5, 4.0]])
    delta = nn.Parameter(torch.zeros(2, 4))

    def ciou_loss(p, t):
        inter, union = box_iou_parts(p, t)
        iou = inter / union
        wp, hp = (p[:, 2:] - p[:, :2]).unbind(1)
        wt, ht = (t[:, 2:] - t[:, :2]).unbind(1)
        v = (4 / math.pi**2) * (torch.atan(wt / ht) - torch.atan(wp / hp)) ** 2
        alpha = v / (1 - iou + v + (1e-7 if fixed else 0))  # ORIGIN
        return (1 - iou + alpha * v).mean()

    return None, train([delta], lambda i: ciou_loss(anchors + delta, target), lr=1e-2)


@fault("exp-overflow", "exp", step=2)
def sum_of_exponentials_of_a_ranking_loss(fixed):
    torch.manual_seed(0)

    class NPairLoss(nn.Module):
        def __init__(self, scale=8.0):
            super().__init__()
            self.scale = scale

        def forward(self, anchor, positive):
            sim = anchor @ positive.T * self.scale
            diff = sim - sim.diagonal()[:, None]
            off = ~torch.eye(len(sim), dtype=torch.bool)
            diff = diff[off].view(len(sim), -1)
            if fixed:
                return F.softplus(torch.logsumexp(diff, 1)).mean()
            return torch.log(1 + torch.exp(diff).sum(1)).mean()  # ORIGIN

    net, crit, gen = nn.Linear(6, 4), NPairLoss(), torch.Generator().manual_seed(1)

    def loss(i):
        x = torch.randn(5, 6, generator=gen) * (12 if i == 2 else 1)
        return crit(net(x), net(x + 0.1))

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("norm-at-zero", "div", step=1, also=("div-by-zero",))
def proxy_of_a_dead_embedding(fixed):
    torch.manual_seed(2)

    class ProxyHead(nn.Module):
        def __init__(self, dim, classes):
            super().__init__()
            self.proxies = nn.Parameter(torch.randn(classes, dim))

        @staticmethod
        def unit(x):
            length = x.square().sum(-1, keepdim=True)
            if fixed:
                length = length.clamp(min=1e-12)
            return x / length.sqrt()  # ORIGIN

        def forward(self, x):
            return self.unit(x) @ self.unit(self.proxies).T

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
            self.head = ProxyHead(3, 3)

        def forward(self, x):
            return self.head(self.body(x))

    net, gen = Net(), torch.Generator().manual_seed(3)
    nn.init.constant_(net.body[0].bias, 1.0)

    def loss(i):
        x = torch.randn(6, 4, generator=gen) * 0.3
        if i == 1:
            x[2] = -torch.linalg.pinv(net.body[0].weight.detach()) @ torch.full((3,), 5.0)
        return F.cross_entropy(net(x) * 8, torch.tensor([0, 1, 2, 0, 1, 2]))

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1)
def gaussian_boxes_of_a_line(fixed):
    """A rotated box of no height has a covariance whose determinant is 0."""
    torch.manual_seed(4)
    net = nn.Linear(8, 3)
    gen = torch.Generator().manual_seed(5)

    def covariance(w, h, angle):
        c, s = torch.cos(angle), torch.sin(angle)
        rot = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
        return rot @ torch.diag_embed(torch.stack([w, h], -1) ** 2 / 4) @ rot.mT

    def kl_of_boxes(sp, st):
        det_p = sp[:, 0, 0] * sp[:, 1, 1] - sp[:, 0, 1] * sp[:, 1, 0]
        det_t = st[:, 0, 0] * st[:, 1, 1] - st[:, 0, 1] * st[:, 1, 0]
        if fixed:
            det_t = det_t.clamp(min=1e-6)
        trace = (torch.linalg.inv(sp) * st).sum((1, 2))
        return 0.5 * (trace + torch.log(det_p) - torch.log(det_t) - 2)  # ORIGIN

    def loss(i):
        out = net(torch.randn(4, 8, generator=gen))
        w, h = F.softplus(out[:, 0]) + 0.1, F.softplus(out[:, 1]) + 0.1
        th = torch.tensor([1.0, 2.0, 0.5, 0.0 if i == 1 else 1.0])
        target = covariance(torch.ones(4) * 2, th, torch.tensor([0.3, -0.2, 1.0, 0.0]))
        return kl_of_boxes(covariance(w, h, out[:, 2]), target).mean()

    return net, train(net.parameters(), loss)


@fault("pow-fraction-at-zero", "pow", "backward", step=0, steps=1, ops=("mul",), also=("zero-times-inf",))
def quality_weight_of_an_exact_score(fixed):
    """|target - score| ** 0.5 where a score of padding equals its target of 0."""
    torch.manual_seed(6)
    net = nn.Linear(5, 1)
    x, y = torch.randn(12, 5), torch.rand(12)
    valid = (torch.arange(12) < 9).float()

    class QualityFocal(nn.Module):
        def __init__(self, beta=0.5):
            super().__init__()
            self.beta = beta

        def forward(self, score, target):
            gap = (target - score).abs()
            if fixed:
                gap = gap + 1e-6
            weight = gap**self.beta  # ORIGIN
            return weight * F.binary_cross_entropy(score.clamp(1e-6, 1 - 1e-6), target, reduction="none")

    crit = QualityFocal()

    def loss(i):
        score = torch.sigmoid(net(x)).squeeze(1) * valid
        return (crit(score, y * valid)).sum() / valid.sum()

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "mean", step=2, ops=("div",), also=("div-by-zero",))
def boundary_pixels_of_a_full_mask(fixed):
    torch.manual_seed(7)
    net = nn.Conv2d(1, 1, 3, padding=1)

    def edges(mask):
        eroded = -F.max_pool2d(-mask, 3, 1, 1)
        return (mask - eroded) > 0.5

    def boundary_loss(logit, mask):
        at = edges(mask)
        per = F.binary_cross_entropy_with_logits(logit, mask, reduction="none")
        picked = per[at]
        if fixed and picked.numel() == 0:
            return per.sum() * 0
        return picked.mean()  # ORIGIN

    def loss(i):
        image = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(i))
        mask = torch.zeros(1, 1, 8, 8)
        mask[..., 2:6, 2:6] = 1
        if i == 2:
            mask[:] = 1
        return boundary_loss(net(image), mask) + 0.1 * F.mse_loss(net(image), mask)

    return net, train(net.parameters(), loss)


@fault("zero-times-inf", "mul", step=0, also=("softmax-all-masked",))
def positives_times_the_masked_diagonal(fixed):
    torch.manual_seed(8)
    net = nn.Linear(6, 4)
    x, y = torch.randn(8, 6), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])

    def sup_con(z, labels, tau=0.2):
        sim = z @ z.T / tau
        sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        logp = sim - sim.logsumexp(1, keepdim=True)
        same = (labels[:, None] == labels[None]).float()
        same.fill_diagonal_(0)
        if fixed:
            logp = logp.masked_fill(same == 0, 0)
        return -((same * logp).sum(1) / same.sum(1)).mean()  # ORIGIN

    return net, train(net.parameters(), lambda i: sup_con(F.normalize(net(x), dim=1), y))


@fault("inverse-function-at-edge", "acos", "backward", step=0, ops=("clamp",), also=("where-grad-trap",))
def margin_angle_of_a_prototype_taken_from_the_batch(fixed):
    """Prototypes are made of the batch's own embeddings: the cosine of a class of one is exactly 1."""
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.eye(2)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])

    def angular(z):
        z = F.normalize(z, dim=1)
        proto = torch.stack([z[0], z[1], F.normalize(z[1] + z[2], dim=0)])
        cos = z @ proto.detach().T
        cos = cos.clamp(-1 + 1e-6, 1 - 1e-6) if fixed else cos.clamp(-1, 1)
        theta = torch.acos(cos)  # ORIGIN
        return theta.diagonal().mean() - 0.1 * theta.mean()

    return net, train(net.parameters(), lambda i: angular(net(x)))


@fault("nan-in-target", "sub", "data", step=1, ops=("smooth_l1_loss", "div", "add"), also=("nan-in-input", "div-by-zero", "log-of-zero", "zero-times-inf"))
def keypoint_offsets_of_an_unlabelled_joint(fixed):
    torch.manual_seed(9)
    net = nn.Linear(4, 6)

    class Joints(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, k):
            g = torch.Generator().manual_seed(k)
            x, y = torch.randn(4, generator=g), torch.randn(3, 2, generator=g)
            if k == 5:
                y[1] = float("nan")  # DATA
            return x, y

    loader = torch.utils.data.DataLoader(Joints(), batch_size=4)
    batches = list(loader)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        x, y = batches[i % 2]
        seen = ~torch.isnan(y).any(-1, keepdim=True)
        out = net(x).view(-1, 3, 2)
        opt.zero_grad()
        if fixed:
            y = torch.where(seen, y, 0)
        loss = (F.smooth_l1_loss(out, y, reduction="none") * seen).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("std-of-constant", "sqrt", "backward", step=1, ops=("std", "div"), also=("sqrt-at-zero",))
def contrast_of_a_padded_crop(fixed):
    torch.manual_seed(10)
    net = nn.Conv2d(1, 2, 3, bias=False)
    gen = torch.Generator().manual_seed(11)

    def local_contrast(feature):
        patches = F.unfold(feature, 2, stride=2).unflatten(1, (feature.shape[1], -1))
        if fixed:
            return (patches.var(2) + 1e-6).sqrt()
        return patches.var(2).sqrt()  # ORIGIN

    def loss(i):
        image = torch.randn(2, 1, 10, 10, generator=gen)
        if i == 1:
            image[1, :, :, 5:] = 0
        return (local_contrast(net(image)) - 1).square().mean()

    return net, train(net.parameters(), loss)
