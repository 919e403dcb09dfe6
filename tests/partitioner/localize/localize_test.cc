// Every split of a small training graph, run by all ranks in float64, equals the serial run.
#include "partitioner/localize/localize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "partitioner/communicate/bucket.h"
#include "partitioner/localize/reshard.h"
#include "passes/forward/attach_loss.h"
#include "passes/training/build_backward.h"
#include "passes/training/build_optimizer.h"
#include "tests/partitioner/support/spmd.h"

namespace partita {
namespace {

constexpr DType kF = DType::kF64;

Tensor random_tensor(const TensorType& type, std::mt19937& rng, int64_t below = 7) {
  Tensor t = Tensor::zeros(type);
  std::normal_distribution<double> normal;
  for (double& x : t.f) x = normal(rng) * 0.5;
  for (int64_t& x : t.i) x = static_cast<int64_t>(rng() % static_cast<uint32_t>(below));
  return t;
}

// Embedding, one attention block with a fused QKV weight, an MLP with biases, cross-entropy over 7 classes.
Graph small_transformer() {
  const int64_t b = 4, s = 6, d = 8, h = 2, v = 7;
  Builder g;
  auto parameter = [&](const char* name, Shape shape) {
    return g.state({.name = name, .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                   {kF, std::move(shape)});
  };
  ValueId ids = g.input("ids", {DType::kI64, {b, s}});
  ValueId x = g.emit("gather", {parameter("embedding", {v, d}), ids}, {{"dim", int64_t{0}}});
  ValueId qkv = g.reshape(g.matmul(g.reshape(x, {b * s, d}), parameter("qkv", {d, 3 * d})), {b, s, 3, h, d / h});
  qkv = g.transpose(qkv, {2, 0, 3, 1, 4});
  auto part = [&](int64_t k) {
    return g.reshape(g.emit("slice", {qkv},
                            {{"starts", std::vector<int64_t>{k, 0, 0, 0, 0}},
                             {"limits", std::vector<int64_t>{k + 1, b, h, s, d / h}},
                             {"strides", std::vector<int64_t>{1, 1, 1, 1, 1}}}),
                     {b, h, s, d / h});
  };
  ValueId p = g.emit("softmax", {g.scale(g.matmul(part(0), part(1), false, true), 0.5)}, {{"dim", int64_t{3}}});
  ValueId a = g.reshape(g.transpose(g.matmul(p, part(2)), {0, 2, 1, 3}), {b * s, d});
  x = g.add(g.reshape(x, {b * s, d}), g.add(g.matmul(a, parameter("out", {d, d})), parameter("out_bias", {d})));
  ValueId up = g.emit("gelu", {g.add(g.matmul(x, parameter("up", {d, 4 * d})), parameter("up_bias", {4 * d}))},
                      {{"approximate", int64_t{1}}});
  x = g.add(x, g.matmul(up, parameter("down", {4 * d, d})));
  ValueId logits = g.matmul(x, parameter("head", {d, v}));
  g.output("logits", g.reshape(logits, {b, s, v}));
  return std::move(g).finish();
}

// An embedding whose rows are taken in two parts and put together in another order, as relative position tables are.
Graph table_in_parts() {
  Builder g;
  auto parameter = [&](const char* name, Shape shape) {
    return g.state({.name = name, .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                   {kF, std::move(shape)});
  };
  ValueId table = parameter("table", {7, 4});
  auto rows = [&](int64_t from, int64_t to) {
    return g.emit("slice", {table},
                  {{"starts", std::vector<int64_t>{from, 0}},
                   {"limits", std::vector<int64_t>{to, 4}},
                   {"strides", std::vector<int64_t>{1, 1}}});
  };
  ValueId turned = g.emit("concat", {rows(5, 7), rows(0, 5)}, {{"dim", int64_t{0}}});
  ValueId x = g.emit("gather", {turned, g.input("ids", {DType::kI64, {4, 6}})}, {{"dim", int64_t{0}}});
  g.output("logits", g.reshape(g.matmul(g.reshape(x, {24, 4}), parameter("head", {4, 7})), {4, 6, 7}));
  return std::move(g).finish();
}

const LossRecipe kCrossEntropy{.kind = LossKind::kCrossEntropy, .output = "logits", .ignore_index = 3};

Graph training_graph(int64_t micro_batches, bool accumulate, const Graph& forward, const LossRecipe& loss) {
  PassContext context;
  context.recipe.loss = {loss};
  context.recipe.optimizer = default_optimizer(OptimizerKind::kAdamW);
  context.recipe.clip_grad_norm = 0.5;
  context.micro_batches = micro_batches;
  context.accumulate = accumulate;
  context.keep_gradients = true;
  Graph g = *attach_loss(forward, context);
  g = *build_backward(g, context);
  return *build_optimizer(g, context);
}

struct Problem {
  Graph graph;
  int64_t micro_batches;
  Tensors inputs, states;
};

Problem problem(int64_t micro_batches, bool accumulate, const Graph& forward = small_transformer(),
                const LossRecipe& loss = kCrossEntropy) {
  Problem p{training_graph(micro_batches, accumulate, forward, loss), micro_batches, {}, {}};
  std::mt19937 rng(5);
  for (const GraphInput& in : p.graph.inputs) {
    TensorType t = p.graph.type(in.value);
    t.shape[0] *= micro_batches;
    p.inputs[in.name] = random_tensor(t, rng);
  }
  for (const State& s : p.graph.states) {
    if (s.kind == StateKind::kParameter) p.states[s.name] = random_tensor(p.graph.type(s.value), rng);
  }
  return p;
}

ShardingPlan replicated_plan(const Problem& p, std::vector<MeshAxis> axes) {
  ShardingPlan plan;
  plan.mesh.axes = std::move(axes);
  plan.micro_batches = p.micro_batches;
  for (const GraphInput& in : p.graph.inputs) plan.inputs.push_back(Sharding::replicated(p.graph.type(in.value).shape));
  for (const State& s : p.graph.states) {
    if (s.kind == StateKind::kAccumulator) {
      plan.states.push_back(std::nullopt);
    } else {
      Sharding whole = Sharding::replicated(p.graph.type(s.value).shape);
      plan.states.push_back(StateLayout{whole, whole});
    }
  }
  return plan;
}

void expect_near(const Tensors& got, const Tensors& expected, const std::string& what) {
  for (const auto& [name, e] : expected) {
    if (name.rfind("accumulate/", 0) == 0) continue;  // holds this rank's part of the sum
    ASSERT_TRUE(got.count(name)) << what << name;
    const Tensor& g = got.at(name);
    ASSERT_EQ(g.type, e.type) << what << name;
    for (size_t k = 0; k < e.f.size(); ++k) ASSERT_NEAR(g.f[k], e.f[k], 1e-10) << what << name << " element " << k;
    for (size_t k = 0; k < e.i.size(); ++k) ASSERT_EQ(g.i[k], e.i[k]) << what << name << " element " << k;
  }
}

int count(const Graph& g, std::string_view op) {
  int n = 0;
  for (const Node& node : g.nodes) n += node.op->name == op;
  return n;
}

// All ranks' squares of all gradients meet in one sum; the loss, where samples are split, is the other.
void expect_update_reductions(const Graph& g, int expected) {
  int n = 0;
  for (const Node& node : g.nodes) n += node.segment == Segment::kUpdate && node.op->name == "all_reduce";
  EXPECT_EQ(n, expected);
}

LocalProgram expect_equal_to_serial(const Problem& p, const ShardingPlan& plan, const std::string& what) {
  SpmdResult serial = run_spmd(*localize(p.graph, replicated_plan(p, {})), p.inputs, p.states);
  EXPECT_GT(serial.outputs.at("loss").f[0], 0.1);
  auto local = localize(p.graph, plan);
  EXPECT_TRUE(local.ok()) << what << local.status();
  SpmdResult split = run_spmd(*local, p.inputs, p.states);
  expect_near(split.outputs, serial.outputs, what + " output ");
  expect_near(split.states, serial.states, what + " state ");
  return *std::move(local);
}

void split_batch(ShardingPlan& plan, int axis) {
  for (Sharding& s : plan.inputs) {
    if (!s.dims.empty()) s.dims[0][0].axes.push_back(axis);
  }
}

// A run's samples on two ranks, in two micro-batches.
ShardingPlan in_two_by_two(const Problem& p) {
  ShardingPlan plan = replicated_plan(p, {{"data", 2}, {"micro_batch", 2}});
  plan.mesh.time = 1;
  plan.micro_batches = 2;
  split_batch(plan, 1);
  split_batch(plan, 0);
  return plan;
}

TEST(Localize_DataParallel, EqualsSerial) {
  Problem p = problem(1, false);
  for (int64_t n : {2, 4}) {
    ShardingPlan plan = replicated_plan(p, {{"data", n}});
    split_batch(plan, 0);
    LocalProgram local = expect_equal_to_serial(p, plan, cat("data ", n));
    EXPECT_EQ(count(local.graph, "all_gather"), 0);
    // One reduction for each parameter, and two for the loss: its sum and its count.
    EXPECT_EQ(count(local.graph, "all_reduce"), 8 + 2);
  }
}

// Nothing is split, so that every node waits for a reader, and a model without a product has none before the update:
// outside of forward and backward no micro-batch's data are there.
TEST(Localize_IdleAxis, ReadsDataWithTheirMicroBatch) {
  Builder b;
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {kF, {7}});
  b.output("logits", b.mul(b.input("x", {kF, {4, 7}}), w));
  Problem p = problem(1, false, std::move(b).finish());
  LocalProgram local = expect_equal_to_serial(p, replicated_plan(p, {{"tensor", 2}}), "an idle axis");
  std::set<ValueId> data;
  for (const GraphInput& in : local.graph.inputs) data.insert(in.value);
  for (const Node& node : local.graph.nodes) {
    if (node.segment <= Segment::kBackward) continue;
    for (ValueId v : node.inputs) EXPECT_FALSE(data.count(v)) << node.op->name;
  }
}

TEST(Localize_SlicesAndBatch, EqualsSerial) {
  Problem p = problem(4, true);
  ShardingPlan plan = replicated_plan(p, {{"data_outer", 2}, {"data_inner", 2}});
  plan.slice_axes = {0};
  plan.micro_batches = 2;
  split_batch(plan, 1);
  // Ranks with different runs add their terms up for themselves; the sums are reduced once.
  LocalProgram sums = expect_equal_to_serial(p, plan, "slices 2 x batch 2");
  for (const Node& node : sums.graph.nodes) {
    if (node.segment > Segment::kBackward || node.op->name != "all_reduce") continue;
    EXPECT_EQ(node.attrs.ints("axes"), std::vector<int64_t>{1});
  }
  // ZeRO 2: gradients are accumulated in parts, over both axes.
  for (size_t k = 0; k < plan.states.size(); ++k) {
    const State& s = p.graph.states[k];
    const Shape& shape = p.graph.type(s.value).shape;
    if (s.kind == StateKind::kParameter || shape.empty() || shape[0] % 4 != 0) continue;
    Sharding parts = Sharding::replicated(shape);
    parts.dims[0][0].axes = {0, 1};
    plan.states[k] = StateLayout{parts, parts};
  }
  LocalProgram local = expect_equal_to_serial(p, plan, "gradients in parts");
  EXPECT_GT(count(local.graph, "reduce_scatter"), 0);
}

// One run of the graph in several micro-batches: the labels that count are counted over all of them.
TEST(Localize_MicroBatches, EqualSerial) {
  for (int64_t parts : {2, 4}) {
    for (int64_t ranks : {1, 2}) {
      if (parts * ranks > 4) continue;
      Problem p = problem(1, true);
      ShardingPlan plan = replicated_plan(p, {{"data", ranks}, {"micro_batch", parts}});
      plan.mesh.time = 1;
      plan.micro_batches = parts;
      split_batch(plan, 1);
      split_batch(plan, 0);
      LocalProgram local = expect_equal_to_serial(p, plan, cat(parts, " micro-batches on ", ranks));
      EXPECT_EQ(count(local.graph, "all_gather"), 0);
    }
  }
  Problem p = problem(4, true);
  ShardingPlan plan = replicated_plan(p, {{"data", 2}, {"micro_batch", 2}});
  plan.slice_axes = {0};
  plan.mesh.time = 1;
  plan.micro_batches = 4;
  split_batch(plan, 1);
  expect_equal_to_serial(p, plan, "slices x micro-batches");
}

// Statistics of the data themselves, which each micro-batch could make of the whole run, would move in each of them.
TEST(Localize_MicroBatches, MoveNoRunningStatistics) {
  Builder b;
  ValueId x = b.input("x", {kF, {4, 7}});
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {kF, {7}});
  ValueId mean = b.state({.name = "mean", .kind = StateKind::kRunning, .parameter = {}, .initial = {}}, {kF, {7}});
  b.set_next_of(1, b.add(b.scale(mean, 0.9), b.scale(b.reduce_sum(x, {0}, false), 0.025)));
  b.output("logits", b.mul(x, w));
  Problem p = problem(1, true, std::move(b).finish());
  EXPECT_FALSE(localize(p.graph, in_two_by_two(p)).ok());
}

// A maximum over the samples has no terms to add up. The walk ends there: behind it nothing lies as its readers expect.
TEST(Localize_MicroBatches, RefuseAMaximum) {
  Builder b;
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {kF, {7}});
  b.output("most", b.reduce("reduce_max", b.mul(b.input("x", {kF, {4, 7}}), w), {0, 1}, false));
  Problem p = problem(1, true, std::move(b).finish(), {.kind = LossKind::kOutput, .output = "most"});
  EXPECT_FALSE(localize(p.graph, in_two_by_two(p)).ok());
}

// A penalty on a weight that has samples' gradients too: it counts once, with the first micro-batch.
TEST(Localize_MicroBatches, AddWhatIsOfNoSample) {
  Builder b;
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {kF, {7}});
  auto sum = [&](ValueId v, std::vector<int64_t> dims) { return b.reduce_sum(b.mul(v, v), std::move(dims), false); };
  b.output("loss", b.add(sum(b.mul(b.input("x", {kF, {4, 7}}), w), {0, 1}), sum(w, {0})));
  Problem p = problem(1, true, std::move(b).finish(), {.kind = LossKind::kOutput, .output = "loss"});
  expect_equal_to_serial(p, in_two_by_two(p), "a penalty");
}

