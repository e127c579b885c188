// What prepares the operands of the two passes, and those of dx = dz W. It puts the weights in the order in which threads
// keep them in registers, and a narrow input in extra columns of the product with U. `filter_input` is the momentum, as a
// filter over time. Backwards in time it is the last step of dx.

// The input as extra columns of the product with U, in bfloat16. A feature has three columns: x as (high, low, high) times W
// as (high, high, low). Only the product of the two low parts is missing. With `fine` a feature has six columns, for
// products of three parts; the three smallest products are missing. The constant 1, by which biases enter, has two columns,
// or three. With a momentum b_ih belongs to one more feature: the filtered 1.
struct Columns {
  int fine;

  __device__ int per_feature() const { return fine ? FINE_COLUMNS : COLUMNS; }
  __device__ int ones() const { return fine ? FINE_ONES : ONES; }
  // Which part of x, and of W, stands in one of a feature's columns.
  __device__ int of_x(int i) const { return (fine ? FINE_PARTS_OF_X : PARTS_OF_X) >> 4 * i & 15; }
  __device__ int of_w(int i) const { return (fine ? FINE_PARTS_OF_W : PARTS_OF_W) >> 4 * i & 15; }
  // Only the first column holds inf: a low part of W may be 0, and inf * 0 is nan.
  __device__ float input(float x, int i) const {
    return i == 0 || fabsf(bfloat_part(x)) < __uint_as_float(0x7f800000) ? left_after(x, of_x(i)) : 0.f;
  }
  __device__ float input(const float *features, int F, int column) const {
    if (column >= per_feature() * F) return column < per_feature() * F + ones() ? 1.f : 0.f;
    return input(features[column / per_feature()], column % per_feature());
  }
};
struct InputWeights {
  const float *w_ih, *b_ih, *b_hh;  // (4 H, D), (4 H), (4 H); a bias may be null
  int D, filtered;
  Columns columns;

  __device__ float at(int gate_unit, int column, float factor) const {
    const int per_feature = columns.per_feature(), ones = per_feature * (D + (filtered && b_ih)), d = column / per_feature;
    if (column >= ones + columns.ones()) return 0.f;
    float w = 0.f;
    if (column >= ones) {
      if (b_hh) w += b_hh[gate_unit];
      if (b_ih && !filtered) w += b_ih[gate_unit];
    } else {
      w = d < D ? w_ih[(size_t)gate_unit * D + d] : b_ih[gate_unit];
    }
    return left_after(w * factor, column < ones ? columns.of_w(column % per_feature) : column - ones);
  }
};

// U and the extra columns as A matrices of `lstm_forward`, (R, CTA, warp, slice, 2, lane); with `low` also U_low. With
// `plain` the extra columns lack the gates' factors of -log2(e).
extern "C" __global__ void pack_forward(const float *w_hh, const float *w_ih, const float *b_ih, const float *b_hh,
                                        uint4 *packed, uint4 *low, int ctas, int input_slices, int H, int D, int filtered,
                                        int plain, int own_hh, int own_ih, int own_b_ih, int own_b_hh) {
  const int slices = 2 * ctas + input_slices, count = ctas * WARPS * slices * 64, i = thread_index(), r = blockIdx.y;
  if (i >= count) return;
  const int lane = i % 32, m = i / 32 % 2, k = i / 64 % slices, warp = i / 64 / slices, unit = warp * 8 + lane / 4;
  w_hh += (size_t)r * own_hh * 4 * H * H;
  const InputWeights inputs = {w_ih ? w_ih + (size_t)r * own_ih * 4 * H * D : nullptr,
                               b_ih ? b_ih + r * own_b_ih * 4 * H : nullptr,
                               b_hh ? b_hh + r * own_b_hh * 4 * H : nullptr, D, filtered, {low != nullptr}};
  u32 a[4], low_parts[4];
  for (int part = 0; part < 4; part++) {
    const int gate = 2 * m + part % 2;
    const float factor = gate == 2 ? -2.f * LOG2E : -LOG2E;
    float v[2] = {0.f, 0.f};
    for (int n = 0; n < 2 && unit < H; n++) {
      const int column = k * 16 + 2 * (lane % 4) + part / 2 * 8 + n, gate_unit = gate * H + unit;
      if (k >= 2 * ctas)
        v[n] = inputs.at(gate_unit, column - WARPS * 8 * ctas, plain ? 1.f : factor);
      else if (column < H)
        v[n] = factor * w_hh[(size_t)gate_unit * H + column];
    }
    a[part] = k < 2 * ctas ? half2_of(v[0], v[1]) : bfloat2_of(v[0], v[1]);
    low_parts[part] = half2_of(scaled_low_half(v[0]), scaled_low_half(v[1]));
  }
  packed[(size_t)r * count + i] = {a[0], a[1], a[2], a[3]};
  if (low && k < 2 * ctas)
    low[(((size_t)r * ctas * WARPS + warp) * 2 * ctas + k) * 64 + m * 32 + lane] = {low_parts[0], low_parts[1],
                                                                                     low_parts[2], low_parts[3]};
}

