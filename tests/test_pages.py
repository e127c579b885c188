"""The pages for users: their Python blocks run, their claims hold, and every link leads somewhere."""

import importlib.util
import re
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from urllib.parse import unquote

import pytest

import momentumrnn as mr
from momentumrnn.experiments.demo import NETWORKS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# The Python blocks of each page, at least, and the extra packages that they need.
RUNNABLE = {
    "getting-started.md": (4, ()),
    "from-torch.md": (8, ()),
    "extending.md": (8, ("safetensors",)),
    "training.md": (1, ("safetensors",)),
}


def blocks(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs all Python blocks of a page in order, in one namespace and an empty folder."""

    def run_page(page):
        least, extras = RUNNABLE[page]
        for name in extras:
            if importlib.util.find_spec(name) is None:
                pytest.skip(f"{page} needs {name}, of the extra momentumrnn[all]")
        assert len(blocks(page)) >= least
        monkeypatch.chdir(tmp_path)
        namespace = {"__name__": page}
        for block in blocks(page):
            exec(compile(block, page, "exec"), namespace)
        return namespace

    return run_page


def test_getting_started(run):
    losses = run("getting-started.md")["losses"]
    # The page says that the control learns first.
    assert losses["control, gain 2.5"] < 0.5 * min(losses["LSTM"], losses["MomentumLSTM"])


def test_from_torch(run, capsys):
    namespace = run("from-torch.md")
    printed = capsys.readouterr().out
    (shown,) = blocks("from-torch.md", "text")
    assert shown in printed
    for momentum, bias in re.findall(
        r"print\(effective_forget_bias\((.*)\)\) +# ([\d.]+)\n", (DOCS / "from-torch.md").read_text()
    ):
        assert namespace["effective_forget_bias"](eval(momentum, {"mr": mr})) == float(bias)


def test_extending(run):
    namespace = run("extending.md")
    losses = [result["selected"]["by_validation"]["test_loss"] for result in namespace["results"]]
    assert max(losses) < 1 / 12  # what always answering 1/2 has
    assert namespace["model"].rnn.momentum == mr.RMSProp(step=1.0, beta=0.9)


class Track:
    """A run of W&B, as far as the page uses it. The page's block was also run with wandb 0.31, offline."""

    all: ClassVar[list] = []

    def __init__(self, *, project, name, config, reinit):
        self.name, self.lines, self.finished = name, [], False
        Track.all.append(self)

    def log(self, line, *, step):
        self.lines.append((line["epoch"], step))

    def finish(self):
        self.finished = True


def test_training(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Track, "all", [])
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Track))
    namespace = run("training.md")
    names = [track.name for track in Track.all]
    assert len(names) == len(set(names)) == 2
    assert all(name in [path.name for path in (tmp_path / "runs").iterdir()] for name in names)
    assert [track.lines for track in Track.all] == [[(1, 50), (2, 100)]] * 2
    assert all(track.finished for track in Track.all)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert_survives_an_error(namespace["Track"], namespace["config"], namespace["train"], tmp_path / "again")


def assert_survives_an_error(watcher, config, train, root):
    """`end` raises for one seed. The same call continues with the other one, and with no more."""

    class Broken(watcher):
        def end(self, run, result):
            raise KeyError(run.seed)

    with pytest.raises(KeyError, match="0"):
        train(config, seeds=[0, 1], root=root, watcher=Broken())
    assert [track.finished for track in Track.all[2:]] == [False, False]
    train(config, seeds=[0, 1], root=root, watcher=watcher())
    assert [(track.name, track.finished) for track in Track.all[4:]] == [(f"{config.id}-s1", True)]
    train(config, seeds=[0, 1], root=root, watcher=watcher())
    assert len(Track.all) == 5


def test_the_names_of_the_paper_are_what_the_page_says():
    rows = re.findall(
        r"^\| `(\w+LSTM\(.*)` \| `(LSTM\(.*)` \|$", (DOCS / "from-torch.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 5
    for theirs, ours in rows:
        assert repr(eval(theirs, vars(mr))) == repr(eval(ours, vars(mr)))


def test_the_demo_has_as_many_networks_as_the_page_says():
    (row,) = re.findall(r"^\| demo \| none \| (\d+) \|", (DOCS / "reproduce.md").read_text(), re.MULTILINE)
    assert int(row) == len(NETWORKS)


def prose(text):
    """Markdown without fenced code, where brackets are no links and # begins no heading."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text):
    """The targets of links and pictures."""
    text = re.sub(r"`[^`\n]*`", "code", prose(text))
    inline = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", text)
    references = re.findall(r"^\[[^\]]+\]: +(\S+)", text, re.MULTILINE)
    return inline + references + re.findall(r"(?:href|src)=\"([^\"]+)\"", text)


def anchors(text):
    """The anchors of headings that a code-hosting page and the site agree on."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)?$", prose(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        hosted = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
        built = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())
        found |= {hosted} & {built}
    return found


def test_links_and_anchors_are_read_as_they_should_be():
    text = """# A `b` (c): d's
## é
[x](y.md#a-b) and `[no](z)` and ![p](q.svg "title")
```
[no](z)
# No
```
<img src="r.png">
"""
    assert links(text) == ["y.md#a-b", "q.svg", "r.png"]
    assert anchors(text) == {"a-b-c-ds"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    broken = []
    for link in links(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not (target.is_relative_to(ROOT) and target.exists()):
            broken.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
            broken.append(f"{link}: {target.name} has no such heading")
    assert broken == []
