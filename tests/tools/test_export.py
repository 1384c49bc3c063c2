"""`cohort export`, runs as models, and the hub: finished, stopped and LoRA runs, bit by bit; a stand-in hub on loopback."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import cohort
from cohort import loop, session
from cohort.cli import app
from cohort.errors import Interrupted, ModelError, RunError
from cohort.observe.run_folder import RunFolder
from cohort.recipe.values import Materials
from cohort.tools.export import run_export
from cohort.training.run_weights import Target, export_weights
from session_tools import bits, digit_share, summary_of, tiny

FEW = {"evaluation.samples": 2, "evaluation.max_problems": 4, "evaluation.every_problems": 4}


class Listener:
    def __init__(self):
        self.heard = []

    def on_message(self, text):
        self.heard.append(text)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """first: finished; stopped: the same inside its third step; second: LoRA from `stopped`, taught by `first`; what it said."""
    folder = tmp_path_factory.mktemp("export")
    recipe = tiny(folder, "first", **FEW, **{"train.num_steps": 3, "checkpoints.keep": 9, "evaluation.every_steps": 1})
    original = loop.observe_step

    def stop(parts, state, watch):
        if state.step == 2:
            raise Interrupted("SIGTERM")
        original(parts, state, watch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "observe_step", stop)
        session.start(recipe)
    shutil.copytree(folder / "first", folder / "stopped")
    session.resume(folder / "first")
    listener = Listener()
    words = {"model.source": str(folder / "stopped"), "teacher.source": str(folder / "first"), "model.lora.rank": 2}
    words |= {"train.num_steps": 1, "cold_start.num_steps": 0, "algorithm.kl_coef": 0.0, "optimizer.learning_rate": 0.05}
    session.start(tiny(folder, "second", **FEW, **words), Materials(monitors=[listener]))
    return folder, listener.heard


def exported(run: Path, out: Path, **words: object) -> tuple[Path, str]:
    given = {"checkpoint": "", "adapter": False, "push": "", "public": False} | words
    (line,) = run_export(run, out, **given)
    return out, line


def test_the_last_checkpoint_of_a_finished_run_is_its_model(world, tmp_path):
    folder, _ = world
    final, line = exported(folder / "first", tmp_path / "final")
    assert line == f"{folder / 'first'}: its final model, written to {final}"
    last, line = exported(folder / "first", tmp_path / "last", checkpoint="last")
    assert "checkpoint step-3, its newest, written to" in line
    assert (
        bits(final / "model.safetensors") == bits(last / "model.safetensors") == bits(folder / "first/model/model.safetensors")
    )
    assert AutoTokenizer.from_pretrained(last)("1+2=") == AutoTokenizer.from_pretrained(folder / "first/model")("1+2=")


def test_a_step_and_the_best_of_a_run(world, tmp_path):
    folder, _ = world
    one, line = exported(folder / "first", tmp_path / "one", checkpoint="1")
    saved = load_file(folder / "first/checkpoints/step-1/weights.safetensors")
    assert "checkpoint step-1, written" in line
    assert "The run evaluated only its start, not these weights" not in (one / "README.md").read_text()
    assert all(torch.equal(value, saved[name]) for name, value in load_file(one / "model.safetensors").items())
    best, line = exported(folder / "first", tmp_path / "best", checkpoint="best")
    name = json.loads((folder / "first/checkpoints/best.json").read_text())["checkpoint"]
    assert f"checkpoint {name}, the best by pass@1 on held_out" in line
    saved = load_file(folder / "first/checkpoints" / name / "weights.safetensors")
    assert all(torch.equal(value, saved[key]) for key, value in load_file(best / "model.safetensors").items())
    start, line = exported(folder / "first", tmp_path / "start", checkpoint="start")
    assert bits(start / "model.safetensors") == bits(folder / "first/start/model.safetensors")


def test_a_stopped_run_gives_its_newest_checkpoint(world, tmp_path):
    folder, _ = world
    out, line = exported(folder / "stopped", tmp_path / "out")
    newest = line.partition("checkpoint ")[2].partition(",")[0]
    assert newest.startswith("step-2.")  # inside the third step
    assert "its newest, since it has no model/ yet" in line
    saved = load_file(folder / "stopped/checkpoints" / newest / "weights.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in load_file(out / "model.safetensors").items())
    assert (
        "The run evaluated only its start, not these weights" in (out / "README.md").read_text()
    )  # step 2 was, and they are not its


def test_a_damaged_newest_checkpoint_is_skipped_and_reported(world, tmp_path):
    folder, _ = world
    run = tmp_path / "run"
    shutil.copytree(folder / "stopped", run)
    newest = exported(run, tmp_path / "a")[1].partition("checkpoint ")[2].partition(",")[0]
    with (run / "checkpoints" / newest / "weights.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert "checkpoint step-2, its newest (1 newer damaged)" in exported(run, tmp_path / "b")[1]


def test_a_run_can_be_given_as_a_model(world):
    """The start of `second` is what the newest checkpoint of `stopped` holds, and its teacher the final model of `first`."""
    folder, heard = world
    assert f"teacher: {folder / 'first'} is a run; using its final model" in heard
    (said,) = [line for line in heard if line.startswith("model: ")]
    assert said.startswith(f"model: {folder / 'stopped'} is a run; using checkpoint step-2.")
    recipe = RunFolder.open(folder / "second").recipe()
    assert (recipe.model.source, recipe.teacher.source) == (str(folder / "second/base"), str(folder / "first/model"))
    newest = said.partition("checkpoint ")[2].partition(",")[0]
    saved = load_file(folder / "stopped/checkpoints" / newest / "weights.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in load_file(folder / "second/base/model.safetensors").items())


def test_a_stopped_run_is_evaluated_like_its_export(world, tmp_path, capsys):
    folder, _ = world
    out, _ = exported(folder / "stopped", tmp_path / "out")
    here = cohort.evaluate(folder / "stopped", greedy=False)
    assert "checkpoint step-2." in capsys.readouterr().err
    there = cohort.evaluate(out, recipe=folder / "stopped/recipe.toml", greedy=False)
    assert here.per_problem == there.per_problem


def test_a_lora_run_is_exported_merged_or_as_an_adapter(world, tmp_path):
    """Merged from the checkpoint: the bits of model/. The adapter: what PEFT loads computes the same."""
    folder, _ = world
    unfinished = tmp_path / "unfinished"
    shutil.copytree(folder / "second", unfinished)
    shutil.rmtree(unfinished / "model")
    merged, line = exported(unfinished, tmp_path / "merged")
    assert "checkpoint step-1, its newest, since it has no model/ yet" in line
    assert bits(merged / "model.safetensors") == bits(folder / "second/model/model.safetensors")
    adapter, line = exported(folder / "second", tmp_path / "adapter", adapter=True)
    assert line.endswith(f"only the adapter, written to {adapter}")
    assert not (adapter / "model.safetensors").exists()
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder / "second/base")
    ids = torch.arange(3, 9)[None]
    ours, theirs = (AutoModelForCausalLM.from_pretrained(place)(ids).logits for place in (merged, adapter))
    base = AutoModelForCausalLM.from_pretrained(folder / "second/base")(ids).logits
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(base, ours, atol=1e-3)
    assert 'library_name: "peft"' in (adapter / "README.md").read_text()
    both = shutil.copytree(folder / "second/base", tmp_path / "both")  # as an adapter over a base made here is written
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / name, both)
    export_weights(Target("both", str(both), None, RunFolder.open(folder / "second").recipe(), None), tmp_path / "again")
    assert bits(tmp_path / "again/model.safetensors") == bits(merged / "model.safetensors")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}"], "Name the folder to write"),
        (["{run}", "{run}"], "exists and is not overwritten"),
        (["{run}", "."], "is the current folder"),
        (
            ["{run}", "{out}", "--checkpoint", "99"],
            r"has no checkpoint 'step-99'; it has: step-0, step-1, step-2, step-2\.\d, step-3\.",
        ),
        (["{run}", "{out}", "--checkpoint", "../../first"], "has no checkpoint '../../first'"),
        (["{run}", "{out}", "--adapter"], "--adapter: .* trained all weights"),
        (["{run}", "{out}", "--public"], "--public needs --push"),
        (["{run}/model", "{out}"], "is not a run folder"),
        (["{stopped}", "{out}", "--checkpoint", "final"], "has no model/ yet"),
        (["{run}", "--push", "a/b/c"], "--push a/b/c: .* Give OWNER/NAME"),
    ],
)
def test_mistakes_are_answered_with_a_message(world, tmp_path, monkeypatch, words, said):
    folder, _ = world
    monkeypatch.chdir(tmp_path)
    places = {"run": folder / "first", "stopped": folder / "stopped", "out": tmp_path / "out"}
    result = CliRunner().invoke(app, ["export", *[word.format(**places) for word in words]])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert re.search(said, result.output), result.output
    assert not (tmp_path / "out").exists()


def test_a_run_without_weights_is_refused_as_a_model(tmp_path):
    (tmp_path / "empty").mkdir()
    shutil.copy(write_empty(tmp_path), tmp_path / "empty" / "recipe.toml")
    with pytest.raises((RunError, ModelError), match="neither a model/ nor a checkpoint yet"):
        cohort.train(tmp_path / "empty", [{"prompt": "a"}, {"prompt": "b"}], [digit_share], runs_folder=tmp_path, console=False)


def write_empty(tmp_path: Path) -> Path:
    from session_tools import write_recipe

    return write_recipe(tmp_path / "tiny.toml")


# -- the hub -----------------------------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload asks for. It keeps what it is sent."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(
            404 if self.server.refuses == "create" else 200,
            {"id": "me/model", "private": self.server.private, "siblings": [], "sha": "a" * 40},
        )

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else self.chunks()
        self.server.asked.append((self.path, self.headers.get("authorization"), body))
        here = f"http://127.0.0.1:{self.server.server_port}/me/model"
        if self.server.refuses in self.path:
            self.answer(403, {"error": f"You may not write with {self.headers.get('authorization')}"})
        elif "preupload" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]
            ]
            self.answer(200, {"files": files})
        elif "/commit/" in self.path:
            self.answer(200, {"success": True, "commitOid": "b" * 40, "commitUrl": f"{here}/commit/{'b' * 40}"})
        else:
            self.answer(200, {"url": here, "name": "me/model", "id": "1", "errors": [], "warnings": []})

    def chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.private, server.refuses = [], True, "nothing"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    yield server
    server.shutdown()
    server.server_close()


def push(folder: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", str(folder / "first"), "--push", "me/model", *words])
    assert "hf_canary" not in result.output
    return result.exit_code, result.output


def test_a_run_is_pushed_to_a_private_repository(world, hub):
    folder, _ = world
    assert push(folder) == (0, f"{folder / 'first'}: its final model\npushed to http://127.0.0.1:{hub.server_port}/me/model\n")
    asked = {path.partition("?")[0]: body for path, _, body in hub.asked}
    assert {token for _, token, _ in hub.asked} == {"Bearer hf_canary"}
    assert json.loads(asked["/api/repos/create"])["visibility"] == "private"
    lines = [json.loads(line) for line in asked["/api/models/me/model/commit/main"].splitlines()]
    files = {line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"}
    assert files["model.safetensors"] == (folder / "first/model/model.safetensors").read_bytes()
    assert b"hf_canary" not in b"".join(files.values())
    assert b'from_pretrained("me/model")' in files["README.md"]
    assert str(folder).encode() not in files["README.md"]
    hub.asked.clear()
    hub.private = False
    code, said = push(folder)
    assert (code, "the repository exists and is public. Add --public" in said) == (1, True)
    assert not any("/commit/" in path for path, _, _ in hub.asked)
    assert push(folder, "--public")[0] == 0


def test_errors_of_the_hub_are_reported_without_the_token(world, hub, monkeypatch):
    folder, _ = world
    for place, words in {"/commit/": "not uploaded", "create": "the repository cannot be created"}.items():
        hub.refuses = place
        code, said = push(folder)
        assert code == 1
        assert said.startswith(f"error: --push me/model: {words} (")
        assert "403" in said
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set, so this machine counts as offline" in push(folder)[1]
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "no hub token found. Log in with `hf auth login`" in push(folder)[1]
    assert summary_of(folder / "first")["status"] == "finished"
