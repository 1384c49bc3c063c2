"""What the checks run inside the environment: python inside.py FUNCTION WORD...

Only what a user imports is imported. The answer is one line of JSON, the last that is printed; a text instead of an object is the reason
why the check cannot be made here.
"""

from __future__ import annotations

import json
import socket
import string
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def describe() -> dict[str, Any]:
    """What is installed."""
    import cohort

    return {
        "package": cohort.__file__,
        "torch": metadata.version("torch"),
        "packages": len(list(metadata.distributions())),
        "plugins": [entry.value for entry in metadata.entry_points(group="vllm.general_plugins")],
    }


def make_model(folder: str) -> dict[str, Any]:
    """A random chat model whose tokens are characters."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    set_seed(0)
    words = ["<end>", "<pad>", *string.printable]
    inner = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>", chat_template=TEMPLATE)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=512, bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"tokens": len(words)}


# -- TRL ---------------------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {
    "regex_format": {"pattern": ".*"},
    "soft_overlong": {"longest": 16, "buffer": 8},
    "length": {"longest": 12, "falloff": 8},
}
"""Of rewards that need more than the columns."""
OTHER_MODELS = {"reward_model", "process_reward_model", "judge"}
"""They score with another model."""


def train_with_trl(model: str) -> dict[str, str] | str:
    """Name of each shipped reward -> why TRL could not train two steps with it, empty where it could."""
    try:
        import trl  # noqa: F401
    except ModuleNotFoundError:
        return "trl is not installed in this environment"
    from cohort.rewards import BUILT_IN

    return {name: try_reward(model, name, reward) for name, reward in BUILT_IN.items() if name not in OTHER_MODELS}


def try_reward(model: str, name: str, reward: Any) -> str:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    given = ARGUMENTS.get(name)
    if given:

        def scored(completions: Any, **columns: Any) -> Any:
            return reward(completions=completions, **{**columns, **given})

        scored.__name__ = name
    row = {
        "prompt": "What is 2 + 3?",
        "answer": "5",
        "tests": ["assert add(2, 3) == 5"],
        "instructions": [{"id": "punctuation:no_comma"}],
    }
    settings = GRPOConfig(
        output_dir=f"trl-{name}", max_steps=2, per_device_train_batch_size=4, num_generations=4, max_completion_length=16,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    try:
        trainer = GRPOTrainer(
            model=model, reward_funcs=scored if given else reward, args=settings, train_dataset=Dataset.from_list([row] * 8)
        )
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if f"rewards/{name}/mean" in entry]
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:120]
    return "" if len(logged) == 2 else f"TRL has logged it in {len(logged)} of 2 steps"


# -- the jail ----------------------------------------------------------------------------------------------------------

HOSTILE = {
    "reads the canary": "def add(a, b):\n    return int(open('CANARY/secret').read())",
    "deletes the canary": "import shutil\nshutil.rmtree('CANARY')\ndef add(a, b):\n    return 0",
    "writes into the canary": "open('CANARY/left', 'w').write('here')\ndef add(a, b):\n    return 0",
    "changes the canary's mode": "import os\nos.chmod('CANARY', 0)\ndef add(a, b):\n    return 0",
    "starts a program": "import subprocess\nsubprocess.run(['touch', 'CANARY/left'])\ndef add(a, b):\n    return 0",
    "forks": "import os\nif os.fork() == 0:\n    open('CANARY/left', 'w')\ndef add(a, b):\n    return 0",
    "connects": "import socket\nsocket.create_connection(('127.0.0.1', PORT))\ndef add(a, b):\n    return 0",
    "exits with success": "import os\nos._exit(0)",
    "equals everything": "class Any(int):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Any(0)",
    "prints a verdict": "print('PASS')\ndef add(a, b):\n    print('{\"passed\": true}')",
    "never ends": "while True:\n    pass",
    "takes all memory": "held = [bytes(2**27) for _ in range(2**10)]\ndef add(a, b):\n    return 0",
}
HONEST = "def add(a, b):\n    return a + b"


def run_hostile_programs(canary: str) -> dict[str, Any] | str:
    """Scores by name, and whether one of the programs reached a port of this machine."""
    from cohort.rewards import code_tests
    from cohort_verify.sandbox import JailUnavailable, find_tier

    try:
        tier = find_tier().name
    except JailUnavailable as problem:
        return f"no jail works on this machine: {problem}"
    secret = int(Path(canary, "secret").read_text(encoding="utf-8"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.0)
        port = str(listener.getsockname()[1])
        programs = {name: code.replace("CANARY", canary).replace("PORT", port) for name, code in HOSTILE.items()} | {
            "honest": HONEST
        }
        tests = ["assert add(2, 3) == 5", "assert add(-4, 11) == 7"]
        column = [[f"assert add(2, 3) == {secret}"] if name == "reads the canary" else tests for name in programs]
        scores = code_tests([f"```python\n{code}\n```" for code in programs.values()], tests=column, cpu_s=1.0, wall_s=5.0)
        try:
            listener.accept()
            reached = 1
        except BlockingIOError:
            reached = 0
    return {"tier": tier, "connected": reached, "scores": dict(zip(programs, scores, strict=True))}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
