// What stands before and after the two passes: weights in the order of registers, the momentum as a filter, inputs
// and gradients as operands of matrix products. Replicas are blockIdx.y; an `each_` of 0 marks what they share.
//
// Gates are in torch's order, (gate, unit), in all that comes from or goes to the user, and woven, (unit, gate), inside.

constexpr float LOG2E = 1.4426950408889634f;

__device__ inline int here() { return blockIdx.x * blockDim.x + threadIdx.x; }
// The power of two below a number, and that to bring it to [1, 2); 0 and inf are left alone.
__device__ inline float power_below(float x) {
  const u32 e = __float_as_uint(x) & 0x7f800000;
  return e == 0 || e > 0x7e800000 ? 1.f : __uint_as_float(e);
}
// What rounding to bfloat16 loses; nothing of inf.
__device__ inline float low_part(float x) {
  const float high = bfloat_part(x);
  return fabsf(high) < __uint_as_float(0x7f800000) ? x - high : 0.f;
}
// What is left of a number after so many parts in bfloat16.
__device__ inline float left_after(float x, int parts) {
  for (; parts > 0; parts--) x = low_part(x);
  return x;
}
// What rounding to a half loses, 2048 times.
__device__ inline float half_rest(float x) { return (x - floats_of(half2_of(x, 0.f)).x) * 2048.f; }

// The rows of all steps, one after another: those of step t from begins[t] on, or all B of each step.
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

// The input as further columns of the product with U, in bfloat16. A feature has three: x as (high, low, high) by W
// as (high, high, low), so that only the product of the low parts is missing; if `fine`, six for the products of three
// parts, of which the smallest three are missing. Ones have two, or three: b in its parts.
// Of a driven layer b_ih belongs to one more feature, the filtered 1.
struct Columns {
  int fine;

  __device__ int each() const { return fine ? 6 : 3; }
  __device__ int ones() const { return fine ? 3 : 2; }
  // Which part of x, and of W, stands in one of a feature's columns.
  __device__ int of_x(int i) const { return (fine ? 0x120100 : 0x010) >> 4 * i & 15; }
  __device__ int of_w(int i) const { return (fine ? 0x102010 : 0x100) >> 4 * i & 15; }
  // inf stands in the first column alone: by a low part of W, 0, it would be nan.
  __device__ float input(float x, int i) const {
    return i == 0 || fabsf(bfloat_part(x)) < __uint_as_float(0x7f800000) ? left_after(x, of_x(i)) : 0.f;
  }
  __device__ float input(const float *features, int F, int column) const {
    if (column >= each() * F) return column < each() * F + ones() ? 1.f : 0.f;
    return input(features[column / each()], column % each());
  }
};
struct InputWeights {
  const float *w_ih, *b_ih, *b_hh;  // (4 H, D), (4 H), (4 H); a bias may be null
  int D, driven;
  Columns columns;

  __device__ float at(int gate_unit, int column, float factor) const {
    const int each = columns.each(), ones = each * (D + (driven && b_ih)), d = column / each;
    if (column >= ones + columns.ones()) return 0.f;
    float w = 0.f;
    if (column >= ones) {
      if (b_hh) w += b_hh[gate_unit];
      if (b_ih && !driven) w += b_ih[gate_unit];
    } else {
      w = d < D ? w_ih[(size_t)gate_unit * D + d] : b_ih[gate_unit];
    }
    return left_after(w * factor, column < ones ? columns.of_w(column % each) : column - ones);
  }
};

