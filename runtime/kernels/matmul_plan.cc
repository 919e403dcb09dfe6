#include "runtime/kernels/matmul_plan.h"

#include <bit>

#include "absl/strings/str_split.h"

namespace partita::runtime {
namespace {

absl::Status parse_epilogue(const KernelRequest& r, MatmulPlan& plan) {
  for (const auto piece : absl::StrSplit(r.s("epilogue", ""), '+', absl::SkipEmpty())) {
    const std::string name(piece.data(), piece.size());
    if (name == "bias")
      plan.bias = true;
    else if (name == "accumulate")
      plan.accumulate = true;
    else if (name == "relu")
      plan.activation = Activation::kRelu;
    else if (name == "gelu_erf")
      plan.activation = Activation::kGeluErf;
    else if (name == "gelu_tanh")
      plan.activation = Activation::kGeluTanh;
    else if (name == "gelu_tanh_grad")
      plan.activation = Activation::kGeluTanhGrad;
    else if (name == "aux")
      plan.aux = true;
    else if (name == "sum_a")
      plan.sum_a = true;
    else if (name == "sum_b")
      plan.sum_b = true;
    else
      return r.error(
          cat("an epilogue of bias, accumulate, aux, relu, gelu_erf, gelu_tanh, gelu_tanh_grad, sum_a, "
              "sum_b, not '",
              name, "'"));
  }
  const size_t inputs = 2u + plan.bias + (plan.activation == Activation::kGeluTanhGrad),
               outputs = 1u + plan.aux + (plan.sum_a || plan.sum_b);
  return r.expect_operands(inputs, inputs, outputs);
}

}  // namespace

absl::StatusOr<MatmulPlan> MatmulPlan::make(const KernelRequest& r) {
  const Shape &a = r.in(0).shape, &b = r.in(1).shape, &c = r.out(0).shape;
  const size_t rank = a.size();
  MatmulPlan plan;
  PARTITA_RETURN_IF_ERROR(parse_epilogue(r, plan));
  if (rank < 2 || b.size() != rank || c.size() != rank) return r.error("matrices of one rank");
  plan.transpose_a = r.i("transpose_a", 0) != 0;
  plan.transpose_b = r.i("transpose_b", 0) != 0;
  plan.m = a[rank - (plan.transpose_a ? 1 : 2)];
  plan.k = a[rank - (plan.transpose_a ? 2 : 1)];
  plan.n = b[rank - (plan.transpose_b ? 2 : 1)];
  bool fits = b[rank - (plan.transpose_b ? 1 : 2)] == plan.k && c[rank - 2] == plan.m && c[rank - 1] == plan.n;
  for (size_t d = 0; d + 2 < rank; ++d)
    fits = fits && (a[d] == b[d] || a[d] == 1 || b[d] == 1) && c[d] == (a[d] == 1 ? b[d] : a[d]);
  if (!fits) return r.error("matching inner and batch dimensions");
  if (plan.bias && (*element_count(r.in(2).shape) != plan.n || r.dtype(2) != r.dtype()))
    return r.error("a bias of one value per column");

  if (r.has_param("block")) {
    plan.ordered = true;
    plan.groups = r.i("groups", 1);
    plan.block = r.i("block", 0);
    if (plan.block == 0) plan.block = plan.k;
    plan.blocks = plan.k == 0 ? 1 : plan.groups > 0 && plan.block > 0 ? plan.k / plan.groups / plan.block : 0;
    if (plan.groups * plan.blocks * plan.block != plan.k || !std::has_single_bit(static_cast<uint64_t>(plan.blocks)))
      return r.error("an inner dimension of groups times a power of two of blocks");
  }

  int64_t stride_a = plan.m * plan.k, stride_b = plan.k * plan.n, stride_c = plan.m * plan.n;
  for (size_t d = rank - 2; d-- > 0;) {
    if (c[d] == 1) continue;
    const MatmulPlan::Batch dim{c[d], a[d] == 1 ? 0 : stride_a, b[d] == 1 ? 0 : stride_b, stride_c};
    stride_a *= a[d];
    stride_b *= b[d];
    stride_c *= c[d];
    MatmulPlan::Batch* last = plan.batch.empty() ? nullptr : &plan.batch.front();
    if (last != nullptr && (last->a == 0) == (dim.a == 0) && (last->b == 0) == (dim.b == 0)) {
      last->size *= dim.size;
    } else {
      plan.batch.insert(plan.batch.begin(), dim);
    }
  }
  // Rows of a batch that shares B are rows of one matrix.
  if (!plan.batch.empty() && plan.batch.back().b == 0 && plan.batch.back().a != 0 && !plan.transpose_a) {
    plan.m *= plan.batch.back().size;
    plan.batch.pop_back();
  }
  if (!plan.is_extended()) return plan;
  const auto is_like_result = [&](const Operand& o) {
    return o.dtype == r.dtype() && *element_count(o.shape) == plan.m * plan.n;
  };
  fits = plan.batch.empty() && r.out(0).dtype == r.dtype() && (!plan.aux || is_like_result(r.out(1)));
  if (plan.activation == Activation::kGeluTanhGrad) fits = fits && is_like_result(r.in(r.inputs() - 1));
  if (plan.sum_a || plan.sum_b) {
    const Operand& sums = r.step().operands.back();
    fits = fits && plan.sum_a != plan.sum_b && sums.dtype == r.dtype() && plan.transpose_a && !plan.transpose_b &&
           *element_count(sums.shape) == (plan.sum_a ? plan.m : plan.n);
  }
  if (!fits) return r.error("one matrix by another, and what its epilogue takes and gives of its type and size");
  return plan;
}

}  // namespace partita::runtime
