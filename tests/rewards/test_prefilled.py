"""A chat template that opens <think> itself must not zero a format reward (trl#6966)."""

from __future__ import annotations

import pytest

from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.recipe.file import load_recipe
from cohort.recipe.values import Materials
from cohort.rewards import think_format
from cohort.rewards.runner import RewardRunner
from cohort.training import build
from cohort.types import Completion

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}PREFILL{% endif %}"


@pytest.mark.parametrize(("prefill", "scores"), [("<think>", [1.0, 0.0]), ("=", [0.0, 1.0])])
def test_the_reward_sees_the_tag_that_the_template_opened(prefill, scores):
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": "3"} for text in ("1+2", "2+1", "0+3", "3+0")]
    recipe = load_recipe(values={"prompts.source": "python:rows", "rewards": [{"function": "think_format"}]})
    model, tokenizer = build_scratch(recipe.model.scratch, ["0123456789+=><think/>."], seed=0)
    tokenizer.chat_template = TEMPLATE.replace("PREFILL", prefill)
    policy = Policy(model, tokenizer)
    data = build.load_data(recipe, Materials(rows))
    prompt = build.encode_data(recipe, data, policy, build.make_training_sampling(recipe, policy)).train[0]
    texts = ["1+2</think>3", "<think>1+2</think>3"]
    with RewardRunner.from_recipe(recipe.rewards, max_fault_share=0.0) as rewards:
        completions = [Completion((1,), (0.0,), "stop", text) for text in texts]
        outcomes = rewards.score([prompt, prompt], completions, step=1, num_steps=1).outcomes
    assert [outcome.reward for outcome in outcomes] == scores


def test_a_flag_for_all_and_a_flag_for_each():
    assert think_format(["a</think>b", "a</think>b"], prefilled=True) == [1.0, 1.0]
    assert think_format(["a</think>b", "a</think>b"], prefilled=[True, False]) == [1.0, 0.0]
