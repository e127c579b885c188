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
        self.cues = torch.zeros(count, dtype=torch.int64)

    def observe(self, begins: Tensor) -> Tensor:
        """(B, CUES + 1 + NOISE). begins: a mask, where an episode begins, with a new cue."""
        drawn = torch.randint(0, CUES, (self.count,), generator=self.generator)
        self.cues = torch.where(begins, drawn, self.cues)
        noise = torch.randn(self.count, NOISE, generator=self.generator)
        shown = nn.functional.one_hot(self.cues, CUES) * begins.unsqueeze(-1)
        return torch.cat([shown, begins.unsqueeze(-1), noise], -1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Observation, reward, and where an episode has ended and the next one begins."""
        reward = (action == self.cues).float()
        done = torch.rand(self.count, generator=self.generator) < 1 / 16
        return self.observe(done), reward, done


class Agent(nn.Module):
    """An encoder, a recurrent layer, an actor and a critic, over torch's nn.LSTM and its (h, c)."""

    def __init__(self, rnn: Any) -> None:
        super().__init__()
        first, second = nn.Linear(CUES + 1 + NOISE, 64), nn.Linear(64, rnn.input_size)
        self.encoder = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        self.rnn = rnn
        self.actor, self.critic = nn.Linear(rnn.hidden_size, CUES), nn.Linear(rnn.hidden_size, 1)

    def initial_state(self, rows: int) -> Any:
        zeros = torch.zeros(1, rows, self.rnn.hidden_size)
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
        rows = []
        for _ in range(self.sizes.steps):
            row = {"observations": self.observation, "begins": self.begins}
            logits, value, self.state = self.agent(self.observation[None], self.state, self.begins[None])
            policy = Categorical(logits=logits[0])
            action = policy.sample()
            self.observation, reward, self.begins = self.game.step(action)
            row |= {"actions": action, "log_probabilities": policy.log_prob(action), "values": value[0]}
            rows.append(row | {"rewards": reward, "ends": self.begins})
        seen = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        _, following, _ = self.agent(self.observation[None], self.state, self.begins[None])
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
                f"log probabilities of a replay differ from its rollout's by {change.abs().max()}"
            )
        ratio, advantages = change.exp(), seen["advantages"]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        clipped = seen["values"] + (values - seen["values"]).clamp(-CLIP, CLIP)
        error = torch.max((values - seen["returns"]).square(), (clipped - seen["returns"]).square()).mean()
        return 0.25 * error - gain - 0.01 * policy.entropy().mean()

    def learn(self, seen: dict[str, Tensor], state: Any) -> None:
        """state: before the rollout."""
        for epoch in range(self.sizes.epochs):
            parts = torch.randperm(self.sizes.environments).chunk(self.sizes.minibatches)
            for i, rows in enumerate(parts):
                part = {name: tensor[:, rows] for name, tensor in seen.items()}
                loss = self.loss(part, self.agent.taken(state, rows), check=epoch == i == 0)
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
        speed = self.sizes.environments * self.sizes.steps / (ended - started)
        seconds = {"rollout_s": middle - started, "learning_s": ended - middle}
        return {"steps_per_second": speed, **seconds, "reward": seen["rewards"].mean().item()}


def contenders(sizes: Sizes) -> dict[str, Training]:
    """Of each agent its training, all from the same weights."""
    agents = {"nn.LSTM": Agent(nn.LSTM(sizes.features, sizes.hidden))}
    for momentum in (None, mr.HeavyBall(mu=0.6)):
        agent = OurAgent(mr.LSTM(sizes.features, sizes.hidden, momentum=momentum, carry_momentum=True))
        agent.load_state_dict(agents["nn.LSTM"].state_dict())
        agents[f"LSTM with a State, {momentum!r}"] = agent
    return {name: Training(agent, sizes) for name, agent in agents.items()}


def measured(trainings: dict[str, Training], rounds: int) -> dict[str, Any]:
    """Median, lowest and highest of each figure, and the ratio of steps a second to those of nn.LSTM."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trainings}
    for turn in range(rounds + 1):
        speed_of_torch = None  # nn.LSTM has the first turn
        for name, training in trainings.items():
            figures = training.round()
            speed_of_torch = speed_of_torch or figures["steps_per_second"]
            figures["speed_over_nn.LSTM"] = figures["steps_per_second"] / speed_of_torch
            if turn:  # the first warms up
                found[name].append(figures)
    result: dict[str, Any] = {}
    for name, all_figures in found.items():
        columns = {figure: [figures[figure] for figures in all_figures] for figure in all_figures[0]}
        result[name] = {
            figure: {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
            for figure, values in columns.items()
        }
        medians = (f"{figure} {value['median']:.3g}" for figure, value in result[name].items())
        print(f"{name:48} {'  '.join(medians)}", flush=True)
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
    result = provenance(f"python benchmarks/policy_loop.py {options}", "cpu")
    result |= {"threads": args.threads, "cases": {"PPO": measured(contenders(sizes), args.rounds)}}
    if args.json:
        with open(args.json, "w") as file:
            file.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
