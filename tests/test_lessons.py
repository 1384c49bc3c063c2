"""What broke for users of other tools, and the test that keeps each from happening here.

Every lesson was silent where it was met: exit code 0, finite loss, plausible curves. LESSONS maps each to its tests;
those that no other file holds are below.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from cohort.errors import EngineError, InvariantError
from cohort.model.critic import NoCritic
from cohort.model.scratch import build_scratch
from cohort.ops.attention import register_attention
from cohort.recipe.schema import ScratchConfig
from cohort.training.experience import Models
from cohort.training.rollouts import Collected, group_rollouts
from cohort.types import Completion, Outcome, Prompt
from conftest import collect_batch, tiny_policy
from session_tools import FAST, digit_share, rows_of, run_with, tiny

LESSONS: dict[str, list[str]] = {
    # The policy that sampled must be the policy that is scored
    "step 1: ratio 1, KL 0, log-probs <= 0": [
        "training/test_session.py::test_engine_trainer_and_reference_agree_before_the_first_update",
        "training/test_session.py::test_perturbed_sampling_logprobs_stop_the_run",
        "training/test_session.py::test_a_reference_with_other_weights_stops_the_run",
        "test_cli.py::test_rollouts_hold_every_completion_with_parts_advantage_ids_and_logprobs",
        "training/test_lessons_more.py::test_one_token_in_a_thousand_stops_the_run_and_so_do_many_small_differences_and_nan",
        "training/test_lessons_more.py::test_the_doctors_step_1_sees_one_token_that_is_off",
    ],
    "divide logits by the temperature, not log-probs": [
        "ops/test_logprobs.py::test_temperature_divides_the_logits_and_not_the_logprobs",
        "engine/test_engines.py::test_logprobs_are_those_of_a_plain_forward_at_that_temperature",
        "training/test_session.py::test_another_temperature_in_scoring_stops_the_run",
    ],
    "generation_config must not reach sampling; a group has distinct completions": [
        "engine/test_engines.py::test_the_generation_config_is_ignored",
        "test_lessons.py::test_the_generation_config_of_a_checkpoint_does_not_reach_a_run",
        "tools/test_doctor.py::test_the_demo_is_in_order",
    ],
    "top_p and top_k refused in training, honoured in evaluation": [
        "recipe/test_schema.py::test_a_mistake_is_answered_with_the_field_and_the_fix",
        "engine/test_engines.py::test_top_k_is_honoured_by_both_engines",
        "tools/test_evaluate_command.py::test_a_model_folder_with_a_recipe_and_overrides",
        "training/test_lessons_more.py::test_the_engine_is_given_the_sampling_of_the_recipe_and_evaluation_its_own",
    ],
    "token in, token out; no second BOS": [
        "test_lessons.py::test_nothing_is_tokenised_while_training",
        "model/test_chat.py::test_text_gets_exactly_one_bos",
        "model/test_chat.py::test_a_template_that_writes_bos_gets_no_second_one",
        "test_api.py::test_format_and_answer_rewards_on_chat_prompts",
    ],
    "dropout off while sampling and scoring": [
        "engine/test_engines.py::test_dropout_is_off_while_sampling_and_modes_come_back",
        "test_lessons.py::test_a_model_with_dropout_is_scored_as_it_sampled",
    ],
    "gradient checkpointing must not switch the cache off": [
        "engine/test_engines.py::test_gradient_checkpointing_does_not_switch_the_cache_off"
    ],
    "any cache is invalid after a weight update": [
        "engine/test_engines.py::test_a_weight_update_is_seen_by_the_next_call",
        "training/test_session.py::test_weights_that_go_stale_with_the_first_update_stop_the_run_before_the_second",
        "training/test_session.py::test_stale_weights_after_a_cold_start_stop_the_run_before_any_update",
    ],
    "after a step with a huge learning rate the engine's output changes": [
        "training/test_session.py::test_after_one_step_with_a_huge_learning_rate_the_engine_writes_something_else",
    ],
    # Normalisation
    "same gradient for every micro-batch size": [
        "algorithms/test_gradients.py::test_the_micro_batch_size_cannot_change_the_gradient",
        "training/test_lessons_more.py::test_the_micro_batch_size_cannot_change_the_gradient_of_the_cold_start",
    ],
    "masked samples change nothing, an all-masked batch is a no-op": [
        "algorithms/test_aggregation.py::test_adding_a_fully_masked_sample_changes_nothing",
        "algorithms/test_aggregation.py::test_an_all_masked_minibatch_is_a_no_op_for_weights_and_momentum",
        "training/test_session.py::test_unscored_completions_are_counted_and_no_score_at_all_is_a_no_op",
    ],
    "the same mask in numerator and denominator": [
        "algorithms/test_aggregation.py::test_a_fully_masked_completion_is_in_neither_side",
        "algorithms/test_gradients.py::test_loss_and_gradients_equal_the_slow_reference",
        "training/test_lessons_more.py::test_what_is_measured_has_the_mask_of_what_is_trained",
    ],
    # Numerics
    "mask before exp; clamp log-ratios": ["algorithms/test_regions.py::test_huge_log_ratios_stay_finite"],
    "float32 logits and masters; parameters move at step 1": [
        "ops/test_logprobs.py::test_low_precision_logits_are_scored_in_float32",
        "model/test_optim.py::test_bfloat16_with_masters_moves_at_1e_6_where_pure_bfloat16_does_not",
        "training/test_session.py::test_a_step_moves_every_kind_of_parameter",
    ],
    "two-pass deviation, exact test for constant groups": [
        "algorithms/test_advantages.py::test_one_failure_among_seven_nearly_equal_rewards",
        "algorithms/test_advantages.py::test_equal_rewards_give_exactly_zero",
        "training/test_session.py::test_equal_rewards_everywhere_leave_only_the_decay_that_the_recipe_asks_for",
    ],
    "a non-finite gradient is skipped, counted, and three in a row stop": [
        "model/test_optim.py::test_a_non_finite_gradient_changes_nothing_and_is_counted",
        "model/test_optim.py::test_three_non_finite_gradients_in_a_row_stop_the_run",
        "test_lessons.py::test_non_finite_losses_stop_a_run_with_its_weights_as_they_were",
    ],
    # KL
    "KL: sign, zero at step 1, larger coefficient gives smaller KL, exact gradient": [
        "algorithms/test_kl.py::test_a_step_on_the_sampled_token_has_the_right_sign",
        "algorithms/test_kl.py::test_which_gradients_are_that_of_the_kl_on_policy",
        "algorithms/test_kl.py::test_which_gradients_survive_stale_data",
        "model/test_reference.py::test_a_larger_coefficient_keeps_the_policy_closer",
        "training/test_sources.py::test_before_the_first_update_everything_is_the_same_policy",
        "training/test_session.py::test_engine_trainer_and_reference_agree_before_the_first_update",
    ],
    "the reference is the model the run started from, also after a resume": [
        "training/test_kill_resume.py::test_a_killed_run_ends_with_the_same_bits",
        "training/test_family_resume.py::test_a_stopped_run_ends_with_the_same_bits",
    ],
    "LoRA: the reference is the adapter the run started from, not the base below it": [
        "model/test_lora.py::test_the_reference_is_the_adapter_the_run_started_from_and_not_the_base_below_it",
        "model/test_lora.py::test_a_stopped_run_ends_with_the_same_bits",
    ],
    "LoRA: rollouts see the adapter, and the base is never trained": [
        "model/test_lora.py::test_engine_trainer_and_reference_agree_and_rollouts_see_the_adapter",
        "model/test_lora.py::test_a_run_moves_the_adapter_and_never_the_base_and_its_checkpoints_are_small",
    ],
    # Groups
    "group by id, never by text; filter whole groups": [
        "test_lessons.py::test_equal_prompts_are_groups_of_their_own",
        "engine/test_engines.py::test_a_prompt_drawn_twice_and_other_keys_give_other_completions",
        "training/test_sources.py::test_groups_without_both_outcomes_are_replaced_from_the_stream",
        "training/test_experience.py::test_make_batch_keeps_or_drops_zero_variance_groups_and_always_drops_unusable_ones",
    ],
    "every odd return of a reward has a defined outcome": [
        "rewards/test_rewards_runner.py::test_one_bad_row_is_one_fault_and_unscored",
        "rewards/test_rewards_runner.py::test_a_malformed_reply_for_the_whole_batch_stops_the_run",
        "training/test_session.py::test_a_few_faults_are_counted_and_the_run_goes_on",
        "training/test_session.py::test_too_many_faults_stop_the_run_with_the_traceback_and_a_mended_reward_goes_on",
    ],
    # Ends and masks
    "stop ids of generation config, tokenizer and template; masks from lengths": [
        "engine/test_engines.py::test_stop_ids_unite_all_sources",
        "engine/test_engines.py::test_stop_ids_know_the_end_of_turn_of_the_chat_template",
        "engine/test_engines.py::test_padding_is_no_token",
    ],
    "over-long prompts counted and reported": [
        "data/test_prompts.py::test_long_prompts_are_left_out_and_counted",
        "tools/test_doctor.py::test_prompts_that_are_too_long_are_counted",
        "training/test_lessons_more.py::test_a_run_says_how_many_prompts_it_leaves_out",
    ],
    "prefilled <think> must not zero a format reward": [
        "verify/test_rewards_math.py::test_think_format",
        "model/test_chat.py::test_prefilled_think_is_detected_in_the_rendered_prompt",
    ],
    # Verifiers
    "a verifier that hangs is killed by the clock": [
        "rewards/test_rewards_runner.py::test_a_completion_that_hangs_scores_zero_and_the_others_keep_their_scores",
        "rewards/test_rewards_runner.py::test_catastrophic_pattern_is_killed",
    ],
    "known wrong verdicts": ["verify/test_rewards_math.py::test_verdicts"],
    "an unparseable gold never earns a reward": [
        "verify/test_rewards_math.py::test_an_unusable_reference_answer_raises_and_is_shown",
        "rewards/test_rewards_runner.py::test_an_unusable_reference_answer_is_a_fault_of_its_row",
    ],
    "no verifier evaluates model text": ["rewards/test_gym_tasks.py::test_exactly_the_jailed_tasks_can_run_text"],
    # Runs
    "resume: noise, cursor, optimizer, schedule and the unfinished batch": [
        "training/test_kill_resume.py::test_a_killed_run_ends_with_the_same_bits",
        "training/test_kill_resume.py::test_a_signal_inside_a_batch_saves_the_unfinished_batch_and_resume_uses_it",
        "training/test_kill_resume.py::test_twenty_kills",
    ],
    "SIGTERM anywhere saves; no orphans; a flipped bit is found": [
        "training/test_kill_resume.py::test_a_signal_while_starting_is_an_interruption_too",
        "training/test_kill_resume.py::test_no_reward_worker_outlives_a_killed_run",
        "training/test_kill_resume.py::test_a_damaged_checkpoint_is_named_and_the_one_before_is_used",
    ],
    "best checkpoint by held-out reward": [
        "training/test_session.py::test_the_best_checkpoint_is_the_one_with_the_best_held_out_reward"
    ],
    # Words
    "why is my loss or reward 0, said at the console": [
        "observe/test_diagnosis.py::test_trigger",
        "observe/test_diagnosis.py::test_what_looks_bad_but_is_not",
    ],
    "batch sizes in one unit": ["recipe/test_schema.py::test_names_of_trl_are_answered_with_the_key_here"],
    "preflight": [
        "tools/test_doctor.py::test_the_demo_is_in_order",
        "tools/test_doctor.py::test_a_reward_that_no_reference_answer_satisfies",
        "tools/test_doctor.py::test_a_reward_that_every_answer_satisfies",
        "training/test_session.py::test_positions_that_the_model_does_not_have_stop_the_run_at_start",
        "training/test_preflight.py::test_trial_rollouts_warn_of_cut_completions_and_of_copies",
    ],
    "every completion kept; evaluation held out, its own sampling": [
        "test_cli.py::test_rollouts_hold_every_completion_with_parts_advantage_ids_and_logprobs",
        "training/test_session.py::test_evaluation_prompts_in_training_are_refused_at_start",
        "training/test_lessons_more.py::test_without_a_named_set_a_share_of_the_rows_is_held_out_and_never_trained_on",
    ],
    "zero-variance groups can be dropped": [
        "algorithms/test_gradients.py::test_dropping_zero_variance_groups_scales_the_gradient_by_the_documented_denominators",
    ],
    # Verifiers
    "Math-Verify in a killable worker process; the trainer keeps its pulse": [
        "verify/test_math_hostile.py::test_bombs_come_to_an_end_and_the_trainer_keeps_its_pulse",
        "verify/test_math_hostile.py::test_what_cannot_give_up_by_itself_is_killed_and_the_next_question_is_answered",
        "verify/test_math_pairs.py::test_the_same_verdicts_from_a_thread_and_from_asyncio",
    ],
    "known wrong verdicts of Math-Verify": ["verify/test_math_pairs.py::test_every_row_of_the_table"],
    "an unusable gold earns nothing and is named at start": [
        "verify/test_math_answer.py::test_unusable_reference_answers_are_named_before_the_run",
        "verify/test_math_answer.py::test_a_bomb_in_the_reference_answer_leaves_the_row_unscored",
        "rewards/test_rewards_runner.py::test_rows_that_can_never_be_scored_are_named_before_the_run",
        "training/test_lessons_more.py::test_a_run_says_what_is_wrong_with_its_golds_before_it_starts",
    ],
    "no parser that runs code sees model text outside the jail": [
        "verify/test_math_hostile.py::test_injections_run_nothing",
        "verify/test_math_hostile.py::test_the_trainer_never_imports_a_computer_algebra_system",
        "rewards/test_gym_guards.py::test_no_code_passes_a_grammar",
        "rewards/test_gym_guards.py::test_an_audited_worker_never_compiles_hostile_text",
    ],
    "code is graded by plain values that the host compares": [
        "verify/test_code_tests.py::test_no_cheat_scores",
        "verify/test_code_tests.py::test_expected_values_are_nowhere_in_the_jail",
        "verify/test_jail_hostile.py::test_a_sample_of_hostile_programs",
    ],
    "limits bind for root, and only own processes are ended": [
        "verify/test_sandbox.py::test_the_environment_is_empty_and_the_user_another",
        "verify/test_sandbox.py::test_nothing_is_left_behind",
        "verify/test_sandbox.py::test_a_jail_dies_with_its_host",
    ],
    # transformers 5
    "a saved tokenizer comes back as it was": [
        "model/test_scratch.py::test_saving_and_loading_changes_nothing",
        "test_api.py::test_the_saved_model_loads_and_writes_what_the_engine_writes",
        "model/test_tokenizer.py::test_a_tokenizer_of_characters_keeps_its_spaces",
    ],
    "no mask reaches attention, and unknown arguments are refused": [
        "test_lessons.py::test_attention_refuses_masks_and_arguments_it_does_not_honour",
        "engine/test_engines.py::test_what_is_not_exact_is_refused_by_name_and_auto_falls_back",
    ],
}


def test_every_named_test_exists():
    here = Path(__file__).parent
    known: dict[str, set[str]] = {}
    for name in {entry.partition("::")[0] for tests in LESSONS.values() for entry in tests}:
        tree = ast.parse((here / name).read_text(encoding="utf-8"))
        known[name] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    missing = [
        entry
        for tests in LESSONS.values()
        for entry in tests
        if entry.partition("::")[2] not in known[entry.partition("::")[0]]
    ]
    assert missing == []
    assert all(LESSONS.values())


# -- lessons without a test elsewhere ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A saved model whose checkpoint asks for near-greedy sampling and whose configuration has dropout."""
    shape = ScratchConfig(
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        max_positions=32,
        characters="0123456789+=>/\n",
    )
    model, tokenizer = build_scratch(shape, (), 0)
    model.config.attention_dropout = 0.5
    model.generation_config.update(do_sample=True, temperature=0.01, top_k=1, top_p=0.1, repetition_penalty=1.5)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_generation_config_of_a_checkpoint_does_not_reach_a_run(tmp_path, folder):
    """transformers would turn temperature 1 into near-greedy top-k; a group would then hold copies of one completion."""
    row = rows_of(run_with(digit_share, tmp_path, **{"model.source": str(folder)}).folder)[0]
    assert row["rollout/distinct"] > 0.9
    assert row["rollout/mismatch_max"] <= 1e-5


