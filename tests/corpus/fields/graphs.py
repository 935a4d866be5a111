"""Message passing."""


import torch
from programs import fault, train
from torch import nn


def ring(n=6):
    a = torch.zeros(n, n)
    for k in range(n):
        a[k, (k + 1) % n] = a[(k + 1) % n, k] = 1
    return a


@fault("div-by-zero", "pow", step=1, also=("pow-fraction-at-zero", "zero-times-inf"), ops=("rsqrt",))
def symmetric_normalisation_of_an_isolated_node(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    x = torch.randn(6, 4)

    def loss(i):
        a = ring()
        if i == 1:
            a[3] = a[:, 3] = 0
        if fixed:
            a = a + torch.eye(6)
        inverse = a.sum(1).pow(-0.5)  # ORIGIN
        return (inverse[:, None] * a * inverse[None] @ net(x)).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, also=("exp-overflow",), ops=("exp",))
def edge_softmax_by_hand(fixed):
    torch.manual_seed(1)
    net = nn.Linear(8, 1)
    gen = torch.Generator().manual_seed(2)
    src, dst = torch.arange(6), torch.tensor([0, 0, 1, 1, 2, 2])

    def loss(i):
        x = torch.randn(6, 4, generator=gen) * (500.0 if i == 2 else 1.0)
        e = net(torch.cat([x[src], x[dst]], -1))[:, 0]
        if fixed:
            top = torch.full((6,), -torch.inf).scatter_reduce(0, dst, e.detach(), "amax")
            e = e - top[dst]
        ex = torch.exp(e)  # ALSO
        total = torch.zeros(6).index_add(0, dst, ex)
        return ((ex / total[dst])[:, None] * x[src].tanh()).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def mean_of_no_messages(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 3)
    x = torch.randn(5, 3)

    def loss(i):
        dst = torch.tensor([0, 1, 2, 3, 4]) if i != 1 else torch.tensor([0, 1, 2, 3, 3])
        total = torch.zeros(5, 3).index_add(0, dst, net(x))
        count = torch.zeros(5).index_add(0, dst, torch.ones(5))
        if fixed:
            count = count.clamp_min(1)
        return (total / count[:, None]).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=0, also=("std-of-constant",), ops=("div",))
def deviation_over_one_neighbour(fixed):
    torch.manual_seed(4)
    net = nn.Linear(3, 3)
    x = torch.randn(4, 3)
    a = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 1], [0, 1, 0, 0]]).float()
    a = a / a.sum(1, keepdim=True)

    def loss(i):
        h = net(x)
        variance = (a @ h**2 - (a @ h) ** 2).clamp_min(0)
        if fixed:
            variance = variance + 1e-5
        return torch.sqrt(variance).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2)
def absent_edge_with_a_certain_score(fixed):
    torch.manual_seed(5)
    table = nn.Parameter(torch.randn(6, 4))

    def loss(i):
        z = table * (30.0 if i == 2 else 1.0)
        score = torch.sigmoid(z @ z.T)
        absent = 1 - score[0, 0] * torch.ones(1)
        if fixed:
            absent = absent.clamp_min(1e-7)
        return -torch.log(absent).mean()  # ORIGIN

    return None, train([table], loss)


@fault("div-by-zero", "div", step=1, ops=("reciprocal",))
def chebyshev_scale_of_a_graph_without_edges(fixed):
    torch.manual_seed(6)
    net = nn.Linear(3, 3)
    x = torch.randn(6, 3)

    def loss(i):
        a = ring() * (0.0 if i == 1 else 1.0)
        laplacian = torch.diag(a.sum(1)) - a
        top = torch.linalg.eigvalsh(laplacian).max()
        if fixed:
            top = top.clamp_min(1e-6)
        scaled = 2 * laplacian / top - torch.eye(6)  # ORIGIN
        return (scaled @ net(x)).square().mean()

    return net, train(net.parameters(), loss)
