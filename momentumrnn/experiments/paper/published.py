"""What the paper and its authors published: the numbers of recipes, their sources, notes for a comparison."""

from dataclasses import dataclass

from .rows import row_of

SOURCES = {
    "paper": "the authors' own runs",
    "helfrich2018": "Helfrich, Willmott, Ye, Orthogonal Recurrent Neural Networks with Scaled Cayley "
    "Transform, ICML 2018",
    "vorontsov2017": "Vorontsov, Trabelsi, Kadoury, Pal, On orthogonality and learning recurrent networks "
    "with long term dependencies, ICML 2017",
    "wisdom2016": "Wisdom, Powers, Hershey, Le Roux, Atlas, Full-Capacity Unitary Recurrent Neural "
    "Networks, NIPS 2016",
    "casado2019trivializations": "Lezcano-Casado, Trivializations for Gradient-Based Optimization on "
    "Manifolds, NeurIPS 2019",
    "helfrich2018+lezcano2019cheap": "Helfrich et al. 2018, and Lezcano-Casado, Martínez-Rubio, Cheap "
    "Orthogonal Constraints in Neural Networks, ICML 2019",
    "merity2018": "Merity, Keskar, Socher, Regularizing and Optimizing LSTM Language Models, ICLR 2018",
}


@dataclass(frozen=True)
class Published:
    """A number that the paper prints.

    std: the sample standard deviation over seeds, where the paper gives it.
    source: who measured it, a key of SOURCES.
    rounding: how far the exact value may lie from the printed one, where that matters.
    seeds: how many seeds the std is of.
    """

    value: float
    std: float | None = None
    source: str = "paper"
    rounding: float = 0.0
    seeds: int = 5

    @property
    def quoted(self) -> bool:
        """Whether the paper takes it from another work, and so from other training."""
        return self.source != "paper"

    @property
    def text(self) -> str:
        """The number, and its deviation where there is one.

        >>> Published(94.72, 0.16).text
        '94.72 ± 0.16'
        """
        return f"{self.value:g}" + ("" if self.std is None else f" ± {self.std:g}")


def released_loss(name: str) -> Published | None:
    """The lowest test loss of a recipe's runs by the authors, from the curves that they released.

    >>> released_loss("table1/LSTM/PMNIST/256")
    Published(value=0.2752, std=0.018, source='paper', rounding=0.0, seeds=4)
    """
    row = row_of(name)
    return _RELEASED_LOSSES.get(row) or _RELEASED_LOSSES.get(row.removesuffix("/as-released"))


