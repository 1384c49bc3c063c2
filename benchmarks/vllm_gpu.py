"""A vLLM server and the trainer on one GPU: weights passed by CUDA IPC, and a GRPO step with its rollouts compared with ours.

    python benchmarks/vllm_gpu.py --python PATH [--shapes 0.5b 7b] [--step 0.5b] [--output FILE]

PATH is a Python with vLLM 0.25 or newer. 0.25 has the four phases of a weight update and IPC, but does not report weight versions, so the
engine `vllm` refuses it, and this script calls the server itself.

push: random bfloat16 weights of Qwen2.5's shapes, made in this process; the server starts with dummies. Seconds of each phase, medians of
five. Exact means: greedy tokens are transformers' argmax on the same tokens except at near-ties, log-probs agree within bfloat16;
weights A, then B, then A again give the log-probs of A to the last bit.
step: the loop of `speed.py --stages step`, 32 prompts x 8 x 512 tokens, with our engine and with the server's rollouts, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import pickle
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PUSHES = 5
PHASES = ("pause", "start", "update", "finish", "resume")
REPORTED = ("seconds", "stages", "push", "mismatch_mean", "paths")
PROBES, PROBE_TOKENS, PROMPT_TOKENS = 8, 64, 32


class Server:
    """A stock server with dummy weights, which weights are handed to."""

    def __init__(self, python: str, model: Path, length: int, share: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        words = [
            python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--port",
            str(self.port),
            "--host",
            "127.0.0.1",
        ]
        words += ["--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "bfloat16", "--max-model-len", str(length)]
        words += ["--max-num-seqs", "256", "--gpu-memory-utilization", str(share), "--logprobs-mode", "processed_logprobs"]
        words += [
            "--weight-transfer-config",
            '{"backend": "ipc"}',
            "--served-model-name",
            "policy",
            "--generation-config",
            "vllm",
        ]
        told = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self.log = open(tempfile.mkstemp(suffix=".log")[1], "w+", encoding="utf-8")  # noqa: SIM115 - as long as the server
        self.process = subprocess.Popen(
            words, env=os.environ | told, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait(self, seconds: float) -> float:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return time.monotonic() - began
            except OSError:
                time.sleep(1)
        self.log.seek(0)
        raise SystemExit(f"the server is not there after {seconds:.0f} s:\n{self.log.read()[-4000:]}")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else {}

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def run_server(python: str, model: Path, length: int, share: float) -> Iterator[Server]:
    server = Server(python, model, length, share)
    try:
        print(f"server up after {server.wait(240):.0f} s", flush=True)
        server.post("/init_weight_transfer_engine", {"init_info": {}})
        yield server
    finally:
        server.end()


def push_weights(server: Server, weights: Mapping[str, Any]) -> dict[str, float]:
    """The four phases, paused: seconds of each. The pickle holds handles of this process's own memory, for a server that it started."""
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    gpu = str(torch.cuda.get_device_properties(0).uuid)
    held = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    torch.cuda.synchronize()
    marks = [time.perf_counter()]

    def mark(path: str, body: Mapping[str, Any] | None = None) -> None:
        server.post(path, body)
        marks.append(time.perf_counter())

    mark("/pause")
    mark("/start_weight_update")
    handles = base64.b64encode(pickle.dumps([{gpu: reduce_tensor(tensor)[1]} for tensor in held.values()])).decode()
    info = {
        "names": list(held),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in held.values()],
        "shapes": [list(tensor.shape) for tensor in held.values()],
        "ipc_handles_pickled": handles,
    }
    mark("/update_weights", {"update_info": info})
    mark("/finish_weight_update")
    mark("/resume")
    seconds = dict(zip(PHASES, (b - a for a, b in itertools.pairwise(marks)), strict=True))
    return seconds | {"total": marks[-1] - marks[0]}


