// Products of rows with the matrices that their indices choose: the experts of a mixture, without a copy of a matrix
// for each row.
#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

bool transposed(const OpView& use) { return use.attrs.i("transpose_b", 0) != 0; }

// How many parts the matrices come in, of which each has rows of its own; 1 without the operand that says so.
int64_t parts(const OpView& use) { return use.inputs.size() > 3 ? use.shape(3)[0] : 1; }
// Rows for each part and index, or one for several indices that follow each other, whatever their part.
bool has_all_rows(const OpView& use, int k) { return use.shape(k)[0] == parts(use) * use.shape(2)[0]; }
int64_t indices_per_row(const OpView& use, int k) {
  return has_all_rows(use, k) || use.shape(k)[0] == 0 ? 1 : use.shape(2)[0] / use.shape(k)[0];
}

absl::Status check_rows(const OpView& use, int k) {
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[2]));
  if (use.rank(2) == 1 && !checked_elements({parts(use), use.shape(2)[0]}))
    return absl::InvalidArgumentError(
        cat("rows for each of ", parts(use), " parts and ", use.shape(2)[0], " indices are too many"));
  const int64_t rows = use.shape(k)[0], indices = use.rank(2) == 1 ? use.shape(2)[0] : -1;
  if (indices < 0 || (!has_all_rows(use, k) && (rows == 0 || indices == 0 || indices % rows != 0)))
    return absl::InvalidArgumentError(
        cat("expected an index for each of ", rows, " rows, found ", to_string(use.inputs[2])));
  return absl::OkStatus();
}

absl::Status check_parts(const OpView& use) {
  if (use.inputs.size() < 4) return absl::OkStatus();
  if (use.dtype(3) != DType::kI64 || use.rank(3) != 1 || use.shape(3)[0] < 1 || use.attrs.i("total", 0) < 1)
    return absl::InvalidArgumentError(
        cat("expected the first matrix of each part as i64 and attribute 'total', found ", to_string(use.inputs[3])));
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
  PARTITA_RETURN_IF_ERROR(check_parts(use));
  if (w[0] % parts(use) != 0)
    return absl::InvalidArgumentError(cat("cannot divide ", w[0], " matrices into ", parts(use), " parts"));
  PARTITA_RETURN_IF_ERROR(check_rows(use, 0));
  if (w[0] == 0 && x[0] > 0)
    return absl::InvalidArgumentError(cat("expected matrices to choose from, found ", to_string(w)));
  Shape out{parts(use) * use.shape(2)[0], w[2 - transposed(use)]};
  if (!checked_elements(out))
    return absl::InvalidArgumentError(cat("a product of ", to_string(out), " elements is too large"));
  return one_output(use.dtype(), std::move(out));
}

absl::StatusOr<std::vector<TensorType>> grouped_matmul_grad_types(const OpView& use) {
  if (!is_float(use.dtype(0)) || use.dtype(0) != use.dtype(1) || use.rank(0) != 2 || use.rank(1) != 2) {
    return absl::InvalidArgumentError(cat("expected rows [r, k] and [r, n] of one float type, found ",
                                          to_string(use.inputs[0]), " and ", to_string(use.inputs[1])));
  }
  PARTITA_RETURN_IF_ERROR(check_parts(use));
  PARTITA_RETURN_IF_ERROR(check_rows(use, 0));
  PARTITA_RETURN_IF_ERROR(check_rows(use, 1));
  const int64_t a = indices_per_row(use, 0), b = indices_per_row(use, 1), size = use.attrs.i("size");
  if (a != b && a != 1 && b != 1)
    return absl::InvalidArgumentError(cat("expected rows for equally many indices, found ", to_string(use.inputs[0]),
                                          " and ", to_string(use.inputs[1])));
  if (size < 0 || (size == 0 && use.shape(2)[0] > 0))
    return absl::InvalidArgumentError(cat("attribute 'size': expected a number of matrices, found ", size));
  const Shape all{parts(use), size, use.shape(0)[1], use.shape(1)[1]};
  if (!checked_elements(all))
    return absl::InvalidArgumentError(cat("a product of ", to_string(all), " elements is too large"));
  return one_output(use.dtype(), {all[0] * all[1], all[2], all[3]});
}

