"""TRL's names: the keys here, with their values, on the command line, from Python and in files."""

from __future__ import annotations

import pytest

from cohort.errors import RecipeError
from cohort.recipe.file import load_recipe, parse_override, resolve_undotted
from cohort.recipe.trl_names import CONVERSIONS, COUNTING, NOT_CONVERTED, TRL_NAMES, UNCLEAR, VALUES, convert_value
from pages import read_page
from trl_page import list_unanswered, read_defaults


def message(*overrides: str, **values) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(overrides=overrides, values=values)
    return str(caught.value)


CASES = [
    # per_device x accumulation = generation_batch_size completions; / num_generations = unique prompts (GRPOConfig.__post_init__)
    ("per_device_train_batch_size=16", ["gradient_accumulation_steps=4", "num_generations=8"], "prompts_per_step=8"),
    ("per_device_train_batch_size=16", ["gradient_accumulation_steps=4", "group_size=4"], "prompts_per_step=16"),
    ("per_device_train_batch_size=8", ["steps_per_generation=4", "gradient_accumulation_steps=2"], "prompts_per_step=4"),
    ("per_device_train_batch_size=4", [], "num_generations)"),  # 4 / 8 is no number of prompts: the rule alone
    ("generation_batch_size=64", ["num_generations=16"], "prompts_per_step=4"),
    ("steps_per_generation=8", ["gradient_accumulation_steps=2"], "minibatches_per_step=4"),
    ("max_steps=100", [], "num_steps=100"),
    # four optimizer steps for every generation (generate_every = steps_per_generation x num_iterations micro-steps)
    ("max_steps=100", ["steps_per_generation=4", "gradient_accumulation_steps=2", "num_iterations=2"], "num_steps=25"),
    ("num_iterations=2", [], "passes_per_step=2"),
    ("ref_model_mixup_alpha=0.6", [], "reference_decay=0.4"),  # pi_ref = alpha pi + (1 - alpha) pi_ref
    ("ref_model_mixup_alpha=0.1", ["ref_model_sync_steps=1"], "reference_decay=0.9"),
    ("ref_model_sync_steps=64", ["ref_model_mixup_alpha=1.0"], "reference_every=64"),
    ("epsilon_high=0.28", [], "clip_high=0.28"),
    ("epsilon_high=5.0", ["loss_type=cispo"], "ratio_cap=5"),  # there the bound of the ratio itself
    ("delta=4.0", [], "region=dual_clip dual_clip=4"),
    ("beta=0.04", [], "kl_coef=0.04"),
    ("loss_type=dr_grpo", [], "aggregation=constant"),
    ("loss_type=luspo", [], "aggregation=sequence_sum"),
    ("loss_type=bnpo", [], "aggregation=token_mean"),
    ("scale_rewards=false", [], "advantage=group_centered"),
    ("scale_rewards=0", [], "advantage=group_centered"),
    ("scale_rewards=batch", [], "advantage=batch_std"),
    ("vllm_importance_sampling_mode=token_mask", [], "mismatch_weight=token_mask"),
    ("vllm_importance_sampling_correction=false", [], "mismatch_weight=off"),
    ("vllm_importance_sampling_clip_max=3.0", [], "mismatch_cap=3"),
    ("vllm_server_base_url=http://10.0.0.5:8000", [], "servers=http://10.0.0.5:8000"),
    ("lr_scheduler_type=constant_with_warmup", [], "schedule=constant"),
    ("bf16=true", [], "dtype=bfloat16"),
    ("bf16=1", [], "dtype=bfloat16"),
    ("report_to=wandb", [], "wandb=true"),
    ('report_to=["wandb", "tensorboard"]', [], "wandb=true tensorboard=true"),
    ("use_peft=true", ["lora_r=64"], "rank=64"),
    ("lora_alpha=32", [], "alpha=32"),
    ("eval_dataset=test.jsonl", [], "evaluation.sets.test.source=test.jsonl"),
    ("output_dir=out/first", [], "runs_folder=out name=first"),
    ("output_dir=first", [], "name=first"),
    ("reward_weights=[1.0, 0.5]", [], "rewards.0.weight=1 rewards.1.weight=0.5"),
    ("disable_tqdm=true", [], "console=false"),
    ("log_completions=true", [], "show_every=25"),
    ("gradient_checkpointing=true", [], "activation_checkpointing=true"),
    ("optim=adamw_8bit", [], "state_bits=8"),
]


