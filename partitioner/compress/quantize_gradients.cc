// Gradients g h k of backward, in buckets of one:
//
//   g sum(g) h sum(h) k sum(k)   becomes   g send(g) h send(h) add(g) k send(k) add(h) add(k)
//
// What is moved or converted in backward after a sum is done after it, in the segment after.
#include "partitioner/compress/quantize_gradients.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "partitioner/compress/gradient_rewriter.h"

namespace partita {
namespace {

constexpr double kMostInt8 = 127;

class Quantizer : public GradientRewriter {
 public:
  Quantizer(LocalProgram& program, const std::vector<int>& axes, const BucketSizes& sizes)
      : GradientRewriter(program, axes), sizes_(sizes) {}

 private:
  // x = scale * q, but for what a state keeps.
  struct Rounded {
    ValueId x = kNoValue, q = kNoValue, scale = kNoValue;
    std::string remainder;
  };
  struct Term {
    GradientSum sum;
    ValueId value = kNoValue;  // the term; after each of the sum's collectives, what that leaves
    Rounded sent;
    std::vector<Rounded> rounded;  // all of them
  };
  struct Bucket {
    std::vector<Term> terms;
    int64_t bytes = 0;
  };

  bool open(const GradientSum& sum) override {
    auto bucket =
        std::find_if(open_.begin(), open_.end(), [&](const Bucket& b) { return same_ways(b.terms[0].sum, sum); });
    const Node& node = graph_.nodes[sum.nodes[0]];
    const int64_t bytes = elements(graph_.type(node.inputs[0]).shape);
    if (bucket != open_.end() && bucket->bytes + bytes > sizes_.bytes(node.attrs.i("parts"))) {
      send(std::exchange(*bucket, {}));
    } else if (bucket == open_.end()) {
      bucket = open_.emplace(open_.end());
    }
    bucket->terms.push_back({.sum = sum, .value = r_(node.inputs[0])});
    bucket->bytes += bytes;
    return true;
  }

  void close() override {
    for (Bucket& bucket : std::exchange(open_, {})) send(std::move(bucket));
    add(std::exchange(sent_, {}));
  }

  // Whether the sums go over the same groups of ranks, one after the other.
  bool same_ways(const GradientSum& a, const GradientSum& b) const {
    return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), [&](NodeId m, NodeId n) {
      return group(graph_.nodes[m]) == group(graph_.nodes[n]) &&
             graph_.type(graph_.nodes[m].inputs[0]).dtype == graph_.type(graph_.nodes[n].inputs[0]).dtype;
    });
  }

  // The bucket goes on its way, and the one before is added up.
  void send(Bucket bucket) {
    r_.at(graph_.nodes[bucket.terms[0].sum.nodes[0]]);
    exchange(bucket.terms, 0);
    std::swap(bucket, sent_);
    add(std::move(bucket));
  }

  void add(Bucket bucket) {
    std::vector<Term>& terms = bucket.terms;
    for (size_t k = 0; k < (terms.empty() ? 0 : terms[0].sum.nodes.size()); ++k) {
      r_.at(collective(terms[0], k));
      if (k > 0) exchange(terms, k);
      std::vector<Term*> whole;
      for (Term& t : terms) {
        t.value = b_.reduce_sum(widened(t.sent), {0}, /*keep=*/true);
        if (collective(t, k).op->collective == CollectiveOp::kAllReduce) whole.push_back(&t);
      }
      gather(whole, k);
      for (Term& t : terms) t.value = b_.reshape(t.value, graph_.type(collective(t, k).outputs[0]).shape);
    }
    for (const Term& t : terms) finish(t);
  }

  const Node& collective(const Term& t, size_t k) const { return graph_.nodes[t.sum.nodes[k]]; }

  // Each rank's part of each term to that rank.
  void exchange(std::vector<Term>& terms, size_t k) {
    std::vector<Term*> all;
    for (Term& t : terms) {
      const Node& sum = collective(t, k);
      if (sum.op->collective == CollectiveOp::kAllReduce) t.value = in_parts(t.value, sum.attrs.i("parts"));
      round(t.sent, with_remainder(t.sum, t.value, t.sent.remainder));
      all.push_back(&t);
      ++done_.sums;
      done_.plain_bytes += byte_size(graph_.type(sum.inputs[0]));
      done_.bytes += byte_size(b_.type(t.sent.q)) + byte_size(b_.type(t.sent.scale));
    }
    travel("all_to_all", all, group(collective(terms[0], k)));
  }

