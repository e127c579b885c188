"""Compiling, caching and launching kernels: all but the launches runs without a GPU."""

import ctypes
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import compiling
import pytest
import torch
from compiling import Resources

from momentumrnn.kernels import nvrtc

LOCAL_BYTES, REGISTERS = 3, 4  # attributes of a kernel, as the driver numbers them
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())

SOURCE = """
extern "C" __global__ void __launch_bounds__(256) add(float* y, const float* x, int n, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += (x ? x[i] : 1) * scale + BIAS;
}
extern "C" __global__ void reverse(float* y, int n) {
    extern __shared__ float s[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = y[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
}
// 32 registers are too few for 64 numbers.
extern "C" __global__ void __launch_bounds__(1024, 2) crowded(float* y, int n) {
    float a[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) a[i] = y[i * n + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; i++) y[i * n + threadIdx.x] = a[i] * a[(i * 7 + 3) % 64];
}
"""

# Of nvcc 13.0.88; a function that isn't inlined comes after the kernel that calls it.
NVCC = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90'
ptxas info    : Function properties for spill
    1648 bytes stack frame, 1984 bytes spill stores, 2056 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1648 bytes cumulative stack size
ptxas info    : Compile time = 44.491 ms
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
    160 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 160 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compile time = 24.985 ms
ptxas info    : Function properties for deep
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
# NVRTC 13.4 says the same with other margins.
NVRTC = NVCC.replace("\n    ", "\nptxas         .     ")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("MOMENTUMRNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch):
    """The sources that were compiled; nothing is, in truth."""
    calls = []

    def compile(source, arch, defines):
        calls.append(source)
        return f"cubin of {source} for {arch} with {dict(defines)}".encode(), ""

    monkeypatch.setattr(nvrtc, "compile", compile)
    monkeypatch.setattr(nvrtc, "_version", lambda: (13, 0))
    return calls


@pytest.mark.parametrize("log", [NVCC, NVRTC], ids=["nvcc", "nvrtc"])
def test_resources(log):
    assert compiling.resources(log) == {
        "spill": Resources(32, 1648, 1984, 2056),
        "two": Resources(40, 160, 0, 0),
    }
    # What a function spills counts for the kernel that calls it.
    log = log.replace(" 0 bytes stack frame, 0 bytes", " 8 bytes stack frame, 4 bytes")
    assert compiling.resources(log)["two"] == Resources(40, 168, 4, 0)
    assert compiling.resources("") == {}


def test_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc, "_candidate_paths", lambda: ["/nowhere/libnvrtc.so.13"])
    monkeypatch.setattr(nvrtc, "_nvrtc", nvrtc._nvrtc.__wrapped__)
    for version, wheel in [(None, "nvidia-cuda-nvrtc"), ("12.8", "nvidia-cuda-nvrtc-cu12")]:
        monkeypatch.setattr(torch.version, "cuda", version)
        expected = f"NVRTC, which compiles CUDA kernels, was not found; 'pip install {wheel}' brings it"
        assert nvrtc.missing() == expected
        for function in (nvrtc.compile, nvrtc.cubin):
            with pytest.raises(RuntimeError, match="was not found"):
                function(SOURCE, "sm_90", {"BIAS": 0})


@pytest.mark.skipif(nvrtc.WINDOWS, reason="the names are those of Linux")
def test_candidate_paths(tmp_path, monkeypatch):
    """The version of torch's CUDA comes first, else the newest; NVRTC's other halves are not taken for it."""
    for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12", "other/lib/libnvrtc.so"):
        file = tmp_path / "nvidia" / name
        file.parent.mkdir(parents=True)
        for part in (file.name, "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13"):
            file.with_name(part).touch()
    monkeypatch.syspath_prepend(tmp_path)
    for version, first in [(None, "13"), ("13.0", "13"), ("12.6", "12")]:
        monkeypatch.setattr(torch.version, "cuda", version)
        paths = nvrtc._candidate_paths()
        assert sum(str(tmp_path) in path for path in paths) == 3
        assert paths[0].endswith(f"libnvrtc.so.{first}")
        assert {"libnvrtc.so.12", "libnvrtc.so.13"} <= set(paths)


