// The backward pass of an LSTM over the steps from `first` to `last`, in one launch.
//
// WHO OWNS WHAT. As in the forward pass: a cluster runs 8 rows, a CTA owns 32 units, a warp 8, and lane 4 g + q
// unit g in rows 2 q and 2 q + 1, whose dc stays in a register.
//
// A STEP. From dh of its units a thread makes dz, the gradients of the four gates. dh of the step before is Uᵀ dz
// over all units: each CTA multiplies the dz of its own 32 units (gathered in shared memory: one barrier inside the
// CTA) with its columns of Uᵀ, which its warps hold in registers, and so has a part of dh for all units. These
// parts, in float32, go to the owners, who add them up: thread to the same thread of each other CTA, since the rows
// of a warp's A matrices are the units that the warps of its number own. Waiting for a warp's parts is the
// only other synchronisation. Slots and barriers come in twos: a warp sends the parts of step s + 2 only after it
// has those of step s + 1 from the receiver, who by then had read those of step s.
//
// RANGE. dz enters the product, and goes to memory, as halves. Gradients have no natural size, so each row has its
// own scale S, a power of two, the same in the whole cluster:
//     S (s) = 8 / max |dh|, |dc| of the row in step s - 3, and |dy| up to step s
// which leaves room for gradients to grow by 2^12 in three steps, and full precision down to 2^-17 of the largest.
// The largest are found by all warps at the end of a step, sent with the parts of the next, and read in the one
// after that. Should dz outgrow a half all the same, it is inf and not wrong.
//
// Compiled for CTAS = 1 to 8. For the weights' gradients `dz` and `scales` are enough: see `operand`.

constexpr int THREADS = 128;
constexpr int TILES = (CTAS + 1) / 2;    // of 16 rows: 8 units of two CTAs each
constexpr int SLICES = 8;                // of 16 of a CTA's 128 gates
constexpr int CHAINS = TILES == 1 ? 4 : 2;
constexpr int PAIR = TILES == 1 ? 1 : 2; // tiles at a time
constexpr int ROW = 128 + 8;             // of dz in shared memory, in halves
constexpr u32 GATHERED = 8 * ROW * 2;    // bytes of one buffer of dz
constexpr u32 SLOT = 8 * THREADS;        // bytes of the parts from one CTA
constexpr u32 SLOTS = (CTAS > 1 ? CTAS - 1 : 1) * SLOT;
constexpr u32 MAXIMA = CTAS * 4 * 16;    // bytes: 8 exponents from each warp of the cluster
constexpr u32 MESSAGES = (CTAS - 1) * 256 + CTAS * 16;  // bytes that a warp receives in a step
constexpr int AHEAD = 4;                 // steps for which gates and cells are on their way; dy is 3 more ahead
constexpr float LOG2E = 1.4426950408889634f;

__device__ inline float tanh_of(float x) {
  return fmaf(2.f, reciprocal(1.f + exp2_fast(-2.f * LOG2E * x)), -1.f);
}
// A sigmoid, and its derivative, from what `folded` made of it.
__device__ inline void unfold(float s, float &v, float &slope) {
  const float a = fabsf(s);
  v = __float_as_int(s) < 0 ? 1.f - a : a;
  slope = fmaf(-a, a, a);
}
__device__ inline u32 size_of(float x) { return __float_as_uint(x) & 0x7fffffff; }
// The scale for rows whose largest gradient has this exponent, and its inverse.
__device__ inline float scale_for(u32 exponent) {
  const int e = 257 - (int)exponent;
  return __uint_as_float((u32)(e < 17 ? 17 : e > 237 ? 237 : e) << 23);
}
__device__ inline float inverse(float scale) { return __uint_as_float(0x7f000000 - __float_as_uint(scale)); }

extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, 1)
    lstm_backward(const uint4 *__restrict__ weights,     // (R, CTA, warp, tile, slice, lane), see `pack_backward`
                  const uint4 *__restrict__ kept_gates,  // as the forward pass left them
                  const u32 *__restrict__ kept_cells,
                  const float *__restrict__ dy,          // (R, T, B, H) or null
                  const float *__restrict__ last_dh,     // (R, B, H), or null: 0
                  const float *__restrict__ last_dc,
                  uint2 *__restrict__ dz,                // (R, last - first, B, H): S dz of i, f, g, o
                  float *__restrict__ scales,            // (R, last - first, B): 1 / S
                  u32 *__restrict__ largest,             // (R): raised to the largest of them
                  float *__restrict__ first_dh,          // (R, B, H)
                  float *__restrict__ first_dc,
                  int T, int first, int last, int B, int H, int each_weight) {  // 1, or 0: one for all replicas
  __shared__ __align__(128) unsigned char gathered[2 * GATHERED];
  __shared__ __align__(128) unsigned char slots[2 * SLOTS];
  __shared__ __align__(128) unsigned char maxima[4 * MAXIMA];
  __shared__ __align__(128) unsigned char inputs[AHEAD * 20 * THREADS + 8 * 8 * THREADS];
  __shared__ __align__(8) u64 barriers[2 * 4];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const u32 rank = cluster_rank();
  const int tile = blockIdx.x / CTAS, tiles = gridDim.x / CTAS, replica = blockIdx.y, steps = last - first;
  const int unit = rank * 32 + warp * 8 + g, row = tile * 8 + 2 * q;
  const bool mine[2] = {unit < H && row < B, unit < H && row + 1 < B};
  const size_t states = (size_t)B * H, place = (size_t)row * H + unit;

  // The weights, for good. Rows of a tile: 8 units of the CTA that is 2 m + 1 after this one, 8 of the next.
  uint4 w[TILES][SLICES];
  weights += (((size_t)replica * each_weight * CTAS + rank) * 4 + warp) * TILES * SLICES * 32 + lane;
#pragma unroll
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int k = 0; k < SLICES; k++) w[m][k] = weights[(m * SLICES + k) * 32];

  const u32 received = shared_address(barriers) + 8 * warp;  // the other one is 32 bytes on
  if (lane == 0) {
    create_barrier(received);
    create_barrier(received + 32);
    publish_barriers();
    expect(received, MESSAGES);
    expect(received + 32, MESSAGES);
  }

  // Inputs on their way: gates 16 bytes a thread, cells 4, dy two times 4.
  const u32 own_gates = shared_address(inputs) + 16 * thread;
  const u32 own_cells = shared_address(inputs) + AHEAD * 16 * THREADS + 4 * thread;
  const u32 own_dy = shared_address(inputs) + AHEAD * 20 * THREADS + 4 * thread;
  for (int i = 0; i < 16; i++) store(own_dy + i * 4 * THREADS, 0);
  const size_t block = ((size_t)tile * CTAS + rank) * THREADS + thread, blocks = (size_t)tiles * CTAS * THREADS;
  kept_gates += ((size_t)replica * T + last - 1) * blocks + block;
  kept_cells += ((size_t)replica * (T + 1) + last) * blocks + block;
  const float2 last_c = floats_of(*kept_cells);
  float c[2] = {last_c.x, last_c.y};
  kept_cells -= blocks;
  if (dy) dy += ((size_t)replica * T + last - 1) * states + place;
  auto fetch_dy = [&](int s) {
    if (dy) {
      copy_later<4>(own_dy + s % 8 * 8 * THREADS, dy, s < steps && mine[0]);
      copy_later<4>(own_dy + s % 8 * 8 * THREADS + 4 * THREADS, dy + H, s < steps && mine[1]);
      dy -= states;
    }
  };
  auto fetch = [&](int s) {
    copy_later<16>(own_gates + s % AHEAD * 16 * THREADS, kept_gates, s < steps);
    copy_later<4>(own_cells + s % AHEAD * 4 * THREADS, kept_cells, s < steps);
    kept_gates -= blocks;
    kept_cells -= blocks;
    fetch_dy(s + 3);
    end_of_copies();
  };
  for (int s = 0; s < 3; s++) fetch_dy(s);
  for (int s = 0; s < AHEAD - 1; s++) fetch(s);

  float part[2] = {0.f, 0.f}, dc[2] = {0.f, 0.f};
  if (last_dh) {
    last_dh += (size_t)replica * states + place;
    if (mine[0]) part[0] = last_dh[0];
    if (mine[1]) part[1] = last_dh[H];
  }
  if (last_dc) {
    last_dc += (size_t)replica * states + place;
    if (mine[0]) dc[0] = last_dc[0];
    if (mine[1]) dc[1] = last_dc[H];
  }

  // The largest exponents of two rows, in one register: of this thread, of its warp, of the cluster.
  const u32 maxima_at = shared_address(maxima);
  auto exponents = [](u32 size0, u32 size1) { return size0 >> 23 | size1 >> 23 << 16; };
  auto exponents_of_dy = [&](int s) {
    const u32 at = own_dy + s % 8 * 8 * THREADS;
    return exponents(load(at) & 0x7fffffff, load(at + 4 * THREADS) & 0x7fffffff);
  };
  auto of_all_units = [](u32 e) {
    e = larger_of_each(e, __shfl_xor_sync(~0u, e, 4));
    e = larger_of_each(e, __shfl_xor_sync(~0u, e, 8));
    return larger_of_each(e, __shfl_xor_sync(~0u, e, 16));
  };
  auto of_cluster = [&](int s) {
    u32 e = 0;
#pragma unroll
    for (int i = 0; i < (CTAS + 1) / 2; i++)
      if (8 * i + g < 4 * CTAS) e = larger_of_each(e, load(maxima_at + s % 4 * MAXIMA + (8 * i + g) * 16 + 4 * q));
    return of_all_units(e);
  };
  const u32 own_maxima = maxima_at + (rank * 4 + warp) * 16 + 4 * q;
  const u32 maxima_window = on_cta(maxima_at, g < CTAS ? g : 0) - maxima_at;  // lane 4 g + q sends to CTA g

  wait_for_copies<0>();
  u32 ahead[2] = {exponents_of_dy(1), exponents_of_dy(2)};
  u32 seen = exponents(max(size_of(part[0]), size_of(dc[0])), max(size_of(part[1]), size_of(dc[1])));
  seen = larger_of_each(larger_of_each(seen, exponents_of_dy(0)), larger_of_each(ahead[0], ahead[1]));
  seen = of_all_units(seen);
  meet_cluster();  // all barriers are there, and all memory is
  if (g < CTAS) store_there(own_maxima + 3 * MAXIMA + maxima_window, seen);
  meet_cluster();
  u32 rows = of_cluster(3);

  // Where the parts go: to the slot of this thread in each other CTA.
  const u32 own_slot = shared_address(slots) + 8 * thread;
  u32 window[CTAS > 1 ? CTAS - 1 : 1];
