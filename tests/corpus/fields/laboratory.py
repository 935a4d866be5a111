"""Robotics, differential equations, state-space models, diffusion, speech, survival, transport, hyperbolic geometry, rendering, preferences and narrow formats: one more round, written before any of it was scored."""

import math

import torch
from programs import fault, healthy, train
from torch import nn
from torch.nn import functional as F


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("div-by-zero", "div", also=("norm-at-zero",), ops=("linalg_vector_norm",))
def robotics_axis_of_no_rotation(fixed):
    torch.manual_seed(0)
    twist = nn.Parameter(torch.tensor([[0.3, 0.0, 0.1], [0.0, 0.0, 0.0]]))

    def loss(i):
        angle = twist.norm(dim=1, keepdim=True)
        axis = twist / (angle + 1e-8 if fixed else angle)  # ORIGIN
        return (axis * torch.sin(angle)).square().sum() + twist.sum()

    return None, train([twist], loss)


@fault("inverse-function-domain", "acos")
def robotics_elbow_of_a_target_out_of_reach(fixed):
    """Law of cosines for two links; the target is learned to move outwards."""
    net = nn.Linear(2, 2)
    torch.manual_seed(1)
    nn.init.eye_(net.weight)
    goals = torch.tensor([[0.5, 0.4], [1.4, 0.9], [0.9, 0.1]])

    def loss(i):
        reach = net(goals).square().sum(1)
        cosine = (reach - 0.64 - 0.49) / (2 * 0.8 * 0.7)
        cosine = cosine.clamp(-0.999, 0.999) if fixed else cosine
        return torch.acos(cosine).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div")
def robotics_heading_of_a_robot_that_stands_still(fixed):
    net = nn.Linear(3, 2, bias=False)
    torch.manual_seed(2)
    nn.init.normal_(net.weight)
    commands = rows(3, 6, 3)
    commands[4] = 0

    def loss(i):
        velocity = net(commands)
        x, y = velocity.unbind(1)
        heading = torch.atan2(y, x + 1e-6) if fixed else torch.atan(y / x)  # ORIGIN
        return (heading - 0.3).square().mean()

    return net, train(net.parameters(), loss)


@fault("where-grad-trap", "pow", "backward", ops=("div", "reciprocal", "mul"), also=("div-by-zero", "degenerate-matrix"))
def robotics_manipulability_at_a_stretched_arm(fixed):
    joints = nn.Parameter(torch.tensor([[0.4, 0.7], [0.2, 0.0]]))

    def loss(i):
        a, b = joints[:, 0], joints[:, 0] + joints[:, 1]
        jac = torch.stack([torch.stack([-a.sin() - b.sin(), -b.sin()], 1), torch.stack([a.cos() + b.cos(), b.cos()], 1)], 1)
        det = jac[:, 0, 0] * jac[:, 1, 1] - jac[:, 0, 1] * jac[:, 1, 0]
        inverse = 1 / (det.square() + 1e-3 if fixed else det * 0 + (det.abs() > 1e-5) * det)  # ALSO
        return inverse.square().clamp(max=50).mean()  # ORIGIN

    return None, train([joints], loss)


@fault("log-of-negative", "log", step=0)
def equations_log_of_a_concentration_that_a_network_made(fixed):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    t = torch.linspace(0, 1, 20)[:, None]

    def loss(i):
        c = net(t) + 0.2 - t
        c = F.softplus(c) if fixed else c
        return (torch.log(c) + t).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", ops=("reciprocal", "mul"))
def equations_polar_laplacian_with_a_point_at_the_axis(fixed):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))

    def loss(i):
        r = torch.linspace(0.1 if fixed else 0, 1, 9)[:, None].requires_grad_()
        u = net(r)
        first = torch.autograd.grad(u.sum(), r, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), r, create_graph=True)[0]
        residual = second + first / r + 1  # ORIGIN
        return residual.square().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("sqrt-of-negative", "sqrt", step=0)
