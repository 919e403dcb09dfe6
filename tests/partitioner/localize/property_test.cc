// Random models x meshes x shardings x stored parts x micro-batches x stages: all ranks in float64 equal the serial
// step. A case that fails is made smaller as long as it fails, and printed.
//
// PARTITA_SEEDS=N runs N seeds (300 unless said), PARTITA_SEED=K the one seed K.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/verify.h"
#include "ir/text/print.h"
#include "partitioner/communicate/bucket.h"
#include "partitioner/communicate/bucket_gathers.h"
#include "partitioner/communicate/keep_gathered.h"
#include "partitioner/communicate/level_sums.h"
#include "partitioner/communicate/overlap_micro_batches.h"
#include "partitioner/communicate/overlap_products.h"
#include "partitioner/communicate/prefetch_gathers.h"
#include "partitioner/communicate/regather_in_backward.h"
#include "partitioner/compress/compress_gradients.h"
#include "partitioner/localize/localize.h"
#include "partitioner/prepare/pad_dimensions.h"
#include "partitioner/prepare/split_forms.h"
#include "partitioner/shard/join_plans.h"
#include "partitioner/stages/split_stages.h"
#include "tests/partitioner/support/random_model.h"
#include "tests/partitioner/support/spmd.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

// A case is a model and a list of choices; a choice of 0 is the plainest.
struct Case {
  RandomModel model;
  std::vector<MeshAxis> axes;
  int time = 0;    // parts of a run
  int stages = 1;  // of a pipeline
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t chunks = 1;
  bool differ = false;    // the stages divide different things
  bool lack = false;      // and some of them lack some of the axes
  bool compress = false;  // the evaluator rounds nothing: the same numbers go another way
  int64_t prefetched = 1;
  int64_t overlapped = 1;  // micro-batches that take turns
  int64_t row_parts = 1;   // of products
  std::vector<uint32_t> choices;
};

// Draws from the list, then zeros.
class Choices {
 public:
  explicit Choices(const std::vector<uint32_t>& list) : list_(list) {}
  uint32_t below(uint32_t n) { return at_ < list_.size() ? list_[at_++] % n : (++at_, 0); }

 private:
  const std::vector<uint32_t>& list_;
  size_t at_ = 0;
};

Case random_case(uint64_t seed) {
  std::mt19937_64 rng(seed * 7919 + 1);
  Case c{.model = random_model(seed), .axes = {}, .choices = {}};
  int64_t ranks = 1;
  for (uint64_t k = 1 + rng() % 3; k-- > 0 && ranks < 8;) {
    c.axes.push_back({cat("a", c.axes.size()), rng() % 4 == 3 ? 4 : 2});
    ranks *= c.axes.back().size;
  }
  if (c.model.accumulate && !joins_samples(c.model) && rng() % 2) c.time = 2;
  for (int k = 0; k < 600; ++k) c.choices.push_back(static_cast<uint32_t>(rng()));
  constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::k1f1b, PipelineSchedule::kGpipe,
                                             PipelineSchedule::kZeroBubble, PipelineSchedule::kInterleaved};
  if (rng() % 2) c.stages = 2 + static_cast<int>(rng() % 3);
  c.schedule = kSchedules[rng() % 4];
  if (c.schedule == PipelineSchedule::kInterleaved) c.chunks = 2 + static_cast<int64_t>(rng() % 2);
  c.compress = rng() % 2 == 0;
  c.prefetched = static_cast<int64_t>(rng() % 4);
  c.differ = c.stages > 1 && rng() % 2 == 0;
  // With one micro-batch a step it is the serial program, where no stage needs what others know after it.
  const bool one = c.model.micro_batches == 1 && c.time == 0 && !c.model.accumulate && !c.model.clip;
  if (one && c.stages > 1 && rng() % 3 == 0) c.schedule = PipelineSchedule::kPipedream, c.chunks = 1;
  c.lack = c.differ && rng() % 2 == 0;
  if (c.schedule != PipelineSchedule::kPipedream) c.overlapped = 1 + static_cast<int64_t>(rng() % 3);
  c.row_parts = 1 + static_cast<int64_t>(rng() % 2);
  return c;
}

