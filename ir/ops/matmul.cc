#include <bit>

#include "ir/ops/matmul.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

bool transposed(const OpView& use, char operand) {
  return use.attrs.i(operand == 'a' ? "transpose_a" : "transpose_b", 0) != 0;
}

absl::Status check_blocks(const OpView& use, int64_t k) {
  const int64_t block = use.attrs.i("block"), groups = use.attrs.i("groups", 1);
  if (block == 0 && groups == 1) return absl::OkStatus();
  const bool fits = block > 0 && groups > 0 && k % groups == 0 && k / groups % block == 0;
  if (fits && std::has_single_bit(static_cast<uint64_t>(k / groups / block))) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("expected an inner dimension of ", groups,
                                        " times a power of two of blocks of ", block, " elements, found ", k));
}

}  // namespace

absl::StatusOr<std::vector<TensorType>> matmul_types(const OpView& use) {
  if (use.dtype(0) != use.dtype(1) || use.dtype() == DType::kBool || use.rank(0) < 2 || use.rank(0) != use.rank(1)) {
    return absl::InvalidArgumentError(cat("expected two matrices of numbers of one element type and rank, found ",
                                          to_string(use.inputs[0]), " and ", to_string(use.inputs[1])));
  }
  const Shape &a = use.shape(0), &b = use.shape(1);
  int r = use.rank(0);
  int64_t m = a[r - 2 + transposed(use, 'a')], ka = a[r - 1 - transposed(use, 'a')],
          kb = b[r - 2 + transposed(use, 'b')], n = b[r - 1 - transposed(use, 'b')];
  if (use.attrs.has("block")) PARTITA_RETURN_IF_ERROR(check_blocks(use, ka));
  auto batch = broadcast_shapes(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (ka != kb || !batch) {
    return absl::InvalidArgumentError(
        cat("cannot multiply ", to_string(a), " by ", to_string(b), ": the inner or the batch dimensions differ"));
  }
  Shape out = *std::move(batch);
  out.push_back(m);
  out.push_back(n);
  if (!checked_elements(out))
    return absl::InvalidArgumentError(cat("a product of ", to_string(out), " elements is too large"));
  return std::vector<TensorType>{{use.dtype(), std::move(out)}};
}

std::string matmul_formula(const OpView& use) {
  int r = use.rank(0);
  std::string a = "~", b = "~", out;
  for (int d = 0; d < r - 2; ++d) {
    std::string f = "b" + std::to_string(d);
    bool one_a = use.shape(0)[d] == 1 && use.shape(1)[d] != 1, one_b = use.shape(1)[d] == 1 && use.shape(0)[d] != 1;
    a += one_a ? " *" : " " + f;
    b += one_b ? " *" : " " + f;
    out += " " + f;
  }
  a += transposed(use, 'a') ? " k+ m" : " m k+";
  b += transposed(use, 'b') ? " n k" : " k n";
  return a + ", " + b + " ->" + out + " m n";
}

namespace {

// c += factor b, of n elements. GCC makes vectors of it from -O3 on.
template <typename T>
[[gnu::optimize("O3")]] void add_scaled(T factor, const T* __restrict b, T* __restrict c, int64_t n) {
  for (int64_t y = 0; y < n; ++y) c[y] += factor * b[y];
}

// c [m,n] += a [m,k] b [k,n], each sum in the order of k; the operands lie transposed where `ta`, `tb` say so.
template <typename T>
void multiply(const T* a, const T* b, T* c, int64_t m, int64_t k, int64_t n, bool ta, bool tb) {
  std::vector<T> turned;
  if (tb) {
    turned.resize(static_cast<size_t>(k * n));
    for (int64_t y = 0; y < n; ++y) {
      for (int64_t z = 0; z < k; ++z) turned[static_cast<size_t>(z * n + y)] = b[y * k + z];
    }
    b = turned.data();
  }
  for (int64_t x = 0; x < m; ++x) {
    for (int64_t z = 0; z < k; ++z) {
      add_scaled(ta ? a[z * m + x] : a[x * k + z], b + z * n, c + x * n, n);
    }
  }
}

void matmul_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const Shape &sa = in[0]->type.shape, &sb = in[1]->type.shape, &so = outputs[0].type.shape;
  int r = static_cast<int>(so.size());
  bool ta = transposed(use, 'a'), tb = transposed(use, 'b');
  int64_t m = so[r - 2], n = so[r - 1], k = sa[r - 1 - ta], batch = elements(Shape(so.begin(), so.end() - 2));
  std::vector<int64_t> index(r - 2, 0);
  for (int64_t p = 0; p < batch; ++p) {
    int64_t at_a = 0, at_b = 0;
    for (int d = 0; d < r - 2; ++d) {
      at_a = at_a * sa[d] + (sa[d] == 1 ? 0 : index[d]);
      at_b = at_b * sb[d] + (sb[d] == 1 ? 0 : index[d]);
    }
    const int64_t a = at_a * m * k, b = at_b * k * n, c = p * m * n;
    if (is_float(use.dtype())) {
      multiply(in[0]->f.data() + a, in[1]->f.data() + b, outputs[0].f.data() + c, m, k, n, ta, tb);
    } else {
      multiply(in[0]->i.data() + a, in[1]->i.data() + b, outputs[0].i.data() + c, m, k, n, ta, tb);
    }
    for (int d = r - 3; d >= 0 && ++index[d] == so[d]; --d) index[d] = 0;
  }
}

int64_t batch_size(const Shape& s) { return elements(Shape(s.begin(), s.end() - 2)); }

}  // namespace

