"""Code as it stands in competition notebooks and forum questions: heads, losses, loops and metrics that people write by hand."""

import math

import torch
from programs import fault, healthy, train
from torch import nn
from torch.nn import functional as F


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "div", step=2)
def normalised_by_the_largest_of_each_image(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    images = rows(1, 5, 6, 1, 8, 8).abs()
    images[2, 4] = 0  # a black frame

    def loss(i):
        x = images[i]
        peak = x.amax(dim=(1, 2, 3), keepdim=True)
        x = x / (peak + 1e-6 if fixed else peak)  # ORIGIN
        return F.cross_entropy(net(x), torch.tensor([0, 1, 0, 1, 0, 1]))

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1, ops=("mul",))
def focal_loss_by_hand(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    x, y = rows(2, 16, 6), (rows(3, 16, 1) > 0).float()

    def loss(i):
        z = net(x * (1 if i == 0 else 400))
        p = torch.sigmoid(z)
        if fixed:
            return -(y * (1 - p) ** 2 * F.logsigmoid(z) + (1 - y) * p**2 * F.logsigmoid(-z)).mean()
        pos = -y * (1 - p) ** 2 * torch.log(p)  # ORIGIN
        neg = -(1 - y) * p**2 * torch.log(1 - p)  # ALSO
        return (pos + neg).mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward")
def rmse_of_each_target_with_one_already_right(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    with torch.no_grad():
        net.weight[2], net.bias[2] = 0, 0
    x = rows(4, 20, 5)
    y = x[:, :3].clone()
    y[:, 2] = 0  # a target that nobody labelled yet

    def loss(i):
        mse = (net(x) - y).pow(2).mean(0)
        return torch.sqrt(mse + 1e-8 if fixed else mse).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("log-of-negative", "log1p", step=0)
def rmsle_on_raw_predictions(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    x = rows(5, 32, 4)
    y = x.abs().sum(1, keepdim=True) * 10

    def loss(i):
        out = net(3 * x)
        out = F.softplus(out) if fixed else out
        return (torch.log1p(out) - torch.log1p(y)).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("nan-in-input", "addmm", "data", step=1, ops=("index", "linear", "mm"))
def column_that_was_never_imputed(fixed):
    torch.manual_seed(0)
    table = rows(6, 30, 5)
    table[17, 3] = float("nan")  # DATA
    if fixed:
        table = torch.nan_to_num(table)
    y = table[:, 0].nan_to_num()
    net = nn.Linear(5, 1)

    def loss(i):
        batch = slice(10 * i, 10 * i + 10)
        out = net(table[batch]).squeeze(1)  # ORIGIN
        return F.mse_loss(out, y[batch])

    step = train(net.parameters(), loss)
    return net, lambda i: step(min(i, 2))


@fault("std-of-constant", "div", "init", also=("div-by-zero",), ops=("sub", "div_"))
def standardised_with_a_column_that_never_changes(fixed):
    torch.manual_seed(0)
    table = rows(7, 40, 4)
    table[:, 2] = 3.5
    mean, std = table.mean(0), table.std(0)
    table = (table - mean) / (std + 1e-8 if fixed else std)  # ORIGIN
    net = nn.Linear(4, 1)

    def loss(i):
        return F.mse_loss(net(table).squeeze(1), mean.sum() + 0 * table[:, 0])  # ALSO

    return net, train(net.parameters(), loss)


@fault("softmax-all-masked", "_softmax", step=1, ops=("_log_softmax", "softmax"))
def attention_over_a_sentence_that_is_all_padding(fixed):
    torch.manual_seed(0)
    emb, out = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 2)
    net = nn.ModuleList([emb, out])
    ids = torch.randint(1, 20, (3, 4, 5), generator=torch.Generator().manual_seed(8))
    ids[1, 2] = 0

    def loss(i):
        x = emb(ids[min(i, 2)])
        mask = ids[min(i, 2)].eq(0)
        score = (x @ x.transpose(1, 2)).masked_fill(mask[:, None], -1e9 if fixed else -math.inf)
        attention = score.softmax(-1)  # ORIGIN
        return F.cross_entropy(out((attention @ x).mean(1)), torch.tensor([0, 1, 1, 0]))

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "mean", step=2, ops=("div", "index"))
def loss_of_the_positive_boxes_alone(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    x, truth = rows(9, 4, 12, 6), rows(10, 4, 12, 4)
    labels = (rows(11, 4, 12) > 0).long()
    labels[2] = 0  # an image without an object

    def loss(i):
        i = min(i, 3)
        keep = labels[i] == 1
        out = net(x[i])
        error = F.smooth_l1_loss(out, truth[i], reduction="none").sum(1)
        if fixed:
            return (error * keep).sum() / keep.sum().clamp(min=1) + 0 * out.sum()
        return error[keep].mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "nll_loss_forward", step=1, ops=("nll_loss", "cross_entropy_loss", "div"))
def every_token_of_the_batch_is_ignored(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 9)
    x = rows(12, 3, 10, 6)
    y = torch.randint(0, 9, (3, 10), generator=torch.Generator().manual_seed(13))
    y[1] = -100

    def loss(i):
        i = min(i, 2)
        if fixed:
            total = F.cross_entropy(net(x[i]), y[i], ignore_index=-100, reduction="sum")
            return total / (y[i] != -100).sum().clamp(min=1)
        return F.cross_entropy(net(x[i]), y[i], ignore_index=-100)  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=1, ops=("sum", "div"), also=("inf-minus-inf",))
