"""Whether a release could be published: `make release-check`. What a person has to do is in docs/release.md.

It builds the source distribution and the wheel from it, installs the wheel into a fresh environment, trains with it in an empty
folder without a compiler, and runs a sample of the tests out of the unpacked source distribution. Nothing is uploaded. With --final, what is left
for a person to fill in (the address of the repository, the date in the changelog) is a failure too.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEWEST_GLIBC = 28
"""torch's wheels need 2.28: whoever can install it has that."""
OUTSIDE = {"recipes"}
"""Tracked, and not in the source distribution: a link into src."""
EXTRAS = "dashboard,gym"
SAMPLE = (
    "tests/test_help.py",
    "tests/test_release.py",
    "tests/test_house.py",
    "tests/test_cli.py",
    "tests/test_examples.py",
    "tests/algorithms/test_gradients.py",
    "tests/ops/test_packed.py",
    "tests/recipe/test_schema.py",
    "tests/verify/test_rewards_math.py",
    "tests/verify/test_first_process.py",
    "tests/training/test_kill_resume.py",
)
"""Every floor of the house once: words, maths, model, rewards, jail, a killed run that goes on."""
TRAIN = ("num_steps=2", "cold_start.num_steps=5", "prompts_per_step=4", "evaluation.max_problems=16", "name=first")


def find_versions(root: Path = ROOT) -> dict[str, str]:
    """File -> the version that it states; the changelog's is that of its newest section."""
    patterns = {
        "pyproject.toml": r'^version = "(.+)"$',
        "src/cohort/__init__.py": r'^__version__ = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        "CHANGELOG.md": r"^## ([^,\s]+)",
    }
    found = {file: re.search(pattern, (root / file).read_text("utf-8"), re.MULTILINE) for file, pattern in patterns.items()}
    return {file: match[1] if match else "none" for file, match in found.items()}


def find_placeholders(root: Path = ROOT) -> Iterator[str]:
    """What only a person can fill in."""
    for file in ("pyproject.toml", "CITATION.cff", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        if re.search(r"[\w-]+\.example\b", (root / file).read_text("utf-8")):
            yield f"{file}: an address still ends in .example"
    if re.search(r"^## [^\n]*unreleased", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        yield "CHANGELOG.md: the newest section says unreleased; write the date"


def find_relative_links(text: str) -> list[str]:
    """Targets of links and pictures, in Markdown or HTML, that are no address and no place on the page."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # code
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    return [target for target in targets if not re.match(r"https?://|mailto:|#", target)]


def run(*command: str | Path, cwd: Path, **variables: str) -> None:
    """In an environment that knows nothing of the checkout; what it prints is printed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    print("$", *command, flush=True)
    subprocess.run([*map(str, command)], cwd=cwd, env=clean | {"OMP_NUM_THREADS": "1"} | variables, check=True)


def make_environment(folder: Path, *packages: str) -> Path:
    """A fresh environment with these; its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    for package in packages:
        install(python, *package.split())
    return python


def install(python: Path, *packages: str) -> None:
    """With the exact versions that `make setup` takes."""
    words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    run(python, *words, *packages, cwd=python.parent)


def list_tracked() -> set[str]:
    """What git knows of; outside of a clone, nothing."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


def check_files(wheel: Path, source: Path) -> Iterator[str]:
    """What is missing in either, and links of the long description that lead nowhere on a package index."""
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    tracked = list_tracked()
    if missing := sorted(tracked - packed - OUTSIDE):
        yield f"the source distribution lacks {', '.join(missing)}: see MANIFEST.in"
    if missing := sorted({file.removeprefix("src/") for file in tracked if file.startswith("src/")} - names):
        yield f"the wheel lacks {', '.join(missing)}: see [tool.setuptools.package-data]"
    if relative := find_relative_links(str(email.message_from_string(metadata).get_payload())):
        yield f"the long description has relative links: {', '.join(relative)}; see setup.py"


def check_compiled(wheel: Path) -> Iterator[str]:
    """What whoever has no compiler needs: code for every level of this machine's processors, which loads wherever torch does."""
    from cohort.ops.fused.building import LEVELS, PREBUILT, PREBUILT_DIMS

    with zipfile.ZipFile(wheel) as archive:
        libraries = [Path(name).name for name in archive.namelist() if name.endswith(".so") and PREBUILT.name in name]
    found = sorted(name.rpartition("-")[0] for name in libraries)
    expected = sorted(f"{level}-{dim}" for level in LEVELS.get(platform.machine(), {}) for dim in PREBUILT_DIMS)
    if found != expected:
        yield f"the wheel brings {', '.join(found) or 'no compiled code'} instead of {', '.join(expected)}: see setup.py"
    version = re.search(r"-manylinux_2_(\d+)_\w+\.whl$", wheel.name)
    if expected and (version is None or int(version[1]) > NEWEST_GLIBC):
        yield f"{wheel.name} is not for manylinux_2_{NEWEST_GLIBC} or older, as torch is: see find_platform in setup.py"


def check_wheel(python: Path, folder: Path) -> Iterator[str]:
    """It trains in an empty folder, from a package that is not the checkout's, on a machine that has no compiler."""
    folder.mkdir()
    run(python.with_name("cohort"), "train", *TRAIN, cwd=folder, PATH=str(folder / "nothing"))
    said = (folder / "runs/first/events.jsonl").read_text("utf-8")
    for words in ("native attention", "training with own compiled code"):
        if words not in said:
            yield f"the run in an empty folder does not say {words!r}: the compiled code of the wheel is not used"
    status = json.loads((folder / "runs/first/summary.json").read_text("utf-8"))["status"]
    if status != "finished":
        yield f"the run in an empty folder is {status}"


def check_release(work: Path) -> Iterator[str]:
    """Every check in turn; a sentence for each thing that is wrong. A command that fails ends it."""
    if len({*find_versions().values()}) > 1:
        yield f"versions differ: {', '.join(f'{file} {version}' for file, version in find_versions().items())}"
    tools = make_environment(work / "tools", "build twine")
    run(tools, "-m", "build", "--outdir", work / "dist", ROOT, cwd=work)
    [wheel], [source] = (work / "dist").glob("*.whl"), (work / "dist").glob("*.tar.gz")
    run(tools, "-m", "twine", "check", "--strict", wheel, source, cwd=work)
    yield from check_files(wheel, source)
    yield from check_compiled(wheel)
    python = make_environment(work / "fresh", "torch", f"{wheel}[{EXTRAS}]")
    yield from check_wheel(python, work / "empty")
    install(python, "pytest", "hypothesis", "scipy")
    with tarfile.open(source) as archive:
        archive.extractall(work / "source", filter="data")
    [unpacked] = (work / "source").iterdir()
    marks = "not prove and not gpu and not vllm"
    run(python, "-m", "pytest", "-p", "no:cacheprovider", "-m", marks, *SAMPLE, cwd=unpacked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true", help="what is left for a person is a failure too")
    final = parser.parse_args().final
    left = [*find_placeholders()]
    with tempfile.TemporaryDirectory(prefix="cohort-release-") as folder:
        try:
            wrong = [*check_release(Path(folder))]
        except subprocess.CalledProcessError as problem:
            wrong = [f"failed with exit code {problem.returncode}: {' '.join(map(str, problem.cmd))}"]
    for sentence in wrong:
        print(f"wrong: {sentence}")
    for sentence in left:
        print(f"left for you: {sentence}")
    bad = bool(wrong or (final and left))
    print("not ready" if bad else f"ready{f', but for {len(left)} things above' if left else ''}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
