"""A PPO loop with a recurrent policy: environment steps a second with our LSTM and with torch's.

    python benchmarks/policy_loop.py --json results/bench/NAME.json

It resembles the recurrent PPO of CleanRL (ppo_atari_lstm): 8 environments; 512 features that go to an LSTM
with 128 units, an actor and a critic; rollouts of 128 steps, whose masks say where episodes begin; 4 epochs
of 4 minibatches of whole environments; a learner that replays single masked steps with gradients, from the
state before the rollout; generalised advantages, clipped ratios and values, and Adam.

It differs in what is not the LSTM. The environments are a game of memory in torch, which costs little. The
features are from a small MLP, not from a convolutional network. All of it runs on a CPU. There is no
annealing, logging or evaluation.

Contenders begin with the same weights and take turns in each round: a rollout and what is learned from it.
The first replay must give the probabilities of the rollout. Figures are medians over rounds, ratios are
medians of the ratios within a round.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import momentumrnn as mr
from momentumrnn.provenance import provenance

CUES, NOISE = 4, 11  # of an observation, beside the mark of a beginning
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.1


@dataclass(frozen=True)
class Sizes:
    """Of the loop."""

    environments: int = 8
    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    features: int = 512
    hidden: int = 128


class Game:
    """Environments that show a cue in the first step of an episode, and reward each action that equals it."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.generator = count, torch.Generator().manual_seed(seed)
        self.cues = self._draw_cues()

    def _draw_cues(self) -> Tensor:
        return torch.randint(0, CUES, (self.count,), generator=self.generator)

    def observe(self, begins: Tensor) -> Tensor:
        """(B, CUES + 1 + NOISE). begins: a mask, where an episode begins."""
        noise = torch.randn(self.count, NOISE, generator=self.generator)
        shown = nn.functional.one_hot(self.cues, CUES) * begins.unsqueeze(-1)
        return torch.cat([shown, begins.unsqueeze(-1), noise], -1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Observation, reward, and where an episode has ended, and so the next one begins."""
        reward = (action == self.cues).float()
        done = torch.rand(self.count, generator=self.generator) < 1 / 16
        self.cues = torch.where(done, self._draw_cues(), self.cues)
        return self.observe(done), reward, done


class Agent(nn.Module):
    """An encoder, a recurrent layer, an actor and a critic, over torch's nn.LSTM and its (h, c)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(CUES + 1 + NOISE, 64), nn.ReLU(), nn.Linear(64, sizes.features), nn.ReLU()
        )
        self.rnn = self.recurrent(sizes.features, sizes.hidden)
        self.actor, self.critic = nn.Linear(sizes.hidden, CUES), nn.Linear(sizes.hidden, 1)

    def recurrent(self, features: int, hidden: int) -> nn.Module:
        return nn.LSTM(features, hidden)

    def initial_state(self, rows: int) -> Any:
        zeros = torch.zeros(1, rows, self.actor.in_features)
        return zeros, zeros

    def masked(self, state: Any, begins: Tensor) -> Any:
        """The state, at zero where an episode begins."""
        kept = (~begins).view(1, -1, 1).float()
        return state[0] * kept, state[1] * kept

    def taken(self, state: Any, rows: Tensor) -> Any:
        return state[0][:, rows], state[1][:, rows]

    def forward(self, observations: Tensor, state: Any, begins: Tensor) -> tuple[Tensor, Tensor, Any]:
        """observations: (T, B, D); begins: (T, B). Logits, values and the state after single masked steps."""
        outs = []
        for x, begin in zip(self.encoder(observations), begins, strict=True):
            out, state = self.rnn(x.unsqueeze(0), self.masked(state, begin))
            outs.append(out)
        out = torch.cat(outs)
        return self.actor(out), self.critic(out).squeeze(-1), state


class OurAgent(Agent):
    """The same over our LSTM and its State."""

    def __init__(self, sizes: Sizes, momentum: mr.Momentum | None) -> None:
        self.momentum = momentum
        super().__init__(sizes)

    def recurrent(self, features: int, hidden: int) -> nn.Module:
        return mr.LSTM(features, hidden, momentum=self.momentum, carry_momentum=True)

    def initial_state(self, rows: int) -> Any:
        return self.rnn.initial_state(rows)

    def masked(self, state: Any, begins: Tensor) -> Any:
        return state.reset(begins)

    def taken(self, state: Any, rows: Tensor) -> Any:
        return state.select(rows)