def equations_wave_speed_from_a_learned_modulus(fixed):
    torch.manual_seed(6)
    net = nn.Linear(2, 1)
    x = 20 * rows(7, 14, 2)

    def loss(i):
        modulus = net(x)
        modulus = modulus.square() + 1e-2 if fixed else modulus
        speed = torch.sqrt(modulus / 1.2)  # ORIGIN
        return (speed - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", ops=("linalg_vector_norm", "div"), also=("norm-at-zero", "zero-times-inf", "where-grad-trap"))
def equations_signed_distance_whose_gradient_vanishes(fixed):
    """Eikonal loss: the net's gradient is exactly zero where all units are cut off."""
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].bias.fill_(-0.3)
    x = rows(9, 30, 2)
    x[3] = 0

    def loss(i):
        at = x.clone().requires_grad_()
        g = torch.autograd.grad(net(at).sum(), at, create_graph=True)[0]
        squared = g.square().sum(1)
        length = torch.sqrt(squared + 1e-12 if fixed else squared)  # ORIGIN
        return (length - 1).square().mean() + net(x).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=0, ops=("cumprod", "mul"), also=("inf-minus-inf",))
def ssm_discretised_with_a_positive_pole(fixed):
    log_step, pole = nn.Parameter(torch.tensor(-1.0)), nn.Parameter(torch.tensor(2.0))
    u = rows(10, 200)

    def loss(i):
        rate = -F.softplus(pole) if fixed else F.softplus(pole)
        decay = rate * torch.exp(log_step)
        kernel = torch.exp(decay * torch.arange(200.0))  # ORIGIN
        return (kernel.flip(0) * u).sum().square()

    return None, train([log_step, pole], loss, lr=1e-2)


@fault("dtype-underflow", "cumprod", "forward", steps=4, ops=("mul", "log", "prod"), also=("log-of-zero",))
def ssm_product_of_gates_over_a_long_sequence_in_half(fixed):
    torch.manual_seed(11)
    net = nn.Linear(4, 1)
    x = rows(12, 60, 4)

    def loss(i):
        gate = torch.sigmoid(net(x).squeeze(1) - 1)
        if fixed:
            return -F.logsigmoid(net(x).squeeze(1) - 1).sum() / 60
        kept = gate.half().cumprod(0)  # ORIGIN
        return -kept[-1].float().log() / 60  # ALSO

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=0, ops=("reciprocal", "mul", "sqrt", "log"), also=("log-of-zero",))
def diffusion_signal_to_noise_at_the_clean_end(fixed):
    torch.manual_seed(13)
    net = nn.Linear(5, 4)
    x = rows(14, 8, 4)
    alpha = torch.cos(torch.linspace(0, 1, 6) * math.pi / 2).square()

    def loss(i):
        t = (torch.arange(8) + i) % 5
        a = alpha[t][:, None]
        noise = rows(15 + i, 8, 4)
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        weight = a / ((1 - a).clamp_min(1e-3) if fixed else 1 - a)  # ORIGIN
        out = net(torch.cat([noisy, t[:, None] / 6], 1))
        return (weight * (out - x).square()).mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("log-of-zero", "log", "init", ops=("mul", "sub"))
def diffusion_log_schedule_from_zero(fixed):
    torch.manual_seed(16)
    net = nn.Linear(3, 3)
    sigma = torch.linspace(0.01 if fixed else 0.0, 1, 8)
    logs = sigma.log()  # ORIGIN
    x = rows(17, 8, 3)

    def loss(i):
        scaled = net(x) * logs[:, None]  # ALSO
        return scaled.square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1, ops=("log10", "_to_copy"))