# By row. SRLSTM-released has the numbers of SRLSTM.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "LSTM/MNIST/128": (Published(98.70, source="helfrich2018"), Published(97.30, source="vorontsov2017")),
    "LSTM/PMNIST/128": (Published(92.00, source="helfrich2018"), Published(92.62, source="vorontsov2017")),
    "LSTM/MNIST/256": (Published(98.90, source="helfrich2018"), Published(98.50, source="wisdom2016")),
    "LSTM/PMNIST/256": (Published(92.29, source="helfrich2018"), Published(92.10, source="wisdom2016")),
    "LSTM/Copying2K/190": (Published(0.01, rounding=0.005),),
    "LSTM/Adding/128": (Published(0.162, rounding=0.0005),),
    "MomentumLSTM/MNIST/128": (Published(99.04, 0.04),),
    "MomentumLSTM/PMNIST/128": (Published(93.40, 0.25),),
    "MomentumLSTM/MNIST/256": (Published(99.08, 0.05),),
    "MomentumLSTM/MNIST/256/same-step": (Published(83.49),),
    "MomentumLSTM/PMNIST/256": (Published(94.72, 0.16),),
    "MomentumLSTM/Copying2K/190": (Published(0.009, rounding=0.0005),),
    "MomentumLSTM/Adding/128": (Published(0.162, rounding=0.0005),),
    "AdamLSTM/MNIST/128": (Published(98.98, 0.08),),
    "AdamLSTM/PMNIST/128": (Published(93.75, 0.25),),
    "AdamLSTM/MNIST/256": (Published(99.09, 0.03),),
    "AdamLSTM/PMNIST/256": (Published(95.05, 0.37),),
    "RMSPropLSTM/MNIST/128": (Published(99.09, 0.05),),
    "RMSPropLSTM/PMNIST/128": (Published(94.32, 0.43),),
    "RMSPropLSTM/MNIST/256": (Published(99.15, 0.06),),
    "RMSPropLSTM/PMNIST/256": (Published(95.38, 0.19),),
    "SRLSTM/MNIST/128": (Published(98.89, 0.08),),
    "SRLSTM/PMNIST/128": (Published(93.65, 0.56),),
    "SRLSTM/MNIST/256": (Published(99.01, 0.07),),
    "SRLSTM/PMNIST/256": (Published(93.82, 1.85),),
    "DTRIV/PMNIST/170": (Published(95.21, 0.10), Published(95.20, source="casado2019trivializations")),
    "DTRIV/PMNIST/360": (Published(96.45, 0.10), Published(96.50, source="casado2019trivializations")),
    "DTRIV/PMNIST/512": (Published(96.62, 0.12), Published(96.80, source="casado2019trivializations")),
    "MomentumDTRIV/PMNIST/170": (Published(95.37, 0.09),),
    "MomentumDTRIV/PMNIST/360": (Published(96.73, 0.08),),
    "MomentumDTRIV/PMNIST/512": (Published(96.89, 0.08),),
    "AdamDTRIV/PMNIST/512": (Published(96.77, 0.21),),
    "RMSPropDTRIV/PMNIST/512": (Published(96.75, 0.12),),
    "SRDTRIV/PMNIST/512": (Published(97.02, 0.09),),
}
# The lowest test loss of all epochs, where the authors released curves of that row. They released none of
# PMNIST with n = 128.
_RELEASED_LOSSES = {
    "LSTM/MNIST/256": Published(0.0375, 0.0033),
    "LSTM/PMNIST/256": Published(0.2752, 0.0180, seeds=4),
    "MomentumLSTM/MNIST/256": Published(0.0438, 0.0017),
    "MomentumLSTM/PMNIST/256": Published(0.2360, 0.0138),
    "AdamLSTM/MNIST/256": Published(0.0404, 0.0016),
    "AdamLSTM/PMNIST/256": Published(0.2123, 0.0082),
    "RMSPropLSTM/MNIST/256": Published(0.0382, 0.0028),
    "RMSPropLSTM/PMNIST/256": Published(0.1994, 0.0078),
    "SRLSTM-released/MNIST/256": Published(0.0424, 0.0024),
    "SRLSTM-released/PMNIST/256": Published(0.2855, 0.0768),
    "LSTM/MNIST/128": Published(0.0425, 0.0027),
    "MomentumLSTM/MNIST/128": Published(0.0429, 0.0016),
    "AdamLSTM/MNIST/128/as-released": Published(0.0448, 0.0027),
    "RMSPropLSTM/MNIST/128": Published(0.0402, 0.0017),
    "SRLSTM-released/MNIST/128/as-released": Published(0.0522),
}
_QUOTED = "quoted from works with other training; the authors released only loss curves of their own runs"
_STEPS = "the paper's epochs are taken as steps"
_EXPRNN = f"the paper does not state symbols, alphabet and alpha, so they are those of expRNN; {_STEPS}"
# By task, by model and task, or by row. A recipe has all that fit it.
NOTES = {
    "Copying1K": _EXPRNN,
    "Copying2K": _EXPRNN,
    "Adding": _STEPS,
    "LSTM/MNIST": _QUOTED,
    "LSTM/PMNIST": _QUOTED,
    "LSTM/PMNIST/256": "the authors released four seeds",
    "SRLSTM/MNIST": "the paper's equations; the published number is of SRLSTM-released, another cell",
    "SRLSTM/PMNIST": "the paper's equations; the published number is of SRLSTM-released, another cell",
    "SRLSTM-released/MNIST": "the cell that the released code ran as SRLSTM, not the paper's equations",
    "SRLSTM-released/PMNIST": "the cell that the released code ran as SRLSTM, not the paper's equations",
    "AdamLSTM/MNIST/128": "the released runs had beta = 0.8",
    "SRLSTM-released/MNIST/128": "the released run, one seed, had F = 8",
    "MomentumLSTM/MNIST/256/same-step": "published in figure 7, at mu = 0; number from the released notebook",
}
