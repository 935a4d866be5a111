"""Exceptions about values: a distribution, a sampler or a factorisation that refuses what it was
given."""

from __future__ import annotations

from nanlab.rules.errors._explanation import Case, Explanation, advice, means
from nanlab.trace import Trace

_MATRICES = frozenset("covariance_matrix precision_matrix scale_tril".split())
_POSITIVE = frozenset(
    "scale rate concentration concentration0 concentration1 df temperature".split()
)
_BORN = "print(nanlab.last.culprit)  # where the bad value was born"


def _origin(case: Case) -> str:
    """Where the bad value was born, if a watch saw it."""
    culprit = Trace(case.recording).culprit if case.recording is not None else None
    return f" It was born before: {culprit}." if culprit is not None else ""


@means(
    r"Expected parameter (\w+) \(.*\) of distribution (\w+)\(.*satisfy the constraint (.+?), but"
    r" found invalid"
)
def refused_parameter(case: Case) -> Explanation | None:
    """torch.distributions checked a parameter."""
    name, distribution, constraint = case.match.groups()
    nan = "nan" in case.failure.text.split("invalid values", 1)[-1]
    if nan:
        return case.explain(
            "invalid-value",
            f"{distribution} got NaN in its {name}{case.inside}",
            "The distribution only refuses it: the NaN comes from what computed the parameter."
            + _origin(case),
            fixes=advice(("watch the step, and see where it was born", _BORN)),
        )
    if name in _MATRICES:
        fix = (
            "add a jitter to the diagonal",
            f"{name} = {name} + 1e-5 * torch.eye({name}.shape[-1])",
        )
    elif name in _POSITIVE:
        fix = (f"make {name} positive by construction", f"{name} = F.softplus(raw) + 1e-4")
    else:
        fix = (
            f"keep {name} inside of what {distribution} takes",
            f"{name} = {name}.clamp(min=..., max=...)",
        )
    return case.explain(
        "invalid-value",
        f"the {name} of {distribution} is outside of its domain, {constraint}{case.inside}",
        "What a network gives is unbounded; softplus or exp of it may round to exactly 0, and a"
        " covariance to an indefinite matrix.",
        fixes=advice(fix),
        rewrite=(
            (rf"\b{name}=(\w[\w.]*)", rf"{name}=torch.nn.functional.softplus(\1)"),
            (rf"({distribution}\()(\w[\w.]*)\)", r"\1torch.nn.functional.softplus(\2))"),
        )
        if constraint.startswith("Greater")
        else (),
    )


@means(
    r"Expected value argument \(.*\) to be within the support \((.+?)\) of the distribution (\w+)"
)
def outside_of_support(case: Case) -> Explanation | None:
    """log_prob of a value that the distribution cannot give."""
    support, distribution = case.match.groups()
    return case.explain(
        "infeasible-likelihood",
        f"log_prob of a value outside of the support of {distribution}, {support}{case.inside}",
        "The distribution gives such a value no probability, so its log-likelihood would be -inf."
        " Rounding does this at the edges, as with an action that tanh has rounded to 1."
        + _origin(case),
        fixes=advice(("keep the value inside", "value = value.clamp(1e-6, 1 - 1e-6)")),
        rewrite=((r"log_prob\((\w[\w.]*)\)", r"log_prob(\1.clamp(1e-6, 1 - 1e-6))"),)
        if support.startswith("Interval(lower_bound=0.0, upper_bound=1.0")
        else (),
    )


@means(
    r"probability tensor contains either `inf`, `nan` or element < 0|invalid multinomial"
    r" distribution"
)
def refused_probabilities(case: Case) -> Explanation | None:
    """torch.multinomial and what samples with it."""
    zero = "invalid multinomial" in case.failure.text
    if zero:
        return case.explain(
            "invalid-value",
            f"the probabilities of a row add up to zero{case.inside}",
            "There is nothing to draw from: every choice was masked, or all of them underflowed.",
            fixes=advice(
                (
                    "leave at least one choice, and take logits",
                    "torch.distributions.Categorical(logits=logits)",
                )
            ),
            rewrite=((r"(multinomial\(\s*\w[\w.]*)", r"\1 + 1e-6"),),
        )
    return case.explain(
        "invalid-value",
        f"the probabilities to sample from hold NaN, inf or a negative number{case.inside}",
        "Sampling only refuses them: they come from logits that are NaN or +inf, or from a row that"
        " was masked throughout." + _origin(case),
        fixes=advice(("watch the step, and see where it was born", _BORN)),
    )


@means(r"(linalg\.\w+): .*(singular|not positive-definite|failed to converge|non-finite)")
def refused_matrix(case: Case) -> Explanation | None:
    """A factorisation that does not exist, or did not converge."""
    function, what = case.match.groups()
    origin = _origin(case)
    if what in ("failed to converge", "non-finite") or origin:
        return case.explain(
            "degenerate-matrix",
            f"{function} could not be computed{case.inside}: NaN, infinities or nearly equal"
            " singular values do this",
            "Look first whether the matrix is finite." + origin,
            fixes=advice(
                ("see whether the matrix is finite", "torch.isfinite(A).all()"),
                ("watch the step", _BORN),
            ),
        )
    return case.explain(
        "degenerate-matrix",
        f"{function}: the matrix is {what}{case.inside}",
        "Duplicate rows, a batch smaller than the dimension, or rounding of a covariance do this; a"
        " little on the diagonal makes it definite.",
        fixes=advice(
            ("add a jitter to the diagonal", "A = A + 1e-5 * torch.eye(A.shape[-1], dtype=A.dtype)")
        ),
        rewrite=(
            (r"(cholesky|inv|slogdet|logdet)\((\w+)\)", r"\1(\2 + 1e-5 * torch.eye(\2.shape[-1]))"),
        ),
    )
