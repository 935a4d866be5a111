"""Arms, rotations, equations and their residuals."""

import math

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Arm(nn.Module):
    """A planar arm of two links."""

    def __init__(self):
        super().__init__()
        self.links = nn.Parameter(torch.tensor([1.0, 0.8]))

    def tip(self, q):
        a, b = self.links
        total = q[..., 0] + q[..., 1]
        return torch.stack([a * q[..., 0].cos() + b * total.cos(), a * q[..., 0].sin() + b * total.sin()], -1)


@fault("div-by-zero", "div", step=2, also=("where-grad-trap",), ops=("pow",))
def joint_rates_of_a_stretched_arm(fixed):
    arm = Arm()
    jacobian = torch.func.vmap(torch.func.jacrev(arm.tip))

    def joint_rates(q, v):
        j = jacobian(q)
        det = j[:, 0, 0] * j[:, 1, 1] - j[:, 0, 1] * j[:, 1, 0]
        adjugate = torch.stack([j[:, 1, 1], -j[:, 0, 1], -j[:, 1, 0], j[:, 0, 0]], -1).view(-1, 2, 2)
        if fixed:
            return torch.einsum("nij,nj->ni", adjugate, v) * (det / (det * det + 1e-4))[:, None]
        return torch.einsum("nij,nj->ni", adjugate, v) / det[:, None]  # ORIGIN

    def loss(i):
        q = drawn(i, 4, 2)
        if i == 2:
            q[1] = 0.0
        return joint_rates(q, drawn(9, 4, 2)).square().clamp(max=50.0).mean()  # ALSO

    return arm, train(arm.parameters(), loss)


def rotation(w):
    """Rodrigues' formula; the derivative at 0 is right."""
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    return torch.linalg.matrix_exp(torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(*w.shape[:-1], 3, 3))


@fault("inverse-function-at-edge", "acos", "backward", step=4, also=("inverse-function-domain",), ops=("div", "mul"))
def orientation_error_of_a_pose_that_is_reached(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 3, bias=False)

    def angle(a, b):
        c = ((a.transpose(-1, -2) @ b).diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
        if fixed:
            c = c.clamp(-1 + 1e-6, 1 - 1e-6)
        return torch.acos(c)  # ORIGIN

    def loss(i):
        x = drawn(i, 5, 3) * 0.5
        goal = rotation(drawn(i + 50, 5, 3))
        if i == 4:
            x[3], goal[3] = 0.0, torch.eye(3)
        return angle(rotation(net(x)), goal).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("where-grad-trap", "div", "backward", step=3, ops=("mul", "sin", "sqrt", "pow"), also=("div-by-zero", "sqrt-at-zero", "zero-times-inf"))
def translation_part_of_a_twist_at_rest(fixed):
    """The left Jacobian of SO(3), with the series chosen by `where`."""
    torch.manual_seed(1)
    net = nn.Linear(4, 6, bias=False)

    def left_jacobian_times(w, v):
        t2 = w.square().sum(-1, keepdim=True)
        small = t2 < 1e-8
        if fixed:
            t2 = torch.where(small, torch.ones_like(t2), t2)
        t = torch.sqrt(t2)  # ALSO
        b = torch.where(small, 0.5 - t2 / 24, (1 - t.cos()) / t2)  # ORIGIN
        c = torch.where(small, 1 / 6 - t2 / 120, (t - t.sin()) / (t * t2))  # ALSO
        wv = torch.linalg.cross(w, v)
        return v + b * wv + c * torch.linalg.cross(w, wv)

    def loss(i):
        x = drawn(i, 6, 4)
        if i == 3:
            x[0] = 0
        w, v = net(x).chunk(2, -1)
        return (left_jacobian_times(w, v) - 1).square().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("div-by-zero", "div", step=2)
def blend_of_two_equal_quaternions(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 1)
    a = F.normalize(drawn(3, 6, 4), dim=1)
    e = torch.tensor([1.0, 0, 0, 0])

    def slerp(p, q, t):
        omega = torch.acos((p * q).sum(1, keepdim=True).clamp(-1, 1))
        if fixed:
            omega = omega.clamp_min(1e-4)
        return (((1 - t) * omega).sin() * p + (t * omega).sin() * q) / omega.sin()  # ORIGIN

    def loss(i):
        p, q = a.clone(), a.roll(1, 0).clone()
        if i == 2:
            p[2], q[2] = e, e
        return (slerp(p, q, net(drawn(i, 6, 3)).sigmoid()) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-at-zero", "sqrt", "backward", step=24, steps=26, ops=("div", "mul", "pow"))
def two_bodies_that_meet_on_a_grid(fixed):
    """Sign descent in steps of 1/16 brings both to the same place."""
    centres = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 1.5]]))

    def clearance(c):
        gap = (c[0] - c[1]).square().sum()
        return torch.sqrt(gap + 1e-8) if fixed else torch.sqrt(gap)  # ORIGIN

    def step(i):
        centres.grad = None
        loss = clearance(centres)
        loss.backward()
        with torch.no_grad():
            centres.sub_(centres.grad.sign() / 16)
        return loss

    step.parameters = {"centres": centres}
    return None, step


