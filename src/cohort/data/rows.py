"""Rows of prompts from wherever they are: a file, a saved or hub dataset, a task, a function, or Python itself.

Every defect is an error that names the place (file, line, row, column) and the fix; nothing is skipped or guessed: the
text 007 of a CSV stays 007. Imports no torch.
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
"""A source that yields more rows than this without a limit is taken for an endless generator."""


def load_rows(config: PromptsConfig, seed: int, rows: Iterable[Any] | None = None, section: str = "prompts") -> list[Row]:
    """All rows of the source, each with a usable prompt; or the rows handed in, checked in the same way.

    section: where the recipe has `config`, for messages: "prompts", "evaluation.sets.NAME" or "cold_start.source".
    """
    name, numbered = open_source(config, seed, rows, section)
    stop = config.limit or ENDLESS + 1
    shared = rows is not None or is_function_name(config.source)  # their values may belong to the caller
    loaded: list[Row] = []
    for place, row in itertools.islice(numbered, stop):
        if not isinstance(row, Mapping):
            raise PromptError(f"{name}, {place}: a row must be an object with named columns, got {kind_of(row)}")
        row = {str(column): copy_cell(value, column, f"{name}, {place}") if shared else value for column, value in row.items()}
        if column := next((column for column, value in row.items() if has_lone_surrogate([column, value])), None):
            raise PromptError(
                f"{name}, {place}: column {make_printable(column)!r} holds half of a surrogate pair (an emoji cut in two?), which no tokenizer "
                "reads and no file can hold; mend the text: text.encode('utf-8', 'replace').decode()"
            )
        if config.shape:
            row = shape_row(row, config.shape, f"{name}, {place}")
        render(row, config, f"{name}, {place}", section)
        loaded.append(row)
    if not config.limit and len(loaded) > ENDLESS:
        raise PromptError(
            f"{name}: more than {ENDLESS:,} rows and no end in sight; set {section}.limit to the number of rows to use"
        )
    if not loaded:
        raise PromptError(f"{section}{'' if rows is not None else f'.source: {name}'}: no rows at all; at least one is needed")
    return loaded


def copy_cell(value: Any, column: Any, place: str) -> Any:
    try:
        return copy_value(value)
    except Exception as problem:  # whatever the value's own class raises
        raise PromptError(
            f"{place}: column {make_printable(str(column))!r} holds a {type(value).__name__} that cannot be copied ({problem}), and each completion "
            "is scored with its own copy of the row; give plain data, and create such objects in the reward function"
        ) from problem


def open_source(
    config: PromptsConfig, seed: int, rows: Iterable[Any] | None, section: str = "prompts"
) -> tuple[str, Iterator[tuple[str, Any]]]:
    """(what to call it in messages, the stream of (place, row)). Reads nothing that the limit does not ask for."""
    source = config.source
    if rows is not None:
        refuse_unused(config, "a list of rows", section, split_is_used=isinstance(rows, Mapping))
        return section, number_rows(read_python_rows(rows, config.split, section))
    if source == PYTHON_ROWS:
        raise PromptError(
            f"{section}.source: these rows were handed in from Python, and only the run folder that keeps them, or the script, has them. "
            "Name the run folder, or name a file"
        )
    prefix, _, rest = source.partition(":")
    if prefix in ("task", "gym"):
        load = load_task if prefix == "task" else load_gym
        try:
            return source, number_rows(load(rest, config.split, seed, config.args))
        except PromptError as problem:  # a task does not know for which section it is asked
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
    raise PromptError(f"{section}.source: {source!r} is no file or folder here{suggest_file(path)}")


def is_function_name(source: str) -> bool:
    """package.module:function, and no task or gym task, which are written alike."""
    return bool(re.fullmatch(r"(?!(?:task|gym):)[A-Za-z_][\w.]*:[A-Za-z_]\w*", source))


def refuse_unused(config: PromptsConfig, what: str, section: str, split_is_used: bool = False) -> None:
    """A setting that would be ignored is a mistake the user wants to hear of."""
    if config.args:
        raise PromptError(f"{section}.args: {what} takes no arguments; remove {', '.join(config.args)}")
    default = PromptsConfig.model_fields["split"].default
    if not split_is_used and config.split != default:
        raise PromptError(f"{section}.split: {what} has no splits; remove split = {config.split!r} or name another source")


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
    """Whether it is a `DatasetDict`, by what it offers: nothing is imported to find out."""
    return isinstance(rows, Mapping) and bool(rows) and all(hasattr(part, "features") for part in rows.values())


def read_frame(frame: Any, section: str) -> Iterable[Any]:
    """The rows of a DataFrame of pandas or polars, by what it offers. A missing value of pandas becomes null, as in the files."""
    names = [str(name) for name in frame.columns]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise PromptError(f"{section}: column {repeated[0]!r} of the DataFrame occurs twice; rename one of them")
    if hasattr(frame, "to_dicts"):
        return list(frame.to_dicts())
    if not hasattr(frame, "to_dict") or not hasattr(frame, "notna"):
        raise PromptError(f"{section}: {type(frame).__module__}.DataFrame cannot be read; give a list of rows, one dict each")
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): convert_arrays(value) for name, value in record.items()} for record in records]


def convert_arrays(value: Any) -> Any:
    """Lists and plain numbers where pandas, reading parquet, puts arrays and scalars of numpy: a chat is a list of messages."""
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
    # utf-8-sig: files saved by spreadsheet programs begin with a byte-order mark, which is no part of the JSON.
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", json.loads(line.rstrip())
            except json.JSONDecodeError as problem:
                raise PromptError(
                    f"{path}, line {number}, column {problem.colno}: not valid JSON ({problem.msg}). "
                    f"Each line must be one object; the line begins {line.strip()[:60]!r}"
                ) from None


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """A list of objects, or an object whose `data` is one. What is otherwise shaped is refused with what to do about it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as problem:
        if problem.msg == "Extra data":
            fix = "it holds several values one after another; one object per line is JSON lines: name the file .jsonl"
        else:
            fix = f"not valid JSON ({problem.msg})"
        raise PromptError(f"{path}, line {problem.lineno}, column {problem.colno}: {fix}") from None
    except RecursionError:
        raise PromptError(f"{path}: nested too deeply to be rows") from None
    rows = document.get("data") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        keys = f" with the keys {', '.join(map(repr, list(document)[:8]))}" if isinstance(document, dict) else ""
        raise PromptError(
            f'{path}: rows are a list, [{{"prompt": ...}}, ...] or {{"data": [...]}}; the file holds one {type(document).__name__}{keys}'
        )
    yield from number_rows(rows)