def softmax_written_out_for_big_logits(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 4)
    x = rows(14, 12, 5)
    y = torch.randint(0, 4, (12,), generator=torch.Generator().manual_seed(15))

    def loss(i):
        z = net(x * (1.0 if i == 0 else 300.0))
        if fixed:
            z = z - z.amax(1, keepdim=True)
        e = torch.exp(z)  # ORIGIN
        p = e / e.sum(1, keepdim=True)
        return -(p[torch.arange(12), y] + 1e-9).log().mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("exp-overflow", "exp", step=2, ops=("mul",))
def variational_autoencoder_without_a_bound_on_the_variance(fixed):
    torch.manual_seed(0)
    enc, dec = nn.Linear(6, 8), nn.Linear(4, 6)
    net = nn.ModuleList([enc, dec])
    x = rows(16, 4, 10, 6)
    x[2, 3] *= 900  # raw units in one row

    def loss(i):
        mu, logvar = enc(x[min(i, 3)]).chunk(2, 1)
        if fixed:
            mu, logvar = mu.clamp(-20, 20), logvar.clamp(-10, 10)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)  # ALSO
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()  # ORIGIN
        return F.smooth_l1_loss(dec(z), x[min(i, 3)]) + kl

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("learning-rate", "add_", "optimizer", step=2, steps=6, ops=("mse_loss", "addmm", "_foreach_add_"), also=("exploding-gradient",))
def sgd_on_prices_in_dollars(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-9 if fixed else 1.0)  # ALSO
    x = rows(17, 64, 3).abs() * 5000
    y = (x @ torch.tensor([[2.0], [1.0], [0.5]])) + 1e5

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault("scaler-misuse", "mul", "optimizer", ops=("clip_grad_norm_", "_foreach_mul_", "linalg_vector_norm", "_foreach_norm", "div", "clamp"))
def clipped_before_it_is_unscaled(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
    x = rows(18, 16, 8)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), x[:, :1])
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        scaler.step(opt)  # ALSO
        scaler.update()
        return loss

    return net, step


