"""CUDA C++ compiled by NVRTC at run time, kept on disk, loaded and launched by the driver, through ctypes."""

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..torch_internals import current_device, raw_stream

Argument = Tensor | int | float | None
Defines = tuple[tuple[str, int], ...]

WINDOWS = os.name == "nt"
# Attributes of a kernel, as the driver numbers them.
STATIC_SHARED, DYNAMIC_SHARED, SHARED_PERCENT = 1, 8, 9
MAX_SHARED_OF_BLOCK = 97  # an attribute of a device
NO_CONTEXT = 201  # an error of the driver

_kernels: dict[tuple[str, str, Defines, int], "Kernel"] = {}
_lock = threading.Lock()


def missing() -> str:
    """Why kernels can't be compiled here, for a user; empty if they can."""
    if _nvrtc() is not None:
        return ""
    wheel = "nvidia-cuda-nvrtc-cu12" if _cuda_major() == 12 else "nvidia-cuda-nvrtc"
    return f"NVRTC, which compiles CUDA kernels, was not found; 'pip install {wheel}' brings it"


def compile(source: str, arch: str, defines: Mapping[str, int]) -> tuple[bytes, str]:
    """Compiles CUDA C++ without headers for an arch like "sm_90"; returns the cubin and ptxas's report."""
    nvrtc, program, size = _require_nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    options = [option.encode() for option in _options(arch, defines)]
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None):
        raise RuntimeError("NVRTC could not start")
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value + 1)
        nvrtc.nvrtcGetProgramLog(program, text)
        log = text.value.decode(errors="replace")
        if failed or nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)):
            raise RuntimeError("\n".join([f"NVRTC could not compile for {arch}:", *log.splitlines()[:20]]))
        code = ctypes.create_string_buffer(size.value)
        if nvrtc.nvrtcGetCUBIN(program, code):
            raise RuntimeError(f"NVRTC made no cubin for {arch}")
        return code.raw, log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def cubin(
    source: str, arch: str, defines: Mapping[str, int], driver_version: int = 0, recompile: bool = False
) -> bytes:
    """The cubin from the cache on disk, else compiled and stored there.

    driver_version: another driver gets another file. recompile: compile even if the cache has it.
    """
    key = repr((source, _options(arch, defines), _version(), driver_version))
    path = _folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    code = None if recompile else _read(path)
    if code is None:
        code, _ = compile(source, arch, defines)
        _write(path, code)
    return code


def load(source: str, name: str, defines: Defines, device: int) -> "Kernel":
    """The kernel of that name on a device, compiled and loaded when first asked for."""
    key = source, name, defines, device
    kernel = _kernels.get(key)
    if kernel is None:
        with _lock:
            kernel = _kernels.get(key)
            if kernel is None:
                parameters = signature(source, name)
                kernel = _kernels[key] = Kernel(name, device, parameters, *_module(source, defines, device))
    return kernel


class Signature:
    """The parameters of a kernel, by which its arguments are named, checked and packed."""

    def __init__(self, kernel: str, kinds: Mapping[str, str]) -> None:
        """kinds: "pointer", "int" or "float" for the name of each parameter, in the kernel's order."""
        self.kernel, self.kinds = kernel, dict(kinds)
        formats = {"pointer": "Q", "int": "i4x", "float": "f4x"}
        self._names = tuple(self.kinds)
        self._pointers = tuple(i for i, kind in enumerate(self.kinds.values()) if kind == "pointer")
        self._layout = struct.Struct("=" + "".join(formats[kind] for kind in self.kinds.values()))
        self._of_thread = threading.local()

    def pack(self, arguments: Mapping[str, Argument]) -> "ctypes.Array[ctypes.c_uint64]":
        """The arguments as the driver takes them: a pointer to each value, then the values, 8 bytes each.

        The dtype of a tensor is not checked.
        """
        count = len(self._names)
        buffer = (ctypes.c_uint64 * (2 * count))()
        start = ctypes.addressof(buffer) + 8 * count
        buffer[:count] = list(range(start, start + 8 * count, 8))
        self._fill(buffer, arguments)
        return buffer

    def pack_for_launch(self, arguments: Mapping[str, Argument]) -> "ctypes.Array[ctypes.c_uint64]":
        """As `pack`, but the next call in this thread uses the same buffer: a launch copies it."""
        buffer = getattr(self._of_thread, "buffer", None)
        if buffer is None:
            buffer = self._of_thread.buffer = self.pack(arguments)
        else:
            self._fill(buffer, arguments)
        return buffer

    def _fill(self, buffer: "ctypes.Array[ctypes.c_uint64]", arguments: Mapping[str, Argument]) -> None:
        """Write the values."""
        count = len(self._names)
        try:
            values: list[Any] = [arguments[name] for name in self._names]
            for i in self._pointers:
                tensor = values[i]
                values[i] = 0 if tensor is None else tensor.data_ptr()
            self._layout.pack_into(buffer, 8 * count, *values)
        except (KeyError, AttributeError, TypeError, struct.error, OverflowError):
            raise self._error(arguments) from None
        if len(arguments) != count:
            raise self._error(arguments)

    def place(self, name: str) -> int:
        """Where `pack` puts the value of an argument."""
        return len(self._names) + self._names.index(name)

    def _error(self, arguments: Mapping[str, Argument]) -> TypeError:
        """What is wrong with the arguments."""
        expected, given = set(self._names), set(arguments)
        if expected != given:
            lists = (", ".join(sorted(names)) or "none" for names in (expected - given, given - expected))
            return TypeError("{} lacks the arguments {}; it does not know {}".format(self.kernel, *lists))
        kinds = {"pointer": Tensor | None, "int": int, "float": int | float}
        for name, kind in self.kinds.items():
            value = arguments[name]
            if not isinstance(value, kinds[kind]):
                got = type(value).__name__
                return TypeError(f"{self.kernel}: {name} should be of kind {kind}, got {got}")
            if kind != "pointer":
                try:
                    struct.pack(f"={kind[0]}", value)  # as `_layout` does
                except (struct.error, OverflowError):
                    return TypeError(f"{self.kernel}: {name} should fit into 32 bits, got {value}")
        return TypeError(f"{self.kernel}: the arguments could not be packed")