#pragma unroll
  for (int i = 0; i < CTAS - 1; i++) window[i] = on_cta(own_slot, (rank + i + 1) % CTAS) - own_slot;
  const u32 to = shared_address(gathered) + (2 * q * ROW + 4 * (warp * 8 + g)) * 2;
  const u32 from = shared_address(gathered) + ((lane % 8) * ROW + 8 * (lane / 8)) * 2;

  auto receive = [&](float(&dh)[2], int s) {  // the parts sent in step s
    const u32 buffer = s & 1;
    if (CTAS > 1) {
      wait(received + 32 * buffer, s / 2 & 1);
      if (lane == 0) expect(received + 32 * buffer, MESSAGES);
      float2 parts[CTAS > 1 ? CTAS - 1 : 1];
#pragma unroll
      for (int i = 0; i < CTAS - 1; i++) parts[i] = load_floats(own_slot + buffer * SLOTS + i * SLOT);
#pragma unroll
      for (int d = 1; d < CTAS - 1; d *= 2)
#pragma unroll
        for (int i = 0; i + d < CTAS - 1; i += 2 * d) parts[i].x += parts[i + d].x, parts[i].y += parts[i + d].y;
      dh[0] += parts[0].x;
      dh[1] += parts[0].y;
    }
  };

  dz += (((size_t)replica * steps + steps - 1) * B + row) * H + unit;
  scales += ((size_t)replica * steps + steps - 1) * B + row;
  const bool notes[2] = {unit == 0 && row < B, unit == 0 && row + 1 < B};
  u32 top = 0;