// Splits some pieces of `s` over some of `free`.
void split(Sharding& s, std::vector<int> free, const Mesh& mesh, Choices& choices) {
  for (size_t n = choices.below(3); n-- > 0 && !free.empty() && !s.dims.empty();) {
    auto& dim = s.dims[choices.below(static_cast<uint32_t>(s.dims.size()))];
    size_t which = choices.below(static_cast<uint32_t>(free.size()));
    int axis = free[which];
    free.erase(free.begin() + static_cast<int64_t>(which));
    if (dim.size() == 1 && dim[0].axes.empty() && dim[0].size % 2 == 0 && dim[0].size > 2 && choices.below(3) == 2)
      dim = {{2, {}}, {dim[0].size / 2, {}}};  // inside of a fused dimension
    Piece& piece = dim[choices.below(static_cast<uint32_t>(dim.size()))];
    if (piece.size % (mesh.ways(piece.axes) * mesh.axes[axis].size) == 0) piece.axes.push_back(axis);
  }
}

bool uses_axis(const Sharding& s, int axis) {
  for (size_t d = 0; d < s.dims.size(); ++d) {
    for (int a : s.axes_of(static_cast<int>(d))) {
      if (a == axis) return true;
    }
  }
  return false;
}

struct Prepared {
  Graph graph;
  ShardingPlan plan;
};

// How inputs and states lie on the axes `own`, and which sums are scattered. `samples`: of a run, that axes may share
// along which ranks do not take different runs.
void draw(ShardingPlan& plan, const Graph& graph, const std::vector<int>& own, int64_t samples, Choices& choices) {
  std::vector<int> batch, rest;
  for (int a : own) {
    if (std::count(plan.slice_axes.begin(), plan.slice_axes.end(), a) == 0) rest.push_back(a);
  }
  for (int a : rest) {
    const int64_t size = plan.mesh.axes[static_cast<size_t>(a)].size;
    if (choices.below(2) == 0 || samples % size != 0) continue;
    batch.push_back(a);
    samples /= size;
  }
  for (const GraphInput& in : graph.inputs) {
    Sharding s = Sharding::replicated(graph.type(in.value).shape);
    if (in.kind == InputKind::kData) {
      s.dims[0][0].axes = batch;
      if (plan.mesh.time >= 0) s.dims[0][0].axes.insert(s.dims[0][0].axes.begin(), plan.mesh.time);
    }
    plan.inputs.push_back(std::move(s));
  }
  for (const State& s : graph.states) {
    Sharding whole = Sharding::replicated(graph.type(s.value).shape);
    bool accumulator = s.kind == StateKind::kAccumulator;
    if (accumulator && (choices.below(3) != 2 || !plan.mesh.irregular().empty())) {
      plan.states.push_back(std::nullopt);
      continue;
    }
    StateLayout layout{whole, whole};
    if (choices.below(3) > 0) split(layout.compute, rest, plan.mesh, choices);
    layout.stored = layout.compute;
    std::vector<int> free;  // slices too: they store parts, and compute with the whole
    for (int a : own) {
      if (!uses_axis(layout.compute, a)) free.push_back(a);
    }
    if (choices.below(2)) split(layout.stored, free, plan.mesh, choices);
    if (accumulator || s.kind != StateKind::kParameter) layout.compute = layout.stored;
    layout.gather = static_cast<GatherTime>(choices.below(3));
    plan.states.push_back(std::move(layout));
  }
  for (int a : rest) {
    if (choices.below(3) == 2) plan.scatter_axes.push_back(a);
  }
}

