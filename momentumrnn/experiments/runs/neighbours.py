"""Whether earlier runs of the same settings had the same source of a user's classes, and the same data."""

from collections.abc import Mapping
from pathlib import Path

from ..config import Config, identity
from .store import HINT, RunError, read_json, same_data

_NEW = "start a new run beside it by --changed-source new, in Python changed_source='new'"


def check_sources(root: Path, config: Config) -> None:
    """Refuse to start a run beside one that differs from it in the source of the user's classes alone."""
    sources = config.sources
    if not sources or any(root.glob(f"{config.id}-s*")):
        return
    # The id without sources is of the settings alone; a folder's name differs from it in the hash.
    settings = identity(config.to_json(), {})
    words = settings.rpartition("-")[0]
    for path in sorted(root.glob(f"{words}-*-s*/config.json")):
        before = _sources(path, settings)
        if before == {}:
            raise RunError(
                f"{path.parent} was begun before the source of {', '.join(sources)} was written down, so it "
                f"can't be told whether that has changed: {_NEW}"
            )
        if before is not None:
            names = sorted(name for name in {*before, *sources} if before.get(name) != sources.get(name))
            changes = [
                f"{name}: {before.get(name, '')[:12]}, now {sources.get(name, '')[:12]}" for name in names
            ]
            raise RunError(
                f"{', '.join(names)} changed since {path.parent} was begun (SHA-256 of the source of "
                f"{'; '.join(changes)}): restore the source to go on with that run, or {_NEW}"
            )


def _sources(path: Path, settings: str) -> Mapping[str, str] | None:
    """The sources in a config.json; None if it is of other settings, or can't be read."""
    try:
        record = read_json(path)
        sources = record.get("sources", {})
        same = identity(record["config"], {}) == settings
    except (RunError, AttributeError, KeyError, TypeError):
        return None
    return sources if same and isinstance(sources, dict) else None


def check_data(folder: Path, before: object, data: Mapping[str, str]) -> None:
    """Refuse to go on with other data than those that a run was begun with. before: None if not known."""
    if not isinstance(before, dict) or same_data(before, data):
        return
    names = sorted(name for name in {*before, *data} if before.get(name) != data.get(name))
    hashes = [f"{name}: {str(before.get(name))[:12]}, now {str(data.get(name))[:12]}" for name in names]
    raise RunError(
        f"{folder} was begun with other data (SHA-256 of {'; '.join(hashes)}): name the folder of the same "
        f"data by --data, or {HINT}"
    )


def check_data_of_seeds(root: Path, config: Config, data: Mapping[str, str]) -> None:
    """Refuse to train a seed beside others that had other data, since all stand under one name."""
    for path in sorted(root.glob(f"{config.id}-s*")):
        for name in ("config.json", "result.json"):
            try:
                record = read_json(path / name)
            except RunError:  # one that is damaged is named where it is trained or listed
                continue
            check_data(path, (record or {}).get("data"), data)