def test_a_model_with_dropout_is_scored_as_it_sampled(tmp_path, folder):
    """Train mode would drop half of the attention in scoring: the ratio at step 1 shows it."""
    for row in rows_of(run_with(digit_share, tmp_path, **{"model.source": str(folder), "train.num_steps": 3}).folder):
        assert row["rollout/mismatch_max"] <= 1e-5


def test_nothing_is_tokenised_while_training(tmp_path, monkeypatch):
    """From the first rollout to the last update no text becomes ids: what is trained on is what was sampled."""
    from cohort import loop

    original = loop.train

    def guarded(parts: Any, state: Any, until: int) -> None:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("text was tokenised inside the loop")

        with monkeypatch.context() as patch:
            for method in ("__call__", "encode", "apply_chat_template", "_encode_plus"):
                patch.setattr(type(parts.policy.tokenizer), method, refuse)
            original(parts, state, until)

    monkeypatch.setattr(loop, "train", guarded)
    assert run_with(digit_share, tmp_path).status == "finished"


def test_equal_prompts_are_groups_of_their_own(tmp_path):
    """The same text twice in a step: advantages are against one's own group, not against both."""
    prompts = [Prompt(0, "1+1=", {}, (1, 2)), Prompt(1, "1+1=", {}, (1, 2))]
    completions = [[Completion((3,), (-1.0,), "stop", "x")] * 2] * 2
    outcomes = [Outcome({"r": reward}, reward, reward > 0.5) for reward in (1.0, 0.0, 0.2, 0.2)]
    rollouts = [rollout for group in group_rollouts(prompts, completions, outcomes, 0) for rollout in group]
    recipe = tiny(tmp_path, **FAST | {"train.group_size": 2, "algorithm.kl_coef": 0.0})
    models = Models(tiny_policy(), None, NoCritic())
    batch = collect_batch(Collected(rollouts, {}, prompts_taken=2, tokens_sampled=4), models, recipe, 1, kl_coef=0.0)
    assert [rollout.group for rollout in batch.rollouts] == [0, 0, 1, 1]
    assert batch.advantages_N == pytest.approx([1.0, -1.0, 0.0, 0.0], abs=1e-5)