#pragma unroll 1
  for (int s = 0; s < steps; s++) {  // t = last - 1 - s
    const u32 buffer = s & 1;
    // All that does not need dh. With it dc += dh through_c, and dz is dc or dh times the rest.
    wait_for_copies<AHEAD - 2>();
    const uint4 kept = load_four(own_gates + s % AHEAD * 16 * THREADS);
    const float2 before = floats_of(load(own_cells + s % AHEAD * 4 * THREADS));
    float dh[2], through_c[2], to_i[2], to_f[2], to_g[2], to_o[2], forget[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const float2 if_ = floats_of(j ? kept.z : kept.x), go = floats_of(j ? kept.w : kept.y);
      float i, f, o, di, df, dout;
      unfold(if_.x, i, di);
      unfold(if_.y, f, df);
      unfold(go.y, o, dout);
      const float tanh_c = tanh_of(c[j]);
      c[j] = j ? before.y : before.x;
      through_c[j] = o * fmaf(-tanh_c, tanh_c, 1.f);
      to_i[j] = go.x * di;
      to_f[j] = c[j] * df;
      to_g[j] = i * fmaf(-go.x, go.x, 1.f);
      to_o[j] = tanh_c * dout;
      forget[j] = f;
      dh[j] = part[j] + load_float(own_dy + s % 8 * 8 * THREADS + j * 4 * THREADS);
      // So that the compiler doesn't move it behind the wait.
      asm volatile("" : "+f"(through_c[j]), "+f"(to_i[j]), "+f"(to_f[j]), "+f"(to_g[j]), "+f"(to_o[j]), "+f"(dh[j]));
    }
    fetch(s + AHEAD - 1);
    const float scale[2] = {scale_for(rows & 0xffff), scale_for(rows >> 16)};

    if (s > 0) receive(dh, s - 1);
    if (g < CTAS) {
      if (CTAS > 1)
        send(own_maxima + s % 4 * MAXIMA + maxima_window, seen, received + 32 * buffer + maxima_window);
      else
        store(own_maxima + s % 4 * MAXIMA, seen);
    }
    uint2 scaled[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      dc[j] = fmaf(dh[j], through_c[j], dc[j]);
      const float dc_scaled = dc[j] * scale[j], dh_scaled = dh[j] * scale[j];
      scaled[j].x = half2_of(dc_scaled * to_i[j], dc_scaled * to_f[j]);
      scaled[j].y = half2_of(dc_scaled * to_g[j], dh_scaled * to_o[j]);
      store(to + buffer * GATHERED + j * ROW * 2, scaled[j].x, scaled[j].y);
    }
    __syncthreads();

    uint4 b[SLICES / 2];
#pragma unroll
    for (int k = 0; k < SLICES / 2; k++) b[k] = load_matrices(from + buffer * GATHERED + k * 64);
#pragma unroll
    for (int m0 = 0; m0 < TILES; m0 += PAIR) {
      float sums[PAIR][CHAINS][4] = {};
#pragma unroll
      for (int k = 0; k < SLICES; k++)
#pragma unroll
        for (int m = 0; m < PAIR; m++)
          if (m0 + m < TILES)
            multiply_halves(sums[m][k % CHAINS], w[m0 + m][k], k & 1 ? b[k / 2].z : b[k / 2].x,
                            k & 1 ? b[k / 2].w : b[k / 2].y);
#pragma unroll
      for (int m = 0; m < PAIR; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int i = 2 * (m0 + m) + half;  // to the CTA that is i + 1 after this one; the last is this one
          if (m0 + m < TILES && i < CTAS) {
            float x = sums[m][0][2 * half], y = sums[m][0][2 * half + 1];
#pragma unroll
            for (int n = 1; n < CHAINS; n++) x += sums[m][n][2 * half], y += sums[m][n][2 * half + 1];
            x *= inverse(scale[0]);
            y *= inverse(scale[1]);
            if (i == CTAS - 1)
              part[0] = x, part[1] = y;
            else
              send(own_slot + buffer * SLOTS + i * SLOT + window[i], x, y, received + 32 * buffer + window[i]);
          }
        }
    }

    if (mine[0]) dz[0] = scaled[0];
    if (mine[1]) dz[H] = scaled[1];
    dz -= states;
    if (notes[0]) scales[0] = inverse(scale[0]);
    if (notes[1]) scales[1] = inverse(scale[1]);
    scales -= B;
    if (notes[0]) top = max(top, __float_as_uint(inverse(scale[0])));
    if (notes[1]) top = max(top, __float_as_uint(inverse(scale[1])));

    // The scale of the next step, from what was sent in the last; and what to send in the next.
    if (s > 0) rows = of_cluster(s - 1);
    seen = exponents(max(size_of(dh[0]), size_of(dc[0])), max(size_of(dh[1]), size_of(dc[1])));
    const u32 third = exponents_of_dy(s + 3);
    seen = of_all_units(larger_of_each(larger_of_each(seen, third), larger_of_each(ahead[0], ahead[1])));
    ahead[0] = ahead[1];
    ahead[1] = third;
#pragma unroll
    for (int j = 0; j < 2; j++) dc[j] *= forget[j];
  }
  if (top) atomicMax(largest + replica, top);

  receive(part, steps - 1);
  first_dh += (size_t)replica * states + place;
  first_dc += (size_t)replica * states + place;
  if (mine[0]) first_dh[0] = part[0], first_dc[0] = dc[0];
  if (mine[1]) first_dh[H] = part[1], first_dc[H] = dc[1];
  meet_cluster();  // nobody leaves while others may still write here
}
