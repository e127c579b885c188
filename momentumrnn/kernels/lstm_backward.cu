// The backward pass of an LSTM over the steps from `first` to `last`, in one launch.
//
// WHO OWNS WHAT. As in the forward pass: a cluster runs 8 rows, a warp owns 8 units, and lane 4 g + q unit g in rows 2 q
// and 2 q + 1, whose dc stays in a register.
//
// A STEP. From dh of its units a thread makes dz, the gradients of the four gates. dh of the step before is Uᵀ dz over
// all units. Each CTA gathers the dz of its own units in shared memory, with one barrier inside the CTA. It multiplies
// them with its columns of Uᵀ, which its warps hold in registers, and so has a part of dh for all units. These parts, in
// float32, go to the owners, who add them up. Each thread sends to the same thread of each other CTA, since the rows of a
// warp's A matrices are the units that the warps of its number own. Waiting for a warp's parts is the only other
// synchronisation. There are two slots and two barriers. They are enough: a warp sends the parts of step s + 2 only after
// it has those of step s + 1 from the receiver, who by then had read those of step s.
//
// RANGE. dz enters the product, and goes to memory, as halves. Gradients have no natural size, so each row has its own
// scale S, a power of two, the same in the whole cluster. Every second step the warps find the largest |dh| and |dc| of
// their units, and |dy| of the steps to come. They send these along with the parts. Two and three steps later S is one over
// the largest of all. That leaves room for gradients to grow by 2^15 within five steps, and full precision down to 2^-14 of
// the largest. If dz outgrows a half all the same, it becomes inf, never a wrong number.
//
// FINE, PACKED, EXTRAPOLATED: as in the forward pass. FINE: gates and c are saved in float32, and dz is two halves, high +
// low / 2048, as Uᵀ is. PACKED: a row joins at its own last step. There the given dh and dc are added, and at later steps the
// row has no gradient. If the row's last step comes after the steps of this launch, it joins at the first step of this pass.
// If it comes before them, the given gradients are passed on. EXTRAPOLATED: with dg the gradients of the gates, dz gets
// (1 + mu) dg, and dz of the step before gets -mu dg.
//
// Compiled for CTAS = 1 to 8; FINE, PACKED, EXTRAPOLATED = 0 or 1. For the weights' gradients `dz` and `scales` are enough:
// see `pack_gradient_operand`.

constexpr int THREADS = 32 * WARPS;
constexpr int UNITS = TILE * WARPS;      // of a CTA
constexpr int TILES = (CTAS + 1) / 2;    // of 16 rows: 8 units of two CTAs each
constexpr int SLICES = UNITS / 4;        // of 16 of a CTA's gates
constexpr int CHAINS = TILES == 1 ? 4 : FINE ? 1 : 2;  // of products of a tile that don't wait for each other
constexpr int ROW = 4 * UNITS + 8;             // of dz in shared memory, in halves
constexpr int PARTS = FINE + 1;           // of a number
constexpr u32 GATHERED = TILE * ROW * 2;  // bytes of a part of dz
constexpr u32 BUFFER = PARTS * GATHERED;
constexpr u32 LOW_BYTES = FINE * WARPS * TILES * SLICES * 512;  // of Uᵀ_low
constexpr u32 SLOT = 8 * THREADS;        // bytes of the parts from one CTA
constexpr u32 SLOTS = (CTAS > 1 ? CTAS - 1 : 1) * SLOT;
constexpr u32 MAXIMA = CTAS * WARPS * 16;    // bytes: 8 exponents from each warp of the cluster
// Bytes that a warp receives in a step. Even steps, of buffer 0, bring the maxima as well.
__device__ inline u32 bytes_received(u32 buffer) { return (CTAS - 1) * 256 + (buffer == 0 ? CTAS * 16 : 0); }
constexpr int AHEAD = 4 / PARTS;         // steps whose gates and cells have room; dy is 3 steps further ahead
// PARTS (16 bytes of gates and 4 of cells) for AHEAD steps, and 8 of dy for 8 steps.
static_assert(INPUT_BYTES == AHEAD * PARTS * 20 + 8 * 8, "INPUT_BYTES of common.cu are those of the inputs on their way");
constexpr bool BY_TWO = CTAS < 7 || FINE + PACKED == 0;  // whether even and odd steps are compiled apart