class Training:
    """One agent in its environments."""

    def __init__(self, agent: Agent, sizes: Sizes) -> None:
        self.agent, self.sizes = agent, sizes
        self.optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
        self.game = Game(sizes.environments, seed=1)
        self.begins = torch.ones(sizes.environments, dtype=torch.bool)
        self.observation = self.game.observe(self.begins)
        self.state = agent.initial_state(sizes.environments)

    @torch.no_grad()
    def rollout(self) -> dict[str, Tensor]:
        """What happens in so many steps, each tensor (T, B, ...), with advantages and returns."""
        rows: list[dict[str, Tensor]] = []
        for _ in range(self.sizes.steps):
            row = {"observations": self.observation, "begins": self.begins}
            logits, value, self.state = self.agent(
                self.observation.unsqueeze(0), self.state, self.begins.unsqueeze(0)
            )
            policy = Categorical(logits=logits[0])
            action = policy.sample()
            self.observation, reward, self.begins = self.game.step(action)
            row |= {"actions": action, "log_probabilities": policy.log_prob(action), "values": value[0]}
            rows.append(row | {"rewards": reward, "ends": self.begins})
        seen = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        _, following, _ = self.agent(self.observation.unsqueeze(0), self.state, self.begins.unsqueeze(0))
        advantages, running = torch.empty_like(seen["values"]), torch.zeros(self.sizes.environments)
        values = torch.cat([seen["values"], following])
        for t in reversed(range(self.sizes.steps)):
            goes_on = (~seen["ends"][t]).float()
            delta = seen["rewards"][t] + GAMMA * goes_on * values[t + 1] - values[t]
            running = delta + GAMMA * LAMBDA * goes_on * running
            advantages[t] = running
        return seen | {"advantages": advantages, "returns": advantages + seen["values"]}

    def loss(self, seen: dict[str, Tensor], state: Any, check: bool) -> Tensor:
        """Of PPO, for some environments."""
        logits, values, _ = self.agent(seen["observations"], state, seen["begins"])
        policy = Categorical(logits=logits)
        change = policy.log_prob(seen["actions"]) - seen["log_probabilities"]
        if check and not change.abs().max() < 1e-3:
            raise RuntimeError(
                f"a replay differs from its rollout by {change.abs().max()} in log probability"
            )
        ratio, advantages = change.exp(), seen["advantages"]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        clipped = seen["values"] + (values - seen["values"]).clamp(-CLIP, CLIP)
        errors = (values - seen["returns"]).square(), (clipped - seen["returns"]).square()
        return 0.25 * torch.max(*errors).mean() - gain - 0.01 * policy.entropy().mean()

    def learn(self, seen: dict[str, Tensor], state: Any) -> None:
        """state: before the rollout."""
        fresh = True
        for _ in range(self.sizes.epochs):
            for rows in torch.randperm(self.sizes.environments).chunk(self.sizes.minibatches):
                part = {name: tensor[:, rows] for name, tensor in seen.items()}
                loss = self.loss(part, self.agent.taken(state, rows), check=fresh)
                fresh = False
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
                self.optimizer.step()

    def round(self) -> dict[str, float]:
        """A rollout and what is learned from it."""
        before, started = self.state, time.perf_counter()
        seen = self.rollout()
        middle = time.perf_counter()
        self.learn(seen, before)
        ended = time.perf_counter()
        return {
            "steps_per_second": self.sizes.environments * self.sizes.steps / (ended - started),
            "rollout_s": middle - started,
            "learning_s": ended - middle,
            "reward": seen["rewards"].mean().item(),
        }


def contenders(sizes: Sizes) -> dict[str, Training]:
    """Of each agent its training, all from the same weights."""
    agents: dict[str, Agent] = {"nn.LSTM": Agent(sizes)}
    for momentum in (None, mr.HeavyBall(mu=0.6)):
        agent = OurAgent(sizes, momentum)
        agent.load_state_dict(agents["nn.LSTM"].state_dict())
        agents[f"LSTM with a State, {momentum!r}"] = agent
    return {name: Training(agent, sizes) for name, agent in agents.items()}


def measured(trainings: dict[str, Training], rounds: int) -> dict[str, Any]:
    """Median, lowest and highest of each figure, and the ratio of steps a second to those of nn.LSTM."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trainings}
    for turn in range(rounds + 1):
        for name, training in trainings.items():
            figures = training.round()
            if turn:  # the first warms up
                found[name].append(figures)
        for figures in (each[-1] for each in found.values() if turn):
            figures["speed_over_nn.LSTM"] = (
                figures["steps_per_second"] / found["nn.LSTM"][-1]["steps_per_second"]
            )
    result: dict[str, Any] = {}
    for name, figures_of_rounds in found.items():
        result[name] = {}
        for figure in figures_of_rounds[0]:
            values = [figures[figure] for figures in figures_of_rounds]
            summary = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
            result[name][figure] = summary
        medians = (f"{figure} {value['median']:.3g}" for figure, value in result[name].items())
        print(f"{name:50} {'  '.join(medians)}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    for field in fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    sizes = Sizes(**{field.name: getattr(args, field.name) for field in fields(Sizes)})
    options = " ".join(f"--{name} {value}" for name, value in vars(args).items() if name != "json")
    result = {
        **provenance(f"python benchmarks/policy_loop.py {options}", "cpu"),
        "threads": torch.get_num_threads(),
        "cases": {"PPO": measured(contenders(sizes), args.rounds)},
    }
    if args.json:
        with open(args.json, "w") as file:
            file.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