// "(p r j)": r rows for j indices each, in p parts; only what the use has of it.
struct RowNames {
  std::string all, indices, first;

  RowNames(const OpView& use, int64_t per_row) {
    const bool several = per_row > 1, divided = use.inputs.size() > 3;
    indices = several ? "(r j)" : "r";
    all = divided ? several ? "(p r j)" : "(p r)" : indices;
    first = divided ? ", p" : "";
  }
  std::string of(const OpView& use, int k) const {
    return has_all_rows(use, k) ? all : indices_per_row(use, k) == 1 ? indices : std::string("r");
  }
};

std::string summed(std::string names) {
  for (const char* name : {"r", "j"}) {
    if (size_t at = names.find(name); at != names.npos) names.insert(at + 1, "+");
  }
  return names;
}

// 2 `inner` `columns` of each index; where the matrices are some of all, of those that choose one of them if all are
// chosen alike.
double product_flops(const OpView& use, int64_t matrices, int64_t inner, int64_t columns) {
  const double chosen = use.inputs.size() > 3 ? static_cast<double>(matrices) / use.attrs.i("total") : 1;
  return 2.0 * chosen * static_cast<double>(use.shape(2)[0]) * static_cast<double>(inner) *
         static_cast<double>(columns);
}

// f(row among all, matrix, index): of each part the rows whose index is one of its matrices'.
template <typename F>
void for_rows(const OpView& use, std::span<const Tensor* const> in, int64_t matrices, F f) {
  const int64_t n = use.shape(2)[0], each = matrices / parts(use), total = use.attrs.i("total", matrices);
  for (int64_t p = 0; p < parts(use); ++p) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t e = clamped_index(in[2]->i[i], total) - (use.inputs.size() > 3 ? in[3]->i[p] : 0);
      if (e >= 0 && e < each) f(p * n + i, p * each + e, i);
    }
  }
}

void grouped_matmul_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const int64_t inner = use.shape(0)[1], columns = outputs[0].type.shape[1], per_row = indices_per_row(use, 0);
  const bool t = transposed(use), all = has_all_rows(use, 0);
  for_rows(use, in, use.shape(1)[0], [&](int64_t row, int64_t e, int64_t i) {
    const int64_t matrix = e * inner * columns, x = (all ? row : i / per_row) * inner;
    for (int64_t n = 0; n < columns; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        sum += in[0]->f[x + k] * in[1]->f[matrix + (t ? n * inner + k : k * columns + n)];
      outputs[0].f[row * columns + n] = sum;
    }
  });
}

void grouped_matmul_grad_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const int64_t left = use.shape(0)[1], right = use.shape(1)[1];
  const auto row_of = [&](int k, int64_t row, int64_t i) {
    return has_all_rows(use, k) ? row : i / indices_per_row(use, k);
  };
  for_rows(use, in, outputs[0].type.shape[0], [&](int64_t row, int64_t e, int64_t i) {
    const int64_t matrix = e * left * right, a = row_of(0, row, i) * left, b = row_of(1, row, i) * right;
    for (int64_t k = 0; k < left; ++k) {
      for (int64_t n = 0; n < right; ++n) outputs[0].f[matrix + k * right + n] += in[0]->f[a + k] * in[1]->f[b + n];
    }
  });
}

// A use's operands from the indices on, and the attribute that goes with them.
struct Chosen {
  std::vector<ValueId> operands;
  int64_t total = 0;  // 0: no parts

  explicit Chosen(const OpUse& use, int64_t matrices)
      : operands(use.inputs.begin() + 2, use.inputs.end()),
        total(use.inputs.size() > 3 ? use.attrs.i("total", matrices) : 0) {}
};

ValueId emit(Builder& b, const char* op, ValueId left, ValueId right, const Chosen& chosen, Attrs attrs) {
  std::vector<ValueId> operands = {left, right};
  operands.insert(operands.end(), chosen.operands.begin(), chosen.operands.end());
  if (chosen.total > 0) attrs.set("total", chosen.total);
  return b.emit(op, std::move(operands), std::move(attrs));
}
ValueId product(Builder& b, ValueId x, ValueId w, const Chosen& chosen, bool transpose_b) {
  return emit(b, "grouped_matmul", x, w, chosen, {{"transpose_b", int64_t{transpose_b}}});
}

