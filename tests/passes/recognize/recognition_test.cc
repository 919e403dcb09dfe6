// The models with references: what the recognisers find in each equals the number of layers of its architecture.
#include <algorithm>
#include <filesystem>
#include <set>

#include "frontend/onnx_import.h"
#include "passes/pipeline.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

struct Expected {
  std::string_view model;  // folder below PARTITA_MODELS
  int64_t layers = 0;
  int64_t attention = 0, causal = 0, masked = 0,
          grouped = 0;  // of the attentions: with the attribute, with an operand, with fewer key heads
  int64_t layer_norm = 0, rms_norm = 0, gelu = 0, silu = 0, rotary = 0;
  int64_t dispatched = 0;    // layers whose tokens are looked up for the experts, and summed up from them
  int64_t left_softmax = 0;  // routers
  int64_t experts = 0;       // products of rows with the experts that they chose
  int64_t blocks = -1;       // instances; -1: the layers
};

constexpr Expected kExpected[] = {
    {.model = "bert", .layers = 3, .attention = 3, .masked = 3, .layer_norm = 8, .gelu = 4},
    {.model = "gpt2", .layers = 3, .attention = 3, .causal = 3, .layer_norm = 7, .gelu = 3},
    {.model = "gpt2_legacy", .layers = 2, .attention = 2, .causal = 2, .layer_norm = 5, .gelu = 2},
    {.model = "llama", .layers = 3, .attention = 3, .causal = 3, .grouped = 3, .rms_norm = 7, .silu = 3, .rotary = 6},
    {.model = "llama_opset23",
     .layers = 2,
     .attention = 2,
     .causal = 2,
     .grouped = 2,
     .rms_norm = 5,
     .silu = 2,
     .rotary = 4},
    {.model = "mixtral",
     .layers = 2,
     .attention = 2,
     .causal = 2,
     .grouped = 2,
     .rms_norm = 5,
     .silu = 2,
     .rotary = 4,
     .left_softmax = 2,
     .experts = 4},
    {.model = "moe",
     .layers = 2,
     .attention = 2,
     .causal = 2,
     .layer_norm = 5,
     .gelu = 2,
     .dispatched = 2,
     .left_softmax = 2},
    {.model = "vit", .layers = 3, .attention = 3, .layer_norm = 7, .gelu = 3},
    {.model = "ort_transformer", .layers = 2, .attention = 2, .layer_norm = 5, .gelu = 2},
    {.model = "full/gpt2_xl", .layers = 48, .attention = 48, .causal = 48, .layer_norm = 97, .gelu = 48},
    {.model = "full/llama31_405b",
     .layers = 126,
     .attention = 126,
     .causal = 126,
     .grouped = 126,
     .rms_norm = 253,
     .silu = 126,
     .rotary = 252},
    {.model = "full/llama3_70b",
     .layers = 80,
     .attention = 80,
     .causal = 80,
     .grouped = 80,
     .rms_norm = 161,
     .silu = 80,
     .rotary = 160},
    {.model = "full/llama3_8b",
     .layers = 32,
     .attention = 32,
     .causal = 32,
     .grouped = 32,
     .rms_norm = 65,
     .silu = 32,
     .rotary = 64},
    {.model = "full/mixtral_8x7b",
     .layers = 32,
     .attention = 32,
     .causal = 32,
     .grouped = 32,
     .rms_norm = 65,
     .silu = 32,
     .rotary = 64,
     .left_softmax = 32,
     .experts = 64},
    {.model = "full/moe_8x7b_capacity",
     .layers = 32,
     .attention = 32,
     .causal = 32,
     .layer_norm = 65,
     .gelu = 32,
     .dispatched = 32,
     .left_softmax = 32},
    {.model = "resnet", .blocks = 7},  // of which four do not repeat, here and below
    {.model = "full/resnet50", .blocks = 20},
    {.model = "full/vit_h14", .layers = 32, .attention = 32, .layer_norm = 65, .gelu = 32},
};

std::string root() { return PARTITA_MODELS; }

// The pipeline's passes up to attach_loss, and the blocks.
std::vector<Pass> recognition() {
  std::vector<Pass> passes;
  for (const Pass& p : graph_passes(PassUse::kTraining)) {
    if (p.name == "build_backward") break;
    if (p.name != "attach_loss") passes.push_back(p);
  }
  return passes;
}

absl::StatusOr<ImportedModel> import_model(const std::string& folder) { return import_onnx(folder, {.batch = 2}); }

