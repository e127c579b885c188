"""Data files: found, verified, downloaded whole or not at all; what is wrong is said by name."""

import hashlib
import logging
import re
import socket
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from momentumrnn.experiments import data
from momentumrnn.installation import install_command

CONTENTS = {
    "train-images-idx3-ubyte.gz": b"images" * 100,
    "train-labels-idx1-ubyte.gz": b"labels" * 10,
    "t10k-images-idx3-ubyte.gz": b"others" * 50,
    "t10k-labels-idx1-ubyte.gz": b"last",
}
FIRST, *_, LAST = CONTENTS


@pytest.fixture
def mnist(monkeypatch):
    """The data set made small."""
    known = [data.File(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in CONTENTS.items()]
    return set_mirrors(monkeypatch, data.Dataset(tuple(known)), "http://127.0.0.1:9/")


def set_mirrors(monkeypatch, dataset, *mirrors):
    dataset = replace(dataset, mirrors=mirrors)
    monkeypatch.setitem(data.DATASETS, "mnist", dataset)
    return dataset


def fill(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)


class Server:
    """Serves `contents` on this machine, and notes what was asked for."""

    def __init__(self, contents, cut=0):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.split("/")[-1]
                asked.append(name)
                content = contents.get(name)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"") + cut))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_):
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/mnist/"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def network(monkeypatch):
    """This machine is asked itself, whatever proxy its user has."""
    pytest.importorskip("pooch", reason="pooch is not installed: nothing can be downloaded")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def closed():
    """An address where nobody answers."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{port.getsockname()[1]}/"


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_folder(monkeypatch, tmp_path):
    base = "LOCALAPPDATA" if data.WINDOWS else "XDG_CACHE_HOME"
    monkeypatch.setenv(base, str(tmp_path / "cache"))
    monkeypatch.setenv("MOMENTUMRNN_DATA", str(tmp_path / "chosen"))
    assert data.folder(tmp_path) == tmp_path
    assert data.folder(None) == tmp_path / "chosen"
    monkeypatch.delenv("MOMENTUMRNN_DATA")
    assert data.folder(None) == tmp_path / "cache" / "momentumrnn" / "data"
    monkeypatch.delenv(base)
    assert data.folder() == Path.home() / ".cache" / "momentumrnn" / "data"
    assert data.folder(Path("~/data")) == Path.home() / "data"


def test_no_home_is_said(monkeypatch):
    for name in ("MOMENTUMRNN_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: str(path))
    with pytest.raises(data.DataError, match=r"no home folder .* MOMENTUMRNN_DATA"):
        data.folder(None)


@pytest.mark.parametrize("inside", ["", "mnist"])
def test_files_are_found(mnist, tmp_path, inside):
    fill(tmp_path / inside)
    assert data.files("mnist", tmp_path) == {name: tmp_path / inside / name for name in CONTENTS}


def test_missing_files_are_named(mnist, tmp_path):
    fill(tmp_path)
    (tmp_path / LAST).unlink()
    with pytest.raises(data.DataError) as caught:
        data.files("mnist", tmp_path)
    message = str(caught.value)
    assert f"{LAST} is missing" in message
    assert f"{FIRST} is" not in message
    assert str(tmp_path / "mnist") in message
    for hint in (*CONTENTS, "momentumrnn data get mnist", "--data DIR", "MOMENTUMRNN_DATA"):
        assert hint in message


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (CONTENTS[FIRST][:-1], "truncated"),
        (b"", "truncated"),
        (CONTENTS[FIRST][:-1] + b"x", "corrupted"),
        (CONTENTS[FIRST] + b"x", "corrupted"),
    ],
)
def test_damaged_files_are_named(mnist, tmp_path, content, kind):
    fill(tmp_path)
    (tmp_path / FIRST).write_bytes(content)
    found, expected = (hashlib.sha256(c).hexdigest()[:12] for c in (content, CONTENTS[FIRST]))
    says = (
        f"{FIRST} is {kind}: {len(content)} bytes with SHA-256 {found}..., expected 600 bytes with {expected}"
    )
    with pytest.raises(data.DataError) as caught:
        data.files("mnist", tmp_path)
    assert says in str(caught.value)
    assert str(tmp_path / FIRST) in str(caught.value)


def test_a_folder_in_place_of_a_file_is_refused(mnist, tmp_path):
    fill(tmp_path)
    (tmp_path / FIRST).unlink()
    (tmp_path / FIRST).mkdir()
    with pytest.raises(data.DataError, match=f"{FIRST} can't be read"):
        data.files("mnist", tmp_path)


@pytest.mark.parametrize("function", [data.files, data.get])
def test_unknown_data_sets_are_refused(function, tmp_path):
    with pytest.raises(ValueError, match="name should be one of 'mnist', got 'minst'; did you mean 'mnist'"):
        function("minst", tmp_path)


def test_a_download(mnist, tmp_path, monkeypatch, network, capfd):
    import pooch

    records = []
    said = logging.Handler()
    said.emit = records.append
    monkeypatch.setattr(pooch.get_logger(), "handlers", [said])
    with Server(CONTENTS) as server:
        set_mirrors(monkeypatch, mnist, server.address)
        paths = data.get("mnist", tmp_path / "new" / "folder")
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert server.asked == list(CONTENTS)
    assert everything(tmp_path / "new" / "folder" / "mnist") == sorted(CONTENTS)
    assert data.files("mnist", tmp_path / "new" / "folder")[FIRST] == paths[0]
    assert records == []
    assert capfd.readouterr() == ("", "")


def test_the_logger_of_pooch_is_left_as_it_was(mnist, tmp_path, monkeypatch, network):
    import pooch

    monkeypatch.setattr(pooch.get_logger(), "level", logging.INFO)
    set_mirrors(monkeypatch, mnist, closed())
    with pytest.raises(data.DataError):
        data.get("mnist", tmp_path)
    assert pooch.get_logger().level == logging.INFO


def test_what_is_there_is_not_downloaded_again(mnist, tmp_path, monkeypatch, network):
    fill(tmp_path)
    (tmp_path / LAST).unlink()
    with Server(CONTENTS) as server:
        set_mirrors(monkeypatch, mnist, server.address)
        data.get("mnist", tmp_path)
        assert server.asked == [LAST]
        data.get("mnist", tmp_path)
        assert server.asked == [LAST]
    assert everything(tmp_path) == sorted([*(n for n in CONTENTS if n != LAST), f"mnist/{LAST}"])


def test_what_is_there_and_wrong_stays(mnist, tmp_path, monkeypatch, network):
    fill(tmp_path / "mnist")
    (tmp_path / "mnist" / LAST).write_bytes(b"mine")
    (tmp_path / "mnist" / FIRST).unlink()
    with Server(CONTENTS) as server:
        set_mirrors(monkeypatch, mnist, server.address)
        with pytest.raises(data.DataError, match=f"{LAST} is corrupted.*delete"):
            data.get("mnist", tmp_path)
    assert server.asked == []
    assert (tmp_path / "mnist" / LAST).read_bytes() == b"mine"


def test_the_second_mirror_is_asked(mnist, tmp_path, monkeypatch, network):
    partly = {name: CONTENTS[name] for name in (FIRST, LAST)}
    with Server(partly) as one, Server(CONTENTS) as other:
        set_mirrors(monkeypatch, mnist, closed(), one.address, other.address)
        data.get("mnist", tmp_path)
    assert one.asked == list(CONTENTS)
    assert other.asked == [name for name in CONTENTS if name not in partly]


@pytest.mark.parametrize(("damage", "cut"), [(b"x", 0), (b"", 5)], ids=["wrong", "cut short"])
def test_nothing_wrong_remains(mnist, tmp_path, monkeypatch, network, damage, cut):
    with Server({name: content + damage for name, content in CONTENTS.items()}, cut) as server:
        set_mirrors(monkeypatch, mnist, server.address)
        with pytest.raises(data.DataError, match=f"{FIRST} of mnist could not be downloaded"):
            data.get("mnist", tmp_path)
    assert server.asked == [FIRST]
    assert everything(tmp_path) == []


def test_no_network_is_one_clear_error(mnist, tmp_path, monkeypatch, network):
    mirrors = closed(), closed()
    set_mirrors(monkeypatch, mnist, *mirrors)
    with pytest.raises(data.DataError) as caught:
        data.get("mnist", tmp_path)
    message = str(caught.value)
    assert f"{FIRST} of mnist could not be downloaded" in message
    assert "ConnectionError" in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    for hint in (*CONTENTS, *mirrors, str(tmp_path / "mnist"), "MOMENTUMRNN_DATA"):
        assert hint in message
    assert max(map(len, message.splitlines())) < 600
    assert everything(tmp_path) == []


def test_pooch_may_be_missing(mnist, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(data.DataError, match=re.escape(install_command("all"))) as caught:
        data.get("mnist", tmp_path)
    assert str(tmp_path / "mnist") in str(caught.value)
    # Nor is it needed where nothing is missing.
    fill(tmp_path)
    assert data.get("mnist", tmp_path) == [tmp_path / name for name in CONTENTS]


def test_data_that_nobody_serves(mnist, tmp_path, monkeypatch):
    set_mirrors(monkeypatch, mnist)
    with pytest.raises(data.DataError, match="mnist can't be downloaded") as caught:
        data.get("mnist", tmp_path)
    assert "data get" not in str(caught.value)


@pytest.mark.parametrize("name", data.DATASETS)
def test_descriptions_are_whole(name):
    dataset = data.DATASETS[name]
    assert len({file.name for file in dataset.files}) == len(dataset.files) >= 1
    for file in dataset.files:
        assert len(file.sha256) == 64
        assert int(file.sha256, 16) >= 0
        assert file.size > 0
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in dataset.mirrors)


def test_mnist_is_the_published_one():
    """Sizes in bytes as on the first page of the data set."""
    assert [file.size for file in data.DATASETS["mnist"].files] == [9912422, 28881, 1648877, 4542]