// The gradient of a part of a parameter is padded in each micro-batch, before it is accumulated.
TEST(Localize_MicroBatches, AParameterInParts) {
  for (int64_t ranks : {1, 2}) {
    Problem p = problem(1, true, table_in_parts());
    ShardingPlan plan = replicated_plan(p, {{"data", ranks}, {"micro_batch", 2}});
    plan.mesh.time = 1;
    plan.micro_batches = 2;
    split_batch(plan, 1);
    split_batch(plan, 0);
    LocalProgram local = expect_equal_to_serial(p, plan, cat("on ", ranks));
    EXPECT_EQ(count(local.graph, "select"), count(p.graph, "select"));  // zeros are not made owed
  }
}

TEST(Localize_Zero, EqualsSerial) {
  Problem p = problem(1, false);
  for (int stage : {1, 3}) {
    ShardingPlan plan = replicated_plan(p, {{"data", 2}});
    split_batch(plan, 0);
    for (size_t k = 0; k < plan.states.size(); ++k) {
      const State& s = p.graph.states[k];
      const Shape& shape = p.graph.type(s.value).shape;
      bool split = s.kind == StateKind::kOptimizer || (stage == 3 && s.kind == StateKind::kParameter);
      if (split && !shape.empty() && shape[0] % 2 == 0) plan.states[k]->stored.dims[0][0].axes = {0};
    }
    LocalProgram local = expect_equal_to_serial(p, plan, cat("zero ", stage));
    EXPECT_GT(count(local.graph, "reduce_scatter"), 0);
    EXPECT_GT(count(local.graph, "all_gather"), 0);
    expect_update_reductions(local.graph, 2);
  }
}

