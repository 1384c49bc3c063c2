"""`cohort dashboard`: where it listens, what it prints, and how it says no."""

from __future__ import annotations

import errno
import gc
import ipaddress
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from cohort.errors import RunError
from cohort.tools.dashboard.shelf import Shelf

INSTALL = "pip install 'cohort-rl[dashboard]'"


def run_dashboard(runs: Sequence[Path], host: str, port: int, public: bool) -> None:
    """Serve the runs until Ctrl-C."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as problem:
        raise RunError(f"cohort dashboard needs {problem.name}, which is not installed: {INSTALL}") from None
    from cohort.tools.dashboard.app import make_app
    from cohort.tools.dashboard.guard import list_own_names, make_token

    folders = check_folders(runs)
    loopback = check_address(host, public)
    shelf = Shelf(folders)
    listening = bind_port(host, port)
    token = "" if loopback else make_token()
    names = () if loopback else {host, *list_own_names()}
    bound = listening.getsockname()[0]
    reached = socket.gethostname() if ipaddress.ip_address(bound).is_unspecified else host  # nobody elsewhere can open 0.0.0.0
    shown = f"[{reached}]" if ":" in reached else reached
    place = f"http://{shown}:{listening.getsockname()[1]}/{f'?token={token}' if token else ''}"
    count = len(shelf.list_runs())
    print(f"{count} run{'' if count == 1 else 's'} at {place}   (Ctrl-C ends it)", flush=True)
    if token:
        print(
            "The token is in the address: whoever has it can read these runs. The connection is not encrypted.", file=sys.stderr
        )
    config = uvicorn.Config(
        make_app(shelf, token, names),
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=64,
        timeout_keep_alive=20,
        ws="none",
    )
    # Rows are kept by the million, and a collector that walks over them each time a page is made takes a third of the making.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    uvicorn.Server(config).run(sockets=[listening])


def check_folders(runs: Sequence[Path]) -> list[Path]:
    """The folders that are shown; ./runs where none was named, whether it is there yet or not."""
    if missing := next((run for run in runs if not run.is_dir()), None):
        raise RunError(f"{missing} is no folder; name run folders, or folders of runs.")
    return list(runs) or [Path("runs")]


def check_address(host: str, public: bool) -> bool:
    """Whether only this machine hears the address; RunError where others would and --public was not said."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as problem:
        raise RunError(f"--host {host}: it is no address of this machine ({problem}).") from None
    loopback = all(ipaddress.ip_address(address).is_loopback for address in found)
    if not loopback and not public:
        raise RunError(
            f"--host {host}: other machines would reach the dashboard. Say --public to allow it, with a token in the address; or leave "
            "--host out, and reach it through ssh -L."
        )
    if loopback and public:
        raise RunError(
            f"--public: only this machine reaches {host}. Name the address that others reach: --host 0.0.0.0 --public"
        )
    return loopback


def bind_port(host: str, port: int) -> socket.socket:
    """A socket that listens there; RunError with a port that may be free where this one is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(64)  # whoever reads the address may come before the server looks
    except OSError as problem:
        listening.close()
        if problem.errno == errno.EADDRINUSE:
            raise RunError(f"--port {port}: it is taken. Give another one: cohort dashboard --port {port + 1}") from None
        if problem.errno == errno.EACCES:
            raise RunError(f"--port {port}: ports below 1024 belong to the system. Give another one, such as 8600.") from None
        raise RunError(f"--host {host}: it cannot be listened on ({problem.strerror}).") from None
    return listening