__device__ inline float slope_of(float sigmoid) { return fmaf(-sigmoid, sigmoid, sigmoid); }
__device__ inline u32 size_of(float x) { return __float_as_uint(x) & 0x7fffffff; }
// S for a largest gradient with this exponent.
__device__ inline float scale_for(u32 exponent) {
  const int e = 254 - (int)exponent;
  return __uint_as_float((u32)(e < 17 ? 17 : e > 237 ? 237 : e) << 23);
}
__device__ inline float inverse(float scale) { return __uint_as_float(0x7f000000 - __float_as_uint(scale)); }

// Small clusters should fit three CTAs to a multiprocessor, so that replicas fill it.
extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, CTAS <= 4 && !FINE && !PACKED && !EXTRAPOLATED ? 3 : 1)
    lstm_backward(const uint4 *__restrict__ weights,      // (R, CTA, warp, tile, slice, lane), see `pack_backward`
                  const uint4 *__restrict__ low,          // the same of Uᵀ_low
                  const uint4 *__restrict__ saved_gates,  // as the forward pass left them
                  const u32 *__restrict__ saved_cells,
                  const float *__restrict__ dy,           // (R, N, H) or null
                  const float *__restrict__ last_dh,      // (R, B, H), or null: 0
                  const float *__restrict__ last_dc,
                  const float *__restrict__ last_dz,      // (R, B, 4, H), or null: 0
                  const float *__restrict__ j0,           // (R, B)
                  uint2 *__restrict__ dz,                 // (R, room, H): S dz of i, f, g, o, for the rows of these steps
                  uint2 *__restrict__ dz_low,             // the same of what the halves left, times LOW_SCALE
                  float *__restrict__ scales,             // (R, room): 1 / S
                  u32 *__restrict__ largest,              // (R): raised to the largest 1 / S, as the bits of a float
                  float *__restrict__ first_dh,           // (R, B, H)
                  float *__restrict__ first_dc,
                  float *__restrict__ first_dz,           // (R, B, 4, H)
                  const int *__restrict__ begins, const int *__restrict__ lengths, const int *__restrict__ starts,
                  int T, int first, int last, int B, int H, int N, int tile_steps, int room, int every,
                  // room: rows for which a chunk has memory; own_weight, own_j: 1, or 0 if all replicas share one
                  int own_weight, int own_j) {
  __shared__ __align__(128) unsigned char gathered[2 * BUFFER];
  __shared__ __align__(128) unsigned char slots[2 * SLOTS];
  __shared__ __align__(128) unsigned char maxima[3 * MAXIMA];
  extern __shared__ __align__(128) unsigned char inputs[];  // INPUT_BYTES THREADS, then LOW_BYTES
  __shared__ __align__(8) u64 barriers[2 * WARPS];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const u32 rank = cluster_rank();
  const int tile = blockIdx.x / CTAS, tiles = gridDim.x / CTAS, replica = blockIdx.y;
  const int unit = rank * UNITS + warp * 8 + g, row = tile * TILE + 2 * q;
  const bool mine[2] = {unit < H && row < B, unit < H && row + 1 < B};
  const size_t state_size = (size_t)B * H, place = (size_t)replica * state_size + (size_t)row * H + unit;
  const int length = PACKED ? lengths[tile * TILE] : T, start = PACKED ? starts[tile] : tile * T;
  const int ends[2] = {PACKED && row < B ? lengths[row] : T, PACKED && row + 1 < B ? lengths[row + 1] : T};
  const int end = min(last, length), steps = end - first;
  // The step of this pass at which the gradients of a row begin.
  const int joins[2] = {end - min(ends[0], last), end - min(ends[1], last)};
  // What the next step of this pass adds to its dz: -mu dg of this step, or at first the given last_dz. Only if EXTRAPOLATED.
  float pending[2][4] = {};
  const size_t gates_place = ((size_t)replica * B + row) * 4 * H + unit;
  auto given_dh = [&](int n) { return mine[n] && last_dh ? last_dh[place + n * H] : 0.f; };
  auto given_dc = [&](int n) { return mine[n] && last_dc ? last_dc[place + n * H] : 0.f; };
  auto given_dz = [&](int n, int gate) { return mine[n] && last_dz ? last_dz[gates_place + (n * 4 + gate) * H] : 0.f; };
  auto store_first_gradients = [&](int n, float dh, float dc, const float(&dz)[4]) {
    if (!mine[n]) return;
    first_dh[place + n * H] = dh;
    first_dc[place + n * H] = dc;
#pragma unroll
    for (int gate = 0; gate < 4 && EXTRAPOLATED; gate++) first_dz[gates_place + (n * 4 + gate) * H] = dz[gate];
  };
  auto pass_given_gradients_on = [&](int n) {
    const float dz[4] = {given_dz(n, 0), given_dz(n, 1), given_dz(n, 2), given_dz(n, 3)};
    store_first_gradients(n, given_dh(n), given_dc(n), dz);
  };
  if (PACKED && steps <= 0) {  // the whole cluster
    pass_given_gradients_on(0);
    pass_given_gradients_on(1);
    return;
  }
  // The first row of step `first`, and of any step, in the batch's list of rows.
  const int rows_before = PACKED ? begins[first] : first * B;
  auto first_row_of = [&](int t) { return (size_t)(PACKED ? begins[t < 0 ? 0 : t] : t * B); };

  // Uᵀ stays in registers for the whole pass. Tile m has 8 units of CTA rank + 2 m + 1 and 8 of CTA rank + 2 m + 2,
  // modulo CTAS.
  uint4 w[TILES][SLICES];
  weights += (((size_t)replica * own_weight * CTAS + rank) * WARPS + warp) * TILES * SLICES * 32 + lane;
#pragma unroll
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int k = 0; k < SLICES; k++) w[m][k] = weights[(m * SLICES + k) * 32];
  const u32 low_at = shared_address(inputs) + INPUT_BYTES * THREADS + (warp * TILES * SLICES * 32 + lane) * 16;
  if (FINE) {
    low += (((size_t)replica * own_weight * CTAS + rank) * WARPS + warp) * TILES * SLICES * 32 + lane;
    for (int i = 0; i < TILES * SLICES; i++) store(low_at + i * 512, low[i * 32]);
  }

  // The parts of step s arrive on barrier s % 2; the other barrier is 8 WARPS bytes further. Before the first step they are
  // zeros, and the first wait passes at once.
  const u32 received = shared_address(barriers) + 8 * warp, other = 8 * WARPS;
  if (lane == 0) {
    create_barrier(received);
    create_barrier(received + other);
    publish_barriers();
    expect(received, bytes_received(0));
  }

  // Inputs on their way: gates 16 bytes a thread, cells 4, FINE twice that; dy two times 4.
  const u32 gates_at = shared_address(inputs) + 16 * thread;
  const u32 cells_at = shared_address(inputs) + AHEAD * PARTS * 16 * THREADS + 4 * PARTS * thread;
  const u32 dy_at = shared_address(inputs) + AHEAD * PARTS * 20 * THREADS + 4 * thread;
  for (int i = 0; i < INPUT_BYTES / 4; i++) store(shared_address(inputs) + (i * THREADS + thread) * 4, 0);
  for (int i = 0; i < SLOTS / 4 / THREADS; i++) store(shared_address(slots) + SLOTS + (i * THREADS + thread) * 4, 0);
  __syncthreads();
  constexpr int BLOCKS = CTAS * WARPS * 32 * PARTS;
  const int number = rank * WARPS + warp;
  saved_gates += ((size_t)replica * tile_steps + start + end - 1) * BLOCKS + number * 32 * PARTS + lane;
  saved_cells += ((size_t)replica * (tile_steps + tiles) + start + tile + end) * BLOCKS + (number * 32 + lane) * PARTS;
  const float2 last_c = FINE ? *(const float2 *)saved_cells : floats_of(*saved_cells);
  float c[2] = {last_c.x, last_c.y};
  saved_cells -= BLOCKS;
  const bool wanted[2] = {dy && mine[0], dy && mine[1]};
  dy += (size_t)replica * N * H + (size_t)row * H + unit + (PACKED ? 0 : (end - 1) * state_size);
  auto fetch_dy = [&](int s) {
    const float *from = PACKED ? dy + first_row_of(end - 1 - s) * H : dy;
    copy_later<4>(dy_at + s % 8 * 8 * THREADS, from, s < steps && s >= joins[0] && wanted[0]);
    copy_later<4>(dy_at + s % 8 * 8 * THREADS + 4 * THREADS, from + H, s < steps && s >= joins[1] && wanted[1]);
    if (!PACKED) dy -= state_size;
  };
  auto fetch = [&](int s) {
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      copy_later<16>(gates_at + (s % AHEAD * PARTS + part) * 16 * THREADS, saved_gates + part * 32, s < steps);
    copy_later<4 * PARTS>(cells_at + s % AHEAD * 4 * PARTS * THREADS, saved_cells, s < steps);
    saved_gates -= BLOCKS;
    saved_cells -= BLOCKS;
    fetch_dy(s + 3);
    end_of_copies();
  };
  for (int s = 0; s < 3; s++) fetch_dy(s);
  for (int s = 0; s < AHEAD - 1; s++) fetch(s);

  float part[2] = {0.f, 0.f}, dc[2] = {0.f, 0.f}, j[2] = {0.f, 0.f};
  u32 largest_dz[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < 2; n++) {
    if (EXTRAPOLATED && mine[n]) {
      j[n] = (float)(((int)j0[replica * own_j * B + row + n] + end - 1) % every);
#pragma unroll
      for (int gate = 0; gate < 4; gate++) largest_dz[n] = max(largest_dz[n], size_of(given_dz(n, gate)));
    }
    if (!PACKED) {
      part[n] = given_dh(n);
      dc[n] = given_dc(n);
#pragma unroll
      for (int gate = 0; gate < 4 && EXTRAPOLATED; gate++) pending[n][gate] = given_dz(n, gate);
    }
  }

  // The largest exponents of two rows, in one register: of this thread, of its warp, of the cluster.
  const u32 maxima_at = shared_address(maxima);
  auto exponents = [](u32 size0, u32 size1) { return size0 >> 23 | size1 >> 23 << 16; };
  auto maxima_of = [&](u32 turn) {
    u32 e = 0;
#pragma unroll
    for (int i = 0; i < (CTAS * WARPS + 7) / 8; i++)
      if (8 * i + g < CTAS * WARPS) e = larger_of_each(e, load(maxima_at + turn * MAXIMA + (8 * i + g) * 16 + 4 * q));
    return e;
  };
  auto over_lanes = [](u32 &a, u32 &b) {  // over the lanes of this q, for a and b at once
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
      const u32 other_a = __shfl_xor_sync(~0u, a, i), other_b = __shfl_xor_sync(~0u, b, i);
      a = larger_of_each(a, other_a);
      b = larger_of_each(b, other_b);
    }
  };
  const u32 warp_maxima_at = maxima_at + (rank * WARPS + warp) * 16 + 4 * q;
  const u32 maxima_window = on_cta(maxima_at, g < CTAS ? g : 0) - maxima_at;  // lane 4 g + q sends to CTA g

  // dy of two steps, from s on, of two rows.
  struct TwoSteps {
    float dy[2][2];
  };
  auto load_two = [&](int s) {
    TwoSteps two;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 at = dy_at + (s + i) % 8 * 8 * THREADS;
      two.dy[i][0] = load_float(at), two.dy[i][1] = load_float(at + 4 * THREADS);
    }
    return two;
  };
  auto exponents_of = [&](const TwoSteps &two) {
    return exponents(max(size_of(two.dy[0][0]), size_of(two.dy[1][0])), max(size_of(two.dy[0][1]), size_of(two.dy[1][1])));
  };
  wait_for_copies<0>();
  TwoSteps dy_here = load_two(0);
  // The scale of a row allows for its given gradients from the first step on. Until they join, the row has no other
  // gradient that could lose bits.
  const u32 will_join = exponents(max(max(size_of(given_dh(0)), size_of(given_dc(0))), largest_dz[0]),
                                  max(max(size_of(given_dh(1)), size_of(given_dc(1))), largest_dz[1]));
  u32 last_seen = will_join;
  u32 seen = larger_of_each(last_seen, larger_of_each(exponents_of(dy_here), exponents_of(load_two(2)))), row_exponents = 0;
  over_lanes(seen, row_exponents);
  meet_cluster();  // all barriers are there, and all memory is
  if (g < CTAS) store_there(warp_maxima_at + 2 * MAXIMA + maxima_window, seen);
  meet_cluster();
  row_exponents = maxima_of(2);
  over_lanes(seen, row_exponents);

  // Where the parts go: to the slot of this thread in each other CTA.
  const u32 slot_at = shared_address(slots) + 8 * thread;
  u32 window[CTAS > 1 ? CTAS - 1 : 1];
