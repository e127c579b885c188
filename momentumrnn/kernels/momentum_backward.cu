// The backward pass of a momentum in gate space: one that divides by a second moment, carries a state or has a decay for
// each channel. Its forward pass is part of `lstm_forward`. For each row of the batch and each channel it is
//
//   a_t = w . x_t + b_ih,   v_t = d_t v_{t-1} + gain a_t,   n_t = beta n_{t-1} + (1 - beta) a_t^2,
//   drive_t = v_t (MOMENTUM_FORM = 1),   or v_t / sqrt(n_t + eps^2) (2),   or v_t / (sqrt(n_t) + eps) (3).
//
// A thread has a row and CHANNELS channels, and goes through time alone: no sum depends on the order of threads. There may
// be few threads, so the loads of many steps are on their way together. All in float32.
//
// Row (t, b) is row begins[t] + b of N if PACKED, else t B + b. Nothing is read or written after the last step of a row.
//
// Compiled for FEATURES = 0 (a itself is given) to 15, MOMENTUM_FORM = 1 to 3, and PACKED, TABLE (decays are those of a
// table, not of channels), LEARNED (d mu and d gain, too), WRITES_DA (whether it stores the gradient of a), FINE = 0 or 1;
// CHANNELS = 2, or 1 where threads are few. Threads: B 4H / CHANNELS.

constexpr int SECOND = MOMENTUM_FORM > 1;
constexpr int THREADS = MOMENTUM_THREADS;
constexpr int WIDTH = FEATURES > 0 ? FEATURES : CHANNELS;  // numbers that a thread reads in a step
constexpr int HELD = FEATURES > 2 ? 0 : 1;          // 1 if x of a group of steps stays in registers
constexpr int PARTS = 2 + FINE;                     // of da
constexpr int SUMS = FEATURES + 1 + 2 * LEARNED;    // of a row and channel: dW, db, d mu, d gain

// Halves, or bfloat16s, of a thread's channels.
__device__ inline float2 halves_at(const u16 *p) { return floats_of(CHANNELS == 2 ? *(const u32 *)p : *p); }
__device__ inline void put_bfloats(u16 *p, const float (&x)[CHANNELS]) {
  if (CHANNELS == 2)
    *(u32 *)p = bfloat2_of(x[0], x[CHANNELS - 1]);
  else
    *p = (u16)bfloat2_of(x[0], 0.f);
}
// What a thread owns: a row b, and the channels from j on of all 4 H.
struct Owned {
  int b, j, H;

  __device__ Owned(int H) : H(H) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    b = i / (4 / CHANNELS * H);
    j = i % (4 / CHANNELS * H) * CHANNELS;
  }
  __device__ int place(int c) const { return (j % 4 + c) * H + j / 4; }  // of a channel in torch's order
};
// The features of a row, loaded in pieces as wide as their alignment allows: loads are the cost of many features.
struct Features {
  static constexpr int TOGETHER = FEATURES % 4 == 0 ? 4 : FEATURES % 2 == 0 ? 2 : 1;
  __align__(16) float x[FEATURES > 0 ? FEATURES : 1];

  __device__ explicit Features(const float *from) {
#pragma unroll
    for (int f = 0; f < FEATURES; f += TOGETHER) {
      if (TOGETHER == 4)
        *(float4 *)(x + f) = *(const float4 *)(from + f);
      else if (TOGETHER == 2)
        *(float2 *)(x + f) = *(const float2 *)(from + f);
      else
        x[f] = from[f];
    }
  }
};
// The numbers of a channel.
struct Channel {
  float w[FEATURES > 0 ? FEATURES : 1], bias, gain, mu;

  __device__ float project(const float *x, int c) const {
    if (FEATURES == 0) return x[c];
    float a = bias;
#pragma unroll
    for (int f = 0; f < FEATURES; f++) a = fmaf(w[f], x[f], a);
    return a;
  }
};
struct Given {
  const float *w_ih, *b_ih, *decay, *mu, *gain;
  int decay_columns, own_w, own_bias, own_mu, own_gain;
  float step;

