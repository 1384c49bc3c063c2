"""Words of other tools: what they are called here, with their values, on the command line, from Python and in files."""

from __future__ import annotations

import dataclasses

import pytest

from cohort.errors import RecipeError
from cohort.recipe.file import load_recipe, parse_override, write_override
from cohort.recipe.foreign import CONVERSIONS, convert_value, explain_missing, explain_unclear, list_translated, read_tables
from recipe_page import list_plain_words

MISSING = [word for pattern in read_tables()["missing"] for word in list_plain_words(pattern)]


def message(*overrides: str, **values) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(overrides=overrides, values=values)
    return str(caught.value)


VALUES = [
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
    ("ppo_mini_batch_size=64", ["train_batch_size=256"], "minibatches_per_step=4"),
    ("num_iterations=2", [], "passes_per_step=2"),
    ("ref_model_mixup_alpha=0.6", [], "reference_decay=0.4"),  # pi_ref = alpha pi + (1 - alpha) pi_ref
    ("ref_model_mixup_alpha=0.1", ["ref_model_sync_steps=1"], "reference_decay=0.9"),
    ("ref_model_sync_steps=64", ["ref_model_mixup_alpha=1.0"], "reference_every=64"),
    ("epsilon_high=0.28", [], "clip_high=0.28"),
    ("epsilon_high=5.0", ["loss_type=cispo"], "ratio_cap=5"),  # there the bound of the ratio itself
    ("clip_ratio=0.2", [], "clip_low=0.2 clip_high=0.2"),
    ("eps_clip_low_high=[0.2, 0.3]", [], "clip_low=0.2 clip_high=0.3"),
    ("delta=4.0", [], "region=dual_clip dual_clip=4"),
    ("beta=0.04", [], "kl_coef=0.04"),
    ("lr=1e-6", [], "learning_rate=1e-06"),
    ("loss_type=dr_grpo", [], "aggregation=constant"),
    ("scale_rewards=false", [], "advantage=group_centered"),
    ("scale_rewards=0", [], "advantage=group_centered"),
    ("scale_rewards=batch", [], "advantage=batch_std"),
    ("kl_loss_type=low_var_kl", [], "kl_estimator=k3"),
    ("vllm_importance_sampling_mode=token_mask", [], "mismatch_weight=token_mask"),
    ("vllm_importance_sampling_correction=false", [], "mismatch_weight=off"),
    ("vllm_importance_sampling_clip_max=3.0", [], "mismatch_cap=3"),
    ("vllm_server_base_url=http://10.0.0.5:8000", [], "servers=http://10.0.0.5:8000"),
    ("adv_estimator=reinforce_plus_plus", [], "algorithm.name=reinforce++"),
    ("warmup_ratio=0.1", ["num_steps=50"], "warmup_steps=5"),
    ("warmup_ratio=0.1", ["max_steps=45", "steps_per_generation=4"], "warmup_steps=5"),  # ceil(4.5) optimizer steps
    ("lr_scheduler_type=constant_with_warmup", [], "schedule=constant"),
    ("bf16=true", [], "dtype=bfloat16"),
    ("bf16=1", [], "dtype=bfloat16"),
    ("use_wandb=0123abcd", [], "wandb=true"),  # there the key of an account
    ("torch_dtype=torch.bfloat16", [], "dtype=bfloat16"),
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
    ("max_prompt_length=512", [], "max_prompt_tokens=512"),
]


@pytest.mark.parametrize(("word", "beside", "ours"), VALUES, ids=[f"{word} {ours}" for word, _, ours in VALUES])
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


def test_a_table_under_a_word_of_others_is_not_read_as_our_words():
    assert "write warmup_steps={" in message("lr_warmup_steps={ratio=1}")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("num_train_epochs=3", "num_steps = epochs x rows / prompts_per_step"),
        ("gradient_accumulation_steps=4", "never the gradient"),
        ("use_vllm=true", "sampling.servers names vLLM servers"),
        ("vllm_importance_sampling_correction=true", "algorithm.mismatch_weight"),
        ("report_to=none", "metrics.jsonl is always written"),
        ("report_to=comet_ml", "metrics.jsonl is always written"),
        ("peft_config=x", "model.lora.rank=16 trains adapters"),
        ("loss_type=vespo", "algorithm.aggregation"),
        ("ref_model_mixup_alpha=1.0", "1 is reference_every"),
        ("ref_model_mixup_alpha=many", "1 - ref_model_mixup_alpha"),
        ("per_device_train_batch_size=[1]", "counts completions"),
        ("max_steps=-1", "optimizer steps"),
    ],
)
def test_a_value_that_cannot_be_told_is_not_made_up(word, said):
    shown = message(word)
    assert said in shown
    assert "write" not in shown


@pytest.mark.parametrize(
    "word", [*sorted(MISSING), "vllm_mode", "hub_strategy", "torch_compile_mode", "dataloader_num_workers"]
)
def test_words_without_a_counterpart_say_what_there_is_instead(word, tmp_path):
    said = f"; there is no such word here: {explain_missing(word)}"
    assert said in message(f"{word}=1")
    (tmp_path / "r.toml").write_text(f"[train]\n{word} = 1\n", encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "r.toml")
    assert said in str(caught.value)


def test_sections_of_other_tools_are_answered_word_by_word():
    said = message(
        "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.optim.lr=1e-6", "data.train_batch_size=64", "data.x=1"
    )
    assert "'n'; here it is called train.group_size: write group_size=8" in said
    assert "'lr'; here it is called optimizer.learning_rate: write learning_rate=1e-06" in said
    assert "'train_batch_size'; here it is called train.prompts_per_step: write prompts_per_step=64" in said
    assert "critic.learning_rate" in message("critic.optim.lr=1e-5")


def test_all_words_of_another_tool_are_answered_at_once():
    said = message("num_generations=4", "beta=0.1", "logging_steps=1", "group_sise=3").splitlines()
    assert [line.split("'")[1] for line in said] == ["num_generations", "beta", "logging_steps", "group_sise"]


def test_every_conversion_is_of_a_word_and_every_choice_exists():
    tables, translated = read_tables(), list_translated()
    known = {*translated, *translated.values()}
    for words in (CONVERSIONS, tables["values"], tables["remarks"], tables["untold"]):
        assert {*words} <= known
    assert len(translated) == sum(map(len, tables["called"].values())), "a word stands twice"
    assert not [word for word in translated if explain_missing(word) or explain_unclear(word)]
    for word, values in tables["values"].items():
        for theirs in values:
            theirs = {"true": True, "false": False}.get(theirs, theirs)
            ours = convert_value(next(each for each in translated if word in (each, translated[each])), theirs, {})
            corrected = ["kl_corrected=true"] if "k1" in ours.values() else []
            load_recipe(values=ours, overrides=corrected)
    for word in translated:  # whatever the value is, nothing raises
        for value in (None, "x", -1, 0, 0.5, 1e308, float("nan"), [], ["a"], {}, True):
            convert_value(word, value, {"gradient_accumulation_steps": 0, "num_generations": "x", "num_steps": 1e308})


def test_every_word_of_trls_config_is_ours_or_answered():
    """Of GRPOConfig and of the TrainingArguments below it: none is met with a shrug."""
    trl = pytest.importorskip("trl")
    assert [field.name for field in dataclasses.fields(trl.GRPOConfig) if not write_override(field.name, "1")] == []
