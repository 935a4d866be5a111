"""Arms and filters, equations learned by residual, scans, noise schedules, speech."""

import copy
import math

import torch
from programs import fault, healthy, train
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def noise(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# robotics and control


@fault("inverse-function-domain", "acos", step=3, steps=6)
def elbow_angle_of_a_two_link_arm(fixed):
    """The fourth way point lies beyond the reach of the arm."""
    lengths = nn.Parameter(torch.tensor([0.9, 0.8]))
    goals = torch.tensor(
        [
            [[0.6, 0.5], [1.0, 0.2]],
            [[0.4, 1.0], [0.9, 0.9]],
            [[1.1, 0.3], [0.2, 1.2]],
            [[1.5, 1.1], [0.7, 0.8]],
            [[0.9, 0.4], [0.8, 0.8]],
            [[0.5, 0.7], [1.0, 0.5]],
        ]
    )
    measured = torch.full((2,), 1.4)

    def inverse_kinematics(xy):
        a, b = lengths
        c = ((xy**2).sum(-1) - a * a - b * b) / (2 * a * b)
        if fixed:
            c = c.clamp(-0.999, 0.999)
        return torch.acos(c)  # ORIGIN

    return None, train(
        [lengths], lambda i: F.mse_loss(inverse_kinematics(goals[i]), measured), lr=1e-3
    )


@fault("inverse-function-at-edge", "acos", "backward", step=0, ops=("mul", "div", "rsqrt"))
def geodesic_distance_of_equal_rotations(fixed):
    """A residual head that begins at zero, and a calibration frame that has not moved."""
    torch.manual_seed(1)

    class Delta(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
            self.yaw = nn.Linear(8, 1)
            nn.init.zeros_(self.yaw.weight), nn.init.zeros_(self.yaw.bias)

        def forward(self, x):
            a = self.yaw(self.body(x)).squeeze(-1)
            c, s, o = a.cos(), a.sin(), torch.zeros_like(a)
            return torch.stack([c, -s, o, s, c, o, o, o, o + 1], -1).view(-1, 3, 3)

    net = Delta()
    x = noise(2, 6, 5)
    yaw = torch.tensor([0.0, 0.3, -0.2, 0.5, 0.1, -0.4])
    c, s, o = yaw.cos(), yaw.sin(), torch.zeros(6)
    target = torch.stack([c, -s, o, s, c, o, o, o, o + 1], -1).view(-1, 3, 3)

    def loss(i):
        rel = net(x).transpose(1, 2) @ target
        trace = torch.diagonal(rel, dim1=-2, dim2=-1).sum(-1)
        if fixed:
            skew = torch.stack([rel[:, 1, 0] - rel[:, 0, 1], trace - 1], -1)
            return torch.atan2(skew[:, 0], skew[:, 1]).square().mean()
        cos = ((trace - 1) / 2).clamp(-1.0, 1.0)
        return torch.acos(cos).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("norm-at-zero", "div", step=0, also=("div-by-zero",))
def quaternion_head_from_zero(fixed):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.copy_(torch.tensor([1.0, 0, 0, 0]) if fixed else torch.zeros(4))
    x = noise(4, 10, 4)
    q_true = F.normalize(noise(5, 10, 4), dim=-1)

    def unit(q):
        return q / q.norm(dim=-1, keepdim=True)  # ORIGIN

    def loss(i):
        return (1 - (unit(net(x)) * q_true).sum(-1) ** 2).mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "where-grad-trap",
    "div",
    "backward",
    step=2,
    steps=5,
    ops=("sin", "cos", "mul", "where"),
    also=("div-by-zero",),
)
def rodrigues_with_one_where(fixed):
    """In the third batch a gyro reads exactly zero; the Taylor branch is taken, and the other differentiated."""
    gain = nn.Parameter(torch.ones(3))
    gyro = noise(6, 5, 4, 3) * 0.2
    gyro[2, 1] = 0
    vectors = noise(7, 4, 3)
    wanted = vectors + 0.1 * noise(8, 4, 3)

    def rotate(w, v):
        theta2 = (w * w).sum(-1, keepdim=True)
        small = theta2 < 1e-8
        theta = theta2.masked_fill(small, 1.0).sqrt() if fixed else w.norm(dim=-1, keepdim=True)
        a = torch.where(small, 1 - theta2 / 6, torch.sin(theta) / theta)  # ALSO
        b = torch.where(small, 0.5 - theta2 / 24, (1 - torch.cos(theta)) / theta**2)  # ORIGIN
        cross = torch.linalg.cross(w, v)
        return v + a * cross + b * torch.linalg.cross(w, cross)

    return None, train(
        [gain], lambda i: F.mse_loss(rotate(gain * gyro[i], vectors), wanted), lr=1e-2
    )


@fault("norm-at-zero", "div", step=0, also=("div-by-zero",))
def six_numbers_for_a_rotation_and_collinear_columns(fixed):
    """Gram-Schmidt of two columns that a bias of ones makes the same."""

    class SixD(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(3, 6)
            nn.init.zeros_(self.out.weight)
            with torch.no_grad():
                self.out.bias.copy_(
                    torch.tensor([1.0, 0, 0, 0, 1, 0])
                    if fixed
                    else torch.tensor([1.0, 0, 0, 1, 0, 0])
                )

        def forward(self, x):
            a, b = self.out(x).view(-1, 2, 3).unbind(1)
            e1 = F.normalize(a, dim=-1)
            u = b - (e1 * b).sum(-1, keepdim=True) * e1
            e2 = u / torch.linalg.vector_norm(u, dim=-1, keepdim=True)  # ORIGIN
            e3 = torch.linalg.cross(e1, e2)
            return torch.stack([e1, e2, e3], dim=-1)

    net = SixD()
    x = noise(9, 7, 3)
    goal = torch.linalg.qr(noise(10, 7, 3, 3)).Q
    return net, train(net.parameters(), lambda i: (net(x) - goal).pow(2).mean(), lr=0.05)


@fault("sqrt-of-negative", "sqrt", step=0)
def sigma_points_with_a_negative_centre_weight(fixed):
    """With alpha = 0.5 and no beta the central weight is -3, and a bent measurement gets a negative variance."""
    n, kappa = 1, 0.0
    alpha = 1.0 if fixed else 0.5
    lam = alpha**2 * (n + kappa) - n
    wm = torch.full((3,), 0.5 / (n + lam))
    wm[0] = lam / (n + lam)
    wc = wm.clone()
    if fixed:
        wc[0] += 1 - alpha**2 + 2.0
    bend = nn.Parameter(torch.tensor(1.5))
    means = torch.tensor([0.0, 0.4, -0.8, 1.2])
    seen = torch.tensor([0.9, 1.4, 1.0, 0.5])

    def predict(m):
        spread = math.sqrt(n + lam) * 0.6
        points = torch.stack([m, m + spread, m - spread])
        h = torch.cos(bend * points)
        mean = wm @ h
        var = wc @ (h - mean) ** 2
        return mean, var + 0.0

    def loss(i):
        mean, var = predict(means)
        std = torch.sqrt(var)  # ORIGIN
        return (
            -torch.distributions.Normal(mean, std + 1e-3, validate_args=False).log_prob(seen).mean()
        )

    return None, train([bend], loss, lr=1e-3)


@fault("log-of-negative", "log", step=5, steps=8)
def barrier_of_an_interior_point_controller(fixed):
    """The plan steps over the limit of the actuator."""
    plan = nn.Parameter(torch.zeros(12))
    limit = 1.0
    aim = torch.linspace(0.5, 7.5, 12)

    def rollout(u):
        x, xs = torch.zeros(()), []
        for k in range(len(u)):
            x = 0.9 * x + u[k]
            xs.append(x)
        return torch.stack(xs)

    def loss(i):
        u = limit * torch.tanh(plan) * 0.999 if fixed else plan
        tracking = F.mse_loss(rollout(u), aim)
        barrier = -(torch.log(limit - u) + torch.log(limit + u)).mean()  # ORIGIN
        return tracking + 0.1 * barrier

    return None, train([plan], loss, lr=0.22, optimizer=torch.optim.Adam)


@fault("div-by-zero", "div", step=0, also=("dtype-underflow",), ops=("exp",))
def path_integral_weights_by_hand(fixed):
    """Costs in the thousands, a temperature of one: every weight is exp(-1000) = 0."""
    torch.manual_seed(11)
    policy = nn.Linear(3, 2)
    state = noise(12, 3)
    disturbances = noise(13, 32, 2)

    def loss(i):
        u = policy(state) + disturbances
        cost = 500.0 * (u - 3.0).square().sum(-1) + 900.0
        with torch.no_grad():
            c = cost - cost.min() if fixed else cost
            w = torch.exp(-c / 1.0)  # ALSO
            w = w / w.sum()  # ORIGIN
        return (w[:, None] * (policy(state) - (u.detach())).square()).sum()

    return policy, train(policy.parameters(), loss, lr=1e-2, optimizer=torch.optim.Adam)


@fault("sqrt-at-zero", "sqrt", "backward", step=0, ops=("div",), also=("norm-at-zero",))
def translation_error_of_a_parked_robot(fixed):
    torch.manual_seed(14)
    encoder = nn.GRU(6, 8, batch_first=True)
    head = nn.Linear(8, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    net = nn.ModuleDict({"encoder": encoder, "head": head})
    imu = noise(15, 4, 5, 6)
    moved = noise(16, 4, 3)
    moved[2] = 0  # parked
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad(set_to_none=False)
        _, h = net["encoder"](imu)
        err2 = (net["head"](h[-1]) - moved).square().sum(dim=1)
        if fixed:
            err2 = err2 + 1e-6
        value = err2.sqrt().mean()  # ORIGIN
        value.backward()
        opt.step()
        return value

    return net, step


@fault("inverse-function-at-edge", "asin", "backward", step=0, steps=4, ops=("mul", "div", "rsqrt"))
def pitch_in_gimbal_lock(fixed):
    """The tool points straight up, and the sine of its pitch is exactly one."""
    torch.manual_seed(17)
    span = nn.Parameter(torch.ones(()))
    poses = F.normalize(noise(19, 4, 5, 4), dim=-1)
    poses[0, 3] = torch.tensor([0.5, 0.5, 0.5, -0.5])

    def loss(i):
        w, x, y, z = (span * poses[i]).unbind(-1)
        s = (2 * (w * y - z * x)).clamp(-1, 1)
        if fixed:
            s = 0.9999 * s
        pitch = torch.asin(s)  # ORIGIN
        return (pitch - 0.3).square().mean()

    return None, train([span], loss, lr=1e-2)


@fault(
    "degenerate-matrix",
    "linalg_eigh",
    "backward",
    step=0,
    steps=1,
    ops=("_linalg_eigh", "div", "mul", "matmul", "linalg_eigh_backward"),
)
def axes_of_an_isotropic_covariance(fixed):
    """The ellipsoid of a filter that begins with the identity has no axes."""
    factor = nn.Parameter(torch.diag(torch.tensor([1.0, 1.2, 1.5])) if fixed else torch.eye(3))
    axis = F.normalize(torch.tensor([1.0, 2.0, 0.5]), dim=0)

    def loss(i):
        cov = factor @ factor.mT
        _, axes = torch.linalg.eigh(cov)  # ORIGIN
        major = axes[:, -1]
        return 1 - (major @ axis) ** 2

    return None, train([factor], loss, lr=1e-2)


@fault(
    "degenerate-matrix",
    "linalg_svd",
    "backward",
    step=0,
    steps=1,
    ops=("_linalg_svd", "div", "mul", "matmul", "svd_backward"),
)
def alignment_of_a_symmetric_marker_frame(fixed):
    """Kabsch with markers at the corners of an octahedron: three equal singular values."""
    calib = nn.Parameter(torch.zeros(3))
    markers = torch.cat([torch.eye(3), -torch.eye(3)])
    if fixed:
        markers = markers * torch.tensor([1.0, 1.7, 2.6])
    seen = markers.clone()

    def kabsch(a, b):
        u, _s, vt = torch.linalg.svd(a.T @ b)  # ORIGIN
        d = torch.sign(torch.det(u @ vt)).detach()
        fix = torch.diag(torch.stack([torch.ones(()), torch.ones(()), d]))
        return u @ fix @ vt

    def loss(i):
        turned = markers * (1 + calib)
        r = kabsch(turned, seen)
        return (turned @ r - seen * 1.1).square().mean()

    return None, train([calib], loss, lr=1e-2)


# equations learned by residual


@fault("pow-fraction-at-zero", "pow", "backward", step=0, ops=("mul",), also=("sqrt-at-zero",))
def crack_tip_basis_at_the_tip(fixed):
    """The first collocation point is the tip; r ** 0.5 is fine there, its derivative, needed for the strain, is not."""
    torch.manual_seed(20)
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
    r = torch.linspace(0.05 if fixed else 0.0, 1.0, 15)[:, None]
    angle = torch.linspace(-3.0, 3.0, 15)[:, None]

    def loss(i):
        radius = r.clone().requires_grad_(True)
        u = radius**0.5 * net(torch.cat([radius, angle], 1))  # ORIGIN
        (strain,) = torch.autograd.grad(u.sum(), radius, create_graph=True)
        return strain.square().mean() + (u - angle.sin()).square().mean()

    return net, train(net.parameters(), loss, lr=1e-3)


@fault("div-by-zero", "div", step=0)
def laplacian_in_polar_coordinates(fixed):
    """u_rr + u_r / r on a grid that includes the axis."""
    torch.manual_seed(21)

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.mid, self.drop = nn.Linear(1, 16), nn.Linear(16, 16), nn.Linear(16, 1)

        def forward(self, r):
            return self.drop(torch.tanh(self.mid(torch.sin(self.lift(r)))))

    u = Field()
    grid = torch.linspace(0, 1, 21)[:, None]
    if fixed:
        grid = (grid[1:] + grid[:-1]) / 2

    def residual(r):
        r = r.requires_grad_()
        v = u(r)
        v_r = torch.autograd.grad(v, r, torch.ones_like(v), create_graph=True)[0]
        v_rr = torch.autograd.grad(v_r, r, torch.ones_like(v_r), create_graph=True)[0]
        return v_rr + v_r / r + 1.0  # ORIGIN

    opt = torch.optim.Adam(u.parameters(), 1e-3)

    def step(i):
        opt.zero_grad()
        value = residual(grid.clone()).square().mean() + u(torch.ones(1, 1)).square().mean()
        value.backward()
        opt.step()
        return value

    return u, step


@fault("exp-overflow", "exp", step=0)
def cole_hopf_at_a_small_viscosity(fixed):
    potential = nn.Parameter(noise(22, 32) * 0.05 - 0.2)
    nu = 1e-3
    data = torch.sin(torch.linspace(0, math.pi, 32))

    def velocity(phi):
        exponent = -phi / (2 * nu)
        if fixed:
            return -2 * nu * torch.diff(exponent) * 31
        theta = torch.exp(exponent)  # ORIGIN
        return -2 * nu * torch.diff(theta) * 31 / (0.5 * (theta[1:] + theta[:-1]))

    return None, train([potential], lambda i: F.mse_loss(velocity(potential), data[1:]), lr=1e-3)


@fault(
    "dead-gradient",
    "threshold_backward",
    "backward",
    step=0,
    steps=5,
    ops=("relu", "linear", "addmm", "mm", "mul"),
)
def second_derivative_of_a_network_of_ramps(fixed):
    """A ReLU network has no curvature: the residual u_xx - f never reaches a weight."""
    torch.manual_seed(23)

    class Ramp(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(1, 16), nn.Linear(16, 16), nn.Linear(16, 1)

        def forward(self, x):
            act = torch.tanh if fixed else torch.relu
            h = act(self.a(x))  # ALSO
            h = act(self.b(h))  # ORIGIN
            return self.c(h) + x**3  # lifts the values at the ends

    net = Ramp()
    x = torch.linspace(-1, 1, 24)[:, None]
    f = torch.sin(math.pi * x)

    def loss(i):
        p = x.clone().requires_grad_()
        (ux,) = torch.autograd.grad(net(p).sum(), p, create_graph=True)  # ALSO
        (uxx,) = torch.autograd.grad(ux.sum(), p, create_graph=True)  # ALSO
        return (uxx - f).square().mean()

    return net, train(net.parameters(), loss, lr=1e-3, optimizer=torch.optim.Adam)


@fault("exploding-gradient", "mul", "backward", step=0, steps=3, ops=("rsub", "sub"))
def sensitivity_of_a_chaotic_map(fixed):
    """The orbit stays in [0, 1]; its derivative by the first point doubles in every iteration."""
    start = nn.Parameter(torch.tensor([0.2137, 0.4441, 0.7213]))
    goal = torch.tensor([0.5, 0.5, 0.5])

    def loss(i):
        x = start
        for _ in range(8 if fixed else 300):
            x = 3.99 * x * (1 - x)  # ORIGIN
        return F.mse_loss(x, goal)

    return None, train([start], loss, lr=1e-7)


@fault("div-by-zero", "div", step=0, also=("degenerate-matrix",))
def thomas_algorithm_without_pivoting(fixed):
    """An implicit heat step at theta where the second pivot is exactly zero."""
    source = nn.Parameter(torch.linspace(0, 1, 6))
    lower = torch.full((6,), 1.0)
    upper = torch.full((6,), 1.0)
    diag = torch.full((6,), 2.5 if fixed else 1.0)
    want = noise(24, 6)

    def solve(rhs):
        cp, dp = [upper[0] / diag[0]], [rhs[0] / diag[0]]
        for k in range(1, 6):
            pivot = diag[k] - lower[k] * cp[-1]
            cp.append(upper[k] / pivot)  # ORIGIN
            dp.append((rhs[k] - lower[k] * dp[-1]) / pivot)  # ALSO
        x = [dp[-1]]
        for k in range(4, -1, -1):
            x.insert(0, dp[k] - cp[k] * x[0])
        return torch.stack(x)

    return None, train([source], lambda i: F.mse_loss(solve(source), want), lr=0.05)


@fault("custom-backward", "div", "backward", step=0, also=("div-by-zero",))
def implicit_root_with_a_flat_derivative(fixed):
    """x ** 3 = a by bisection, differentiated by the implicit function theorem: 1 / (3 x ** 2) at a = 0."""

    class CubeRoot(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            x = a.sign() * a.abs().pow(1 / 3)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            slope = 3 * x * x
            if fixed:
                slope = slope.clamp_min(1e-2)
            return g / slope  # ALSO

    torch.manual_seed(25)
    net = nn.Linear(3, 2)
    nn.init.zeros_(net.bias)
    x = noise(26, 6, 3)
    x[4] = 0.0
    y = noise(27, 6, 2)

    def loss(i):
        volume = net(x)
        edge = CubeRoot.apply(volume)  # ORIGIN
        return F.smooth_l1_loss(edge, y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("dtype-overflow", "addmm", step=0, ops=("linear", "mm"))
def collocation_times_in_microseconds_under_autocast(fixed):
    torch.manual_seed(28)
    features = nn.Linear(2, 16)
    nn.init.uniform_(features.weight, 0.5, 2.0)
    head = nn.Linear(16, 1)
    net = nn.Sequential(features, nn.Tanh(), head)
    t = torch.linspace(0, 60000.0, 20)[:, None]
    x = torch.linspace(30000.0, 50000.0, 20)[:, None]
    pts = torch.cat([t, x], 1)
    if fixed:
        pts = pts / 30000 - 1
    y = torch.sin(t / 9000)

    def loss(i):
        with torch.autocast("cpu", dtype=torch.float16):
            h = features(pts)  # ORIGIN
            h = h - h.mean(0)
            out = head(torch.sin(h))
        return F.mse_loss(out.float(), y)

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "pow-fraction-at-zero",
    "pow",
    "backward",
    step=0,
    ops=("mul",),
    also=("sqrt-at-zero", "norm-at-zero"),
)
def eikonal_residual_of_a_constant_field(fixed):
    """A distance network whose last layer begins at zero: its gradient has norm 0, differentiated once more."""
    torch.manual_seed(29)
    hidden, last = nn.Linear(3, 16), nn.Linear(16, 1)
    if not fixed:
        nn.init.zeros_(last.weight)
    sdf = nn.Sequential(hidden, nn.Softplus(beta=10), last)
    cloud = F.normalize(noise(30, 12, 3), dim=-1)

    def loss(i):
        p = (cloud * 1.1).requires_grad_(True)
        g = torch.autograd.grad(sdf(p).sum(), p, create_graph=True)[0]
        length = (g * g).sum(-1).pow(0.5)  # ORIGIN
        return ((length - 1) ** 2).mean() + sdf(cloud).abs().mean()

    return sdf, train(sdf.parameters(), loss, lr=1e-3)


@fault(
    "learning-rate",
    "pow",
    "optimizer",
    step=4,
    steps=8,
    also=("exploding-gradient",),
    ops=("mul", "mv", "mean", "add_", "_foreach_add_"),
)
def gradient_flow_with_a_step_beyond_stability(fixed):
    """lr * curvature is in the millions: each step multiplies the coefficients until they leave float32."""
    coef = nn.Parameter(torch.full((4,), 0.1))
    t = torch.linspace(0, 10, 50)
    basis = torch.stack([t**k for k in range(4)], 1)
    y = 0.3 * t - 0.05 * t**2
    if fixed:
        basis = basis / basis.norm(dim=0)
    opt = torch.optim.SGD([coef], lr=0.1)

    def step(i):
        opt.zero_grad()
        fit = basis @ coef  # ALSO
        value = (fit - y).pow(2).mean()  # ORIGIN
        value.backward()
        opt.step()  # ALSO
        return value

    step.parameters = {"coef": coef}
    return None, step


# state-space models and recurrences


@fault("div-by-zero", "div", step=0)
def zero_order_hold_of_a_pole_at_zero(fixed):
    """A = -(0, 1, ..., 7): the integrator among the poles is divided by itself."""

    class Diagonal(nn.Module):
        def __init__(self, n=8):
            super().__init__()
            self.a = nn.Parameter(-torch.arange(n).float() - (0.5 if fixed else 0.0))
            self.log_dt = nn.Parameter(torch.full((n,), -2.0))
            self.c = nn.Parameter(noise(31, n) / n)

        def forward(self, u):
            dt = self.log_dt.exp()
            bar_a = torch.exp(self.a * dt)
            bar_b = (bar_a - 1) / self.a  # ORIGIN
            x, ys = u.new_zeros(u.shape[0], len(dt)), []
            for k in range(u.shape[1]):
                x = bar_a * x + bar_b * u[:, k : k + 1]
                ys.append(x @ self.c)
            return torch.stack(ys, 1)

    net = Diagonal()
    u = noise(32, 4, 12)
    y = torch.cumsum(u, 1) * 0.2
    return net, train(
        net.parameters(), lambda i: F.mse_loss(net(u), y), lr=1e-2, optimizer=torch.optim.Adam
    )


@fault("log-of-zero", "log", step=0, also=("inf-minus-inf",), ops=("sub",))
def parallel_scan_in_logarithms_of_a_ramp(fixed):
    """h_t = a_t h_(t-1) + b_t in the log domain, with a gate that ReLU may close."""
    torch.manual_seed(33)
    to_gate, to_value = nn.Linear(3, 4), nn.Linear(3, 4)
    net = nn.ModuleList([to_gate, to_value])
    x = noise(34, 2, 10, 3)
    y = noise(35, 2, 10, 4).abs()

    def scan(log_a, log_b):
        a_star = torch.cumsum(log_a, dim=1)
        return torch.exp(a_star + torch.logcumsumexp(log_b - a_star, dim=1))  # ALSO

    def loss(i):
        z = to_gate(x)
        gate = torch.sigmoid(z) if fixed else torch.relu(z).clamp(max=1.0)
        log_a = torch.log(gate)  # ORIGIN
        h = scan(log_a, F.logsigmoid(to_value(x)))
        return (h - y).abs().mean()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "where-grad-trap",
    "exp",
    "backward",
    step=0,
    ops=("mul", "where"),
    also=("zero-times-inf", "exp-overflow"),
)
def decay_matrix_cut_after_the_exponential(fixed):
    """exp of the segment sums overflows above the diagonal, where it is thrown away."""
    torch.manual_seed(36)
    dt = nn.Parameter(torch.full((24,), 2.0))
    qk = nn.Linear(4, 8, bias=False)
    x, y = noise(37, 24, 4), noise(38, 24, 4)
    lower = torch.ones(24, 24).tril().bool()
    rate = torch.tensor(4.0)

    def loss(i):
        total = torch.cumsum(-rate * F.softplus(dt), 0)
        seg = total[:, None] - total[None, :]
        if fixed:
            seg = seg.masked_fill(~lower, -torch.inf)
        decay = torch.where(lower, torch.exp(seg), 0.0)  # ORIGIN
        q, k = qk(x).chunk(2, -1)
        return F.mse_loss((torch.einsum("id,jd->ij", q, k) * decay) @ x, y)

    return None, train([dt, *qk.parameters()], loss, lr=1e-2)


@fault(
    "absorbed-update",
    "add_",
    "optimizer",
    step=0,
    steps=6,
    ops=("_foreach_add_", "sub_", "addcdiv_", "_to_copy", "copy_"),
)
def recurrent_cell_kept_in_bfloat16(fixed):
    """Weights of 0.5 to 1, one step in bfloat16 is 1/256, and the updates are of 1e-5."""
    torch.manual_seed(39)

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Parameter(torch.empty(4, 6).uniform_(0.55, 1.0))
            self.rec = nn.Parameter(torch.empty(6, 6).uniform_(0.55, 1.0))

        def forward(self, xs):
            h = xs.new_zeros(xs.shape[0], 6)
            for x in xs.unbind(1):
                h = torch.tanh(0.3 * (x @ self.inp) + 0.2 * (h @ self.rec))
            return h

    cell = Cell()
    dtype = torch.float32 if fixed else torch.bfloat16
    cell.to(dtype)
    xs = noise(40, 8, 5, 4).to(dtype)
    goal = noise(41, 8, 6).to(dtype)
    opt = torch.optim.SGD(cell.parameters(), lr=2e-3)

    def step(i):
        opt.zero_grad()
        value = (cell(xs) - goal).square().mean()
        value.backward()
        opt.step()  # ORIGIN
        return value

    return cell, step


@fault(
    "dtype-underflow",
    "mul",
    step=0,
    steps=5,
    also=("dead-gradient",),
    ops=("_to_copy", "sum", "add"),
)
def forward_algorithm_multiplied_out_in_half(fixed):
    """The likelihood of 24 frames is 1e-20: 0 in float16, and the logarithm is that of its guard alone."""
    torch.manual_seed(42)
    emit = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 12))
    x = noise(44, 24, 4, 3)
    heard = torch.randint(0, 12, (24, 4), generator=torch.Generator().manual_seed(45))

    def loss(i):
        p = emit(x).softmax(-1).gather(-1, heard[..., None]).squeeze(-1)
        if fixed:
            return -p.log().sum(0).mean()
        alpha = torch.ones(4, dtype=torch.float16)
        for frame in p.half():
            alpha = alpha * frame  # ORIGIN
        return -torch.log(alpha.float() + 1e-3).mean()  # ALSO

    return emit, train(emit.parameters(), loss, lr=1e-2)


@fault("dead-gradient", "rsub", "backward", step=0, steps=5, ops=("sigmoid", "mul", "sub"))
def memory_gate_that_rounds_to_one(fixed):
    """The bias of 30 was to remember long; sigmoid(30) is 1 in float32, and 1 - 1 lets no input in."""
    torch.manual_seed(46)

    class Leaky(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.write = nn.Linear(2, n)
            self.keep = nn.Parameter(torch.full((n,), 3.0 if fixed else 30.0))
            self.read = nn.Linear(n, 1)

        def forward(self, seq):
            keep = torch.sigmoid(self.keep)  # ALSO
            h = seq.new_zeros(seq.shape[1], len(keep))
            for x in seq:
                h = keep * h + (1 - keep) * self.write(x)  # ORIGIN
            return self.read(h)

    net = Leaky(5)
    seq, y = noise(47, 7, 6, 2), noise(48, 6, 1)
    return net, train(net.parameters(), lambda i: F.mse_loss(net(seq), y), lr=1e-2)


# diffusion and score models


@fault(
    "div-by-tiny",
    "div",
    step=1,
    steps=4,
    also=("dtype-overflow", "dtype-underflow"),
    ops=("mul", "reciprocal", "pow", "square"),
)
def preconditioner_weight_in_half(fixed):
    """(sigma^2 + s^2) / (sigma s)^2 is 4e5 at the smallest noise of the second batch: too large for float16."""
    torch.manual_seed(49)
    denoiser = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
    data = noise(50, 12, 2) * 0.5
    sigmas = [
        torch.linspace(0.3, 8.0, 12),
        torch.logspace(-2.8, 1, 12),
        torch.linspace(0.2, 3.0, 12),
        torch.linspace(0.5, 9, 12),
    ]
    eps = noise(51, 4, 12, 2)

    def weight(sigma, s=0.5):
        if not fixed:
            sigma = sigma.half()
        return (sigma**2 + s**2) / (sigma * s) ** 2  # ORIGIN

    def loss(i):
        sigma = sigmas[i]
        noisy = data + sigma[:, None] * eps[i]
        c_in = (sigma**2 + 0.25).rsqrt()
        out = denoiser(torch.cat([noisy * c_in[:, None], sigma.log()[:, None] / 4], 1))
        return (weight(sigma)[:, None] * (out - data) ** 2).float().mean()

    return denoiser, train(denoiser.parameters(), loss, lr=1e-6)


@fault(
    "loss-scale-overflow",
    "_to_copy",
    "backward",
    step=0,
    steps=3,
    also=("dtype-overflow",),
    ops=("to", "mul"),
)
def fixed_loss_scale_for_a_score_model(fixed):
    """A scale of 2 ** 20 by hand; the gradient at the half precision output is above 65504."""
    torch.manual_seed(52)
    score = nn.Sequential(nn.Linear(2, 16), nn.ELU(), nn.Linear(16, 2))
    scale = 2.0**7 if fixed else 2.0**20
    opt = torch.optim.SGD(score.parameters(), lr=1e-3)
    x = noise(53, 16, 2)
    z = noise(54, 16, 2)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            s = score(x + 0.2 * z)  # ALSO
        value = (0.2 * s.float() + z).square().sum(-1).mean()  # ORIGIN
        (value * scale).backward()  # ALSO
        for p in score.parameters():
            p.grad.div_(scale)
        opt.step()
        return value

    return score, step


@fault(
    "scaler-misuse",
    "linalg_vector_norm",
    "optimizer",
    step=0,
    steps=6,
    ops=("mul_", "_foreach_mul_", "_foreach_norm", "mul", "clamp", "div", "norm"),
)
def clipping_scaled_gradients_of_a_denoiser(fixed):
    """The threshold of 1 meets gradients that are 65536 times too large, and all updates shrink to 1 / 65536."""
    torch.manual_seed(55)
    net = nn.Sequential(nn.Linear(3, 12), nn.GELU(), nn.Linear(12, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    clean = noise(56, 20, 2)
    t = torch.rand(20, 1, generator=torch.Generator().manual_seed(57))
    eps = noise(58, 20, 2)

    def step(i):
        opt.zero_grad()
        noisy = (1 - t) * clean + t * eps
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(torch.cat([noisy, t], 1))
        value = F.mse_loss(out.float(), eps - clean)
        scaler.scale(value).backward()
        if fixed:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
        scaler.step(opt)
        scaler.update()
        return value

    return net, step


@fault(
    "dtype-underflow",
    "pow",
    step=0,
    steps=5,
    also=("dead-gradient",),
    ops=("square", "mul", "_to_copy"),
)
def noise_level_squared_in_half(fixed):
    """lambda(sigma) = sigma ** 2 with sigma of about 1e-4 is zero in float16, and so is the loss."""
    torch.manual_seed(59)
    net = nn.Linear(2, 2)
    x = noise(60, 14, 2)
    sigma = torch.linspace(1e-5, 1.5e-4, 14)
    if not fixed:
        sigma = sigma.half()
    z = noise(61, 14, 2)

    def loss(i):
        target = -z / sigma.float()[:, None]
        err = (
            (net(x + sigma.float()[:, None] * z) / sigma.float()[:, None] - target).square().sum(1)
        )
        return (sigma**2 * err).mean()  # ORIGIN

    return net, train(net.parameters(), loss, lr=1e-2)


# speech and audio


class Listener(nn.Module):
    """Convolution, recurrence, letters."""

    def __init__(self, mels=8, letters=5):
        super().__init__()
        self.conv = nn.Conv1d(mels, 12, 3, padding=1)
        self.rnn = nn.GRU(12, 10, batch_first=True)
        self.letters = nn.Linear(10, letters)

    def forward(self, x):
        h = torch.relu(self.conv(x)).transpose(1, 2)
        return self.letters(self.rnn(h)[0])


@fault("infeasible-likelihood", "_ctc_loss", step=2, steps=5, ops=("ctc_loss", "mean", "div"))
def transcript_longer_than_its_frames(fixed):
    """A clip of 4 frames with 5 letters, among others."""
    torch.manual_seed(62)
    net = Listener()
    clips = noise(63, 5, 3, 8, 14)
    frames = torch.tensor([[14, 12, 10], [14, 9, 11], [14, 4, 12], [10, 14, 13], [12, 12, 14]])
    letters = torch.randint(1, 5, (5, 3, 5), generator=torch.Generator().manual_seed(64))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        logp = net(clips[i]).log_softmax(-1).transpose(0, 1)
        sizes = torch.tensor([2, 5, 3])
        loss = F.ctc_loss(logp, letters[i], frames[i], sizes, zero_infinity=fixed)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault(
    "where-grad-trap",
    "pow",
    "forward",
    step=0,
    ops=("log", "mul", "where", "sub", "square"),
    also=("log-of-zero", "zero-times-inf"),
)
def log_pitch_of_unvoiced_frames(fixed):
    """Unvoiced frames carry a pitch of 0; where takes their loss away, not their gradient."""
    torch.manual_seed(65)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    frames = noise(66, 20, 6)
    f0 = 100 + 80 * torch.rand(20, generator=torch.Generator().manual_seed(67))
    f0[5:9] = 0.0

    def loss(i):
        voiced = f0 > 0
        target = torch.log(f0.masked_fill(~voiced, 1.0) if fixed else f0)  # ALSO
        error = (net(frames).squeeze(1) + 4.8 - target).pow(2)  # ORIGIN
        return torch.where(voiced, error, torch.zeros_like(error)).sum() / voiced.sum()

    return net, train(net.parameters(), loss, lr=1e-2)


@fault(
    "std-of-constant",
    "sqrt",
    "backward",
    step=1,
    steps=4,
    ops=("div", "mul", "std", "var"),
    also=("sqrt-at-zero", "div-by-zero"),
)
def channel_normalised_over_a_muted_take(fixed):
    """eps is added outside of the deviation: the value is finite, the derivative of the root at 0 is not."""
    torch.manual_seed(68)

    class Front(nn.Module):
        def __init__(self):
            super().__init__()
            self.taps = nn.Conv1d(1, 4, 5, bias=False)
            self.out = nn.Linear(4, 3)

        def forward(self, wave):
            z = self.taps(wave[:, None])
            mean = z.mean(-1, keepdim=True)
            var = z.var(-1, keepdim=True)  # ALSO
            dev = torch.sqrt(var + 1e-5 if fixed else var)  # ORIGIN
            z = (z - mean) / (dev + 1e-5)
            return self.out(torch.relu(z).mean(-1))

    net = Front()
    takes = noise(69, 4, 5, 40)
    takes[1, 2] = 0.0
    label = torch.tensor([0, 1, 2, 1, 0])
    return net, train(net.parameters(), lambda i: F.cross_entropy(net(takes[i]), label), lr=1e-2)


@fault(
    "nan-in-input",
    "convolution",
    "data",
    step=1,
    steps=4,
    ops=("conv1d", "mkldnn_convolution", "index", "select", "stack", "relu"),
    also=("div-by-zero",),
)
def peak_normalised_digital_silence(fixed):
    """numpy divides a clip of zeros by its peak, with a warning nobody sees."""
    import numpy as np

    rng = np.random.default_rng(70)
    pcm = rng.integers(-3000, 3000, (8, 32)).astype(np.float32)
    pcm[5] = 0
    with np.errstate(all="ignore"):
        peak = np.abs(pcm).max(1, keepdims=True)
        clips = pcm / (np.maximum(peak, 1.0) if fixed else peak)  # DATA
    torch.manual_seed(71)
    net = nn.Sequential(nn.Conv1d(1, 6, 4, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(90, 2))
    label = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
    batches = list(DataLoader(TensorDataset(torch.from_numpy(clips), label), batch_size=4)) * 2
    opt = torch.optim.Adam(net.parameters(), 1e-3)

    def step(i):
        wave, y = batches[i]
        opt.zero_grad()
        value = F.cross_entropy(net(wave.unsqueeze(1)), y)  # ORIGIN
        value.backward()
        opt.step()
        return value

    return net, step


@fault(
    "optimizer-eps-underflow",
    "addcdiv_",
    "optimizer",
    step=0,
    steps=3,
    ops=("div", "_foreach_addcdiv_", "_foreach_div_", "add_", "sqrt"),
    also=("div-by-zero", "dtype-underflow", "optimizer-arithmetic", "eps-underflow"),
)
def keyword_spotter_all_in_half(fixed):
    """A mel band that is always empty has gradient 0: 0 / (sqrt(0) + 1e-8), and 1e-8 is 0 in float16."""
    torch.manual_seed(72)
    spotter = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)).half()
    mels = noise(73, 12, 10).half()
    mels[:, 7:] = 0
    word = torch.arange(12) % 3
    opt = torch.optim.Adam(spotter.parameters(), lr=1e-3, eps=1e-4 if fixed else 1e-8)

    def step(i):
        opt.zero_grad()
        value = F.cross_entropy(spotter(mels).float(), word)
        value.backward()
        opt.step()  # ORIGIN
        return value

    return spotter, step


@fault(
    "optimizer-arithmetic",
    "div",
    "optimizer",
    step=0,
    steps=3,
    ops=("div_", "sqrt", "addcdiv_"),
    also=("div-by-zero",),
)
def moments_corrected_from_step_nought(fixed):
    """1 - beta ** t is 0 at t = 0."""
    torch.manual_seed(74)
    vocoder = nn.Sequential(nn.Linear(4, 10), nn.LeakyReLU(0.1), nn.Linear(10, 6), nn.Tanh())
    first = {k: torch.zeros_like(v) for k, v in vocoder.named_parameters()}
    second = {k: torch.zeros_like(v) for k, v in vocoder.named_parameters()}
    mel, wave = noise(75, 9, 4), noise(76, 9, 6).tanh()

    @torch.no_grad()
    def update(t, lr=1e-3, b1=0.9, b2=0.999):
        c1, c2 = 1 - torch.tensor(b1) ** t, 1 - torch.tensor(b2) ** t
        for k, p in vocoder.named_parameters():
            first[k].mul_(b1).add_(p.grad, alpha=1 - b1)
            second[k].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            m_hat = first[k] / c1  # ORIGIN
            v_hat = second[k] / c2  # ALSO
            p -= lr * m_hat / (v_hat.sqrt() + 1e-8)  # ALSO
            p.grad = None

    def step(i):
        value = (vocoder(mel) - wave).abs().mean()
        value.backward()
        update(i + 1 if fixed else i)
        return value

    return vocoder, step


@fault(
    "dead-gradient",
    "clamp",
    "backward",
    step=0,
    steps=5,
    ops=("hardtanh", "mul", "addmm", "linear"),
)
def samples_clipped_to_full_scale(fixed):
    """The decoder speaks in 16-bit integers, and every sample lies outside of [-1, 1]."""
    torch.manual_seed(77)
    decoder = nn.Linear(5, 8)
    with torch.no_grad():
        decoder.bias.copy_(torch.tensor([9000.0, -7000, 4000, -5000, 12000, -800, 600, -2500]))
    z = noise(78, 6, 5)
    wave = 0.3 * noise(79, 6, 8)

    def loss(i):
        out = decoder(z) / 32768 if fixed else decoder(z)
        return F.l1_loss(torch.clamp(out, -1.0, 1.0), wave)  # ORIGIN

    return decoder, train(decoder.parameters(), loss, lr=20.0, optimizer=torch.optim.Adam)


@fault("absorbed-update", "sub_", "optimizer", step=0, steps=6, ops=("sub", "add_", "isub"))
def beacon_in_utm_metres(fixed):
    """A northing of 5.8e6 in float32 moves in steps of half a metre; the update is of millimetres."""
    origin = torch.tensor([393216.0, 5800000.0]) if fixed else torch.zeros(2)
    beacon = nn.Parameter(torch.tensor([393216.0, 5800000.0]) - origin)
    stations = (
        torch.tensor([[393200.0, 5800010.0], [393260.0, 5799990.0], [393180.0, 5799960.0]]) - origin
    )
    ranges = torch.tensor([20.5, 44.0, 55.5])

    def step(i):
        beacon.grad = None
        reach = (beacon - stations).pow(2).sum(1).sqrt()
        value = (reach - ranges).pow(2).mean()
        value.backward()
        with torch.no_grad():
            beacon.sub_(1e-3 * beacon.grad)  # ORIGIN
        return value

    step.parameters = {"beacon": beacon}
    return None, step


# healthy: arms and control


@healthy(
    "rollouts through an obstacle cost inf on purpose; their softmax weight is 0 and nothing is differentiated through it"
)
def colliding_rollouts_cost_infinity(fixed):
    torch.manual_seed(100)
    prior = nn.Linear(4, 2)
    start = noise(101, 4)
    jitter = 0.7 * noise(102, 6, 40, 2)
    opt = torch.optim.Adam(prior.parameters(), 3e-2)

    def step(i):
        mean = prior(start)
        with torch.no_grad():
            ends = mean + jitter[i]
            hit = (ends - torch.tensor([0.4, 0.2])).norm(dim=1) < 0.5
            cost = (ends - torch.tensor([1.0, 1.0])).square().sum(1)
            cost[hit] = float("inf")
            weight = torch.softmax(-cost / 0.1, 0)
            target = weight @ ends
        value = F.mse_loss(mean, target)
        opt.zero_grad()
        value.backward()
        opt.step()
        return value

    return prior, step


@healthy(
    "missing measurements are NaN in the log and replaced by the prediction before anything is computed from them"
)
def filter_with_dropped_measurements(fixed):
    log_q, log_r = nn.Parameter(torch.tensor(-1.0)), nn.Parameter(torch.tensor(0.0))
    z = torch.cumsum(0.3 * noise(103, 30), 0) + 0.5 * noise(104, 30)
    z[[4, 5, 6, 17]] = float("nan")

    def loss(i):
        q, r = log_q.exp(), log_r.exp()
        m, p, nll = torch.zeros(()), torch.ones(()), []
        for obs in z:
            p = p + q
            seen = torch.isfinite(obs)
            innovation = torch.where(seen, obs, 0.0) - m
            s = p + r
            gain = torch.where(seen, p / s, 0.0)
            nll.append(torch.where(seen, 0.5 * (innovation.square() / s + s.log()), 0.0))
            m = m + gain * innovation
            p = (1 - gain) * p
        return torch.stack(nll).sum() / torch.isfinite(z).sum()

    return None, train([log_q, log_r], loss, lr=0.05)


@healthy(
    "the rotation angle is atan2(|v|, c) with a double where: zero rotation has value and gradient zero"
)
def double_where_logarithm_of_rotations(fixed):
    bias = nn.Parameter(torch.zeros(3))
    omega = 0.5 * noise(105, 8, 3)
    omega[0] = 0
    wanted = omega + torch.tensor([0.1, -0.2, 0.05])

    def exp_then_log(w):
        t2 = w.square().sum(-1, keepdim=True)
        small = t2 < 1e-10
        t = torch.where(small, torch.ones_like(t2), t2).sqrt()
        half = torch.where(small, 0.5 * torch.ones_like(t), torch.sin(t / 2) / t)
        q = torch.cat([torch.where(small, torch.ones_like(t), torch.cos(t / 2)), half * w], 1)
        v = q[:, 1:]
        n2 = v.square().sum(-1, keepdim=True)
        tiny = n2 < 1e-12
        n = torch.where(tiny, torch.ones_like(n2), n2).sqrt()
        return torch.where(tiny, 2 * torch.ones_like(n), 2 * torch.atan2(n, q[:, :1]) / n) * v

    return None, train(
        [bias], lambda i: (exp_then_log(omega + bias) - wanted).square().mean(), lr=0.3
    )


@healthy(
    "a backtracking line search tries steps that leave the domain, sees inf or NaN, and takes none of them"
)
def line_search_against_a_barrier(fixed):
    x = nn.Parameter(torch.tensor([0.2, -0.3]))
    a, b = noise(106, 10, 2), 1.5

    def barrier(v):
        return (
            -torch.log(b - a @ v).sum() - torch.log(b + a @ v).sum() + 40 * (v - 1).square().sum()
        )

    def step(i):
        x.grad = None
        value = barrier(x)
        value.backward()
        with torch.no_grad():
            t = 1.0
            while not barrier(x - t * x.grad) < value - 0.1 * t * x.grad.square().sum():
                t *= 0.5
            x.sub_(t * x.grad)
        return value

    step.parameters = {"x": x}
    return None, step


@healthy(
    "values only: the eigenvalues of the identity have a derivative, their vectors are not used"
)
def eigenvalues_of_the_identity(fixed):
    root = nn.Parameter(torch.eye(4))
    spectrum = torch.tensor([0.5, 1.0, 1.5, 2.0])
    return None, train(
        [root], lambda i: F.mse_loss(torch.linalg.eigvalsh(root @ root.T), spectrum), lr=0.1
    )


@healthy(
    "the torque head begins at zero, so in the first step only its own weights have a gradient"
)
def residual_policy_from_zero(fixed):
    torch.manual_seed(107)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 12), nn.Tanh())
            self.torque = nn.Linear(12, 2)
            nn.init.zeros_(self.torque.weight)
            nn.init.zeros_(self.torque.bias)
            self.register_buffer("gain", torch.tensor([[-1.0, 0, -0.4, 0], [0, -1.0, 0, -0.4]]))

        def forward(self, s):
            return s @ self.gain.T + self.torque(self.body(s))

    policy = Residual()
    s, tau = noise(108, 16, 4), noise(109, 16, 2)
    return policy, train(policy.parameters(), lambda i: F.mse_loss(policy(s), tau), lr=0.1)


@healthy("costs of 1e9 in millimetres squared are large, the step is normalised, and they fall")
def millimetres_squared(fixed):
    torch.manual_seed(110)
    net = nn.Linear(3, 3)
    x = noise(111, 12, 3)
    target = 20000 * noise(112, 12, 3)
    opt = torch.optim.Adam(net.parameters(), lr=300.0)

    def step(i):
        opt.zero_grad()
        value = (net(x) - target).square().sum()
        value.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e5)
        opt.step()
        return value

    return net, step


@healthy("atan2(0, 0): torch gives it the derivative 0, so the standing wheel adds nothing")
def heading_of_a_standing_wheel(fixed):
    slip = nn.Parameter(torch.tensor([1.1, 0.9]))
    velocity = noise(113, 9, 2)
    velocity[4] = 0.0
    course = torch.atan2(velocity[:, 1], velocity[:, 0]) + 0.1

    def loss(i):
        v = velocity * slip
        speed = v.abs().sum(1)
        return ((torch.atan2(v[:, 1], v[:, 0]) - course).square() * (speed > 0)).sum() / (
            speed > 0
        ).sum()

    return None, train([slip], loss, lr=0.1)


# healthy: equations and scans


@healthy(
    "the source is 1 / r, sampled at midpoints that never meet r = 0; large near the axis, and weighted by r"
)
def collocation_beside_the_axis(fixed):
    torch.manual_seed(120)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    r = ((torch.arange(30) + 0.5) / 30)[:, None]

    def loss(i):
        p = r.clone().requires_grad_()
        u = net(p)
        du = torch.autograd.grad(u.sum(), p, create_graph=True)[0]
        d2 = torch.autograd.grad(du.sum(), p, create_graph=True)[0]
        return ((d2 + du / p + 1.0).square() * p).mean() + net(torch.ones(1, 1)).square().sum()

    return net, train(net.parameters(), loss, lr=1e-2)


@healthy(
    "a decay product that sinks through the subnormals to 0 after long lags is what forgetting means"
)
def retention_that_forgets(fixed):
    torch.manual_seed(121)
    qkv = nn.Linear(4, 12)
    log_decay = nn.Parameter(torch.tensor(-1.0))
    x, y = noise(122, 120, 4), noise(123, 120, 4)
    lag = torch.arange(120)[:, None] - torch.arange(120)[None]

    def loss(i):
        decay = torch.exp(log_decay * lag.clamp(min=0)) * (lag >= 0)
        q, k, v = qkv(x).chunk(3, -1)
        return F.mse_loss((q @ k.T * decay) @ v, y)

    return None, train([*qkv.parameters(), log_decay], loss, lr=1e-2)


@healthy(
    "-inf is written above the diagonal before the exponential, which makes of it a zero with gradient zero"
)
def segment_sums_cut_before_the_exponential(fixed):
    a = nn.Parameter(0.3 * noise(124, 16).abs())
    x, y = noise(125, 16, 3), noise(126, 16, 3)
    upper = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)

    def loss(i):
        c = torch.cumsum(-a, 0)
        decay = torch.exp((c[:, None] - c[None, :]).masked_fill(upper, float("-inf")))
        return F.mse_loss(decay @ x, y)

    return None, train([a], loss, lr=0.03)