// U and the further columns as A matrices of `lstm_forward`: (R, CTA, warp, slice, 2, lane), and of U_low, if `low`. If
// `plain`, the further columns lack the factors of gates.
extern "C" __global__ void pack_forward(const float *w_hh, const float *w_ih, const float *b_ih, const float *b_hh,
                                        uint4 *packed, uint4 *low, int ctas, int extra, int H, int D, int driven, int plain,
                                        int each_hh, int each_ih, int each_b_ih, int each_b_hh) {
  const int slices = 2 * ctas + extra, count = ctas * 4 * slices * 64, i = here(), r = blockIdx.y;
  if (i >= count) return;
  const int lane = i % 32, m = i / 32 % 2, k = i / 64 % slices, warp = i / 64 / slices, unit = warp * 8 + lane / 4;
  w_hh += (size_t)r * each_hh * 4 * H * H;
  const InputWeights inputs = {w_ih ? w_ih + (size_t)r * each_ih * 4 * H * D : nullptr,
                               b_ih ? b_ih + r * each_b_ih * 4 * H : nullptr,
                               b_hh ? b_hh + r * each_b_hh * 4 * H : nullptr, D, driven, {low != nullptr}};
  u32 a[4], rest[4];
  for (int part = 0; part < 4; part++) {
    const int gate = 2 * m + part % 2;
    const float factor = gate == 2 ? -2.f * LOG2E : -LOG2E;
    float v[2] = {0.f, 0.f};
    for (int n = 0; n < 2 && unit < H; n++) {
      const int column = k * 16 + 2 * (lane % 4) + part / 2 * 8 + n, gate_unit = gate * H + unit;
      if (k >= 2 * ctas)
        v[n] = inputs.at(gate_unit, column - 32 * ctas, plain ? 1.f : factor);
      else if (column < H)
        v[n] = factor * w_hh[(size_t)gate_unit * H + column];
    }
    a[part] = k < 2 * ctas ? half2_of(v[0], v[1]) : bfloat2_of(v[0], v[1]);
    rest[part] = half2_of(half_rest(v[0]), half_rest(v[1]));
  }
  packed[(size_t)r * count + i] = {a[0], a[1], a[2], a[3]};
  if (low && k < 2 * ctas)
    low[(((size_t)r * ctas * 4 + warp) * 2 * ctas + k) * 64 + m * 32 + lane] = {rest[0], rest[1], rest[2], rest[3]};
}

// Uᵀ as A matrices of `lstm_backward`: (R, CTA, warp, tile, slice, lane), and Uᵀ_low, if `low`.
extern "C" __global__ void pack_backward(const float *w_hh, uint4 *packed, uint4 *low, int ctas, int H) {
  const int tiles = (ctas + 1) / 2, count = ctas * 4 * tiles * 8 * 32, i = here(), r = blockIdx.y;
  if (i >= count) return;
  const int lane = i % 32, k = i / 32 % 8, m = i / 256 % tiles, warp = i / 256 / tiles % 4, rank = i / 256 / tiles / 4;
  w_hh += (size_t)r * 4 * H * H;
  u32 a[4], rest[4];
  for (int part = 0; part < 4; part++) {
    const int after = 2 * m + part % 2, to = (rank + after + 1) % ctas * 32 + warp * 8 + lane / 4;
    const int column = k * 16 + 2 * (lane % 4) + part / 2 * 8, gate = column % 4, unit = rank * 32 + column / 4;
    const bool there = after < ctas && to < H && unit < H;
    const float *u = w_hh + ((size_t)gate * H + unit) * H + to;
    const float v[2] = {there ? u[0] : 0.f, there ? u[(size_t)H * H] : 0.f};
    a[part] = half2_of(v[0], v[1]);
    rest[part] = half2_of(half_rest(v[0]), half_rest(v[1]));
  }
  packed[(size_t)r * count + i] = {a[0], a[1], a[2], a[3]};
  if (low) low[(size_t)r * count + i] = {rest[0], rest[1], rest[2], rest[3]};
}

