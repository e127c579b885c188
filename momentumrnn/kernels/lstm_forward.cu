// The forward pass of an LSTM: all time steps in one launch.
//
// WHO OWNS WHAT. A cluster of CTAS thread blocks (CTAs) runs 8 rows of the batch. Each of the 4 warps of a CTA owns 8 units
// with all four gates, and in a warp
//
//     lane = 4 g + q:   unit g of the warp,   rows 2 q and 2 q + 1 of the tile
//
// so that i, f, g, o and c of a unit and row meet in one thread, which keeps c in a register for the whole
// sequence. The weights of a warp's 32 gates stay in its registers too: they are read once.
//
// A STEP. z = U h is a product of tensor cores: A = U from registers, B = h (all units, 8 rows) from shared
// memory, where every CTA has its own copy in two buffers. A warp sends its 8 units x 8 rows of h_t to all CTAs
// by stores that count their bytes on the receiver's barrier. Waiting on that barrier is the only synchronisation.
// Two buffers are enough: whoever sends h_t has received all of h_{t-1}. So all warps have sent h_{t-1}, and before that
// they have read h_{t-2}. Even and odd steps are compiled apart, each with its buffer, where registers suffice.
//
// FINE. A number as two halves, h = high + low / 2048, has 22 bits. With FINE, U and h come in both parts, and z is
// U_high h_high + (U_high h_low + U_low h_high) / 2048, the second sum apart from the first. U_low is in shared memory, in
// the order of registers.
//
// PACKED. Sequences of unequal length, longest first. A tile runs as many steps as its first row. Rows that have ended go
// on with whatever input is there: no other row sees them, and the backward pass ignores what they saved.
//
// EXTRAPOLATED. The gates are z + mu (z - z of the step before), mu = j / (j + 3), j counting modulo `every`.
//
// MOMENTUM_FORM. A momentum in gate space is computed here, from a = W x + b_ih and v = decay v + gain a. z starts as the
// drive: v (1), v / sqrt(n + eps^2) (2) or v / (sqrt(n) + eps) (3). Here n = beta n + (1 - beta) a^2. The kernel holds
// s = n / (1 - beta) = beta s + a^2 instead of n. The momentum is one step ahead: it is computed while h is on its way to
// other CTAs. v and s are saved every SPACING steps for the backward pass.
//
// INPUTS. With INPUT_SLICES > 0 the same product also computes W x + b, by 16 INPUT_SLICES more columns in bfloat16: see
// pack_input. With INPUT_SLICES = 0 the kernel reads W x + b, or a given drive, as (N, H, 4) in float32.
//
// The gates use z' = -log2(e) z, or -2 log2(e) z for g: sigmoid(z) = 1 / (1 + 2^z') and tanh(z) = 2 / (1 + 2^z') - 1. The
// weights that this kernel multiplies by carry that factor. A drive that the kernel reads gets it in `run`. Under a momentum
// in gate space W and b_ih lack it, and the drive gets it in `advance`.
//
// Compiled for CTAS = 1 to 8, INPUT_SLICES = 0 to 3, MOMENTUM_FORM = 0 to 3, and TABLE (whether decays are those of a table,
// not of channels), KEEP (whether it saves what the backward pass needs), FINE, PACKED, EXTRAPOLATED = 0 or 1. Any H up to 32
// CTAS: units beyond H have zero weights.