// Any sharding of any parameter: the transformation finds the communication.
TEST(Localize_RandomShardings, EqualSerial) {
  Problem p = problem(1, false);
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 rng(seed);
    ShardingPlan plan =
        replicated_plan(p, seed % 2 ? std::vector<MeshAxis>{{"x", 2}} : std::vector<MeshAxis>{{"x", 2}, {"y", 2}});
    if (rng() % 2) split_batch(plan, static_cast<int>(rng() % plan.mesh.axes.size()));
    for (size_t k = 0; k < plan.states.size(); ++k) {
      const Shape& shape = p.graph.type(p.graph.states[k].value).shape;
      if (shape.empty() || rng() % 3 == 0) continue;
      auto& dims = plan.states[k]->stored.dims;
      size_t d = rng() % shape.size();
      int axis = static_cast<int>(rng() % plan.mesh.axes.size());
      if (shape[d] % 3 == 0 && shape[d] > 6 && rng() % 2) {  // inside a fused dimension: (3 n@axis)
        if (shape[d] / 3 % 2 == 0) dims[d] = {{3, {}}, {shape[d] / 3, {axis}}};
      } else if (shape[d] % 4 == 0 && plan.mesh.axes.size() == 2 && rng() % 3 == 0) {
        dims[d][0].axes = {1, 0};
      } else if (shape[d] % 2 == 0) {
        dims[d][0].axes = {axis};
      }
      if (rng() % 2) plan.states[k]->compute = plan.states[k]->stored;
      plan.states[k]->gather = static_cast<GatherTime>(rng() % 3);
    }
    for (int axis = 0; axis < static_cast<int>(plan.mesh.axes.size()); ++axis) {
      if (rng() % 3 == 0) plan.scatter_axes.push_back(axis);
    }
    expect_equal_to_serial(p, plan, cat("seed ", seed));
    if (HasFatalFailure()) return;
  }
}