@healthy("log1p(exp(x)) through softplus with its linear branch, over inputs up to a thousand")
def softplus_step_sizes_of_a_wild_scan(fixed):
    raw = nn.Parameter(torch.tensor([-40.0, -2.0, 0.5, 30.0, 1000.0]))
    u = noise(127, 6, 5)
    y = noise(128, 6)

    def loss(i):
        h = torch.zeros(5)
        out = []
        for row in u:
            decay = torch.exp(-F.softplus(raw))
            h = decay * h - torch.expm1(-F.softplus(raw)) * row
            out.append(h.mean())
        return F.mse_loss(torch.stack(out), y)

    return None, train([raw], loss, lr=0.5)


@healthy(
    "adaptive steps of an ODE solver reject trials whose error is inf, and go on with a tenth of the step"
)
def step_control_that_rejects(fixed):
    rate = nn.Parameter(torch.tensor(3.0))
    goal = torch.tensor(0.4)

    def f(y):
        return rate * y * y - 8.0 * y

    def solve():
        y, t, h = torch.tensor(0.9), 0.0, 1e10
        while t < 0.5:
            k = f(y)
            euler = y + h * k
            heun = y + 0.5 * h * (k + f(euler))
            with torch.no_grad():
                error = float((heun - euler).abs() ** 2)
            if not error < 1e-5:
                h *= 0.1
                continue
            y, t = heun, t + h
            h = min(1.5 * h, 0.5 - t + 1e-6)
        return y

    return None, train([rate], lambda i: (solve() - goal).square() * 10, lr=1.0)


