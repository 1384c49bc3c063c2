"""Atomic checkpoints with checksums: safetensors and JSON, never pickle.

A checkpoint is a folder that appears under its name only when complete: files are written and synced in a temporary folder, then a
manifest with their SHA-256, then one rename. Reading verifies every byte (safetensors loads a file with a flipped bit without an
error); a damaged checkpoint is reported and the one before it is used.

Names: `step-7` after seven finished steps; `step-7.0` after a reward-model fit there; `step-7.2` two optimizer steps into the eighth
step, with its batch; `step-7-batch` with a batch of the eighth step that cannot be collected again, before any update on it;
`cold-40` forty batches into the cold start.

Of a sharded model every rank writes its shards: `weights.0-of-3.safetensors` and so on, whose tensors concatenate to the whole ones.
Any number of ranks can read it. All ranks must see the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.errors import CheckpointError

MANIFEST = "manifest.json"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of the format of safetensors."""
PIECE = 2**26
NEEDED = ("weights", "optimizer")
"""Tensors without which a run cannot resume."""
FORMAT = 3
OF_A_RANK = re.compile(r"(.+)\.(\d+)-of-(\d+)")


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint: named sets of tensors, and one JSON document."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    document: Mapping[str, Any]


@dataclass(frozen=True)
class HostTensor:
    """The bytes of a tensor in host memory, in pieces."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: list[Tensor]


Tensors = Mapping[str, Tensor | HostTensor]


def save(root: Path, name: str, snapshot: Snapshot) -> Path:
    """Write a checkpoint; whatever happens meanwhile, it either exists completely or not at all."""
    with defer_interrupts():
        if begin(root, name):
            finish(root, name, snapshot.tensors, json.dumps(snapshot.document))
    return root / name


def name_temporary(root: Path, name: str) -> Path:
    return root / f".{name}.tmp"


def begin(root: Path, name: str) -> bool:
    """Create the temporary folder; False if the checkpoint exists already."""
    root.mkdir(parents=True, exist_ok=True)
    target, temporary = root / name, name_temporary(root, name)
    if target.exists():
        try:
            verify(target)
            return False  # a name identifies one state, so a complete checkpoint of this name is this checkpoint
        except CheckpointError:
            shutil.rmtree(target)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return True


def write_tensors(folder: Path, stem: str, tensors: Tensors) -> dict[str, Any]:
    """Write one file in the format of safetensors, synced piece by piece; returns its manifest entry.

    The package's own function copies all tensors first and holds the interpreter's lock while it writes, which would stop training.
    A file that is synced only at its end would delay small files of the run that are synced meanwhile, such as metrics.jsonl.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))  # aligns every tensor
    header: dict[str, Any] = {}
    end = 0
    for name, value in ordered:
        begin, end = end, end + count_bytes(value)
        header[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces = (piece.numpy() for _, value in ordered for piece in list_pieces(value))
    return write_file(folder / f"{stem}.safetensors", [len(text).to_bytes(8, "little") + text], pieces)


def write_file(file: Path, *parts: Iterable[Any]) -> dict[str, Any]:
    """Write and sync these bytes; returns the manifest entry."""
    digest, size = hashlib.sha256(), 0
    try:
        with file.open("wb", buffering=0) as stream:
            for piece in chain(*parts):
                left = memoryview(piece)
                digest.update(left)
                size += len(left)
                while left:
                    left = left[stream.write(left) :]
                os.fsync(stream.fileno())
    except OSError as problem:
        problem.filename = str(file)
        raise
    return {"sha256": digest.hexdigest(), "bytes": size}


def count_bytes(value: Tensor | HostTensor) -> int:
    return math.prod(value.shape) * value.dtype.itemsize


def list_pieces(value: Tensor | HostTensor) -> Iterator[Tensor]:
    if isinstance(value, HostTensor):
        yield from value.pieces
    else:
        yield from (piece.cpu() for piece in read_bytes(value).split(PIECE) if len(piece))


def read_bytes(value: Tensor) -> Tensor:
    """The bytes of a tensor, as a flat view of it if it is contiguous."""
    return value.detach().contiguous().flatten().view(torch.uint8)


def finish(
    root: Path, name: str, tensors: Mapping[str, Tensors], document: str, written: Mapping[str, dict[str, Any]] | None = None
) -> Path:
    """Write the files and the manifest, and rename the folder. written: manifest entries of files that exist already."""
    target, temporary = root / name, name_temporary(root, name)
    files = dict(written or {})
    for part, own in tensors.items():
        files[f"{part}.safetensors"] = write_tensors(temporary, part, own)
    files["state.json"] = write_file(temporary / "state.json", [document.encode()])
    manifest = {"format": FORMAT, "files": dict(sorted(files.items()))}
    write_file(temporary / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    flush(temporary)
    temporary.rename(target)
    flush(root)
    return target


def load(folder: Path, *, verified: bool = False) -> Snapshot:
    """Read a checkpoint and verify it. verified: another rank has just done so. Files that the manifest does not name are ignored."""
    names = list_files(folder) if verified else verify(folder)
    tensors: dict[str, Mapping[str, Tensor]] = {}
    of_ranks: dict[str, dict[int, Path]] = {}
    for file in (folder / name for name in names if name.endswith(".safetensors")):
        if match := OF_A_RANK.fullmatch(file.stem):
            of_ranks.setdefault(match[1], {})[int(match[2])] = file
        else:
            tensors[file.stem] = load_file(file)
    for part, files in of_ranks.items():
        tensors[part] = JoinedShards([files[rank] for rank in sorted(files)], tensors.get(part, {}))
    return Snapshot(tensors, json.loads((folder / "state.json").read_text(encoding="utf-8")))


def verify(folder: Path) -> list[str]:
    """The names of the checkpoint's files, after their sizes and checksums are verified."""
    files = list_files(folder)
    for name, (size, checksum) in files.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {folder}: {name} is missing")
        if file.stat().st_size != size:
            size_now = file.stat().st_size
            raise CheckpointError(
                f"checkpoint {folder}: {name} has {size_now} bytes instead of {size}; it was truncated or overwritten"
            )
        if digest_file(file) != checksum:
            raise CheckpointError(f"checkpoint {folder}: {name} does not match its checksum; the file is damaged")
    return sorted(files)


def list_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Name -> (bytes, SHA-256) of the checkpoint's files, from its manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CheckpointError(f"checkpoint {folder}: {MANIFEST} is missing or unreadable ({problem})") from problem
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {folder}: format {manifest.get('format')!r}, this version reads format {FORMAT}")
    return files


@dataclass(frozen=True)
class Found:
    folder: Path
    snapshot: Snapshot
    problems: list[str]
    """Errors of newer checkpoints."""


def latest(root: Path) -> Found:
    """The newest complete checkpoint."""
    problems: list[str] = []
    for folder in reversed(list_checkpoints(root)):
        try:
            snapshot = load(folder)
            if lacking := [name for name in NEEDED if name not in snapshot.tensors]:
                raise CheckpointError(f"checkpoint {folder}: {MANIFEST} does not name {', '.join(lacking)}.safetensors")
            return Found(folder, snapshot, problems)
        except (CheckpointError, SafetensorError, OSError, ValueError) as problem:
            problems.append(str(problem))
    detail = "\n".join(problems) if problems else f"{root} holds no checkpoint"
    raise CheckpointError(f"no usable checkpoint:\n{detail}")


def list_checkpoints(root: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    if not root.is_dir():
        return []
    return sorted(
        (folder for folder in root.iterdir() if parse_name(folder.name) is not None),
        key=lambda folder: parse_name(folder.name) or (),
    )


def parse_name(name: str) -> tuple[int, int, int, int] | None:
    match = re.fullmatch(r"(cold|step)-(\d+)(?:\.(\d+))?(-batch)?", name)
    if not match:
        return None
    return int(match[1] == "step"), int(match[2]), int(match[3]) if match[3] else -1, int(bool(match[4]))


def prune_checkpoints(root: Path, keep: int, always: str = "", newest: str = "") -> None:
    """Delete all but the newest `keep` checkpoints and the one named `always`, and remains of unfinished saves.

    newest: the checkpoint just saved. A checkpoint that claims to be newer is damaged, since the run would otherwise have resumed from
    it; it must not count among the kept ones, and is overwritten when the run gets there.
    """
    with defer_interrupts():
        for leftover in [*root.glob(".*.tmp"), *root.glob(".*.old")]:
            shutil.rmtree(leftover, ignore_errors=True)
        last = parse_name(newest)
        folders = [folder for folder in list_checkpoints(root) if last is None or (parse_name(folder.name) or last) <= last]
        for folder in folders[:-keep]:
            if folder.name != always:
                # Renamed first: a kill during the deletion must not leave half a checkpoint under a real name.
                doomed = root / f".{folder.name}.old"
                folder.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)


def digest_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; afterwards it replaces `folder` with one rename."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    with defer_interrupts():
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def is_sharded(value: Any) -> bool:
    """Whether it is a DTensor, without importing torch.distributed."""
    return hasattr(value, "to_local")


def select_shards(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: value.to_local() for key, value in tensors.items() if is_sharded(value)}


class JoinedShards(Mapping[str, Tensor]):
    """Whole tensors from the files of all ranks, read one at a time and not cached."""

    def __init__(self, files: list[Path], whole: Mapping[str, Tensor]):
        self.files, self.whole = files, whole
        with safe_open(files[0], "pt") as first:
            self.names = [*whole, *first.keys()]

    def __getitem__(self, name: str) -> Tensor:
        if name in self.whole:
            return self.whole[name]
        if name not in self.names:
            raise KeyError(name)
        shards = []
        for file in self.files:
            with safe_open(file, "pt") as opened:
                shards.append(opened.get_tensor(name))
        return torch.cat(shards)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
