"""Checksums of a run's files: what was damaged is refused and never becomes a number.

Files are replaced one by one, and a process may be killed between any two. A checksum in a file of its own
could then disagree with a file that is whole, so each file carries its own inside:

    config.json, result.json   a last key "checksum": of the other keys and their values
    resume.pt                  a trailer after what torch.save wrote: of that, and of metrics.jsonl
    model.safetensors          an entry "checksum" in its metadata: of all tensors and other metadata

All are SHA-256. metrics.jsonl only grows, so it carries none: each checkpoint says what it held by then.
`seal_*` returns the bytes of a file, and `open_*` verifies them. Files of older versions have no checksum.
They are read too, and `open_*` says that they were not verified.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KEY = "checksum"
TRAILER_SIZE = 512
"""In bytes, so that it is found from the end. Small files with more than 4074 are refused by torch.load."""
_MARK = b"momentumrnn checkpoint trailer 1\n"
_DIRECTORY = 0x10  # among the attributes of a zip's entry
_CHANGED = "it was changed or damaged after it was written"


class ChecksumError(ValueError):
    """A file that was changed or damaged; the text is the end of a sentence that begins with its name."""

    def __init__(
        self, text: str = f"does not have the checksum that was written with it: {_CHANGED}"
    ) -> None:
        super().__init__(text)


def seal_json(value: dict[str, Any]) -> bytes:
    """The text of a JSON file, with its checksum.

    >>> open_json(seal_json({"seed": 0, "rate": 0.1}))
    ({'seed': 0, 'rate': 0.1}, True)
    """
    _refuse_key("value", value)
    # The checksum is of what a reader gets: keys are strings there, and tuples are lists.
    checksum = _digest(_read_object(json.dumps(value, allow_nan=False)))
    return (json.dumps({**value, KEY: checksum}, indent=2, allow_nan=False) + "\n").encode()


def open_json(content: bytes) -> tuple[dict[str, Any], bool]:
    """The value without its checksum, and whether it was verified; an older file has none."""
    value = _read_object(content)
    checksum = _take_checksum(value, list(value.values())[-1:])
    if checksum not in (None, _digest(value)):
        raise ChecksumError
    return value, checksum is not None


def seal_checkpoint(content: bytes, metrics: dict[str, Any]) -> bytes:
    """The bytes of torch.save, with a trailer. metrics: the record of metrics.jsonl, of a `RunningHash`.

    Older versions read it too: torch.load skips what follows the zip.
    """
    trailer = _MARK + seal_json({"sha256": hashlib.sha256(content).hexdigest(), "metrics": metrics})
    if metrics.keys() != {"size", "sha256"} or len(trailer) > TRAILER_SIZE:
        raise ValueError(f"metrics should be the record of a RunningHash, got {metrics!r}")
    return content + trailer.ljust(TRAILER_SIZE)


def open_checkpoint(content: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """The bytes of torch.save, and the record of metrics.jsonl; None for an older file, which has no trailer.

    Of an older file, the checksums of the zip are verified. They cover what it holds and not its directory.
    """
    trailer = _open_trailer(content[-TRAILER_SIZE:])
    if trailer is None:
        _check_zip(content)
        return content, None
    own = content[:-TRAILER_SIZE]
    if hashlib.sha256(own).hexdigest() != trailer["sha256"]:
        raise ChecksumError
    return own, trailer["metrics"]


def read_trailer(path: Path) -> dict[str, Any] | None:
    """The record of metrics.jsonl in a checkpoint, of which only the end is read; None for an older file.

    Verifies the trailer alone.
    """
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - TRAILER_SIZE))
        trailer = _open_trailer(file.read())
    return trailer and trailer["metrics"]


def seal_weights(weights: "dict[str, Tensor]", metadata: dict[str, str]) -> bytes:
    """A safetensors file of these tensors, with its checksum; the same tensors give the same bytes."""
    from safetensors.torch import save

    _refuse_key("metadata", metadata)
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    # Not without metadata: safetensors writes a header that it can't read where there is nothing at all.
    header, _, data = _split_weights(save(tensors, {KEY: ""}))
    # The header is written here, since safetensors writes its metadata in an order that changes.
    sealed = {"__metadata__": {**metadata, KEY: _digest([header, metadata], data)}, **header}
    text = json.dumps(sealed, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text + data


def open_weights(path: Path) -> "tuple[dict[str, Tensor], dict[str, str], bool]":
    """The tensors, the metadata without its checksum, and whether it was verified; an older file has none."""
    from safetensors.torch import load

    # Read once, so that what is verified and what is returned are the same bytes.
    content = path.read_bytes()
    header, metadata, data = _split_weights(content)
    checksum = _take_checksum(metadata, metadata.values())
    if checksum not in (None, _digest([header, metadata], data)):
        raise ChecksumError
    try:
        return load(content), metadata, checksum is not None
    except Exception as error:  # safetensors and torch say in many ways that a file is none
        raise ChecksumError(f"is not a whole safetensors file: {_CHANGED}") from error


class RunningHash:
    """The SHA-256 of a file that grows: of all that was added, of which nothing is read again.

    >>> lines = RunningHash(b"1\\n")  # what the file holds already
    >>> lines.add(b"2\\n")
    >>> check_metrics(b"1\\n2\\n3\\n", lines.record)
    b'1\\n2\\n'
    """

    def __init__(self, content: bytes = b"") -> None:
        self.size = len(content)
        self._hash = hashlib.sha256(content)

    def add(self, content: bytes) -> None:
        self.size += len(content)
        self._hash.update(content)

    @property
    def record(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def check_metrics(content: bytes, record: dict[str, Any]) -> bytes:
    """The part of metrics.jsonl that a record is of: its first bytes."""
    size = record["size"]
    if len(content) < size:
        raise ChecksumError(
            f"should have at least {size} bytes, got {len(content)}: it was cut after it was written"
        )
    own = content[:size]
    if RunningHash(own).record != record:
        raise ChecksumError
    return own


def _take_checksum(fields: dict[str, Any], suspects: Iterable[object]) -> str | None:
    """Remove and return the checksum; None if there is none. suspects: values whose key may be damaged."""
    if KEY in fields:
        return str(fields.pop(KEY))
    if any(isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) for value in suspects):
        raise ChecksumError
    return None


def _open_trailer(tail: bytes) -> dict[str, Any] | None:
    """The trailer, of which a file's last bytes should consist; None for an older file, a zip to its end."""
    if tail.startswith(_MARK):
        trailer, verified = open_json(tail[len(_MARK) :])
        if verified and trailer.keys() == {"sha256", "metrics"}:
            return trailer
    elif tail[-22:-18] == b"PK\5\6":  # the record that ends a zip: nothing follows
        return None
    raise ChecksumError(f"is not a whole checkpoint: {_CHANGED}")