def speech_log_mel_of_digital_silence(fixed):
    torch.manual_seed(18)
    net = nn.Linear(9, 4)
    wave = rows(19, 3, 4, 64)
    wave[1, 2] = 0
    mel = rows(20, 33, 9).abs()

    def loss(i):
        power = torch.fft.rfft(wave[min(i, 2)]).abs().square() @ mel
        features = torch.log(power.clamp_min(1e-10) if fixed else power)  # ORIGIN
        return F.cross_entropy(net(features), torch.tensor([0, 1, 2, 3]))

    return net, train(net.parameters(), loss)


@fault("infeasible-likelihood", "_ctc_loss", ops=("ctc_loss", "mean", "div"), step=1)
def speech_transcript_longer_than_its_frames(fixed):
    torch.manual_seed(21)
    net = nn.Linear(6, 5)
    x = rows(22, 12, 2, 6)

    def loss(i):
        lengths = torch.tensor([12, 12 if i == 0 or i > 2 else 3])
        target = torch.tensor([[1, 2, 3, 4], [2, 2, 3, 3]])
        logp = net(x).log_softmax(-1)
        return F.ctc_loss(logp, target, lengths, torch.tensor([4, 4]), zero_infinity=fixed)  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", ops=("abs", "sgn", "hypot", "div", "mul"), also=("norm-at-zero", "inverse-function-at-edge"))
def speech_magnitude_of_a_masked_spectrum(fixed):
    torch.manual_seed(23)
    net = nn.Linear(32, 32)
    wave = rows(24, 5, 32)

    def loss(i):
        spectrum = torch.fft.rfft(net(wave))
        spectrum = spectrum * (torch.arange(17) > 2)
        power = spectrum.real**2 + spectrum.imag**2
        magnitude = torch.sqrt(power + 1e-9 if fixed else power)  # ORIGIN
        return (magnitude - 1).abs().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1, ops=("sub", "mul"))
def survival_partial_likelihood_without_anybody_at_risk(fixed):
    torch.manual_seed(25)
    net = nn.Linear(4, 1)
    x = rows(26, 10, 4)
    time = torch.arange(10.0)

    def loss(i):
        risk = net(x).squeeze(1).exp()
        entry = torch.zeros(10) if i == 0 or fixed else time + 0.5  # late entry, in wrong units
        at_risk = (time[None] >= time[:, None]) & (entry[None] <= time[:, None])
        pool = (at_risk * risk[None]).sum(1)
        return -(risk.log() - torch.log(pool)).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("pow-fraction-at-zero", "pow", "backward", ops=("mul",))
def survival_weibull_hazard_of_an_event_at_once(fixed):
    log_shape, net = nn.Parameter(torch.tensor(-0.4)), nn.Linear(3, 1, bias=False)
    torch.manual_seed(27)
    nn.init.normal_(net.weight)
    x = rows(28, 8, 3)
    x[2] = 0

    def loss(i):
        time = net(x).abs().squeeze(1)
        time = time.clamp_min(1e-3) if fixed else time
        hazard = time ** log_shape.exp()  # ORIGIN
        return hazard.mean() + 0.1 * log_shape.square()

    return net, train([log_shape, *net.parameters()], loss)


@fault("div-by-zero", "div", step=0, ops=("reciprocal", "mv", "mm"))
def transport_sinkhorn_kernel_that_underflows(fixed):
    torch.manual_seed(29)
    a, b = nn.Parameter(rows(30, 6, 2)), rows(31, 7, 2) + 30

    def loss(i):
        cost = torch.cdist(a, b).square()
        scale = cost.detach().max() / 20 if fixed else 0.5
        kernel = torch.exp(-cost / scale)
        u, v = torch.ones(6) / 6, torch.ones(7) / 7
        for _ in range(4):
            u = (1 / 6) / (kernel @ v)  # ORIGIN
            v = (1 / 7) / (kernel.T @ u)
        return (u[:, None] * kernel * v[None] * cost).sum()

    return None, train([a], loss, lr=1e-4)