// Uᵀ as A matrices of `lstm_backward`: (R, CTA, warp, tile, slice, lane), and Uᵀ_low, if `low`.
extern "C" __global__ void pack_backward(const float *w_hh, uint4 *packed, uint4 *low, int ctas, int H) {
  const int tiles = (ctas + 1) / 2, count = ctas * WARPS * tiles * 8 * 32, i = thread_index(), r = blockIdx.y;
  if (i >= count) return;
  const int lane = i % 32, k = i / 32 % 8, m = i / 256 % tiles;
  const int warp = i / 256 / tiles % WARPS, rank = i / 256 / tiles / WARPS;
  w_hh += (size_t)r * 4 * H * H;
  u32 a[4], low_parts[4];
  for (int part = 0; part < 4; part++) {
    const int after = 2 * m + part % 2, to = (rank + after + 1) % ctas * (WARPS * 8) + warp * 8 + lane / 4;
    const int column = k * 16 + 2 * (lane % 4) + part / 2 * 8, gate = column % 4, unit = rank * (WARPS * 8) + column / 4;
    const bool there = after < ctas && to < H && unit < H;
    const float *u = w_hh + ((size_t)gate * H + unit) * H + to;
    const float v[2] = {there ? u[0] : 0.f, there ? u[(size_t)H * H] : 0.f};
    a[part] = half2_of(v[0], v[1]);
    low_parts[part] = half2_of(scaled_low_half(v[0]), scaled_low_half(v[1]));
  }
  packed[(size_t)r * count + i] = {a[0], a[1], a[2], a[3]};
  if (low) low[(size_t)r * count + i] = {low_parts[0], low_parts[1], low_parts[2], low_parts[3]};
}

// The columns of the input as B matrices of `lstm_forward`: (R, tile, step, INPUT_SLICES, lane, 2). A thread has one row and
// slice.
extern "C" __global__ void pack_input(const float *x, uint4 *packed, const int *begins, const int *lengths, const int *starts,
                                      int T, int B, int N, int tile_steps, int F, int input_slices, int fine) {
  const Rows rows = {begins, lengths, T, B};
  const Columns columns = {fine};
  const int tiles = (B + TILE - 1) / TILE, i = thread_index(), k = i % input_slices, r = blockIdx.y;
  const int b = i / input_slices % (TILE * tiles), t = i / input_slices / (TILE * tiles), tile = b / TILE;
  if (t >= rows.length(tile * TILE)) return;
  const bool there = b < B && t < rows.length(b);
  x += ((size_t)r * N + rows.of(t) + b) * F;
  u32 pair[8];
#pragma unroll
  for (int n = 0; n < 8; n++) {
    const int column = k * 16 + n / 2 * 2 + n % 2 * 8;
    pair[n] = there ? bfloat2_of(columns.input(x, F, column), columns.input(x, F, column + 1)) : 0;
  }
  const int start = starts ? starts[tile] : tile * T;
  packed += (((size_t)r * tile_steps + start + t) * input_slices + k) * 16 + b % TILE * 2;
  packed[0] = {pair[0], pair[1], pair[2], pair[3]};
  packed[1] = {pair[4], pair[5], pair[6], pair[7]};
}

// W and biases in the columns of a wide input: (R, 4 H interleaved, width). A separate product multiplies them with what
// `filter_input` packs.
extern "C" __global__ void pack_input_weights(const float *w_ih, const float *b_ih, const float *b_hh, u32 *packed,
                                              int H, int D, int filtered, int width, int fine, int own_ih, int own_b_ih,
                                              int own_b_hh) {
  const int i = thread_index(), pairs = width / 2, r = blockIdx.y;
  if (i >= 4 * H * pairs) return;
  const InputWeights weights = {w_ih + (size_t)r * own_ih * 4 * H * D, b_ih ? b_ih + r * own_b_ih * 4 * H : nullptr,
                                b_hh ? b_hh + r * own_b_hh * 4 * H : nullptr, D, filtered, {fine}};
  const int interleaved = i / pairs, gate_unit = interleaved % 4 * H + interleaved / 4, column = i % pairs * 2;
  packed[(size_t)r * 4 * H * pairs + i] =
      bfloat2_of(weights.at(gate_unit, column, 1.f), weights.at(gate_unit, column + 1, 1.f));
}