TEST(Localize_MegatronWeights, NoGatherInForwardOrBackward) {
  Problem p = problem(1, false);
  ShardingPlan plan = replicated_plan(p, {{"tensor", 2}});
  for (size_t k = 0; k < plan.states.size(); ++k) {
    const State& s = p.graph.states[k];
    std::string name = s.kind == StateKind::kOptimizer ? s.parameter : s.name;
    auto& dims = plan.states[k]->stored.dims;
    if (name == "qkv") dims[1] = {{3, {}}, {2, {0}}, {4, {}}};
    if (name == "out" || name == "down") dims[0][0].axes = {0};
    if (name == "up") dims[1][0].axes = {0};
    if (name == "up_bias") dims[0][0].axes = {0};
    plan.states[k]->compute = plan.states[k]->stored;
  }
  LocalProgram local = expect_equal_to_serial(p, plan, "megatron");
  EXPECT_EQ(count(local.graph, "all_gather"), 0);
  EXPECT_EQ(count(local.graph, "all_to_all"), 0);
  expect_update_reductions(local.graph, 1);
}

TEST(Bucket_DataParallel, JoinsReductionsAndEqualsSerial) {
  Problem p = problem(1, false);
  ShardingPlan plan = replicated_plan(p, {{"data", 2}});
  split_batch(plan, 0);
  LocalProgram local = *localize(p.graph, plan);
  SpmdResult apart = run_spmd(local, p.inputs, p.states);
  int before = count(local.graph, "all_reduce");
  bucket_collectives(local, BucketSizes::all(1 << 20));
  EXPECT_LT(count(local.graph, "all_reduce"), before - 5);
  SpmdResult joined = run_spmd(local, p.inputs, p.states);
  expect_near(joined.outputs, apart.outputs, "bucketed ");
  expect_near(joined.states, apart.states, "bucketed ");
}