@functools.cache
def signature(source: str, kernel: str) -> Signature:
    """The signature of a kernel, read from its CUDA source."""
    code = re.sub(r"//.*", "", source)
    declared = re.search(rf"__global__[^;{{}}]*?\b{kernel}\(([^)]*)\)", code)
    if declared is None:
        raise LookupError(f"there is no kernel {kernel} in its source")
    kinds = {}
    for parameter in filter(None, map(str.strip, declared[1].split(","))):
        name = re.split(r"[\s*]+", parameter)[-1]
        kinds[name] = "pointer" if "*" in parameter else parameter.split()[0]
    return Signature(kernel, kinds)


class Kernel:
    """A kernel on a device, with its signature."""

    def __init__(
        self, name: str, device: int, parameters: Signature, context: int | None, module: int | None
    ) -> None:
        function = ctypes.c_void_p()
        _call(context, _driver().cuModuleGetFunction, ctypes.byref(function), module, name.encode())
        self.name, self.device, self.signature = name, device, parameters
        self._context, self._function = context, function.value
        self._shared = self._attribute(DYNAMIC_SHARED)
        # By default the driver gives a multiprocessor only the shared memory of one CTA, so that no second
        # CTA fits.
        self._set(SHARED_PERCENT, 100)

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: int,
        arguments: Mapping[str, Argument],
        shared: int = 0,
    ) -> None:
        """Launch on torch's current stream. arguments: by name; shared: bytes of dynamic shared memory."""
        if shared > self._shared:
            self._set(DYNAMIC_SHARED, shared)
            self._shared = shared
        self._launch((*grid, block, 1, 1, shared), self.signature.pack_for_launch(arguments))

    def launcher(self, grid: tuple[int, int, int], block: int) -> Callable[[Any], None]:
        """A function that launches the kernel, given arguments that `signature.pack` has packed."""
        return functools.partial(self._launch, (*grid, block, 1, 1, 0))

    def _launch(self, shape: tuple[int, ...], packed: Any) -> None:
        launch, device = _driver().cuLaunchKernel, self.device
        everything = self._function, *shape, raw_stream(device), packed, None
        # The device's context is almost always current: trying costs less than making sure each time.
        code = launch(*everything) if current_device() == device else NO_CONTEXT
        if code == NO_CONTEXT:
            _call(self._context, launch, *everything)
        elif code:
            _raise_on_error(code)

    @functools.cached_property
    def shared_memory_for_one_cta(self) -> int:
        """Bytes of dynamic shared memory that leave a multiprocessor to one CTA."""
        return _most_shared(self.device) - self._attribute(STATIC_SHARED)

    def _set(self, which: int, value: int) -> None:
        _call(self._context, _driver().cuFuncSetAttribute, self._function, which, value)

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        _call(self._context, _driver().cuFuncGetAttribute, ctypes.byref(value), which, self._function)
        return value.value