// Takes axes from stages, each from some of them; runs are shared out alike on all.
void draw_absent(std::vector<ShardingPlan>& plans, Choices& choices) {
  Mesh mesh = plans[0].mesh;
  for (int a = 1; a < static_cast<int>(mesh.axes.size()); ++a) {
    const std::vector<int>& slices = plans[0].slice_axes;
    if (a == mesh.time || std::count(slices.begin(), slices.end(), a) > 0) continue;
    for (int64_t stage = 0; stage < mesh.axes[0].size; ++stage) {
      if (choices.below(2)) mesh.axes[static_cast<size_t>(a)].absent.push_back(stage);
    }
    MeshAxis& axis = mesh.axes[static_cast<size_t>(a)];
    if (static_cast<int64_t>(axis.absent.size()) == mesh.axes[0].size) axis.absent.clear();
  }
  for (ShardingPlan& p : plans) p.mesh = mesh;
}

Prepared prepare(const Case& c) {
  Choices choices(c.choices);
  Graph graph = training_graph(c.model);
  PaddedGraph padded{std::move(graph), {}};
  if (choices.below(4)) {
    int64_t parts = choices.below(2) ? 4 : 2;
    padded = pad_dimensions(padded.graph,
                            {.parts = parts, .is_split = [&](const State&, int) { return choices.below(4) > 0; }});
  }
  if (choices.below(2)) padded.graph = use_split_forms(padded.graph, [](const Node&) { return true; }).graph;
  Prepared p{std::move(padded.graph), {}};
  ShardingPlan& plan = p.plan;
  plan.logical = std::move(padded.logical);
  if (c.stages > 1) plan.mesh.axes.push_back({"pipeline", c.stages});
  std::vector<int> all;
  for (const MeshAxis& axis : c.axes) {
    all.push_back(static_cast<int>(plan.mesh.axes.size()));
    plan.mesh.axes.push_back(axis);
  }
  plan.micro_batches = c.model.micro_batches;
  if (c.model.micro_batches == 2 && c.axes[0].size == 2 && choices.below(2)) {
    plan.slice_axes = {all[0]};
    plan.micro_batches = 1;
  }
  int64_t samples = 4;
  if (c.time > 0) {
    plan.mesh.time = static_cast<int>(plan.mesh.axes.size());
    plan.mesh.axes.push_back({"micro_batch", c.time});
    plan.micro_batches *= c.time;
    samples /= c.time;
  }
  std::vector<ShardingPlan> plans(c.differ ? static_cast<size_t>(c.stages) : 1, plan);
  if (c.lack) draw_absent(plans, choices);
  for (size_t k = 0; k < plans.size(); ++k) {
    std::vector<int> own = all;
    std::erase_if(own, [&](int a) { return !plans[k].mesh.has(a, static_cast<int64_t>(k)); });
    draw(plans[k], p.graph, own, samples, choices);
  }
  plan = plans[0];
  if (!c.differ) return p;
  // Too few parts: one plan for all, then.
  auto stages = assign_stages(p.graph, c.stages * c.chunks, {});
  for (MeshAxis& axis : plan.mesh.axes) axis.absent.clear();
  if (!stages.ok()) return p;
  auto joined = join_plans(p.graph, *stages, plans);
  PARTITA_CHECK(joined.ok(), joined.status().ToString());
  p.graph = std::move(joined->graph);
  p.plan = std::move(joined->plan);
  return p;
}

Tensor random_tensor(const TensorType& type, std::mt19937& rng) {
  Tensor t = Tensor::zeros(type);
  std::normal_distribution<double> normal;
  for (double& x : t.f) x = normal(rng) * 0.5;
  for (int64_t& x : t.i) x = static_cast<int64_t>(rng() % 10) - 2;  // some count from the end, some are outside
  return t;
}

