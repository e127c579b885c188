"""Where data files are, whether they are the right ones, how to get them. Knows nothing of what they say."""

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from ..installation import install_command
from ..repr_parser import nearest

WINDOWS = os.name == "nt"


class DataError(RuntimeError):
    """Data that are missing, damaged or out of reach; the message says which, and what to do."""


@dataclass(frozen=True)
class File:
    """A file as it was published. size: in bytes; sha256: 64 hexadecimal digits."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Dataset:
    """The files of a data set, and the addresses that a file's name follows; none: it can't be downloaded."""

    files: tuple[File, ...]
    mirrors: tuple[str, ...] = ()


DATASETS = {
    "mnist": Dataset(
        files=(
            File(
                "train-images-idx3-ubyte.gz",
                9912422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                28881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                1648877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                4542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    )
}


def folder(given: Path | None = None) -> Path:
    """Where data are kept: what is given, else MOMENTUMRNN_DATA, else in the user's cache.

    >>> folder(Path("data")).name
    'data'
    """
    base = os.environ.get("LOCALAPPDATA" if WINDOWS else "XDG_CACHE_HOME") or "~/.cache"
    usual = os.environ.get("MOMENTUMRNN_DATA") or os.path.join(base, "momentumrnn", "data")
    found = os.path.expanduser(usual if given is None else given)
    if found.startswith("~"):
        raise DataError(
            f"there is no home folder for {found}: name a folder by --data DIR or MOMENTUMRNN_DATA"
        )
    return Path(found)


def files(name: str, folder: Path) -> dict[str, Path]:
    """The files of a data set by their names, each verified; in folder/name, or in folder itself."""
    dataset = _dataset(name)
    found = {file.name: _find(file, name, folder) for file in dataset.files}
    wrong = {file.name: _wrong(file, found[file.name]) for file in dataset.files}
    if any(wrong.values()):
        lines = [f"  {key} {what}" for key, what in wrong.items() if what]
        place = "" if folder.is_dir() else " (no folder)" if folder.exists() else " (there is no such folder)"
        raise DataError("\n".join([f"{name} in {folder}{place}:", *lines, _advice(name, folder)]))
    return {key: path for key, path in found.items() if path}


def get(name: str, folder: Path) -> list[Path]:
    """The files of a data set, those that are missing downloaded into folder/name; each verified.

    A file is there as a whole or not at all. One that is there and wrong is refused, and stays.
    """
    dataset = _dataset(name)
    missing = []
    for file in dataset.files:
        path = _find(file, name, folder)
        if path is None:
            missing.append(file)
        elif what := _wrong(file, path):
            raise DataError(f"{name} in {folder}: {file.name} {what}; delete or replace it, then get {name}")
    if missing:
        _download(name, missing, folder)
    return list(files(name, folder).values())


def _download(name: str, missing: list[File], folder: Path) -> None:
    mirrors = _dataset(name).mirrors
    if not mirrors:
        raise DataError(f"{name} can't be downloaded. {_advice(name, folder)}")
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(
            f"a download needs pooch: {install_command('all')}. Without it: {_advice(name, folder)}"
        ) from None
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        for file in missing:
            errors = []
            for mirror in mirrors:
                try:
                    # Writes beside the file, and moves what has the right hash.
                    pooch.retrieve(mirror + file.name, f"sha256:{file.sha256}", file.name, folder / name)
                    break
                # What requests raises is an OSError; a wrong hash is a ValueError.
                except (OSError, ValueError) as error:
                    errors.append(f"  {mirror}: {_cause(error)}")
            else:
                by_hand = _advice(name, folder, command=False)
                lines = [f"{file.name} of {name} could not be downloaded:", *errors, by_hand]
                raise DataError("\n".join(lines))
    finally:
        logger.setLevel(level)


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        known = ", ".join(map(repr, DATASETS))
        raise ValueError(f"name should be one of {known}, got {name!r}{nearest(str(name), DATASETS)}")
    return DATASETS[name]


def _find(file: File, name: str, folder: Path) -> Path | None:
    places = (folder / name / file.name, folder / file.name)
    return next((path for path in places if path.exists()), None)


def _wrong(file: File, path: Path | None) -> str:
    """What is wrong with a file, as the end of a sentence; empty if nothing is."""
    if path is None:
        return "is missing"
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
    except OSError as error:
        return f"can't be read: {error}"
    if digest == file.sha256:
        return ""
    kind = "truncated" if size < file.size else "corrupted"
    return (
        f"is {kind}: {size} bytes with SHA-256 {digest[:12]}..., "
        f"expected {file.size} bytes with {file.sha256[:12]}... ({path})"
    )


def _cause(error: BaseException) -> str:
    """What lies at the bottom of an error, in a line."""
    while isinstance(error.__context__, OSError):
        error = error.__context__
    return f"{type(error).__name__}: {shorten(str(error), 200)}"


def _advice(name: str, folder: Path, command: bool = True) -> str:
    dataset = _dataset(name)
    names = ", ".join(file.name for file in dataset.files)
    source = f" (from {' or '.join(dataset.mirrors)})" if dataset.mirrors else ""
    get = f"Or run `momentumrnn data get {name} --data {folder}` where there is a network. "
    return (
        f"Put {names}{source} into {folder / name}. {get if command and dataset.mirrors else ''}"
        "Files that are elsewhere are found by --data DIR or MOMENTUMRNN_DATA."
    )