# healthy: diffusion and score models


@healthy(
    "signal to noise is inf at t = 0 and clamped to five before it weighs anything; the schedule has no gradient"
)
def clamped_signal_to_noise(fixed):
    torch.manual_seed(130)
    net = nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 2))
    bar = torch.cos(torch.linspace(0, 1.5, 10)).square()
    snr = bar / (1 - bar)
    data, eps = noise(131, 20, 2), noise(132, 20, 2)
    t = torch.arange(20) % 10

    def loss(i):
        a = bar[t][:, None]
        noisy = a.sqrt() * data + (1 - a).sqrt() * eps
        out = net(torch.cat([noisy, t[:, None] / 10], 1))
        return (snr[t].clamp(max=5.0)[:, None] * (out - data).square()).mean()

    return net, train(net.parameters(), loss, lr=2e-2)


@healthy(
    "the scaler begins at 2 ** 24, skips while it finds its scale, and trains from then on",
    steps=14,
)
def scaler_that_finds_its_scale(fixed):
    torch.manual_seed(133)
    score = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)
    opt = torch.optim.Adam(score.parameters(), lr=5e-3)
    x, z = noise(134, 32, 2), noise(135, 32, 2)

    def step(i):
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            out = score(x + 0.5 * z)
        value = F.mse_loss(out.float(), -z)
        scaler.scale(value).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(score.parameters(), 10.0)
        scaler.step(opt)
        scaler.update()
        return value

    return score, step


