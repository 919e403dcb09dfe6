#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/kernels/attention.h"

namespace partita::runtime {

namespace {

AttentionRows dense_rows(int64_t heads, int64_t rows, int64_t width) {
  return {0, heads * rows * width, rows * width, width};
}

// What the step's parameters say of where rows lie; within the operand, which has `elements`.
absl::Status read_rows(const KernelRequest& r, const char* name, const Operand& operand, int64_t batch, int64_t heads,
                       int64_t rows, int64_t width, AttentionRows& to) {
  const Shape found = r.ints(name);
  const int64_t all = *element_count(operand.shape);
  const auto is_inside = [&](int64_t x) { return x >= 0 && x <= all; };
  if (found.size() != 4 || !std::all_of(found.begin(), found.end(), is_inside))
    return r.error(cat("four numbers of where ", name, " lies"));
  to = {found[0], found[1], found[2], found[3]};
  const int64_t last = to.offset + (batch - 1) * to.batch + (heads - 1) * to.head + (rows - 1) * to.row + width;
  if (last > all) return r.error(cat(name, " within its operand"));
  return absl::OkStatus();
}

// The shape of a step that has `sizes`, and where its operands' and results' rows lie.
absl::StatusOr<AttentionShape> with_views(const KernelRequest& r, bool gradient) {
  AttentionShape a;
  const Shape z = r.ints("sizes");
  if (z.size() != 7 || *std::min_element(z.begin(), z.end()) < 1 || z[1] % z[2] != 0)
    return r.error("sizes of batch, heads, key heads, queries, keys, and elements of a query and a value");
  a.batch = z[0], a.heads = z[1], a.kv_heads = z[2], a.s = z[3], a.t = z[4], a.d = z[5], a.e = z[6];
  const bool together = gradient && r.outputs() == 1;
  const auto read = [&](const char* name, size_t operand, bool keys, int64_t width, AttentionRows& to) {
    if (operand >= r.step().operands.size()) return r.error("operands for all rows");
    const Operand& o = r.step().operands[operand];
    if (o.dtype != r.dtype()) return r.error("rows of one dtype");
    return read_rows(r, name, o, a.batch, keys ? a.kv_heads : a.heads, keys ? a.t : a.s, width, to);
  };
  const size_t first = gradient ? 1 : 0, result = r.inputs();
  PARTITA_RETURN_IF_ERROR(read("q", first, false, a.d, a.q));
  PARTITA_RETURN_IF_ERROR(read("k", first + 1, true, a.d, a.k));
  PARTITA_RETURN_IF_ERROR(read("v", first + 2, true, a.e, a.v));
  PARTITA_RETURN_IF_ERROR(read("out", gradient ? 5 : result, false, a.e, a.out));
  if (!gradient) return a;
  PARTITA_RETURN_IF_ERROR(read("g", 0, false, a.e, a.g));
  PARTITA_RETURN_IF_ERROR(read("dq", result, false, a.d, a.dq));
  PARTITA_RETURN_IF_ERROR(read("dk", result + (together ? 0 : 1), true, a.d, a.dk));
  PARTITA_RETURN_IF_ERROR(read("dv", result + (together ? 0 : 2), true, a.e, a.dv));
  return a;
}

absl::StatusOr<AttentionShape> of_operands(const KernelRequest& r, const Operand& q, const Operand& k,
                                           const Operand& v) {
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
  a.q = a.dq = dense_rows(a.heads, a.s, a.d);
  a.k = a.dk = dense_rows(a.kv_heads, a.t, a.d);
  a.v = a.dv = dense_rows(a.kv_heads, a.t, a.e);
  a.out = a.g = dense_rows(a.heads, a.s, a.e);
  return a;
}

}  // namespace

absl::StatusOr<AttentionShape> AttentionShape::make(const KernelRequest& r, const Operand& q, const Operand& k,
                                                    const Operand& v, const Operand* mask) {
  AttentionShape a;
  if (r.has_param("sizes")) {
    PARTITA_ASSIGN_OR_RETURN(a, with_views(r, &q != &r.in(0)));
  } else {
    PARTITA_ASSIGN_OR_RETURN(a, of_operands(r, q, k, v));
  }
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

std::vector<AttentionPart> attention_parts(const AttentionShape& whole, int64_t count) {
  const int64_t in_sample = std::max<int64_t>(count / whole.batch, 1), samples = whole.batch * in_sample / count,
                kv_heads = whole.kv_heads / in_sample, heads = kv_heads * whole.group();
  std::vector<AttentionPart> parts;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t b = n / in_sample * samples, h = n % in_sample * heads, kv = n % in_sample * kv_heads;
    AttentionPart& part = parts.emplace_back(AttentionPart{whole, (b * whole.heads + h) * whole.s});
    AttentionShape& a = part.shape;
    a.batch = samples, a.heads = heads, a.kv_heads = kv_heads;
    for (AttentionRows* rows : {&a.q, &a.out, &a.g, &a.dq}) rows->offset = rows->at(b, h, 0);
    for (AttentionRows* rows : {&a.k, &a.v, &a.dk, &a.dv}) rows->offset = rows->at(b, kv, 0);
  }
  return parts;
}

}  // namespace partita::runtime
