// Gradients g h of backward, each read by the update:
//
//   g sum(g) h sum(h) | use use   becomes   g |x| h |y| max(|x| |y|) q sum(q) p sum(p) | s q, s p, use use, e' e'
//
// What is moved or converted in backward after a sum is done after the multiplication instead, in the segment after.
#include "partitioner/quantize_gradients.h"

#include <limits>

#include "base/cat.h"
#include "partitioner/gradient_rewriter.h"

namespace partita {
namespace {

constexpr int64_t kMostRanks = 127;

class Quantizer : public GradientRewriter {
 public:
  Quantizer(LocalProgram& program, const std::vector<int>& axes, int64_t bucket_bytes)
      : GradientRewriter(program, axes), bucket_bytes_(bucket_bytes) {}

 private:
  struct Term {
    GradientSum sum;
    ValueId x, largest;
    std::string remainder;
  };

  absl::StatusOr<bool> open(const GradientSum& sum) override {
    const Node& node = graph_.nodes[sum.nodes[0]];
    if (sum.parts > kMostRanks)
      return absl::InvalidArgumentError(cat("compress: int8: ", graph_.origin(node), ": a gradient is summed over ",
                                            sum.parts, " ranks; expected at most ", kMostRanks,
                                            ", whose sum fits 8 bits; use compress: bf16"));
    const TensorType& type = graph_.type(node.inputs[0]);
    const int64_t bytes = elements(type.shape);
    if (!open_.empty() && (open_.front().sum.axes != sum.axes || bytes_ + bytes > bucket_bytes_ ||
                           b_.dtype(open_.front().x) != type.dtype))
      flush();
    Term term{sum, kNoValue, kNoValue, {}};
    term.x = with_remainder(sum, term.remainder);
    std::vector<int64_t> all;
    for (int d = 0; d < type.rank(); ++d) all.push_back(d);
    // What is no number makes the scale infinite, and the sum no number.
    ValueId number = b_.emit("eq", {term.x, term.x});
    ValueId size =
        b_.select(number, b_.emit("abs", {term.x}), b_.scalar(type.dtype, std::numeric_limits<double>::infinity()));
    term.largest = b_.reshape(b_.reduce("reduce_max", size, all, false), {1});
    open_.push_back(std::move(term));
    bytes_ += bytes;
    return true;
  }

  void close() override {
    const Node& first = graph_.nodes[open_.front().sum.nodes[0]];
    r_.at(first);
    std::vector<ValueId> largest;
    for (const Term& t : open_) largest.push_back(t.largest);
    const int64_t count = static_cast<int64_t>(largest.size()), parts = open_.front().sum.parts;
    ValueId all = count == 1 ? largest[0] : b_.emit("concat", largest, {{"dim", int64_t{0}}});
    all = b_.emit("all_reduce", {all},
                  {{"axes", open_.front().sum.axes}, {"parts", parts}, {"reduce", std::string("max")}});
    done_.bytes += byte_size(b_.type(all));
    for (int64_t k = 0; k < count; ++k) {
      r_.at(first);
      ValueId own = count == 1 ? all
                               : b_.emit("slice", {all},
                                         {{"starts", std::vector<int64_t>{k}},
                                          {"limits", std::vector<int64_t>{k + 1}},
                                          {"strides", std::vector<int64_t>{1}}});
      finish(open_[static_cast<size_t>(k)],
             b_.scale(b_.reshape(own, {}), 1. / static_cast<double>(kMostRanks / parts)));
    }
    open_.clear();
    bytes_ = 0;
  }

  void finish(const Term& term, ValueId scale) {
    const DType wide = b_.dtype(term.x);
    r_.at(graph_.nodes[term.sum.nodes[0]]);
    ValueId q = b_.cast(b_.emit("round", {b_.div(term.x, scale)}), DType::kI8), sum = q;
    for (NodeId n : term.sum.nodes) {
      const Node& node = graph_.nodes[n];
      r_.at(node);
      ++done_.sums;
      done_.bytes += byte_size(b_.type(sum));
      done_.plain_bytes += byte_size(graph_.type(node.inputs[0]));
      sum = b_.emit(node.op->name, {sum}, node.attrs);
    }
    after_backward(term.sum);
    replace(term.sum, b_.mul(b_.cast(sum, wide), scale));
    in_update(term.sum);
    keep_remainder(term.remainder, b_.sub(term.x, b_.mul(b_.cast(q, wide), scale)));
  }

  const int64_t bucket_bytes_;
  std::vector<Term> open_;  // that share a reduction of their largest elements
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<CompressedGradients> quantize_gradients(LocalProgram& program, const std::vector<int>& axes,
                                                       int64_t bucket_bytes) {
  return Quantizer(program, axes, bucket_bytes).run();
}

}  // namespace partita
