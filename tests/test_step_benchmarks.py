"""The benchmarks of single steps: each runs, in tiny sizes, and writes what it printed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import momentumrnn as mr

pytestmark = pytest.mark.usefixtures("few_steps_as_shipped")
ROOT = Path(__file__).parent.parent


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclass looks
    spec.loader.exec_module(module)
    return module


single_step, policy_loop = loaded("single_step"), loaded("policy_loop")


def written(module, tmp_path, monkeypatch, *options):
    """The result file of a run of the benchmark."""
    path = tmp_path / "result.json"
    arguments = [*options, "--threads", "1", "--rounds", "2", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["", *arguments])
    module.main()
    result = json.loads(path.read_text())
    assert result["threads"] == 1
    assert set(result["versions"]) == {"python", "torch", "momentumrnn"}
    for name, value in zip(options[::2], options[1::2], strict=True):
        assert f"{name} {value}" in result["command"]
    return result["cases"]


def test_single_steps(tmp_path, monkeypatch, capsys):
    options = ["--calls", "2", "--batch", "2", "--hidden", "3", "--features", "4"]
    cases = written(single_step, tmp_path, monkeypatch, *options)
    assert list(cases) == [f"{family}, D 4, H 3, B 2" for family in ("LSTM", "GRU", "RNN")]
    printed = capsys.readouterr().out
    for contenders in cases.values():
        assert len(contenders) == 2 + 2 * len(single_step.MOMENTA)
        for name, figures in contenders.items():
            assert name in printed
            assert figures["rival"] == next(r for r in contenders if r.endswith("Cell") == ("Cell" in name))
            if figures["rival"] == name:
                assert figures["both"]["over_rival"]["median"] == 1


def test_single_steps_of_one_family(tmp_path, monkeypatch):
    cases = written(single_step, tmp_path, monkeypatch, "--calls", "1", "--hidden", "3", "--family", "GRU")
    assert list(cases) == ["GRU, D 128, H 3, B 8"]


def test_a_step_that_is_wrong_is_not_measured(monkeypatch):
    """The comparison with float64 sees an output that is off, and a gradient."""

    def wrong(self, x, hx=None):
        out, after = forward(self, x, hx)
        return out + 0.01 * x.detach().float().mean().to(out), after

    forward = mr.GRU.forward
    assert single_step.case("GRU", 4, 3, 2, rounds=1, calls=1)
    monkeypatch.setattr(
        mr.GRU,
        "forward",
        lambda self, x, hx=None: wrong(self, x, hx) if x.dtype == torch.float32 else forward(self, x, hx),
    )
    with pytest.raises(RuntimeError, match="GRU: a step differs from float64"):
        single_step.case("GRU", 4, 3, 2, rounds=1, calls=1)


POLICY = ["--environments", "2", "--steps", "12", "--epochs", "1", "--minibatches", "2", "--features", "5"]


def test_the_policy_loop(tmp_path, monkeypatch, capsys):
    cases = written(policy_loop, tmp_path, monkeypatch, *POLICY, "--hidden", "4")
    (contenders,) = cases.values()
    assert list(contenders) == [
        "nn.LSTM",
        "LSTM with a State, None",
        f"LSTM with a State, {mr.HeavyBall(mu=0.6)!r}",
    ]
    printed = capsys.readouterr().out
    assert all(name in printed for name in contenders)
    assert contenders["nn.LSTM"]["speed_over_nn.LSTM"]["median"] == 1


def test_without_momentum_our_agent_plays_as_torchs():
    sizes = policy_loop.Sizes(steps=20, epochs=1, hidden=8, features=16)
    seen = []
    for name, training in list(policy_loop.contenders(sizes).items())[:2]:
        torch.manual_seed(0)
        training.learn(training.rollout(), training.agent.initial_state(8))
        seen.append(training.rollout() | {"name": name})
    for name in ("log_probabilities", "values", "rewards"):
        assert torch.allclose(seen[0][name], seen[1][name], atol=1e-5), name


@pytest.mark.parametrize("lost", ["momentum", "all"])
def test_a_replay_from_another_state_is_refused(lost):
    torch.manual_seed(0)
    sizes = policy_loop.Sizes(steps=20, hidden=8, features=16)
    *_, training = policy_loop.contenders(sizes).values()
    training.rollout()
    state = training.state
    seen = training.rollout()
    training.loss(seen, state, check=True)
    other = state.reset() if lost == "all" else mr.State.from_hidden(state.hidden, training.agent.rnn)
    with pytest.raises(RuntimeError, match="differ from its rollout"):
        training.loss(seen, other, check=True)