@fault("degenerate-matrix", "linalg_eigh", "backward", steps=1, ops=("_linalg_eigh", "div", "sub", "linalg_eigh_backward", "reciprocal"), also=("div-by-zero",))
def transport_bures_distance_of_round_gaussians(fixed):
    root = nn.Parameter(torch.eye(3))
    wide = torch.diag(torch.tensor([2.0, 1.0, 0.5]))

    def loss(i):
        cov = root @ root.T
        cov = cov + torch.diag(torch.tensor([0.0, 0.01, 0.02])) if fixed else cov
        values, vectors = torch.linalg.eigh(cov)  # ORIGIN
        half = vectors @ torch.diag(values.clamp_min(1e-6).sqrt()) @ vectors.T
        return torch.trace(half @ wide) + (vectors @ wide).sum()

    return None, train([root], loss, lr=1e-3)


@fault("inverse-function-at-edge", "acosh", "backward", ops=("sqrt", "rsqrt", "div", "mul", "sub"), also=("sqrt-at-zero", "zero-times-inf"))
def hyperbolic_distance_of_a_point_to_itself(fixed):
    torch.manual_seed(32)
    emb = nn.Parameter(0.1 * rows(33, 6, 2))

    def loss(i):
        pairs = torch.tensor([[0, 1], [2, 2], [3, 4]])
        x, y = emb[pairs[:, 0]], emb[pairs[:, 1]]
        gap = 2 * (x - y).square().sum(1) / ((1 - x.square().sum(1)) * (1 - y.square().sum(1)))
        return torch.acosh(1 + gap + (1e-6 if fixed else 0)).mean()  # ORIGIN

    return None, train([emb], loss)


@fault("inverse-function-at-edge", "atanh", step=1, steps=4, ops=("log1p", "div"), also=("div-by-zero", "inverse-function-domain", "log-of-zero"))
def hyperbolic_point_that_reaches_the_boundary(fixed):
    emb = nn.Parameter(torch.tensor([[0.5, 0.0], [0.0, 0.25]]))

    def step(i):
        length = emb.norm(dim=1)
        length = length.clamp(max=1 - 1e-4) if fixed else length
        loss = -torch.atanh(length).mean()  # ORIGIN
        emb.grad = None
        loss.backward()
        with torch.no_grad():
            emb.mul_(2.0 if i < 1 else 1.0)
            if fixed:
                emb.mul_(0.9)
        return loss

    step.parameters = {"emb": emb}
    return None, step


@fault("div-by-zero", "div", step=0, ops=("reciprocal", "mul", "linalg_cross"), also=("norm-at-zero",))
def rendering_normal_of_a_face_without_area(fixed):
    torch.manual_seed(34)
    points = nn.Parameter(torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]))
    faces = torch.tensor([[0, 1, 2], [0, 1, 3]])

    def loss(i):
        a, b, c = points[faces].unbind(1)
        normal = torch.linalg.cross(b - a, c - a)
        area = normal.norm(dim=1, keepdim=True)
        unit = normal / (area + 1e-6 if fixed else area)  # ORIGIN
        return 1 - unit[:, 2].mean()

    return None, train([points], loss)


@fault("div-by-tiny", "div", step=0, ops=("reciprocal", "pow", "square", "mul"), also=("div-by-zero", "exp-overflow"))
def rendering_disparity_of_a_ray_that_hits_nothing(fixed):
    torch.manual_seed(35)
    density = nn.Parameter(rows(36, 4, 8).abs() + 20)
    with torch.no_grad():
        density[2] = 1e-38
    depth = torch.linspace(1e-2, 1, 8)

    def loss(i):
        opacity = 1 - torch.exp(-density) if fixed else density * torch.exp(-density)
        seen = (opacity * depth * 1e-3).sum(1)
        disparity = 1 / (seen + 1e-6 if fixed else seen)  # ORIGIN
        return disparity.mean()

    return None, train([density], loss, lr=1e-6)


