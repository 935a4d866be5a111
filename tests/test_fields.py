"""What is said of the programs of corpus/fields, held against what each declares of itself."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
import score
import torch
from programs import Program, programs

import nanlab
from nanlab.program.rerun import bytes_of

pytestmark = pytest.mark.usefixtures("untried")
FAULTS, HEALTHY = programs(kind="f"), programs(kind="h")
# Births while the program is built, in a parameter, a buffer, a schedule; gradients that die in a
# flat operation, beyond a bound, in a zero.
FEW = (
    "diffusion_log_of_the_first_posterior_variance",
    "ssm_inverse_softplus_of_zero_step",
    "speech_filterbank_finer_than_the_spectrum",
    "rendering_hard_pixel_coordinates",
    "preferences_reward_head_behind_a_clamp",
    "preferences_acquisition_far_from_the_best",
    "precision_gradient_left_over_from_a_trial",
    "loops_linear_recurrence_of_many_steps",  # no fault of the factor on its loss
    "adapters_adapter_with_two_zero_factors",
    "heads_margin_angle_of_a_prototype_taken_from_the_batch",
    "trainers_gradient_kept_from_a_rejected_batch",
    "forums_every_unit_of_a_layer_dies",
    "scripts_layer_killed_by_the_first_updates",
    "workshops_own_quantiser_that_passes_nothing",  # zeros that its own backward computes
    "workshops_regression_through_a_ceiling_of_six",  # what follows learns from a constant
    "fieldwork_likelihood_of_frames_multiplied_in_half",  # a derivative at what was flushed
    "residues_scaled_copy_of_the_loss_that_nobody_used",
    "residues_charges_in_coulombs",  # an eps that keeps all parameters still
    "residues_commands_beyond_their_limits",  # all gradients die in the fourth step
)


def _wrong(program: Program) -> list[str]:
    found = score.judge(program, score.watch(program))
    return [part for part, right in found.right.items() if not right and part != "verified"] and [
        str(found)
    ]


@pytest.mark.parametrize("program", [p for p in FAULTS if p.name[2:] in FEW], ids=lambda p: p.name)
def test_cause_line_operator_phase_and_step_are_those_of_the_program(program: Program) -> None:
    assert _wrong(program) == []


THROWN = [p for p in FAULTS if p.meta["second"]]


@pytest.mark.parametrize("program", THROWN, ids=lambda p: p.name)
def test_update_that_threw_a_parameter_stands_beside_the_operation_that_failed(
    program: Program,
) -> None:
    answer = score.watch(program)
    assert answer.cause in (program.meta["cause"], *program.meta["also_causes"])
    assert set(program.meta["second"]) <= set(answer.findings)


def test_operands_without_a_parameter_are_told_to_be_data() -> None:
    width = torch.tensor([2.0, -1.0, 3.0])
    scale = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            (torch.log(torch.from_numpy(width.numpy())) * scale).sum().backward()
    assert trace.culprit is not None
    assert "the data is to blame" in trace.culprit.explanation


# A closed gate, a branch that is left out, a hinge that is satisfied, a factor of zero, an adapter
# that begins at zero; an expert, a task and a reward that are there in some steps only.
IDLE = (
    "gate_that_opens stochastic_depth satisfied_hinge zero_weight_term low_rank_adapter"
    " idle_limit_penalty solved_before_the_watch switch_of_experts two_tasks_by_turns"
    " reward_that_comes_seldom margins_that_are_all_kept highway_with_a_bias_against_change"
    " hinge_that_rests_and_wakes free_bits".split()
)


@pytest.mark.parametrize(
    "program", [p for p in HEALTHY if p.build.__name__ in IDLE], ids=lambda p: p.name
)
def test_gradient_that_is_zero_for_a_reason_is_no_fault(program: Program) -> None:
    assert "dead-gradient" not in score.watch(program).findings


def test_bad_batch_that_the_program_leaves_out_is_no_fault() -> None:
    (program,) = (p for p in FAULTS if p.build.__name__ == "gradient_kept_from_a_rejected_batch")
    assert score.watch(program, fixed=True).cause == ""


def test_optimizer_of_sparse_gradients_is_watched_to_the_end() -> None:
    (program,) = (p for p in HEALTHY if p.build.__name__ == "table_of_users_with_sparse_updates")
    answer = score.watch(program)
    assert (answer.cause, answer.notes) == ("", ())


def test_labels_expanded_from_one_are_compared_byte_for_byte() -> None:
    one = torch.tensor([7]).expand(1).as_strided((1,), (0,))
    assert torch.equal(bytes_of(one), torch.tensor([7, 0, 0, 0, 0, 0, 0, 0], dtype=torch.uint8))


@cache
def scored(fixed: bool) -> list[score.Score]:
    score.warm_up()
    return [score.score(program, fixed) for program in FAULTS]


@pytest.mark.slow
@pytest.mark.conformance
def test_causes_are_right_in_19_of_20_programs_and_lines_in_49_of_50() -> None:
    found = score.shares(scored(False))
    assert found["cause"] >= 0.95
    assert found["line"] >= 0.98


@pytest.mark.slow
@pytest.mark.conformance
def test_no_cause_is_decided_by_the_order_of_the_rules() -> None:
    cases = [score.score(path) for path in harness.case_files(kind="ft")]
    assert [str(s) for s in [*scored(False), *cases] if s.answer.unclear] == []


@pytest.mark.slow
@pytest.mark.conformance
def test_healthy_programs_and_twins_raise_no_alarm() -> None:
    quiet = [*scored(True), *(score.score(program) for program in HEALTHY)]
    assert [str(s) for s in quiet if s.alarm or s.answer.error] == []


def test_cell_that_no_path_reaches_is_told_where_nothing_finite_was_left_to_choose() -> None:
    weight = torch.ones(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            border = torch.full((3,), torch.inf)
            best = (weight + border).min()  # the origin
            (best + weight.sum()).backward()
    found = trace.culprit
    assert found is not None
    assert (found.cause, found.op) == ("intended-inf-in-loss", "min")
    assert "no finite value among 3 to choose from" in found.title
