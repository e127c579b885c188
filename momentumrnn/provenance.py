"""What produced a result: command, commit, device and versions. No paths, no host name, no user name."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def provenance(command: str, device: str | None = None) -> dict[str, Any]:
    """What a result records about its origin. device: "cpu" or "cuda"; by default "cuda" where there is one.

    >>> sorted(provenance("momentumrnn bench"))
    ['command', 'commit', 'date', 'device', 'versions']
    """
    import torch

    from . import __version__

    cuda = torch.cuda.is_available() if device is None else device == "cuda"
    torch_version = str(torch.__version__)  # a plain str, not a TorchVersion
    versions = {"python": platform.python_version(), "torch": torch_version, "momentumrnn": __version__}
    if cuda:
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        versions |= {"cuda": str(torch.version.cuda), "cudnn": str(cudnn)}
    return {
        "command": command,
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name("cuda" if cuda else "cpu"),
        "versions": versions,
    }


def device_name(kind: str) -> str:
    """The product name of the device. kind: "cpu" or "cuda"."""
    import torch

    return torch.cuda.get_device_name() if kind == "cuda" else _processor()


def _commit() -> str | None:
    given = os.environ.get("MOMENTUMRNN_COMMIT")
    if given:
        return given
    # If the package is installed inside the checkout of another project, that commit is not ours.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], cwd=FOLDER, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()