@healthy(
    "a conditioning branch joined through a zero convolution is silent in the first step and wakes in the second"
)
def branch_behind_a_zero_projection(fixed):
    torch.manual_seed(136)

    class Controlled(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(
                nn.Linear(2, 16), nn.GELU(), nn.Linear(16, 2)
            ).requires_grad_(False)
            self.hint = nn.Sequential(nn.Linear(3, 16), nn.GELU())
            self.zero = nn.Linear(16, 2)
            for p in self.zero.parameters():
                nn.init.zeros_(p)

        def forward(self, x, c):
            return self.trunk(x) + self.zero(self.hint(c))

    net = Controlled()
    x, c = noise(137, 18, 2), noise(138, 18, 3)
    y = c[:, :2] - x
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)

    def step(i):
        opt.zero_grad()
        value = F.mse_loss(net(x, c), y)
        value.backward()
        opt.step()
        return value

    return net, step


@healthy(
    "the average of the weights is kept in float32 beside a bfloat16 forward, and moves by a thousandth in each step"
)
def slow_average_in_full_precision(fixed):
    torch.manual_seed(139)
    net = nn.Sequential(nn.Linear(3, 16), nn.Mish(), nn.Linear(16, 2))
    average = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, y = noise(140, 24, 3), noise(141, 24, 2)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        value = F.huber_loss(out.float(), y)
        value.backward()
        opt.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), net.parameters(), strict=False):
                slow.lerp_(fast, 1e-3)
        return value

    return net, step