ValueId fold_batch(Builder& b, ValueId v) {
  const Shape& s = b.shape(v);
  Shape folded(s.size(), 1);
  folded.back() = s.back();
  folded[s.size() - 2] = batch_size(s) * s[s.size() - 2];
  return b.reshape(v, std::move(folded));
}

namespace {

// With A and B the operands after their own transposition and G the result's gradient: dA = G B^T, dB = A^T G; each
// written in the layout its operand has. The batch of A is folded into rows where B has none (a weight), so that B's
// gradient is one product rather than a sum of many.
std::vector<ValueId> matmul_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId x = use.inputs[0], y = use.inputs[1], g = use.gradients[0];
  bool ta = transposed(use.view(), 'a'), tb = transposed(use.view(), 'b');
  ValueId dx = ta ? b.matmul(y, g, tb, true) : b.matmul(g, y, false, !tb);
  if (!ta && batch_size(use.types[1].shape) == 1) x = fold_batch(b, x), g = fold_batch(b, g);
  ValueId dy = tb ? b.matmul(g, x, true, ta) : b.matmul(x, g, !ta, false);
  return {b.sum_to(dx, use.types[0].shape), b.sum_to(dy, use.types[1].shape)};
}

bool swaps_last_two(const std::vector<int64_t>& permutation) {
  size_t r = permutation.size();
  if (r < 2 || permutation[r - 2] != static_cast<int64_t>(r) - 1 || permutation[r - 1] != static_cast<int64_t>(r) - 2)
    return false;
  for (size_t k = 0; k + 2 < r; ++k) {
    if (permutation[k] != static_cast<int64_t>(k)) return false;
  }
  return true;
}

// Takes transpositions of its operands upon itself.
ValueId matmul_simpler(const OpUse& use) {
  bool t[2] = {transposed(use.view(), 'a'), transposed(use.view(), 'b')}, changed = false;
  ValueId x[2] = {use.inputs[0], use.inputs[1]};
  for (int k = 0; k < 2; ++k) {
    const Node* before = use.b.graph().producer(x[k]);
    if (before == nullptr || before->op->name != "transpose" || !swaps_last_two(before->attrs.ints("permutation")))
      continue;
    x[k] = before->inputs[0];
    t[k] = !t[k];
    changed = true;
  }
  return changed && !use.attrs.has("block") ? use.b.matmul(x[0], x[1], t[0], t[1]) : kNoValue;
}

}  // namespace

// Batched matrix product of two tensors of one rank >= 2; batch dimensions are equal or 1. Splitting the inner factor k
// leaves a partial sum. Attributes transpose_a, transpose_b exchange the last two dimensions of an operand. `fp8` marks
// a product of values that were rounded to fp8 in blocks of so many elements (ir/ops/fp8_matmul.cc): a device may
// multiply them as such.
//
// Attribute `block` fixes the order of each element's sum whatever the sizes of m, n and the batch. The inner dimension
// is [groups, blocks, block], and what has one index along its middle, a power of two, is a block of the sum: added up
// in its order, one fused multiplication and addition after the other. The sums of blocks are added up as a balanced
// binary tree, so that ranks that have blocks that follow one another have branches of it. 0: all is one block.
extern const OpDef kMatMul = {
    .name = "matmul",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i transpose_a?, i transpose_b?, i tf32?, i fp8?, i block?, i groups?",
    .formula_of = matmul_formula,
    .infer = matmul_types,
    .work = WorkKind::kMatrix,
    .flops_per_point = 2,
    .gradient = matmul_gradient,
    .simpler = matmul_simpler,
    .evaluate = matmul_evaluate,
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
};

}  // namespace partita
