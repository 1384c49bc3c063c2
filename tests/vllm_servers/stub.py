"""A stub of a vLLM server that samples with a small model in this process, and can fail in many ways.

It takes weights as a real one does: over the group of transfer.py, which a thread joins as its worker, or from files.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[2] / "packages" / "cohort-vllm"))
from cohort_vllm.checks import find_difference, list_parameters
from cohort_vllm.transfer import fill_buckets, join_group, receive_bucket

GENERATE = "/inference/v1/generate"


class Refusal(Exception):
    def __init__(self, status: int, said: str):
        super().__init__(said)
        self.status = status


class StubServer:
    """`calls` holds the requests in order; `faults` are functions by path, called before the response."""

    def __init__(self, model: Any, port: int = 0):
        self.model = copy.deepcopy(model).requires_grad_(False)
        for value in self.model.parameters():  # what it starts with is nothing that anybody trained
            value.data.normal_(generator=torch.Generator().manual_seed(1))
        self.label, self.paused, self.raw = "default", False, False
        self.version, self.length, self.workers = "0.32.0", 64, 1
        self.calls: list[tuple[str, Any]] = []
        self.faults: dict[str, Callable[[Any], Any]] = {}
        self.change: Callable[[dict[str, Any]], Any] = lambda answer: answer
        """Changes a response that holds a completion."""
        self.group, self.entries, self.open = None, [], False
        self.lock = threading.Lock()
        self.http = ThreadedServer(("127.0.0.1", port), make_handler(self))
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self.http.server_address[1])

    def list_paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def list_asked(self) -> list[dict[str, Any]]:
        return [body for path, body in list(self.calls) if path == GENERATE]

    def die(self) -> None:
        """As a killed process: open connections are reset, and nothing listens any more."""
        self.http.shutdown()
        self.http.server_close()
        for connection in list(self.http.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.group = None

    # -- routes --------------------------------------------------------------------------------------------------------

    def answer(self, path: str, body: Any) -> Any:
        self.calls.append((path, body))
        if fault := self.faults.get(path):
            fault(body)
        route, _, _ = path.partition("?")
        return getattr(self, "do_" + route.strip("/").replace("/", "_"))(body)

    def do_version(self, body: Any) -> Any:
        return {"version": self.version}

    def do_v1_models(self, body: Any) -> Any:
        return {"data": [{"id": "policy", "max_model_len": self.length}]}

    def do_weight_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    def do_metrics(self, body: Any) -> Any:
        tokens = len(self.list_asked())
        return f'vllm:num_requests_waiting{{engine="0"}} 3.0\nvllm:generation_tokens_total{{engine="0"}} {tokens}.0\n'

    def do_pause(self, body: Any) -> Any:
        self.paused = True
        return {}

    def do_resume(self, body: Any) -> Any:
        self.paused = False
        return {}

    def do_get_world_size(self, body: Any) -> Any:
        return {"world_size": self.workers}

    def do_init_weight_transfer_engine(self, body: Any) -> Any:
        told = body["init_info"]
        if reason := find_difference(told["entries"], list_parameters(self.model.config)):
            raise Refusal(500, reason)
        self.entries, self.group = told["entries"], None
        if told.get("port"):
            self.group = join_group(
                told["address"], told["port"], told["first_rank"], told["size"], torch.device("cpu"), told["limit_s"]
            )
        return {}

    def do_start_weight_update(self, body: Any) -> Any:
        if self.open:
            raise Refusal(500, "a weight update is already active")
        assert self.paused
        self.open = True
        return {}

    def do_update_weights(self, body: Any) -> Any:
        self.open = False
        if body["update_info"].get("abandon"):
            raise Refusal(500, "abandoned")
        with torch.no_grad():
            own = dict(self.model.named_parameters())
            for bucket in fill_buckets(self.entries):
                for name, value in receive_bucket(self.group, bucket, torch.device("cpu")):
                    own[name].copy_(value)
        self.open = True
        return {}

    def do_finish_weight_update(self, body: Any) -> Any:
        self.open, self.label = False, body["weight_version"]
        return {}

    def do_update_weight_version(self, body: Any) -> Any:
        self.label = body["new_version"]
        return {}

    def do_collective_rpc(self, body: Any) -> Any:
        assert self.paused
        assert body["method"] == "reload_weights"
        self.model.load_state_dict(load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors"))
        return {}

    def do_inference_v1_generate(self, body: Any) -> Any:
        while self.paused:
            time.sleep(0.01)
        told, label = body["sampling_params"], self.label
        if max(body["token_ids"]) >= self.model.config.vocab_size:
            raise Refusal(400, "a token id is out of vocabulary")
        noise = torch.Generator().manual_seed(told["seed"])
        ids: list[int] = []
        logprobs: list[float] = []
        with self.lock, torch.no_grad():
            while len(ids) < told["max_tokens"]:
                logits_V = self.model(torch.tensor([[*body["token_ids"], *ids]])).logits[0, -1].float()
                scaled_V = logits_V / (told["temperature"] or 1.0)
                greedy = told["temperature"] == 0
                ids.append(int(logits_V.argmax() if greedy else scaled_V.softmax(-1).multinomial(1, generator=noise)))
                logprobs.append(float((logits_V if self.raw else scaled_V).log_softmax(-1)[ids[-1]]))
                if ids[-1] in told["stop_token_ids"]:
                    break
        entries = [{"token_id": one, "logprob": value} for one, value in zip(ids, logprobs, strict=True)]
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": entries},
            "finish_reason": "stop" if ids[-1] in told["stop_token_ids"] else "length",
            "weight_versions": [{"version": label, "start": 0, "end": len(ids)}],
        }
        return self.change({"choices": [choice]})


class ThreadedServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, *arguments: Any) -> None:
        self.open: set[socket.socket] = set()
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that closed the connection."""


def make_handler(stub: StubServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            stub.http.open.add(self.connection)

        def finish(self) -> None:
            stub.http.open.discard(self.connection)
            super().finish()

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null"))

        def reply(self, body: Any) -> None:
            try:
                status, said = 200, stub.answer(self.path, body)
            except Refusal as problem:
                status, said = problem.status, {"error": {"message": str(problem)}}
            except Exception as problem:
                status, said = 500, {"error": {"message": f"{type(problem).__name__}: {problem}"}}
            data = said if isinstance(said, bytes) else (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def run_stubs(model: Any, count: int = 1) -> Iterator[list[StubServer]]:
    stubs = [StubServer(model) for _ in range(count)]
    try:
        yield stubs
    finally:
        for stub in stubs:
            stub.die()
