// Products of rows with the matrices that their indices choose: the experts of a mixture, without a copy of a matrix
// for each row.
#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

bool transposed(const OpView& use) { return use.attrs.i("transpose_b", 0) != 0; }

absl::Status check_rows(const OpView& use, int64_t rows) {
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[2]));
  if (use.shape(2) != Shape{rows})
    return absl::InvalidArgumentError(
        cat("expected an index for each of ", rows, " rows, found ", to_string(use.inputs[2])));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> grouped_matmul_types(const OpView& use) {
  if (!is_float(use.dtype(0)) || use.dtype(0) != use.dtype(1) || use.rank(0) != 2 || use.rank(1) != 3) {
    return absl::InvalidArgumentError(cat("expected rows [r, k] and matrices [e, k, n] of one float type, found ",
                                          to_string(use.inputs[0]), " and ", to_string(use.inputs[1])));
  }
  const Shape &x = use.shape(0), &w = use.shape(1);
  if (x[1] != w[1 + transposed(use)]) {
    return absl::InvalidArgumentError(
        cat("cannot multiply rows ", to_string(x), " by matrices ", to_string(w), ": the inner dimensions differ"));
  }
  PARTITA_RETURN_IF_ERROR(check_rows(use, x[0]));
  if (w[0] == 0 && x[0] > 0)
    return absl::InvalidArgumentError(cat("expected matrices to choose from, found ", to_string(w)));
  Shape out{x[0], w[2 - transposed(use)]};
  if (!checked_elements(out))
    return absl::InvalidArgumentError(cat("a product of ", to_string(out), " elements is too large"));
  return one_output(use.dtype(), std::move(out));
}

absl::StatusOr<std::vector<TensorType>> grouped_matmul_grad_types(const OpView& use) {
  if (!is_float(use.dtype(0)) || use.dtype(0) != use.dtype(1) || use.rank(0) != 2 || use.rank(1) != 2 ||
      use.shape(0)[0] != use.shape(1)[0]) {
    return absl::InvalidArgumentError(cat("expected rows [r, k] and [r, n] of one float type, found ",
                                          to_string(use.inputs[0]), " and ", to_string(use.inputs[1])));
  }
  const int64_t rows = use.shape(0)[0], size = use.attrs.i("size");
  PARTITA_RETURN_IF_ERROR(check_rows(use, rows));
  if (size < 0 || (size == 0 && rows > 0))
    return absl::InvalidArgumentError(cat("attribute 'size': expected a number of matrices, found ", size));
  Shape out{size, use.shape(0)[1], use.shape(1)[1]};
  if (!checked_elements(out))
    return absl::InvalidArgumentError(cat("a product of ", to_string(out), " elements is too large"));
  return one_output(use.dtype(), std::move(out));
}

// Of each of `rows` rows, 2 `inner` `columns`.
double product_flops(int64_t rows, int64_t inner, int64_t columns) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(columns);
}

void grouped_matmul_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const int64_t rows = use.shape(0)[0], inner = use.shape(0)[1], experts = use.shape(1)[0],
                columns = outputs[0].type.shape[1];
  const bool t = transposed(use);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t matrix = clamped_index(in[2]->i[r], experts) * inner * columns;
    for (int64_t n = 0; n < columns; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        sum += in[0]->f[r * inner + k] * in[1]->f[matrix + (t ? n * inner + k : k * columns + n)];
      outputs[0].f[r * columns + n] = sum;
    }
  }
}

void grouped_matmul_grad_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const int64_t rows = use.shape(0)[0], left = use.shape(0)[1], right = use.shape(1)[1];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t matrix = clamped_index(in[2]->i[r], use.attrs.i("size")) * left * right;
    for (int64_t k = 0; k < left; ++k) {
      for (int64_t n = 0; n < right; ++n)
        outputs[0].f[matrix + k * right + n] += in[0]->f[r * left + k] * in[1]->f[r * right + n];
    }
  }
}

ValueId product(Builder& b, ValueId x, ValueId w, ValueId indices, bool transpose_b) {
  return b.emit("grouped_matmul", {x, w, indices}, {{"transpose_b", int64_t{transpose_b}}});
}

// A transposition of all matrices is the product's own.
ValueId grouped_matmul_simpler(const OpUse& use) {
  const Node* before = use.b.graph().producer(use.inputs[1]);
  if (before == nullptr || before->op->name != "transpose" ||
      before->attrs.ints("permutation") != std::vector<int64_t>{0, 2, 1})
    return kNoValue;
  return product(use.b, use.inputs[0], before->inputs[0], use.inputs[2], !transposed(use.view()));
}

}  // namespace

// (x [r,k], w [e,k,n] or, with transpose_b, [e,n,k], indices [r]) -> y [r,n]: row r of x times matrix indices[r].
// Indices as in gather. A split of k leaves a partial sum.
extern const OpDef kGroupedMatMul = {
    .name = "grouped_matmul",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i transpose_b?",
    .formula_of = [](const OpView& use) -> std::string {
      return transposed(use) ? "~ r k+, ~ e^ n k, r -> r n" : "~ r k+, ~ e^ k n, r -> r n";
    },
    .infer = grouped_matmul_types,
    .work = WorkKind::kMatrix,
    .flops =
        [](const OpView& use) {
          return product_flops(use.shape(0)[0], use.shape(0)[1], use.shape(1)[2 - transposed(use)]);
        },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId x = use.inputs[0], indices = use.inputs[2], g = use.gradients[0];
      const bool t = transposed(use.view());
      return {product(b, g, use.inputs[1], indices, !t),
              b.emit("grouped_matmul_grad", {t ? g : x, t ? x : g, indices}, {{"size", use.types[1].shape[0]}}),
              kNoValue};
    },
    .simpler = grouped_matmul_simpler,
    .evaluate = grouped_matmul_evaluate,
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
    .wraps_indices = true,
};

// (a [r,k], b [r,n], indices [r]) -> [size,k,n]: matrix e is the sum of a[r]^T b[r] over the rows r of index e, zero
// where there is none. A split of the rows leaves a partial sum.
extern const OpDef kGroupedMatMulGrad = {
    .name = "grouped_matmul_grad",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i size",
    .formula_of = [](const OpView& use) { return cat("~ r+ k, ~ r n, r -> e=", use.attrs.i("size"), "^ k n"); },
    .infer = grouped_matmul_grad_types,
    .work = WorkKind::kMatrix,
    .flops = [](const OpView& use) { return product_flops(use.shape(0)[0], use.shape(0)[1], use.shape(1)[1]); },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0], indices = use.inputs[2];
      return {product(use.b, use.inputs[1], g, indices, true), product(use.b, use.inputs[0], g, indices, false),
              kNoValue};
    },
    .evaluate = grouped_matmul_grad_evaluate,
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
    .wraps_indices = true,
};

}  // namespace partita
