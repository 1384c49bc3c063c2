"""Did SmolLM2 only learn to stop? `python benchmarks/smollm2_controls.py RUN_OR_MODEL... --output FILE`

Each model answers the held-out rows of `task:json_records` (40 new rows, 32 of new kinds; 4 completions at temperature 1 and a greedy
one, 48 tokens, the same noise for every model), and is scored three ways:

    strict     the recipe's reward: the whole completion is the record
    begun      the same with the first two characters, `{"`, already written, so that no prose can come before the record
    anywhere   the first JSON object in the completion is the record, whatever stands around it: brevity cannot help

and `ended` is the strict score among the completions that ended by themselves. `--examples FILE.md` instead writes one completion of
every model for each of the first ten new rows, sampled at temperature 1 with equal noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

import cohort
from cohort.data.tasks import json_records
from cohort.engine import EngineSetup, make_requests
from cohort.engine.local import LocalEngine
from cohort.model.chat import ChatCodec
from cohort.model.loading import load_pretrained
from cohort.model.sources import find_folder
from cohort.rewards import instructions as score_instructions
from cohort.types import NoiseKey, Prompt, Sampling

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


def write_examples(models: list[str], file: Path) -> None:
    """A markdown table: one completion of each model for each of ten rows, with equal noise."""
    rows, columns = json_records(split="held_out", seed=1, count=10), []
    for source in models:
        model, tokenizer = load_pretrained(str(find_folder(source)))
        codec = ChatCodec(tokenizer)
        prompts = [Prompt(number, "", {}, tuple(codec.encode(row["prompt"]))) for number, row in enumerate(rows)]
        engine = LocalEngine(EngineSetup(model, lambda ids, own=tokenizer: own.decode(ids, skip_special_tokens=True)))
        sampling = Sampling(1, 1.0, 48, (tokenizer.eos_token_id,))
        columns.append([one.text for one in engine.generate(make_requests(prompts, 1), sampling, NoiseKey(1, "examples", 0))])
    lines = ["# Ten completions before and after", "", "The first ten held-out rows, temperature 1, at most 48 tokens, the same noise for both models; ✓ and ✗ by the reward.", "",
             f"Written by `python benchmarks/smollm2_controls.py smollm2 RUN/model --examples {file.name}`.", ""]  # fmt: skip
    for row, texts in zip(rows, zip(*columns, strict=True), strict=True):
        scores = score_instructions(list(texts), instructions=[row["instructions"]] * len(texts))
        lines += [f"> {row['prompt'][0]['content']}".replace("\n", "\n> "), ""]
        for text, score in zip(texts, scores, strict=True):
            lines += [f"{'✓' if score else '✗'}", "", *(f"    {line}" for line in text.splitlines()), ""]
    file.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    written = parser.add_mutually_exclusive_group(required=True)
    written.add_argument("--output", type=Path, help="scores as JSON")
    written.add_argument("--examples", type=Path)
    chosen = parser.parse_args()
    if chosen.examples:
        write_examples(chosen.models, chosen.examples)
        return
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