def read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    """Every value stays the text that is in the file: a guessed type would turn the answer 007 into 7 and NA into null."""
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
                        f"({', '.join(header)}); put quotes around text that contains commas"
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
    """The rows of a file, by the reader of its ending."""
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
        raise PromptError(
            f"{section}.source: {path}: unknown ending {path.suffix!r}; prompts are read from {', '.join(READERS)}"
        )
    if not path.is_file():
        raise PromptError(f"{section}.source: {path}: no such file{suggest_file(path) or '; name a file that is there'}")
    return read_rows(path)


def suggest_file(path: Path) -> str:
    """The file that was probably meant, when there is one beside it."""
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
            f"{section}.source: {path} is a folder, but not one written by datasets' save_to_disk ({problem}); "
            f"name a {' or '.join(READERS)} file"
        ) from problem
    if isinstance(saved, DatasetDict):
        return choose_split(saved, split, str(path), section)
    default = PromptsConfig.model_fields["split"].default
    if split != default:
        raise PromptError(f"{section}.split: {path} holds one dataset without splits; remove split = {split!r}")
    return saved


def load_hub(config: PromptsConfig, section: str) -> Iterable[Any]:
    from datasets import load_dataset

    try:
        return load_dataset(config.source, split=config.split, **config.args)
    except Exception as problem:  # The library raises its own, the hub's and the network's errors; all mean the same here.
        first_line = str(problem).strip().partition("\n")[0]
        raise PromptError(
            f"{section}.source: {config.source!r} is no file or folder here{suggest_file(Path(config.source))}, and loading it as a "
            f"hub dataset (split {config.split!r}, args {config.args}) failed: {type(problem).__name__}: {first_line}"
        ) from problem