def _check_zip(content: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            # Of what is marked as a directory, torch.load returns memory that was never written.
            plain = bool(entries) and not any(entry.external_attr & _DIRECTORY for entry in entries)
            intact = plain and archive.testzip() is None
    except Exception:  # zipfile says in many ways that a file is no zip
        intact = False
    if not intact:
        raise ChecksumError(f"is not a whole checkpoint: {_CHANGED}")


def _split_weights(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The header of a safetensors file without its metadata, the metadata, and the bytes of all tensors."""
    # A size may be damaged; a slice takes no more than there is.
    end = 8 + int.from_bytes(content[:8], "little")
    header = _read_object(content[8:end], "a safetensors file")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ChecksumError(f"is not a safetensors file: {_CHANGED}")
    return header, metadata, content[end:]


def _refuse_key(name: str, value: dict[str, Any]) -> None:
    if KEY in value:
        raise ValueError(f"{name} should have no key {KEY!r}, which is that of its checksum, got {value!r}")


def _digest(value: Any, data: bytes = b"") -> str:
    digest = hashlib.sha256(_canonical(value))
    digest.update(data)
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read_object(text: bytes | str, kind: str = "a JSON object") -> dict[str, Any]:
    """A JSON object without a key that is there twice, and without NaN and infinity."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
        _canonical(value)  # json.loads takes NaN, and 1e999
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ChecksumError(f"is not {kind}: {_CHANGED}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is there twice")
    return value