@fault("poisoned-parameter", "linear", "init", ops=("addmm", "mm"))
def weights_of_a_run_that_had_already_failed(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    if not fixed:
        state["0.weight"][3] = float("nan")
    net.load_state_dict(state)
    x = rows(19, 10, 4)

    def loss(i):
        return net(x).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("uninitialised-memory", "empty", "init", ops=("mm", "matmul", "add", "empty_memory_format", "addmm", "mul"))
def parameter_from_torch_empty(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    torch.use_deterministic_algorithms(True)
    scale = torch.empty(4)  # ALSO
    torch.use_deterministic_algorithms(False)
    net.scale = nn.Parameter(torch.ones(4) if fixed else scale)
    x = rows(20, 6, 4)

    def loss(i):
        return (net(x) * net.scale).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "threshold", "backward", steps=5, ops=("relu", "threshold_backward"))
def every_unit_of_a_layer_dies(fixed):
    torch.manual_seed(0)
    hidden, head = nn.Linear(6, 12), nn.Linear(12, 2)
    if not fixed:
        nn.init.constant_(hidden.bias, -40.0)
    x, y = rows(21, 24, 6), torch.arange(24) % 2

    def loss(i):
        return F.cross_entropy(head(torch.relu(hidden(x))), y)  # ORIGIN

    return nn.ModuleList([hidden, head]), train([*hidden.parameters(), *head.parameters()], loss, lr=0.1)


@fault("dead-gradient", "round", "backward", steps=5, ops=("clamp", "round_backward"))
def rounds_its_output_before_the_loss(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 1)
    x = rows(22, 20, 5)
    y = x.sum(1, keepdim=True).round()

    def loss(i):
        out = net(x)
        return F.mse_loss(out if fixed else out.round(), y)  # ORIGIN

    return net, train(net.parameters(), loss, lr=0.05)


@fault("optimizer-eps-underflow", "div", "optimizer", ops=("addcdiv_", "_foreach_addcdiv_", "_foreach_div", "_foreach_div_", "addcdiv", "sqrt", "lerp_"), also=("div-by-zero",))
def adam_on_a_model_in_half(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 2)).half()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-4 if fixed else 1e-8, foreach=False)
    ids = torch.randint(0, 10, (6, 4), generator=torch.Generator().manual_seed(23))

    def step(i):
        opt.zero_grad()
        loss = net(ids).float().square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault("norm-at-zero", "div", step=1, also=("div-by-zero",), ops=("linalg_vector_norm", "norm"))
def cosine_similarity_with_a_document_of_unknown_words(fixed):
    torch.manual_seed(0)
    bag, head = nn.EmbeddingBag(50, 8, mode="sum", padding_idx=0), nn.Linear(8, 8)
    ids = torch.randint(1, 50, (3, 6, 5), generator=torch.Generator().manual_seed(24))
    ids[1, 2] = 0

    def loss(i):
        a = bag(ids[min(i, 2)])
        b = head(rows(25, 6, 8))
        norm = a.norm(dim=1, keepdim=True)
        unit = a / (norm.clamp_min(1e-6) if fixed else norm)  # ORIGIN
        return 1 - (unit * F.normalize(b, dim=1)).sum(1).mean()

    net = nn.ModuleList([bag, head])
    return net, train(net.parameters(), loss)


@fault("pow-negative-base", "pow", step=0)
def generalised_mean_pooling_of_signed_features(fixed):
    torch.manual_seed(0)
    conv, head = nn.Conv2d(1, 3, 3), nn.Linear(3, 2)
    net = nn.ModuleList([conv, head])
    net.p = nn.Parameter(torch.tensor(3.3))
    x, y = rows(26, 4, 1, 7, 7), torch.tensor([0, 1, 0, 1])

    def loss(i):
        f = conv(x)
        f = f.clamp(min=1e-6) if fixed else f
        pooled = (f**net.p).mean((2, 3)) ** (1 / net.p)  # ORIGIN
        return F.cross_entropy(head(pooled), y)

    return net, train(net.parameters(), loss)


@fault("repair-forward-only", "div", "backward", step=0, also=("where-grad-trap", "div-by-zero"))
def ratio_that_is_repaired_with_nan_to_num(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 6, bias=False)
    clicks = torch.relu(rows(27, 8, 4)).detach()
    clicks[3] = 0

    def loss(i):
        views = net(clicks).abs()
        total = views.sum(1, keepdim=True)
        if fixed:
            share = views / (total + 1e-6)
        else:
            share = torch.nan_to_num(views / total)  # ORIGIN
        return (share - 1 / 6).square().sum()

    return net, train(net.parameters(), loss)


