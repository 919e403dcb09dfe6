// Two reductions for all open gradients: of the products M Q, laid end to end, and of M^T P.
#include "partitioner/compress/factor_gradients.h"

#include "partitioner/compress/gradient_rewriter.h"

namespace partita {
namespace {

constexpr int64_t kLeastSaving = 2;  // as torch's min_compression_rate
constexpr double kSmallest = 1e-30;  // of a column's norm: a column of zeros stays one

class Factorizer : public GradientRewriter {
 public:
  Factorizer(LocalProgram& program, const std::vector<int>& axes, int64_t rank, const BucketSizes& sizes)
      : GradientRewriter(program, axes), rank_(rank), sizes_(sizes) {}

 private:
  struct Term {
    GradientSum sum;
    ValueId matrix, q, left;  // M, Q as it is at first, M Q and then P
    std::string remainder, start;
  };

  bool open(const GradientSum& sum) override {
    const Node& node = graph_.nodes[sum.nodes[0]];
    const TensorType& type = graph_.type(node.inputs[0]);
    // Of a gradient that is scattered, the first dimension counts the ranks' parts.
    const bool scattered = node.op->collective != CollectiveOp::kAllReduce;
    int64_t rows = type.shape.empty() ? 1 : type.shape[0];
    if (scattered && type.rank() > 1) rows *= type.shape[1];
    const int64_t columns = elements(type.shape) / rows;
    if (sum.nodes.size() > 1 || (scattered && sum.axes.size() > 1) ||
        (rows + columns) * rank_ * kLeastSaving >= rows * columns)
      return false;
    if (!open_.empty() &&
        (open_.front().sum.axes != sum.axes || bytes_ + byte_size(type) > sizes_.bytes(node.attrs.i("parts")) ||
         b_.dtype(open_.front().matrix) != type.dtype))
      flush();
    Term term{sum, kNoValue, kNoValue, kNoValue, {}, {}};
    r_.at(node);
    term.matrix = b_.reshape(with_remainder(sum, r_(node.inputs[0]), term.remainder), {rows, columns});
    term.start = state_name(sum, "q");
    // Ranks that hold the same parameter must make the same of its gradient.
    term.q = kept_state(term.start, {type.dtype, {columns, rank_}}, {InitialRuleKind::kNormal, 0, 1}, alike_along(sum));
    term.left = b_.matmul(term.matrix, term.q);
    open_.push_back(std::move(term));
    bytes_ += byte_size(type);
    return true;
  }

  void close() override {
    std::vector<ValueId> values;
    for (const Term& t : open_) values.push_back(t.left);
    std::vector<ValueId> left = summed(values);
    values.clear();
    for (size_t k = 0; k < open_.size(); ++k) {
      open_[k].left = orthonormal(left[k]);
      values.push_back(b_.matmul(open_[k].matrix, open_[k].left, /*transpose_a=*/true));
    }
    std::vector<ValueId> right = summed(values);
    for (size_t k = 0; k < open_.size(); ++k) finish(open_[k], right[k], values[k]);
    open_.clear();
    bytes_ = 0;
  }

  // The values' sums over the ranks, in one reduction.
  std::vector<ValueId> summed(const std::vector<ValueId>& values) {
    const GradientSum& front = open_.front().sum;
    r_.at(graph_.nodes[front.nodes[0]]);
    std::vector<ValueId> flat, out;
    for (ValueId v : values) flat.push_back(b_.reshape(v, {elements(b_.shape(v))}));
    ValueId all = flat.size() == 1 ? flat[0] : b_.emit("concat", flat, {{"dim", int64_t{0}}});
    all = b_.emit("all_reduce", {all},
                  {{"axes", front.axes}, {"parts", front.group_size}, {"reduce", std::string("sum")}});
    done_.bytes += byte_size(b_.type(all));
    int64_t at = 0;
    for (ValueId v : values) {
      const int64_t end = at + elements(b_.shape(v));
      out.push_back(b_.reshape(part(all, 0, at, end), b_.shape(v)));
      at = end;
    }
    return out;
  }

  // Modified Gram-Schmidt on the columns, each made orthogonal twice: what is left of a column that depends on those
  // before is rounding, and not orthogonal to them after once.
  ValueId orthonormal(ValueId x) {
    std::vector<ValueId> columns;
    for (int64_t c = 0; c < rank_; ++c) {
      ValueId column = unit(part(x, 1, c, c + 1));
      for (int pass = 0; c > 0 && pass < 2; ++pass) {
        for (ValueId before : columns) column = b_.sub(column, b_.mul(before, dot(before, column)));
        column = unit(column);
      }
      columns.push_back(column);
    }
    return columns.size() == 1 ? columns[0] : b_.emit("concat", columns, {{"dim", int64_t{1}}});
  }

  ValueId dot(ValueId a, ValueId b) { return b_.reduce_sum(b_.mul(a, b), {0, 1}, false); }

  // By its largest element first: the squares of small gradients are smaller than the smallest number.
  ValueId unit(ValueId column) {
    ValueId smallest = b_.scalar(b_.dtype(column), kSmallest);
    ValueId largest = b_.reduce("reduce_max", b_.emit("abs", {column}), {0, 1}, false);
    ValueId scaled = b_.div(column, b_.emit("max", {largest, smallest}));
    return b_.div(scaled, b_.emit("max", {b_.emit("sqrt", {dot(scaled, scaled)}), smallest}));
  }

  void finish(const Term& term, ValueId right, ValueId own_right) {
    const Node& node = graph_.nodes[term.sum.nodes[0]];
    const Shape &shape = graph_.type(node.inputs[0]).shape, &result = graph_.type(node.outputs[0]).shape;
    ++done_.sums;
    done_.plain_bytes += byte_size(graph_.type(node.inputs[0]));
    after_backward(term.sum);
    ValueId left = term.left;
    if (result != shape)  // scattered: this rank's rows
      left = b_.emit("shard_slice", {left, coordinate(term.sum.axes[0])},
                     {{"dim", int64_t{0}}, {"parts", term.sum.group_size}});
    replace(term.sum, b_.reshape(b_.matmul(left, right, false, /*transpose_b=*/true), result));
    in_update(term.sum);
    ValueId own = b_.matmul(term.left, own_right, false, /*transpose_b=*/true);
    keep(term.remainder, b_.reshape(b_.sub(term.matrix, own), shape));
    // A gradient of zeros says nothing of what follows.
    ValueId largest = b_.reduce("reduce_max", b_.emit("abs", {right}), {0, 1}, false);
    ValueId any = b_.emit("lt", {b_.scalar(b_.dtype(right), 0), largest});
    keep(term.start, b_.select(any, orthonormal(right), term.q));
  }

  const int64_t rank_;
  const BucketSizes& sizes_;
  std::vector<Term> open_;
  int64_t bytes_ = 0;
};

}  // namespace

CompressedGradients factor_gradients(LocalProgram& program, const std::vector<int>& axes, int64_t rank,
                                     const BucketSizes& sizes) {
  return Factorizer(program, axes, rank, sizes).run();
}

}  // namespace partita
