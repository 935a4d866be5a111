"""Controllers, planners and filters of robots."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("where-grad-trap", "div", "backward", step=2, ops=("where", "mul"), also=("div-by-zero",))
def arc_of_a_straight_drive(fixed):
    """The straight segment takes the other branch of where, and the arc is computed all the same."""
    torch.manual_seed(0)
    policy = nn.Linear(3, 1)
    gen = torch.Generator().manual_seed(1)

    def advance(speed, turn, dt=0.1):
        straight = turn.abs() < 1e-6
        divisor = torch.where(straight, torch.ones_like(turn), turn) if fixed else turn
        arc = speed * torch.sin(turn * dt) / divisor  # ORIGIN
        return torch.where(straight, speed * dt, arc)

    def loss(i):
        obs = torch.randn(8, 3, generator=gen)
        turn = policy(obs).squeeze(-1)
        if i == 2:
            turn = turn * (torch.arange(8) != 3)
        return (10 * advance(torch.ones(8), turn) - 0.5).square().mean()

    return policy, train(policy.parameters(), loss, 10.0)


@fault("div-by-zero", "div", step=0, ops=("reciprocal",))
def feedback_gain_without_control_cost(fixed):
    torch.manual_seed(2)
    a = torch.tensor([[1.0, 0.1], [0.0, 1.0]])
    b = torch.tensor([[0.0, 0.0], [0.1, 0.1]])
    cost = nn.Parameter(torch.zeros(2, 2) + (0.1 * torch.eye(2) if fixed else 0))
    weight = nn.Parameter(torch.ones(2))

    def inverse(m):
        """Of a matrix of two rows, by its adjugate."""
        det = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
        adjugate = torch.stack([torch.stack([m[1, 1], -m[0, 1]]), torch.stack([-m[1, 0], m[0, 0]])])
        return adjugate / det  # ORIGIN

    def loss(i):
        p = torch.diag(weight)
        for _ in range(3):
            gain = inverse(cost + b.T @ p @ b) @ b.T @ p @ a
            p = torch.diag(weight) + a.T @ p @ (a - b @ gain)
        return p.trace()

    return None, train([cost, weight], loss, 1e-4)


@fault("sqrt-at-zero", "sqrt", "backward", step=1, ops=("div", "mul"))
def damping_of_a_released_spring(fixed):
    class Impedance(nn.Module):
        def __init__(self):
            super().__init__()
            self.stiffness = nn.Linear(2, 3)

        def forward(self, x, v):
            raw = self.stiffness(x)
            k = raw * (raw > 0)
            mass = 1.5
            damping = 2 * ((k * mass + 1e-6).sqrt() if fixed else torch.sqrt(k * mass))  # ORIGIN
            return -k * x[:, :1] - damping * v

    torch.manual_seed(3)
    net = Impedance()
    gen = torch.Generator().manual_seed(4)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with torch.no_grad():
        net.stiffness.bias.fill_(6.0)

    def step(i):
        x = torch.randn(10, 2, generator=gen).clamp(-2, 2) * (40 if i == 1 else 1)
        force = net(x, torch.ones(10, 3))
        opt.zero_grad()
        loss = F.smooth_l1_loss(force, torch.zeros_like(force))
        loss.backward()
        opt.step()
        return loss

    return net, step


@fault("div-by-zero", "div", step=3)
def slip_of_a_wheel_at_rest(fixed):
    torch.manual_seed(5)
    shape = nn.ParameterDict({"b": nn.Parameter(torch.tensor(8.0)), "d": nn.Parameter(torch.ones(()))})

    def magic_formula(slip):
        return shape["d"] * torch.sin(1.4 * torch.atan(shape["b"] * slip))

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        wheel = torch.rand(12, generator=gen) + 0.5
        body = torch.rand(12, generator=gen) + 0.5
        if i == 3:
            wheel[4], body[4] = 0.0, 0.0
        divisor = body.clamp(min=1e-3) if fixed else body
        slip = (wheel - body) / divisor  # ORIGIN
        return (magic_formula(slip) - 0.2).pow(2).mean()

    return shape, train(shape.parameters(), loss)


@fault("div-by-zero", "pow", step=2, ops=("reciprocal",), also=("pow-fraction-at-zero",))
def jerk_of_an_instant_move(fixed):
    torch.manual_seed(6)
    head = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    head[2].bias.data.fill_(2.0)

    def loss(i):
        gen = torch.Generator().manual_seed(i + 7)
        goal = torch.randn(6, 4, generator=gen)
        if i == 2:
            head[2].bias.data.fill_(-4.0)
        duration = F.softplus(head(goal)) + 0.05 if fixed else head(goal).relu()
        jerk = 60 * goal.norm(dim=-1, keepdim=True) * duration**-3  # ORIGIN
        return jerk.mean() + duration.mean()

    return head, train(head.parameters(), loss, 1e-5)


@fault("inverse-function-domain", "acosh", step=1)
def cable_shorter_than_its_span(fixed):
    torch.manual_seed(8)
    sag = nn.Linear(2, 1)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        ends = torch.rand(5, 2, generator=gen)
        height = 2.5 + 0.1 * sag(ends)
        if i == 1:
            height = height - 2
        ratio = height.clamp(min=1.01) if fixed else height
        return (torch.acosh(ratio) - 1).square().sum()  # ORIGIN

    return sag, train(sag.parameters(), loss)


@fault("custom-backward", "div", "backward", step=2)
def opening_of_a_closed_gripper(fixed):
    class Opening(torch.autograd.Function):
        """Root of the stroke; its derivative is written by hand."""

        @staticmethod
        def forward(ctx, stroke):
            root = stroke.clamp(min=0).sqrt()
            ctx.save_for_backward(root)
            return root

        @staticmethod
        def backward(ctx, upstream):
            (root,) = ctx.saved_tensors
            if fixed:
                return upstream / (2 * root.clamp(min=1e-3))
            return upstream / (2 * root)  # ORIGIN

    torch.manual_seed(9)
    net = nn.Linear(3, 4)
    net.bias.data.fill_(3.0)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(6, 3, generator=gen) * (8 if i == 2 else 0.5)
        return (Opening.apply(net(x)) - 1).square().mean()  # ALSO

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2)
def path_weights_about_the_mean_cost(fixed):
    """Weights of sampled paths; the mean of the costs is taken off instead of the smallest."""
    torch.manual_seed(10)
    costmap = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1))

    def plan(noise, temperature=0.05):
        costs = costmap(noise).squeeze(-1).sum(-1)
        base = costs.min() if fixed else costs.mean()
        weights = torch.exp(-(costs - base) / temperature)  # ORIGIN
        return torch.einsum("k,kth->th", weights / weights.sum(), noise)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        noise = torch.randn(16, 5, 2, generator=gen)
        if i == 2:
            noise[:4] *= 20
        return (plan(noise) - 0.3).square().mean()

    return costmap, train(costmap.parameters(), loss)


@fault("div-by-zero", "reciprocal", step=2, ops=("div", "pow"))
def effective_size_of_lost_particles(fixed):
    torch.manual_seed(11)
    sensor = nn.Linear(2, 1)
    gen = torch.Generator().manual_seed(12)

    def update(particles, reading):
        error = reading - sensor(particles).squeeze(-1)
        return -0.5 * error**2 / 0.01

    def loss(i):
        particles = 0.1 * torch.randn(20, 2, generator=gen)
        log_w = update(particles, 50.0 if i == 2 else 0.2)
        if fixed:
            log_w = log_w - log_w.max().detach()
        w = log_w.exp()
        ess = w.sum() ** 2 * torch.reciprocal((w * w).sum())  # ORIGIN
        return -ess / 20

    return sensor, train(sensor.parameters(), loss)


@fault("where-grad-trap", "div", "backward", step=1, ops=("clamp", "mul"), also=("div-by-zero",))
def time_to_collision_at_equal_speeds(fixed):
    torch.manual_seed(13)
    net = nn.Linear(3, 1)

    class Follower:
        horizon = 10.0

        def penalty(self, gap, own, lead):
            closing = own - lead
            if fixed:
                closing = torch.where(closing.abs() < 1e-4, torch.full_like(closing, 1e-4), closing)
            left = (gap / closing).clamp(-self.horizon, self.horizon)  # ORIGIN
            return (1 / (1 + left.square())).mean()

    car = Follower()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(7, 3, generator=gen)
        own = net(x).squeeze(-1)
        lead = torch.randn(7, generator=gen)
        if i == 1:
            lead[2] = own[2].detach()
        return car.penalty(torch.full((7,), 5.0), own, lead)

    return net, train(net.parameters(), loss)