// The columns of the input as B matrices of `lstm_forward`: (R, tile, step, EXTRA, lane, 2). A thread has a row and slice.
extern "C" __global__ void spread(const float *x, uint4 *packed, const int *begins, const int *lengths, const int *starts,
                                  int T, int B, int N, int total, int F, int extra, int fine) {
  const Rows rows = {begins, lengths, T, B};
  const Columns columns = {fine};
  const int tiles = (B + 7) / 8, i = here(), k = i % extra, r = blockIdx.y;
  const int b = i / extra % (8 * tiles), t = i / extra / (8 * tiles), tile = b / 8;
  if (t >= rows.length(tile * 8)) return;
  const bool there = b < B && t < rows.length(b);
  x += ((size_t)r * N + rows.of(t) + b) * F;
  u32 pair[8];
#pragma unroll
  for (int n = 0; n < 8; n++) {
    const int column = k * 16 + n / 2 * 2 + n % 2 * 8;
    pair[n] = there ? bfloat2_of(columns.input(x, F, column), columns.input(x, F, column + 1)) : 0;
  }
  const int start = starts ? starts[tile] : tile * T;
  packed += (((size_t)r * total + start + t) * extra + k) * 16 + b % 8 * 2;
  packed[0] = {pair[0], pair[1], pair[2], pair[3]};
  packed[1] = {pair[4], pair[5], pair[6], pair[7]};
}

// W and biases in the columns of a wide input, as a factor of a product of its own with what `filter` packs: (R, 4 H woven, width).
extern "C" __global__ void split_weights(const float *w_ih, const float *b_ih, const float *b_hh, u32 *packed, int H,
                                         int D, int driven, int width, int fine, int each_ih, int each_b_ih,
                                         int each_b_hh) {
  const int i = here(), pairs = width / 2, r = blockIdx.y;
  if (i >= 4 * H * pairs) return;
  const InputWeights weights = {w_ih + (size_t)r * each_ih * 4 * H * D, b_ih ? b_ih + r * each_b_ih * 4 * H : nullptr,
                                b_hh ? b_hh + r * each_b_hh * 4 * H : nullptr, D, driven, {fine}};
  const int woven = i / pairs, gate_unit = woven % 4 * H + woven / 4, column = i % pairs * 2;
  packed[(size_t)r * 4 * H * pairs + i] =
      bfloat2_of(weights.at(gate_unit, column, 1.f), weights.at(gate_unit, column + 1, 1.f));
}

// v_t = decay_t v_{t-1} + step x_t for all rows and features, time in segments: a first pass finds what each segment
// leaves, a second one writes. Backwards in time it is its own adjoint, with decay_{t+1} for decay_t. Without decay
// v = step x. A block has so many columns, of a row and feature each, by as many segments as fit. It writes v, or the
// bfloat16 columns of a wide input, `width` to a row.
constexpr int FILTERS = 512;  // threads
extern "C" __global__ void __launch_bounds__(FILTERS)
    filter(const float *__restrict__ x,        // (R, N, D); features from D on to F - 1 are ones
           const float *__restrict__ decay,    // (T, 1), (T, B), or null
           const float *__restrict__ factors,  // (R, N) of the rows of x, or null
           float *__restrict__ v,              // (R, N, F), or null
           u16 *__restrict__ packed,           // or null
           u32 *__restrict__ largest,          // (R, F): raised to the largest |v| of each feature, or null
           const int *__restrict__ begins, const int *__restrict__ lengths,  // or null
           int T, int B, int N, int D, int F, int decays, int backwards, int block_columns, int width, int fine, float step) {
  __shared__ float left[FILTERS], faded[FILTERS];
  const Rows rows = {begins, lengths, T, B};
  const Columns columns = {fine};
  const int lane = threadIdx.x % block_columns, segment = threadIdx.x / block_columns, segments = FILTERS / block_columns;
  const int column = blockIdx.x * block_columns + lane, b = column / F, d = column % F, r = blockIdx.y;
  const int steps = b < B ? rows.length(b) : 0, length = (T + segments - 1) / segments, begin = segment * length;
  const int end = min(begin + length, steps);
  // From one step to the next, in the order of this pass: its s is step `start + turn (s - begin)`.
  const int turn = backwards ? -1 : 1, start = backwards ? steps - 1 - begin : begin;
  const bool given = d < D;
  // Of a row of the batch, the place at a step.
  auto at = [&](int t) { return (size_t)r * N + rows.of(t) + b; };
  // Steps in eights, all loads of which are on their way together.
  float inputs[8], fades[8];
  auto fetch = [&](int s) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int t = start + (s + i - begin) * turn, other = t + backwards;
      const bool now = s + i < end;
      inputs[i] = now && given ? x[at(t) * D + d] : 1.f;
      if (factors) inputs[i] *= now ? factors[at(t)] : 1.f;
      fades[i] = decay && now && other < steps ? decay[decays > 1 ? (size_t)other * B + b : other] : 0.f;
    }
  };
  auto write = [&](int t, float x) {
    u16 *row = packed + at(t) * width;
    const int each = columns.each(), ones = each * F;
    for (int i = 0; i < each; i++) row[each * d + i] = (u16)bfloat2_of(columns.input(x, i), 0.f);
    for (int i = ones; i < width && d == 0; i++) row[i] = i < ones + columns.ones() ? 0x3f80 : 0;
  };
  float carried = 0.f;
  if (decay) {
    float sum = 0.f, product = 1.f;
    for (int s = begin; s < end; s += 8) {
      fetch(s);
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (s + i < end) {
          sum = fmaf(fades[i], sum, step * inputs[i]);
          product *= fades[i];
        }
    }
    left[threadIdx.x] = sum;
    faded[threadIdx.x] = product;
    __syncthreads();
#pragma unroll 8
    for (int i = lane; i < threadIdx.x; i += block_columns) carried = fmaf(faded[i], carried, left[i]);
  }
  float top = 0.f;
  for (int s = begin; s < end; s += 8) {
    if (!decay || length > 8) fetch(s);  // else they are at hand
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (s + i < end) {
        carried = fmaf(fades[i], carried, step * inputs[i]);
        const int t = start + (s + i - begin) * turn;
        if (v) v[at(t) * F + d] = carried;
        if (packed) write(t, carried);
        top = fmaxf(top, fabsf(carried));
      }
  }
  if (!largest) return;
  __syncthreads();
  left[threadIdx.x] = top;
  __syncthreads();
  if (segment == 0 && b < B) {
    for (int i = lane; i < FILTERS; i += block_columns) top = fmaxf(top, left[i]);
    atomicMax(largest + (size_t)r * F + d, __float_as_uint(top));
  }
}