def ask_greedy(server: Server, prompt_ids: Sequence[int]) -> tuple[list[int], list[float]]:
    body = {
        "token_ids": list(prompt_ids),
        "sampling_params": {
            "temperature": 0.0,
            "max_tokens": PROBE_TOKENS,
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
        },
    }
    choice = server.post("/inference/v1/generate", body)["choices"][0]
    return choice["token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]


def compare_with_transformers(server: Server, model: Any, vocabulary: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    same = total = 0
    gaps, off, logprobs = [], [], []
    for _ in range(PROBES):
        prompt_ids = torch.randint(4, vocabulary, (PROMPT_TOKENS,), generator=generator).tolist()
        token_ids, said_T = ask_greedy(server, prompt_ids)
        with torch.no_grad():
            logits_TV = model(torch.tensor([prompt_ids + token_ids], device="cuda")).logits[0, PROMPT_TOKENS - 1 : -1].float()
        own_TV, ids_T = logits_TV.log_softmax(-1), torch.tensor(token_ids, device="cuda")
        equal_T = own_TV.argmax(-1) == ids_T
        taken_T = own_TV.gather(-1, ids_T[:, None])[:, 0]
        same, total = same + int(equal_T.sum()), total + len(token_ids)
        gaps += (own_TV.max(-1).values - taken_T)[~equal_T].tolist()
        off += (taken_T - torch.tensor(said_T, device="cuda")).abs().tolist()
        logprobs += said_T
    return {
        "argmax": f"{same} of {total}",
        "largest_gap_where_other": max(gaps, default=0.0),
        "logprob_off_mean": statistics.fmean(off),
        "logprob_off_max": max(off),
        "logprobs": logprobs,
    }


def measure_push(python: str, name: str, folder: Path) -> dict[str, Any]:
    import torch
    from speed_shapes import SHAPES, BenchShape, make_random_model, write_folder

    shape = BenchShape(name, SHAPES[name])
    model_folder = write_folder(shape, folder / name)
    model = make_random_model(model_folder, "cuda", torch.bfloat16)
    weights = dict(model.named_parameters())
    with run_server(python, model_folder, 256, 0.35) as server:
        seconds = [push_weights(server, weights) for _ in range(1 + PUSHES)][1:]
        first = compare_with_transformers(server, model, shape.dimensions.vocabulary)
        kept = {name: tensor.detach().clone() for name, tensor in weights.items()}
        with torch.no_grad():  # B: other weights, of which every one differs
            for tensor in weights.values():
                tensor.mul_(1.25)
        push_weights(server, weights)
        other = compare_with_transformers(server, model, shape.dimensions.vocabulary)
        with torch.no_grad():
            for key, tensor in weights.items():
                tensor.copy_(kept[key])
        push_weights(server, weights)
        again = compare_with_transformers(server, model, shape.dimensions.vocabulary)
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    of_first, of_other, of_again = (one.pop("logprobs") for one in (first, other, again))
    return {
        "bytes": size,
        "seconds": {phase: statistics.median(one[phase] for one in seconds) for phase in (*PHASES, "total")},
        "total_spread": [min(one["total"] for one in seconds), max(one["total"] for one in seconds)],
        "first": first,
        "other": other,
        "again": again,
        "same_bits_when_pushed_again": of_first == of_again,
        "changed_by_other_weights": of_first != of_other,
    }


class IpcEngine:
    """Rollouts from the server, weights by IPC: what the engine `vllm` does, without the versions that 0.25 does not tell."""

    name, slots, code = "vllm-ipc", 0, "servers"

    def __init__(self, server: Server, setup: Any) -> None:
        from cohort.base.http import Endpoint

        self.server, self.decode = server, setup.decode
        self.endpoint = Endpoint.parse(f"http://127.0.0.1:{server.port}", "/inference/v1/generate", "", "")
        self.endpoint.addresses, self.endpoint.max_bytes = ["127.0.0.1"], 1 << 26
        self.version, self.pushes = -1, []

    @property
    def capabilities(self) -> Any:
        from cohort.engine.protocol import Capabilities

        return Capabilities(most_slots=256, cache_itemsize=2, keyed_noise=False, shares_weights=False)

    def choose_slots(self, longest: int) -> int:
        return 0

    def sync(self, weights: Mapping[str, Any], version: int) -> None:
        if version != self.version:
            self.pushes.append(push_weights(self.server, weights)["total"])
            self.version = version

    def generate(self, requests: Sequence[Any], sampling: Any, noise: Any, on_finish: Any = None) -> list[Any]:
        from cohort.base.http import post
        from cohort.types import Completion

        async def ask(request: Any) -> Any:
            params = {"temperature": sampling.temperature, "max_tokens": sampling.max_completion_tokens, "ignore_eos": True}
            params |= {"logprobs": 0, "detokenize": False, "seed": hash((noise, request.draw, request.sample)) & 0xFFFFFFFF}
            body = {"token_ids": list(request.prompt.token_ids), "sampling_params": params}
            answer = await post(self.endpoint, json.dumps(body).encode())
            if answer.status != 200:
                raise SystemExit(f"HTTP {answer.status}: {answer.body[:300]!r}")
            choice = json.loads(answer.body)["choices"][0]
            ids = tuple(choice["token_ids"])
            logprobs = tuple(one["logprob"] for one in choice["logprobs"]["content"])
            return Completion(ids, logprobs, "length", self.decode(ids))

        async def ask_all() -> list[Any]:
            return await asyncio.gather(*(ask(request) for request in requests))

        return asyncio.run(ask_all())

    def close(self) -> None:
        pass


def measure_steps(python: str, name: str, folder: Path, turns: int = 2) -> dict[str, Any]:
    import speed_child as child
    from speed_job import BenchJob
    from speed_shapes import SHAPES, BenchShape, write_folder
    from speed_workload import Workload

    from cohort.training import build

    shape = BenchShape(name, SHAPES[name])
    workload = Workload(prompts=32, group=8, prompt_tokens=128, new=512)
    own_build = build.build_engine
    results: dict[str, list[Any]] = {"cohort": [], "vllm": []}
    write_folder(shape, folder / "step" / "model")
    with run_server(python, folder / "step" / "model", 768, 0.35) as server:
        for turn in range(turns):
            for kind in results:
                engines: list[IpcEngine] = []

                def build_other(_: str, setup: Any, engines: list[IpcEngine] = engines) -> tuple[Any, str]:
                    engines.append(IpcEngine(server, setup))
                    return engines[0], "engine vllm-ipc"

                build.build_engine = build_other if kind == "vllm" else own_build
                work = folder / "step" / f"{kind}-{turn}"
                work.mkdir(parents=True)
                (work / "model").symlink_to(folder / "step" / "model")
                job = BenchJob("step", str(work), shape, workload, "cuda", repeats=3, slots=0, micro_rows=16)
                rows = workload.make_rows(job.steps, shape.dimensions.vocabulary)
                job.rows_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
                measured = child.measure_step(job)["cohort"]
                measured["push"] = statistics.median(engines[0].pushes[1:]) if engines else 0.0
                results[kind].append(measured)
                print(kind, turn, json.dumps({k: measured[k] for k in REPORTED}), flush=True)
    build.build_engine = own_build
    return {kind: [{k: one[k] for k in REPORTED} for one in runs] for kind, runs in results.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--shapes", nargs="*", default=["0.5b", "7b"])
    parser.add_argument("--step", default="")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.shapes:
            results[f"push-{name}"] = measure_push(options.python, name, Path(scratch))
            print(name, json.dumps(results[f"push-{name}"], indent=1), flush=True)
        if options.step:
            results["step"] = measure_steps(options.python, options.step, Path(scratch))
        if options.output:
            Path(options.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
