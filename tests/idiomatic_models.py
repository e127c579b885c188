"""Five models written as users of torch's recurrent layers write theirs, with ours in their place.

Only `options`, with momentum and carry_momentum, tells them from models of torch. Each class has the methods
that test_models.py calls: `loss()` of a training batch, `whole()`, what the model computes for whole
sequences, and `in_steps()`, the same computed piece by piece, as it is done in use.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import momentumrnn as mr


def repackage_hidden(hidden):
    """Cut the hidden state from the graph of the steps before, as language models do."""
    if isinstance(hidden, Tensor):
        return hidden.detach()
    return tuple(repackage_hidden(part) for part in hidden)


class WordModel(nn.Module):
    """A word language model with a tied decoder and truncated back-propagation."""

    def __init__(self, **options):
        super().__init__()
        words, width = 11, 16
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(words, width)
        self.rnn = mr.LSTM(width, width, num_layers=2, dropout=0.1, **options)
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.encoder.weight

    def init_hidden(self, rows):
        zeros = self.encoder.weight.new_zeros(self.rnn.num_layers, rows, self.rnn.hidden_size)
        return zeros, zeros.clone()

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(out)), hidden

    def text(self, length, rows=4):
        """Words that follow each other in a fixed order, from a random one on: (T, B)."""
        order = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 10, 0])
        return order[(torch.arange(length).unsqueeze(1) + torch.randint(0, 16, (rows,))) % 16]

    def pieces(self, tokens):
        """Pieces of random lengths."""
        cuts = torch.randint(1, 8, (len(tokens),)).cumsum(0)
        return tokens.tensor_split(cuts[cuts < len(tokens)])

    def loss(self):
        tokens = self.text(25)
        hidden, total, begin = self.init_hidden(tokens.shape[1]), 0.0, 1
        for piece in self.pieces(tokens[:-1]):
            logits, hidden = self(piece, repackage_hidden(hidden))
            targets = tokens[begin : begin + len(piece)]
            total = total + len(piece) * F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            begin += len(piece)
        return total / (len(tokens) - 1)

    def generate(self, token, hidden, count):
        """Each most likely word is the next input; the logits of all steps."""
        logits = []
        for _ in range(count):
            step, hidden = self(token, hidden)
            logits, token = [*logits, step], step.argmax(-1)
        return torch.cat(logits)

    def in_steps(self):
        torch.manual_seed(1)
        tokens = self.text(19)
        hidden, logits = self.init_hidden(tokens.shape[1]), []
        for piece in self.pieces(tokens[:-1]):
            step, hidden = self(piece, repackage_hidden(hidden))
            logits.append(step)
        return torch.cat([*logits, self.generate(tokens[-1:], hidden, 9)])

    def whole(self):
        torch.manual_seed(1)
        tokens = self.text(19)
        for _ in range(9):
            logits, _ = self(tokens, self.init_hidden(tokens.shape[1]))
            tokens = torch.cat([tokens, logits[-1:].argmax(-1)])
        return logits


class Translator(nn.Module):
    """Sequence to sequence: the decoder goes on from the encoder's state, one token at a call."""

    BEGIN = 0

    def __init__(self, bidirectional=False, **options):
        super().__init__()
        words, width, hidden = 9, 8, 12
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.bidirectional = bidirectional
        if bidirectional:  # no State: the reverse direction has none
            momentum = options.get("momentum")
            self.encoder = mr.LSTM(width, hidden // 2, bidirectional=True, momentum=momentum)
        else:
            self.encoder = mr.LSTM(width, hidden, **options)
        self.decoder = mr.LSTM(width, hidden, **options)
        self.out = nn.Linear(hidden, words)

    def encode(self, source):
        _, state = self.encoder(self.source(source))
        if self.bidirectional:
            return tuple(torch.cat([t[0], t[1]], -1).unsqueeze(0) for t in state)
        return state

    def step(self, token, state):
        """token: (B,). Log probabilities of the next one, (B, words), and the state after it."""
        out, state = self.decoder(self.target(token).unsqueeze(0), state)
        return self.out(out[0]).log_softmax(-1), state

    def score(self, source, target):
        """Log probabilities of each token of the target, which the decoder gets as a whole."""
        begin = target.new_full((1, target.shape[1]), self.BEGIN)
        out, _ = self.decoder(self.target(torch.cat([begin, target[:-1]])), self.encode(source))
        return self.out(out).log_softmax(-1)

    def sources(self, rows=5, length=6):
        return torch.randint(2, 9, (length, rows))

    def loss(self):
        source = self.sources()
        target = source.flip(0)
        state, token, total = self.encode(source), source.new_full(source.shape[1:], self.BEGIN), 0.0
        for wanted in target:
            scores, state = self.step(token, state)
            total, token = total + F.nll_loss(scores, wanted), wanted
        return total / len(target)

    def greedy(self, source, length=8):
        state, token = self.encode(source), source.new_full(source.shape[1:], self.BEGIN)
        tokens, scores = [], []
        for _ in range(length):
            step, state = self.step(token, state)
            token = step.argmax(-1)
            tokens, scores = [*tokens, token], [*scores, step]
        return torch.stack(tokens), torch.stack(scores)

    def beam(self, source, beams=3, length=8):
        """The best sequence of each source, (T, B), and its log probability, (B,)."""
        rows = source.shape[1]
        state = tuple(t.repeat_interleave(beams, 1) for t in self.encode(source))
        tokens = source.new_zeros(0, rows * beams)
        token = source.new_full((rows * beams,), self.BEGIN)
        total = torch.zeros(rows, beams, dtype=self.out.weight.dtype)
        total[:, 1:] = -torch.inf  # all beams begin alike
        for _ in range(length):
            scores, state = self.step(token, state)
            words = scores.shape[-1]
            total, place = (total.unsqueeze(-1) + scores.view(rows, beams, words)).flatten(1).topk(beams)
            best = (place // words + beams * torch.arange(rows).unsqueeze(1)).flatten()
            token = (place % words).flatten()
            state = tuple(t.index_select(1, best) for t in state)
            tokens = torch.cat([tokens[:, best], token.unsqueeze(0)])
        return tokens[:, ::beams], total[:, 0]

    def in_steps(self):
        torch.manual_seed(1)
        source = self.sources()
        return [self.greedy(source)[1], self.beam(source, beams=1)[1], self.beam(source)[1]]

    def whole(self):
        torch.manual_seed(1)
        source = self.sources()
        greedy, best = self.greedy(source)[0], self.beam(source)[0]
        of_greedy, of_best = self.score(source, greedy), self.score(source, best)
        totals = [
            s.gather(-1, t.unsqueeze(-1)).sum((0, 2)) for s, t in ((of_greedy, greedy), (of_best, best))
        ]
        return [of_greedy, *totals]


class BidirectionalTranslator(Translator):
    def __init__(self, **options):
        super().__init__(bidirectional=True, **options)


class Forecaster(nn.Module):
    """A probabilistic forecast of time series: trained on windows, sampled step by step."""

    def __init__(self, **options):
        super().__init__()
        self.rnn = mr.GRU(3, 14, num_layers=2, batch_first=True, **options)
        self.distribution = nn.Linear(14, 2)

    def series(self, rows=4, length=24):
        """Values (B, T) and covariates (B, T, 2)."""
        phase = (torch.arange(length) + torch.randint(0, 12, (rows, 1))) * torch.pi / 6
        covariates = torch.stack([phase.sin(), phase.cos()], -1).to(self.distribution.weight)
        return covariates[..., 0] + 0.1 * torch.randn(rows, length).to(covariates), covariates

    def forward(self, before, covariates, hidden=None):
        """before: the value of the step before, (B, T). Mean and deviation of each value, and the state."""
        out, hidden = self.rnn(torch.cat([before.unsqueeze(-1), covariates], -1), hidden)
        mean, deviation = self.distribution(out).unbind(-1)
        return mean, F.softplus(deviation) + 1e-3, hidden

    def loss(self):
        values, covariates = self.series(rows=8)
        mean, deviation, _ = self(values[:, :-1], covariates[:, 1:])
        return -torch.distributions.Normal(mean, deviation).log_prob(values[:, 1:]).mean()

    def forecast(self, paths=100, context=12):
        """Sample paths of the steps after `context`, their means, and what they were computed from."""
        values, covariates = self.series()
        mean, deviation, hidden = self(values[:, :context], covariates[:, 1 : context + 1])
        if isinstance(hidden, Tensor):
            hidden = hidden.repeat_interleave(paths, 1)
        else:
            hidden = tuple(t.repeat_interleave(paths, 1) for t in hidden)
        values, covariates = (t.repeat_interleave(paths, 0) for t in (values, covariates))
        mean, deviation = (t[:, -1:].repeat_interleave(paths, 0) for t in (mean, deviation))
        sampled, means = values[:, :context], [mean]
        for t in range(context + 1, values.shape[1]):
            sampled = torch.cat([sampled, torch.normal(mean, deviation)], 1)
            mean, deviation, hidden = self(sampled[:, -1:], covariates[:, t : t + 1], hidden)
            means.append(mean)
        return sampled, torch.cat(means, 1), covariates

    def in_steps(self):
        torch.manual_seed(1)
        return self.forecast()[1]

    def whole(self):
        torch.manual_seed(1)
        sampled, means, covariates = self.forecast()
        return self(sampled, covariates[:, 1:])[0][:, -means.shape[1] :]


class Policy(nn.Module):
    """A recurrent policy for environments that show a cue in their first step and want it as the action."""

    CUES = 3

    def __init__(self, **options):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(self.CUES + 1, 12), nn.Tanh())
        self.rnn = mr.LSTM(12, 10, **options)
        self.actor, self.critic = nn.Linear(10, self.CUES), nn.Linear(10, 1)

    def forward(self, observations, state, done):
        """observations: (T, B, D); done: (B,), whether an episode of it begins. Logits, values and state."""
        out, state = self.rnn(
            self.encoder(observations), state.where(~done, self.rnn.initial_state(len(done)))
        )
        return self.actor(out), self.critic(out).squeeze(-1), state

    def world(self, steps=12, rows=6):
        """Observations (T, B, D), whether an episode begins with a step, (T, B), and the actions it wants."""
        done = torch.rand(steps, rows) < 0.2
        cue, cues = torch.randint(0, self.CUES, (rows,)), []
        for begins in done:
            cue = torch.where(begins, torch.randint(0, self.CUES, (rows,)), cue)
            cues.append(cue)
        wanted = torch.stack(cues)
        shown = F.one_hot(wanted, self.CUES) * done.unsqueeze(-1)
        return torch.cat([shown, torch.randn(steps, rows, 1)], -1).to(self.critic.weight), done, wanted

    @torch.no_grad()
    def rollout(self, observations, done, state):
        """What the actor sees step by step, and the state before each step as one tensor of a buffer."""
        logits, values, buffer = [], [], []
        for t in range(len(done)):
            buffer.append(state.as_tensor())
            logit, value, state = self(observations[t : t + 1], state, done[t])
            logits.append(logit)
            values.append(value)
        return torch.cat(logits), torch.cat(values), state, torch.stack(buffer)

    def replay(self, observations, done, state):
        """The learner: a call for each piece in which no episode begins but with its first step."""
        begins = [0, *(t for t in range(1, len(done)) if done[t].any()), len(done)]
        logits, values = [], []
        for begin, end in pairwise(begins):
            state = state.reset(done[begin])
            out, state = self.rnn(self.encoder(observations[begin:end]), state)
            logits.append(self.actor(out))
            values.append(self.critic(out).squeeze(-1))
        return torch.cat(logits), torch.cat(values)

    def played(self):
        """Two rollouts, the second from where the first ends: the state between, and the second's results."""
        observations, done, _ = self.world()
        _, _, state, _ = self.rollout(observations, done, self.rnn.initial_state(done.shape[1]))
        observations, done, wanted = self.world()
        logits, values, _, buffer = self.rollout(observations, done, state)
        return observations, done, wanted, state, buffer, logits, values

    def loss(self):
        observations, done, wanted, state, _, _, _ = self.played()
        total = 0.0
        for rows in torch.randperm(done.shape[1]).chunk(2):
            begun = [t[:, rows] for t in state]
            logits, values = self.replay(observations[:, rows], done[:, rows], mr.State(*begun))
            rewards = logits.softmax(-1).gather(-1, wanted[:, rows].unsqueeze(-1)).squeeze(-1)
            total = total - rewards.log().mean() + 0.5 * (values - rewards.detach()).square().mean()
        return total

    def in_steps(self):
        torch.manual_seed(1)
        *_, logits, values = self.played()
        return [logits, values, logits[4:, 2:5], values[4:, 2:5]]

    def whole(self):
        torch.manual_seed(1)
        observations, done, _, state, buffer, _, _ = self.played()
        rows, begin = slice(2, 5), 4
        stored = mr.State.from_tensor(buffer[begin][:, rows], self.rnn)
        return [
            *self.replay(observations, done, state),
            *self.replay(observations[begin:, rows], done[begin:, rows], stored),
        ]


class Recogniser(nn.Module):
    """Speech to characters: a causal convolution, three GRU layers, and packed batches with a CTC loss."""

    def __init__(self, **options):
        super().__init__()
        self.features, hidden, self.characters = 5, 12, 6
        self.convolution = nn.Conv1d(self.features, 8, kernel_size=3)
        self.rnn = mr.GRU(8, hidden, num_layers=3, **options)
        self.out = nn.Linear(hidden, self.characters)

    def front(self, frames, past):
        """frames: (B, T, D); past: the two frames before, (B, 2, D). The input of the GRU, (T, B, 8)."""
        return self.convolution(torch.cat([past, frames], 1).transpose(1, 2)).relu().permute(2, 0, 1)

    def silence(self, rows):
        return self.out.weight.new_zeros(rows, 2, self.features)

    def forward(self, frames, lengths):
        """A padded batch: log probabilities, (T, B, characters)."""
        x = self.front(frames, self.silence(len(frames)))
        out, _ = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return self.out(pad_packed_sequence(out)[0]).log_softmax(-1)

    def utterances(self):
        """Frames (B, T, D), their lengths, and characters, (B, 4): each is heard for a time."""
        characters = torch.randint(1, self.characters, (3, 4))
        sound = F.one_hot(characters.repeat_interleave(5, 1), self.characters)[..., 1:]
        frames = sound + 0.1 * torch.randn(3, 20, self.features)
        return frames.to(self.out.weight), torch.tensor([17, 20, 18]), characters

    def loss(self):
        frames, lengths, characters = self.utterances()
        scores = self(frames, lengths)
        return F.ctc_loss(scores, characters, lengths, torch.full((3,), 4))

    def in_chunks(self, frames, sizes):
        """The frames as they come in, so many at a time."""
        past, state, scores = self.silence(len(frames)), None, []
        for chunk in frames.split(sizes, 1):
            out, state = self.rnn(self.front(chunk, past), state)
            scores.append(self.out(out).log_softmax(-1))
            past = torch.cat([past, chunk], 1)[:, -2:]
        return torch.cat(scores)

    def frame_by_frame(self, frames):
        """Each utterance for itself, without a batch axis."""
        scores = []
        for x in self.front(frames, self.silence(len(frames))).unbind(1):
            state, outs = None, []
            for x_t in x:
                out, state = self.rnn(x_t.unsqueeze(0), state)
                outs.append(out)
            scores.append(self.out(torch.cat(outs)).log_softmax(-1))
        return torch.stack(scores, 1)

    def streamed(self, frames):
        stream = mr.Stream(self.rnn, batch_size=len(frames))
        outs = [stream(x) for x in self.front(frames, self.silence(len(frames)))]
        return self.out(torch.stack(outs)).log_softmax(-1)

    def heard(self):
        torch.manual_seed(1)
        frames, lengths, _ = self.utterances()
        return frames, lengths, torch.arange(frames.shape[1]).unsqueeze(1) < lengths

    def in_steps(self):
        frames, _, valid = self.heard()
        chunked = self.in_chunks(frames, [1, 7, 4, 2, 6])
        return [scores[valid] for scores in (chunked, self.frame_by_frame(frames), self.streamed(frames))]

    def whole(self):
        frames, lengths, valid = self.heard()
        return [self(frames, lengths)[valid]] * 3


MODELS = [WordModel, Translator, BidirectionalTranslator, Forecaster, Policy, Recogniser]
