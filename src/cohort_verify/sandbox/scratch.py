"""Scratch folders without a file system of their own: measuring and removing them.

Their content is hostile: paths longer than any limit, thousands of nested folders, deleted files that are still open. So
everything here uses descriptors, never follows links, and never recurses.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cohort_verify.sandbox.limits import MAX_FOLDERS_DEEP
from cohort_verify.sandbox.tiers import FIRST_USER

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def find_open_base() -> str | None:
    """Return a folder for scratch folders that a jail can still enter after changing its user, or None for the default."""
    if os.getuid() != 0:
        return None
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        path = Path(folder).resolve()
        if path.is_dir() and all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents)):
            return str(path)
    return None


def make_folder() -> str:
    """Make a scratch folder with this process's id in its name, so that a later process can remove it if this one is killed."""
    base = find_open_base() or tempfile.gettempdir()
    sweep_folders(base, os.getpid())
    return tempfile.mkdtemp(prefix=f"{name_beginning()}{os.getpid()}-", dir=base)


@functools.cache
def name_beginning() -> str:
    """Return the first part of the names. Process ids are only meaningful within one boot and one namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        return f"cohort-jail-{boot}-{os.stat('/proc/self/ns/pid').st_ino}-"
    except OSError:
        return "cohort-jail-"


@functools.cache
def sweep_folders(base: str, _: int) -> None:
    """Remove the folders of processes that were killed during a run; once per process."""
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            owner = entry.name.removeprefix(name_beginning()).partition("-")[0]
            if not entry.name.startswith(name_beginning()) or not owner.isdecimal() or os.path.exists(f"/proc/{owner}"):
                continue
            with contextlib.suppress(OSError):
                user = entry.stat(follow_symlinks=False).st_uid
                if entry.is_dir(follow_symlinks=False) and (user == os.getuid() or (os.getuid() == 0 and user >= FIRST_USER)):
                    remove_folder(entry.path)


def scratch_is_over(folder: str, pid: int, max_bytes: int, max_files: int) -> bool:
    """Return whether the folder, including deleted files that are still open, exceeds the limits."""
    size = count_hidden_bytes(folder, pid)
    if size > max_bytes:
        return True
    for seen, used in enumerate(list_sizes(folder), start=1):
        size += used
        if used < 0 or seen > max_files or size > max_bytes:
            return True
    return False


def list_sizes(folder: str) -> Iterator[int]:
    """Yield the bytes on disk of every entry; -1 for a folder that is too deep."""
    todo: list[tuple[int, int]] = []
    with contextlib.suppress(OSError):
        todo.append((os.open(folder, FOLDER), 0))
    try:
        while todo:
            descriptor, depth = todo.pop()
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            yield status.st_blocks * 512
                            if stat.S_ISDIR(status.st_mode):
                                if depth == MAX_FOLDERS_DEEP or len(todo) == MAX_FOLDERS_DEEP:
                                    yield -1
                                    return
                                todo.append((os.open(entry.name, FOLDER, dir_fd=descriptor), depth + 1))
            except OSError:
                continue
            finally:
                os.close(descriptor)
    finally:
        for descriptor, _ in todo:
            os.close(descriptor)


def count_hidden_bytes(folder: str, pid: int) -> int:
    """Return the size of deleted files that the process holds open or mapped."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    total += status.st_blocks * 512
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if line.endswith("(deleted)\n") and folder in line:
                low, _, high = line.split(maxsplit=1)[0].partition("-")
                total += int(high, 16) - int(low, 16)
    return total


def remove_folder(folder: str) -> None:
    """Remove a scratch folder whose process has ended.

    Inner folders are moved to the top before they are emptied, so that paths stay short.
    """
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
        top = os.open(folder, FOLDER)
        try:
            numbers = itertools.count()
            before: list[str] = []
            while names := [name for name in os.listdir(top) if not remove_entry(top, name)]:
                if names == before:
                    break  # the rest cannot be removed
                before = names
                for name in filter(functools.partial(is_folder, top), names):
                    empty_folder(top, name, numbers)
        finally:
            os.close(top)
        os.rmdir(folder)


def remove_entry(top: int, name: str) -> bool:
    """Remove a file or an empty folder, and return whether that worked."""
    try:
        if is_folder(top, name):
            os.rmdir(name, dir_fd=top)
        else:
            os.unlink(name, dir_fd=top)
    except OSError:
        return False
    return True


def is_folder(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


def empty_folder(top: int, name: str, numbers: Iterator[int]) -> None:
    """Remove the files of a folder at the top, and move its subfolders to the top."""
    with contextlib.suppress(OSError):
        os.chmod(name, 0o700, dir_fd=top)
        descriptor = os.open(name, FOLDER, dir_fd=top)
        try:
            for inner in os.listdir(descriptor):
                with contextlib.suppress(OSError):
                    if is_folder(descriptor, inner):
                        os.chmod(inner, 0o700, dir_fd=descriptor)
                        os.rename(inner, f".cohort-{next(numbers)}", src_dir_fd=descriptor, dst_dir_fd=top)
                    else:
                        os.unlink(inner, dir_fd=descriptor)
        finally:
            os.close(descriptor)