# healthy: speech


@healthy(
    "silent frames have no power at all; the floor comes before the logarithm, and the front has nothing to learn there"
)
def log_mel_above_a_floor(fixed):
    torch.manual_seed(150)
    bank = nn.Parameter(torch.rand(17, 6, generator=torch.Generator().manual_seed(151)))
    head = nn.Linear(6, 2)
    wave = noise(152, 6, 160)
    wave[1], wave[3, 80:] = 0.0, 0.0
    label = torch.tensor([0, 1, 0, 1, 1, 0])
    window = torch.hann_window(32)

    def loss(i):
        power = torch.stft(wave, 32, 16, window=window, return_complex=True).abs().square()
        mel = power.transpose(1, 2) @ bank.abs()
        logmel = mel.clamp(min=1e-5).log10()
        return F.cross_entropy(head(logmel.mean(1)), label)

    return None, train([bank, *head.parameters()], loss, lr=0.05)


@healthy("one clip is too short for its transcript, and zero_infinity leaves it out")
def short_clip_left_out(fixed):
    torch.manual_seed(153)
    net = Listener()
    x = noise(154, 4, 8, 10)
    letters = torch.tensor([[1, 2, 3, 4], [2, 2, 1, 1], [3, 1, 0, 0], [4, 0, 0, 0]])
    long = torch.tensor([10, 4, 10, 9])
    criterion = nn.CTCLoss(zero_infinity=True)

    def loss(i):
        return criterion(
            net(x).log_softmax(-1).transpose(0, 1), letters, long, torch.tensor([4, 4, 2, 1])
        )

    return net, train(net.parameters(), loss, lr=0.1)