// [h_{t-1} | x | 1], by which dz makes the gradients of all weights in one product: (R, room, columns) in halves, the rows
// being those from `before` on. If `fine`, as many columns more have what the halves left, 2048 times. Each row has the
// factor that dz lacks, by the largest of all; each feature of x is brought to the size of h. A thread has 8 columns.
extern "C" __global__ void operand(const float *y, const float *h0, const float *x, const float *scales,
                                   const u32 *largest_scale, const u32 *largest_x, uint4 *packed, const int *begins,
                                   int before, int rows, int room, int T, int B, int N, int H, int F, int columns, int fine,
                                   int each_state, int each_input) {
  const int i = here(), eights = columns / 8, r = blockIdx.y;
  if (i >= rows * eights) return;
  const Rows all = {begins, nullptr, T, B};
  const int row = before + i / eights, column = i % eights * 8, t = all.step(row), b = row - all.of(t);
  const float factor = scales[(size_t)r * room + i / eights] / __uint_as_float(largest_scale[r]);
  const float *h = t > 0 ? y + ((size_t)r * N + all.of(t - 1) + b) * H : h0 + ((size_t)r * each_state * B + b) * H;
  x += ((size_t)r * each_input * N + row) * F;
  float v[8];
  if (H % 4 == 0 && column + 8 <= H) {
    const float4 *four = (const float4 *)(h + column);
    const float4 low = four[0], high = four[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const int d = column + n - H;
      if (d < 0)
        v[n] = h[column + n];
      else if (d < F)
        v[n] = x[d] / power_below(__uint_as_float(largest_x[(size_t)r * each_input * F + d]));
      else
        v[n] = d == F;
    }
  }
#pragma unroll
  for (int n = 0; n < 8; n++) v[n] *= factor;
  packed += ((size_t)r * room + i / eights) * eights * (fine ? 2 : 1) + i % eights;
  packed[0] = {half2_of(v[0], v[1]), half2_of(v[2], v[3]), half2_of(v[4], v[5]), half2_of(v[6], v[7])};
  if (!fine) return;
#pragma unroll
  for (int n = 0; n < 8; n++) v[n] = half_rest(v[n]);
  packed[eights] = {half2_of(v[0], v[1]), half2_of(v[2], v[3]), half2_of(v[4], v[5]), half2_of(v[6], v[7])};
}

