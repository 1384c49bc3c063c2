"""Loads rows of prompts from a file, a saved or hub dataset, a task, a function, or Python objects. No torch.

Every defect is an error that names the place (file, line, row, column) and the fix. Nothing is skipped or guessed: the text 007 in a
CSV file stays 007.
"""

from __future__ import annotations

import csv
import inspect
import itertools
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cohort.base.hub import use_cache_if_offline
from cohort.base.importing import NotImportable, load_function
from cohort.base.text import has_lone_surrogate, make_printable
from cohort.base.trees import copy_value
from cohort.data.benchmark_files import shape_row
from cohort.data.tasks import load_task
from cohort.errors import PromptError
from cohort.recipe.schema import PromptsConfig
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.values import PYTHON_ROWS
from cohort.rewards.gym.rows import load_gym
from cohort.types import Message

Row = dict[str, Any]
Content = str | list[Message]

ENDLESS = 1_000_000
"""A source with more rows than this and no limit is treated as an endless generator."""


def load_rows(config: PromptsConfig, seed: int, rows: Iterable[Any] | None = None, section: str = "prompts") -> list[Row]:
    """All rows of the source, or the given rows, each checked for a usable prompt.

    section: the section of `config` in the recipe, for messages: "prompts", "evaluation.sets.NAME" or "cold_start.source".
    """
    name, numbered = open_source(config, seed, rows, section)
    stop = config.limit or ENDLESS + 1
    shared = rows is not None or is_function_name(config.source)  # the values may belong to the caller
    loaded: list[Row] = []
    for place, row in itertools.islice(numbered, stop):
        if not isinstance(row, Mapping):
            raise PromptError(f"{name}, {place}: a row must be an object with named columns, got {kind_of(row)}")
        row = {str(column): copy_cell(value, column, f"{name}, {place}") if shared else value for column, value in row.items()}
        if column := next((column for column, value in row.items() if has_lone_surrogate([column, value])), None):
            raise PromptError(
                f"{name}, {place}: column {make_printable(column)!r} contains half of a surrogate pair (part of an emoji?), which tokenizers "
                "and files cannot represent; fix the text: text.encode('utf-8', 'replace').decode()"
            )
        if config.shape:
            row = shape_row(row, config.shape, f"{name}, {place}")
        render(row, config, f"{name}, {place}", section)
        loaded.append(row)
    if not config.limit and len(loaded) > ENDLESS:
        raise PromptError(f"{name}: more than {ENDLESS:,} rows; set {section}.limit to the number of rows to use")
    if not loaded:
        raise PromptError(f"{section}{'' if rows is not None else f'.source: {name}'}: no rows; at least one is needed")
    return loaded


def copy_cell(value: Any, column: Any, place: str) -> Any:
    try:
        return copy_value(value)
    except Exception as problem:  # whatever the value's own class raises
        raise PromptError(
            f"{place}: column {make_printable(str(column))!r} has a value of type {type(value).__name__} that cannot be copied ({problem}), but each completion "
            "is scored with its own copy of the row; use plain data, and create such objects in the reward function"
        ) from problem


def open_source(
    config: PromptsConfig, seed: int, rows: Iterable[Any] | None, section: str = "prompts"
) -> tuple[str, Iterator[tuple[str, Any]]]:
    """(name of the source for messages, stream of (place, row)). Reads no further than the limit."""
    source = config.source
    if rows is not None:
        refuse_unused(config, "a list of rows", section, split_is_used=isinstance(rows, Mapping))
        return section, number_rows(read_python_rows(rows, config.split, section))
    if source == PYTHON_ROWS:
        raise PromptError(
            f"{section}.source: these rows were passed from Python and are not in the recipe. "
            "Use the run folder, which may have them, or a file"
        )
    prefix, _, rest = source.partition(":")
    if prefix in ("task", "gym"):
        load = load_task if prefix == "task" else load_gym
        try:
            return source, number_rows(load(rest, config.split, seed, config.args))
        except PromptError as problem:  # a task does not know the section
            raise PromptError(re.sub(r"\bprompts\.", f"{section}.", str(problem))) from problem
    path = Path(source).expanduser()
    if path.is_dir():
        refuse_unused(config, "a saved dataset", section, split_is_used=True)
        return source, number_rows(read_saved(path, config.split, section))
    if path.suffix in READERS or path.is_file():
        refuse_unused(config, "a file", section)
        return source, read_file(path, section)
    if is_function_name(source):
        return source, number_rows(call_function(source, config, seed, section))
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) and not source.startswith("."):
        return source, number_rows(load_hub(config, section))
    raise PromptError(f"{section}.source: {source!r} is not a file or folder here{suggest_file(path)}")


