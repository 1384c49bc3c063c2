"""`cohort.train(args=GRPOConfig(...), peft_config=LoraConfig(...))`: every option is translated, listed or refused by name."""

from __future__ import annotations

import dataclasses

import pytest

import cohort
from cohort.errors import RecipeError
from cohort.model.optim import find_learning_rate
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import OptimizerConfig
from cohort.recipe.trl_config import ACTS, JOINT, NO_EFFECT, SAME, TRANSLATED, WHERE_CHANGED, translate_config, translate_lora
from cohort.training.launch import LAUNCHED, leave_process_group

trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")
ROWS = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(10, 40)]
REFUSED = (
    "auto_find_batch_size deepspeed entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target fsdp fsdp_config generation_kwargs "
    "label_smoothing_factor min_p neftune_noise_alpha off_policy_mask_threshold optim_args optim_target_modules parallelism_config "
    "repetition_penalty resume_from_checkpoint router_aux_loss_coef top_entropy_quantile top_k top_p train_sampling_strategy "
    "use_adaptive_entropy"
)


def config(**options):
    return trl.GRPOConfig(**{"use_cpu": True, "bf16": False, "max_steps": 12} | options)


def translate(rows=200, rewards=1, **options):
    """(the recipe, the settings, the options listed as unused)."""
    settings, unused = translate_config(config(**options), rows, rewards)
    base = {"prompts.source": "rows", "rewards": [{"function": "math_answer"}]}
    return load_recipe(values=base | settings), settings, unused


def test_every_option_of_trl_is_in_one_list():
    names = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    translated = {*SAME, *TRANSLATED, *WHERE_CHANGED, *JOINT}
    assert translated <= names
    others = names - translated
    assert {name for name in others if not NO_EFFECT.fullmatch(name)} == {*REFUSED.split()}
    assert {*ACTS} <= others


