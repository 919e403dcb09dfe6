// A Builder for the importer: faults of the use are thrown with the ONNX node in front, and what depends on constants
// alone is folded while it is small.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/builder.h"

namespace partita {

// Thrown inside the importer alone; import_onnx turns it into its status.
struct ImportError {
  absl::Status status;
};

class Emitter {
 public:
  Builder& builder() { return b_; }

  // As Builder's, but throws ImportError (InvalidArgument) where the use is unsound.
  std::vector<ValueId> emit_all(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  ValueId emit(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return emit_all(op, std::move(inputs), std::move(attrs))[0];
  }

  ValueId add(ValueId a, ValueId b) { return emit("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return emit("sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return emit("mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return emit("div", {a, b}); }
  ValueId max(ValueId a, ValueId b) { return emit("max", {a, b}); }
  ValueId min(ValueId a, ValueId b) { return emit("min", {a, b}); }
  ValueId lt(ValueId a, ValueId b) { return emit("lt", {a, b}); }
  ValueId le(ValueId a, ValueId b) { return emit("le", {a, b}); }
  ValueId eq(ValueId a, ValueId b) { return emit("eq", {a, b}); }
  ValueId exp(ValueId a) { return emit("exp", {a}); }
  ValueId neg(ValueId a) { return emit("neg", {a}); }
  ValueId select(ValueId c, ValueId a, ValueId b) { return emit("select", {c, a, b}); }
  ValueId scalar(DType dtype, double value) { return b_.scalar(dtype, value); }
  ValueId like(ValueId a, double value) { return b_.scalar(dtype(a), value); }
  ValueId constant(Literal literal) { return b_.constant(std::move(literal)); }
  ValueId floats(DType dtype, Shape shape, const std::vector<double>& values);
  ValueId ints(DType dtype, Shape shape, const std::vector<int64_t>& values);
  ValueId ints(const std::vector<int64_t>& values) {
    return ints(DType::kI64, {static_cast<int64_t>(values.size())}, values);
  }
  ValueId scale(ValueId a, double factor) { return factor == 1 ? a : mul(a, like(a, factor)); }
  ValueId shift(ValueId a, double term) { return term == 0 ? a : add(a, like(a, term)); }
  ValueId cast(ValueId a, DType to) { return dtype(a) == to ? a : emit("cast", {a}, {{"to", to}}); }
  ValueId reshape(ValueId a, Shape to);
  ValueId transpose(ValueId a, std::vector<int64_t> permutation);
  ValueId broadcast_to(ValueId a, const Shape& to) {
    return shape(a) == to ? a : emit("broadcast", {a}, {{"shape", to}});
  }
  ValueId full(DType dtype, const Shape& shape, double value) { return broadcast_to(scalar(dtype, value), shape); }
  ValueId slice(ValueId a, int dim, int64_t start, int64_t limit, int64_t stride = 1);
  ValueId concat(std::vector<ValueId> parts, int dim);
  ValueId gather(ValueId a, ValueId indices, int dim) { return emit("gather", {a, indices}, {{"dim", int64_t{dim}}}); }
  ValueId pad(ValueId a, ValueId value, std::vector<int64_t> low, std::vector<int64_t> high);
  ValueId reduce(std::string_view op, ValueId a, std::vector<int64_t> dims, bool keep);
  ValueId sum(ValueId a, std::vector<int64_t> dims, bool keep) {
    return reduce("reduce_sum", a, std::move(dims), keep);
  }
  ValueId mean(ValueId a, std::vector<int64_t> dims, bool keep);
  ValueId matmul(ValueId a, ValueId b, bool transpose_a = false, bool transpose_b = false);
  ValueId iota(int64_t size, DType dtype = DType::kI64) { return emit("iota", {}, {{"size", size}, {"to", dtype}}); }
  // Element numbers of a tensor of `shape`, i64.
  ValueId numbers(const Shape& shape);

  // By value: emitting moves the table of values.
  TensorType type(ValueId v) const { return b_.type(v); }
  Shape shape(ValueId v) const { return b_.shape(v); }
  DType dtype(ValueId v) const { return b_.dtype(v); }
  int rank(ValueId v) const { return b_.rank(v); }
  const Literal* literal(ValueId v) const { return b_.literal(v); }

  // The value's literal, computed from constants and, where `states` allows it, from frozen states that have one.
  // Throws in terms of `what`: a value that depends on data or on weights that are not known, or one that would take
  // more than kMaxFolded elements.
  Literal known(ValueId v, std::string_view what);
  bool is_known(ValueId v) const { return literal(v) || known_.count(v) > 0 || derived(v); }
  // States whose values `known` has used: they can no longer be trained.
  const std::vector<ValueId>& used_states() const { return used_states_; }
  // Called when an origin is needed for the first time: makes the text.
  void at_node(std::string text);

  static constexpr int64_t kMaxEager = 65536;                     // elements of a result that is folded at once
  static constexpr int64_t kMaxFolded = 64 << 20;                 // elements computed for one `known`
  static constexpr int64_t kMaxWork = 256 << 20;                  // elements folded at once, in total
  static constexpr int64_t kMaxConstantBytes = int64_t{1} << 40;  // of one value that depends on constants alone

 private:
  bool derived(ValueId v) const { return static_cast<size_t>(v) < derived_.size() && derived_[v]; }
  bool fold_now(const OpDef& op, const std::vector<ValueId>& inputs, const Attrs& attrs,
                const std::vector<TensorType>& types);
  std::vector<ValueId> fold(const OpDef& op, const std::vector<ValueId>& inputs, const Attrs& attrs);
  const Literal* leaf(ValueId v, bool mark);

  Builder b_;
  std::vector<bool> derived_;  // per value: made by a node from constants alone
  std::unordered_map<ValueId, Literal> known_;
  std::vector<ValueId> used_states_;
  int64_t work_ = 0;
  std::string pending_origin_;
};

}  // namespace partita
