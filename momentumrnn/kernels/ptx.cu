// One function for each PTX instruction that the kernels use; no headers, so that NVRTC needs none.
// Addresses of shared memory are 32-bit; those of another CTA of the cluster come from `on_cta`.

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// ---- numbers

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Like fminf, but a nan stays a nan.
__device__ inline float smaller(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
// Two numbers in one register, the first in the low half. Too large ones become inf, so that they are seen.
__device__ inline u32 half2_of(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ inline u32 bfloat2_of(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ inline float2 floats_of(u32 halves) {
  float2 x;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(x.x), "=f"(x.y)
      : "r"(halves));
  return x;
}
// The number rounded to bfloat16.
__device__ inline float bfloat_part(float x) { return __uint_as_float(bfloat2_of(x, 0.f) << 16); }
// The larger of two pairs of 16-bit counts.
__device__ inline u32 larger_of_each(u32 a, u32 b) {
  u32 both;
  asm("max.u16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
}

// ---- tensor cores: D (16 x 8) += A (16 x 16) B (16 x 8)

__device__ inline void multiply_halves(float (&d)[4], const uint4 &a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
__device__ inline void multiply_bfloats(float (&d)[4], const uint4 &a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices: lane i points at row i % 8 of matrix i / 8.
__device__ inline uint4 load_matrices(u32 address) {
  uint4 m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
               : "r"(address)
               : "memory");
  return m;
}
__device__ inline u32 transpose(u32 matrix) {
  u32 turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(matrix));
  return turned;
}

// ---- shared memory

__device__ inline u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// Keeps a number in a register. Otherwise the compiler recomputes it from a special register in every step, 20 cycles or
// more.
__device__ inline u32 settled(u32 x) {
  u32 y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;" : "=r"(y) : "r"(x), "r"((u32)threadIdx.x));
  return y;
}
__device__ inline void store(u32 address, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ inline void store(u32 address, u32 x, u32 y) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
__device__ inline void store(u32 address, const uint4 &x) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ inline u32 load(u32 address) {
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline float load_float(u32 address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline uint2 load_pair(u32 address) {
  uint2 x;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline float2 load_floats(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline uint4 load_four(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// ---- copies from global memory that this thread alone waits for

// Does nothing unless `active`.
template <int BYTES>
__device__ inline void copy_later(u32 address, const void *from, bool active) {
  if (BYTES == 16)
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(address),
                 "l"(from), "r"((u32)active)
                 : "memory");
  else
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], %3; }" ::"r"(address),
                 "l"(from), "r"((u32)active), "n"(BYTES)
                 : "memory");
}
__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATEST>  // waits for all groups of copies but so many latest ones
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}

// ---- the cluster

__device__ inline u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline u32 on_cta(u32 address, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void store_there(u32 address, u32 x) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
// Stores that count their bytes on a barrier of the receiving CTA; none unless `active`.
__device__ inline void send(u32 address, u32 x, u32 barrier, bool active = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %3, 0; "
      "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2]; }" ::"r"(address),
      "r"(x), "r"(barrier), "r"((u32)active)
      : "memory");
}
__device__ inline void send(u32 address, float x, float y, u32 barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(
                   address),
               "f"(x), "f"(y), "r"(barrier)
               : "memory");
}

// ---- barriers in shared memory that count bytes; each phase has one arrival, made by `expect`

__device__ inline void create_barrier(u32 barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Acquires at CTA scope, the default and what libraries use. PTX's memory model would ask for cluster scope, to match the
// senders' release. But the data is in shared memory, which no cache holds, and cluster scope invalidates the L1 cache in
// every step.
__device__ inline bool complete(u32 barrier, u32 phase) {
  u32 done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done;
}
// A wait of more than some seconds is a defect: it ends in an error, never in a GPU that hangs.
__device__ inline void wait(u32 barrier, u32 phase) {
  if (complete(barrier, phase)) return;
  const long long begin = clock64();
  while (!complete(barrier, phase))
    if (clock64() - begin > 10000000000LL) asm volatile("trap;");
}
