#include "runtime/kernels/attention.h"

namespace partita::runtime {

absl::StatusOr<AttentionShape> AttentionShape::make(const KernelRequest& r, const Operand& q, const Operand& k, const Operand& v, const Operand* mask) {
  AttentionShape a;
  if (q.shape.size() != 4 || k.shape.size() != 4 || v.shape.size() != 4) return r.error("q [b, h, s, d], k [b, kv, t, d], v [b, kv, t, e]");
  a.batch = q.shape[0];
  a.heads = q.shape[1];
  a.s = q.shape[2];
  a.d = q.shape[3];
  a.kv_heads = k.shape[1];
  a.t = k.shape[2];
  a.e = v.shape[3];
  const bool fits = k.shape[0] == a.batch && v.shape[0] == a.batch && v.shape[1] == a.kv_heads && v.shape[2] == a.t && k.shape[3] == a.d && (a.kv_heads > 0 ? a.heads % a.kv_heads == 0 : a.heads == 0);
  if (!fits || k.dtype != q.dtype || v.dtype != q.dtype) return r.error("q [b, h, s, d], k [b, kv, t, d], v [b, kv, t, e] of one dtype, h a multiple of kv");
  a.scale = r.f("scale", a.d > 0 ? 1.0 / std::sqrt(static_cast<double>(a.d)) : 1.0);
  if (!std::isfinite(a.scale)) return r.error("a finite scale");
  a.causal = r.i("causal", 0) != 0;
  if (mask == nullptr || mask->dtype == DType::kInvalid) return a;
  const Shape full = {a.batch, a.heads, a.s, a.t};
  if (mask->shape.size() != 4 || (mask->dtype != DType::kBool && mask->dtype != q.dtype)) return r.error("a mask of rank 4, bool or of q's dtype");
  a.mask = mask->dtype;
  int64_t stride = 1;
  for (size_t d = 4; d-- > 0; stride *= mask->shape[d]) {
    if (mask->shape[d] != 1 && mask->shape[d] != full[d]) return r.error("a mask that broadcasts to [b, h, s, t]");
    a.mask_stride[d] = mask->shape[d] == 1 ? 0 : stride;
  }
  return a;
}

void widen(DType from, const std::byte* x, float* y, int64_t count) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(x);
#pragma omp parallel for schedule(static) if (worth_threads(count))
  for (int64_t i = 0; i < count; ++i) y[i] = from == DType::kBF16 ? bf16_to_float(bits[i]) : f16_to_float(bits[i]);
}

void narrow(DType to, const float* x, std::byte* y, int64_t count) {
  uint16_t* bits = reinterpret_cast<uint16_t*>(y);
#pragma omp parallel for schedule(static) if (worth_threads(count))
  for (int64_t i = 0; i < count; ++i) bits[i] = to == DType::kBF16 ? float_to_bf16(x[i]) : float_to_f16(x[i]);
}

}  // namespace partita::runtime