// Reduce-scatters and gathers of ZeRO; with `replicas`, all-reduces of what has been scattered.
TEST(Bucket_Zero, JoinsScattersAndGathersAndEqualsSerial) {
  for (int64_t replicas : {1, 2}) {
    Problem p = problem(1, false);
    ShardingPlan plan = replicated_plan(p, {{"replica", replicas}, {"shard", 2}});
    split_batch(plan, 1);
    split_batch(plan, 0);
    for (size_t k = 0; k < plan.states.size(); ++k) {
      const State& s = p.graph.states[k];
      const Shape& shape = p.graph.type(s.value).shape;
      if (s.kind != StateKind::kOptimizer || shape.empty()) continue;
      // Columns of matrices: their blocks have to be brought together before and after.
      Piece& piece = plan.states[k]->stored.dims.back()[0];
      if (piece.size % 2 == 0) piece.axes = {1};
    }
    LocalProgram local = *localize(p.graph, plan);
    SpmdResult apart = run_spmd(local, p.inputs, p.states);
    EXPECT_GT(count(local.graph, "reduce_scatter"), 5);
    EXPECT_GT(count(local.graph, "all_gather"), 5);
    bucket_collectives(local, BucketSizes::all(1 << 20));
    EXPECT_EQ(count(local.graph, "reduce_scatter"), 1);
    EXPECT_EQ(count(local.graph, "all_gather"), 1);
    SpmdResult joined = run_spmd(local, p.inputs, p.states);
    expect_near(joined.outputs, apart.outputs, "bucketed ");
    expect_near(joined.states, apart.states, "bucketed ");
  }
}