// v_t = decay_t v_{t-1} + step x_t for all rows and features. Time is cut into segments: a first pass finds what each
// segment adds, a second pass writes. Backwards in time, with decay_{t+1} for decay_t, it is its own adjoint. Without
// `decay` v = step x. A block has `block_columns` pairs of a row and a feature, and as many segments as fit. It writes v, or
// the bfloat16 columns of a wide input, `width` to a row.
extern "C" __global__ void __launch_bounds__(FILTER_THREADS)
    filter_input(const float *__restrict__ x,        // (R, N, D); features from D on to F - 1 are ones
                 const float *__restrict__ decay,    // (T, 1), (T, B), or null
                 const float *__restrict__ factors,  // (R, N) of the rows of x, or null
                 float *__restrict__ v,              // (R, N, F), or null
                 u16 *__restrict__ packed,           // or null
                 u32 *__restrict__ largest,          // (R, F): raised to the largest |v| of each feature, or null
                 const int *__restrict__ begins, const int *__restrict__ lengths,  // or null
                 int T, int B, int N, int D, int F, int decay_columns, int backwards, int block_columns, int width, int fine,
                 float step) {
  __shared__ float segment_sums[FILTER_THREADS], segment_decays[FILTER_THREADS];
  const Rows rows = {begins, lengths, T, B};
  const Columns columns = {fine};
  const int lane = threadIdx.x % block_columns, segment = threadIdx.x / block_columns;
  const int segments = FILTER_THREADS / block_columns;
  const int column = blockIdx.x * block_columns + lane, b = column / F, d = column % F, r = blockIdx.y;
  const int steps = b < B ? rows.length(b) : 0, length = (T + segments - 1) / segments, begin = segment * length;
  const int end = min(begin + length, steps);
  // Step s of this pass is time step start + direction * (s - begin).
  const int direction = backwards ? -1 : 1, start = backwards ? steps - 1 - begin : begin;
  const bool given = d < D;
  // The row of sequence b at step t, among the rows of all replicas.
  auto at = [&](int t) { return (size_t)r * N + rows.of(t) + b; };
  // Eight steps at a time, so that their loads are in flight together.
  float inputs[8], decays[8];
  auto fetch = [&](int s) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int t = start + (s + i - begin) * direction, other = t + backwards;
      const bool now = s + i < end;
      inputs[i] = now && given ? x[at(t) * D + d] : 1.f;
      if (factors) inputs[i] *= now ? factors[at(t)] : 1.f;
      decays[i] = decay && now && other < steps ? decay[decay_columns > 1 ? (size_t)other * B + b : other] : 0.f;
    }
  };
  auto write = [&](int t, float x) {
    u16 *row = packed + at(t) * width;
    const int per_feature = columns.per_feature(), ones = per_feature * F;
    for (int i = 0; i < per_feature; i++) row[per_feature * d + i] = (u16)bfloat2_of(columns.input(x, i), 0.f);
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
          sum = fmaf(decays[i], sum, step * inputs[i]);
          product *= decays[i];
        }
    }
    segment_sums[threadIdx.x] = sum;
    segment_decays[threadIdx.x] = product;
    __syncthreads();
#pragma unroll 8
    for (int i = lane; i < threadIdx.x; i += block_columns) carried = fmaf(segment_decays[i], carried, segment_sums[i]);
  }
  float top = 0.f;
  for (int s = begin; s < end; s += 8) {
    if (!decay || length > 8) fetch(s);  // otherwise the first pass left them in registers
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (s + i < end) {
        carried = fmaf(decays[i], carried, step * inputs[i]);
        const int t = start + (s + i - begin) * direction;
        if (v) v[at(t) * F + d] = carried;
        if (packed) write(t, carried);
        top = fmaxf(top, fabsf(carried));
      }
  }
  if (!largest) return;
  float *tops = segment_sums;
  __syncthreads();
  tops[threadIdx.x] = top;
  __syncthreads();
  if (segment == 0 && b < B) {
    for (int i = lane; i < FILTER_THREADS; i += block_columns) top = fmaxf(top, tops[i]);
    atomicMax(largest + (size_t)r * F + d, __float_as_uint(top));
  }
}

// W for dx = dz W, (R, 4 H interleaved, columns) in halves, divided by the power of two below its largest entry. With `fine`
// as many columns more hold what the halves lost, times LOW_SCALE.
extern "C" __global__ void pack_w_ih(const float *w_ih, const float *largest, u16 *packed, float *powers, int H, int D,
                                     int columns, int fine) {
  const int i = thread_index(), r = blockIdx.y;
  if (i >= 4 * H * columns) return;
  const int interleaved = i / columns, d = i % columns, gate_unit = interleaved % 4 * H + interleaved / 4;
  const float w = d < D ? w_ih[((size_t)r * 4 * H + gate_unit) * D + d] : 0.f;
  const float power = power_below(largest[r]);
  packed += ((size_t)r * 4 * H + interleaved) * columns * (fine ? 2 : 1) + d;
  packed[0] = (u16)half2_of(w / power, 0.f);
  if (fine) packed[columns] = (u16)half2_of(scaled_low_half(w / power), 0.f);
  if (i == 0) powers[r] = power;
}