def is_function_name(source: str) -> bool:
    """Whether the source is "package.module:function", not a task or gym task."""
    return bool(re.fullmatch(r"(?!(?:task|gym):)[A-Za-z_][\w.]*:[A-Za-z_]\w*", source))


def refuse_unused(config: PromptsConfig, what: str, section: str, split_is_used: bool = False) -> None:
    """Refuse settings that would be ignored."""
    if config.args:
        raise PromptError(f"{section}.args: {what} takes no arguments; remove {', '.join(config.args)}")
    default = PromptsConfig.model_fields["split"].default
    if not split_is_used and config.split != default:
        raise PromptError(f"{section}.split: {what} has no splits; remove split = {config.split!r} or use another source")


def read_python_rows(rows: Any, split: str, section: str = "prompts") -> Iterable[Any]:
    if any(kind.__name__ == "DataFrame" for kind in type(rows).__mro__):
        return read_frame(rows, section)
    if isinstance(rows, Mapping):
        if has_splits(rows):
            return choose_split(rows, split, section, section)
        raise PromptError(
            f"{section}: give a list of rows, [{{'prompt': ..., 'answer': ...}}, ...], not one mapping of columns"
        )
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise PromptError(f"{section}: give a list of rows, a dataset, a DataFrame or a generator, not {kind_of(rows)}")
    return rows


def has_splits(rows: Any) -> bool:
    """Whether the object looks like a `DatasetDict`; datasets is not imported for this."""
    return isinstance(rows, Mapping) and bool(rows) and all(hasattr(part, "features") for part in rows.values())


def read_frame(frame: Any, section: str) -> Iterable[Any]:
    """The rows of a pandas or polars DataFrame. Missing values of pandas become None, as in files."""
    names = [str(name) for name in frame.columns]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise PromptError(f"{section}: column {repeated[0]!r} of the DataFrame occurs twice; rename one of them")
    if hasattr(frame, "to_dicts"):
        return list(frame.to_dicts())
    if not hasattr(frame, "to_dict") or not hasattr(frame, "notna"):
        raise PromptError(f"{section}: {type(frame).__module__}.DataFrame is not supported; give a list of rows, one dict each")
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): convert_arrays(value) for name, value in record.items()} for record in records]


def convert_arrays(value: Any) -> Any:
    """Convert NumPy arrays and scalars, which pandas makes from parquet, to lists and numbers: a chat is a list of messages."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if isinstance(value, list):
        return [convert_arrays(inner) for inner in value]
    return {key: convert_arrays(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def choose_split(splits: Mapping[Any, Any], split: str, name: str, section: str) -> Iterable[Any]:
    if split not in splits:
        known = [str(known) for known in splits]
        raise PromptError(
            f"{name}: no split {split!r}{suggest_nearest(split, known)}; it has {', '.join(known)}. Set {section}.split"
        )
    return splits[split]


# --- files -----------------------------------------------------------------------------------------------------------


def number_rows(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    # utf-8-sig: files saved by spreadsheet programs start with a byte-order mark.
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", json.loads(line.rstrip())
            except json.JSONDecodeError as problem:
                raise PromptError(
                    f"{path}, line {number}, column {problem.colno}: not valid JSON ({problem.msg}). "
                    f"Each line must be one object; the line starts with {line.strip()[:60]!r}"
                ) from None


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a JSON file: a list of objects, or an object whose `data` is such a list."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as problem:
        if problem.msg == "Extra data":
            fix = "it contains several values; if it has one object per line, rename it to .jsonl"
        else:
            fix = f"not valid JSON ({problem.msg})"
        raise PromptError(f"{path}, line {problem.lineno}, column {problem.colno}: {fix}") from None
    except RecursionError:
        raise PromptError(f"{path}: nested too deeply") from None
    rows = document.get("data") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        keys = f" with the keys {', '.join(map(repr, list(document)[:8]))}" if isinstance(document, dict) else ""
        raise PromptError(
            f'{path}: expected a list of rows, [{{"prompt": ...}}, ...] or {{"data": [...]}}; the file contains one {type(document).__name__}{keys}'
        )
    yield from number_rows(rows)


def read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a CSV file. All values are text: guessing types would turn the answer 007 into 7 and NA into null."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            header = next(reader, [])
            repeated = sorted({name for name in header if header.count(name) > 1})
            if repeated:
                raise PromptError(f"{path}, line 1: column {repeated[0]!r} occurs twice")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise PromptError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells for {len(header)} columns "
                        f"({', '.join(header)}); quote text that contains commas"
                    )
                yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))
        except csv.Error as problem:
            raise PromptError(f"{path}, line {reader.line_num}: not valid CSV ({problem})") from None


def read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as arrow
    import pyarrow.parquet

    try:
        with arrow.parquet.ParquetFile(path) as table:
            number = itertools.count()
            for batch in table.iter_batches(batch_size=1024):
                yield from ((f"row {next(number)}", row) for row in batch.to_pylist())
    except (arrow.ArrowException, OSError) as problem:
        raise PromptError(f"{path}: not a readable parquet file ({problem})") from problem


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file; the file name extension decides the format."""
    try:
        yield from READERS[path.suffix](path)
    except UnicodeDecodeError as problem:
        raise PromptError(f"{path}: not UTF-8 text ({problem.reason} at byte {problem.start}); save it as UTF-8") from None


READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
    ".csv": read_csv,
}


def read_file(path: Path, section: str) -> Iterator[tuple[str, Any]]:
    if path.suffix not in READERS:
        raise PromptError(f"{section}.source: {path}: unknown file type {path.suffix!r}; supported: {', '.join(READERS)}")
    if not path.is_file():
        raise PromptError(f"{section}.source: {path}: no such file{suggest_file(path) or '; check the path'}")
    return read_rows(path)


def suggest_file(path: Path) -> str:
    """A hint: the most similar file name in the same folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; the folder {path.parent} does not exist either"
    return suggest_nearest(path.name, names)


# --- datasets --------------------------------------------------------------------------------------------------------


def read_saved(path: Path, split: str, section: str) -> Iterable[Any]:
    from datasets import DatasetDict, load_from_disk

    try:
        saved = load_from_disk(str(path))
    except (OSError, ValueError) as problem:
        raise PromptError(
            f"{section}.source: {path} is a folder, but not one written by save_to_disk of datasets ({problem}); "
            f"use a {' or '.join(READERS)} file"
        ) from problem
    if isinstance(saved, DatasetDict):
        return choose_split(saved, split, str(path), section)
    default = PromptsConfig.model_fields["split"].default
    if split != default:
        raise PromptError(f"{section}.split: {path} holds one dataset without splits; remove split = {split!r}")
    return saved


def load_hub(config: PromptsConfig, section: str) -> Iterable[Any]:
    from datasets import load_dataset

    with use_cache_if_offline(config.source, "datasets.config") as offline:
        try:
            return load_dataset(config.source, split=config.split, **config.args)
        except Exception as problem:  # errors of datasets, the hub or the network
            first_line = str(problem).strip().partition("\n")[0]
            called = f" (split {config.split!r}, args {config.args}) failed: {type(problem).__name__}: {first_line}"
            raise PromptError(
                f"{section}.source: {config.source!r} is not a file or folder here{suggest_file(Path(config.source))}, and loading it as "
                f"a hub dataset{f' failed: {offline}.' if offline else called}"
            ) from problem


# --- functions -------------------------------------------------------------------------------------------------------


def call_function(source: str, config: PromptsConfig, seed: int, section: str) -> Iterable[Any]:
    """The rows that a user's function returns. It gets seed and split if it has parameters with these names."""
    try:
        function = load_function(source)
    except NotImportable as problem:
        raise PromptError(f"{section}.source: {problem}") from problem
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None
    parameters = {} if signature is None else signature.parameters
    passed: dict[str, Any] = {"seed": seed} if "seed" in parameters else {}
    named = config.split != PromptsConfig.model_fields["split"].default
    if "split" in parameters and (named or parameters["split"].default is inspect.Parameter.empty):
        passed["split"] = config.split
    arguments = {**passed, **config.args}
    if signature is not None:
        try:
            signature.bind(**arguments)
        except TypeError as problem:
            raise PromptError(f"{section}.args: {source}{signature} cannot be called with {arguments}: {problem}") from None
    rows = function(**copy_value(arguments))
    if named and "split" not in arguments and not isinstance(rows, Mapping):
        raise PromptError(
            f"{section}.split: {source} has no splits; remove split = {config.split!r}, give it a parameter split, or let it return a DatasetDict"
        )
    return read_python_rows(rows, config.split, section)


