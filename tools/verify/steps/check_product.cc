#include "tools/verify/steps/check_product.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

class ProductFinder {
 public:
  ProductFinder(const Graph& graph, const std::vector<ValueId>& storage) : g_(graph), storage_(storage) {}

  absl::StatusOr<ProductOperands> find(std::set<std::string> pieces, int result, int sums) {
    const auto take = [&](const char* piece) { return pieces.erase(piece) > 0; };
    ProductOperands found;
    int at = result, bias = -1, of = -1, before = -1;
    const bool accumulates = take("accumulate");
    if (take("gelu_tanh")) {
      PARTITA_ASSIGN_OR_RETURN(const Node* gelu, tanh_form(at, "gelu"));
      at = before = storage_[gelu->inputs[0]];
    }
    if (take("gelu_tanh_grad")) {
      PARTITA_ASSIGN_OR_RETURN(const Node* grad, tanh_form(at, "gelu_grad"));
      at = storage_[grad->inputs[0]];
      of = storage_[grad->inputs[1]];
    }
    if (take("bias")) {
      PARTITA_ASSIGN_OR_RETURN(at, without_bias(at, bias));
    }
    const Node* product = g_.producer(at);
    if (product == nullptr || product->op->name != "matmul")
      return differs("expected a result of a product, found ", name(at));
    found.product = g_.values[at].producer;
    found.inputs = {storage_[product->inputs[0]], storage_[product->inputs[1]]};
    found.outputs = {result};
    if (bias >= 0) found.bias = 2, found.inputs.push_back(bias);
    if (of >= 0) found.inputs.push_back(of);
    if (take("aux")) {
      if (before < 0) return differs("expected a GELU behind what the product writes besides");
      found.outputs.push_back(before);
    }
    for (size_t operand = 0; operand < 2; ++operand) {
      if (!take(operand == 0 ? "sum_a" : "sum_b")) continue;
      PARTITA_RETURN_IF_ERROR(check_rows(*product, operand, sums));
      found.outputs.push_back(sums);
    }
    if (!pieces.empty() || (accumulates && at != result))
      return differs("expected an epilogue of a product, found ",
                     quote(pieces.empty() ? "accumulate" : *pieces.begin()));
    return found;
  }

 private:
  std::string name(int v) const { return v < 0 ? "no value" : cat("value %", v, " ", to_string(g_.type(v))); }

  absl::StatusOr<const Node*> tanh_form(int value, std::string_view op) const {
    const Node* node = g_.producer(value);
    if (node != nullptr && node->op->name == op && node->attrs.i("approximate", 0) == 1) return node;
    return differs("expected a result of ", op, " in its tanh form, found ", name(value));
  }

  // x, or what x is but for being rounded to fewer bits on the way.
  int unrounded(ValueId x) const {
    const int v = storage_[x];
    const Node* node = g_.producer(v);
    if (node == nullptr || node->op->name != "cast") return v;
    const DType from = g_.type(node->inputs[0]).dtype, to = g_.type(v).dtype;
    return is_float(from) && is_float(to) ? storage_[node->inputs[0]] : v;
  }

  // The product behind `sum`, = product + bias, one value per column.
  absl::StatusOr<int> without_bias(int sum, int& bias) const {
    const Node* add = g_.producer(sum);
    if (add != nullptr && add->op->name == "cast") add = g_.producer(unrounded(sum));
    if (add == nullptr || add->op->name != "add") return differs("expected a sum with a bias, found ", name(sum));
    for (size_t k = 0; k < 2; ++k) {
      const ValueId x = add->inputs[k], other = add->inputs[1 - k];
      const int product = unrounded(x);
      const Node* made = g_.producer(product);
      if (made == nullptr || made->op->name != "matmul" || g_.type(product).dtype != g_.type(sum).dtype) continue;
      const Shape &shape = g_.type(x).shape, &b = g_.type(other).shape;
      const int64_t columns = g_.type(product).shape.back();
      if (shape.empty() || b.empty() || shape.back() != columns || b.back() != columns || elements(b) != columns ||
          shape != g_.type(add->outputs[0]).shape)
        continue;
      bias = storage_[other];
      return product;
    }
    return differs("expected a sum of a product and one value for each of its columns, found ", name(sum));
  }

  // `sums` adds up operand [k, columns] of the product over all but its columns.
  absl::Status check_rows(const Node& product, size_t operand, int sums) const {
    const Node* sum = sums < 0 ? nullptr : g_.producer(sums);
    const int rows = storage_[product.inputs[operand]];
    const Shape& shape = g_.type(product.inputs[operand]).shape;
    const bool inner_first = product.attrs.i(operand == 0 ? "transpose_a" : "transpose_b", 0) == (operand == 0 ? 1 : 0);
    const int64_t matrices = std::accumulate(shape.begin(), shape.end() - 2, int64_t{1}, std::multiplies<>());
    if (sum == nullptr || sum->op->name != "reduce_sum" || storage_[sum->inputs[0]] != rows || !inner_first ||
        matrices != 1)
      return differs("expected the sum of the rows of ", name(rows), ", found ", name(sums));
    const Shape& summed = g_.type(sum->inputs[0]).shape;
    std::vector<int64_t> dims(summed.empty() ? 0 : summed.size() - 1), found = sum->attrs.ints("dims");
    std::iota(dims.begin(), dims.end(), 0);
    std::sort(found.begin(), found.end());
    if (summed.empty() || summed.back() != shape.back() || found != dims)
      return differs("expected the sum of all rows of ", name(rows), ", found ", name(sums));
    return absl::OkStatus();
  }

  const Graph& g_;
  const std::vector<ValueId>& storage_;
};

}  // namespace

absl::StatusOr<ProductOperands> product_operands(const Graph& graph, const std::vector<ValueId>& storage,
                                                 const std::string& epilogue, int result, int sums) {
  if (result < 0) return differs("expected a product's result, found none");
  const std::vector<std::string> pieces = absl::StrSplit(epilogue, '+');
  return ProductFinder(graph, storage).find({pieces.begin(), pieces.end()}, result, sums);
}

}  // namespace partita::verifier