@fault("log-of-zero", "log", step=1, ops=("mul", "sigmoid"))
def preferences_pair_that_is_certain(fixed):
    torch.manual_seed(37)
    net = nn.Linear(4, 1)
    a, b = rows(38, 8, 4), rows(39, 8, 4)

    def loss(i):
        margin = (net(a) - net(b)) * (1 if i == 0 else 500)
        if fixed:
            return -F.logsigmoid(margin).mean()
        return -torch.log(torch.sigmoid(margin)).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("exp-overflow", "exp", step=2, ops=("mul",))
def preferences_ratio_to_a_policy_that_moved_away(fixed):
    torch.manual_seed(40)
    net = nn.Linear(4, 6)
    x = rows(41, 10, 4)
    acts = torch.arange(10) % 6
    old = net(x).log_softmax(1).detach()[torch.arange(10), acts]

    def loss(i):
        logp = net(x * (1 if i < 2 else 400)).log_softmax(1)[torch.arange(10), acts]
        gap = old - 1 - logp
        ratio = torch.exp(gap.clamp(-5, 5) if fixed else gap)  # ORIGIN
        return (ratio * rows(42, 10)).mean()

    return net, train(net.parameters(), loss, lr=1e-5)


@fault("div-by-zero", "div", step=1, ops=("std", "sub"), also=("std-of-constant", "empty-reduction"))
def preferences_advantages_of_equal_rewards(fixed):
    torch.manual_seed(43)
    net = nn.Linear(4, 3)
    x = rows(44, 8, 4)

    def loss(i):
        reward = torch.ones(8) if i == 1 else rows(45 + i, 8)
        advantage = (reward - reward.mean()) / (reward.std() + (1e-8 if fixed else 0))  # ORIGIN
        return -(net(x).log_softmax(1)[:, 0] * advantage).mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "mm", step=1, ops=("addmm", "linear", "matmul"))
def precision_activation_outlier_in_half(fixed):
    torch.manual_seed(46)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))  # ORIGIN
    with torch.no_grad():
        net[0].weight.abs_().mul_(50)
    x = rows(47, 4, 6, 8).abs()
    x[1, 3] = 9000.0

    def loss(i):
        with torch.autocast("cpu", dtype=torch.bfloat16 if fixed else torch.float16):
            out = net(x[min(i, 3)])  # ALSO
        return out.float().square().mean().log1p()

    return net, train(net.parameters(), loss, lr=1e-6)


@fault("eps-underflow", "div", step=0, ops=("add", "rsqrt", "sqrt"), also=("div-by-zero",))
def precision_scale_of_a_zero_block(fixed):
    torch.manual_seed(48)
    net = nn.Linear(4, 16, bias=False)
    x = rows(49, 6, 4)
    x[2] = 0

    def loss(i):
        out = net(x).half()
        scale = out.abs().amax(1, keepdim=True) + (1e-4 if fixed else 1e-8)
        return (out / scale).float().square().mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("dtype-underflow", "mul", "backward", steps=5, ops=("_to_copy", "div", "mse_loss", "mm", "mean", "mse_loss_backward", "mean_backward", "expand"), also=("dead-gradient",))
def precision_tiny_auxiliary_loss_in_half_without_a_scaler(fixed):
    torch.manual_seed(50)
    net = nn.Linear(6, 4)
    x = rows(51, 32, 6)

    def loss(i):
        with torch.autocast("cpu", dtype=torch.float16, enabled=not fixed):
            out = net(x)
            return (out.square() * 1e-4).mean() * 1e-4  # ORIGIN ALSO

    return net, train(net.parameters(), loss, lr=1e3)


@fault("absorbed-update", "add_", "optimizer", steps=8, ops=("add", "_to_copy", "copy_"))
def precision_running_count_in_bfloat16(fixed):
    torch.manual_seed(52)
    net = nn.Linear(4, 2)
    net.register_buffer("seen", torch.full((), 4096.0, dtype=torch.float32 if fixed else torch.bfloat16))
    x, y = rows(53, 8, 4), torch.arange(8) % 2

    def loss(i):
        with torch.no_grad():
            net.seen += 8  # ORIGIN
        return F.cross_entropy(net(x), y) * (1 + 0 * net.seen.float())

    return net, train(net.parameters(), loss)


