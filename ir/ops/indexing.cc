#include "ir/ops/indexing.h"

#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {

absl::Status check_dim(int64_t dim, int rank, std::string_view what) {
  if (dim >= 0 && dim < rank) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("attribute '", what, "': expected a dimension below ", rank, ", found ", dim));
}

absl::Status check_dims(const std::vector<int64_t>& dims, int rank, std::string_view what) {
  std::vector<bool> seen(rank, false);
  for (int64_t d : dims) {
    PARTITA_RETURN_IF_ERROR(check_dim(d, rank, what));
    if (seen[d]) return absl::InvalidArgumentError(cat("attribute '", what, "': dimension ", d, " is listed twice"));
    seen[d] = true;
  }
  return absl::OkStatus();
}

absl::Status check_indices(const TensorType& indices) {
  if (indices.dtype == DType::kI32 || indices.dtype == DType::kI64) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("expected indices of type i32 or i64, found ", to_string(indices)));
}

absl::StatusOr<std::vector<TensorType>> one_output(DType dtype, Shape shape) {
  if (!checked_elements(shape))
    return absl::InvalidArgumentError(cat("a result of ", to_string(shape), " elements is too large"));
  return std::vector<TensorType>{{dtype, std::move(shape)}};
}

std::vector<bool> dim_flags(const std::vector<int64_t>& dims, int rank) {
  std::vector<bool> flags(rank, false);
  for (int64_t d : dims) flags[d] = true;
  return flags;
}

bool ranks_before(const Tensor& x, int64_t a, int64_t b, bool largest) {
  if (is_float(x.type.dtype)) {
    bool nan_a = std::isnan(x.f[a]), nan_b = std::isnan(x.f[b]);
    if (nan_a || nan_b) return largest ? nan_a && !nan_b : !nan_a && nan_b;
    return largest ? x.f[a] > x.f[b] : x.f[a] < x.f[b];
  }
  if (x.type.dtype == DType::kU64) {
    uint64_t ua = static_cast<uint64_t>(x.i[a]), ub = static_cast<uint64_t>(x.i[b]);
    return largest ? ua > ub : ua < ub;
  }
  return largest ? x.i[a] > x.i[b] : x.i[a] < x.i[b];
}

absl::Status check_scatter_mode(const std::string& mode) {
  for (std::string_view known : {"none", "add", "mul", "max", "min"}) {
    if (mode == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(cat("attribute 'mode': expected none, add, mul, max or min, found ", quote(mode)));
}

namespace {

void merge_integer(const std::string& mode, bool u64, int64_t& now, int64_t update) {
  uint64_t a = static_cast<uint64_t>(now), b = static_cast<uint64_t>(update);
  bool less = u64 ? a < b : now < update;
  if (mode == "none" || (mode == "max" && less) || (mode == "min" && !less)) {
    now = update;
  } else if (mode == "add") {
    now = static_cast<int64_t>(a + b);
  } else if (mode == "mul") {
    now = static_cast<int64_t>(a * b);
  }
}

void merge_float(const std::string& mode, double& now, double update) {
  if (mode == "add") {
    now += update;
  } else if (mode == "mul") {
    now *= update;
  } else if (mode == "none" || std::isnan(update) || (mode == "max" ? now < update : update < now)) {
    now = update;
  }
}

}  // namespace

void scatter_element(const std::string& mode, const Tensor& updates, int64_t source, Tensor& to, int64_t target) {
  if (is_float(to.type.dtype)) {
    merge_float(mode, to.f[target], updates.f[source]);
  } else {
    merge_integer(mode, to.type.dtype == DType::kU64, to.i[target], updates.i[source]);
  }
}

ValueId indices_within(Builder& b, ValueId indices, int64_t size) {
  auto number = [&](int64_t n) { return b.constant(to_literal({{b.dtype(indices), {}}, {}, {n}})); };
  const ValueId zero = number(0), i = b.select(b.emit("lt", {indices, zero}), b.add(indices, number(size)), indices);
  return b.emit("max", {zero, b.emit("min", {i, number(size - 1)})});
}

std::vector<ValueId> scatter_gradient(const OpUse& use, PickFunction pick, PutFunction put) {
  Builder& b = use.b;
  std::string mode = use.attrs.s("mode");
  ValueId g = use.gradients[0], x = use.inputs[0], updates = use.inputs[2], out = use.outputs[0];
  DType type = use.types[0].dtype;
  if (mode == "add") return {g, kNoValue, pick(use, g)};
  if (mode == "none") return {put(use, g, b.full(type, use.types[2].shape, 0), "none"), kNoValue, pick(use, g)};
  if (mode == "mul") {
    ValueId others = b.div(pick(use, b.mul(g, out)),
                           updates);  // the product of everything else; where this update is zero, of x alone
    ValueId du = b.select(b.emit("eq", {updates, b.scalar(type, 0)}), pick(use, b.mul(g, x)), others);
    return {put(use, g, updates, "mul"), kNoValue, du};
  }
  ValueId x_attains = b.cast(b.emit("eq", {x, out}), type),
          update_attains = b.cast(b.emit("eq", {updates, pick(use, out)}), type);
  ValueId share = b.div(g, put(use, x_attains, update_attains, "add"));
  return {b.mul(share, x_attains), kNoValue, b.mul(pick(use, share), update_attains)};
}

int64_t nd_position(const Tensor& indices, const Shape& shape, int64_t batch_dims, const std::vector<int64_t>& index) {
  size_t many = indices.type.shape.size() - 1, rank = shape.size();
  int64_t k = indices.type.shape.back(), tuple = 0, at = 0;
  for (size_t d = 0; d < many; ++d) tuple = tuple * indices.type.shape[d] + index[d];
  for (size_t d = 0; d < rank; ++d) {
    int64_t j = static_cast<int64_t>(d) - batch_dims;
    at = at * shape[d] + (j < 0   ? index[d]
                          : j < k ? clamped_index(indices.i[tuple * k + j], shape[d])
                                  : index[many + j - k]);
  }
  return at;
}

absl::StatusOr<Shape> gather_nd_shape(const Shape& x, const TensorType& indices, int64_t batch_dims) {
  PARTITA_RETURN_IF_ERROR(check_indices(indices));
  int64_t rank = static_cast<int64_t>(x.size()), index_rank = indices.rank();
  std::string found = cat(", found ", to_string(x), " and ", to_string(indices));
  if (index_rank < 1 || batch_dims < 0 || batch_dims >= index_rank || batch_dims > rank) {
    return absl::InvalidArgumentError(
        cat("attribute 'batch_dims': expected less than either rank", found, " with ", batch_dims));
  }
  int64_t k = indices.shape.back();
  if (k < 1 || k > rank - batch_dims)
    return absl::InvalidArgumentError(
        cat("expected 1 to ", rank - batch_dims, " coordinates in the last dimension of the indices", found));
  Shape out(indices.shape.begin(), indices.shape.end() - 1);
  for (int64_t d = 0; d < batch_dims; ++d) {
    if (x[d] != indices.shape[d]) return absl::InvalidArgumentError(cat("expected equal batch dimensions", found));
  }
  out.insert(out.end(), x.begin() + batch_dims + k, x.end());
  for (int64_t d = batch_dims; d < batch_dims + k; ++d) {
    if (x[d] == 0 && elements(indices.shape) > 0)
      return absl::InvalidArgumentError(cat("expected something to index", found));
  }
  return out;
}

}  // namespace partita
