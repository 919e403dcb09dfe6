#include "tests/partitioner/support/random_model.h"

#include <algorithm>
#include <random>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "passes/forward/attach_loss.h"
#include "passes/training/build_backward.h"
#include "passes/training/build_optimizer.h"

namespace partita {
namespace {

constexpr DType kF = DType::kF64;
constexpr int64_t kBatch = 4, kPositions = 4, kFeatures = 8, kHeads = 4;
constexpr int kKinds = 14, kBatchNorm = 11, kExperts = 12, kGroupedExperts = 13;

class Maker {
 public:
  explicit Maker(const RandomModel& model) : model_(model) {}

  Graph forward() {
    const std::vector<int>& layers = model_.layers;
    ids_ = b_.input("ids", {DType::kI64, {kBatch, kPositions}});
    ValueId table = parameter({model_.classes, kFeatures});
    ValueId x = b_.emit("gather", {table, ids_}, {{"dim", int64_t{0}}});
    for (int kind : layers) x = layer(kind % kKinds, x);
    // Half of the models share the embedding with the head.
    ValueId logits = layers.size() % 2 ? product(x, table, true) : product(x, parameter({kFeatures, model_.classes}));
    b_.output("logits", logits);
    return std::move(b_).finish();
  }

 private:
  ValueId parameter(Shape shape) {
    return b_.state({.name = cat("w", count_++), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                    {kF, std::move(shape)});
  }

  // x [..., k] times a matrix, which becomes a stack of one where x is a stack.
  ValueId product(ValueId x, ValueId w, bool transposed = false) {
    if (b_.rank(x) == 3) w = b_.reshape(w, {1, b_.shape(w)[0], b_.shape(w)[1]});
    return b_.matmul(x, w, false, transposed);
  }

  ValueId layer(int kind, ValueId x) {
    switch (kind) {
      case 0:
        return b_.emit("layer_norm", {x, parameter({kFeatures}), parameter({kFeatures})},
                       {{"axis", int64_t{2}}, {"epsilon", 1e-5}});
      case 1:
        return b_.emit("rms_norm", {x, parameter({kFeatures})}, {{"axis", int64_t{2}}, {"epsilon", 1e-5}});
      case 2:
        return b_.add(x, mlp(x, "gelu"));
      case 3:
        return b_.add(x, mlp(x, "tanh"));
      case 4:
        return b_.add(x, attention(x, kHeads));
      case 5:
        return b_.add(x, attention(x, kHeads / 2));
      case 6:
        return b_.add(x, gated(x));
      case 7: {  // flattened rows, as exporters write them
        ValueId rows = b_.reshape(x, {kBatch * kPositions, kFeatures});
        rows = b_.add(product(rows, parameter({kFeatures, kFeatures})), parameter({kFeatures}));
        return b_.reshape(rows, b_.shape(x));
      }
      case 8:  // a table of positions
        return b_.add(x, parameter({kPositions, kFeatures}));
      case 9: {  // mixing positions
        ValueId t = b_.transpose(x, {0, 2, 1});
        return b_.add(x, b_.transpose(product(t, parameter({kPositions, kPositions})), {0, 2, 1}));
      }
      case kBatchNorm: {  // beside x: of two in a row the first one's scale would have no gradient but rounding
        ValueId rows = b_.reshape(x, {kBatch * kPositions, kFeatures});
        rows = b_.emit("batch_norm", {rows, parameter({kFeatures}), parameter({kFeatures})}, {{"epsilon", 1e-3}});
        return b_.add(x, b_.reshape(rows, b_.shape(x)));
      }
      case kExperts:
        return b_.add(x, experts(x));
      case kGroupedExperts:
        return b_.add(x, grouped_experts(x));
      default:  // a statistic over features
        return b_.mul(x, b_.emit("sigmoid", {b_.mean(x, {2}, true)}));
    }
  }

  ValueId mlp(ValueId x, std::string_view activation) {
    ValueId up = b_.add(product(x, parameter({kFeatures, model_.hidden})), parameter({model_.hidden}));
    up = activation == "gelu" ? b_.emit("gelu", {up}, {{"approximate", int64_t{0}}}) : b_.emit("tanh", {up});
    return b_.add(product(up, parameter({model_.hidden, kFeatures})), parameter({kFeatures}));
  }

  // Four experts, each with one slot that all tokens are mixed into and taken from by their gates.
  ValueId experts(ValueId x) {
    ValueId rows = b_.reshape(x, {kBatch * kPositions, kFeatures});
    ValueId gates = b_.emit("softmax", {product(rows, parameter({kFeatures, 4}))}, {{"dim", int64_t{1}}});
    ValueId slots = b_.reshape(b_.matmul(gates, rows, true, false), {4, 1, kFeatures});
    slots = b_.emit("tanh", {b_.matmul(slots, parameter({4, kFeatures, kFeatures}))});
    return b_.reshape(b_.matmul(gates, b_.reshape(slots, {4, kFeatures})), b_.shape(x));
  }

  // Four experts in two parts, of which each token has the one that its number says and the next one.
  ValueId grouped_experts(ValueId x) {
    const int64_t tokens = kBatch * kPositions;
    ValueId rows = b_.reshape(x, {tokens, kFeatures}), three = b_.constant(to_literal({{DType::kI64, {}}, {}, {3}})),
            one = b_.reshape(b_.emit("mod", {ids_, three}), {tokens, 1}),
            chosen = b_.reshape(b_.add(one, b_.constant(ints_literal({0, 1}))), {tokens * 2}),
            first = b_.constant(ints_literal({0, 2}));
    const Attrs attrs = {{"total", int64_t{4}}};
    Attrs transposed = attrs;
    transposed.set("transpose_b", int64_t{1});
    ValueId up = b_.emit("grouped_matmul", {rows, parameter({4, kFeatures, model_.hidden}), chosen, first}, attrs);
    ValueId down = b_.emit(
        "grouped_matmul", {b_.emit("tanh", {up}), parameter({4, kFeatures, model_.hidden}), chosen, first}, transposed);
    return b_.reshape(b_.reduce_sum(b_.reshape(down, {2, tokens, 2, kFeatures}), {0, 2}, false), b_.shape(x));
  }

  // Gate and up in one weight, as in fused exports: [features, (2 hidden)].
  ValueId gated(ValueId x) {
    ValueId both = product(x, parameter({kFeatures, 2 * kFeatures}));
    ValueId parts = b_.reshape(both, {kBatch, kPositions, 2, kFeatures});
    ValueId gate = part(parts, 2, 0), up = part(parts, 2, 1);
    return product(b_.mul(b_.emit("silu", {gate}), up), parameter({kFeatures, kFeatures}));
  }

  ValueId part(ValueId x, int dim, int64_t k) {
    Shape shape = b_.shape(x), rest = shape;
    std::vector<int64_t> starts(shape.size(), 0), limits = shape, strides(shape.size(), 1);
    starts[static_cast<size_t>(dim)] = k;
    limits[static_cast<size_t>(dim)] = k + 1;
    rest.erase(rest.begin() + dim);
    return b_.reshape(b_.emit("slice", {x}, {{"starts", starts}, {"limits", limits}, {"strides", strides}}), rest);
  }

  // Fused QKV; grouped where there are fewer key heads.
  ValueId attention(ValueId x, int64_t key_heads) {
    int64_t d = kFeatures / kHeads;
    auto heads = [&](int64_t n) {
      ValueId y = b_.reshape(product(x, parameter({kFeatures, n * d})), {kBatch, kPositions, n, d});
      return b_.transpose(y, {0, 2, 1, 3});
    };
    ValueId q, k, v;
    if (key_heads == kHeads) {
      ValueId qkv = b_.reshape(product(x, parameter({kFeatures, 3 * kFeatures})), {kBatch, kPositions, 3, kHeads, d});
      qkv = b_.transpose(qkv, {2, 0, 3, 1, 4});
      q = part(qkv, 0, 0), k = part(qkv, 0, 1), v = part(qkv, 0, 2);
    } else {
      q = heads(kHeads), k = heads(key_heads), v = heads(key_heads);
    }
    ValueId out = b_.emit_all("attention", {q, k, v}, {{"scale", 0.7}, {"causal", int64_t{1}}})[0];
    out = b_.reshape(b_.transpose(out, {0, 2, 1, 3}), {kBatch, kPositions, kFeatures});
    return product(out, parameter({kFeatures, kFeatures}));
  }

  const RandomModel& model_;
  Builder b_;
  ValueId ids_ = kNoValue;
  int count_ = 0;
};

constexpr OptimizerKind kOptimizers[] = {OptimizerKind::kSgd,  OptimizerKind::kMomentum, OptimizerKind::kAdamW,
                                         OptimizerKind::kLamb, OptimizerKind::kRmsprop,  OptimizerKind::kAdafactor,
                                         OptimizerKind::kMuon};

}  // namespace

bool joins_samples(const RandomModel& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](int kind) { return kind % kKinds == kBatchNorm || kind % kKinds == kExperts; });
}