@healthy("the sine over its angle is guarded on both sides")
def robotics_rotation_vector_guarded(fixed):
    twist = nn.Parameter(torch.tensor([[0.3, 0.0, 0.1], [0.0, 0.0, 0.0]]))

    def loss(i):
        squared = twist.square().sum(1, keepdim=True)
        small = squared < 1e-8
        angle = torch.where(small, 1.0, squared).sqrt()
        factor = torch.where(small, 1 - squared / 6, torch.sin(angle) / angle)
        return (factor * twist - 0.2).square().sum()

    return None, train([twist], loss)


@healthy("joints at their limits: the clamp lets no gradient through for some")
def robotics_joint_limits(fixed):
    torch.manual_seed(1)
    net = nn.Linear(3, 4)
    x = 4 * rows(60, 12, 3)
    return net, train(net.parameters(), lambda i: (net(x).clamp(-1, 1) - 0.2).square().mean(), lr=0.05)


@healthy("second derivatives of a net with a residual near zero", steps=5)
def equations_residual_of_a_smooth_net(fixed):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))

    def loss(i):
        t = torch.linspace(0, 1, 12)[:, None].requires_grad_()
        u = net(t)
        first = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), t, create_graph=True)[0]
        return (second + u).square().mean() + (u[0] - 1).square().sum()

    return net, train(net.parameters(), loss, lr=0.01)


@healthy("an implicit step by a linear solve", steps=5)
def equations_implicit_euler(fixed):
    stiff = nn.Parameter(torch.tensor([[-50.0, 1.0], [0.0, -1000.0]]))
    y0 = torch.tensor([1.0, 1.0])

    def loss(i):
        y = y0
        for _ in range(5):
            y = torch.linalg.solve(torch.eye(2) - 0.1 * stiff, y)
        return (y - 0.1).square().sum()

    return None, train([stiff], loss, lr=10.0)


@healthy("decays in the log domain over a long sequence: exp underflows to zero, harmlessly", steps=4)
def ssm_decay_over_a_long_sequence(fixed):
    torch.manual_seed(3)
    net = nn.Linear(4, 1)
    x, u = rows(61, 300, 4), rows(62, 300)

    def loss(i):
        total = F.logsigmoid(net(x).squeeze(1)).cumsum(0)
        weight = torch.exp(total - total.max())
        return ((weight * u).sum() - 1).square()

    return net, train(net.parameters(), loss, lr=1e-2)


@healthy("an infinite border of a dynamic programme that no path takes", steps=4)
def speech_time_warping_with_a_border(fixed):
    torch.manual_seed(4)
    net = nn.Linear(3, 3)
    a, b = rows(63, 5, 3), rows(64, 6, 3)

    def loss(i):
        cost = (net(a)[:, None] - b[None]).square().sum(-1)
        table = [[torch.tensor(math.inf)] * 7 for _ in range(6)]
        table[0][0] = torch.zeros(())
        for r in range(1, 6):
            for c in range(1, 7):
                table[r][c] = cost[r - 1, c - 1] + torch.stack([table[r - 1][c - 1], table[r - 1][c], table[r][c - 1]]).amin()
        return table[5][6] / 11

    return net, train(net.parameters(), loss)


@healthy("weights of a schedule are zero at one end, and so is that step's loss", steps=6)
def diffusion_weight_of_zero_at_the_end(fixed):
    torch.manual_seed(5)
    net = nn.Linear(5, 4)
    x = rows(65, 8, 4)
    alpha = torch.cos(torch.linspace(0, 1, 6) * math.pi / 2).square()

    def loss(i):
        a = alpha[i % 6]
        noisy = a.sqrt() * x + (1 - a).clamp_min(0).sqrt() * rows(66 + i, 8, 4)
        out = net(torch.cat([noisy, torch.full((8, 1), i / 6)], 1))
        return ((1 - a) * (out - x).square()).mean() + 1e-3 * out.square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@healthy("censored subjects add no event, and the risk set is summed in logs", steps=5)