constexpr int THREADS = 32 * WARPS;
constexpr int UNITS = TILE * WARPS;     // of a CTA
constexpr int WIDTH = UNITS * CTAS;     // units of the cluster
constexpr int SLICES = WIDTH / 16;      // of U, 16 columns each
constexpr u32 BLOCK = 128;              // bytes of h of a warp: 8 rows of 8 units
constexpr u32 HIDDEN = WIDTH / 8 * BLOCK;  // of one part of h
constexpr int PARTS = FINE + 1;            // of a number
constexpr u32 BUFFER = PARTS * HIDDEN;     // bytes of h
// Chains of products of high parts, for a gate, that don't wait for each other. FINE has further chains, of low parts.
constexpr int CHAINS = FINE ? 1 : 2;
constexpr u32 LOW_BYTES = FINE * WARPS * SLICES * 1024;  // of U_low
constexpr int AHEAD = 4;                // steps whose inputs have room: this one, and those on their way
constexpr int PIECES = INPUT_SLICES ? INPUT_SLICES : 2;      // of a thread's input of a step: slices, or rows
constexpr u32 PIECE = (INPUT_SLICES ? 8 : 16) * THREADS;     // bytes of that piece of all threads
// Whether even and odd steps are compiled apart.
constexpr bool BY_TWO =
    CTAS < 7 || FINE + PACKED + EXTRAPOLATED + (MOMENTUM_FORM == 0 ? 0 : INPUT_SLICES < 2 ? 1 : 2) < 2;

// The four gates of a unit from their z', as sigmoids 1 / (1 + 2^z'), with one division; tanh(g) is 2 g - 1 of this g.
struct Gates {
  float i, f, g, o;
};
__device__ inline Gates gates_of(float i, float f, float g, float o) {
  // With z' of 30 a gate is 2^-30, which is as good as 0. The product of four terms of 2^30 does not overflow.
  const float a = 1.f + exp2_fast(smaller(i, 30.f)), b = 1.f + exp2_fast(smaller(g, 30.f));
  const float c = 1.f + exp2_fast(smaller(f, 30.f)), d = 1.f + exp2_fast(smaller(o, 30.f));
  const float ab = a * b, cd = c * d, all = reciprocal(ab * cd);
  const float over_ab = all * cd, over_cd = all * ab;
  return {over_ab * b, over_cd * d, over_ab * a, over_cd * c};
}
// tanh with a small relative error. The absolute error of tanh_of, 1e-7, is too much where x is small.
__device__ inline float fine_tanh(float x) {
  const float s = x * x;
  float p = fmaf(-5.70498872745e-3f, s, 2.06390887954e-2f);
  p = fmaf(fmaf(fmaf(p, s, -5.37397155531e-2f), s, 1.33314422036e-1f), s, -3.33332819422e-1f);
  return fabsf(x) < 0.625f ? fmaf(p * s, x, x) : tanh_of(x);
}

extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, 1)
    lstm_forward(const uint4 *__restrict__ weights,     // (R, CTA, warp, slice, 2, lane), see `pack_forward`
                 const uint4 *__restrict__ low,         // the same of U_low, without the extra columns
                 const u32 *__restrict__ narrow_input,  // (R, tile, step, INPUT_SLICES, lane, 2), or
                 const float4 *__restrict__ drive,      // (R, N, H): i, f, g, o
                 const float *__restrict__ bias,        // (R, 4, H) or null: b_hh, if the user gave the drive or the
                                                        // momentum is in gate space
                 const float *__restrict__ h0,          // (R, B, H)
                 const float *__restrict__ c0,          // (R, B, H)
                 const float *__restrict__ z0,          // (R, B, 4, H): z of the step before the first
                 const float *__restrict__ j0,          // (R, B): j of the first step
                 float *__restrict__ y,                 // (R, N, H)
                 float *__restrict__ last_h,            // (R, B, H)
                 float *__restrict__ last_c,            // (R, B, H)
                 float *__restrict__ last_z,            // (R, B, 4, H)
                 const float *__restrict__ decay,       // (T, 1) or (T, B), if TABLE
                 const float *__restrict__ mu,          // (R, 4, H), if not TABLE: the decay of each channel
                 const float *__restrict__ gain,        // (R, 4, H), or null: `step`
                 const float *__restrict__ v0,          // (R, B, 4, H), or null: 0
                 const float *__restrict__ n0,          // as v0
                 float *__restrict__ last_v,            // (R, B, 4, H), or null
                 float *__restrict__ last_n,
                 float4 *__restrict__ saved_moments,    // (R, T / SPACING, B, H, 1 or 2): v and s of i, f, g, o
                 uint4 *__restrict__ saved_gates,       // (R, tile, step, warp, lane): gates of two rows, FINE two of these
                 u32 *__restrict__ saved_cells,         // (R, tile, step and one more, warp, lane): c of two rows in halves,
                                                        // FINE two of these
                 const int *__restrict__ begins,        // (T + 1): the first row of each step; this and the next two only if
                                                        // PACKED
                 const int *__restrict__ lengths,       // (B): steps of a row
                 const int *__restrict__ starts,        // (tile): steps of all tiles before
                 int T, int B, int H, int N, int tile_steps,  // tile_steps: the steps of all tiles together
                 int every, int decay_columns,  // decay_columns: 1 or B
                 // The own_ parameters: 1, or 0 if all replicas share one
                 int own_weight, int own_input, int own_bias, int own_state, int own_z, int own_j, int own_mu,
                 int own_gain, int own_v, float step, float beta, float one_minus_beta, float eps) {
  __shared__ __align__(128) unsigned char hidden[2 * BUFFER];
  __shared__ __align__(128) unsigned char inputs[AHEAD * PIECES * PIECE];
  __shared__ __align__(8) u64 barriers[2];
  extern __shared__ __align__(128) unsigned char lows[];  // LOW_BYTES
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const u32 rank = cluster_rank();
  const int tile = blockIdx.x / CTAS, tiles = gridDim.x / CTAS, replica = blockIdx.y;
  const int unit = rank * UNITS + warp * 8 + g, row = tile * TILE + 2 * q;
  const bool mine[2] = {unit < H && row < B, unit < H && row + 1 < B};
  const int steps = PACKED ? lengths[tile * TILE] : T, start = PACKED ? starts[tile] : tile * T;
  const int ends[2] = {PACKED && row < B ? lengths[row] : T, PACKED && row + 1 < B ? lengths[row + 1] : T};
  const size_t state_size = (size_t)B * H, place = (size_t)row * H + unit;
  auto first_row_of = [&](int t) { return (size_t)(PACKED ? begins[t < T ? t : T] : t * B); };

  // The weights stay in registers for the whole pass.
  uint4 w[SLICES + INPUT_SLICES][2];
  weights += (((size_t)replica * own_weight * CTAS + rank) * WARPS + warp) * (SLICES + INPUT_SLICES) * 64 + lane;
#pragma unroll
  for (int k = 0; k < SLICES + INPUT_SLICES; k++) {
    w[k][0] = weights[(2 * k) * 32];
    w[k][1] = weights[(2 * k + 1) * 32];
  }
  const u32 low_at = shared_address(lows) + (warp * SLICES * 64 + lane) * 16;
  if (FINE) {
    low += (((size_t)replica * own_weight * CTAS + rank) * WARPS + warp) * SLICES * 64 + lane;
    for (int k = 0; k < 2 * SLICES; k++) store(low_at + k * 512, low[k * 32]);
  }

  // Put h0 into this CTA's first buffer, and c0 into registers.
  h0 += (size_t)replica * own_state * state_size;
  c0 += (size_t)replica * own_state * state_size;
  for (int i = thread; i < TILE * WIDTH; i += THREADS) {
    const int u = i / 64 * 8 + i % 8, b = tile * TILE + i / 8 % 8;
    const float x = u < H && b < B ? h0[(size_t)b * H + u] : 0.f;
    ((u16 *)hidden)[i] = (u16)half2_of(x, 0.f);
    if (FINE) ((u16 *)hidden)[TILE * WIDTH + i] = (u16)half2_of(scaled_low_half(x), 0.f);
  }
  float c[2] = {mine[0] ? c0[place] : 0.f, mine[1] ? c0[place + H] : 0.f};
  float old[2][4] = {}, j[2] = {0.f, 0.f};
  if (EXTRAPOLATED) {
    z0 += ((size_t)replica * own_z * B + row) * 4 * H + unit;
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int gate = 0; gate < 4; gate++)
        if (mine[n]) old[n][gate] = (gate == 2 ? -2.f * LOG2E : -LOG2E) * z0[(n * 4 + gate) * H];
      if (mine[n]) j[n] = (float)((int)j0[replica * own_j * B + row + n] % every);
    }
  }

  constexpr int SAVED_MOMENTS = MOMENTUM_FORM > 1 ? 2 : 1;
  // n = (1 - beta) s, so v / sqrt(n + eps^2) = v / sqrt(s + eps^2 / (1 - beta)) / sqrt(1 - beta). The factors of the gates
  // contain 1 / sqrt(1 - beta).
  const float scaled_eps_squared = eps * eps * reciprocal(one_minus_beta), root_one_minus_beta = root(one_minus_beta);
  const float factor = -LOG2E * (MOMENTUM_FORM == 2 ? inverse_root(one_minus_beta) : 1.f), factor_g = 2.f * factor;
  float v[2][4] = {}, s[2][4] = {}, gains[4] = {}, mus[4] = {};
  if (MOMENTUM_FORM) {
#pragma unroll
    for (int gate = 0; gate < 4; gate++) {
      const int channel = gate * H + unit;
      gains[gate] = gain && unit < H ? gain[(size_t)replica * own_gain * 4 * H + channel] : step;
      if (!TABLE && unit < H) mus[gate] = mu[(size_t)replica * own_mu * 4 * H + channel];
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const size_t at = ((size_t)replica * own_v * B + row + n) * 4 * H + channel;
        if (mine[n] && v0) v[n][gate] = v0[at];
        if (MOMENTUM_FORM > 1 && mine[n] && n0) s[n][gate] = n0[at] * reciprocal(one_minus_beta);
      }
    }
    saved_moments += (((size_t)replica * ((T + SPACING - 1) / SPACING) * B + row) * H + unit) * SAVED_MOMENTS;
  }
  // The decays of the step that comes next, for two rows.
  const int other_row = decay_columns > 1 && row + 1 < B;
  float2 decays = {0.f, 0.f};
  if (TABLE) {
    decay += decay_columns > 1 ? min(row, B - 1) : 0;
    decays = {decay[0], decay[other_row]};
  }

  constexpr int BLOCKS = CTAS * WARPS * 32 * PARTS;
  const int number = rank * WARPS + warp;
  saved_gates += ((size_t)replica * tile_steps + start) * BLOCKS + number * 32 * PARTS + lane;
  saved_cells += ((size_t)replica * (tile_steps + tiles) + start + tile) * BLOCKS + (number * 32 + lane) * PARTS;
  auto keep_cells = [&]() {
    if (FINE)
      *(float2 *)saved_cells = {c[0], c[1]};
    else
      *saved_cells = half2_of(c[0], c[1]);
  };
  if (KEEP) keep_cells();
  y += (size_t)replica * N * H + place;

  // h_{t-1} arrives on barrier t % 2. h_{-1} is already here: the first wait is for phase -1 of its barrier and passes at
  // once.
  const u32 received = settled(shared_address(barriers)), hidden_at = settled(shared_address(hidden));
  const bool first = settled(thread) == 0;
  if (first) {
    create_barrier(received);
    create_barrier(received + 8);
    publish_barriers();
    expect(received + 8, TILE * WIDTH * 2 * PARTS);
  }
  __syncthreads();
  meet_cluster();

  // Inputs on their way. Each thread copies what it will read itself, so nobody waits for others.
  const u32 inputs_at = settled(shared_address(inputs) + (INPUT_SLICES ? 8 : 16) * thread);
  narrow_input += (((size_t)replica * own_input * tile_steps + start) * INPUT_SLICES * 32 + lane) * 2;
  drive += (size_t)replica * own_input * N * H + place;
  auto fetch = [&](int t) {
    const u32 slot = inputs_at + t % AHEAD * PIECES * PIECE;
    if (INPUT_SLICES) {
#pragma unroll
      for (int k = 0; k < INPUT_SLICES; k++) copy_later<8>(slot + k * PIECE, narrow_input + k * 64, t < steps);
      narrow_input += INPUT_SLICES * 64;
    } else {
      const float4 *from = PACKED ? drive + first_row_of(t) * H : drive;
      copy_later<16>(slot, from, t < ends[0] && mine[0]);
      copy_later<16>(slot + PIECE, from + H, t < ends[1] && mine[1]);
      if (!PACKED) drive += state_size;
    }
    end_of_copies();
  };
  float4 b_hh = {0.f, 0.f, 0.f, 0.f};
  if (!INPUT_SLICES)
    for (int i = 0; i < 2 * AHEAD; i++) store(inputs_at + i * PIECE, uint4{0, 0, 0, 0});
  if ((MOMENTUM_FORM || !INPUT_SLICES) && bias && unit < H) {
    bias += (size_t)replica * own_bias * 4 * H + unit;
    b_hh = {-LOG2E * bias[0], -LOG2E * bias[H], -2.f * LOG2E * bias[2 * H], -LOG2E * bias[3 * H]};
  }
  for (int t = 0; t < AHEAD - 1; t++) fetch(t);

  // Where this lane reads h from, and where it sends to. A warp's block is sent as one piece: that is quickest.
  const u32 from = hidden_at + 16 * lane, to = hidden_at + number * BLOCK + 4 * lane;
  u32 window[CTAS];
