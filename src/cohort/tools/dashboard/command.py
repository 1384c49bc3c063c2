"""`cohort dashboard`: checks the arguments, binds the port, prints the address and serves."""

from __future__ import annotations

import errno
import gc
import ipaddress
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from cohort.errors import RunError
from cohort.tools.dashboard.run_index import RunIndex

INSTALL = "pip install 'cohort-rl[dashboard]'"


def run_dashboard(runs: Sequence[Path], host: str, port: int, public: bool) -> None:
    """Serve the runs until Ctrl-C."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as problem:
        raise RunError(f"cohort dashboard needs {problem.name}, which is not installed: {INSTALL}") from None
    from cohort.tools.dashboard.app import make_app

    folders = check_folders(runs)
    loopback = check_address(host, public)
    run_index = RunIndex(folders)
    listening = bind_port(host, port)
    token = "" if loopback else secrets.token_urlsafe(32)
    names = () if loopback else {host, socket.gethostname(), socket.getfqdn()}
    bound = listening.getsockname()[0]
    reached = socket.gethostname() if ipaddress.ip_address(bound).is_unspecified else host  # others cannot open 0.0.0.0
    shown = f"[{reached}]" if ":" in reached else reached
    place = f"http://{shown}:{listening.getsockname()[1]}/{f'?token={token}' if token else ''}"
    count = len(run_index.list_runs())
    print(f"{count} run{'' if count == 1 else 's'} at {place}   (Ctrl-C to stop)", flush=True)
    if token:
        print("Anyone with this address can read these runs. The connection is not encrypted.", file=sys.stderr)
    config = uvicorn.Config(
        make_app(run_index, token, names),
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=64,
        timeout_keep_alive=20,
        ws="none",
    )
    # With millions of rows in memory, garbage collection would take a third of the time of making a page.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    uvicorn.Server(config).run(sockets=[listening])


def check_folders(runs: Sequence[Path]) -> list[Path]:
    """The given folders; by default ./runs, which need not exist yet."""
    if missing := next((run for run in runs if not run.is_dir()), None):
        raise RunError(f"{missing} is not a folder. Give run folders, or folders that contain runs.")
    return list(runs) or [Path("runs")]


def check_address(host: str, public: bool) -> bool:
    """Whether only this machine can reach the address; raises RunError if others could and --public is missing."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as problem:
        raise RunError(f"--host {host}: not an address of this machine ({problem}).") from None
    loopback = all(ipaddress.ip_address(address).is_loopback for address in found)
    if not loopback and not public:
        raise RunError(
            f"--host {host}: other machines could reach the dashboard. Add --public to allow this (the address then contains a token), or "
            "omit --host and use ssh -L."
        )
    if loopback and public:
        raise RunError(
            f"--public: other machines cannot reach {host}. Give an address that they can reach: --host 0.0.0.0 --public"
        )
    return loopback


def bind_port(host: str, port: int) -> socket.socket:
    """A listening socket; raises RunError with another port to try if this one is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(64)  # a browser may connect before the server accepts
    except OSError as problem:
        listening.close()
        if problem.errno == errno.EADDRINUSE:
            raise RunError(f"--port {port}: already in use. Try another one: cohort dashboard --port {port + 1}") from None
        if problem.errno == errno.EACCES:
            raise RunError(
                f"--port {port}: ports below 1024 are reserved for the system. Use another one, such as 8600."
            ) from None
        raise RunError(f"--host {host}: cannot listen on this address ({problem.strerror}).") from None
    return listening