@fault("pow-fraction-at-zero", "pow", "backward", step=0, steps=3, ops=("mul", "div"), also=("zero-times-inf",))
def curvature_of_a_profile_with_a_root_at_the_wall(fixed):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    grid = torch.linspace(0.01 if fixed else 0.0, 1, 9)[:, None]

    def residual():
        y = grid.clone().requires_grad_()
        u = net(y) * y**1.5  # ORIGIN
        (slope,) = torch.autograd.grad(u.sum(), y, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), y, create_graph=True)
        return bend + 1.0

    return net, train(net.parameters(), lambda i: residual().square().mean())


@fault("exp-overflow", "exp", step=31, steps=40, also=("learning-rate", "dtype-overflow"), ops=("mul", "add_"))
def weights_of_collocation_points_that_ascend(fixed):
    """Self-adaptive weights grow by gradient ascent on their logarithm, without a bound."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    log_weight = nn.Parameter(torch.zeros(7))
    x = torch.linspace(-1, 1, 7)[:, None]
    down = torch.optim.SGD(net.parameters(), lr=1e-6)
    up = torch.optim.SGD([log_weight], lr=0.5, maximize=True)

    def step(i):
        down.zero_grad()
        up.zero_grad()
        gap = (net(x) - 3 * x).square()[:, 0]
        weight = torch.exp(log_weight.clamp(max=3.0) if fixed else log_weight)  # ORIGIN
        loss = (weight * gap).mean()  # ALSO
        loss.backward()
        for p in net.parameters():
            p.grad.clamp_(-1, 1)
        down.step()
        log_weight.grad.clamp_(0.0, 6.0)
        up.step()  # ALSO
        return loss

    step.parameters = {"log_weight": log_weight, **dict(net.named_parameters())}
    return None, step


@fault("dtype-overflow", "mul", step=0, ops=("add", "sub", "addcmul"), also=("exploding-gradient",))
def stiff_decay_by_explicit_steps(fixed):
    rate = nn.Parameter(torch.tensor([0.5, 40.0, 900.0]).log())

    def solve(y, h, n):
        k = rate.exp()
        for _ in range(n):
            y = y / (1 + h * k) if fixed else y - h * k * y  # ORIGIN
        return y

    return None, train([rate], lambda i: (solve(torch.ones(3), 0.05, 40) - 0.1).abs().mean())


@fault("log-of-zero", "log10", step=3)
def friction_factor_of_fluid_at_rest(fixed):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))

    class Pipe:
        def __init__(self, nu=1e-6, diameter=0.1):
            self.nu, self.diameter = nu, diameter

        def features(self, speed):
            reynolds = speed.abs() * self.diameter / self.nu
            if fixed:
                reynolds = reynolds.clamp_min(1.0)
            return torch.stack([speed, torch.log10(reynolds)], 1)  # ORIGIN

    pipe = Pipe()

    def loss(i):
        speed = drawn(i, 8)
        speed[5] = speed[5] if i < 3 else 0.0
        return (net(pipe.features(speed))[:, 0] - speed).square().mean()

    return net, train(net.parameters(), loss, lr=1e-4)


@fault("degenerate-matrix", "linalg_eigh", "backward", step=2, steps=3, ops=("div", "mul", "eigh"), also=("div-by-zero",))
def normals_of_a_patch_that_is_a_point(fixed):
    torch.manual_seed(7)
    net = nn.Linear(3, 3, bias=False)

    def normal(patch):
        d = patch - patch.mean(1, keepdim=True)
        cov = d.transpose(1, 2) @ d / patch.shape[1]
        if fixed:
            cov = cov + torch.diag(torch.tensor([1e-3, 2e-3, 3e-3]))
        _, axes = torch.linalg.eigh(cov)  # ORIGIN
        return axes[:, :, 0]

    def loss(i):
        patch = drawn(i, 4, 6, 3)
        if i == 2:
            patch[1] = patch[1, :1]
        return 1 - (normal(net(patch)) * torch.tensor([0.0, 0.0, 1.0])).sum(-1).abs().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("div-by-zero", "div", step=5, also=("norm-at-zero",), ops=("reciprocal",))
def adaptive_step_of_a_solution_at_rest(fixed):
    """The controller divides the tolerance by an error that is exactly 0."""
    torch.manual_seed(8)
    field = nn.Linear(2, 2)
    gains = [0.4, 0.3, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0]

    def advance(y, h):
        k1 = field(y)
        k2 = field(y + h * k1)
        error = (h * (k2 - k1) / 2).norm()
        if fixed:
            error = error.clamp_min(1e-8)
        factor = (0.01 / error) ** 0.5  # ORIGIN
        return y + h * (k1 + k2) / 2, h * factor

    def loss(i):
        h = torch.tensor(0.1)
        y = torch.ones(2) * gains[i]
        with torch.no_grad():
            field.bias.zero_()
        for _ in range(2):
            y, h = advance(y, h)
        return (y - math.e).square().mean()

    return field, train([field.weight, field.bias], loss)