@pytest.mark.parametrize(("word", "beside", "ours"), CASES, ids=[f"{word} {ours}" for word, _, ours in CASES])
def test_a_value_is_written_in_our_words_and_what_is_written_is_accepted(word, beside, ours):
    name = word.partition("=")[0]
    line = next(line for line in message(word, *beside).splitlines() if f"'{name}'" in line)
    assert f"write {ours}" in f"{line} " if "=" in ours else ours in line
    if "=" in ours:
        written = line.partition("write ")[2].partition(" (")[0]
        assert written == ours
        load_recipe(overrides=[*written.split(), 'rewards=[{function="math_answer"}, {function="think_format"}]'][::-1])
    values = dict(map(parse_override, [word, *beside]))
    assert line in message(**values).splitlines()  # from Python the same


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("num_train_epochs=3", "num_steps = epochs x rows / prompts_per_step"),
        ("gradient_accumulation_steps=4", "never the gradient"),
        ("use_vllm=true", "called sampling.servers"),
        ("vllm_importance_sampling_correction=true", "algorithm.mismatch_weight"),
        ("report_to=none", "monitors.also"),
        ("report_to=comet_ml", "monitors.also"),
        ("peft_config=x", "model.lora.rank"),
        ("loss_type=vespo", "algorithm.aggregation"),
        ("optim=lion_8bit", "optimizer.state_bits"),
        ("ref_model_mixup_alpha=1.0", "algorithm.reference_decay"),
        ("ref_model_mixup_alpha=many", "algorithm.reference_decay"),
        ("per_device_train_batch_size=[1]", "TRL counts completions"),
        ("max_steps=-1", "optimizer steps"),
    ],
)
def test_a_value_that_cannot_be_converted_is_not_made_up(word, said):
    shown = message(word)
    assert said in shown
    assert "write" not in shown


def test_all_names_of_trl_are_answered_at_once():
    said = message("num_generations=4", "beta=0.1", "logging_steps=1", "group_sise=3").splitlines()
    assert [line.split("'")[1] for line in said] == ["num_generations", "beta", "logging_steps", "group_sise"]


def test_bnpo_is_a_token_mean_only_where_a_batch_is_not_accumulated():
    assert convert_value("loss_type", "bnpo", {"gradient_accumulation_steps": 4}) == {}


def test_every_conversion_belongs_to_a_name_and_gives_a_valid_choice():
    for names in (CONVERSIONS, VALUES, COUNTING, NOT_CONVERTED):
        assert {*names} <= {*TRL_NAMES, "warmup_steps"}
    for name, values in VALUES.items():
        for theirs in values:
            ours = convert_value(name, {"true": True, "false": False}.get(theirs, theirs), {})
            load_recipe(values=ours)
    for name in TRL_NAMES:  # whatever the value is, nothing raises
        for value in (None, "x", -1, 0, 0.5, 1e308, float("nan"), [], ["a"], {}, True):
            convert_value(name, value, {"gradient_accumulation_steps": 0, "num_generations": "x", "num_steps": 1e308})


@pytest.mark.parametrize("key", UNCLEAR)
def test_a_key_that_most_people_mean_differently_needs_its_section(key):
    with pytest.raises(RecipeError):
        resolve_undotted(key)
    assert message(f"{key}=1") == f"{key}: {UNCLEAR[key]}"


def test_the_page_answers_every_option_of_trls_config():
    """Of GRPOConfig and of the TrainingArguments below it; and TRL_NAMES has no name that TRL does not have."""
    trl = pytest.importorskip("trl")
    import dataclasses
    import inspect

    from trl.scripts.grpo import GRPOScriptArguments

    defaults, by_hand = read_defaults(), read_page("from-trl.md").partition("### Options without a counterpart")[2]
    assert [name for name in sorted(list_unanswered(defaults)) if f"`{name}`" not in by_hand] == []
    known = {field.name for config in (trl.ModelConfig, GRPOScriptArguments) for field in dataclasses.fields(config)}
    assert {*TRL_NAMES} <= {*defaults} | known | {*inspect.signature(trl.GRPOTrainer.__init__).parameters}