// What is wrong; empty where all agrees.
std::string fault_of(const Case& c) {
  Graph graph = training_graph(c.model);
  std::mt19937 rng(5);
  Tensors inputs, states;
  for (const GraphInput& in : graph.inputs) {
    TensorType t = graph.type(in.value);
    t.shape[0] *= c.model.micro_batches;
    inputs[in.name] = random_tensor(t, rng);
  }
  ShardingPlan alone;
  alone.micro_batches = c.model.micro_batches;
  for (const GraphInput& in : graph.inputs) alone.inputs.push_back(Sharding::replicated(graph.type(in.value).shape));
  for (const State& s : graph.states) {
    if (s.kind == StateKind::kParameter) states[s.name] = random_tensor(graph.type(s.value), rng);
    Sharding whole = Sharding::replicated(graph.type(s.value).shape);
    alone.states.push_back(StateLayout{whole, whole});
  }
  SpmdResult serial = run_spmd(*localize(graph, alone), inputs, states);
  Prepared p = prepare(c);
  auto local = localize(p.graph, p.plan);
  if (!local.ok()) return std::string(local.status().message());
  std::vector<LocalProgram> stages = {*std::move(local)};
  if (c.stages > 1) {
    auto cut = split_stages(stages[0], p.plan.mesh.find("pipeline"), {c.schedule, c.chunks, {}, c.overlapped});
    // Too few parts; the walk alone then.
    if (!cut.ok() && !p.plan.mesh.irregular().empty()) return {};
    if (cut.ok()) stages = *std::move(cut);
  }
  for (LocalProgram& stage : stages) {
    if (auto sound = verify(stage.graph, Phase::kRank); !sound.ok()) return std::string(sound.message());
    const ShardingPlan::AxisUse axes = axis_use(p.plan, stage.stage);
    regather_in_backward(stage, axes.scatter);
    if (c.compress) {
      compress_gradients(stage, Compression::kBf16, axes.samples, BucketSizes::all(1 << 12));
    }
    if (!axes.samples.empty()) sum_in_levels(stage, {axes.samples[0]}, /*least=*/0);
    bucket_collectives(stage, BucketSizes::all(1 << 12));
    keep_gathered(stage, c.prefetched);
    bucket_gathers(stage, BucketSizes::all(1 << 12));
    prefetch_gathers(stage, c.prefetched);
    overlap_products(stage, c.row_parts);
    if (auto sound = verify(stage.graph, Phase::kRank); !sound.ok()) return std::string(sound.message());
  }
  if (stages[0].micro_batches > 1) {
    if (auto cut = overlap_micro_batches(stages, c.overlapped); !cut.ok()) return std::string(cut.message());
  }
  SpmdResult split = run_spmd(stages, inputs, states);
  auto compare = [](const Tensors& got, const Tensors& expected) -> std::string {
    for (const auto& [name, e] : expected) {
      if (name.rfind("accumulate/", 0) == 0) continue;  // a rank's part of the sum
      auto at = got.find(name);
      if (at == got.end() || at->second.type != e.type) return cat(name, " is missing or of another type");
      for (size_t k = 0; k < e.f.size(); ++k) {
        if (!(std::abs(at->second.f[k] - e.f[k]) <= 1e-9 * std::max(1.0, std::abs(e.f[k]))))
          return cat(name, " element ", k, ": expected ", e.f[k], ", found ", at->second.f[k]);
      }
      if (at->second.i != e.i) return cat(name, " differs");
    }
    return {};
  };
  std::string wrong = compare(split.outputs, serial.outputs);
  return wrong.empty() ? compare(split.states, serial.states) : wrong;
}

std::string fault(const Case& c) {
  try {
    return fault_of(c);
  } catch (const std::exception& e) {
    return e.what();
  }
}