@functools.cache
def _module(source: str, defines: Defines, device: int) -> tuple[int | None, int | None]:
    """A device's primary context, which is torch's too, and the module loaded there; both stay."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "kernels can't be loaded while a CUDA graph is captured: run the layer once before"
        )
    driver, number, version = _driver(), ctypes.c_int(), ctypes.c_int()
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    _raise_on_error(driver.cuDriverGetVersion(ctypes.byref(version)))
    _raise_on_error(driver.cuDeviceGet(ctypes.byref(number), device))
    _raise_on_error(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
    major, minor = torch.cuda.get_device_capability(device)
    arguments = source, f"sm_{major}{minor}", dict(defines), version.value
    code = cubin(*arguments)
    try:
        _call(context.value, driver.cuModuleLoadData, ctypes.byref(module), code)
    except RuntimeError:
        # The cached cubin is whole, but the driver refuses it: compile again.
        _call(context.value, driver.cuModuleLoadData, ctypes.byref(module), cubin(*arguments, recompile=True))
    return context.value, module.value


@functools.cache
def _most_shared(device: int) -> int:
    """Bytes of shared memory that a CTA can have."""
    driver, number, most = _driver(), ctypes.c_int(), ctypes.c_int()
    _raise_on_error(driver.cuDeviceGet(ctypes.byref(number), device))
    _raise_on_error(driver.cuDeviceGetAttribute(ctypes.byref(most), MAX_SHARED_OF_BLOCK, number))
    return most.value


@functools.cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("nvcuda.dll" if WINDOWS else "libcuda.so.1")
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    driver.cuCtxPushCurrent_v2.argtypes = [pointer]
    driver.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    driver.cuFuncGetAttribute.argtypes = [pointer, number, pointer]
    driver.cuFuncSetAttribute.argtypes = [pointer, number, number]
    driver.cuLaunchKernel.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
    return driver


def _call(context: int | None, function: Any, *args: Any) -> None:
    """Calls the driver in a context: a thread of autograd may have none, or that of another device."""
    driver = _driver()
    _raise_on_error(driver.cuCtxPushCurrent_v2(context))
    try:
        code = function(*args)
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    _raise_on_error(code)


def _raise_on_error(code: int) -> None:
    if code:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(name))
        _driver().cuGetErrorString(code, ctypes.byref(text))
        words = ", ".join(word.value.decode() for word in (name, text) if word.value)
        raise RuntimeError(f"CUDA's driver returned error {code}: {words}")


def _require_nvrtc() -> ctypes.CDLL:
    nvrtc = _nvrtc()
    if nvrtc is None:
        raise RuntimeError(missing())
    return nvrtc


@functools.cache
def _nvrtc() -> ctypes.CDLL | None:
    for path in _candidate_paths():
        with contextlib.suppress(OSError):
            # NVRTC 13.0 does not look for its other half beside itself.
            if os.path.isabs(path):
                for half in _files(Path(path).parent, "libnvrtc-builtins*.so.*"):
                    ctypes.CDLL(half)
            return ctypes.CDLL(path)
    return None


def _candidate_paths() -> list[str]:
    """Where NVRTC may be: of the major version of torch's CUDA first, then the newest."""
    here = Path(torch.__file__).parent
    wheels = [here.parent, *map(Path, filter(None, sys.path))]
    toolkits = [Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda"), *Path("/usr/local").glob("cuda-*")]
    folders = [folder for root in wheels for folder in root.absolute().glob("nvidia/*/lib")]
    folders += [here / "lib", Path(sys.prefix, "lib"), *(root / "lib64" for root in toolkits)]
    pattern = "nvrtc64_*.dll" if WINDOWS else "libnvrtc[.-]*so*"
    found = [path for folder in folders for path in _files(folder, pattern) if "-builtins" not in path]
    # Already loaded, or on the system's search path.
    found += [] if WINDOWS else ["libnvrtc.so.13", "libnvrtc.so.12"]
    return sorted(dict.fromkeys(found), key=lambda path: (_major(path) != _cuda_major(), -_major(path)))


def _files(folder: Path, pattern: str) -> list[str]:
    return [str(path) for path in sorted(folder.glob(pattern)) if ".alt." not in path.name]


def _major(path: str) -> int:
    """The major version in a name like libnvrtc.so.13 or nvrtc64_130_0.dll."""
    found = re.search(r"(?:\.so\.|nvrtc64_)(\d\d)", path)
    return int(found[1]) if found else 0


def _cuda_major() -> int | None:
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _require_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _options(arch: str, defines: Mapping[str, int]) -> list[str]:
    options = [f"--gpu-architecture={arch}", "-default-device", "--std=c++17", "--ptxas-options=-v"]
    return options + [f"-D{name}={value:d}" for name, value in sorted(defines.items())]


def _folder() -> Path:
    given = os.environ.get("MOMENTUMRNN_CACHE")
    base = os.environ.get("LOCALAPPDATA" if WINDOWS else "XDG_CACHE_HOME") or "~/.cache"
    folder = os.path.expanduser(given or os.path.join(base, "momentumrnn"))
    # Without a home directory there is no cache; a folder named ~ must not be made.
    return Path(os.devnull, "none") if folder.startswith("~") else Path(folder)


def _read(path: Path) -> bytes | None:
    """A cubin from the cache, or None. Its file ends with a checksum, so half a file is no cubin."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    code, checksum = stored[:-32], stored[-32:]
    return code if hashlib.sha256(code).digest() == checksum else None


def _write(path: Path, code: bytes) -> None:
    """Puts a cubin into the cache, whole or not at all; who may not write compiles in each process."""
    part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(code + hashlib.sha256(code).digest())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
