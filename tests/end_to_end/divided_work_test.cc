// Equal results can hide that every rank does all of the work: the operations of all ranks together are those of the
// serial program.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "base/cat.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/flow/compile.h"

namespace partita {
namespace {

// Operations of the contractions in one run of forward and backward, with each node's origin.
std::map<std::string, double> contractions(const Graph& g) {
  std::map<std::string, double> operations;
  for (const Node& node : g.nodes) {
    bool counts = node.segment == Segment::kForward || node.segment == Segment::kBackward;
    if (!counts || node.op->work == WorkKind::kMemory) continue;
    auto types = input_types(g, node);
    OpView view{node.attrs, types};
    operations[g.origin(node)] += use_flops(*node.op, view, bound_formula(*node.op, view));
  }
  return operations;
}

double total(const std::map<std::string, double>& operations) {
  return std::accumulate(operations.begin(), operations.end(), 0.0,
                         [](double sum, const auto& entry) { return sum + entry.second; });
}

// All ranks' operations in a step over those of the serial program, and in words what exceeds it most.
std::pair<double, std::string> excess(const Compiled& compiled) {
  int64_t samples = 0;
  for (const GraphInput& in : compiled.serial.inputs) {
    if (in.kind == InputKind::kData) samples = compiled.serial.type(in.value).shape[0];
  }
  double runs = static_cast<double>(compiled.samples) / static_cast<double>(samples);
  const int64_t alike = compiled.ranks / static_cast<int64_t>(compiled.programs.size());  // of one program
  double times = static_cast<double>(alike * compiled.programs[0].micro_batches) / runs;
  auto serial = contractions(compiled.serial);
  std::map<std::string, double> local;  // over the stages
  for (const ProgramClaims& program : compiled.claims) {
    for (const auto& [origin, operations] : contractions(program.graph)) local[origin] += operations;
  }
  std::string worst;
  double most = 0;
  for (const auto& [origin, operations] : local) {
    double more = operations * times - (serial.count(origin) ? serial.at(origin) : 0);
    if (more > most) most = more, worst = cat(origin, ": ", more / total(serial), " of the whole");
  }
  return {total(local) * times / total(serial), worst};
}

struct Case {
  const char *model, *pins;  // pins: separated by spaces
  int64_t ranks;
};

class DividedWork : public ::testing::TestWithParam<Case> {};

TEST_P(DividedWork, IsTheSerialProgramsOnAllRanksTogether) {
  const Case& c = GetParam();
  std::string folder = cat(PARTITA_MODELS, "/", c.model);
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no model in " << folder;
  CompileRequest request{
      .model = folder + "/model.onnx", .recipe = *load_recipe(folder + "/train.yaml"), .ranks = c.ranks};
  std::istringstream pins(c.pins);
  for (std::string pin; pins >> pin;) ASSERT_TRUE(apply_pin(request.recipe, pin).ok()) << pin;
  auto compiled = compile_model(request);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  auto [share, worst] = excess(*compiled);
  EXPECT_LT(share, 1.03) << worst;
  EXPECT_GT(share, 0.97);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model :
       {"bert", "gpt2", "gpt2_legacy", "llama", "llama_opset23", "mixtral", "mlp", "moe", "resnet", "vit"}) {
    all.push_back({model, "data=2", 2});
    all.push_back({model, "zero=3", 4});
  }
  for (const char* model : {"bert", "gpt2", "gpt2_legacy", "llama", "llama_opset23", "mixtral", "moe"}) {
    all.push_back({model, "context=2", 2});
    all.push_back({model, "context=2 zero=1", 4});
  }
  for (const char* model : {"bert", "gpt2", "gpt2_legacy", "llama", "llama_opset23", "mixtral", "mlp"})
    all.push_back({model, "tensor=2", 2});
  for (const char* model : {"bert", "gpt2", "gpt2_legacy", "llama", "llama_opset23", "mixtral", "mlp"}) {
    all.push_back({model, "stages=[{\"data\":2},{\"tensor\":2}]", 4});
    all.push_back({model, "stages=[{\"tensor\":2},{\"data\":2}]", 4});
  }
  for (const char* model : {"mixtral", "moe"}) {
    all.push_back({model, "expert=2", 2});
    all.push_back({model, "expert=2 data=2", 4});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(GivenModels, DividedWork, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = cat(info.param.model, "_", info.param.pins);
  std::replace_if(
      name.begin(), name.end(), [](char x) { return !std::isalnum(static_cast<unsigned char>(x)); }, '_');
  return name;
});

// What sequence parallelism is for: forward's gathered activations are not kept, nor is anything else whole.
TEST(SequenceParallel, KeepsActivationsOfABlockInParts) {
  TempFolder out;
  const std::string recipe = out.write("train.yaml",
                                       "loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.1}\n"
                                       "batch: {global: 4}\nbind: {batch: 4}\ndata: {kind: tokens, dtype: u8}\n");
  auto arena = [&](int layers, const char* pins) {
    Outcome made =
        run_command(cat(partita_program(), " model gpt --layers ", layers, " --hidden 128 --heads 4 --seq 128",
                        " --vocab 64 --with-weights --quiet -o ", out / "m.onnx"));
    EXPECT_EQ(made.code, 0) << made.text;
    Outcome compiled = run_command(cat(partita_program(), " compile ", out / "m.onnx", " --train ", recipe,
                                       " --ranks 4 --pin tensor=4 ", pins, " --quiet -o ", out / "bundle"));
    EXPECT_EQ(compiled.code, 0) << compiled.text;
    const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
    return manifest["memory_bytes"]["arena"].get<double>();
  };
  auto block = [&](const char* pins) { return (arena(6, pins) - arena(2, pins)) / 4; };
  const double whole = block(""), parts = block("--pin sequence_parallel=true");
  EXPECT_GT(parts, 0);
  // Queries, keys, values and hidden features are in parts with both; inputs of norms and products, without it, whole.
  EXPECT_LT(parts, whole / 1.35);
}

}  // namespace
}  // namespace partita