class Recognition : public ::testing::TestWithParam<Expected> {};

TEST_P(Recognition, CountsOfItsArchitecture) {
  const Expected& e = GetParam();
  std::string folder = root() + "/" + std::string(e.model);
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is missing";
  auto model = import_model(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  PassContext context;
  PassRun run;
  auto g = run_passes(recognition(), std::move(model->graph), context, run);
  ASSERT_TRUE(g.ok()) << g.status();
  int64_t causal = 0, masked = 0, grouped = 0;
  for (const Node& node : g->nodes) {
    if (node.op->name != "attention") continue;
    causal += node.attrs.i("causal", 0);
    masked += node.inputs.size() > 3 && node.inputs[3] != kNoValue;
    grouped += g->type(node.inputs[1]).shape[1] < g->type(node.inputs[0]).shape[1];
  }
  EXPECT_EQ(count(*g, "attention"), e.attention);
  EXPECT_EQ(causal, e.causal);
  EXPECT_EQ(masked, e.masked);
  EXPECT_EQ(grouped, e.grouped);
  EXPECT_EQ(count(*g, "layer_norm"), e.layer_norm);
  EXPECT_EQ(count(*g, "rms_norm"), e.rms_norm);
  EXPECT_EQ(count(*g, "gelu"), e.gelu);
  EXPECT_EQ(count(*g, "combine"), e.dispatched);
  EXPECT_EQ(count(*g, "silu"), e.silu);
  EXPECT_EQ(count(*g, "rotary"), e.rotary);
  EXPECT_EQ(count(*g, "softmax"), e.left_softmax);
  EXPECT_EQ(count(*g, "grouped_matmul"), e.experts);
  for (std::string_view op : {"erf", "tanh", "sigmoid", "rsqrt", "is_nan", "log_softmax"})
    EXPECT_EQ(count(*g, op), 0) << op;
  std::map<int32_t, int64_t> blocks;
  for (const Node& node : g->nodes) ++blocks[node.block];
  int64_t outside = blocks[-1];
  blocks.erase(-1);
  EXPECT_EQ(static_cast<int64_t>(blocks.size()), e.blocks < 0 ? e.layers : e.blocks);
  for (const auto& [block, nodes] : blocks) {
    if (e.blocks < 0) {
      EXPECT_EQ(nodes, blocks.begin()->second) << "block " << block;
    }
  }
  if (e.layers > 0) {
    EXPECT_LT(outside, 100);
  }
  double seconds = 0;
  for (const PassTime& t : run.times()) seconds += t.seconds;
  EXPECT_LT(seconds, 60) << format_pass_times(run.times());
}

class RecognitionValues : public ::testing::TestWithParam<std::string> {};

TEST_P(RecognitionValues, SameOutputs) {
  std::string folder = root() + "/" + GetParam();
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is missing";
  auto model = import_model(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  PassContext context;
  PassRun run;
  auto g = run_passes(recognition(), model->graph, context, run);
  ASSERT_TRUE(g.ok()) << g.status();
  expect_same_values(model->graph, *g, 1e-6);  // the constants of the file are of f32
}

// Those that the reference evaluator gets through in seconds.
INSTANTIATE_TEST_SUITE_P(Models, RecognitionValues,
                         ::testing::Values("bert", "gpt2_legacy", "llama", "llama_opset23", "mixtral", "moe", "vit",
                                           "ort_transformer"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Models, Recognition, ::testing::ValuesIn(kExpected), [](const auto& info) {
  std::string name(info.param.model);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// Whatever else lies there goes through too.
TEST(Recognition_Folder, EveryModelPasses) {
  std::set<std::string> known;
  for (const Expected& e : kExpected) known.insert(root() + "/" + std::string(e.model));
  if (!fs::exists(root())) GTEST_SKIP() << root() << " is missing";
  for (const std::string& top : {root(), root() + "/full"}) {
    if (!fs::exists(top)) continue;
    for (const auto& entry : fs::directory_iterator(top)) {
      std::string folder = entry.path().string();
      if (!entry.is_directory() || folder == root() + "/full" || known.contains(folder)) continue;
      auto model = import_model(folder);
      ASSERT_TRUE(model.ok()) << folder << ": " << model.status();
      PassContext context;
      PassRun run;
      auto g = run_passes(recognition(), std::move(model->graph), context, run);
      EXPECT_TRUE(g.ok()) << folder << ": " << g.status();
    }
  }
}

}  // namespace
}  // namespace partita