#pragma unroll
  for (int i = 0; i < CTAS - 1; i++) window[i] = on_cta(slot_at, (rank + i + 1) % CTAS) - slot_at;
  const u32 to = shared_address(gathered) + (2 * q * ROW + 4 * (warp * 8 + g)) * 2;
  const u32 from = shared_address(gathered) + ((lane % 8) * ROW + 8 * (lane / 8)) * 2;

  auto receive = [&](float(&dh)[2], int s) {  // the parts sent in step s
    const u32 buffer = s & 1;
    if (CTAS > 1) {
      wait(received + other * buffer, s >> 1 & 1);
      float2 parts[CTAS > 1 ? CTAS - 1 : 1];
#pragma unroll
      for (int i = 0; i < CTAS - 1; i++) parts[i] = load_floats(slot_at + buffer * SLOTS + i * SLOT);
#pragma unroll
      for (int d = 1; d < CTAS - 1; d *= 2)
#pragma unroll
        for (int i = 0; i + d < CTAS - 1; i += 2 * d) parts[i].x += parts[i + d].x, parts[i].y += parts[i + d].y;
      dh[0] += parts[0].x;
      dh[1] += parts[0].y;
    }
  };

  // This row's place in the step that comes next; pointers, since indices cost more in the loop.
  const size_t last_row = (size_t)replica * room + row - rows_before + first_row_of(end - 1);
  uint2 *to_dz = dz + last_row * H + unit, *to_low = dz_low + last_row * H + unit;
  float *to_scale = scales + last_row;
  const bool stores_scale[2] = {unit == 0 && row < B, unit == 0 && row + 1 < B};
  u32 largest_inverse_scale = 0;
  TwoSteps dy_coming = dy_here;
  float scale[2];
  uint2 scaled[2], scaled_low[2];

  auto run = [&](int s, u32 buffer) {
    // stage 0: factors, scales
    // What does not need dh: the scale of each row, and the factors from dh and dc to dz. dc += dh through_c. dz of i, f
    // and g is dc times to_i, to_f and to_g; dz of o is dh times to_o.
    const float tanh_c[2] = {tanh_of(c[0]), tanh_of(c[1])};
    wait_for_copies<AHEAD - 2>();
    uint4 saved[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++) saved[i] = load_four(gates_at + (s % AHEAD * PARTS + i) * 16 * THREADS);
    const u32 cells_of_step = cells_at + s % AHEAD * 4 * PARTS * THREADS;
    const float2 before = FINE ? load_floats(cells_of_step) : floats_of(load(cells_of_step));
    const float dy_now[2] = {buffer ? dy_here.dy[1][0] : dy_here.dy[0][0], buffer ? dy_here.dy[1][1] : dy_here.dy[0][1]};
    const u32 turn = s / 2 % 2;  // for the maxima of this step
    if (buffer == 0) {
      u32 sent = maxima_of(turn ^ 1);  // in step s - 2
      dy_coming = load_two(s + 2);
      seen = larger_of_each(last_seen, larger_of_each(exponents_of(dy_here), exponents_of(dy_coming)));
      over_lanes(seen, sent);
      row_exponents = s > 0 ? sent : row_exponents;
    } else {
      dy_here = dy_coming;
    }
    float dh[2], through_c[2], to_i[2], to_f[2], to_g[2], to_o[2], forget[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const u32 i_f = n ? saved[0].z : saved[0].x, g_o = n ? saved[0].w : saved[0].y;
      float i = sigmoid_of(i_f, 0x7610), f = sigmoid_of(i_f, 0x7632), o = sigmoid_of(g_o, 0x7632);
      float g = fmaf(2.f, sigmoid_of(g_o, 0x7610), -1.f);  // a tanh
      if (FINE) {
        const uint4 &own = saved[FINE ? n : 0];
        i = __uint_as_float(own.x), f = __uint_as_float(own.y), g = __uint_as_float(own.z), o = __uint_as_float(own.w);
      }
      c[n] = n ? before.y : before.x;
      through_c[n] = o * fmaf(-tanh_c[n], tanh_c[n], 1.f);
      to_i[n] = g * slope_of(i);
      to_f[n] = c[n] * slope_of(f);
      to_g[n] = i * fmaf(-g, g, 1.f);
      to_o[n] = tanh_c[n] * slope_of(o);
      forget[n] = f;
      dh[n] = part[n] + dy_now[n];
      // So that the compiler doesn't move it behind the wait.
      asm volatile("" : "+f"(through_c[n]), "+f"(to_i[n]), "+f"(to_f[n]), "+f"(to_g[n]), "+f"(to_o[n]), "+f"(dh[n]));
    }
    fetch(s + AHEAD - 1);
    scale[0] = scale_for(row_exponents & 0xffff), scale[1] = scale_for(row_exponents >> 16);
    asm volatile("" : "+f"(scale[0]), "+f"(scale[1]));

    // stage 1: receive, add
    receive(dh, s - 1);
    if (buffer == 0) {
      if (CTAS > 1)
        send(warp_maxima_at + turn * MAXIMA + maxima_window, seen, received + maxima_window, g < CTAS);
      else if (g == 0)
        store(warp_maxima_at + turn * MAXIMA, seen);
    }
    // Discard what was computed after the last step of a row; its gradient begins here.
    if (PACKED)
#pragma unroll
      for (int n = 0; n < 2; n++)
        if (s <= joins[n]) {
          const bool now = s == joins[n];
          dh[n] = now ? dy_now[n] + given_dh(n) : 0.f;
          dc[n] = now ? given_dc(n) : 0.f;
#pragma unroll
          for (int gate = 0; gate < 4 && EXTRAPOLATED; gate++) pending[n][gate] = now ? given_dz(n, gate) : 0.f;
        }
    // stage 2: dz
#pragma unroll
    for (int n = 0; n < 2; n++) {
      dc[n] = fmaf(dh[n], through_c[n], dc[n]);
      const float dc_scaled = dc[n] * scale[n], dh_scaled = dh[n] * scale[n];
      float d[4] = {dc_scaled * to_i[n], dc_scaled * to_f[n], dc_scaled * to_g[n], dh_scaled * to_o[n]};
      if (EXTRAPOLATED) {
        const float ahead = j[n] * reciprocal(j[n] + 3.f);
#pragma unroll
        for (int gate = 0; gate < 4; gate++) {
          const float dg = d[gate];
          d[gate] = fmaf(scale[n], pending[n][gate], fmaf(ahead, dg, dg));
          pending[n][gate] = -ahead * inverse(scale[n]) * dg;
        }
        j[n] = j[n] == 0.f ? (float)(every - 1) : j[n] - 1.f;
      }
      scaled[n].x = half2_of(d[0], d[1]);
      scaled[n].y = half2_of(d[2], d[3]);
      store(to + buffer * BUFFER + n * ROW * 2, scaled[n].x, scaled[n].y);
      if (FINE) {
        const float2 i_f = floats_of(scaled[n].x), g_o = floats_of(scaled[n].y);
        scaled_low[n].x = half2_of((d[0] - i_f.x) * LOW_SCALE, (d[1] - i_f.y) * LOW_SCALE);
        scaled_low[n].y = half2_of((d[2] - g_o.x) * LOW_SCALE, (d[3] - g_o.y) * LOW_SCALE);
        store(to + buffer * BUFFER + GATHERED + n * ROW * 2, scaled_low[n].x, scaled_low[n].y);
      }
    }
    // stage 3: barrier
    __syncthreads();
    // stage 4: products
    float sums[TILES][CHAINS][4] = {}, low_sums[FINE ? TILES : 1][4] = {};
    uint4 b[SLICES / 2];
#pragma unroll
    for (int k = 0; k < SLICES / 2; k++) b[k] = load_matrices(from + buffer * BUFFER + k * 64);
    auto first_of = [](const uint4 &pair, int k) { return k & 1 ? pair.z : pair.x; };
    auto second_of = [](const uint4 &pair, int k) { return k & 1 ? pair.w : pair.y; };
#pragma unroll
    for (int k = 0; k < SLICES; k++) {
#pragma unroll
      for (int m = 0; m < TILES; m++)
        multiply_halves(sums[m][k % CHAINS], w[m][k], first_of(b[k / 2], k), second_of(b[k / 2], k));
      if (FINE) {
        const uint4 b_low = load_matrices(from + buffer * BUFFER + GATHERED + k / 2 * 64);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          float(&more)[4] = low_sums[FINE ? m : 0];
          multiply_halves(more, w[m][k], first_of(b_low, k), second_of(b_low, k));
          multiply_halves(more, load_four(low_at + (m * SLICES + k) * 512), first_of(b[k / 2], k), second_of(b[k / 2], k));
        }
      }
    }
    // Arm the other barrier while the products run. Nobody sends to it before it has our parts of this step.
    if (CTAS > 1 && lane == 0) expect(received + other * (buffer ^ 1), bytes_received(buffer ^ 1));
    // stage 5: send