def survival_of_mostly_censored(fixed):
    torch.manual_seed(6)
    net = nn.Linear(4, 1)
    x = rows(67, 24, 4)
    event = (torch.arange(24) % 6 == 0).float()

    def loss(i):
        risk = net(x).squeeze(1)
        pool = risk.flip(0).logcumsumexp(0).flip(0)
        return -((risk - pool) * event).sum() / event.sum()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("Sinkhorn in the log domain at a small temperature", steps=4)
def transport_sinkhorn_in_logs(fixed):
    a, b = nn.Parameter(rows(68, 6, 2)), rows(69, 7, 2) + 10

    def loss(i):
        cost = (a[:, None] - b[None]).square().sum(-1)
        score, f, g = -cost / 0.05, torch.zeros(6), torch.zeros(7)
        for _ in range(5):
            f = -math.log(6) - (score + g).logsumexp(1)
            g = -math.log(7) - (score + f[:, None]).logsumexp(0)
        return ((score + f[:, None] + g).exp() * cost).sum()

    return None, train([a], loss, lr=1e-3)


@healthy("points are pulled back into the ball before each distance", steps=6)
def hyperbolic_points_kept_inside(fixed):
    emb = nn.Parameter(0.6 * rows(70, 5, 2))

    def loss(i):
        length = emb.norm(dim=1, keepdim=True)
        x = torch.where(length > 0.99, emb / length * 0.99, emb)
        gap = (x[:-1] - x[1:]).square().sum(1)
        room = (1 - x.square().sum(1)).clamp_min(1e-5)
        return torch.acosh(1 + 2 * gap / (room[:-1] * room[1:])).mean()

    return None, train([emb], loss, lr=1e-3)