RandomModel random_model(uint64_t seed) {
  std::mt19937_64 rng(seed);
  RandomModel m;
  for (uint64_t n = 1 + rng() % 4; n-- > 0;) m.layers.push_back(static_cast<int>(rng() % kKinds));
  m.micro_batches = rng() % 4 == 0 ? 2 : 1;
  m.accumulate = m.micro_batches > 1 || rng() % 3 == 0;
  m.optimizer = static_cast<int>(rng() % std::size(kOptimizers));
  m.clip = rng() % 2;
  m.mask = rng() % 2;
  m.squared = rng() % 4 == 0;
  m.classes = 8 - static_cast<int64_t>(rng() % 4);
  m.hidden = 16 - static_cast<int64_t>(rng() % 3);
  return m;
}

Graph training_graph(const RandomModel& model) {
  PassContext context;
  LossRecipe loss{.kind = LossKind::kCrossEntropy, .output = "logits"};
  if (model.mask) loss.ignore_index = 3;
  if (model.squared) loss.kind = LossKind::kMse;
  context.recipe.loss = {loss};
  context.recipe.optimizer = default_optimizer(kOptimizers[model.optimizer]);
  context.recipe.optimizer->lr = 0.01;
  context.recipe.optimizer->eps = 1e-3;  // with a small one the first step is the gradient's sign: rounding decides it
  context.recipe.optimizer->adamw.eps = 1e-3;
  if (model.clip) context.recipe.clip_grad_norm = 0.5;
  context.micro_batches = model.micro_batches;
  context.accumulate = model.accumulate;
  context.keep_gradients = true;
  Graph g = *attach_loss(Maker(model).forward(), context);
  g = *build_backward(g, context);
  return *build_optimizer(g, context);
}

std::string describe(const RandomModel& m) {
  std::string s = "layers";
  for (int kind : m.layers) append(s, " ", kind % kKinds);
  append(s, ", ", m.micro_batches, " runs", m.accumulate ? ", accumulated" : "", ", ",
         enum_name(kOptimizers[m.optimizer]), m.clip ? ", clipped" : "", m.mask ? ", masked" : "",
         m.squared ? ", mse" : ", cross-entropy", ", ", m.classes, " classes, ", m.hidden, " hidden");
  return s;
}

}  // namespace partita