Case smallest(Case c) {
  auto fails = [](const Case& smaller) { return !fault(smaller).empty(); };
  for (bool again = true; again;) {
    again = false;
    auto attempt = [&](Case smaller) {
      if (!fails(smaller)) return;
      c = std::move(smaller);
      again = true;
    };
    for (size_t k = 0; k < c.model.layers.size(); ++k) {
      Case smaller = c;
      smaller.model.layers.erase(smaller.model.layers.begin() + static_cast<int64_t>(k));
      attempt(std::move(smaller));
    }
    for (auto [size, plain] : {std::pair{&RandomModel::classes, 8}, std::pair{&RandomModel::hidden, 16}}) {
      Case smaller = c;
      if (smaller.model.*size == plain) continue;
      smaller.model.*size = plain;
      attempt(std::move(smaller));
    }
    for (bool RandomModel::*flag : {&RandomModel::clip, &RandomModel::mask}) {
      Case smaller = c;
      if (!(smaller.model.*flag)) continue;
      smaller.model.*flag = false;
      attempt(std::move(smaller));
    }
    if (c.compress) {
      Case smaller = c;
      smaller.compress = false;
      attempt(std::move(smaller));
    }
    if (c.lack) {
      Case smaller = c;
      smaller.lack = false;
      attempt(std::move(smaller));
    }
    if (c.differ) {
      Case smaller = c;
      smaller.differ = smaller.lack = false;
      attempt(std::move(smaller));
    }
    if (c.stages > 2) {
      Case smaller = c;
      smaller.stages = 2;
      attempt(std::move(smaller));
    }
    if (c.axes.size() > 1) {
      Case smaller = c;
      smaller.axes.pop_back();
      attempt(std::move(smaller));
    }
  }
  for (uint32_t& choice : c.choices) {
    if (choice == 0) continue;
    Case smaller = c;
    smaller.choices[static_cast<size_t>(&choice - c.choices.data())] = 0;
    if (fails(smaller)) c.choices = smaller.choices;
  }
  return c;
}

std::string report(const Case& c) {
  Prepared p = prepare(c);
  std::string s = cat(fault(c), "\n", describe(c.model), "\nmesh");
  for (const MeshAxis& a : p.plan.mesh.axes) {
    append(s, " ", a.name, "=", a.size);
    for (int64_t stage : a.absent) append(s, " (not ", stage, ")");
  }
  for (int a : p.plan.slice_axes) append(s, ", runs over ", p.plan.mesh.axes[a].name);
  for (int a : p.plan.scatter_axes) append(s, ", sums scattered over ", p.plan.mesh.axes[a].name);
  append(s, ", ", enum_name(c.schedule), " x ", c.chunks, c.differ ? ", stages differ" : "",
         c.compress ? ", compressed" : "", ", gathers ", c.prefetched, " ahead, ", c.overlapped,
         " in turns, products in ", c.row_parts, "\n");
  for (size_t k = 0; k < p.graph.inputs.size(); ++k)
    append(s, p.graph.inputs[k].name, " ", to_string(p.plan.inputs[k], p.plan.mesh), "\n");
  for (size_t k = 0; k < p.graph.states.size(); ++k) {
    const auto& layout = p.plan.states[k];
    if (layout) {
      append(s, p.graph.states[k].name, " stored ", to_string(layout->stored, p.plan.mesh), " used ",
             to_string(layout->compute, p.plan.mesh), "\n");
    }
  }
  return s + print(p.graph);
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(Transformation_AnyModelMeshAndSharding, EqualsSerial) {
  uint64_t first = 0, seeds = from_environment("PARTITA_SEEDS", sample_or_all<uint64_t>(300, 3000));
  if (std::getenv("PARTITA_SEED") != nullptr) first = from_environment("PARTITA_SEED", 0), seeds = 1;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Case c = random_case(seed);
    if (fault(c).empty()) continue;
    FAIL() << "seed " << seed << ": " << report(smallest(c));
  }
}

// 1487: a bucket had a member that waited for what another was accumulated to. 8488: the gradient of keys whose
// positions and heads were moved was summed twice. 2686: a gradient was exchanged to a factor that what was scattered
// to it had divided as far as it goes.
TEST(Transformation_SeedsThatFailed, EqualSerial) {
  for (uint64_t seed : {1487, 2686, 8488}) EXPECT_EQ(fault(random_case(seed)), "") << seed;
}

}  // namespace
}  // namespace partita