@healthy("causal and padding masks of -inf together still leave every frame its first neighbour")
def padded_causal_attention(fixed):
    torch.manual_seed(155)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x, length):
            n = x.shape[1]
            bias = torch.full((n, n), -math.inf).triu(1) + torch.zeros(len(x), 1, 1)
            bias = bias.masked_fill(torch.arange(n)[None, None] >= length[:, None, None], -math.inf)
            q, k, v = self.qkv(x).chunk(3, -1)
            a = torch.softmax(torch.einsum("btc,bsc->bts", q, k) / 8**0.5 + bias, -1)
            return self.out(torch.einsum("bts,bsc->btc", a, v))

    net = Block()
    x, y, length = noise(156, 3, 7, 8), noise(157, 3, 7, 8), torch.tensor([7, 1, 4])
    keep = torch.arange(7)[None] < length[:, None]
    return net, train(net.parameters(), lambda i: F.mse_loss(net(x, length)[keep], y[keep]), lr=0.1)


@healthy("the modulus of a complex zero has the derivative 0 in torch, and padding needs none")
def spectral_distance_with_padding(fixed):
    torch.manual_seed(158)
    fir = nn.Parameter(0.1 * noise(159, 1, 1, 9))
    dry = noise(160, 4, 1, 128)
    dry[:, :, 90:] = 0.0
    wet = F.conv1d(
        dry, torch.tensor([[[0.1, -0.2, 0.5, 1.0, 0.4, 0, 0, 0, 0]]]), padding=4
    ).squeeze(1)

    def spectrum(x):
        return torch.stft(x, 16, 8, window=torch.ones(16), center=False, return_complex=True).abs()

    def loss(i):
        return (spectrum(F.conv1d(dry, fir, padding=4).squeeze(1)) - spectrum(wet)).abs().mean()

    return None, train([fir], loss, lr=0.05)


