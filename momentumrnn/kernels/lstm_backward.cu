// The backward pass of an LSTM over the steps from `first` to `last`, in one launch.
//
// WHO OWNS WHAT. As in the forward pass: a cluster runs 8 rows, a warp owns 8 units, and lane 4 g + q unit g in rows 2 q
// and 2 q + 1, whose dc stays in a register.
//
// A STEP. From dh of its units a thread makes dz, the gradients of the four gates. dh of the step before is Uᵀ dz
// over all units: each CTA multiplies the dz of its own units (gathered in shared memory: one barrier inside the
// CTA) with its columns of Uᵀ, which its warps hold in registers, and so has a part of dh for all units. These
// parts, in float32, go to the owners, who add them up: thread to the same thread of each other CTA, since the rows
// of a warp's A matrices are the units that the warps of its number own. Waiting for a warp's parts is the
// only other synchronisation. Slots and barriers come in twos: a warp sends the parts of step s + 2 only after it
// has those of step s + 1 from the receiver, who by then had read those of step s.
//
// RANGE. dz enters the product, and goes to memory, as halves. Gradients have no natural size, so each row has its
// own scale S, a power of two, the same in the whole cluster. Every second step the warps find the largest |dh| and
// |dc| of their units, and |dy| of the steps to come, and send them along; two and three steps later S is one over the
// largest of all. That leaves room for gradients to grow by 2^15 within five steps, and full precision down to 2^-14
// of the largest. Should dz outgrow a half all the same, it is inf and not wrong.
//
// Compiled for CTAS = 1 to 8. For the weights' gradients `dz` and `scales` are enough: see `operand`.

constexpr int WARPS = 4;                 // of a CTA
constexpr int THREADS = 32 * WARPS;
constexpr int UNITS = 8 * WARPS;         // of a CTA
constexpr int TILES = (CTAS + 1) / 2;    // of 16 rows: 8 units of two CTAs each
constexpr int SLICES = UNITS / 4;        // of 16 of a CTA's gates
constexpr int CHAINS = TILES == 1 ? 4 : 2;  // of products of a tile that don't wait for each other
constexpr int ROW = 4 * UNITS + 8;             // of dz in shared memory, in halves
constexpr u32 GATHERED = 8 * ROW * 2;    // bytes of one buffer of dz
constexpr u32 SLOT = 8 * THREADS;        // bytes of the parts from one CTA
constexpr u32 SLOTS = (CTAS > 1 ? CTAS - 1 : 1) * SLOT;
constexpr u32 MAXIMA = CTAS * WARPS * 16;    // bytes: 8 exponents from each warp of the cluster
// Bytes that a warp receives in a step.
__device__ inline u32 messages(u32 buffer) { return (CTAS - 1) * 256 + (buffer == 0 ? CTAS * 16 : 0); }
constexpr int AHEAD = 4;                 // steps for which gates and cells are on their way; dy is 3 more ahead
constexpr int INPUTS = 20 * AHEAD + 64;  // bytes of a thread: 16 of gates and 4 of cells a step, and 8 of dy for 8 steps
constexpr float LOG2E = 1.4426950408889634f;

__device__ inline float tanh_of(float x) {
  return fmaf(2.f, reciprocal(1.f + exp2_fast(-2.f * LOG2E * x)), -1.f);
}
// A sigmoid from what `counts_of` made of it: the low count of a pair (byte order 0x7610), or the high one (0x7632).
__device__ inline float sigmoid_of(u32 counts, u32 order) {
  return fmaf(__uint_as_float(__byte_perm(counts, 0x4b000000, order)), 1.f / 65535.f, -8388608.f * (1.f / 65535.f));
}
__device__ inline float slope_of(float sigmoid) { return fmaf(-sigmoid, sigmoid, sigmoid); }
__device__ inline u32 size_of(float x) { return __float_as_uint(x) & 0x7fffffff; }
// The scale for rows whose largest gradient has this exponent, and its inverse.
__device__ inline float scale_for(u32 exponent) {
  const int e = 254 - (int)exponent;
  return __uint_as_float((u32)(e < 17 ? 17 : e > 237 ? 237 : e) << 23);
}
__device__ inline float inverse(float scale) { return __uint_as_float(0x7f000000 - __float_as_uint(scale)); }