// The gradients of the weights from the products of all chunks of time, (chunk, R, 4 H woven, columns).
extern "C" __global__ void finish(const float *products, const u32 *largest_scales, const u32 *largest_x, float *dw_hh,
                                  float *dw_ih, float *db_ih, float *db_hh, int chunks, int R, int H, int D, int F,
                                  int columns, int each_input) {
  const int width = H + F + 1, i = here(), r = blockIdx.y;
  if (i >= 4 * H * width) return;
  const int gate_unit = i / width, woven = gate_unit % H * 4 + gate_unit / H, column = i % width, d = column - H;
  float sum = 0.f;
  for (int c = 0; c < chunks; c++)
    sum = fmaf(products[(((size_t)c * R + r) * 4 * H + woven) * columns + column],
               __uint_as_float(largest_scales[c * R + r]), sum);
  if (d >= 0 && d < F) sum *= power_below(__uint_as_float(largest_x[(size_t)r * each_input * F + d]));
  const size_t place = (size_t)r * 4 * H + gate_unit;
  if (d < 0) {
    if (dw_hh) dw_hh[place * H + column] = sum;
  } else if (d < D) {
    if (dw_ih) dw_ih[place * D + d] = sum;
  } else {
    if (db_ih && d == (F > D ? D : F)) db_ih[place] = sum;
    if (db_hh && d == F) db_hh[place] = sum;
  }
}

// W for dx = dz W, (R, 4 H woven, columns) in halves, over the power of two below its largest entry; if `fine`, as many
// columns more have what the halves left, 2048 times.
extern "C" __global__ void weave(const float *w_ih, const float *largest, u16 *packed, float *powers, int H, int D,
                                 int columns, int fine) {
  const int i = here(), r = blockIdx.y;
  if (i >= 4 * H * columns) return;
  const int woven = i / columns, d = i % columns, gate_unit = woven % 4 * H + woven / 4;
  const float w = d < D ? w_ih[((size_t)r * 4 * H + gate_unit) * D + d] : 0.f;
  const float power = power_below(largest[r]);
  packed += ((size_t)r * 4 * H + woven) * columns * (fine ? 2 : 1) + d;
  packed[0] = (u16)half2_of(w / power, 0.f);
  if (fine) packed[columns] = (u16)half2_of(half_rest(w / power), 0.f);
  if (i == 0) powers[r] = power;
}

// dz as the gradient of a drive that was given, (R, N, 4, H), for the rows from `before` on.
extern "C" __global__ void unweave(const uint2 *dz, const uint2 *dz_low, const float *scales, float *dx, int before,
                                   int rows, int room, int N, int H) {
  const int i = here(), r = blockIdx.y;
  if (i >= rows * H) return;
  const int row = i / H, unit = i % H;
  const float factor = scales[(size_t)r * room + row];
  const size_t place = (size_t)r * room * H + i;
  float2 if_ = floats_of(dz[place].x), go = floats_of(dz[place].y);
  if (dz_low) {
    const float2 low_if = floats_of(dz_low[place].x), low_go = floats_of(dz_low[place].y);
    if_ = {fmaf(1.f / 2048.f, low_if.x, if_.x), fmaf(1.f / 2048.f, low_if.y, if_.y)};
    go = {fmaf(1.f / 2048.f, low_go.x, go.x), fmaf(1.f / 2048.f, low_go.y, go.y)};
  }
  dx += ((size_t)r * N + before + row) * 4 * H + unit;
  dx[0] = factor * if_.x;
  dx[H] = factor * if_.y;
  dx[2 * H] = factor * go.x;
  dx[3 * H] = factor * go.y;
}