  __device__ Channel channel(int r, int place, int width) const {
    Channel c;
#pragma unroll
    for (int f = 0; f < FEATURES; f++) c.w[f] = w_ih[((size_t)r * own_w * width + place) * FEATURES + f];
    c.bias = b_ih ? b_ih[(size_t)r * own_bias * width + place] : 0.f;
    c.gain = gain ? gain[(size_t)r * own_gain * width + place] : step;
    c.mu = !TABLE ? mu[(size_t)r * own_mu * width + place] : 0.f;
    return c;
  }
  // The decay of step t in the table; 0 if each channel has its own.
  __device__ float decay_at(int t) const { return TABLE ? decay[(size_t)t * decay_columns] : 0.f; }
  __device__ float decay_of(const Channel &c, float at_step) const { return TABLE ? at_step : c.mu; }
};
// Goes backwards from last to first, a multiple of SPACING, in groups of SPACING steps. It recomputes the moments of a group
// from the saved ones, then differentiates it. Like lstm_forward it has s = n / (1 - beta) in place of n. With g the gradient
// of the drive, and r the factor of v:
//
//   dv_t = g_t r_t + d_{t+1} dv_{t+1},   ds_t = g_t d drive / ds + beta ds_{t+1},   da_t = gain dv_t + 2 a_t ds_t.
//
// to_v is dv, to_a is da, and to_s is -2 ds. by_v is g r. by_s is what a step adds to -2 ds: g v r / (s + eps^2 / (1 - beta))
// in form 2, g v r^2 sqrt((1 - beta) / s) in form 3.
// The launch bound leaves more registers where threads are few: otherwise the compiler saves registers and starts loads
// late.
extern "C" __global__ void __launch_bounds__(THREADS, CHANNELS == 1 && HELD && !PACKED ? 5 : 0)
    momentum_backward(const float *__restrict__ x,        // (R, N, FEATURES), or a itself, (R, N, H, 4)
                      const float *__restrict__ w_ih,     // (R, 4 H, FEATURES), or null
                      const float *__restrict__ b_ih,     // (R, 4 H), or null; a that is given has it in it
                      const float *__restrict__ decay,    // (T, 1) or (T, B), if TABLE
                      const float *__restrict__ mu,       // (R, 4 H), if not
                      const float *__restrict__ gain,     // (R, 4 H), or null: `step`
                      const float *__restrict__ saved,    // (R, T / SPACING, B, H, 1 or 2, 4): v and s
                      const int *__restrict__ begins,     // (T + 1), if PACKED
                      const int *__restrict__ lengths,    // (B), if PACKED
                      const u16 *__restrict__ dz,         // (R, room, H, 4): S g, of the rows from (first, 0) on
                      const u16 *__restrict__ dz_low,     // the same: LOW_SCALE times what these halves left; if FINE
                      const float *__restrict__ scales,   // (R, room): 1 / S
                      float *__restrict__ dv,             // (R, B, 4 H): in, the gradient of v after the last step; out, of
                                                          // v before the first
                      float *__restrict__ dn,             // the same of n
                      float *__restrict__ sums,           // (R, B, H, 4, SUMS), added to
                      u16 *__restrict__ da,               // (R, room, PARTS, H, 4): bfloat16s that add up to it, if WRITES_DA
                      int first, int last, int room, int T, int B, int H, int N, int decay_columns, int own_x,
                      int own_w, int own_bias, int own_mu, int own_gain, float step, float beta, float one_minus_beta,
                      float eps) {
  // Where x does not stay in registers it is read twice. This holds a, and later da, of the thread's group of steps.
  __shared__ float a_or_da[HELD ? 1 : SPACING][CHANNELS][THREADS];
  const Owned own(H);
  const int width = 4 * H, b = own.b, r = blockIdx.y;
  if (b >= B) return;
  const int end = min(PACKED ? lengths[b] : T, last);
  if (end <= first) return;
  const Given given = {w_ih, b_ih, decay + (decay_columns > 1 ? b : 0), mu, gain,
                       decay_columns, own_w, own_bias, own_mu, own_gain, step};
  Channel channels[CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; c++) channels[c] = given.channel(r, own.place(c), width);
  const int stride = FEATURES > 0 ? FEATURES : width;
  const size_t state_size = (size_t)B * width, state_begin = (size_t)b * width;
  x += (size_t)r * own_x * N * stride + (FEATURES > 0 ? 0 : own.j);
  saved += ((size_t)r * ((T + SPACING - 1) / SPACING) * state_size + state_begin + own.j / 4 * 4) * (1 + SECOND) + own.j % 4;
  auto row = [&](int t) { return (size_t)(PACKED ? begins[t] : t * B) + b; };
  // What turns a row of the batch into one of this chunk's memory.
  const size_t before_here = (size_t)r * room - (PACKED ? begins[first] : first * B);

  const float scaled_eps_squared = MOMENTUM_FORM == 2 ? eps * eps * reciprocal(one_minus_beta) : 0.f;
  const float over_root = MOMENTUM_FORM == 2 ? inverse_root(one_minus_beta) : 1.f;
  const float root_one_minus_beta = root(one_minus_beta);
  float to_v[CHANNELS], to_s[CHANNELS] = {}, dw[CHANNELS][FEATURES > 0 ? FEATURES : 1] = {};
  float db[CHANNELS] = {}, dmu[CHANNELS] = {}, dgain[CHANNELS] = {};
#pragma unroll
  for (int c = 0; c < CHANNELS; c++) {
    to_v[c] = dv[r * state_size + state_begin + own.place(c)];
    if (SECOND) to_s[c] = -2.f * one_minus_beta * dn[r * state_size + state_begin + own.place(c)];
  }
  // Goes back through the group of SPACING steps that begins at step s: through all of it if `whole`, else through its
  // first `steps` steps. All loads come before the arithmetic.
  auto go_back_through_group = [&](int s, bool whole, int steps) {
    float held[SPACING][HELD ? WIDTH : 1], decays[SPACING], by_v[SPACING][CHANNELS], by_s[SPACING][CHANNELS];
    float before[LEARNED ? SPACING : 1][CHANNELS], v[CHANNELS], second[CHANNELS] = {};
    const float *from = saved + (size_t)(s / SPACING) * state_size * (1 + SECOND);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      v[c] = from[c];
      if (SECOND) second[c] = from[4 + c];
    }
    const size_t begin = row(s), here = before_here + begin, place = here * width + own.j, pitch = (size_t)B * width;
    const u16 *dz_here = dz + place, *low_here = dz_low + place;
    u16 *da_here = da + here * width * PARTS + own.j;
    const float *scales_here = scales + here, *x_here = x + begin * stride;
    // How many rows, and how many channels, step s + k is after step s.
    auto ahead = [&](int k) { return PACKED ? row(s + k) - begin : (size_t)k * B; };
    auto channels_ahead = [&](int k) { return PACKED ? (row(s + k) - begin) * width : k * pitch; };
#pragma unroll
    for (int k = 0; k < SPACING; k++)
      if (whole || k < steps) {
        const size_t at = ahead(k);
        const float2 high = halves_at(dz_here + channels_ahead(k));
        const float scale = scales_here[at] * over_root;
        const float2 low = FINE ? halves_at(low_here + channels_ahead(k)) : float2{0.f, 0.f};
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
          by_v[k][c] = (c ? high.y : high.x) * scale;
          if (FINE) by_v[k][c] = fmaf((c ? low.y : low.x) * (1.f / LOW_SCALE), scale, by_v[k][c]);
        }
        decays[k] = given.decay_at(s + k);
#pragma unroll
        for (int f = 0; f < WIDTH && HELD; f++) held[k][f] = x_here[at * stride + f];
      }
    if (!HELD) {
#pragma unroll 4
      for (int k = 0; k < steps; k++) {
        const Features features(x_here + ahead(k) * stride);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) a_or_da[k][c][threadIdx.x] = channels[c].project(features.x, c);
      }
    }
    auto a_of = [&](int k, int c) {
      if (HELD) return channels[c].project(held[HELD ? k : 0], c);
      return a_or_da[HELD ? 0 : k][c][threadIdx.x];
    };
    // Recompute the moments. g is multiplied by its factors in autograd's order: one may be 0 where another is inf.