// Where three CTAs can share a multiprocessor they should: replicas fill it.
extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, CTAS <= 4 ? 3 : 1)
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
  __shared__ __align__(128) unsigned char maxima[3 * MAXIMA];
  extern __shared__ __align__(128) unsigned char inputs[];  // INPUTS THREADS
  __shared__ __align__(8) u64 barriers[2 * WARPS];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const u32 rank = cluster_rank();
  const int tile = blockIdx.x / CTAS, tiles = gridDim.x / CTAS, replica = blockIdx.y, steps = last - first;
  const int unit = rank * UNITS + warp * 8 + g, row = tile * 8 + 2 * q;
  const bool mine[2] = {unit < H && row < B, unit < H && row + 1 < B};
  const size_t states = (size_t)B * H, place = (size_t)row * H + unit;

  // The weights, for good. Rows of a tile: 8 units of the CTA that is 2 m + 1 after this one, 8 of the next.
  uint4 w[TILES][SLICES];
  weights += (((size_t)replica * each_weight * CTAS + rank) * WARPS + warp) * TILES * SLICES * 32 + lane;
#pragma unroll
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int k = 0; k < SLICES; k++) w[m][k] = weights[(m * SLICES + k) * 32];

  const u32 received = shared_address(barriers) + 8 * warp, other = 8 * WARPS;  // the other one is so many bytes on
  if (lane == 0) {
    create_barrier(received);
    create_barrier(received + other);
    publish_barriers();
    expect(received, messages(0));
    expect(received + other, messages(1));
  }

  // Inputs on their way: gates 16 bytes a thread, cells 4, dy two times 4.
  const u32 own_gates = shared_address(inputs) + 16 * thread;
  const u32 own_cells = shared_address(inputs) + AHEAD * 16 * THREADS + 4 * thread;
  const u32 own_dy = shared_address(inputs) + AHEAD * 20 * THREADS + 4 * thread;
  for (int i = 0; i < INPUTS / 4; i++) store(shared_address(inputs) + (i * THREADS + thread) * 4, 0);
  __syncthreads();
  const int warps = (H + 7) / 8, number = rank * WARPS + warp;
  const bool kept_here = number < warps;
  const size_t block = ((size_t)tile * warps + number) * 32 + lane, blocks = (size_t)tiles * warps * 32;
  kept_gates += ((size_t)replica * T + last - 1) * blocks + block;
  kept_cells += ((size_t)replica * (T + 1) + last) * blocks + block;
  const float2 last_c = floats_of(kept_here ? *kept_cells : 0);
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
    copy_later<16>(own_gates + s % AHEAD * 16 * THREADS, kept_gates, s < steps && kept_here);
    copy_later<4>(own_cells + s % AHEAD * 4 * THREADS, kept_cells, s < steps && kept_here);
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
  auto sent_in = [&](u32 place) {
    u32 e = 0;
#pragma unroll
    for (int i = 0; i < (CTAS * WARPS + 7) / 8; i++)
      if (8 * i + g < CTAS * WARPS) e = larger_of_each(e, load(maxima_at + place * MAXIMA + (8 * i + g) * 16 + 4 * q));
    return e;
  };
  auto over_lanes = [](u32 &a, u32 &b) {  // of this q, both at once
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
      const u32 other_a = __shfl_xor_sync(~0u, a, i), other_b = __shfl_xor_sync(~0u, b, i);
      a = larger_of_each(a, other_a);
      b = larger_of_each(b, other_b);
    }
  };
  const u32 own_maxima = maxima_at + (rank * WARPS + warp) * 16 + 4 * q;
  const u32 maxima_window = on_cta(maxima_at, g < CTAS ? g : 0) - maxima_at;  // lane 4 g + q sends to CTA g

  wait_for_copies<0>();
  auto to_come = [&](int s) {
    return larger_of_each(larger_of_each(exponents_of_dy(s), exponents_of_dy(s + 1)),
                          larger_of_each(exponents_of_dy(s + 2), exponents_of_dy(s + 3)));
  };
  u32 last_seen = exponents(max(size_of(part[0]), size_of(dc[0])), max(size_of(part[1]), size_of(dc[1])));
  u32 seen = larger_of_each(last_seen, to_come(0)), rows = 0;
  over_lanes(seen, rows);
  meet_cluster();  // all barriers are there, and all memory is
  if (g < CTAS) store_there(own_maxima + 2 * MAXIMA + maxima_window, seen);
  meet_cluster();
  rows = sent_in(2);
  over_lanes(seen, rows);

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
      wait(received + other * buffer, s / 2 & 1);
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

  dz += ((size_t)replica * steps + steps - 1) * states + place;
  scales += ((size_t)replica * steps + steps - 1) * B + row;
  const bool notes[2] = {unit == 0 && row < B, unit == 0 && row + 1 < B};
  u32 top = 0;