# ---------------------------------------------------------------------------------------------------------------------
# One row -> the content of a prompt
# ---------------------------------------------------------------------------------------------------------------------


def render(row: Mapping[str, Any], config: PromptsConfig, place: str, section: str = "prompts") -> Content:
    """The prompt of one row as text or chat messages, before the chat template."""
    if config.template:
        content: Any = fill_template(config.template, row, place, section)
    elif config.prompt_column in row:
        content = row[config.prompt_column]
    else:
        joined = len(row) == 1 and any(sign in str(*row) for sign in ";\t|")
        hint = "; columns of a file are separated by commas" if joined else suggest_nearest(config.prompt_column, row)
        raise PromptError(
            f"{place}: no column {config.prompt_column!r}{hint}; it has {list_columns(row)}. "
            f"Set {section}.prompt_column, or build the prompt with {section}.template"
        )
    check_content(content, f"{place}, column {config.prompt_column!r}")
    if not isinstance(content, str):
        # Columnar formats fill missing keys of messages with null, which templates do not handle.
        content = [{key: value for key, value in message.items() if value is not None} for message in content]
        for message in content:  # some APIs give the text of a message as a list of parts
            if not isinstance(message["content"], str):
                message["content"] = "".join(part["text"] for part in message["content"])
    return add_system(content, config.system, place, section) if config.system else content


def fill_template(template: str, row: Mapping[str, Any], place: str, section: str) -> str:
    """The template with its {column} fields filled; attributes and indexing are not supported."""
    pieces = []
    try:
        for literal, field, spec, conversion in string.Formatter().parse(template):
            pieces.append(literal)
            if field is None:
                continue
            if field not in row:
                raise PromptError(
                    f"{place}: {section}.template uses {{{field}}}, but there is no such column{suggest_nearest(field, row)}; the row has "
                    f"{list_columns(row)}. Write {{{{ and }}}} for literal braces"
                )
            value = string.Formatter().convert_field(row[field], conversion)
            pieces.append(format(value, spec or ""))
    except (ValueError, TypeError) as problem:
        raise PromptError(
            f"{place}: {section}.template cannot be filled ({problem}); write {{{{ and }}}} for literal braces"
        ) from None
    return "".join(pieces)


def check_content(content: Any, place: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise PromptError(f"{place}: a prompt is text or a list of chat messages, got {kind_of(content)}")
    for number, message in enumerate(content):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f'{place}: message {number} must be {{"role": ..., "content": ...}}, got {kind_of(message)}')
        text = message.get("content")
        media = [part for part in text if not is_text(part)] if isinstance(text, list) else []
        if media and isinstance(media[0], Mapping):
            kind = (
                f"of type {media[0]['type']!r}" if isinstance(media[0].get("type"), str) else f"with {list_columns(media[0])}"
            )
            raise PromptError(
                f"{place}: message {number} has a part {kind}, but prompts are text only: images and audio "
                "are not supported. Remove such parts"
            )
        if not isinstance(text, str) and (media or not text or not isinstance(text, list)):
            raise PromptError(f"{place}: the content of message {number} must be text, got {kind_of(text)}")
    if content[-1]["role"] == "assistant":
        raise PromptError(
            f"{place}: the chat ends with an assistant message; remove that message, because the policy writes it"
        )


def is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def add_system(content: Content, system: str, place: str, section: str) -> list[Message]:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if messages[0]["role"] == "system":
        raise PromptError(f"{place}: the chat already starts with a system message; leave {section}.system empty")
    return [{"role": "system", "content": system}, *messages]


def list_columns(row: Mapping[str, Any]) -> str:
    return "the columns " + ", ".join(repr(column) for column in row) if row else "no columns"


def kind_of(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, list) and not value:
        return "an empty list"
    return f"{type(value).__name__} {str(value)[:40]!r}"
