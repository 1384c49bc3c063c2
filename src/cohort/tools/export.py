"""`cohort export`: the weights of a run as a model folder with a model card, optionally uploaded to the hub."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from cohort.errors import RunError
from cohort.observe.card import write_card
from cohort.observe.run_folder import RunFolder
from cohort.training.run_weights import export_weights, find_weights


def run_export(run: Path, out: Path | None, checkpoint: str, adapter: bool, push: str, public: bool) -> list[str]:
    """Write the folder and push it if requested; returns the lines to print."""
    folder = RunFolder.open(run)
    if public and not push:
        raise RunError("--public needs --push REPO; leave it out.")
    if out is None and not push:
        raise RunError(f"Name the folder to write, cohort export {run} OUT, or a repository of the hub, --push OWNER/NAME.")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not overwritten; name another folder, or remove it first.")
    if out is not None and out.resolve() == Path.cwd():
        raise RunError(f"{out} is the current folder; name another one, which need not exist.")
    hub = open_hub(push, public) if push else None
    target = find_weights(folder, checkpoint, folder.recipe())
    with tempfile.TemporaryDirectory(prefix="cohort-export-") as scratch:
        place = out or Path(scratch) / "model"
        words = export_weights(target, place, adapter=adapter)
        ends = target.checkpoint is None and Path(target.source) == folder.model
        name = "" if ends else target.checkpoint.name if target.checkpoint else "step-0"
        write_card(folder.root, place, words, name, push)
        lines = [f"{run}: {words}{', only the adapter' if adapter else ''}, written to {place}"] if out else [f"{run}: {words}"]
        if hub:
            lines.append(upload_folder(hub, place, push, folder.root.resolve().name))
    return lines


# -- the hub -----------------------------------------------------------------------------------------------------------


def open_hub(repo: str, public: bool) -> Any:
    """The hub's API with a writable repository. Raises RunError before anything is exported."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as problem:
        raise RunError(f"--push {repo}: {problem} Give OWNER/NAME.") from None
    if constants.is_offline_mode():
        raise RunError("--push: HF_HUB_OFFLINE is set, so this machine counts as offline; unset it, or export to a folder.")
    if not (token := get_token()):
        raise RunError("--push: no hub token found. Log in with `hf auth login`, or set HF_TOKEN to a token with write access.")
    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    call_hub(
        hub,
        lambda: hub.create_repo(repo, private=not public, exist_ok=True),
        f"--push {repo}: the repository cannot be created",
    )
    info = call_hub(hub, lambda: hub.model_info(repo), f"--push {repo}: the repository cannot be read")
    if not public and info.private is False:
        raise RunError(f"--push {repo}: the repository exists and is public. Add --public, or name another repository.")
    return hub


def upload_folder(hub: Any, folder: Path, repo: str, name: str) -> str:
    message = f"Weights of the run {name}"
    call_hub(
        hub, lambda: hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message), f"--push {repo}: not uploaded"
    )
    return f"pushed to {hub.endpoint}/{repo}"


def call_hub(hub: Any, call: Any, failed: str) -> Any:
    """The result of a hub call. Errors become RunError, without the token in the message."""
    try:
        return call()
    except Exception as problem:  # errors of the hub, the network or the library
        reason = " ".join(str(problem).split())[:300].replace(str(hub.token), "(token)")
        raise RunError(f"{failed} ({type(problem).__name__}: {reason}).") from None