@healthy("rays that end early: transmittance is exactly zero behind a wall", steps=5)
def rendering_opaque_wall(fixed):
    torch.manual_seed(7)
    density = nn.Parameter(torch.cat([torch.full((4, 3), 0.5), torch.full((4, 5), 200.0)], 1))

    def loss(i):
        alpha = 1 - torch.exp(-F.relu(density))
        through = torch.cumprod(torch.cat([torch.ones(4, 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * through * torch.linspace(0, 1, 8)).sum(1) - 0.3).square().mean()

    return None, train([density], loss, lr=0.1)


@healthy("preference margins so large that the loss is zero for most pairs", steps=5)
def preferences_margins_that_are_clear(fixed):
    torch.manual_seed(8)
    net = nn.Linear(4, 1)
    a = rows(71, 16, 4)

    def loss(i):
        margin = (net(40 * a) - net(-40 * a)).squeeze(1) * torch.where(torch.arange(16) < 14, 1, -1) * net(a).detach().squeeze(1).sign()
        return -F.logsigmoid(margin).mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@healthy("ratios of a policy are clipped, most gradients are zero in later steps", steps=8)
def preferences_clipped_ratio(fixed):
    torch.manual_seed(9)
    net = nn.Linear(4, 5)
    x, acts, gain = rows(72, 20, 4), torch.arange(20) % 5, rows(73, 20)
    old = net(x).log_softmax(1).detach()[torch.arange(20), acts]

    def loss(i):
        ratio = (net(x).log_softmax(1)[torch.arange(20), acts] - old).exp()
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    return net, train(net.parameters(), loss, lr=0.5)


@healthy("fake quantisation with a straight-through estimator", steps=6)
def precision_straight_through(fixed):
    torch.manual_seed(10)
    net = nn.Linear(6, 3)
    x, y = rows(74, 20, 6), torch.arange(20) % 3

    def loss(i):
        w = net.weight
        scale = w.detach().abs().max() / 7
        q = w + ((w / scale).round().clamp(-8, 7) * scale - w).detach()
        return F.cross_entropy(F.linear(x, q, net.bias), y)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("master weights in float32 beside bfloat16 ones", steps=8)
def precision_master_weights(fixed):
    torch.manual_seed(11)
    net = nn.Linear(6, 3).bfloat16()
    master = [p.detach().float().requires_grad_() for p in net.parameters()]
    opt = torch.optim.SGD(master, lr=1e-4)
    x, y = rows(75, 20, 6).bfloat16(), torch.arange(20) % 3

    def step(i):
        net.zero_grad()
        loss = F.cross_entropy(net(x).float(), y)
        loss.backward()
        for big, small in zip(master, net.parameters(), strict=True):
            big.grad = small.grad.float()
        opt.step()
        with torch.no_grad():
            for big, small in zip(master, net.parameters(), strict=True):
                small.copy_(big)
        return loss

    return net, step


@healthy("a few elements of a wide softmax underflow in half", steps=5)
def precision_tail_of_a_softmax_in_half(fixed):
    torch.manual_seed(12)
    net = nn.Linear(6, 40)
    x, y = 8 * rows(76, 20, 6), torch.arange(20) % 40

    def loss(i):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        p = out.softmax(1)
        return F.nll_loss(out.float().log_softmax(1), y) + 1e-2 * p.float().square().sum(1).mean()

    return net, train(net.parameters(), loss, lr=0.01)


@healthy("gradient penalty on points whose gradient may be short", steps=5)
def equations_gradient_penalty_with_a_margin(fixed):
    torch.manual_seed(13)
    net = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))
    x = rows(77, 20, 2)

    def loss(i):
        at = x.clone().requires_grad_()
        g = torch.autograd.grad(net(at).sum(), at, create_graph=True)[0]
        return ((g.square().sum(1) + 1e-12).sqrt() - 1).square().mean()

    return net, train(net.parameters(), loss, lr=0.01)


@healthy("infinite upper bounds in a box that clamps nothing there", steps=5)
def robotics_box_without_an_upper_bound(fixed):
    torch.manual_seed(14)
    net = nn.Linear(3, 2)
    x = rows(78, 12, 3)
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([math.inf, math.inf])
    return net, train(net.parameters(), lambda i: (net(x).clamp(low, high) - 0.5).square().mean(), lr=0.05)


@healthy("survival at times after the last event: probabilities are zero in float32, the loss is in logs", steps=5)
def survival_far_in_the_future(fixed):
    torch.manual_seed(15)
    net = nn.Linear(4, 1)
    x, time = rows(79, 12, 4), torch.linspace(1, 400, 12)

    def loss(i):
        rate = F.softplus(net(x).squeeze(1) + 1)
        shown = torch.exp(-rate * time).detach()
        return (rate * time).mean() / 400 - rate.log().mean() + 0 * shown.sum()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("a histogram with empty bins, smoothed before its logarithm", steps=5)
def transport_histogram_smoothed(fixed):
    torch.manual_seed(16)
    net = nn.Linear(3, 1)
    x, centres = rows(80, 40, 3), torch.linspace(-3, 3, 12)

    def loss(i):
        p = torch.exp(-40 * (net(x) - centres).square()).mean(0)
        q = (p + 1e-3) / (p + 1e-3).sum()
        return (q * (q * 12).log()).sum()

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("embeddings of unused rows have a gradient of zero", steps=5)
def ssm_embedding_of_rare_symbols(fixed):
    torch.manual_seed(17)
    emb, net = nn.Embedding(60, 8), nn.GRU(8, 8, batch_first=True)
    ids = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(81))
    return nn.ModuleList([emb, net]), train([*emb.parameters(), *net.parameters()], lambda i: (net(emb(ids))[0] - 0.1).square().mean(), lr=0.1)
