// One time step of one LSTM layer, in float32 throughout and in one launch, for a stream that has few rows.
//
// BLOCKS. A block computes all four gates of UNITS units, for ROWS rows of the batch. Each gate of a unit has two warps: one
// multiplies its row of U by h, the other its row of W by x. So each warp waits for one row of weights only, and all rows
// are loaded at the same time. Then one thread for each unit and row adds up the sums and updates moments and cell.
//
// STATE. Some blocks write h while others still read it, so h_in and h_out are two buffers. So are k_in and k_out, the number
// of steps that a row has taken. An element of c, v and n has one thread, which writes it where it read it.
//
// DECAY. It is decay[row] if given. Else restart_every decides: mu if it is negative, k / (k + 3) if it is 0, and j / (j + 3)
// with j = k % restart_every if it is positive.
//
// Compiled for ROWS = 1, 2, 4 or 8; MOMENTS = 0 without momentum, 1 with v, 2 with v and n. Any B, D and H; weights
// as torch has them.

constexpr int UNITS = STEP_UNITS;
constexpr int GATES = 4 * UNITS;
constexpr int THREADS = 2 * GATES * 32;

// N floats that are loaded at once.
template <int N>
struct alignas(4 * N) Piece {
  float at[N];
};

// This lane's part of the products of a row of weights with ROWS vectors of n numbers, of which `rows` exist.
template <int N>
__device__ inline void multiply(float (&sums)[ROWS], const float *__restrict__ weights, const float *__restrict__ x, int n,
                                int rows, int lane) {
  constexpr int AHEAD = (N == 1 ? 8 : 4) / (ROWS > 4 ? 2 : 1);  // pieces that are loaded at once, as registers allow
  for (int begin = N * lane; begin < n; begin += 32 * N * AHEAD) {
    Piece<N> w[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int i = begin + 32 * N * j;
      w[j] = i < n ? *(const Piece<N> *)(weights + i) : Piece<N>{};
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float *row = x + (size_t)min(r, rows - 1) * n;
#pragma unroll
      for (int j = 0; j < AHEAD; j++) {
        const int i = begin + 32 * N * j;
        const Piece<N> piece = i < n ? *(const Piece<N> *)(row + i) : Piece<N>{};
#pragma unroll
        for (int k = 0; k < N; k++) sums[r] = fmaf(w[j].at[k], piece.at[k], sums[r]);
      }
    }
  }
}
// The sums over all lanes. Lane i gets that of row i % ROWS.
__device__ inline float add_up(float (&sums)[ROWS], int lane) {
#pragma unroll
  for (int n = ROWS / 2; n > 0; n /= 2) {
    const bool upper = lane & n;
#pragma unroll
    for (int i = 0; i < n; i++) {
      const float other = __shfl_xor_sync(0xffffffff, upper ? sums[i] : sums[i + n], n);
      sums[i] = (upper ? sums[i + n] : sums[i]) + other;
    }
  }
#pragma unroll
  for (int n = ROWS; n < 32; n *= 2) sums[0] += __shfl_xor_sync(0xffffffff, sums[0], n);
  return sums[0];
}
__device__ inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ inline float scheduled(long long k, int restart_every, float mu) {
  if (restart_every < 0) return mu;
  const long long j = restart_every ? k % restart_every : k;
  return (float)((double)j / (double)(j + 3));  // a ratio of counts, as exact as on a CPU
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    lstm_step(const float *__restrict__ x,         // (B, D)
              float *__restrict__ y,               // (B, H), h once more, or null
              const float *__restrict__ decay,     // (B,), or null
              const float *__restrict__ w_ih,      // (4, H, D)
              const float *__restrict__ w_hh,      // (4, H, H)
              const float *__restrict__ b_ih,      // (4, H) or null
              const float *__restrict__ b_hh,      // (4, H) or null
              const float *__restrict__ h_in,      // (B, H)
              float *__restrict__ h_out,           // (B, H)
              float *__restrict__ c,               // (B, H)
              float *__restrict__ v,               // (B, 4, H), if MOMENTS > 0
              float *__restrict__ n,               // (B, 4, H), if MOMENTS > 1
              const long long *__restrict__ k_in,  // (B,)
              long long *__restrict__ k_out,       // (B,)
              int B, int D, int H, int restart_every, float mu, float step,
              float beta, float one_minus_beta, float eps,  // eps: squared if eps_in_sqrt
              int eps_in_sqrt) {                   // v / sqrt(n + eps), else v / (sqrt(n) + eps)
  __shared__ float sums[2][GATES][ROWS];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int first = blockIdx.y * ROWS, rows = min(ROWS, B - first);

  // Load what the update needs before the products are computed.
  const int unit = blockIdx.x * UNITS + thread / ROWS, row = first + thread % ROWS;
  const bool mine = thread < UNITS * ROWS && unit < H && row < B;
  float old_v[4], old_n[4], bias_i[4], bias_h[4], old_c = 0.f, factor = 0.f;
  if (mine) {
    const long long k = k_in[row];
    old_c = c[(size_t)row * H + unit];
#pragma unroll
    for (int g = 0; g < 4; g++) {
      const size_t place = ((size_t)row * 4 + g) * H + unit;
      old_v[g] = MOMENTS > 0 ? v[place] : 0.f;
      old_n[g] = MOMENTS > 1 ? n[place] : 0.f;
      bias_i[g] = b_ih ? b_ih[g * H + unit] : 0.f;
      bias_h[g] = b_hh ? b_hh[g * H + unit] : 0.f;
    }
    if (MOMENTS) factor = decay ? decay[row] : scheduled(k, restart_every, mu);
    if (unit == 0) k_out[row] = k + 1;
  }

  // Warp 8 u + 2 g computes U h for gate g of unit u, and the next warp W x.
  const int number = warp / 2, side = warp % 2, own = blockIdx.x * UNITS + number / 4;
  const int length = side ? D : H;
  float parts[ROWS] = {};
  if (own < H) {
    const float *weights = (side ? w_ih : w_hh) + ((size_t)(number % 4) * H + own) * length;
    const float *vectors = (side ? x : h_in) + (size_t)first * length;
    const size_t addresses = (size_t)weights | (size_t)vectors;
    if (addresses % 16 == 0 && length % 4 == 0)
      multiply<4>(parts, weights, vectors, length, rows, lane);
    else if (addresses % 8 == 0 && length % 2 == 0)
      multiply<2>(parts, weights, vectors, length, rows, lane);
    else
      multiply<1>(parts, weights, vectors, length, rows, lane);
  }
  const float sum = add_up(parts, lane);
  if (lane < ROWS) sums[side][number][lane] = sum;
  __syncthreads();
  if (!mine) return;

  float z[4];
#pragma unroll
  for (int g = 0; g < 4; g++) {
    const int at = thread / ROWS * 4 + g;
    const size_t place = ((size_t)row * 4 + g) * H + unit;
    const float a = sums[1][at][thread % ROWS] + bias_i[g];
    float drive = a;
    if (MOMENTS > 0) {
      drive = fmaf(factor, old_v[g], step * a);
      v[place] = drive;
    }
    if (MOMENTS > 1) {
      const float second = fmaf(beta, old_n[g], one_minus_beta * a * a);
      n[place] = second;
      drive /= eps_in_sqrt ? sqrtf(second + eps) : sqrtf(second) + eps;
    }
    z[g] = drive + (sums[0][at][thread % ROWS] + bias_h[g]);
  }
  const float cell = fmaf(sigmoid(z[1]), old_c, sigmoid(z[0]) * tanhf(z[2])), h = sigmoid(z[3]) * tanhf(cell);
  const size_t place = (size_t)row * H + unit;
  c[place] = cell;
  h_out[place] = h;
  if (y) y[place] = h;
}
