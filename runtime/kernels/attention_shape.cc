#include "runtime/kernels/attention.h"

namespace partita::runtime {

absl::StatusOr<AttentionShape> AttentionShape::make(const KernelRequest& r, const Operand& q, const Operand& k,
                                                    const Operand& v, const Operand* mask) {
  AttentionShape a;
  if (q.shape.size() != 4 || k.shape.size() != 4 || v.shape.size() != 4)
    return r.error("q [b, h, s, d], k [b, kv, t, d], v [b, kv, t, e]");
  a.batch = q.shape[0];
  a.heads = q.shape[1];
  a.s = q.shape[2];
  a.d = q.shape[3];
  a.kv_heads = k.shape[1];
  a.t = k.shape[2];
  a.e = v.shape[3];
  const bool fits = k.shape[0] == a.batch && v.shape[0] == a.batch && v.shape[1] == a.kv_heads && v.shape[2] == a.t &&
                    k.shape[3] == a.d && (a.kv_heads > 0 ? a.heads % a.kv_heads == 0 : a.heads == 0);
  if (!fits || k.dtype != q.dtype || v.dtype != q.dtype)
    return r.error("q [b, h, s, d], k [b, kv, t, d], v [b, kv, t, e] of one dtype, h a multiple of kv");
  a.scale = r.f("scale", a.d > 0 ? 1.0 / std::sqrt(static_cast<double>(a.d)) : 1.0);
  if (!std::isfinite(a.scale)) return r.error("a finite scale");
  a.causal = r.i("causal", 0) != 0;
  if (mask == nullptr || mask->dtype == DType::kInvalid) return a;
  const Shape full = {a.batch, a.heads, a.s, a.t};
  if (mask->shape.size() != 4 || (mask->dtype != DType::kBool && !is_float(mask->dtype)))
    return r.error("a bool or float mask of rank 4");
  a.mask = mask->dtype == DType::kBool ? DType::kBool : attention_compute_type(q.dtype);
  int64_t stride = 1;
  for (size_t d = 4; d-- > 0; stride *= mask->shape[d]) {
    if (mask->shape[d] != 1 && mask->shape[d] != full[d]) return r.error("a mask that broadcasts to [b, h, s, t]");
    a.mask_stride[d] = mask->shape[d] == 1 ? 0 : stride;
  }
  return a;
}

}  // namespace partita::runtime
