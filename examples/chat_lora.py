"""A chat model, trained with LoRA adapters, and then asked a question. One GPU; on a CPU it takes hours.

    python examples/chat_lora.py                            Qwen/Qwen2.5-0.5B-Instruct, from the hub
    python examples/chat_lora.py path/to/a/model num_steps=50

Prompts are messages, so the model's own chat template is used, and completions come to the reward as messages too. The model's
weights stay frozen; `run.model` holds them with the adapters merged, a folder that transformers and vLLM load. This has been
tried on small models made on the spot, not on the one that is named here.
"""

from __future__ import annotations

import argparse
from typing import Any

import cohort

QUESTION = "What is {} * {}? Think step by step. End with the number."
LONGEST = 256  # tokens of an answer


def correct(completions: list[list[dict[str, str]]], answer: list[str], **columns: Any) -> list[float]:
    """1.0 where the last words of the assistant are the gold answer, a full stop aside."""
    return [float(c[-1]["content"].split()[-1:] in ([gold], [gold + "."])) for c, gold in zip(completions, answer, strict=True)]


def main(model: str = "Qwen/Qwen2.5-0.5B-Instruct", **settings: Any) -> cohort.RunResult:
    """Train. `settings` are recipe words that replace those below."""
    rows = [
        {"prompt": [{"role": "user", "content": QUESTION.format(a, b)}], "answer": str(a * b)}
        for a in range(12, 62)
        for b in range(12, 22)
    ]
    defaults: dict[str, Any] = {
        "model.lora.rank": 16,
        "learning_rate": 2e-5,  # ten times what training all weights would take
        "group_size": 8,
        "prompts_per_step": 32,
        "max_completion_tokens": LONGEST,
        "num_steps": 200,
    }
    run = cohort.train(model=model, prompts=rows, rewards=[correct], **defaults | settings)
    if run.status == "finished":
        print(repr(ask(run, QUESTION.format(17, 23))))  # as a literal: a terminal would obey what a model may write
    return run


def ask(run: cohort.RunResult, question: str) -> str:
    """What the trained model answers, with transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    message = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = policy.generate(**prompt, max_new_tokens=LONGEST, do_sample=False)
    return tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    words = parser.parse_args()
    chosen = dict(word.split("=", 1) for word in words.settings)
    raise SystemExit(130 if main(words.model, **chosen).status == "interrupted" else 0)