#pragma unroll
  for (int i = 0; i < CTAS; i++) window[i] = on_cta(hidden_at, (rank + i) % CTAS) - hidden_at;

  // Adds the product of the input to z, or puts the drive there. Rows 0 to 7 of a product are gate i (g), rows 8 to 15 gate f
  // (o).
  auto receive = [&](int t, float(&z)[2][4]) {
    const u32 slot = inputs_at + t % AHEAD * PIECES * PIECE;
    if (INPUT_SLICES) {
#pragma unroll
      for (int k = 0; k < INPUT_SLICES; k++) {
        const uint2 b = load_pair(slot + k * PIECE);
        multiply_bfloats(z[0], w[SLICES + k][0], b.x, b.y);
        multiply_bfloats(z[1], w[SLICES + k][1], b.x, b.y);
      }
    } else {
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const uint4 v = load_four(slot + n * PIECE);
        z[0][n] = __uint_as_float(v.x), z[0][2 + n] = __uint_as_float(v.y);
        z[1][n] = __uint_as_float(v.z), z[1][2 + n] = __uint_as_float(v.w);
      }
    }
  };
  // One step of the momentum: puts the drive in place of a in z, with the bias and the gates' factors.
  auto advance = [&](int t, float(&z)[2][4]) {
    // stage 6: momentum
    if (KEEP && t % SPACING == 0) {
#pragma unroll
      for (int n = 0; n < 2; n++)
        if (mine[n] && (!PACKED || t < ends[n])) {
          float4 *to = saved_moments + n * H * SAVED_MOMENTS;
          to[0] = {v[n][0], v[n][1], v[n][2], v[n][3]};
          if (MOMENTUM_FORM > 1) to[1] = {s[n][0], s[n][1], s[n][2], s[n][3]};
        }
      saved_moments += state_size * SAVED_MOMENTS;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int n = i / 4, gate = i % 4;
      float &a = z[gate / 2][gate % 2 * 2 + n];
      v[n][gate] = fmaf(TABLE ? (n ? decays.y : decays.x) : mus[gate], v[n][gate], gains[gate] * a);
      if (MOMENTUM_FORM > 1) s[n][gate] = fmaf(beta, s[n][gate], a * a);
      a = v[n][gate];
      if (MOMENTUM_FORM == 2) a *= inverse_root(s[n][gate] + scaled_eps_squared);
      if (MOMENTUM_FORM == 3) a *= reciprocal(fmaf(root_one_minus_beta, root(s[n][gate]), eps));
      a = fmaf(gate == 2 ? factor_g : factor, a, gate == 0 ? b_hh.x : gate == 1 ? b_hh.y : gate == 2 ? b_hh.z : b_hh.w);
      asm volatile("" : "+f"(a));  // so that the compiler doesn't move it behind the next wait
    }
    if (TABLE) {  // without a branch, behind which the load would be waited for
      decay += t + 1 < T ? decay_columns : 0;
      decays = {decay[0], decay[other_row]};
    }
  };
  // What the input gives to z of the next step; then h and the gates of this step.
  float coming_z[2][4] = {}, h[2] = {0.f, 0.f};
  Gates gates[2];
  // Writes the state of a row after its last step.
  auto store_final_state = [&](int n) {
    const size_t at = (size_t)replica * state_size + place + n * H;
    last_h[at] = h[n];
    last_c[at] = c[n];
#pragma unroll
    for (int gate = 0; gate < 4; gate++) {
      const size_t channel = (((size_t)replica * B + row + n) * 4 + gate) * H + unit;
      if (EXTRAPOLATED) last_z[channel] = (gate == 2 ? -0.5f / LOG2E : -1.f / LOG2E) * old[n][gate];
      if (MOMENTUM_FORM && last_v) last_v[channel] = v[n][gate];
      if (MOMENTUM_FORM > 1 && last_v) last_n[channel] = one_minus_beta * s[n][gate];
    }
  };
  if (MOMENTUM_FORM) {
    wait_for_copies<AHEAD - 2>();
    receive(0, coming_z);
    advance(0, coming_z);
  }

  auto run = [&](int t, u32 now) {
    const u32 next = now ^ 1;
    // stage 0: input, which does not need h
    float z[CHAINS][2][4] = {}, z_low[PARTS][2][4] = {};
    if (MOMENTUM_FORM) {
#pragma unroll
      for (int e = 0; e < 8; e++) z[0][e / 4][e % 4] = coming_z[e / 4][e % 4], coming_z[e / 4][e % 4] = 0.f;
      wait_for_copies<AHEAD - 3>();
      receive(t + 1, coming_z);
    } else {
      wait_for_copies<AHEAD - 2>();
      receive(t, z[0]);
      if (!INPUT_SLICES) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          z[0][0][n] = fmaf(-LOG2E, z[0][0][n], b_hh.x), z[0][0][2 + n] = fmaf(-LOG2E, z[0][0][2 + n], b_hh.y);
          z[0][1][n] = fmaf(-2.f * LOG2E, z[0][1][n], b_hh.z), z[0][1][2 + n] = fmaf(-LOG2E, z[0][1][2 + n], b_hh.w);
        }
      }
    }
    fetch(t + AHEAD - 1);
    if (PACKED) y += (first_row_of(t) - (t > 0 ? first_row_of(t - 1) : 0)) * H;

    // stage 1: wait for h
    if (CTAS == 1)
      __syncthreads();
    else
      wait(received + 8 * now, (t - 1) >> 1 & 1);
    // stage 2: products with U
