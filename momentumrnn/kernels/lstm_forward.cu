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
// by stores that count their bytes on the receiver's barrier; waiting on that barrier is the only
// synchronisation. Two buffers are enough: whoever sends h_t has received all of h_{t-1}, so all have sent
// that, and have read h_{t-2} before.
//
// INPUTS. With EXTRA > 0 the projection W x + b rides on the same product: EXTRA times 16 further columns,
// in bfloat16 as high and low parts (see `spread`). With EXTRA = 0 the drive itself is read, (T, B, H, 4) in float32.
//
// All weights carry a factor of -log2(e), or -2 log2(e) for g, so that sigmoid(z) = 1 / (1 + 2^z') and
// tanh(z) = 2 / (1 + 2^z') - 1.
//
// Compiled for CTAS = 1 to 8, EXTRA = 0 to 3, KEEP = 0 or 1. Any H up to 32 CTAS: units beyond H have zero weights.

constexpr int WARPS = 4;                // of a CTA: one for each quarter of a multiprocessor
constexpr int THREADS = 32 * WARPS;
constexpr int UNITS = 8 * WARPS;        // of a CTA
constexpr int WIDTH = UNITS * CTAS;     // units of the cluster
constexpr int SLICES = WIDTH / 16;      // of U, 16 columns each
constexpr u32 BLOCK = 128;              // bytes of h of a warp: 8 rows of 8 units
constexpr u32 HIDDEN = WIDTH / 8 * BLOCK;  // of one buffer of h
constexpr int AHEAD = 4;                // steps for which inputs are on their way
constexpr int PIECES = EXTRA ? EXTRA : 2;               // of a thread's input of a step: slices, or rows
constexpr u32 PIECE = (EXTRA ? 8 : 16) * THREADS;       // bytes of that piece of all threads
constexpr float LOG2E = 1.4426950408889634f;

// The four gates of a unit from their z', as sigmoids 1 / (1 + 2^z'), with one division; tanh(g) is 2 g - 1 of this g.
struct Gates {
  float i, f, g, o;
};
__device__ inline Gates gates_of(float i, float f, float g, float o) {
  // 2^30 is zero enough for a gate, and four of them multiply without overflow.
  const float a = 1.f + exp2_fast(smaller(i, 30.f)), b = 1.f + exp2_fast(smaller(g, 30.f));
  const float c = 1.f + exp2_fast(smaller(f, 30.f)), d = 1.f + exp2_fast(smaller(o, 30.f));
  const float ab = a * b, cd = c * d, all = reciprocal(ab * cd);
  const float over_ab = all * cd, over_cd = all * ab;
  return {over_ab * b, over_cd * d, over_ab * a, over_cd * c};
}
__device__ inline float tanh_of(float x) {
  return fmaf(2.f, reciprocal(1.f + exp2_fast(-2.f * LOG2E * x)), -1.f);
}
// Two sigmoids for the backward pass, as counts of 1 / 65535: the errors of forget gates add up over time, and halves
// would be sixteen times as coarse near 1/2. Added to 2^23, a count stands in the lowest bits.
__device__ inline u32 counts_of(float v, float w) {
  return __byte_perm(__float_as_uint(fmaf(v, 65535.f, 8388608.f)), __float_as_uint(fmaf(w, 65535.f, 8388608.f)), 0x5410);
}

extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, 1)
    lstm_forward(const uint4 *__restrict__ weights,  // (R, CTA, warp, slice, 2, lane), see `pack_forward`
                 const u32 *__restrict__ extra,      // (R, T, tile, EXTRA, lane, 2), or
                 const float4 *__restrict__ drive,   // (R, T, B, H): i, f, g, o
                 const float *__restrict__ bias,     // (R, 4, H) or null; goes with the drive
                 const float *__restrict__ h0,       // (R, B, H)
                 const float *__restrict__ c0,       // (R, B, H)
                 float *__restrict__ y,              // (R, T, B, H)
                 float *__restrict__ last_h,         // (R, B, H)
                 float *__restrict__ last_c,         // (R, B, H)
                 uint4 *__restrict__ kept_gates,     // (R, T, tile, warp, lane): gates of two rows; warps with units below H
                 u32 *__restrict__ kept_cells,       // (R, T + 1, tile, warp, lane): c of two rows, in halves
                 int T, int B, int H,
                 int each_weight, int each_input, int each_bias, int each_state) {  // 1, or 0: one for all replicas
  __shared__ __align__(128) unsigned char hidden[2 * HIDDEN];
  __shared__ __align__(128) unsigned char inputs[AHEAD * PIECES * PIECE];
  __shared__ __align__(8) u64 barriers[2];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const u32 rank = cluster_rank();
  const int tile = blockIdx.x / CTAS, tiles = gridDim.x / CTAS, replica = blockIdx.y;
  const int unit = rank * UNITS + warp * 8 + g, row = tile * 8 + 2 * q;
  const bool mine[2] = {unit < H && row < B, unit < H && row + 1 < B};
  const size_t states = (size_t)B * H, place = (size_t)row * H + unit;

  // The weights, for good.
  uint4 w[SLICES + EXTRA][2];
  weights += (((size_t)replica * each_weight * CTAS + rank) * WARPS + warp) * (SLICES + EXTRA) * 64 + lane;
#pragma unroll
  for (int k = 0; k < SLICES + EXTRA; k++) {
    w[k][0] = weights[(2 * k) * 32];
    w[k][1] = weights[(2 * k + 1) * 32];
  }

  // h of before the first step into this CTA's first buffer, c into registers.
  h0 += (size_t)replica * each_state * states;
  c0 += (size_t)replica * each_state * states;
  for (int i = thread; i < 8 * WIDTH; i += THREADS) {
    const int u = i / 64 * 8 + i % 8, b = tile * 8 + i / 8 % 8;
    ((u16 *)hidden)[i] = u < H && b < B ? (u16)half2_of(h0[(size_t)b * H + u], 0.f) : 0;
  }
  float c[2] = {mine[0] ? c0[place] : 0.f, mine[1] ? c0[place + H] : 0.f};

  const int warps = (H + 7) / 8, number = rank * WARPS + warp;
  const bool keeps = KEEP && number < warps;
  const size_t block = ((size_t)tile * warps + number) * 32 + lane, blocks = (size_t)tiles * warps * 32;
  kept_gates += (size_t)replica * T * blocks + block;
  kept_cells += (size_t)replica * (T + 1) * blocks + block;
  if (keeps) *kept_cells = half2_of(c[0], c[1]);
  y += (size_t)replica * T * states + place;

  const u32 received = shared_address(barriers), hidden_at = shared_address(hidden);
  if (thread == 0) {
    create_barrier(received);
    create_barrier(received + 8);
    publish_barriers();
    expect(received, 8 * WIDTH * 2);
    expect(received + 8, 8 * WIDTH * 2);
  }
  __syncthreads();
  meet_cluster();

  // Inputs on their way. Each thread copies what it will read itself, so nobody waits for others.
  const u32 own = shared_address(inputs) + (EXTRA ? 8 : 16) * thread;
  extra += (((size_t)replica * each_input * T * tiles + tile) * EXTRA * 32 + lane) * 2;
  drive += (size_t)replica * each_input * T * states + place;
  auto fetch = [&](int t) {
    const u32 slot = own + t % AHEAD * PIECES * PIECE;
    if (EXTRA) {
#pragma unroll
      for (int k = 0; k < EXTRA; k++) copy_later<8>(slot + k * PIECE, extra + k * 64, t < T);
      extra += (size_t)tiles * EXTRA * 64;
    } else {
      copy_later<16>(slot, drive, t < T && mine[0]);
      copy_later<16>(slot + PIECE, drive + H, t < T && mine[1]);
      drive += states;
    }
    end_of_copies();
  };
  float4 b_hh = {0.f, 0.f, 0.f, 0.f};
  if (!EXTRA) {
    for (int i = 0; i < 2 * AHEAD; i++) store(own + i * PIECE, uint4{0, 0, 0, 0});
    if (bias && unit < H) {
      bias += (size_t)replica * each_bias * 4 * H + unit;
      b_hh = {-LOG2E * bias[0], -LOG2E * bias[H], -2.f * LOG2E * bias[2 * H], -LOG2E * bias[3 * H]};
    }
  }
  for (int t = 0; t < AHEAD - 1; t++) fetch(t);

  // Where this lane reads h from, and where it sends to. A warp's block is sent as one piece: that is quickest.
  const u32 from = hidden_at + 16 * lane, to = hidden_at + number * BLOCK + 4 * lane;
  u32 window[CTAS];
#pragma unroll
  for (int i = 0; i < CTAS; i++) window[i] = on_cta(hidden_at, (rank + i) % CTAS) - hidden_at;

#pragma unroll 1
  for (int t = 0; t < T; t++) {
    const u32 now = t & 1, next = now ^ 1;
    // What does not need h: rows 0 to 7 of a product are gate i (g), rows 8 to 15 gate f (o).
    float z[2][2][4] = {};
    wait_for_copies<AHEAD - 2>();
    const u32 slot = own + t % AHEAD * PIECES * PIECE;
    if (EXTRA) {
#pragma unroll
      for (int k = 0; k < EXTRA; k++) {
        const uint2 b = load_pair(slot + k * PIECE);
        multiply_bfloats(z[0][0], w[SLICES + k][0], b.x, b.y);
        multiply_bfloats(z[0][1], w[SLICES + k][1], b.x, b.y);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const uint4 v = load_four(slot + j * PIECE);
        z[0][0][j] = fmaf(-LOG2E, __uint_as_float(v.x), b_hh.x);
        z[0][0][2 + j] = fmaf(-LOG2E, __uint_as_float(v.y), b_hh.y);
        z[0][1][j] = fmaf(-2.f * LOG2E, __uint_as_float(v.z), b_hh.z);
        z[0][1][2 + j] = fmaf(-LOG2E, __uint_as_float(v.w), b_hh.w);
      }
    }
    fetch(t + AHEAD - 1);

    if (CTAS == 1) {
      __syncthreads();
    } else if (t > 0) {
      wait(received + 8 * now, (t - 1) / 2 & 1);
    }
#pragma unroll
    for (int k = 0; k < SLICES; k += 2) {
      const uint4 h = load_matrices(from + now * HIDDEN + k * 2 * BLOCK);
      multiply_halves(z[0][0], w[k][0], h.x, h.y);
      multiply_halves(z[0][1], w[k][1], h.x, h.y);
      multiply_halves(z[1][0], w[k + 1][0], h.z, h.w);
      multiply_halves(z[1][1], w[k + 1][1], h.z, h.w);
    }

    // While the products are on their way: nobody sends into this buffer again before it has our h_t.
    if (CTAS > 1 && t > 0 && thread == 0) expect(received + 8 * now, 8 * WIDTH * 2);

    Gates gates[2];
    float h[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      gates[j] = gates_of(z[0][0][j] + z[1][0][j], z[0][0][2 + j] + z[1][0][2 + j],
                          z[0][1][j] + z[1][1][j], z[0][1][2 + j] + z[1][1][2 + j]);
      c[j] = fmaf(gates[j].f, c[j], gates[j].i * fmaf(2.f, gates[j].g, -1.f));
      h[j] = gates[j].o * tanh_of(c[j]);
    }

    // 8 units x 8 rows to everyone: turned, lane 4 n + k holds units 2 k and 2 k + 1 of row n.
    if (t + 1 < T) {
      const u32 turned = transpose(half2_of(h[0], h[1]));
      if (CTAS == 1) {
        store(to + next * HIDDEN, turned);
      } else {
#pragma unroll
        for (int i = 0; i < CTAS; i++)
          send(to + next * HIDDEN + window[i], turned, received + 8 * next + window[i]);
      }
    }

    if (mine[0]) y[0] = h[0];
    if (mine[1]) y[H] = h[1];
    y += states;
    if (keeps) {
      *kept_gates = {counts_of(gates[0].i, gates[0].f), counts_of(gates[0].g, gates[0].o),
                     counts_of(gates[1].i, gates[1].f), counts_of(gates[1].g, gates[1].o)};
      kept_gates += blocks;
      kept_cells += blocks;
      *kept_cells = half2_of(c[0], c[1]);
    }
    if (t + 1 == T) {
      last_h += (size_t)replica * states + place;
      last_c += (size_t)replica * states + place;
      if (mine[0]) last_h[0] = h[0], last_c[0] = c[0];
      if (mine[1]) last_h[H] = h[1], last_c[H] = c[1];
    }
  }
  meet_cluster();  // nobody leaves while others may still write here
}