// Rows [(p r j),k] summed up to those of an operand, which may have one for several.
ValueId sum_rows(const OpUse& use, int k, ValueId rows) {
  const OpView view = use.view();
  if (has_all_rows(view, k)) return rows;
  const int64_t per_row = indices_per_row(view, k), width = use.types[k].shape[1];
  rows = use.b.reshape(rows, {parts(view), use.types[k].shape[0], per_row, width});
  return use.b.reduce_sum(rows, {0, 2}, /*keep=*/false);
}

// Operand k without the repetitions that the op makes itself, of each row for each part and for indices that follow
// each other; kNoValue where there are none.
ValueId without_repetitions(const OpUse& use, int k) {
  Builder& b = use.b;
  const int64_t width = use.types[k].shape[1];
  ValueId from = use.inputs[k];
  const Node* node = b.graph().producer(from);
  for (; node != nullptr && (node->op->name == "cast" || node->op->name == "reshape");
       node = b.graph().producer(from)) {
    from = node->inputs[0];
    if (!is_float(b.dtype(from))) return kNoValue;
  }
  if (node == nullptr || node->op->name != "broadcast") return kNoValue;
  const Shape& to = b.shape(from);
  if (to.empty() || to.back() != width) return kNoValue;
  Shape source = b.shape(node->inputs[0]);
  if (source.size() > to.size()) return kNoValue;
  source.insert(source.begin(), to.size() - source.size(), 1);
  if (source.back() != to.back()) return kNoValue;
  int64_t lead = 1, rows = 1, trail = 1;
  size_t d = 0;
  const size_t end = to.size() - 1;
  while (d < end && source[d] == 1) lead *= to[d++];
  while (d < end && source[d] == to[d]) rows *= to[d++];
  while (d < end && source[d] == 1) trail *= to[d++];
  const bool every_part = has_all_rows(use.view(), k);
  if (d < end || lead != (every_part ? parts(use.view()) : 1) || lead * trail == 1) return kNoValue;
  from = node->inputs[0];
  for (node = b.graph().producer(from); node != nullptr && node->op->name == "reshape"; node = b.graph().producer(from))
    from = node->inputs[0];
  return b.cast(b.reshape(from, {rows, width}), use.types[k].dtype);
}

ValueId grouped_matmul_simpler(const OpUse& use) {
  const Chosen chosen(use, use.types[1].shape[0]);
  const bool t = transposed(use.view());
  // A transposition of all matrices is the product's own.
  const Node* before = use.b.graph().producer(use.inputs[1]);
  if (before != nullptr && before->op->name == "transpose" &&
      before->attrs.ints("permutation") == std::vector<int64_t>{0, 2, 1})
    return product(use.b, use.inputs[0], before->inputs[0], chosen, !t);
  const ValueId rows = without_repetitions(use, 0);
  return rows == kNoValue ? kNoValue : product(use.b, rows, use.inputs[1], chosen, t);
}

ValueId grouped_matmul_grad_simpler(const OpUse& use) {
  const int64_t size = use.attrs.i("size");
  for (int k : {0, 1}) {
    const int64_t other = indices_per_row(use.view(), 1 - k);
    const ValueId rows = without_repetitions(use, k);
    if (rows == kNoValue) continue;
    const int64_t per_row = use.types[2].shape[0] / std::max<int64_t>(use.b.shape(rows)[0], 1);
    if (per_row != other && per_row != 1 && other != 1) continue;
    return emit(use.b, "grouped_matmul_grad", k == 0 ? rows : use.inputs[0], k == 1 ? rows : use.inputs[1],
                Chosen(use, size), {{"size", size}});
  }
  return kNoValue;
}

}  // namespace

