#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

// The factors of the indices; of x's dimensions before and after `dim`.
struct Names {
  std::string indices, reduced_indices, before, after;
};

Names names(int rank, int index_rank, int64_t dim) {
  Names n;
  for (int d = 0; d < index_rank; ++d) {
    append(n.indices, " i", d);
    append(n.reduced_indices, " i", d, "+");
  }
  for (int d = 0; d < rank; ++d) {
    if (d != dim) append(d < dim ? n.before : n.after, " ", factor_name(d));
  }
  return n;
}

absl::Status check_positions(const TensorType& positions, int64_t rows) {
  if (positions.dtype != DType::kI64 || positions.shape != Shape{rows})
    return absl::InvalidArgumentError(cat("expected positions i64[", rows, "], found ", to_string(positions)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> gather_rows_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[2]));
  PARTITA_RETURN_IF_ERROR(check_positions(use.inputs[1], use.shape(0)[dim]));
  if (use.attrs.i("size") < 1 || use.shape(0)[dim] < 1)
    return absl::InvalidArgumentError(cat("expected rows to gather, found ", to_string(use.inputs[0])));
  Shape shape(use.shape(0).begin(), use.shape(0).begin() + dim);
  shape.insert(shape.end(), use.shape(2).begin(), use.shape(2).end());
  shape.insert(shape.end(), use.shape(0).begin() + dim + 1, use.shape(0).end());
  return one_output(use.dtype(), std::move(shape));
}

std::string gather_rows_formula(const OpView& use) {
  Names n = names(use.rank(), use.rank(2), use.attrs.i("dim"));
  return cat("~", n.before, " v+", n.after, ", v,", n.indices, " ->", n.before, n.indices, n.after);
}

absl::StatusOr<std::vector<TensorType>> gather_rows_grad_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  int rank = use.rank(0) - use.rank(2) + 1;
  PARTITA_RETURN_IF_ERROR(check_dim(dim, rank));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[2]));
  if (use.rank(1) != 1 || use.shape(1)[0] < 1 || use.attrs.i("size") < 1)
    return absl::InvalidArgumentError(cat("expected positions of rows, found ", to_string(use.inputs[1])));
  PARTITA_RETURN_IF_ERROR(check_positions(use.inputs[1], use.shape(1)[0]));
  Shape middle(use.shape(0).begin() + dim, use.shape(0).begin() + dim + use.rank(2));
  if (middle != use.shape(2)) {
    return absl::InvalidArgumentError(cat("expected a gradient with dimensions ", to_string(use.shape(2)), " at ", dim,
                                          ", found ", to_string(use.inputs[0])));
  }
  Shape shape(use.shape(0).begin(), use.shape(0).begin() + dim);
  shape.push_back(use.shape(1)[0]);
  shape.insert(shape.end(), use.shape(0).begin() + dim + use.rank(2), use.shape(0).end());
  return one_output(use.dtype(), std::move(shape));
}

std::string gather_rows_grad_formula(const OpView& use) {
  Names n = names(use.rank(0) - use.rank(2) + 1, use.rank(2), use.attrs.i("dim"));
  return cat("~", n.before, n.reduced_indices, n.after, ", v,", n.indices, " ->", n.before, " v", n.after);
}

// Where the indices stand among the rows that are here, and whether they do, as broadcast over the gathered tensor.
struct Rows {
  ValueId index, here;
};