@fault("where-grad-trap", "log", "backward", also=("log-of-zero",), ops=("mul", "div"))
def log_returns_that_are_masked_afterwards(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 1, bias=False)
    x = rows(28, 12, 3)
    x[5] = 0

    def loss(i):
        price = net(x).abs().squeeze(1)
        ok = price > 0
        if fixed:
            value = torch.where(ok, torch.where(ok, price, 1.0).log(), 0.0)
        else:
            value = torch.where(ok, price.log(), 0.0)  # ORIGIN
        return (value - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "_to_copy", step=1, ops=("mm", "bmm", "mul", "sum", "matmul", "pow"))
def house_prices_cast_to_half(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    x, y = rows(29, 3, 8, 4), 4e4 + 5e3 * rows(30, 3, 8, 1)
    y[1, 2] = 250_000.0

    def loss(i):
        i = min(i, 2)
        out = net(x[i])
        truth = y[i] if fixed else y[i].half()  # ORIGIN
        return F.l1_loss(out, truth.float())

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "mean", ops=("pow", "mse_loss", "mul", "sum"))
def squared_error_inside_autocast_by_hand(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    x = rows(31, 16, 6)

    def loss(i):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
            error = (out.float() if fixed else out) - 900.0
            return (error**2).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-6)


@fault("mask-overflow", "add", ops=("mul", "_softmax", "masked_fill", "_to_copy", "sub"), also=("dtype-overflow", "softmax-all-masked"))
def masks_of_queries_and_keys_of_an_empty_document(fixed):
    torch.manual_seed(0)
    q = nn.Linear(8, 8).half()
    x = rows(32, 2, 5, 8).half()
    lowest = torch.finfo(torch.float16).min
    padded = torch.zeros(2, 5, dtype=torch.bool)
    padded[1] = True
    keys = torch.zeros(2, 1, 5).half().masked_fill(padded[:, None], lowest)
    queries = torch.zeros(2, 5, 1).half().masked_fill(padded[..., None], lowest)

    def loss(i):
        bias = torch.minimum(keys, queries) / 2 if fixed else keys + queries  # ORIGIN
        score = q(x) @ x.transpose(1, 2) + bias  # ALSO
        return (score.softmax(-1) @ x).float().square().mean()

    return q, train(q.parameters(), loss)


@fault("absorbed-update", "add_", "optimizer", steps=6, ops=("_foreach_add_", "sub_", "addcdiv_"))
def fine_tuning_in_bfloat16_at_a_small_rate(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 2).bfloat16()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.where(p < 0, -1.0, 1.0))
    opt = torch.optim.SGD(net.parameters(), lr=0.5 if fixed else 1e-6)
    x = rows(33, 16, 6).bfloat16()

    def step(i):
        opt.zero_grad()
        loss = net(x).float().square().mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step


@fault("std-of-constant", "sqrt", "backward", ops=("div", "var"), also=("div-by-zero", "sqrt-at-zero"))
def variance_penalty_of_equal_features(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 5)
    x = torch.ones(8, 4)  # the loader repeats one row

    def loss(i):
        z = net(x)
        variance = (z - z.mean(0)).square().mean(0)
        spread = torch.sqrt(variance + 1e-4 if fixed else variance)  # ORIGIN
        return torch.relu(1 - spread).mean() + z.square().mean()

    return net, train(net.parameters(), loss)


@fault("inverse-function-domain", "acos", ops=("mul", "mm"))
def angle_of_vectors_by_their_rounded_cosine(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    x = rows(34, 10, 3)

    def loss(i):
        a = net(x)
        cosine = 1.0000005 * (a * a).sum(1) / a.norm(dim=1).square()
        cosine = cosine.clamp(-1 + 1e-6, 1 - 1e-6) if fixed else cosine
        return torch.acos(cosine).mean() + a.square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1, also=("poisoned-gradient",), ops=("add", "div"))