// From any sharding to any other, with and without a partial sum.
TEST(Reshard_AllPairs, MovesTheSameValues) {
  Mesh mesh{{{"x", 2}, {"y", 3}}};
  const Shape shape = {12, 18};
  std::vector<Sharding> all;
  std::vector<std::vector<std::vector<Piece>>> choices(2);
  for (int d = 0; d < 2; ++d) {
    for (std::vector<int> axes : std::vector<std::vector<int>>{{}, {0}, {1}, {0, 1}, {1, 0}})
      choices[d].push_back({{shape[d], axes}});
    choices[d].push_back({{3, {}}, {shape[d] / 3, {0}}});
    choices[d].push_back({{3, {1}}, {shape[d] / 3, {0}}});
  }
  for (const auto& rows : choices[0]) {
    for (const auto& columns : choices[1]) {
      std::vector<int> used;
      for (const auto* dim : {&rows, &columns}) {
        for (const Piece& piece : *dim) used.insert(used.end(), piece.axes.begin(), piece.axes.end());
      }
      std::sort(used.begin(), used.end());
      if (std::adjacent_find(used.begin(), used.end()) != used.end()) continue;
      all.push_back(normalized({{rows, columns}, {}, PartialKind::kSum}));
    }
  }
  std::mt19937 rng(1);
  Tensor whole = random_tensor({kF, shape}, rng);
  for (const Sharding& from : all) {
    for (const Sharding& to : all) {
      for (bool partial : {false, true}) {
        LocalProgram p{.graph = {}, .mesh = mesh, .inputs = {}, .states = {}, .outputs = {}};
        Builder b;
        ValueId x = b.input("x", {kF, local_shape(from, mesh)});
        Sharding start = from;
        if (partial) {
          for (int a = 0; a < 2; ++a) {
            bool used = false;
            for (int d = 0; d < 2; ++d) {
              auto axes = from.axes_of(d);
              used = used || std::count(axes.begin(), axes.end(), a);
            }
            if (!used) start.partial.push_back(a);
          }
          if (start.partial.empty()) continue;
        }
        Resharder r(b, mesh);
        b.output("y", r.reshard(x, start, to));
        p.graph = std::move(b).finish();
        p.inputs.resize(p.graph.inputs.size());
        p.inputs[0] = {shape, from};
        p.outputs = {{shape, to}};
        Tensor y = run_spmd(p, {{"x", whole}}, {}).outputs.at("y");
        double times = 1;
        for (int a : start.partial) times *= static_cast<double>(mesh.axes[a].size);
        for (size_t k = 0; k < whole.f.size(); ++k) {
          ASSERT_NEAR(y.f[k], whole.f[k] * times, 1e-12) << to_string(start, mesh) << " -> " << to_string(to, mesh);
        }
      }
    }
  }
}

// All ranks of several axes are one group, but where their order says that they are levels.
TEST(Reshard_SeveralAxes, AreOneCollectiveFromOutsideInwards) {
  const Mesh mesh{{{"far", 2}, {"near", 4}}};
  const auto collectives = [&](const std::vector<int>& axes) {
    const Sharding parts = {{{{16, axes}}}, {}, PartialKind::kSum}, whole = Sharding::replicated({16});
    Sharding owed = whole;
    owed.partial = {0, 1};
    Builder b;
    const ValueId x = b.input("x", {kF, {2}}), y = b.input("y", {kF, {16}});
    Resharder r(b, mesh);
    b.output("gathered", r.reshard(x, parts, whole));
    b.output("scattered", r.reshard(y, owed, parts));
    const Graph g = std::move(b).finish();
    return std::pair{count(g, "all_gather"), count(g, "reduce_scatter")};
  };
  EXPECT_EQ(collectives({0, 1}), std::pair(1, 1));
  EXPECT_EQ(collectives({1, 0}), std::pair(2, 2));
}

}  // namespace
}  // namespace partita