def test_cache_round_trip(cache, compiled):
    first = nvrtc.cubin("a", "sm_90", {"H": 1})
    assert nvrtc.cubin("a", "sm_90", {"H": 1}) == first
    assert compiled == ["a"]
    assert len(list(cache.iterdir())) == 1
    assert nvrtc.cubin("a", "sm_80", {"H": 1}) != nvrtc.cubin("a", "sm_90", {"H": 2}) != first
    nvrtc.cubin("b", "sm_90", {"H": 1})
    assert compiled == ["a", "a", "a", "b"]
    assert {file.suffix for file in cache.iterdir()} == {".cubin"}


def test_another_compiler_does_not_share(compiled, monkeypatch):
    nvrtc.cubin("a", "sm_90", {})
    monkeypatch.setattr(nvrtc, "_version", lambda: (13, 1))
    nvrtc.cubin("a", "sm_90", {})
    assert compiled == ["a", "a"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:20], lambda b: b"", lambda b: b"x" + b[1:]]
)
def test_damaged_cache(cache, compiled, damage):
    """It is compiled again, and repaired."""
    right = nvrtc.cubin("a", "sm_90", {})
    (file,) = cache.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert nvrtc.cubin("a", "sm_90", {}) == nvrtc.cubin("a", "sm_90", {}) == right
    assert compiled == ["a", "a"]


def test_unwritable_cache(cache, compiled):
    """No error: a file stands where the folder should be."""
    cache.write_text("")
    assert nvrtc.cubin("a", "sm_90", {}) == nvrtc.cubin("a", "sm_90", {})
    assert compiled == ["a", "a"]


def test_disk_full(cache, compiled, monkeypatch):
    """No error, and nothing stays behind."""

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    nvrtc.cubin("a", "sm_90", {})
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(nvrtc.WINDOWS, reason="the names are those of Linux")
def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/someone")
    assert nvrtc._folder() == tmp_path / "cache"
    monkeypatch.delenv("MOMENTUMRNN_CACHE")
    assert nvrtc._folder() == tmp_path / "momentumrnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(nvrtc._folder()) == "/home/someone/.cache/momentumrnn"
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert "~" not in str(nvrtc._folder())


DECLARED = """
extern "C" __global__ void __launch_bounds__(128, A ? 5 : 0)
    mix(const float *__restrict__ x,  // (N, D), or null
        unsigned *y, int n, float scale, int last) {}
extern "C" __global__ void nothing() {}
"""
GIVEN = {"y": None, "x": torch.zeros(3), "n": -5, "scale": 1.5, "last": True}
ADD = nvrtc.Signature("add", {"x": "pointer", "n": "int"})
NONE = nvrtc.Signature("none", {})


def test_a_signature_is_read_from_the_source():
    kinds = nvrtc.signature(DECLARED, "mix").kinds
    expected = {"x": "pointer", "y": "pointer", "n": "int", "scale": "float", "last": "int"}
    assert list(kinds.items()) == list(expected.items())
    assert nvrtc.signature(DECLARED, "nothing").kinds == {}
    with pytest.raises(LookupError, match="no kernel other"):
        nvrtc.signature(DECLARED, "other")


def test_arguments_are_packed_by_name():
    signature = nvrtc.signature(DECLARED, "mix")
    packed = signature.pack(GIVEN)
    values = ctypes.addressof(packed) + 5 * 8
    assert list(packed[:5]) == [values + 8 * i for i in range(5)]
    pointer, null, *rest = struct.unpack("=QQi4xf4xi4x", ctypes.string_at(values, 40))
    assert (pointer, null, rest) == (GIVEN["x"].data_ptr(), 0, [-5, 1.5, 1])
    assert packed[signature.place("x")] == pointer
    assert len(NONE.pack({})) == 0


