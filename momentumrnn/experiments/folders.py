"""The folder of a run: what is in it, written whole or not at all, by one process at a time.

    config.json         what is trained, and the seed
    metrics.jsonl       a line for some steps, and one for each epoch
    resume.pt           the checkpoint
    result.json         what came out, once it is done
    model.safetensors   the weights of the epoch that validation selects

Knows nothing of networks and of training.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .config import SAME_RUN, Config

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

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For this process alone, until it ends, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / "lock", "a+b")  # noqa: SIM115  (held open: the lock lives with it)
        except OSError as error:
            raise RunError(
                f"{self.path} can't be written to: {error.strerror}; name another folder by --root"
            ) from None
        with handle:
            # More than once: `running` holds a lock for a moment, to see whether it can.
            for _ in range(20):
                with _writing(self.path / "lock"):
                    if _lock(handle):
                        break
                time.sleep(0.05)
            else:
                raise LockedError(f"{self.path} is being written by another process: wait for it, or stop it")
            yield

    def begin(self, over: bool = False) -> None:
        """Write config.json, unless it is there as it should be; of a run that is over, of any length."""
        mine: dict[str, Any] = {"config": self.config.to_json(), "seed": self.seed}
        there = self.read("config.json")
        if over and isinstance(there, dict) and isinstance(there.get("config"), dict):
            mine["config"] |= {key: there["config"][key] for key in SAME_RUN & set(there["config"])}
        if there != mine:
            self.write_json("config.json", mine)

    def read(self, name: str) -> Any:
        """The JSON of a file; None if it is not there."""
        return read_json(self.path / name)

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())

    def write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)

    def append(self, lines: list[dict[str, Any]]) -> int:
        """Add lines to metrics.jsonl; returns its size in bytes."""
        path = self.path / "metrics.jsonl"
        with _writing(path), open(path, "ab") as file:
            for line in lines:
                file.write((json.dumps(line, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def rewind(self, size: int) -> list[dict[str, Any]]:
        """Cut metrics.jsonl to the size that a checkpoint knows; returns what is in it."""
        path = self.path / "metrics.jsonl"
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}") from None
        if len(content) < size:
            raise RunError(
                f"{path} should have {size} bytes at least, as resume.pt says, got {len(content)}: {HINT}"
            )
        if len(content) > size:
            self.write("metrics.jsonl", content[:size])
        try:
            lines = [json.loads(line) for line in content[:size].splitlines()]
        except (ValueError, RecursionError):
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise RunError(f"{path} should have a JSON object in each line: {HINT}")
        return lines

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint: tensors, numbers, strings, and lists and dicts of those."""
        buffer = io.BytesIO()
        own = {"format": FORMAT, "id": self.config.id, "seed": self.seed}
        torch.save({**own, **state}, buffer)
        self.write("resume.pt", buffer.getvalue())

    def load(self) -> dict[str, Any] | None:
        """The checkpoint, on the CPU; None if there is none."""
        path = self.path / "resume.pt"
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}") from None
        except Exception as error:  # torch.load says in many ways that a file is none of its own
            raise RunError(f"{path} is not a checkpoint, or was damaged: {HINT}") from error
        if not isinstance(state, dict) or not isinstance(state.get("format"), int):
            raise RunError(f"{path} should be a checkpoint of momentumrnn, got another file: {HINT}")
        if state["format"] > FORMAT:
            raise RunError(
                f"{path} has format {state['format']}, and this version of momentumrnn reads up to {FORMAT}: "
                "update momentumrnn, or train afresh with another --root"
            )
        mine = {"id": self.config.id, "seed": self.seed}
        got = {key: state.get(key) for key in mine}
        if got != mine:
            raise RunError(f"{path} should be of {mine}, got {got}: {HINT}")
        return state


HINT = "move the folder away to train afresh, or take another --root"


def running(path: Path) -> bool:
    """Whether some process has a run's folder locked."""
    try:
        with open(path / "lock", "r+b") as handle:
            return not _lock(handle)
    except OSError:
        return False


def read_json(path: Path) -> Any:
    """The JSON of a file; None if it is not there."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise RunError(f"{path} should be JSON, got something else: {HINT}") from None


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

    def _lock(handle: Any) -> bool:
        try:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(handle: Any) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