#pragma unroll
    for (int i = 0; i < CTAS; i++) {  // to the CTA that is i + 1 after this one; the last is this one
      float x = sums[i / 2][0][i % 2 * 2], y = sums[i / 2][0][i % 2 * 2 + 1];
#pragma unroll
      for (int n = 1; n < CHAINS; n++) x += sums[i / 2][n][i % 2 * 2], y += sums[i / 2][n][i % 2 * 2 + 1];
      if (FINE) {
        const float(&more)[4] = low_sums[FINE ? i / 2 : 0];
        x = fmaf(1.f / LOW_SCALE, more[i % 2 * 2], x);
        y = fmaf(1.f / LOW_SCALE, more[i % 2 * 2 + 1], y);
      }
      x *= inverse(scale[0]);
      y *= inverse(scale[1]);
      if (i == CTAS - 1)
        part[0] = x, part[1] = y;
      else
        send(slot_at + buffer * SLOTS + i * SLOT + window[i], x, y, received + other * buffer + window[i]);
    }

    last_seen = exponents(max(size_of(dh[0]), size_of(dc[0])), max(size_of(dh[1]), size_of(dc[1])));
    if (PACKED) {
      // What counts beside dy: before the step at which a row joins, its given gradients; in that step these, dh and dc; later
      // dh and dc.
      const u32 counts_given = (s <= joins[0] ? 0xffff : 0) | (s <= joins[1] ? 0xffff0000 : 0);
      const u32 counts_only_given = (s < joins[0] ? 0xffff : 0) | (s < joins[1] ? 0xffff0000 : 0);
      last_seen = larger_of_each(last_seen & ~counts_only_given, will_join & counts_given);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) dc[n] *= forget[n];
  };
  // What nobody waits for, behind a branch: see the forward pass.
  auto put = [&](int s) {
    // stage 6: stores
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const bool now = !PACKED || s >= joins[n];
      if (mine[n] && now) {
        to_dz[n * H] = scaled[n];
        if (FINE) to_low[n * H] = scaled_low[n];
      }
      if (stores_scale[n] && now) {
        to_scale[n] = inverse(scale[n]);
        largest_inverse_scale = max(largest_inverse_scale, __float_as_uint(inverse(scale[n])));
      }
    }
    const size_t rows_back = PACKED ? first_row_of(end - 1 - s) - first_row_of(end - 2 - s) : B;
    const size_t elements_back = PACKED ? rows_back * H : state_size;
    to_dz -= elements_back;
    to_scale -= rows_back;
    if (FINE) to_low -= elements_back;
  };
  auto goes_on = [&](int s, u32 buffer) {
    run(s, buffer);
    if (s + 1 == steps) return false;
    put(s);
    return true;
  };
#pragma unroll 1
  for (int s = 0; goes_on(s, BY_TWO ? 0 : s & 1); s++)
    if (BY_TWO && !goes_on(++s, 1)) break;
  put(steps - 1);
  if (largest_inverse_scale) atomicMax(largest + replica, largest_inverse_scale);

  receive(part, steps - 1);  // nobody leaves while others may still write here
#pragma unroll
  for (int n = 0; n < 2; n++)
    if (PACKED && joins[n] >= steps)
      pass_given_gradients_on(n);
    else
      store_first_gradients(n, part[n], dc[n], pending[n]);
}