Rows rows_of(Builder& b, const Attrs& attrs, ValueId positions, ValueId indices, int64_t rows, int rank) {
  DType type = DType::kI64;
  auto number = [&](int64_t n) { return b.constant(to_literal({{type, {}}, {}, {n}})); };
  int64_t size = attrs.i("size"), dim = attrs.i("dim");
  ValueId i = b.cast(indices, type), zero = number(0);
  i = b.select(b.emit("lt", {i, zero}), b.add(i, number(size)), i);
  i = b.emit("max", {zero, b.emit("min", {i, number(size - 1)})});
  // For each of all rows, which one it is here; `rows` for those that are not.
  ValueId nowhere = b.broadcast_to(number(rows), {size + 1});
  positions = b.emit("min", {positions, number(size)});  // one more for the rows that no index names
  ValueId place = b.emit("scatter_elements", {nowhere, positions, b.emit("iota", {}, {{"size", rows}, {"to", type}})},
                         {{"dim", int64_t{0}}, {"mode", std::string("none")}});
  i = b.emit("gather", {place, i}, {{"dim", int64_t{0}}});
  ValueId here = b.emit("lt", {i, number(rows)});
  i = b.emit("min", {i, number(rows - 1)});
  Shape wide(static_cast<size_t>(dim), 1);
  wide.insert(wide.end(), b.shape(indices).begin(), b.shape(indices).end());
  while (static_cast<int>(wide.size()) < rank) wide.push_back(1);
  return {i, b.reshape(here, std::move(wide))};
}

std::vector<ValueId> gather_rows_expand(const OpUse& use) {
  Builder& b = use.b;
  int64_t dim = use.attrs.i("dim");
  int rank = use.types[0].rank() - 1 + use.types[2].rank();
  Rows r = rows_of(b, use.attrs, use.inputs[1], use.inputs[2], use.types[0].shape[dim], rank);
  ValueId picked = b.emit("gather", {use.inputs[0], r.index}, {{"dim", dim}});
  return {b.select(r.here, picked, b.scalar(b.dtype(picked), 0))};
}

std::vector<ValueId> gather_rows_grad_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId g = use.inputs[0];
  int64_t rows = use.types[1].shape[0];
  Rows r = rows_of(b, use.attrs, use.inputs[1], use.inputs[2], rows, use.types[0].rank());
  return {b.emit("gather_grad", {b.select(r.here, g, b.scalar(b.dtype(g), 0)), r.index},
                 {{"dim", use.attrs.i("dim")}, {"size", rows}})};
}

// More rows, of which indices name those that there were: as in a gather that is longer (ops/gather.cc), so that it
// makes no difference whether that was longer or split first. None where its positions are as they were.
std::vector<ValueId> lengthened_rows(const OpUse& use, const char* op) {
  const int64_t size = use.attrs.i("size"), rows = use.b.shape(use.inputs[1])[0];
  if (use.types[1].shape[0] != size || rows == size) return {};
  const ValueId indices = indices_within(use.b, use.inputs[2], size);
  return {use.b.emit(op, {use.inputs[0], use.inputs[1], indices}, {{"dim", use.attrs.i("dim")}, {"size", rows}})};
}

}  // namespace

// gather along `dim`, of whose `size` rows those at `positions` (each once; what is at `size` and beyond is no row) are
// here: the others count as zero, so that a split of the rows leaves a partial sum. Indices as in gather.
extern const OpDef kGatherRows = {
    .name = "gather_rows",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i dim, i size",
    .formula_of = gather_rows_formula,
    .infer = gather_rows_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("gather_rows_grad", {use.gradients[0], use.inputs[1], use.inputs[2]}, use.attrs), kNoValue,
              kNoValue};
    },
    .expand = gather_rows_expand,
    .lengthened = [](const OpUse& use, std::span<const Shape>) { return lengthened_rows(use, "gather_rows"); },
};

// (gradient of gather_rows, positions, indices) -> gradient of x.
extern const OpDef kGatherRowsGrad = {
    .name = "gather_rows_grad",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i dim, i size",
    .formula_of = gather_rows_grad_formula,
    .infer = gather_rows_grad_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("gather_rows", {use.gradients[0], use.inputs[1], use.inputs[2]}, use.attrs), kNoValue,
              kNoValue};
    },
    .expand = gather_rows_grad_expand,
    .lengthened = [](const OpUse& use, std::span<const Shape>) { return lengthened_rows(use, "gather_rows_grad"); },
};

}  // namespace partita