def nan_loss_that_is_skipped_after_its_backward(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x = rows(35, 5, 8, 4)
    x[1, 3] = 0

    def step(i):
        if fixed:
            opt.zero_grad()
        value = net(x[min(i, 4)]).abs()
        value = value + 1e-6 if fixed else value
        loss = value.log().abs().mean()  # ORIGIN
        loss.backward()  # ALSO
        if torch.isfinite(loss):
            opt.step()
            opt.zero_grad()
        return loss

    return net, step


@fault("custom-backward", "div", "backward", ops=("mul", "reciprocal"), also=("div-by-zero",))
def own_function_divides_by_its_input(fixed):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            if fixed:
                return 2 * x * g
            return 2 * y / x * g  # ALSO

    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    x = rows(36, 6, 3)
    x[2] = 0

    def loss(i):
        return Square.apply(net(x)).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@healthy("padding and causal masks are -inf, and every row keeps its diagonal")
def causal_attention_with_minus_infinity(fixed):
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    x = rows(40, 2, 6, 8)
    causal = torch.full((6, 6), -math.inf).triu(1)
    return net, train(net.parameters(), lambda i: ((net(x) @ x.mT + causal).softmax(-1) @ x).square().mean())


@healthy("missing targets are NaN and are left out before the loss")
def targets_that_are_missing(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x, y = rows(41, 12, 4), rows(42, 12, 3)
    y[::3, 1] = float("nan")

    def loss(i):
        known = ~y.isnan()
        return (net(x)[known] - y[known]).square().mean()

    return net, train(net.parameters(), loss)


@healthy("the best score begins at -inf, and a metric divides by zero outside the graph")
def best_metric_and_precision_of_no_hits(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    x, y = rows(43, 12, 4), torch.arange(12) % 2
    best = torch.tensor(-math.inf)

    def loss(i):
        nonlocal best
        out = net(x)
        with torch.no_grad():
            hits = (out.argmax(1) == 5).float().sum()
            precision = hits / hits
            best = torch.maximum(best, torch.nan_to_num(precision) - F.cross_entropy(out, y))
        return F.cross_entropy(out, y)

    return net, train(net.parameters(), loss)


@healthy("a scaler that starts high skips its first steps", steps=14)
def scaler_finds_its_scale(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    x = rows(44, 32, 6)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), 3 * x[:, :1])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@healthy("zeros of the last layer, so the first gets no gradient in the first step alone")
def last_layer_begins_at_zero(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    nn.init.zeros_(net[2].weight)
    x, y = rows(45, 16, 4), torch.arange(16) % 2
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y), lr=0.1)


@healthy("a frozen body and an optimizer of the head", steps=5)
def frozen_body(fixed):
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
    body.requires_grad_(False)
    x, y = rows(46, 16, 4), torch.arange(16) % 2
    return nn.ModuleList([body, head]), train(head.parameters(), lambda i: F.cross_entropy(head(body(x)), y), lr=0.1)


@healthy("the logarithm of a zero is multiplied by nothing: xlogy")
def entropy_by_xlogy(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 4)
    x = rows(47, 8, 5)
    truth = F.one_hot(torch.arange(8) % 4, 4).float()

    def loss(i):
        q = net(x).log_softmax(1)
        return (torch.xlogy(truth, truth) - truth * q).sum(1).mean()

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("label smoothing with one class that no row has")
def class_without_a_row(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 6)
    x, y = rows(48, 20, 5), torch.arange(20) % 5
    count = torch.bincount(y, minlength=6).float()
    weight = torch.where(count > 0, count.sum() / count, 0.0)
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(x), y, weight, label_smoothing=0.1), lr=0.1)


@healthy("dropout so strong that a row may be zero, normalised with the eps of normalize")
def normalised_rows_of_dropped_units(fixed):
    torch.manual_seed(0)
    net, drop = nn.Linear(6, 3), nn.Dropout(0.9)
    x = rows(49, 16, 6)
    return net, train(net.parameters(), lambda i: F.normalize(drop(net(x)), dim=1).sum(), lr=0.05)