def test_non_finite_losses_stop_a_run_with_its_weights_as_they_were(tmp_path, monkeypatch):
    """Three updates in a row with NaN in the loss: the run stops, and its checkpoint holds the weights of the start."""
    from cohort import loop
    from cohort.training import checkpoint
    from cohort.training.objective import token_loss

    def poisoned(*args: Any) -> Any:
        import dataclasses

        loss = token_loss(*args)
        return dataclasses.replace(loss, loss_M=loss.loss_M * torch.nan)

    monkeypatch.setattr(loop, "token_loss", poisoned)
    with pytest.raises(InvariantError, match="non-finite"):
        run_with(digit_share, tmp_path, **{"train.num_steps": 5})
    rows = rows_of(tmp_path / "run")
    assert [row["optim/skipped"] for row in rows] == [1, 1]
    from test_session import start_weights

    saved = checkpoint.latest(tmp_path / "run" / "checkpoints").snapshot.tensors["weights"]
    assert all(torch.equal(saved[name], value) for name, value in start_weights(tmp_path).items())


def test_attention_refuses_masks_and_arguments_it_does_not_honour():
    """A mask would bring back repeated keys and values, an ignored argument another model."""

    class Module:
        is_causal = True

    query, scales = torch.zeros(1, 1, 2, 4), []
    register_attention("cohort_test", lambda *arguments: scales.append(arguments[4]))
    attend = functools.partial(AttentionInterface()["cohort_test"], Module(), query, query, query)
    attend(None, position_ids=query)
    assert scales == [0.5]
    with pytest.raises(EngineError, match="not plain causal"):
        attend(torch.zeros(2, 2))
    with pytest.raises(EngineError, match="not plain causal"):
        attend(None, dropout=0.1)
    with pytest.raises(EngineError, match="sinks"):
        attend(None, s_aux=query)
    with pytest.raises(EngineError, match="'novelty'"):
        attend(None, novelty=3)
    assert len(scales) == 1