  // The ranks' parts of the sums to all ranks.
  void gather(const std::vector<Term*>& terms, size_t k) {
    if (terms.empty()) return;
    for (Term* t : terms) round(t->sent, with_remainder(t->sum, t->value, t->sent.remainder));
    travel("all_gather", terms, group(collective(*terms[0], k)));
    for (Term* t : terms) {
      const int64_t whole = elements(graph_.type(collective(*t, k).outputs[0]).shape);
      t->value = widened(t->sent);
      const int64_t padded = elements(b_.shape(t->value));
      if (padded > whole) t->value = part(b_.reshape(t->value, {padded}), 0, 0, whole);
    }
  }

  static Attrs group(const Node& sum) { return {{"axes", sum.attrs.ints("axes")}, {"parts", sum.attrs.i("parts")}}; }

  ValueId in_parts(ValueId x, int64_t parts) {
    const int64_t size = elements(b_.shape(x)), rest = (parts - size % parts) % parts;
    if (rest > 0)
      x = b_.emit("pad", {b_.reshape(x, {size}), b_.scalar(b_.dtype(x), 0)},
                  {{"low", std::vector<int64_t>{0}}, {"high", std::vector<int64_t>{rest}}});
    return b_.reshape(x, {parts, (size + rest) / parts});
  }

  void round(Rounded& out, ValueId x) {
    std::vector<int64_t> rest;
    for (int d = 1; d < b_.rank(x); ++d) rest.push_back(d);
    // What is no number makes the scale infinite, and the sum no number.
    ValueId number = b_.emit("eq", {x, x});
    ValueId size =
        b_.select(number, b_.emit("abs", {x}), b_.scalar(b_.dtype(x), std::numeric_limits<double>::infinity()));
    out.x = x;
    out.scale = b_.scale(b_.reduce("reduce_max", size, std::move(rest), /*keep=*/true), 1 / kMostInt8);
    out.q = b_.cast(b_.emit("round", {b_.div(x, out.scale)}), DType::kI8);
  }

  ValueId widened(const Rounded& x) { return b_.mul(b_.cast(x.q, b_.dtype(x.scale)), x.scale); }

  // What the terms sent, by what comes back; the scales as columns of one matrix.
  void travel(std::string_view op, const std::vector<Term*>& terms, const Attrs& group) {
    std::vector<ValueId> numbers, scales;
    for (Term* t : terms) {
      t->rounded.push_back(t->sent);
      numbers.push_back(t->sent.q);
      scales.push_back(b_.reshape(t->sent.scale, {b_.shape(t->sent.scale)[0], 1}));
    }
    numbers = b_.emit_all(op, numbers, group);
    ValueId all = scales.size() == 1 ? scales[0] : b_.emit("concat", scales, {{"dim", int64_t{1}}});
    all = b_.emit(op, {all}, group);
    for (size_t k = 0; k < terms.size(); ++k) {
      const int64_t column = static_cast<int64_t>(k);
      const ValueId own = part(all, b_.rank(all) - 1, column, column + 1);
      Rounded& x = terms[k]->sent;
      x.q = numbers[k];
      Shape shape(b_.shape(x.q).size(), 1);
      shape[0] = b_.shape(own)[0];
      x.scale = b_.reshape(own, std::move(shape));
    }
  }

  void finish(const Term& term) {
    after_backward(term.sum);
    replace(term.sum, term.value);
    in_update(term.sum);
    for (const Rounded& x : term.rounded) keep(x.remainder, b_.sub(x.x, widened(x)));
  }

  const BucketSizes& sizes_;
  std::vector<Bucket> open_;  // of sums that go different ways
  Bucket sent_;
};

}  // namespace

CompressedGradients quantize_gradients(LocalProgram& program, const std::vector<int>& axes, const BucketSizes& sizes) {
  return Quantizer(program, axes, sizes).run();
}

}  // namespace partita