# --- functions -------------------------------------------------------------------------------------------------------


def call_function(source: str, config: PromptsConfig, seed: int, section: str) -> Iterable[Any]:
    """The rows of a user's function, which is told seed and split where it has a parameter of that name."""
    function = import_function(source, section)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None
    parameters = {} if signature is None else signature.parameters
    told: dict[str, Any] = {"seed": seed} if "seed" in parameters else {}
    named = config.split != PromptsConfig.model_fields["split"].default
    if "split" in parameters and (named or parameters["split"].default is inspect.Parameter.empty):
        told["split"] = config.split
    arguments = {**told, **config.args}
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


def import_function(source: str, section: str) -> Callable[..., Any]:
    try:
        return load_function(source)
    except NotImportable as problem:
        raise PromptError(f"{section}.source: {problem}") from problem


# ---------------------------------------------------------------------------------------------------------------------
# One row -> the content of a prompt
# ---------------------------------------------------------------------------------------------------------------------


def render(row: Mapping[str, Any], config: PromptsConfig, place: str, section: str = "prompts") -> Content:
    """The text or the chat that the model is given for one row, before any chat template."""
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
        # Columnar formats give every message every key and fill the absent ones with null; templates stumble over those.
        content = [{key: value for key, value in message.items() if value is not None} for message in content]
        content = [{**message, "content": join_texts(message["content"])} for message in content]
    return add_system(content, config.system, place, section) if config.system else content


def fill_template(template: str, row: Mapping[str, Any], place: str, section: str) -> str:
    """Fields are column names and nothing else: no attributes, no indexing."""
    pieces = []
    try:
        for literal, field, spec, conversion in string.Formatter().parse(template):
            pieces.append(literal)
            if field is None:
                continue
            if field not in row:
                raise PromptError(
                    f"{place}: {section}.template uses {{{field}}}, but there is no such column{suggest_nearest(field, row)}; the row has "
                    f"{list_columns(row)}. Write {{{{ and }}}} for braces that are meant as such"
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
        told = message.get("content")
        media = [part for part in told if not is_text(part)] if isinstance(told, list) else []
        if media and isinstance(media[0], Mapping):
            raise PromptError(
                f"{place}: message {number} holds {describe_part(media[0])}; prompts are text, and models that see or hear are not trained "
                "here. Leave such parts out, or describe them in words"
            )
        if not isinstance(told, str) and (media or not told or not isinstance(told, list)):
            raise PromptError(f"{place}: the content of message {number} must be text, got {kind_of(told)}")
    if content[-1]["role"] == "assistant":
        raise PromptError(
            f"{place}: the chat ends with an assistant message, so there is nothing to answer; leave that message out"
        )


def is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def describe_part(part: Mapping[str, Any]) -> str:
    """a part of type 'image_url'"""
    return (
        f"a part of type {part['type']!r}"
        if isinstance(part.get("type"), str)
        else f"a part that is no text ({list_columns(part)})"
    )


def join_texts(content: Any) -> str:
    """The content of a message: text, or a list of texts as some interfaces write it."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def add_system(content: Content, system: str, place: str, section: str) -> list[Message]:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if messages[0]["role"] == "system":
        raise PromptError(f"{place}: the chat already begins with a system message; leave {section}.system empty")
    return [{"role": "system", "content": system}, *messages]


def list_columns(row: Mapping[str, Any]) -> str:
    return "the columns " + ", ".join(repr(column) for column in row) if row else "no columns"


def kind_of(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, list) and not value:
        return "an empty list"
    return f"{type(value).__name__} {str(value)[:40]!r}"