@healthy(
    "a chain that starts in its first state with certainty: log 0 is written as -inf, and every sum has a finite term"
)
def forward_algorithm_from_one_state(fixed):
    torch.manual_seed(161)
    emission = nn.Linear(5, 4)
    transition = nn.Parameter(noise(162, 4, 4))
    frames = noise(163, 12, 5)

    def loss(i):
        start = torch.tensor([0.0, -math.inf, -math.inf, -math.inf])
        log_b = F.log_softmax(emission(frames), -1)
        log_a = torch.log_softmax(transition, -1)
        alpha = start + log_b[0]
        for t in range(1, 12):
            alpha = torch.logsumexp(alpha[:, None] + log_a, 0) + log_b[t]
        return -torch.logsumexp(alpha, 0) / 12

    return None, train([transition, *emission.parameters()], loss, lr=0.2)


@healthy("opinion scores that nobody gave are NaN, and only the rated clips enter the loss")
def unrated_clips(fixed):
    torch.manual_seed(164)
    net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
    x, score = noise(165, 24, 6), 3 + noise(166, 24, 2).clamp(-2, 2)
    score[::3, 0] = float("nan")
    score[5:9] = float("nan")
    batches = DataLoader(TensorDataset(x, score), batch_size=8)
    opt = torch.optim.NAdam(net.parameters(), lr=1e-2)
    queue = list(batches) * 2

    def step(i):
        clip, mos = queue[i]
        rated = ~torch.isnan(mos)
        opt.zero_grad()
        value = F.mse_loss(net(clip)[rated], mos[rated])
        value.backward()
        opt.step()
        return value

    return net, step


