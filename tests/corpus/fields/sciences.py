"""Astronomy, chemistry, genetics, finance, epidemics, games, imaging, measurement: their formulas at the edge of what they hold for."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def seeded(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "div", ops=("reciprocal", "mul"), also=("norm-at-zero",))
def deflection_behind_the_lens(fixed):
    """A ray through the centre of a point lens is deflected by theta_E**2 / theta."""
    torch.manual_seed(0)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5), indexing="ij"), -1)
    einstein = nn.Parameter(torch.tensor(0.5))

    def loss(i):
        squared = (grid**2).sum(-1, keepdim=True) + (1e-3 if fixed else 0.0)
        source = grid - einstein**2 * grid / squared  # ORIGIN
        return source.square().mean()

    return None, train([einstein], loss)


@fault("pow-fraction-at-zero", "pow", "backward", ops=("mul",))
def sersic_profile_at_the_centre(fixed):
    radius = torch.linspace(0, 4, 9)
    scale, index = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.7))
    shift = nn.Parameter(torch.zeros(()))
    seen = torch.exp(-radius)

    def loss(i):
        r = (radius + shift).abs() / scale
        r = r.clamp_min(1e-4) if fixed else r
        light = torch.exp(-(r ** (1 / (index + 2))))  # ORIGIN
        return (light - seen).square().mean()

    return None, train([scale, index, shift], loss)


@fault("inverse-function-at-edge", "acos", "backward", ops=("acos", "div"))
def bond_angle_of_a_linear_molecule(fixed):
    """Carbon dioxide: the three atoms lie on a line."""
    atoms = nn.Parameter(torch.tensor([[-1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))

    def loss(i):
        a, b = atoms[0] - atoms[1], atoms[2] - atoms[1]
        cosine = (a * b).sum() / (a.norm() * b.norm())
        if fixed:
            return (cosine + 1).square()
        return (torch.acos(cosine) - 2.0).square()  # ORIGIN

    return None, train([atoms], loss)


@fault("pow-fraction-at-zero", "pow", ops=("reciprocal", "div"), also=("div-by-zero",))
def lennard_jones_with_an_atom_twice(fixed):
    place = seeded(3, 5, 3)
    if not fixed:
        place[4] = place[1]
    atoms = nn.Parameter(place)
    i, j = torch.triu_indices(5, 5, 1)

    def loss(_):
        squared = (atoms[i] - atoms[j]).square().sum(-1)
        inverse = squared**-3  # ORIGIN
        return (inverse**2 - inverse).clamp(max=1e4).mean()

    return None, train([atoms], loss, lr=1e-6)


@fault("log-of-zero", "log", ops=("log", "xlogy"))
def information_of_a_conserved_column(fixed):
    """Entropy of each column of an alignment in which one column has one letter only."""
    letters = torch.tensor([[0, 1, 2], [0, 2, 2], [0, 1, 3], [0, 0, 1]])
    counts = F.one_hot(letters, 4).float().sum(0)
    weight = nn.Parameter(torch.ones(3))

    def loss(i):
        p = counts / counts.sum(-1, keepdim=True)
        p = (p + 0.01) / 1.04 if fixed else p
        entropy = -(p * p.log()).sum(-1)  # ORIGIN
        return (weight * entropy).sum()

    return None, train([weight], loss)


@fault("infeasible-likelihood", "logsumexp", ops=("logsumexp", "log", "sub", "add", "_log_softmax"), also=("softmax-all-masked", "inf-minus-inf", "log-of-zero"))
def gene_finder_without_a_legal_path(fixed):
    """A hidden Markov model whose first state emits no letter of what was read."""
    emission = torch.zeros(2, 4)
    emission[0, 0] = emission[1, 1] = 1.0
    if fixed:
        emission = (emission + 0.1) / 1.4
    log_emission = emission.log()
    start = nn.Parameter(torch.zeros(2))
    turn = nn.Parameter(torch.zeros(2, 2))
    read = [0, 2, 1]

    def loss(i):
        alpha = start.log_softmax(0) + log_emission[:, read[0]]
        for letter in read[1:]:
            alpha = torch.logsumexp(alpha[:, None] + turn.log_softmax(1), 0) + log_emission[:, letter]  # ORIGIN
        return -torch.logsumexp(alpha, 0)  # ALSO

    return None, train([start, turn], loss)


@fault("div-by-zero", "div", "backward", ops=("div", "mul"), also=("zero-times-inf",))
def option_on_its_last_day(fixed):
    price = torch.tensor([90.0, 100.0, 110.0])
    time = torch.tensor([0.5, 0.25, 0.01 if fixed else 0.0])
    sigma = nn.Parameter(torch.tensor(0.2))
    strike = 100.0
    normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)

    def loss(i):
        spread = sigma * time.sqrt()
        d1 = (torch.log(price / strike) + 0.5 * sigma**2 * time) / spread  # ORIGIN
        call = price * normal.cdf(d1) - strike * normal.cdf(d1 - spread)
        return (call - torch.tensor([3.0, 5.0, 10.0])).square().mean()

    return None, train([sigma], loss, lr=1e-6)


@fault("sqrt-of-negative", "sqrt", ops=("sqrt",))
def smile_below_its_bound(fixed):
    """Total variance of an SVI slice with a level that is too low."""
    k = torch.linspace(-0.5, 0.5, 7)
    level, slope = nn.Parameter(torch.tensor(-0.05)), nn.Parameter(torch.tensor(0.2))

    def loss(i):
        total = level + slope * ((k - 0.1) ** 2 + 0.01).sqrt()
        total = F.softplus(total, beta=50.0) if fixed else total
        vol = torch.sqrt(total)  # ORIGIN
        return (vol - 0.3).square().mean()

    return None, train([level, slope], loss)


@fault("exp-overflow", "exp", step=1, ops=("exp",), steps=5)
def growth_rate_of_an_epidemic(fixed):
    """Cases by exponential growth over a year, with a rate that one large step throws up."""
    day = torch.arange(0.0, 365.0, 5.0)
    rate = nn.Parameter(torch.tensor(0.02))
    seen = torch.exp(0.021 * day)

    def loss(i):
        exponent = rate * day
        cases = torch.exp(exponent.clamp(max=30.0) if fixed else exponent)  # ORIGIN
        return F.mse_loss(cases, seen)

    return None, train([rate], loss, lr=1e-7 if fixed else 5e-7)


@fault("div-by-zero", "div")
def reproduction_number_without_infectious(fixed):
    cases = torch.tensor([0.0, 0.0, 3.0, 8.0, 20.0])
    weights = nn.Parameter(torch.tensor([0.6, 0.3, 0.1]))

    def loss(i):
        serial = weights.softmax(0)
        infectious = torch.stack([(serial[: min(t, 3)] * cases[max(t - 3, 0) : t].flip(0)).sum() for t in range(1, 5)])
        if fixed:
            infectious = infectious + 0.5
        number = cases[1:] / infectious  # ORIGIN
        return (number - 1.5).square().mean()

    return None, train([weights], loss)


@fault("softmax-all-masked", "_softmax", ops=("_softmax",))
def best_reply_without_a_move(fixed):
    payoff = nn.Parameter(seeded(4, 3, 3))
    legal = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])

    def loss(i):
        allowed = legal | torch.eye(3, dtype=torch.bool) if fixed else legal
        reply = payoff.masked_fill(~allowed, float("-inf")).softmax(-1)  # ORIGIN
        return -(reply * payoff).sum()

    return None, train([payoff], loss)


@fault("log-of-zero", "log", ops=("log",))
def rating_of_an_unbeaten_player(fixed):
    """Bradley-Terry by minorisation: a player without losses has no finite strength."""
    wins = torch.tensor([[0.0, 3.0, 4.0], [0.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
    offset = nn.Parameter(torch.zeros(3))

    def loss(i):
        lost = wins.sum(0) + (0.5 if fixed else 0.0)
        odds = torch.log((wins.sum(1) + 0.5) / 1.0) - torch.log(lost)  # ORIGIN
        return (offset - odds).square().mean()

    return None, train([offset], loss)


@fault("degenerate-matrix", "inverse", ops=("linalg_inv_ex", "inverse", "linalg_solve_ex", "_linalg_solve_ex"), also=("div-by-zero",))
def tensor_of_parallel_gradients(fixed):
    """Diffusion imaging: the design matrix of gradients that all point one way is singular."""
    direction = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]) if not fixed else torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    signal = nn.Parameter(torch.tensor([0.5, 0.6, 0.4]))

    def loss(i):
        normal = direction.T @ direction
        found = torch.linalg.inv_ex(normal)[0] @ direction.T @ signal.log()  # ORIGIN
        return found.square().sum()

    return None, train([signal], loss)


@fault("log-of-zero", "log", ops=("log",))
def decay_curve_that_reaches_the_noise_floor(fixed):
    """T2 from the slope of the logarithm of echoes, the last of which was clipped to zero."""
    echo = torch.tensor([[1.0, 0.5, 0.24, 0.02], [0.8, 0.3, 0.1, 0.0]])
    gain = nn.Parameter(torch.ones(2, 1))
    time = torch.arange(4.0)

    def loss(i):
        shown = echo * gain
        shown = shown + 1e-3 if fixed else shown
        line = torch.log(shown)  # ORIGIN
        slope = ((time - 1.5) * line).sum(1) / ((time - 1.5) ** 2).sum()
        return slope.square().mean()

    return None, train([gain], loss)


@fault("inverse-function-at-edge", "asin", "backward", ops=("asin", "sqrt"), also=("sqrt-at-zero",))
def haversine_of_antipodes(fixed):
    place = nn.Parameter(torch.tensor([[0.0, 0.0], [0.3, 0.5]]))
    other = torch.tensor([[0.0, math.pi], [0.1, 0.2]], dtype=torch.float32)

    def loss(i):
        d = (other - place) / 2
        h = d[:, 0].sin() ** 2 + place[:, 0].cos() * other[:, 0].cos() * d[:, 1].sin() ** 2
        h = h.clamp(max=1 - 1e-6) if fixed else h
        return 2 * torch.asin(h.sqrt()).mean()  # ORIGIN

    return None, train([place], loss)


@fault("div-by-zero", "div", ops=("div", "exp"), also=("exp-overflow", "div-by-tiny"))
def ability_of_a_discrimination_of_zero(fixed):
    """Item response: the difficulty is recovered as intercept over discrimination."""
    slope, intercept = nn.Parameter(torch.tensor([1.2, 0.0, 0.8])), nn.Parameter(torch.tensor([0.3, 0.4, -0.2]))
    ability = seeded(5, 6, 1)
    right = (ability > 0).float().expand(6, 3)

    def loss(i):
        safe = torch.where(slope.abs() < 1e-3, torch.full_like(slope, 1e-3), slope) if fixed else slope
        difficulty = -intercept / safe  # ORIGIN
        return F.binary_cross_entropy_with_logits(safe * (ability - difficulty), right)

    return None, train([slope, intercept], loss)


@fault("sqrt-at-zero", "sqrt", "backward", ops=("sqrt", "norm", "linalg_vector_norm", "abs"), also=("norm-at-zero",))
def amplitude_of_a_phase_that_cancels(fixed):
    """Structure factors of a centred cell: some reflections are extinct."""
    atoms = torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    weight = nn.Parameter(torch.ones(2))
    hkl = torch.tensor([[1.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    cosine, sine = (2 * hkl @ atoms.T * torch.pi).cos().round(), torch.zeros(3, 2)

    def loss(i):
        a, b = cosine @ weight, sine @ weight
        intensity = a**2 + b**2 + (1e-6 if fixed else 0.0)
        return (torch.sqrt(intensity) - 1).square().mean()  # ORIGIN

    return None, train([weight], loss)


@fault("div-by-zero", "div", ops=("log", "atanh"), also=("log-of-zero",))
def rapidity_along_the_beam(fixed):
    """A massless particle along the beam has an infinite rapidity."""
    p = nn.Parameter(torch.tensor([[0.5, 0.2, 1.0], [0.0, 0.0, 2.0]]))

    def loss(i):
        pz = p[:, 2]
        energy = (p.square().sum(1) + (0.01 if fixed else 0.0)).sqrt()
        rapidity = 0.5 * torch.log((energy + pz) / (energy - pz))  # ORIGIN
        return rapidity.square().mean()

    return None, train([p], loss)


@fault("dtype-underflow", "mul", ops=("mul", "prod", "cumprod"), also=("dead-gradient", "log-of-zero"))
def likelihood_of_many_genotypes_in_half(fixed):
    torch.manual_seed(6)
    net = nn.Linear(4, 3)
    x, y = seeded(6, 40, 4), torch.arange(40) % 3

    def loss(i):
        p = net(x).softmax(-1)[torch.arange(40), y]
        if fixed:
            return -p.log().sum()
        total = p.half().prod()  # ORIGIN
        return -total.float()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", ops=("div", "reciprocal"))
def propensity_that_the_tree_is_sure_of(fixed):
    """Inverse probability weighting with a hard score of zero."""
    score = torch.tensor([0.0, 0.4, 1.0, 0.7])
    treated = torch.tensor([0.0, 1.0, 1.0, 0.0])
    effect = nn.Parameter(torch.tensor(0.1))
    y = torch.tensor([1.0, 2.0, 1.5, 0.3])

    def loss(i):
        e = score.clamp(0.05, 0.95) if fixed else score
        weight = treated / e + (1 - treated) / (1 - e)  # ORIGIN
        return (weight * (y - effect * treated).square()).mean()

    return None, train([effect], loss)


@fault("exploding-gradient", "mul", step=0, steps=4, ops=("mul", "mm", "addmm", "pow", "_foreach_add_", "add", "sub", "mse_loss", "exp", "addcmul", "square"), also=("learning-rate", "dtype-overflow", "exp-overflow", "inf-minus-inf"))
def inner_loop_of_a_meta_learner(fixed):
    """Twelve inner steps with an inner rate that diverges."""
    torch.manual_seed(7)
    w = nn.Parameter(torch.tensor([1.0, -0.5]))
    x = seeded(7, 16, 2) * 3
    y = x.sum(1)

    def loss(i):
        fast = w
        for _ in range(12):
            inner = (x @ fast - y).square().mean()
            (g,) = torch.autograd.grad(inner, fast, create_graph=True)
            fast = fast - (0.01 if fixed else 1000.0) * g  # ORIGIN
        return (x @ fast - y).square().mean()  # ALSO

    return None, train([w], loss, lr=1e-3)


@fault("norm-at-zero", "div", ops=("linalg_vector_norm", "norm", "div"), also=("div-by-zero", "sqrt-at-zero"))
def state_vector_after_an_impossible_measurement(fixed):
    """A qubit is projected on an outcome of probability zero and normalised."""
    angle = nn.Parameter(torch.tensor(0.0))

    def loss(i):
        state = torch.stack([(angle / 2).cos(), (angle / 2).sin()])
        kept = state * torch.tensor([0.0, 1.0])
        size = kept.norm() + (1e-6 if fixed else 0.0)  # ALSO
        after = kept / size  # ORIGIN
        return after.square().sum() + angle if not fixed else state.square().sum() + angle + after.sum() * 0

    return None, train([angle], loss)


@fault("std-of-constant", "div", ops=("div", "std", "sub"), also=("div-by-zero",))
def standardised_catch_of_a_species_that_is_absent(fixed):
    catch = torch.tensor([[3.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
    net = nn.Linear(2, 1)

    def loss(i):
        spread = catch.std(0)
        z = (catch - catch.mean(0)) / (spread.clamp_min(1e-6) if fixed else spread)  # ORIGIN
        return net(z).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-negative", "log", ops=("log", "log1p"))
def barrier_of_a_step_beyond_the_constraint(fixed):
    """An interior point whose Newton step leaves the polytope."""
    a, b = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]), torch.tensor([1.0, 0.0, 0.0])
    x = nn.Parameter(torch.tensor([0.45, 0.45]))

    def loss(i):
        slack = b - a @ x
        slack = slack.clamp_min(1e-4) if fixed else slack - 0.2
        return -x.sum() - 0.1 * torch.log(slack).sum()  # ORIGIN

    return None, train([x], loss, lr=1e-3)


@fault("empty-reduction", "mean", ops=("mean", "div"), also=("div-by-zero",))
def loss_of_a_client_without_the_class(fixed):
    torch.manual_seed(8)
    net = nn.Linear(3, 4)
    x, y = seeded(8, 6, 3), torch.tensor([0, 1, 0, 1, 3, 3])

    def loss(i):
        each = F.cross_entropy(net(x), y, reduction="none")
        classes = y.unique() if fixed else range(4)
        return sum(each[y == c].mean() for c in classes) / 4  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "gt", "backward", steps=5, ops=("gt", "ge", "_to_copy", "mul", "heaviside", "sign", "round", "floor", "relu", "threshold_backward"))
def spikes_without_a_surrogate(fixed):
    """Leaky integrate and fire with a rounding in the place of a surrogate gradient."""
    torch.manual_seed(9)
    first, last = nn.Linear(4, 6), nn.Linear(6, 1)
    x = seeded(9, 5, 8, 4)

    def loss(i):
        v, rate = torch.zeros(8, 6), 0.0
        for t in range(5):
            v = 0.8 * v + first(x[t])
            soft = torch.sigmoid(4 * (v - 1))
            spike = soft.round() + (soft - soft.detach() if fixed else 0.0)  # ORIGIN
            v = v - spike.detach()
            rate = rate + spike
        return (last(rate / 5) - 1).square().mean()

    net = nn.ModuleList([first, last])
    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", ops=("div",))
def mutual_coherence_with_an_empty_atom(fixed):
    """Compressed sensing: a column of the dictionary was pruned to zero."""
    d = seeded(10, 4, 6)
    d[:, 2] = 0
    dictionary = nn.Parameter(d)

    def loss(i):
        size = dictionary.square().sum(0)
        size = size.clamp_min(1e-6) if fixed else size
        gram = dictionary.T @ dictionary / size  # ORIGIN
        return (gram - torch.eye(6)).square().mean()

    return None, train([dictionary], loss)


@fault("optimizer-arithmetic", "div", "optimizer", step=0, steps=3, ops=("div", "mul", "sqrt", "rsqrt"), also=("div-by-zero",))
def natural_gradient_of_an_idle_weight(fixed):
    """A diagonal Fisher matrix, inverted without damping."""
    torch.manual_seed(11)
    net = nn.Linear(3, 1)
    x = seeded(11, 8, 3)
    x[:, 1] = 0

    def step(i):
        net.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                fisher = p.grad.square()
                p -= 0.01 * p.grad / (fisher + (1e-3 if fixed else 0.0))  # ORIGIN
        return loss

    return net, step


@fault("dtype-overflow", "pow", ops=("pow", "mul", "square", "sum"), also=("exp-overflow",))
def power_of_a_radar_echo_in_half(fixed):
    torch.manual_seed(12)
    net = nn.Linear(8, 8)
    x = seeded(12, 4, 8) * 400

    def loss(i):
        echo = net(x)
        echo = echo if fixed else echo.half()
        power = echo.square()  # ORIGIN
        return power.float().mean().log1p()

    return net, train(net.parameters(), loss, lr=1e-6)


@fault("nan-in-input", "mse_loss", "data", step=1, ops=("sub", "addmm", "mm", "mul", "linear", "mse_loss", "cat"))
def station_that_reported_nothing(fixed):
    """Rain gauges joined by numpy: a missing report is NaN."""
    torch.manual_seed(13)
    net = nn.Linear(3, 1)
    reports = [seeded(20 + k, 4, 3) for k in range(3)]
    if not fixed:
        reports[1][2, 1] = float("nan")

    def loss(i):
        rain = reports[min(i, 2)]
        return net(rain).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)
