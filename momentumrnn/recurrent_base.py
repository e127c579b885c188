"""The base of layers and step cells: parameters with torch's names, a momentum, and checked states."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from .backends.reference import fold_u
from .backends.stack import Network
from .caller_warning import warn_caller
from .cells import Cell, Weights
from .init import BY_NAME, Init
from .layer_checks import all_zero, check_in_unit_range, check_kinds, check_tensor
from .momentum import (
    MAYBE_TENSORS,
    Momentum,
    MomentumState,
    decays_by_tensor_mu,
    one_line_repr,
    tensor_fields,
)
from .precision import moments_dtype
from .state import MOMENTS, State
from .tensor_likes import TraceableModule
from .torch_internals import ModuleWithMetadata, has_parametrizations, own_parameters, own_tensors
from .unit_range import bounded

Device = torch.device | str | int | None


class RecurrentModule(TraceableModule, ModuleWithMetadata):
    """The base class of `Recurrent` and `RecurrentCell`.

    Weights are read by `_weights` and `_weight`. Their argument `evaluated` has the parametrised tensors that
    were evaluated in this call. So a tensor that several layers share is evaluated once.
    """

    cell: Cell
    _momentum: Momentum | None
    hidden_size: int
    proj_size: int
    bias: bool | str
    init: str | Init
    factored: bool | str
    carry_momentum: bool = False  # a layer from an old pickle has none of its own
    # Whether this module has warned that torch's hx has no momentum.
    _warned = False
    # Whether `extra_repr` shows the cell; LSTM and its like have it in their names.
    _repr_has_cell: ClassVar[bool] = True
    # The arguments that `extra_repr` shows, each with the default at which it is left out.
    _repr_defaults: ClassVar[dict[str, object]]

    @property
    def momentum(self) -> Momentum | None:
        """The momentum; where its mu or step is a tensor, with the present `momentum_mu` or `momentum_step`.

        A momentum that is assigned replaces these two by its own tensors, or removes them. A learned mu
        is in [0, 1], see `HeavyBall`.
        """
        return self._current_momentum({})

    @momentum.setter
    def momentum(self, momentum: Momentum | None) -> None:
        check_kinds(self.cell, momentum)
        tensors = tensor_fields(momentum)
        self._check_tensor_fields(tensors)
        for name, tensor in tensors.items():
            if tensor.requires_grad and not tensor.is_leaf:
                raise ValueError(
                    f"momentum: {name} should be a tensor or Parameter of its own, got one computed from "
                    f"others; to constrain it, parametrise the layer's momentum_{name}"
                )
        if decays_by_tensor_mu(momentum):
            moved = isinstance(tensors["mu"], nn.Parameter)  # training may have moved it
            check_in_unit_range("momentum: mu", tensors["mu"], refuse=not moved)
        for name in map("momentum_{}".format, MAYBE_TENSORS):
            if is_parametrized(self, name):
                remove_parametrizations(self, name, leave_parametrized=False)
            if any(name in registered for registered in own_tensors(self)):
                delattr(self, name)
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"momentum_{name}", tensor)
            else:
                self.register_buffer(f"momentum_{name}", tensor)
        self._momentum = momentum

    def _check_tensor_fields(self, tensors: dict[str, Tensor]) -> None:
        """Check the sizes of the tensors mu and step of a momentum."""
        gates, rows = self.cell.gates, self.cell.gates * self.hidden_size
        for name, tensor in tensors.items():
            if tensor.dim() > 1 or tensor.numel() not in (1, gates, rows):
                raise ValueError(
                    f"momentum: {name} should have 1 entry, {gates} (for each gate) or {rows} (for each gate "
                    f"row, in torch's order), got shape {tuple(tensor.shape)}"
                )

    def _check_present_tensors(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Check the tensors mu and step of a momentum before a call. device: of the weights."""
        self._check_tensor_fields(tensors)
        for name, tensor in tensors.items():
            if tensor.device != device:
                raise RuntimeError(
                    f"momentum_{name} should be on {device}, got {tensor.device}; "
                    "the layer's .to() moves both"
                )

    def _current_momentum(self, evaluated: dict[int, Tensor]) -> Momentum | None:
        names = tensor_fields(self._momentum)
        if not names:
            return self._momentum
        tensors = {name: self._weight(f"momentum_{name}", evaluated) for name in names}
        if decays_by_tensor_mu(self._momentum):
            tensors["mu"] = bounded(tensors["mu"])
        return replace(cast(Any, self._momentum), **tensors)  # type: ignore[no-any-return]

    def checkpoint_metadata(self) -> dict[str, str]:
        """The momentum, which travels with a state_dict."""
        return {"momentum": _spelled(self.momentum)}

    def check_loaded(self, prefix: str) -> None:
        """Warn of a mu outside [0, 1], such as an older version may have saved."""
        if decays_by_tensor_mu(self._momentum):
            check_in_unit_range(f"{prefix}momentum_mu", self._weight("momentum_mu", {}), refuse=False)

    def check_metadata(self, prefix: str, metadata: Mapping[str, Any]) -> None:
        """Warn if a state_dict was saved with another momentum than this module has."""
        saved, own = metadata.get("momentum"), _spelled(self._momentum)
        if isinstance(saved, str) and _comparable(saved) != _comparable(own):
            warn_caller(
                f"{prefix[:-1] or type(self).__name__}: the checkpoint was saved with momentum={saved}, and "
                f"this module has momentum={own}: it computes something else than the saved module did; give "
                "it the momentum of the checkpoint, unless the change is intended"
            )

    def _weight_shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights of one direction of one layer, in torch's order."""
        rows, out = self.cell.gates * self.hidden_size, self.proj_size or self.hidden_size
        return {
            "weight_ih": (rows, columns),
            "weight_hh": (rows, out),
            **({"bias_ih": (rows,)} if self.bias is True else {}),
            **({"bias_hh": (rows,)} if self.bias else {}),
            **({"weight_hr": (out, self.hidden_size)} if self.proj_size else {}),
        }

    def _add_weights(self, suffix: str, columns: int, device: Device, dtype: torch.dtype | None) -> None:
        for name, shape in self._weight_shapes(columns).items():
            empty = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name + suffix, nn.Parameter(empty))

    def _weights(self, suffix: str, evaluated: dict[int, Tensor] | None = None) -> Weights:
        """The weights of one direction of one layer."""
        evaluated = {} if evaluated is None else evaluated
        ih, hh = self._weight("weight_ih" + suffix, evaluated), self._weight("weight_hh" + suffix, evaluated)
        b_ih = self._weight("bias_ih" + suffix, evaluated) if self.bias is True else None
        b_hh = self._weight("bias_hh" + suffix, evaluated) if self.bias else None
        hr = self._weight("weight_hr" + suffix, evaluated) if self.proj_size else None
        return Weights(ih, hh, b_ih, b_hh, hr)

    def _weight(self, name: str, evaluated: dict[int, Tensor]) -> Tensor:
        parameter = own_parameters(self).get(name)  # faster than getattr
        if parameter is not None:
            return parameter
        # has_parametrizations is fast, and false for most modules.
        if not has_parametrizations(self) or not is_parametrized(self, name):
            return getattr(self, name)  # type: ignore[no-any-return]
        # Layers that share a matrix share its parametrisation.
        key = id(self.parametrizations[name])  # type: ignore[index]
        if key not in evaluated:
            evaluated[key] = getattr(self, name)
        return evaluated[key]

    def reset_parameters(self) -> None:
        """Draw all weights again, as `init` says. `momentum_mu` and `momentum_step` stay as they are."""
        fill = BY_NAME[self.init] if isinstance(self.init, str) else self.init
        for suffix in self._suffixes():
            for name in self._weight_shapes(0):
                weight = getattr(self, name + suffix)
                fill(name, weight, self.cell, self.hidden_size)
                if is_parametrized(self, name + suffix):
                    setattr(self, name + suffix, weight)  # `weight` is a copy

    def extra_repr(self) -> str:
        cell = [repr(self.cell)] if self._repr_has_cell else []
        values = {name: getattr(self, name) for name in self._repr_defaults}
        changed = (
            f"{name}={one_line_repr(value) if isinstance(value, Momentum) else repr(value)}"
            for name, value in values.items()
            if value != self._repr_defaults[name]
        )
        return ", ".join([*cell, f"{self.input_size}, {self.hidden_size}", *changed])

    def _state_shapes(self, rows: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each tensor of a State. rows: (B,), or () if unbatched."""
        gate_rows, momentum = self.cell.gates * self.hidden_size, self._momentum
        first = 0 if momentum is None else gate_rows
        second = 0 if momentum is None or momentum.linear else gate_rows
        leading = *self._leading_axes(), *rows
        return *((*leading, width) for width in (*self._hidden_widths(), first, second)), leading

    def _hidden_widths(self) -> tuple[int, ...]:
        """The number of columns of each hidden tensor."""
        first, *others = self.cell.widths(self.hidden_size)
        return self.proj_size or first, *others

    @abstractmethod
    def _leading_axes(self) -> tuple[int, ...]:
        """The axes of a State's tensors before the batch: layers times directions, or none."""

    @abstractmethod
    def _suffixes(self) -> list[str]:
        """What follows the name of a weight, for each layer and direction: "_l0", "_l0_reverse", ..."""

    def _network(self, bidirectional: bool = False, dropout: float = 0.0, packed: bool = False) -> Network:
        """The network that a backend runs, with the present weights."""
        check_kinds(self.cell, self._momentum)  # a user may have assigned another cell
        evaluated: dict[int, Tensor] = {}
        weights, factored = [self._weights(suffix, evaluated) for suffix in self._suffixes()], ""
        momentum = self._current_momentum(evaluated)
        # A user may have assigned other tensors, and kernels would read beyond their ends.
        if momentum is not self._momentum:
            self._check_present_tensors(tensor_fields(momentum), weights[0].ih.device)
        if self.factored and (momentum is None or momentum.commutes):
            weights = list(map(fold_u, weights))
        elif self.factored:
            factored = "printed" if self.factored == "printed" else "derived"
        return Network(self.cell, momentum, weights, bidirectional, dropout, packed, factored)

    def _zero_state(self, rows: tuple[int, ...], like: Tensor) -> State:
        """The state before the first step, with the dtype and device of `like`."""
        *hidden, v, n, k = self._state_shapes(rows)
        tensors = [like.new_zeros(shape) for shape in hidden]
        dtype = moments_dtype(like.dtype)
        tensors += [like.new_zeros(shape, dtype=dtype) for shape in (v, n)]
        return State(*tensors, like.new_zeros(k, dtype=torch.int64))

    def _read_state(
        self, hx: Any, rows: tuple[int, ...], x: Tensor
    ) -> tuple[tuple[Tensor, ...], MomentumState | None]:
        """The hidden tensors of hx after a check, and v, n and k, or None if the layer returns torch's state.

        rows: (B,), or () if unbatched. x: the input.
        """
        states = self.cell.states
        if hx is None and self.carry_momentum:
            hx = self._zero_state(rows, x)
        elif hx is None:
            leading = *self._leading_axes(), *rows
            zeros = {width: x.new_zeros(*leading, width) for width in set(self._hidden_widths())}
            return tuple(zeros[width] for width in self._hidden_widths()), None
        if isinstance(hx, Tensor) and states == 1:
            hx = (hx,)
        elif not isinstance(hx, tuple | list) or (states == 1 and len(hx) != 1 + MOMENTS):
            form = "a Tensor" if states == 1 else f"a tuple of {states} tensors"
            got = f"{type(hx).__name__} of {len(hx)}" if isinstance(hx, tuple | list) else type(hx).__name__
            raise TypeError(f"hx should be {form} or a State of {states + MOMENTS}, got {got}")
        count = len(hx)
        if count not in (states, states + MOMENTS):
            expected = f"{states} hidden tensors, or the {states + MOMENTS} tensors of a State"
            raise ValueError(f"hx should hold {expected}, got {count}")
        self._check_state("hx", hx, rows, x, "the input")
        if count > states:
            return tuple(hx[:states]), MomentumState(*hx[states:])
        if self._momentum is not None and not self._warned:
            self._warn_of_lost_momentum(hx)
        moments = MomentumState(*self._zero_state(rows, x)[states:]) if self.carry_momentum else None
        return tuple(hx), moments

    def _check_state(
        self,
        name: str,
        tensors: Sequence[object],
        rows: tuple[int, ...],
        like: Tensor,
        subject: str,
    ) -> None:
        """Raise unless these are the tensors of a State, or the first of them, for so many rows.

        name: of the argument; like: has the dtype and device of the input; subject: what has the rows.
        """
        states, dtype, device = self.cell.states, like.dtype, like.device
        moments = moments_dtype(dtype)
        for i, (tensor, shape) in enumerate(zip(tensors, self._state_shapes(rows), strict=False)):
            expected = dtype if i < states else torch.int64 if i == states + 2 else moments
            if (
                isinstance(tensor, Tensor)
                and tensor.shape == shape
                and tensor.dtype == expected
                and tensor.device == device
            ):
                continue
            alone = states == 1 == len(tensors)
            hint = f"{subject} has {rows[0]} sequences" if rows else f"{subject} is unbatched"
            leading = self._leading_axes()
            if leading and isinstance(tensor, Tensor) and tensor.shape[1:] == shape[1:]:
                hint = f"a state of this layer has {leading[0]} layers and directions"
            if i == states + 2 and isinstance(tensor, Tensor) and tensor.dim() > len(shape):
                hint = "k has no last axis; use state.reset(mask) where other sequences begin"
            label = name if alone else f"{name}[{i}]" if i < states else f"{name}.{'vnk'[i - states]}"
            if isinstance(tensor, Tensor) and i != states + 2 and tensor.shape[:-1] == shape[:-1]:
                hint = f"this layer has hidden_size={self.hidden_size}, proj_size={self.proj_size}"
                if i >= states:
                    hint = f"this layer has momentum={one_line_repr(self.momentum)}"
            # As in torch, whose step cells refuse further axes by an error of another kind than its layers.
            deep = isinstance(tensor, Tensor) and tensor.dim() > 2 and not leading
            shape_error = ValueError if deep else RuntimeError
            check_tensor(label, tensor, shape, expected, device, hint, shape_error)

    def _warn_of_lost_momentum(self, hx: Sequence[Tensor]) -> None:
        """Warn, once, that torch's hx came, unless it is zero: that is how a sequence begins."""
        if torch.compiler.is_compiling() or all_zero(hx):
            return
        carries = "" if self.carry_momentum else "make it with carry_momentum=True and "
        warn_caller(
            f"{type(self).__name__} was given torch's hx, so its momentum starts at zero in this call. To go "
            f"on with a sequence, {carries}pass on the State that it returns, all of it; state.reset(mask) "
            "sets rows to zero. To begin one here without this warning, pass State.from_hidden(hx, layer)."
        )
        self._warned = True


def _spelled(momentum: Momentum | None) -> str:
    """A momentum as checkpoints name it, without the addresses of objects."""
    return re.sub(" at 0x[0-9a-fA-F]+", "", one_line_repr(momentum))


def _comparable(spelling: str) -> str:
    """A spelling in which whole numbers are floats, and in which a Parameter is a Tensor."""
    spelling = spelling.replace("<Parameter ", "<Tensor ")
    return re.sub(r"(=-?\d+)(?=[,)])", r"\1.0", spelling)


def as_torch(hidden: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """The hidden tensors as torch's layers return them: a single one without a tuple."""
    return hidden if len(hidden) > 1 else hidden[0]
