"""docs/verify.md: its blocks run, in a bare environment, as an evaluation script and inside TRL's GRPOTrainer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from cohort_verify.sandbox import JailUnavailable, find_tier
from site_pages import DOCS, ROOT, make_tiny_chat_model, read_blocks

VALUES, IN_TRL, SCRIPT = read_blocks(DOCS / "verify.md", "python")
EVALUATED = re.compile(r"^(cohort_verify\.\w+\(.*\))\s+# (\[.*\])$", re.MULTILINE)
SHIPPED = ("*.py", "py.typed")
"""What a wheel takes from src/cohort_verify (pyproject.toml, package-data)."""
UNWANTED = ["cohort", "torch", "transformers", "datasets", "pydantic", "numpy", "regex", "sympy", "math_verify"]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel's files of cohort_verify and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True, with_pip=False)
    place = next(folder.glob("lib/python*/site-packages"))
    source = ROOT / "src" / "cohort_verify"
    for file in (file for pattern in SHIPPED for file in source.rglob(pattern)):
        target = place / "cohort_verify" / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return folder / "bin" / "python"


def run_bare(python: Path, code: str, folder: Path) -> str:
    done = subprocess.run([python, "-I", "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_answers(folder: Path) -> None:
    rows = [(r"\boxed{1/2}", "0.5"), ("the answer is 4", "4"), ("the answer is 5", "4"), ("I do not know", "7")]
    lines = (json.dumps({"completion": completion, "answer": answer}) for completion, answer in rows)
    (folder / "answers.jsonl").write_text("\n".join(lines), encoding="utf-8")


REPORT = "accuracy 50.0% of 4 completions; verdicts: {'right': 2, 'wrong': 1, 'no_answer': 1}\n"


def test_a_bare_environment_runs_the_example_and_the_script(bare_python: Path, tmp_path: Path) -> None:
    try:
        find_tier()
    except JailUnavailable as problem:
        pytest.skip(str(problem))
    assert len(EVALUATED.findall(VALUES)) == VALUES.count("\ncohort_verify.") == 3
    checks = "\n".join(f"assert {call} == {value}, {call!r}" for call, value in EVALUATED.findall(VALUES))
    loaded = f"import sys\nassert not {{*{UNWANTED}}} & {{*sys.modules}}\n"
    write_answers(tmp_path)
    code = f"{EVALUATED.sub('', VALUES)}\n{checks}\n{SCRIPT}\n{loaded}"
    assert run_bare(bare_python, code, tmp_path) == REPORT


def test_a_bare_environment_compares_algebra_only_with_math_verify(bare_python: Path, tmp_path: Path) -> None:
    """Without it such a completion is unscored, and the reason names the package."""
    try:
        find_tier()
    except JailUnavailable as problem:
        pytest.skip(str(problem))
    code = (
        "from cohort_verify import math_answer\n"
        "print(math_answer([r'\\boxed{\\sqrt{8}}'], answer=[r'2\\sqrt{2}'], log_verdict=lambda *said: print(*said)))"
    )
    printed = run_bare(bare_python, code, tmp_path)
    assert printed.startswith("0 infrastructure ")
    assert "math_verify" in printed
    assert printed.endswith("[None]\n")


def test_the_example_trains_in_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny model and two steps."""
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    model = make_tiny_chat_model(tmp_path / "tiny")
    short = (
        "GRPOConfig(max_steps=2, per_device_train_batch_size=4, num_generations=4, max_completion_length=8, use_cpu=True, bf16=False, "
        "gradient_checkpointing=False, report_to=[], logging_steps=1, save_strategy='no', disable_tqdm=True, "
    )
    code, replaced = re.subn(r'model="[^"]+"', f"model={str(model)!r}", IN_TRL.replace("GRPOConfig(output", short + "output"))
    assert replaced == 1
    names: dict = {}
    exec(compile(code, "docs/verify.md", "exec"), names)
    logged = [entry for entry in names["trainer"].state.log_history if "rewards/math_answer/mean" in entry]
    assert len(logged) == 2
    assert all({"rewards/think_format/mean", "strict", "lenient"} <= set(entry) for entry in logged)


def test_the_package_imports_the_standard_library_only() -> None:
    """All of its modules but symbolic.py, which runs only in jailed workers."""
    code = (
        "import importlib, pathlib, sys\n"
        f"source = pathlib.Path({str(ROOT / 'src')!r})\n"
        "sys.path.insert(0, str(source))\n"
        "for file in (source / 'cohort_verify').rglob('*.py'):\n"
        "    if file.name != 'symbolic.py':\n"
        "        name = '.'.join(file.relative_to(source).with_suffix('').parts).removesuffix('.__init__')\n"
        "        importlib.import_module(name)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - {*sys.stdlib_module_names, 'cohort_verify'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['__main__']\n"
