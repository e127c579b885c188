// What several kernel files share: constants, the parts of a number, the rows of a batch. launch.source puts ptx.cu and this
// file before each.
//
// constants.py reads the constants below, so that each has one source. R replicas are blockIdx.y; `own_w` is 1 if each
// replica has its own w, and 0 if all share one. A channel is one of the 4 H gate rows. Gates are in torch's order,
// (gate, unit), in what the user passes or gets, and interleaved, (unit, gate), inside.

constexpr int WARPS = 4;                // warps of a CTA of the LSTM's two passes: one for each quarter of a multiprocessor
constexpr int TILE = 8;                 // rows of a cluster, and units of a warp: the columns of a tensor-core product
constexpr int SPACING = 8;              // time steps from one saved set of moments to the next
constexpr int INPUT_BYTES = 144;        // bytes of shared memory of a thread of `lstm_backward`, for inputs on their way
constexpr int FILTER_THREADS = 512;     // threads of a block of `filter_input`
constexpr int MOMENTUM_THREADS = 128;   // threads of a block of `momentum_backward`
constexpr int STEP_UNITS = 2;           // units of a block of `lstm_step`: at H = 256 about one block for a multiprocessor
constexpr float LOW_SCALE = 2048.f;     // a number is high + low / LOW_SCALE, where it comes as two halves
constexpr float LOG2E = 1.4426950408889634f;

// The columns of the input, see `Columns` in pack.cu. PARTS_OF_X and PARTS_OF_W have a hexadecimal digit for each column of
// a feature, the first column last: which part of x, or of W, the column has. FINE_ is for `fine` inputs.
constexpr int COLUMNS = 3;  // of a feature
constexpr int FINE_COLUMNS = 6;
constexpr int ONES = 2;  // of the constant 1
constexpr int FINE_ONES = 3;
constexpr int PARTS_OF_X = 0x010;
constexpr int FINE_PARTS_OF_X = 0x120100;
constexpr int PARTS_OF_W = 0x100;
constexpr int FINE_PARTS_OF_W = 0x102010;

__device__ inline int thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
// The power of two below a number: the quotient is in [1, 2). It is 1 for numbers below 2^-126 or from 2^127 on.
__device__ inline float power_below(float x) {
  const u32 e = __float_as_uint(x) & 0x7f800000;
  return e == 0 || e > 0x7e800000 ? 1.f : __uint_as_float(e);
}
// What rounding to bfloat16 loses; 0 for inf.
__device__ inline float low_part(float x) {
  const float high = bfloat_part(x);
  return fabsf(high) < __uint_as_float(0x7f800000) ? x - high : 0.f;
}
// What remains of a number after its first `parts` parts in bfloat16.
__device__ inline float left_after(float x, int parts) {
  for (; parts > 0; parts--) x = low_part(x);
  return x;
}
// What rounding to a half loses, times LOW_SCALE.
__device__ inline float scaled_low_half(float x) { return (x - floats_of(half2_of(x, 0.f)).x) * LOW_SCALE; }

__device__ inline float tanh_of(float x) {
  return fmaf(2.f, reciprocal(1.f + exp2_fast(-2.f * LOG2E * x)), -1.f);
}
// Two sigmoids for the backward pass, as counts of 1 / 65535: the errors of forget gates add up over time, and halves
// would be sixteen times as coarse near 1/2. Added to 2^23, a count stands in the lowest bits.
__device__ inline u32 counts_of(float v, float w) {
  return __byte_perm(__float_as_uint(fmaf(v, 65535.f, 8388608.f)), __float_as_uint(fmaf(w, 65535.f, 8388608.f)), 0x5410);
}
// A sigmoid from what `counts_of` made of it: the low count of a pair (byte order 0x7610), or the high one (0x7632).
__device__ inline float sigmoid_of(u32 counts, u32 order) {
  return fmaf(__uint_as_float(__byte_perm(counts, 0x4b000000, order)), 1.f / 65535.f, -8388608.f * (1.f / 65535.f));
}

// The rows of all time steps, one after another. Step t has the rows from begins[t] on; without `begins` it has B rows.
struct Rows {
  const int *begins, *lengths;  // (T + 1) and (B), or null
  int T, B;

  __device__ int of(int t) const { return begins ? begins[t] : t * B; }
  __device__ int length(int b) const { return lengths ? lengths[b] : T; }
  __device__ int step(int row) const {
    if (!begins) return row / B;
    int low = 0, high = T;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (begins[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};
