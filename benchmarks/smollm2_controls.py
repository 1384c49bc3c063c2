"""Did SmolLM2 only learn to stop? `python benchmarks/smollm2_controls.py RUN_OR_MODEL... --output FILE`

Each model answers the held-out rows of `task:json_records` (40 new rows, 32 of new kinds; 4 completions at temperature 1 and a greedy
one, 48 tokens, the same noise for every model), and is scored three ways:

    strict     the recipe's reward: the whole completion is the record
    begun      the same with the first two characters, `{"`, already written, so that no prose can come before the record
    anywhere   the first JSON object in the completion is the record, whatever stands around it: brevity cannot help

and `ended` is the strict score among the completions that ended by themselves.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

import cohort
from cohort.data.tasks import json_records
from cohort.model.sources import find_folder
from cohort.rewards import instructions as score_instructions

BEGINNING = '{"'
SETS = {"new_rows": 40, "new_kind": 32}


def begun(completions, instructions, **columns):  # the prompts are text, so are the completions
    return score_instructions([BEGINNING + text for text in completions], instructions=instructions)


def anywhere(completions, instructions, **columns):
    scores = []
    for ((message,)), ((check,)) in zip(completions, instructions, strict=True):
        text = message["content"]
        try:
            found, _ = json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])
        except (ValueError, RecursionError):
            found = None
        scores.append(float(found == check["record"]))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(find_folder("smollm2"))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model in chosen.models:
        for name, count in SETS.items():
            rows = json_records(split="held_out", seed=1, test=name, count=count)
            texts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
            opened = [row | {"prompt": text + BEGINNING} for row, text in zip(rows, texts, strict=True)]
            for score, given in ((score_instructions, rows), (begun, opened), (anywhere, rows)):
                label = "strict" if score is score_instructions else score.__name__
                settings = {"samples": 4, "greedy": True, "max_completion_tokens": 48}
                evaluation = cohort.evaluate(model, prompts=given, rewards=[score], **settings)
                numbers, counts = next(iter(evaluation.sets.values())), next(iter(evaluation.counts.values()))
                row = {key: numbers[key].value for key in ("pass@1", "greedy")} | {"truncated": counts["truncated"]}
                if label == "strict":
                    row["ended"] = row["pass@1"] / max(1e-9, 1 - counts["truncated"])
                found.setdefault(model, {})[f"{name} {label}"] = row
                print(model, name, label, {key: round(value, 3) for key, value in row.items()}, flush=True)
    chosen.output.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