#pragma unroll
    for (int k = 0; k < SLICES; k += 2) {
      const uint4 h = load_matrices(from + now * BUFFER + k * 2 * BLOCK);
      multiply_halves(z[0][0], w[k][0], h.x, h.y);
      multiply_halves(z[0][1], w[k][1], h.x, h.y);
      multiply_halves(z[CHAINS - 1][0], w[k + 1][0], h.z, h.w);
      multiply_halves(z[CHAINS - 1][1], w[k + 1][1], h.z, h.w);
      if (FINE) {
        const uint4 h_low = load_matrices(from + now * BUFFER + HIDDEN + k * 2 * BLOCK);
#pragma unroll
        for (int m = 0; m < 2; m++) {
          multiply_halves(z_low[0][m], w[k][m], h_low.x, h_low.y);
          multiply_halves(z_low[1][m], load_four(low_at + (2 * k + m) * 512), h.x, h.y);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
          multiply_halves(z_low[0][m], w[k + 1][m], h_low.z, h_low.w);
          multiply_halves(z_low[1][m], load_four(low_at + (2 * k + 2 + m) * 512), h.z, h.w);
        }
      }
    }

    // Arm this buffer's barrier again while the products run. Nobody sends into the buffer before it has our h_t.
    if (CTAS > 1 && first) expect(received + 8 * now, TILE * WIDTH * 2 * PARTS);

    // stage 3: gates, cell
