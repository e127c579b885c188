// After the backward pass: from dz, the gradients of the gates, to those of the weights and of the drive.

// The right operand [h_{t-1} | x | 1], whose product with dz^T gives all gradients of the weights: (R, room, columns) in
// halves, for the rows from `before` on. With `fine`, as many columns more hold LOW_SCALE times what the halves lost. Rows are
// multiplied by 1 / S, which dz lacks, over the largest 1 / S. Each feature of x is scaled to the size of h. A thread packs
// 8 columns.
extern "C" __global__ void pack_gradient_operand(const float *y, const float *h0, const float *x, const float *scales,
                                                 const u32 *largest_scale, const u32 *largest_x, uint4 *packed,
                                                 const int *begins, int before, int rows, int room, int T, int B, int N,
                                                 int H, int F, int columns, int fine, int own_state, int own_input) {
  const int i = thread_index(), eights = columns / 8, r = blockIdx.y;
  if (i >= rows * eights) return;
  const Rows all = {begins, nullptr, T, B};
  const int row = before + i / eights, column = i % eights * 8, t = all.step(row), b = row - all.of(t);
  const float factor = scales[(size_t)r * room + i / eights] / __uint_as_float(largest_scale[r]);
  const float *h = t > 0 ? y + ((size_t)r * N + all.of(t - 1) + b) * H : h0 + ((size_t)r * own_state * B + b) * H;
  x += ((size_t)r * own_input * N + row) * F;
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
        v[n] = x[d] / power_below(__uint_as_float(largest_x[(size_t)r * own_input * F + d]));
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
  for (int n = 0; n < 8; n++) v[n] = scaled_low_half(v[n]);
  packed[eights] = {half2_of(v[0], v[1]), half2_of(v[2], v[3]), half2_of(v[4], v[5]), half2_of(v[6], v[7])};
}

// Adds the products of all chunks of time, (chunk, R, 4 H interleaved, columns), and writes the gradients in torch's order.
extern "C" __global__ void finish_weight_gradients(const float *products, const u32 *largest_scales, const u32 *largest_x,
                                                   float *dw_hh, float *dw_ih, float *db_ih, float *db_hh, int chunks, int R,
                                                   int H, int D, int F, int columns, int own_input) {
  const int width = H + F + 1, i = thread_index(), r = blockIdx.y;
  if (i >= 4 * H * width) return;
  const int gate_unit = i / width, interleaved = gate_unit % H * 4 + gate_unit / H, column = i % width, d = column - H;
  float sum = 0.f;
  for (int c = 0; c < chunks; c++)
    sum = fmaf(products[(((size_t)c * R + r) * 4 * H + interleaved) * columns + column],
               __uint_as_float(largest_scales[c * R + r]), sum);
  if (d >= 0 && d < F) sum *= power_below(__uint_as_float(largest_x[(size_t)r * own_input * F + d]));
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

// dz in torch's order, (R, N, 4, H), for the rows from `before` on: the gradient of a drive that the user passed.
extern "C" __global__ void unpack_drive_gradient(const uint2 *dz, const uint2 *dz_low, const float *scales, float *dx,
                                                 int before, int rows, int room, int N, int H) {
  const int i = thread_index(), r = blockIdx.y;
  if (i >= rows * H) return;
  const int row = i / H, unit = i % H;
  const float factor = scales[(size_t)r * room + row];
  const size_t place = (size_t)r * room * H + i;
  float2 if_ = floats_of(dz[place].x), go = floats_of(dz[place].y);
  if (dz_low) {
    const float2 low_if = floats_of(dz_low[place].x), low_go = floats_of(dz_low[place].y);
    if_ = {fmaf(1.f / LOW_SCALE, low_if.x, if_.x), fmaf(1.f / LOW_SCALE, low_if.y, if_.y)};
    go = {fmaf(1.f / LOW_SCALE, low_go.x, go.x), fmaf(1.f / LOW_SCALE, low_go.y, go.y)};
  }
  dx += ((size_t)r * N + before + row) * 4 * H + unit;
  dx[0] = factor * if_.x;
  dx[H] = factor * if_.y;
  dx[2 * H] = factor * go.x;
  dx[3 * H] = factor * go.y;
}