@healthy(
    "a table of speakers with sparse gradients: the rows that are absent from a batch stay where they are"
)
def sparse_speaker_table(fixed):
    torch.manual_seed(167)
    table = nn.Embedding(500, 6, sparse=True)
    head = nn.Linear(6, 3)
    net = nn.ModuleDict({"table": table, "head": head})
    opts = [
        torch.optim.SparseAdam(table.parameters(), lr=0.05),
        torch.optim.SGD(head.parameters(), lr=0.1),
    ]
    who = torch.tensor([3, 77, 402, 77, 9, 3])
    gender = torch.tensor([0, 1, 2, 1, 0, 0])

    def step(i):
        for o in opts:
            o.zero_grad()
        value = F.cross_entropy(head(table(who)), gender)
        value.backward()
        for o in opts:
            o.step()
        return value

    return net, step


@healthy("the warm-up begins at a learning rate of exactly 0, and rises", steps=8)
def warm_up_from_nothing(fixed):
    torch.manual_seed(168)
    net = nn.Sequential(nn.Linear(4, 12), nn.LayerNorm(12), nn.SiLU(), nn.Linear(12, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(n / 4, 1.0))
    x, y = noise(169, 15, 4), torch.arange(15) % 3

    def step(i):
        opt.zero_grad()
        value = F.cross_entropy(net(x), y)
        value.backward()
        opt.step()
        schedule.step()
        return value

    return net, step


@healthy(
    "gradients per clip by torch.func; a silent clip has gradient zero, and its norm is bounded below before the division"
)
def private_gradients_with_a_silent_clip(fixed):
    torch.manual_seed(170)
    w = nn.Parameter(0.1 * noise(171, 5, 2))
    clips = noise(172, 8, 5)
    clips[3] = 0.0
    y = noise(173, 8, 2)

    def one(weight, x, t):
        return F.mse_loss(x @ weight, t)

    per_clip = torch.func.vmap(torch.func.grad_and_value(one), in_dims=(None, 0, 0))

    def step(i):
        grads, values = per_clip(w.detach(), clips, y)
        norms = grads.flatten(1).norm(dim=1)
        factor = (1.0 / norms.clamp(min=1e-6)).clamp(max=1.0)
        w.grad = torch.einsum("n,nij->ij", factor, grads) / len(clips)
        with torch.no_grad():
            w.sub_(0.2 * w.grad)
        return values.mean()

    step.parameters = {"w": w}
    return None, step