// (x [r,k], w [e,k,n] or, with transpose_b, [e,n,k], indices [r]) -> y [r,n]: row r of x times matrix indices[r].
// Indices as in gather. A split of k leaves a partial sum.
//
// x may have one row for several indices that follow each other: x [r,k], indices [(r j)] -> y [(r j),n].
//
// With first [p], the matrices are p parts of e, those of part p from number first[p] of all `total` on: y [(p r),n]
// has rows for each part, zeros in those that chose a matrix of another. x [(p r),k] has them too, or one for all
// parts. So a part's products need nothing of another's, and a split of the parts splits all but x [r,k].
extern const OpDef kGroupedMatMul = {
    .name = "grouped_matmul",
    .min_inputs = 3,
    .max_inputs = 4,
    .attributes = "i transpose_b?, i total?",
    .formula_of = [](const OpView& use) -> std::string {
      const RowNames rows(use, indices_per_row(use, 0));
      return cat("~ ", rows.of(use, 0), " k+, ~ ", use.inputs.size() > 3 ? "(p e^)" : "e^",
                 transposed(use) ? " n k, " : " k n, ", rows.indices, rows.first, " -> ", rows.all, " n");
    },
    .infer = grouped_matmul_types,
    .work = WorkKind::kMatrix,
    .flops =
        [](const OpView& use) {
          return product_flops(use, use.shape(1)[0], use.shape(0)[1], use.shape(1)[2 - transposed(use)]);
        },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId x = use.inputs[0], g = use.gradients[0];
      const bool t = transposed(use.view());
      const int64_t matrices = use.types[1].shape[0];
      const Chosen chosen(use, matrices);
      std::vector<ValueId> gradients = {
          sum_rows(use, 0, product(b, g, use.inputs[1], chosen, !t)),
          emit(b, "grouped_matmul_grad", t ? g : x, t ? x : g, chosen, {{"size", matrices / parts(use.view())}})};
      gradients.resize(use.inputs.size(), kNoValue);
      return gradients;
    },
    .simpler = grouped_matmul_simpler,
    .evaluate = grouped_matmul_evaluate,
    .kernel = true,
    .chooses_matrices = true,
    .precision = OperandPrecision::kNarrow,
    .wraps_indices = true,
};

// (a [r,k], b [r,n], indices [r]) -> [size,k,n]: matrix e is the sum of a[r]^T b[r] over the rows r of index e, zero
// where there is none. A split of the rows leaves a partial sum. Rows and first [p] as in grouped_matmul, with size
// matrices a part: -> [(p size),k,n].
extern const OpDef kGroupedMatMulGrad = {
    .name = "grouped_matmul_grad",
    .min_inputs = 3,
    .max_inputs = 4,
    .attributes = "i size, i total?",
    .formula_of =
        [](const OpView& use) {
          const RowNames rows(use, std::max(indices_per_row(use, 0), indices_per_row(use, 1)));
          // Each name has its '+' where it stands first.
          const std::string a = rows.of(use, 0), b = rows.of(use, 1);
          const bool in_a = a.find('j') != a.npos, in_b = b.find('j') != b.npos;
          return cat("~ ", summed(a), " k, ~ ",
                     in_a || !in_b ? b : cat("(", b.find('p') != b.npos ? "p " : "", "r j+)"), " n, ",
                     in_a || in_b || rows.indices == "r" ? rows.indices : "(r j+)", rows.first, " -> ",
                     use.inputs.size() > 3 ? "(p " : "", "e=", use.attrs.i("size"), "^",
                     use.inputs.size() > 3 ? ")" : "", " k n");
        },
    .infer = grouped_matmul_grad_types,
    .work = WorkKind::kMatrix,
    .flops =
        [](const OpView& use) {
          return product_flops(use, parts(use) * use.attrs.i("size"), use.shape(0)[1], use.shape(1)[1]);
        },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0];
      const Chosen chosen(use, use.attrs.i("size"));
      std::vector<ValueId> gradients = {sum_rows(use, 0, product(use.b, use.inputs[1], g, chosen, true)),
                                        sum_rows(use, 1, product(use.b, use.inputs[0], g, chosen, false))};
      gradients.resize(use.inputs.size(), kNoValue);
      return gradients;
    },
    .simpler = grouped_matmul_grad_simpler,
    .evaluate = grouped_matmul_grad_evaluate,
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
    .wraps_indices = true,
};

}  // namespace partita