def test_a_launch_has_a_buffer_of_its_thread():
    """Filled anew by each call, with what `pack` gives; another thread has its own."""
    signature = nvrtc.signature(DECLARED, "mix")
    first = signature.pack_for_launch(GIVEN)
    other = GIVEN | {"n": 7, "x": None, "y": torch.ones(2)}
    with ThreadPoolExecutor(1) as thread:
        elsewhere = thread.submit(signature.pack_for_launch, other).result()
    assert list(first[5:]) == list(signature.pack(GIVEN)[5:])
    assert list(elsewhere[5:]) == list(signature.pack(other)[5:])
    assert elsewhere is not first
    again = signature.pack_for_launch(other)
    assert again is first
    assert list(again[5:]) == list(elsewhere[5:])
    values = ctypes.addressof(again) + 5 * 8
    assert list(again[:5]) == [values + 8 * i for i in range(5)]
    with pytest.raises(TypeError, match="should fit into 32 bits"):
        signature.pack_for_launch(GIVEN | {"n": 2**31})
    assert list(signature.pack_for_launch(GIVEN)[5:]) == list(signature.pack(GIVEN)[5:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 2**31}, "mix: n should fit into 32 bits, got 2147483648"),
        ({"scale": 1e300}, "mix: scale should fit into 32 bits, got 1e[+]300"),
        ({"n": 1.5}, "mix: n should be of kind int, got float"),
        ({"n": torch.zeros(1)}, "mix: n should be of kind int, got Tensor"),
        ({"scale": "x"}, "mix: scale should be of kind float, got str"),
        ({"x": 5}, "mix: x should be of kind pointer, got int"),
        ({"m": 1}, "mix lacks the arguments none; it does not know m"),
        ({"n": ...}, "mix lacks the arguments n; it does not know none"),
        ({"n": ..., "m": 1}, "mix lacks the arguments n; it does not know m"),
    ],
)
def test_other_arguments_are_refused(change, message):
    """... stands for one that is left out."""
    given = {name: value for name, value in (GIVEN | change).items() if value is not ...}
    with pytest.raises(TypeError, match=message):
        nvrtc.signature(DECLARED, "mix").pack(given)


class Driver:
    """A driver without a GPU, which writes down what is called."""

    def __init__(self):
        self.calls, self.fail, self.lost = [], None, None

    def __getattr__(self, name):
        def function(*args):
            self.calls.append((name, *args))
            if name == "cuFuncGetAttribute":
                args[0]._obj.value = {1: 1000, 3: 0, 4: 40, 8: 48 * 1024}[args[1]]
            if name == "cuDeviceGetAttribute":
                args[0]._obj.value = {97: 227 * 1024}[args[1]]
            if name in ("cuGetErrorName", "cuGetErrorString"):
                args[1]._obj.value = name[5:].encode()
            if name == self.lost and "cuCtxPushCurrent_v2" not in self.names():
                return 201
            return 700 if name == self.fail else 0

        return function

    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(nvrtc, "_driver", lambda: driver)
    monkeypatch.setattr(nvrtc, "_most_shared", nvrtc._most_shared.__wrapped__)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    return driver


@pytest.mark.parametrize(("device", "lost"), [(0, None), (0, "cuLaunchKernel"), (1, None)])
def test_launch(driver, device, lost):
    """On the current stream, and in the device's context where that isn't current; nothing waits."""
    kernel = nvrtc.Kernel("add", device, ADD, 11, 22)
    assert (kernel._attribute(REGISTERS), kernel._attribute(LOCAL_BYTES)) == (40, 0)
    driver.calls.clear()
    driver.lost = lost
    kernel((3, 2, 1), 256, {"n": 5, "x": None}, shared=48 * 1024)
    alone, within = ["cuLaunchKernel"], ["cuCtxPushCurrent_v2", "cuLaunchKernel", "cuCtxPopCurrent_v2"]
    assert driver.names() == (alone * (lost is not None) + within if device or lost else alone)
    assert all(call[1] == 11 for call in driver.calls if call[0] == "cuCtxPushCurrent_v2")
    launch = [call for call in driver.calls if call[0] == "cuLaunchKernel"][-1]
    assert launch[2:10] == (3, 2, 1, 256, 1, 1, 48 * 1024, 70 + device)
    assert list(launch[10][2:]) == [0, 5]
    assert launch[11] is None