#pragma unroll
    for (int k = 0; k < SPACING; k++)
#pragma unroll
      for (int c = 0; c < CHANNELS; c++)
        if (whole || k < steps) {
          const float a = a_of(k, c);
          if (LEARNED) before[LEARNED ? k : 0][c] = v[c];
          v[c] = fmaf(given.decay_of(channels[c], decays[k]), v[c], channels[c].gain * a);
          if (SECOND) {
            second[c] = fmaf(beta, second[c], a * a);
            const float over = inverse_root(MOMENTUM_FORM == 2 ? second[c] + scaled_eps_squared : second[c]);
            const float factor = MOMENTUM_FORM == 2 ? over : reciprocal(fmaf(root_one_minus_beta, root(second[c]), eps));
            by_v[k][c] *= factor;
            by_s[k][c] = by_v[k][c] * (v[c] * factor) * (MOMENTUM_FORM == 2 ? over : root_one_minus_beta * over);
          }
        }
#pragma unroll
    for (int k = SPACING - 1; k >= 0; k--)
      if (whole || k < steps) {
        float to_a[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
          const float a = a_of(k, c);
          to_v[c] += by_v[k][c];
          if (LEARNED) {
            dmu[c] = fmaf(to_v[c], before[LEARNED ? k : 0][c], dmu[c]);
            dgain[c] = fmaf(to_v[c], a, dgain[c]);
          }
          to_a[c] = channels[c].gain * to_v[c];
          to_v[c] *= given.decay_of(channels[c], decays[k]);
          if (SECOND) {
            to_s[c] += by_s[k][c];
            to_a[c] = fmaf(-a, to_s[c], to_a[c]);
            to_s[c] *= beta;
          }
          db[c] += to_a[c];
          if (!HELD) a_or_da[HELD ? 0 : k][c][threadIdx.x] = to_a[c];
#pragma unroll
          for (int f = 0; f < FEATURES && HELD; f++) dw[c][f] = fmaf(to_a[c], held[HELD ? k : 0][f], dw[c][f]);
        }
        if (WRITES_DA) {
          u16 *to = da_here + channels_ahead(k) * PARTS;
#pragma unroll
          for (int part = 0; part < PARTS; part++) {
            put_bfloats(to + part * width, to_a);
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) to_a[c] = low_part(to_a[c]);
          }
        }
      }
    if (!HELD) {
#pragma unroll 4
      for (int k = 0; k < steps; k++) {
        const Features features(x_here + ahead(k) * stride);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
#pragma unroll
          for (int f = 0; f < FEATURES; f++) dw[c][f] = fmaf(a_or_da[k][c][threadIdx.x], features.x[f], dw[c][f]);
      }
    }
  };
  int s = (end - 1) / SPACING * SPACING;
  if (end % SPACING) {
    go_back_through_group(s, false, end - s);
    s -= SPACING;
  }
#pragma unroll 1
  for (; s >= first; s -= SPACING) go_back_through_group(s, true, SPACING);
#pragma unroll
  for (int c = 0; c < CHANNELS; c++) {
    dv[r * state_size + state_begin + own.place(c)] = to_v[c];
    if (SECOND) dn[r * state_size + state_begin + own.place(c)] = -0.5f * reciprocal(one_minus_beta) * to_s[c];
    float *to = sums + (r * state_size + state_begin + own.j + c) * SUMS;
#pragma unroll
    for (int f = 0; f < FEATURES; f++) to[f] += dw[c][f];
    to[FEATURES] += db[c];
    if (LEARNED) {
      to[FEATURES + 1] += dmu[c];
      to[FEATURES + 2] += dgain[c];
    }
  }
}