#pragma unroll 1
  for (int s = 0; s < steps; s++) {
    const u32 buffer = s & 1;
    // All that does not need dh: what the last steps say of sizes, and the factors. With these dc += dh through_c, and
    // dz is dc or dh times the rest.
    const float tanh_c[2] = {tanh_of(c[0]), tanh_of(c[1])};
    wait_for_copies<AHEAD - 2>();
    const uint4 kept = load_four(own_gates + s % AHEAD * 16 * THREADS);
    const float2 before = floats_of(load(own_cells + s % AHEAD * 4 * THREADS));
    const u32 at = own_dy + s % 8 * 8 * THREADS;
    const float dy_now[2] = {load_float(at), load_float(at + 4 * THREADS)};
    const u32 turn = s / 2 % 2;  // for the maxima of this step
    if (buffer == 0) {
      u32 sent = sent_in(turn ^ 1);  // in step s - 2
      seen = larger_of_each(last_seen, to_come(s));
      over_lanes(seen, sent);
      if (s > 0) rows = sent;
    }
    float dh[2], through_c[2], to_i[2], to_f[2], to_g[2], to_o[2], forget[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const u32 i_f = j ? kept.z : kept.x, g_o = j ? kept.w : kept.y;
      const float i = sigmoid_of(i_f, 0x7610), f = sigmoid_of(i_f, 0x7632), o = sigmoid_of(g_o, 0x7632);
      const float g = fmaf(2.f, sigmoid_of(g_o, 0x7610), -1.f);  // a tanh
      c[j] = j ? before.y : before.x;
      through_c[j] = o * fmaf(-tanh_c[j], tanh_c[j], 1.f);
      to_i[j] = g * slope_of(i);
      to_f[j] = c[j] * slope_of(f);
      to_g[j] = i * fmaf(-g, g, 1.f);
      to_o[j] = tanh_c[j] * slope_of(o);
      forget[j] = f;
      dh[j] = part[j] + dy_now[j];
      // So that the compiler doesn't move it behind the wait.
      asm volatile("" : "+f"(through_c[j]), "+f"(to_i[j]), "+f"(to_f[j]), "+f"(to_g[j]), "+f"(to_o[j]), "+f"(dh[j]));
    }
    fetch(s + AHEAD - 1);
    const float scale[2] = {scale_for(rows & 0xffff), scale_for(rows >> 16)};

    if (s > 0) receive(dh, s - 1);
    if (g < CTAS && buffer == 0) {
      if (CTAS > 1)
        send(own_maxima + turn * MAXIMA + maxima_window, seen, received + maxima_window);
      else
        store(own_maxima + turn * MAXIMA, seen);
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
    float sums[TILES][CHAINS][4] = {};
#pragma unroll
    for (int k = 0; k < SLICES; k++)
#pragma unroll
      for (int m = 0; m < TILES; m++)
        multiply_halves(sums[m][k % CHAINS], w[m][k], k & 1 ? b[k / 2].z : b[k / 2].x,
                        k & 1 ? b[k / 2].w : b[k / 2].y);
    // While that is on its way: nobody sends to the other barrier again before it has our parts of this step.
    if (CTAS > 1 && s > 0 && lane == 0) expect(received + other * (buffer ^ 1), messages(buffer ^ 1));
#pragma unroll
    for (int i = 0; i < CTAS; i++) {  // to the CTA that is i + 1 after this one; the last is this one
      float x = 0.f, y = 0.f;
#pragma unroll
      for (int n = 0; n < CHAINS; n++) x += sums[i / 2][n][i % 2 * 2], y += sums[i / 2][n][i % 2 * 2 + 1];
      x *= inverse(scale[0]);
      y *= inverse(scale[1]);
      if (i == CTAS - 1)
        part[0] = x, part[1] = y;
      else
        send(own_slot + buffer * SLOTS + i * SLOT + window[i], x, y, received + other * buffer + window[i]);
    }

    if (mine[0]) dz[0] = scaled[0];
    if (mine[1]) dz[H] = scaled[1];
    dz -= states;
#pragma unroll
    for (int j = 0; j < 2; j++)
      if (notes[j]) {
        scales[j] = inverse(scale[j]);
        top = max(top, __float_as_uint(inverse(scale[j])));
      }
    scales -= B;

    last_seen = exponents(max(size_of(dh[0]), size_of(dc[0])), max(size_of(dh[1]), size_of(dc[1])));
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