def test_the_default_config_is_trls_algorithm_and_not_ours():
    """A config cannot tell beta=0.0 from no beta, so what it holds is what trains."""
    recipe, _, unused = translate()
    algorithm, train = recipe.algorithm, recipe.train
    assert (algorithm.kl_coef, algorithm.aggregation, algorithm.std_ddof, algorithm.std_epsilon) == (0.0, "token_mean", 1, 1e-4)
    assert (recipe.optimizer.schedule, recipe.optimizer.learning_rate, recipe.seed) == ("linear", 1e-6, 42)
    assert (train.group_size, train.prompts_per_step, train.num_steps) == (8, 1, 12)
    assert (
        recipe.checkpoints.every_steps == load_recipe().checkpoints.every_steps
    )  # acts on no weight: only where it was changed
    assert unused == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"beta": 0.1}, {"algorithm.kl_coef": 0.1, "algorithm.kl_corrected": True}),
        ({"loss_type": "luspo"}, {"algorithm.aggregation": "sequence_sum"}),
        ({"loss_type": "cispo", "epsilon_high": 5.0, "delta": 4.0}, {"algorithm": "cispo", "algorithm.ratio_cap": 5.0}),
        ({"loss_type": "sapo"}, {"algorithm": "sapo", "algorithm.soft_down": 1.05}),
        ({"importance_sampling_level": "sequence", "loss_type": "grpo"}, {"algorithm.region": "sequence"}),
        ({"delta": 4.0}, {"algorithm.region": "dual_clip", "algorithm.dual_clip": 4.0}),
        ({"scale_rewards": False}, {"algorithm.advantage": "group_centered"}),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"},
            {"algorithm.advantage": "parts_normalized"},
        ),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_iterations": 2}, {"train.num_steps": 3}),
        ({"max_steps": -1, "per_device_train_batch_size": 64}, {"train.prompts_per_step": 8, "train.num_steps": 75}),
        ({"warmup_steps": 0.1, "max_steps": 95}, {"optimizer.warmup_steps": 10}),
        ({"warmup_steps": 5, "lr_scheduler_type": "constant"}, {"optimizer.warmup_steps": 0}),
        ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-7}}, {"optimizer.final_share": 0.1}),
        ({"optim": "adamw_8bit"}, {"optimizer.state_bits": 8}),
        ({"report_to": ["wandb", "trackio"]}, {"monitors.wandb": True, "monitors.also": ["trackio"]}),
        ({"output_dir": "out/first"}, {"runs_folder": "out", "name": "first"}),
        ({"eval_strategy": "steps", "eval_steps": 6}, {"evaluation.every_steps": 6}),
        ({"save_steps": 10, "save_total_limit": 3}, {"checkpoints.every_steps": 10, "checkpoints.keep": 3}),
        ({"reward_weights": [0.5]}, {"rewards.0.weight": 0.5}),
        ({"sync_ref_model": True, "beta": 0.1, "ref_model_sync_steps": 1}, {"algorithm.reference_decay": 0.4}),
        ({"sync_ref_model": True, "beta": 0.1, "ref_model_mixup_alpha": 1.0}, {"algorithm.reference_every": 512}),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://127.0.0.1:1"},
            {
                "sampling.servers": ["http://127.0.0.1:1"],
                "algorithm.mismatch_weight": "sequence_mask",
                "algorithm.mismatch_cap": 3.0,
            },
        ),
        ({"model_init_kwargs": {"dtype": "float32", "revision": "main"}}, {"model.dtype": "float32", "model.revision": "main"}),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_are_settings_that_a_recipe_accepts(options, expected):
    _, settings, _ = translate(**options)
    assert {path: settings[path] for path in expected} == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top_k": 20}, "args.top_k=20: training samples from the policy's full distribution"),
        ({"loss_type": "vespo"}, "args.loss_type='vespo'"),
        ({"loss_type": "bnpo", "gradient_accumulation_steps": 2}, "use dapo"),
        ({"optim": "lion_8bit"}, "args.optim='lion_8bit': AdamW is the only optimizer"),
        ({"lr_scheduler_type": "polynomial"}, "args.lr_scheduler_type='polynomial'"),
        ({"max_steps": 3, "num_iterations": 2}, "args.max_steps=3: it counts optimizer steps"),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 1}, "args.steps_per_generation=1"),
        ({"use_vllm": True}, "args.vllm_mode='colocate': vLLM runs as a server"),
        ({"reward_weights": [0.5, 1.0]}, "one weight for each reward"),
        ({"importance_sampling_level": "sequence", "loss_type": "cispo"}, "cannot be combined"),
        ({"sync_ref_model": True, "beta": 0.1}, "both at once is not built in"),
        ({"eval_strategy": "epoch"}, "args.eval_strategy='epoch'"),
        ({"neftune_noise_alpha": 5.0, "top_entropy_quantile": 0.2}, "docs/from-trl.md"),
        ({"model_init_kwargs": {"attn_implementation": "eager"}}, "args.model_init_kwargs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_act_on_the_training_and_have_no_counterpart_are_refused(options, said):
    with pytest.raises(RecipeError) as caught:
        translate(**options)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == (2 if len(options) == 2 and "neftune_noise_alpha" in options else 1)


def test_options_without_effect_are_listed():
    _, _, unused = translate(
        logging_steps=1, push_to_hub=False, run_name="x", data_seed=3, report_to="mlflow", dataloader_num_workers=2
    )
    assert sorted(unused) == ["data_seed", "dataloader_num_workers", "logging_steps", "report_to", "run_name"]


def test_epochs_need_the_number_of_rows():
    with pytest.raises(RecipeError, match=r"args.num_train_epochs=3.0: the number of rows is not known"):
        translate(rows=None, max_steps=-1)
    settings, _ = translate_config(config(max_steps=-1, warmup_steps=0.1, num_iterations=2), None, 1, num_steps=20)
    assert (settings["train.num_steps"], settings["optimizer.warmup_steps"]) == (20, 4)


def test_a_lora_config():
    full = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    assert translate_lora(full) == {"model.lora.rank": 16, "model.lora.alpha": 32.0, "model.lora.targets": []}
    assert translate_lora(peft.LoraConfig(target_modules=["v_proj", "q_proj"]))["model.lora.targets"] == ["q_proj", "v_proj"]
    for options, said in (
        ({}, "'all-linear' for every linear layer"),  # PEFT would pick by architecture
        ({"target_modules": ".*proj"}, "target_modules='.*proj'"),
        ({"target_modules": ["q_proj"], "lora_dropout": 0.1}, "lora_dropout=0.1: no dropout"),
        ({"target_modules": ["q_proj"], "use_rslora": True}, "use_rslora=True"),
    ):
        with pytest.raises(RecipeError, match=said.replace("*", r"\*")):
            translate_lora(peft.LoraConfig(**options))


@pytest.mark.parametrize("given", [{"max_steps": 3}, "GRPOConfig", trl.GRPOConfig])
def test_another_object_is_refused(given):
    with pytest.raises(RecipeError, match=r"args: give a trl.GRPOConfig object; got"):
        cohort.train("scratch", ROWS, ["math_answer"], args=given)
    with pytest.raises(RecipeError, match=r"peft_config: give a peft.LoraConfig object"):
        cohort.train("scratch", ROWS, ["math_answer"], peft_config=config())


def test_a_run_with_both_configs_says_what_they_mean_and_a_keyword_wins(tmp_path, capsys):
    args = config(
        output_dir=str(tmp_path / "first"),
        max_steps=1,
        logging_steps=1,
        max_completion_length=512,
        per_device_train_batch_size=4,
        num_generations=2,
    )
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"])
    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
    run = cohort.train(
        {"source": "scratch", "scratch": tiny},
        ROWS,
        [lambda completions, **columns: [float(len(text)) for text in completions]],
        args=args,
        peft_config=lora,
        max_completion_tokens=4,
        evaluation={"samples": 0},
    )
    recipe = load_recipe(run.folder / "recipe.toml")
    assert run.folder == tmp_path / "first"
    assert (recipe.sampling.max_completion_tokens, recipe.train.prompts_per_step, recipe.model.lora.rank) == (4, 2, 4)
    assert [row["step"] for row in run.metrics] == [1]
    said = capsys.readouterr().out
    assert "args: without effect on the training, not used: logging_steps" in said
    [line] = [line for line in said.splitlines() if line.startswith("args: seed=42")]
    assert "kl_coef=0 " in line
    assert "max_completion_tokens" not in line


@pytest.mark.parametrize("schedule", ["constant_with_warmup", "linear", "cosine"])
def test_a_warm_up_is_one_update_ahead_of_that_of_transformers(schedule):
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    theirs, rates = get_scheduler(schedule, optimizer, num_warmup_steps=4, num_training_steps=12), []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    ours = OptimizerConfig(learning_rate=1e-3, warmup_steps=4, schedule=schedule.removesuffix("_with_warmup"))
    found = [find_learning_rate(update, 12, ours) for update in range(12)]
    assert found[:4] == pytest.approx(rates[1:5])
    assert found[4:] == pytest.approx(rates[4:])


def test_the_process_group_that_a_config_has_joined_is_left(monkeypatch):
    """TrainingArguments joins the default group under torchrun; a second one would be refused."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    leave_process_group()
    assert dist.is_initialized()  # not launched: it belongs to the user's program
    for name in LAUNCHED:
        monkeypatch.setenv(name, "1")
    leave_process_group()
    assert not dist.is_initialized()