#pragma unroll
    for (int n = 0; n < 2; n++) {
      float sums[4];
#pragma unroll
      for (int gate = 0; gate < 4; gate++) {
        const int m = gate / 2, e = gate % 2 * 2 + n;
        sums[gate] = FINE ? fmaf(1.f / LOW_SCALE, z_low[0][m][e] + z_low[FINE][m][e], z[0][m][e])
                          : z[0][m][e] + z[CHAINS - 1][m][e];
        if (EXTRAPOLATED) {
          const float ahead = j[n] * reciprocal(j[n] + 3.f), sum = sums[gate];
          sums[gate] = fmaf(ahead, sum - old[n][gate], sum);
          old[n][gate] = sum;
        }
      }
      gates[n] = gates_of(sums[0], sums[1], sums[2], sums[3]);
      if (FINE) gates[n].g = fine_tanh(-0.5f / LOG2E * sums[2]);
      c[n] = fmaf(gates[n].f, c[n], gates[n].i * (FINE ? gates[n].g : fmaf(2.f, gates[n].g, -1.f)));
      h[n] = gates[n].o * (FINE ? fine_tanh(c[n]) : tanh_of(c[n]));
      if (EXTRAPOLATED) j[n] = j[n] + 1.f == (float)every ? 0.f : j[n] + 1.f;
    }

    // stage 4: send
    // 8 units x 8 rows to everyone: turned, lane 4 n + k holds units 2 k and 2 k + 1 of row n.
    u32 turned[PARTS];
    const u32 high = half2_of(h[0], h[1]);
    turned[0] = transpose(high);
    if (FINE) {
      const float2 rounded = floats_of(high);
      turned[PARTS - 1] = transpose(half2_of((h[0] - rounded.x) * LOW_SCALE, (h[1] - rounded.y) * LOW_SCALE));
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const u32 at = to + next * BUFFER + part * HIDDEN;
      if (CTAS == 1) {
        store(at, turned[part]);
      } else {
#pragma unroll
        for (int i = 0; i < CTAS; i++) send(at + window[i], turned[part], received + 8 * next + window[i]);
      }
    }
  };
  // Stores that nobody waits for. A branch keeps the compiler from moving them before the sends.
  auto put = [&](int t) {
    // stage 5: stores
    if (mine[0] && (!PACKED || t < ends[0])) y[0] = h[0];
    if (mine[1] && (!PACKED || t < ends[1])) y[H] = h[1];
    if (!PACKED) y += state_size;
    if (KEEP) {
      if (FINE) {
#pragma unroll
        for (int n = 0; n < 2; n++)
          saved_gates[n * 32] = {__float_as_uint(gates[n].i), __float_as_uint(gates[n].f), __float_as_uint(gates[n].g),
                                __float_as_uint(gates[n].o)};
      } else {
        *saved_gates = {counts_of(gates[0].i, gates[0].f), counts_of(gates[0].g, gates[0].o),
                       counts_of(gates[1].i, gates[1].f), counts_of(gates[1].g, gates[1].o)};
      }
      saved_gates += BLOCKS;
      saved_cells += BLOCKS;
      keep_cells();
    }
    if (PACKED)
#pragma unroll
      for (int n = 0; n < 2; n++)
        if (mine[n] && t + 1 == ends[n]) store_final_state(n);
  };
  // A branch that keeps the compiler from moving the next wait before the momentum: `never` is false, but it can't know.
  const bool never = tile_steps < 0;
  auto goes_on = [&](int t, u32 now) {
    run(t, now);
    if (t + 1 == steps) return false;
    put(t);
    if (MOMENTUM_FORM) advance(t + 1, coming_z);
    return !(MOMENTUM_FORM && never);
  };
#pragma unroll 1
  for (int t = 0; goes_on(t, BY_TWO ? 0 : t & 1); t++)
    if (BY_TWO && !goes_on(++t, 1)) break;
  put(steps - 1);
  if (!PACKED)
#pragma unroll
    for (int n = 0; n < 2; n++)
      if (mine[n]) store_final_state(n);
  // A CTA must not exit while others may still write to its memory. The last h is sent only for this wait.
  if (CTAS > 1) wait(received + 8 * (steps & 1), (steps - 1) >> 1 & 1);
}