@healthy("early gradients are huge, and clipped by their norm", steps=8)
def clipped_from_a_large_start(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x = 1e4 * rows(50, 32, 6)

    def step(i):
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step


@healthy("the moving average of a teacher in float32 with a decay of 0.9999", steps=8)
def teacher_that_moves_slowly(fixed):
    torch.manual_seed(0)
    net, teacher = nn.Linear(5, 3), nn.Linear(5, 3)
    teacher.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = rows(51, 16, 5)

    def step(i):
        opt.zero_grad()
        with torch.no_grad():
            goal = teacher(x)
        loss = F.mse_loss(net(x + 0.1 * rows(i, 16, 5)), goal + x[:, :3])
        loss.backward()
        opt.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), net.parameters(), strict=True):
                old.mul_(0.9999).add_(new, alpha=1e-4)
        return loss

    return net, step


@healthy("gradients are accumulated over four batches", steps=12)
def accumulated_gradients(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 2)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = rows(52, 12, 8, 5), torch.arange(8) % 2

    def step(i):
        loss = F.cross_entropy(net(x[i]), y) / 4
        loss.backward()
        if i % 4 == 3:
            opt.step()
            opt.zero_grad(set_to_none=True)
        return loss

    return net, step


@healthy("a batch of NaN is skipped before its backward pass", steps=6)
def bad_batch_is_skipped(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    x = rows(53, 6, 8, 4)
    x[2, 1, 1] = float("nan")

    def step(i):
        opt.zero_grad()
        loss = net(x[i]).square().mean()
        if not torch.isfinite(loss):
            return loss.detach().nan_to_num()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("quantiles, sorts and top-k leave most elements without a gradient", steps=5)
def pinball_loss_of_the_hardest(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    x = rows(54, 32, 5)
    y = x.sum(1, keepdim=True)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(i):
        gap = y - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).sum(1).topk(6).values.mean()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("half precision saturates a sigmoid to exactly 0 and 1, with logits in the loss", steps=5)
def saturated_gate_with_logits_in_the_loss(fixed):
    torch.manual_seed(0)
    net = nn.Linear(5, 1)
    x = 30 * rows(55, 32, 5)
    y = (x[:, :1] > 0).float()

    def loss(i):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        accuracy = ((out.detach().sigmoid() > 0.5) == y).float().mean()
        return F.binary_cross_entropy_with_logits(out.float(), y) + 0 * accuracy

    return net, train(net.parameters(), loss, lr=1e-3)


@healthy("distances with a diagonal of zeros that is filled before the root", steps=5)
def nearest_neighbours_without_themselves(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x = rows(56, 10, 4)

    def loss(i):
        z = net(x)
        squared = (z[:, None] - z[None]).square().sum(-1)
        squared = squared.masked_fill(torch.eye(10, dtype=torch.bool), 1e4)
        return squared.sqrt().amin(1).mean()

    return net, train(net.parameters(), loss)


@healthy("a learning rate that is zero while it warms up, then rises", steps=8)
def warm_up_from_a_rate_of_zero(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, i / 4))
    x, y = rows(57, 16, 4), torch.arange(16) % 2

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step


@healthy("sum of hinges of which most are satisfied", steps=6)
def triplets_that_are_mostly_easy(fixed):
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    x = rows(58, 3, 24, 6)

    def loss(i):
        a, p, n = net(x[0]), net(x[0] + 0.1 * x[1]), net(x[0] + 3 * x[2])
        return F.triplet_margin_loss(a, p, n, margin=4.0)

    return net, train(net.parameters(), loss, lr=0.01)


@healthy("counts under a log1p, ratios of counts plus one", steps=5)
def counts_with_many_zeros(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    counts = torch.relu(rows(59, 30, 4)).round()

    def loss(i):
        features = torch.log1p(counts) / (1 + counts.sum(1, keepdim=True))
        return F.poisson_nll_loss(net(features), counts[:, :1])

    return net, train(net.parameters(), loss, lr=0.05)
