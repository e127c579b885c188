"""The folder of a run: what is in it, written whole or not at all, by one process at a time.

    config.json         what is trained, on which data, and the seed
    metrics.jsonl       a line for some steps, and one for each epoch
    resume.pt           the checkpoint
    result.json         what came out, once it is over
    model.safetensors   the weights of the epoch that validation selects

Each file carries a checksum, which is verified before the file is used; `checksums` says how. Knows nothing
of networks and of training.
"""

import contextlib
import io
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..config import SCHEMA, Config, SchemaError, identity
from .checksums import (
    ChecksumError,
    RunningHash,
    check_metrics,
    open_checkpoint,
    open_json,
    seal_checkpoint,
    seal_json,
)

FORMAT = 1
"""Of the checkpoint; raised when an older version of this library could no longer read it."""


class RunError(RuntimeError):
    """A run that can't be begun or go on; the message says which, why, and what to do."""


class LockedError(RunError):
    """A run that another process trains."""


class Folder:
    """One run's folder, of one seed."""

    def __init__(self, root: Path, config: Config, seed: int) -> None:
        self.path = root / f"{config.id}-s{seed}"
        self.config, self.seed = config, seed
        self.metrics = RunningHash()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For this process alone, until it ends, however it ends.

        A folder in which nothing was written, since the run was refused, is taken away again.
        """
        with self._take_lock() as handle:
            try:
                yield
            finally:
                self._remove_if_empty(handle)

    def _take_lock(self) -> BinaryIO:
        """The file of the lock, which lives until it is closed."""
        # More than once: `running` holds a lock for a moment, to see whether it can, and whoever had the lock
        # may have taken the folder away with it.
        for _ in range(20):
            handle = self._open_lock()
            if handle is not None:
                try:
                    with _writing(self.path / "lock"):
                        if _lock(handle) and self._has_lock(handle):
                            return handle
                except BaseException:
                    handle.close()
                    raise
                handle.close()
            time.sleep(0.05)
        raise LockedError(f"{self.path} is being written by another process: wait for it, or stop it")

    def _open_lock(self) -> BinaryIO | None:
        """The file of the lock, made if need be; None if another process takes the folder away meanwhile."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return open(self.path / "lock", "a+b")
        except OSError as error:
            vanished = isinstance(error, FileNotFoundError | FileExistsError)
            if vanished and self.path.parent.is_dir() and self._can_be_made():
                return None
            raise RunError(
                f"{self.path} can't be written to: {error.strerror}; name another folder by --root"
            ) from None

    def _can_be_made(self) -> bool:
        """Whether nothing stands in place of the folder. It may be there again by now; one look decides."""
        try:
            return stat.S_ISDIR(os.lstat(self.path).st_mode)
        except FileNotFoundError:
            return True

    def _has_lock(self, handle: BinaryIO) -> bool:
        """Whether an open file is still the one that stands in the folder."""
        try:
            return os.path.samestat(os.fstat(handle.fileno()), os.stat(self.path / "lock"))
        except FileNotFoundError:
            return False

    def _remove_if_empty(self, handle: BinaryIO) -> None:
        """Take the folder away if it holds nothing but the lock, which this process has."""
        # Windows refuses to remove a file that is open; the folder stays there.
        with contextlib.suppress(OSError):
            if os.listdir(self.path) == ["lock"] and self._has_lock(handle):
                (self.path / "lock").unlink()
                self.path.rmdir()  # refused if another process has made its lock there meanwhile

    def record(self) -> dict[str, Any] | None:
        """What config.json says; None if it is not there. Refuses that of another run."""
        path = self.path / "config.json"
        record = read_json(path)
        if record is None:
            return None
        try:
            begun_with(record)
        except SchemaError as error:
            raise RunError(f"{path} {error}, or {HINT}") from None
        name = record_name(record)
        if name != self.path.name:
            raise RunError(
                f"{path} should be that of {self.path.name}, got that of {name or 'no run'}: {HINT}"
            )
        return dict(record)

    def begin(self, data: Mapping[str, str], name: str = "", over: bool = False) -> None:
        """Write config.json, unless it is there as it should be; that of a run that is over stays.

        data: the hashes of the data; name: what the run is called beside its id, such as a recipe's name.
        """
        written = self.record()
        if over and written is not None:
            return
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "begun_with_schema": self._begun_with(written),
            "name": (written or {}).get("name") or name,
            "config": self.config.to_json(),
            "seed": self.seed,
            "sources": self.config.sources,
            "data": dict(data),
        }
        if written != record:
            self.write_json("config.json", record)

    def _begun_with(self, written: dict[str, Any] | None) -> int:
        """The schema of the version that began the run; 1 if files are there that no config.json is of."""
        if written is not None:
            return begun_with(written)
        others = [self.path / name for name in ("resume.pt", "result.json", "metrics.jsonl")]
        return 1 if any(path.exists() and path.stat().st_size for path in others) else SCHEMA

    def read(self, name: str) -> Any:
        """The JSON of a file, verified; None if it is not there."""
        return read_json(self.path / name)

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        self.write(name, seal_json(value))

    def write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)

    def append(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add lines to metrics.jsonl; returns its size and running hash, for a checkpoint or a result."""
        path = self.path / "metrics.jsonl"
        content = b"".join((json.dumps(line, allow_nan=False) + "\n").encode() for line in lines)
        with _writing(path), open(path, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.metrics.add(content)
        return self.metrics.record

    def rewind(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Cut metrics.jsonl to what a checkpoint knows; returns what is in it.

        record: the size and, but for checkpoints of older versions, the hash.
        """
        path, size = self.path / "metrics.jsonl", int(record["size"])
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}") from None
        if len(content) < size:
            raise RunError(
                f"{path} should have {size} bytes at least, as resume.pt says, got {len(content)}: {HINT}"
            )
        if "sha256" in record:
            try:
                check_metrics(content, dict(record))
            except ChecksumError as error:
                raise RunError(f"{path} {error}: {HINT}") from None
        if len(content) > size:
            self._check_result(size)
            self.write("metrics.jsonl", content[:size])
        try:
            lines = [json.loads(line) for line in content[:size].splitlines()]
        except (ValueError, RecursionError):
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise RunError(f"{path} should have a JSON object in each line: {HINT}")
        self.metrics = RunningHash(content[:size])
        return lines

    def _check_result(self, size: int) -> None:
        """Refuse to cut metrics.jsonl to that size if a result is of more, as no kill leaves it."""
        result = self.read("result.json")
        if result is None:
            return
        try:
            least = int(result["metrics_file"]["size"])
        except (KeyError, TypeError, ValueError):
            least = 1  # the result of an older version is of something
        if size < least:
            raise RunError(
                f"{self.path} has a result, and config.json or resume.pt is missing or older: to go on would "
                f"destroy what the result is of; {HINT}"
            )

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint: tensors, numbers, strings, and lists and dicts of those."""
        buffer = io.BytesIO()
        own = {"format": FORMAT, "id": self.config.id, "seed": self.seed}
        torch.save({**own, **state}, buffer)
        self.write("resume.pt", seal_checkpoint(buffer.getvalue(), self.metrics.record))

    def load(self) -> dict[str, Any] | None:
        """The checkpoint, on the CPU; None if there is none."""
        path = self.path / "resume.pt"
        if not path.exists():
            return None
        try:
            content, metrics = open_checkpoint(path.read_bytes())
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}") from None
        except ChecksumError as error:
            raise RunError(f"{path} {error}: {HINT}") from None
        except Exception as error:  # torch.load says in many ways that a file is none of its own
            raise RunError(f"{path} is not a checkpoint, or was damaged: {HINT}") from error
        if metrics is None and begun_with(self.record() or {}) > 1:
            raise RunError(f"{path} {NO_CHECKSUM}: {HINT}")
        if not isinstance(state, dict) or not isinstance(state.get("format"), int):
            raise RunError(f"{path} should be a checkpoint of momentumrnn, got another file: {HINT}")
        if state["format"] > FORMAT:
            raise RunError(
                f"{path} has format {state['format']}, and this version of momentumrnn reads up to {FORMAT}: "
                "update momentumrnn, or train afresh with another --root"
            )
        own = {"id": self.config.id, "seed": self.seed}
        got = {key: state.get(key) for key in own}
        if got != own:
            raise RunError(f"{path} should be of {own}, got {got}: {HINT}")
        size = state.get("size")  # of metrics.jsonl, for want of a trailer
        if metrics is None and (type(size) is not int or size < 0):
            raise RunError(f"{path} should say the size of metrics.jsonl, got {size!r}: {HINT}")
        return {**state, "metrics": metrics or {"size": size}}


HINT = "move the folder away to train afresh, or take another --root"
NO_CHECKSUM = "lacks the checksum that was written with it: it was changed"


def running(path: Path) -> bool:
    """Whether some process has a run's folder locked. Those that ask are in nobody's way, nor each other's.

    On Windows they may take each other for one that trains.
    """
    try:
        with open(path / "lock", "r+b") as handle:
            return not _lock(handle, shared=True)
    except OSError:
        return False


def read_json(path: Path) -> Any:
    """The JSON of a file, verified where it has a checksum; None if it is not there."""
    return read_verified(path)[0]


def read_verified(path: Path) -> tuple[Any, bool]:
    """The JSON of a file, and whether it has a checksum, which is right; older files have none."""
    try:
        return open_json(path.read_bytes())
    except FileNotFoundError:
        return None, True
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}") from None
    except ChecksumError as error:
        raise RunError(f"{path} {error}: {HINT}") from None


def check_schema(record: Mapping[str, Any]) -> int:
    """The schema of what config.json says; the text of a refusal follows the file's name."""
    schema = record.get("schema", 1)
    if type(schema) is not int or schema < 1:
        raise SchemaError(f"should have a schema from 1 to {SCHEMA}, got {schema!r}")
    if schema > SCHEMA:
        raise SchemaError(
            f"has schema {schema}, and this version of momentumrnn reads up to {SCHEMA}: update momentumrnn"
        )
    return schema


def begun_with(record: Mapping[str, Any]) -> int:
    """The schema of the version that began a run, by its config.json; from 2 on all files carry checksums."""
    schema = check_schema(record)
    begun = record.get("begun_with_schema", schema)
    if type(begun) is not int or not 1 <= begun <= schema:
        raise SchemaError(f"should have begun_with_schema from 1 to {schema}, got {begun!r}")
    return begun


def record_name(record: Any) -> str:
    """The name of the folder of what config.json says; "" if it says something else."""
    try:
        return f"{identity(record['config'], record.get('sources', {}))}-s{record['seed']}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def same_data(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether hashes are of the same data. Another version may know more of them; no hash says nothing."""
    fewer, more = sorted((one, other), key=len)
    return all(more.get(name) == value for name, value in fewer.items())


def write_whole(path: Path, content: bytes) -> None:
    """All of it or, whatever happens, nothing: what was there stays until the new is on the disk."""
    partial = path.with_name(f".{path.name}.partial")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {error.strerror or error}. Nothing that was saved is lost; the "
            "same command goes on from there"
        ) from error


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: BinaryIO, shared: bool = False) -> bool:
        try:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(handle: BinaryIO, shared: bool = False) -> bool:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