def test_the_limit_of_shared_memory_is_raised_once(driver):
    kernel = nvrtc.Kernel("add", 0, NONE, 11, 22)
    for shared in (0, 1000, 100_000, 100_000, 90_000):
        kernel((1, 1, 1), 32, {}, shared)
    calls = [call[2:] for call in driver.calls if call[0] == "cuFuncSetAttribute"]
    assert calls == [(9, 100), (8, 100_000)]


def test_shared_memory_for_one_alone(driver):
    assert nvrtc.Kernel("add", 0, NONE, 11, 22).shared_memory_for_one_cta == 227 * 1024 - 1000


@pytest.mark.parametrize("fail", ["cuCtxPushCurrent_v2", "cuLaunchKernel", "cuFuncSetAttribute"])
def test_errors_of_the_driver(driver, fail):
    kernel = nvrtc.Kernel("add", 1, NONE, 11, 22)
    driver.calls.clear()
    driver.fail = fail
    with pytest.raises(RuntimeError, match="CUDA's driver returned error 700: ErrorName, ErrorString"):
        kernel((1, 1, 1), 32, {}, 100_000)
    # What was pushed is popped.
    pushed = 0 if fail == "cuCtxPushCurrent_v2" else driver.names().count("cuCtxPushCurrent_v2")
    assert driver.names().count("cuCtxPopCurrent_v2") == pushed


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_cubin_that_the_driver_refuses(driver, compiled, cache, monkeypatch, refused):
    """A foreign file with a right checksum: compiled anew, and put in its place; not for ever."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    nvrtc._module.cache_clear()
    loads = []

    def load(module, code):
        loads.append(code)
        return 209 if len(loads) <= refused else 0

    driver.cuModuleLoadData = load
    right = nvrtc.cubin("a", "sm_90", {}, 0)
    (file,) = cache.iterdir()
    nvrtc._write(file, b"foreign")
    if refused > 1:
        with pytest.raises(RuntimeError, match="error 209"):
            nvrtc._module("a", (), 0)
    else:
        nvrtc._module("a", (), 0)
    assert loads == [b"foreign", right][: max(1, refused + 1)]
    assert nvrtc._read(file) == (right if refused else b"foreign")
    nvrtc._module.cache_clear()


def test_another_driver_does_not_share(compiled):
    nvrtc.cubin("a", "sm_90", {}, 13000)
    nvrtc.cubin("a", "sm_90", {}, 13010)
    assert len(compiled) == 2


def test_threads_load_once(driver, monkeypatch):
    """One module for all kernels of a source, one kernel for all threads."""
    made, loaded = [], []
    monkeypatch.setattr(nvrtc, "_kernels", {})
    monkeypatch.setattr(nvrtc, "_module", lambda *key: made.append(key) or (11, 22))
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        loaded.append(nvrtc.load(SOURCE, "add", (("H", 1),), 0))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [(SOURCE, (("H", 1),), 0)]
    assert len(loaded) == 8
    assert len(set(loaded)) == 1
    assert nvrtc.load(SOURCE, "add", (("H", 1),), 1) is not loaded[0]


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_a_real_report(compiler):
    """No spills where there is room, some where there is none."""
    if compiler == "nvrtc" and nvrtc.missing():
        pytest.skip(nvrtc.missing())
    if compiler == "nvcc" and shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    compile = compiling.compile if compiler == "nvrtc" else compiling.with_nvcc
    found = compiling.resources(compile(SOURCE, "sm_90", {"BIAS": 2}))
    assert set(found) == {"add", "reverse", "crowded"}
    assert found["add"][1:] == (0, 0, 0)
    assert 0 < found["add"].registers <= 32
    assert found["crowded"].registers <= 32
    assert min(found["crowded"]) > 0


def test_no_compiler_at_all(monkeypatch):
    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LookupError, match="nor is there an nvcc"):
        compiling.compile(SOURCE, "sm_90", {"BIAS": 0})


@needs_nvrtc
def test_compile_and_cache(cache):
    code = nvrtc.cubin(SOURCE, "sm_90", {"BIAS": 2})
    assert code.startswith(b"\x7fELF")
    (file,) = cache.iterdir()
    assert file.stat().st_size == len(code) + 32
    assert nvrtc.cubin(SOURCE, "sm_90", {"BIAS": 2}) == code


@needs_nvrtc
def test_compile_errors(cache):
    with pytest.raises(RuntimeError, match=r'(?s)for sm_90:\nkernel.cu\(4\).*"BIAS" is undefined'):
        nvrtc.cubin(SOURCE, "sm_90", {})
    with pytest.raises(RuntimeError, match=r"for sm_1:\n.*gpu-architecture"):
        nvrtc.compile(SOURCE, "sm_1", {"BIAS": 0})
    assert not cache.exists()


@pytest.fixture
def kernel():
    """Loads a kernel of SOURCE."""
    return lambda name: nvrtc.load(SOURCE, name, (("BIAS", 2),), torch.cuda.current_device())


def on_gpu(test):
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
    return pytest.mark.gpu(no_gpu(needs_nvrtc(test)))


@on_gpu
def test_gpu_launch(kernel):
    x, y = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    kernel("add")((4, 1, 1), 256, {"y": y, "x": x, "n": 900, "scale": 0.5})
    assert torch.equal(y, torch.cat([x[:900] * 0.5 + 2, torch.zeros(100, device="cuda")]))
    kernel("add")((4, 1, 1), 256, {"y": y, "x": None, "n": 0, "scale": 0.5})
    kernel("add")((4, 1, 1), 256, {"y": x.zero_(), "x": None, "n": 1000, "scale": 0.5})
    assert torch.equal(x, torch.full_like(x, 2.5))


@on_gpu
def test_gpu_shared(kernel):
    """Of 100 KB, and more than there is."""
    y = torch.randn(25_000, device="cuda")
    expected = y.flip(0)
    kernel("reverse")((1, 1, 1), 1024, {"y": y, "n": 25_000}, 100_000)
    assert torch.equal(y, expected)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel("reverse")((1, 1, 1), 1024, {"y": y, "n": 25_000}, 1_000_000)


@on_gpu
def test_gpu_resources(kernel):
    assert kernel("add")._attribute(LOCAL_BYTES) == 0
    assert kernel("crowded")._attribute(REGISTERS) <= 32
    assert kernel("crowded")._attribute(LOCAL_BYTES) > 0
    with pytest.raises(LookupError, match="no kernel subtract"):
        kernel("subtract")


@on_gpu
def test_gpu_graph_and_stream(kernel):
    """A launch goes to the current stream, and into a graph."""
    y, graph, add = torch.zeros(1000, device="cuda"), torch.cuda.CUDAGraph(), kernel("add")
    reverse = kernel("reverse")
    with torch.cuda.graph(graph):
        add((4, 1, 1), 256, {"y": y, "x": None, "n": 1000, "scale": 1.0})
        reverse((1, 1, 1), 256, {"y": y, "n": 1000}, 60_000)
    assert y.sum() == 0
    graph.replay()
    graph.replay()
    assert torch.equal(y, torch.full_like(y, 6.0))


@on_gpu
def test_gpu_threads(kernel):
    """A new thread, like autograd's, has no context yet: it may load, and launch."""
    y, errors = torch.zeros(1000, device="cuda"), []
    nvrtc._kernels.clear()
    nvrtc._module.cache_clear()

    def work():
        try:
            kernel("add")((4, 1, 1), 256, {"y": y, "x": None, "n": 1000, "scale": 1.0})
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert torch.equal(y, torch.full_like(y, 3.0))
