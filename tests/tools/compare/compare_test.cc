// Faults seeded into one node of a rank's graph, and code made of it, beside the evidence of the graph as it was:
// `compare` has to name that node.
#include "tools/compare/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/emit_program.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"
#include "tests/support/command.h"
#include "tests/support/test_options.h"
#include "tests/tools/support/verify_samples.h"
#include "tools/compare/step_check.h"
#include "tools/mutation/mutations.h"
#include "tools/verify/layout/serial_values.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using verifier::Bundle;
using verifier::RankProgram;

// The program of a rank's graph as it stands, in the interface that it had.
absl::StatusOr<EmittedProgram> emitted(const RankProgram& p, int64_t stage, const Graph& graph) {
  LocalProgram local;
  local.graph = graph;
  const auto whole = [&](ValueId v) {
    return PlacedTensor{graph.type(v).shape, Sharding::replicated(graph.type(v).shape)};
  };
  for (const runtime::MeshAxis& a : p.program.mesh) local.mesh.axes.push_back({a.name, a.size, a.absent});
  for (const GraphInput& in : graph.inputs) local.inputs.push_back(whole(in.value));
  for (const State& s : graph.states) local.states.push_back(whole(s.value));
  for (const GraphOutput& o : graph.outputs) local.outputs.push_back(whole(o.value));
  local.micro_batches = p.program.micro_batches;
  local.samples_per_step = p.program.samples_per_step;
  if (const int axis = runtime::stage_axis(p.program.mesh); axis >= 0) local.stage = {.axis = axis, .index = stage};
  PassRun run;
  PARTITA_ASSIGN_OR_RETURN(std::vector<EmittedProgram> all, emit_programs({local}, {}, EmitUntil::kCode, run));
  runtime::Program& made = all[0].program;
  for (size_t k = 0; k < made.states.size(); ++k) made.states[k].placement = p.program.states[k].placement;
  for (size_t k = 0; k < made.outputs.size(); ++k) made.outputs[k].placement = p.program.outputs[k].placement;
  for (size_t k = 0; k < made.inputs.size(); ++k) {
    made.inputs[k].placement = p.program.inputs[k].placement;
    made.inputs[k].slice_samples = p.program.inputs[k].slice_samples;
    made.inputs[k].bounds = p.program.inputs[k].bounds;
  }
  made.groups = p.program.groups;
  made.micro_slices = p.program.micro_slices;
  return std::move(all[0]);
}

struct Fault {
  std::string_view name;
  // Whether a node can be broken so, and breaks it; `sound` gets what both graphs need.
  bool (*apply)(Graph& sound, Graph& broken, NodeId n);
  bool below_rounding = false;  // a number may be right by chance: beside the program as it was it is found for certain
};

bool computes_floats(const Graph& g, const Node& node) {
  return !node.op->communicates && !node.outputs.empty() && is_float(g.type(node.outputs[0]).dtype);
}

// The constant that an operand is, made the node's own.
std::optional<size_t> own_constant(Graph& sound, Graph& broken, NodeId n) {
  for (size_t k = 0; k < broken.nodes[n].inputs.size(); ++k) {
    const ValueId v = broken.nodes[n].inputs[k];
    const Literal* literal = v == kNoValue ? nullptr : constant_values(broken)[v];
    if (literal == nullptr || literal->type.dtype != DType::kF32 || !is_uniform(*literal)) continue;
    const Literal own = *literal;
    for (Graph* g : {&sound, &broken}) {
      g->nodes[n].inputs[k] = static_cast<ValueId>(g->values.size());
      g->constants.push_back({static_cast<ValueId>(g->values.size()), own});
      g->values.push_back({own.type, kNoNode, 0, ""});
    }
    return broken.constants.size() - 1;
  }
  return std::nullopt;
}

void scale(Literal& literal, double factor) {
  Tensor t = to_tensor(literal);
  for (double& x : t.f) x *= factor;
  literal = to_literal(t);
}

bool wrong_scale(Graph& sound, Graph& broken, NodeId n) {
  const Node& node = broken.nodes[n];
  if (node.segment != Segment::kBackward || node.op->name != "mul" || elements(broken.type(node.outputs[0]).shape) < 2)
    return false;
  const auto c = own_constant(sound, broken, n);
  if (c) scale(broken.constants[*c].literal, 1.25);
  return c.has_value();
}

// A constant that is so many numbers further than it should be: in a kernel's last node or within.
template <int kUlps>
bool ulps(Graph& sound, Graph& broken, NodeId n) {
  const Node& node = broken.nodes[n];
  if (node.op->name != "mul") return false;
  const TensorType& type = broken.type(node.outputs[0]);
  if (type.dtype != DType::kF32 || elements(type.shape) < 16) return false;
  const auto c = own_constant(sound, broken, n);
  if (!c) return false;
  Tensor t = to_tensor(broken.constants[*c].literal);
  for (double& x : t.f) {
    for (int k = 0; k < kUlps; ++k) x = std::nextafter(static_cast<float>(x), INFINITY);
  }
  broken.constants[*c].literal = to_literal(t);
  return true;
}

bool swapped_operands(Graph&, Graph& broken, NodeId n) {
  Node& node = broken.nodes[n];
  if (node.inputs.size() != 2 || (node.op->name != "sub" && node.op->name != "div") ||
      node.inputs[0] == node.inputs[1] || broken.type(node.inputs[0]) != broken.type(node.inputs[1]) ||
      !computes_floats(broken, node) || node.segment == Segment::kUpdate)
    return false;
  std::swap(node.inputs[0], node.inputs[1]);
  return true;
}

bool is_read(const Graph& g, ValueId v) {
  return std::any_of(g.nodes.begin(), g.nodes.end(), [&](const Node& node) {
    return std::find(node.inputs.begin(), node.inputs.end(), v) != node.inputs.end();
  });
}

// Whether v is chosen from `other`, which it equals where all samples count.
bool is_chosen_from(const Graph& g, ValueId v, ValueId other) {
  const Node* node = g.producer(v);
  return node != nullptr && node->op->name == "select" &&
         std::find(node->inputs.begin(), node->inputs.end(), other) != node->inputs.end();
}

// Another value of the same type in an operand's place. Others still read the operand: what nobody reads is not
// computed, which is a fault of its own.
bool wrong_operand(Graph&, Graph& broken, NodeId n) {
  Node& node = broken.nodes[n];
  if (!computes_floats(broken, node) || node.segment == Segment::kUpdate || node.op->view || node.inputs.empty())
    return false;
  const ValueId own = node.inputs[0];
  for (size_t m = static_cast<size_t>(n); own != kNoValue && is_float(broken.type(own).dtype) && m-- > 0;) {
    const Node& other = broken.nodes[m];
    for (ValueId v : other.outputs) {
      if (v == own || broken.type(v) != broken.type(own) || other.segment != node.segment || other.op->view) continue;
      if (other.op->name == "broadcast" || other.op->communicates || is_chosen_from(broken, own, v)) continue;
      node.inputs[0] = v;
      return is_read(broken, own);
    }
  }
  return false;
}

bool lost_mask(Graph&, Graph& broken, NodeId n) {
  Node& node = broken.nodes[n];
  if (node.op->name == "relu_grad" && node.inputs[0] != node.inputs[1]) {
    node.inputs[1] = node.inputs[0];
    return true;
  }
  if (node.attrs.i("causal", 0) == 0) return false;
  node.attrs.set("causal", int64_t{0});
  return true;
}

constexpr Fault kFaults[] = {{"wrong scale", wrong_scale},     {"four ulps", ulps<4>, true},
                             {"one ulp", ulps<1>, true},       {"swapped operands", swapped_operands},
                             {"wrong operand", wrong_operand}, {"lost mask", lost_mask}};

// First weights that are drawn, for bundles in memory have no file.
void draw_weights(Bundle& b) {
  for (RankProgram& p : b.programs) {
    for (runtime::ProgramState& s : p.program.states) {
      if (s.initial.kind == runtime::InitialKind::kFile) s.initial = {runtime::InitialKind::kNormal, 0, 0.3};
    }
  }
}

runtime::TrainOptions run_options() {
  runtime::TrainOptions options;
  options.threads = 1;
  options.data = {.kind = DataKind::kSynthetic, .epochs = 0};
  return options;
}

void small_model(const TempFolder& folder) {
  const Outcome made =
      run_partita("model gpt --layers 1 --hidden 16 --heads 2 --seq 8 --vocab 16 --with-weights --quiet -o " +
                  (folder / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  folder.write("train.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 8}\n"
               "bind: {batch: 4}\nclip_grad_norm: 1.0\n");
}

ComparedBundle side(std::string name, Bundle bundle) { return {std::move(name), std::move(bundle), run_options()}; }

// The same node as the serial program has it: the rank's may be one of the smaller ones that an op can be split as.
bool names(const Comparison& result, const Graph& serial, const Graph& rank, const Node& node) {
  const std::string exactly = describe_node(rank, node);
  const bool is_serial = std::any_of(serial.nodes.begin(), serial.nodes.end(),
                                     [&](const Node& x) { return describe_node(serial, x) == exactly; });
  const std::string beginning = exactly.substr(0, exactly.rfind(", ") + 2);
  return std::any_of(result.nodes.begin(), result.nodes.end(), [&](const std::string& named) {
    return is_serial ? named == exactly : named.starts_with(beginning);
  });
}

struct Case {
  const char* name;
  SampleLayout layout;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Faults : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    small_model(folder_);
    auto sound = sample_bundle(folder_.path(), GetParam().layout);
    ASSERT_TRUE(sound.ok()) << sound.status();
    auto alone = sample_bundle(folder_.path(), {.ranks = 1});
    ASSERT_TRUE(alone.ok()) << alone.status();
    sound_ = *std::move(sound);
    alone_ = *std::move(alone);
    draw_weights(sound_);
    draw_weights(alone_);
  }

  // Places that can be broken so, by stage and node, in a drawn order.
  std::vector<std::pair<size_t, NodeId>> places(const Fault& fault) {
    std::vector<std::pair<size_t, NodeId>> all;
    for (size_t s = 0; s < sound_.programs.size(); ++s) {
      for (size_t n = 0; n < sound_.programs[s].rank.nodes.size(); ++n) {
        Graph graph = sound_.programs[s].rank, wrong = graph;
        if (fault.apply(graph, wrong, static_cast<NodeId>(n))) all.emplace_back(s, static_cast<NodeId>(n));
      }
    }
    std::shuffle(all.begin(), all.end(), rng_);
    return all;
  }

  // A program made anew whose node `n` of stage `s` is broken so, and the same one sound; nullopt: it cannot be.
  std::optional<std::pair<Bundle, Bundle>> broken(size_t s, const Fault& fault, NodeId n) const {
    const RankProgram& p = sound_.programs[s];
    Graph graph = p.rank, wrong = p.rank;
    if (!fault.apply(graph, wrong, n)) return std::nullopt;
    const auto good = emitted(p, static_cast<int64_t>(s), graph), bad = emitted(p, static_cast<int64_t>(s), wrong);
    if (!good.ok() || !bad.ok() || good->claims.graph.values.size() != bad->claims.graph.values.size() ||
        good->claims.graph.nodes.size() != bad->claims.graph.nodes.size())
      return std::nullopt;
    auto with = [&](const EmittedProgram& made) {
      Bundle b = sound_;
      RankProgram& mine = b.programs[s];
      mine.rank = good->claims.graph;
      mine.code = *verifier::expanded(mine.rank, mine.from);
      mine.claims = made.claims.steps;
      mine.nests = made.claims.nests;
      mine.program = made.program;
      draw_weights(b);
      return b;
    };
    return std::pair(with(*bad), with(*good));
  }

  TempFolder folder_;
  Bundle sound_, alone_;
  std::mt19937 rng_{7};
};

TEST_P(Faults, AreFoundAtTheirNode) {
  const auto none = compare(side("sound", sound_), side("alone", alone_), {.steps = 1});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->differs) << none->text;
  int found = 0;
  for (const Fault& fault : kFaults) {
    int left = sample_or_all(1, 4);
    for (const auto& [s, n] : places(fault)) {
      if (left == 0) break;
      const auto b = broken(s, fault, n);
      if (!b) continue;
      const ComparedBundle other = fault.below_rounding ? side("sound", b->second) : side("alone", alone_);
      const auto result = compare(side("broken", b->first), other, {.steps = 1});
      ASSERT_TRUE(result.ok()) << fault.name << ": " << result.status();
      const Graph& g = sound_.programs[s].rank;
      const Node& node = g.nodes[static_cast<size_t>(n)];
      EXPECT_TRUE(names(*result, sound_.serial, g, node))
          << fault.name << " in " << describe_node(g, node) << ": " << result->text;
      found += result->differs;
      --left;
    }
  }
  EXPECT_GE(found, 5);
  RecordProperty("found", found);
}

TEST_P(Faults, MissingReductionWentWrongOnItsWay) {
  std::vector<std::pair<uint32_t, uint32_t>> all;  // start and wait
  for (const auto& segment : sound_.programs[0].program.segments) {
    for (const runtime::Step& s : segment.steps) {
      if (s.name == "all_reduce" && (segment.kind == Segment::kForward || segment.kind == Segment::kBackward))
        all.emplace_back(s.id, s.id);
      for (auto& [start, wait] : all) {
        if (s.kind == runtime::StepKind::kCollectiveWait && runtime::int_param(s.params, "of", -1) == start)
          wait = s.id;
      }
    }
  }
  if (sound_.programs.size() > 1) GTEST_SKIP() << "stages of one rank each have nothing to reduce";
  ASSERT_FALSE(all.empty());
  std::shuffle(all.begin(), all.end(), rng_);
  all.resize(std::min<size_t>(all.size(), static_cast<size_t>(sample_or_all(1, 4))));
  for (const auto& [start, wait] : all) {
    Bundle b = sound_;
    remove_step(b, std::max(start, wait));
    if (wait != start) remove_step(b, std::min(start, wait));
    const auto result = compare(side("broken", std::move(b)), std::nullopt, {.steps = 1});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->text, AllOf(HasSubstr("differs"), HasSubstr("on ranks 0, 1"))) << start;
  }
}

// On the command line: exit codes, another model, other constants, tensors that somebody dumped.
class CompareCommand : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run_partita("model mlp --layers 4,8,2 --batch 8 --with-weights --quiet -o " + (folder / "mlp.onnx")).code,
              0);
    ASSERT_EQ(
        run_partita("model mlp --layers 4,6,2 --batch 8 --with-weights --quiet -o " + (folder / "other.onnx")).code, 0);
    folder.write("train.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.1}\n");
    folder.write("faster.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.3}\n");
  }
  std::string bundle(const std::string& name, const std::string& flags, const std::string& model = "mlp.onnx",
                     const std::string& recipe = "train.yaml") {
    const Outcome made = run_partita("compile " + (folder / model) + " --train " + (folder / recipe) + " " + flags +
                                     " --quiet -o " + (folder / name));
    EXPECT_EQ(made.code, 0) << made.text;
    return folder / name;
  }
  Outcome compared(const std::string& flags) { return run_partita("compare " + flags); }

  TempFolder folder;
};

TEST_F(CompareCommand, SaysWhatDiffers) {
  const std::string a = bundle("a", "--ranks 2"), b = bundle("b", "--ranks 2 --pin tensor=2 --precision bf16");
  Outcome out = compared(a + " " + b);
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_THAT(out.text, HasSubstr("no difference beyond rounding in 2 steps"));
  out = compared(a + " " + bundle("faster", "--ranks 1", "mlp.onnx", "faster.yaml"));
  EXPECT_EQ(out.code, 4) << out.text;
  EXPECT_THAT(out.text,
              AllOf(HasSubstr("the serial programs differ from 'optimizer'"), HasSubstr("0.1"), HasSubstr("0.3")));
  out = compared(a + " " + bundle("other", "--ranks 1", "other.onnx"));
  EXPECT_EQ(out.code, 2) << out.text;
  EXPECT_THAT(out.text, HasSubstr("parameter 'fc1.weight' is [8,4] in"));
  out = compared(a);
  EXPECT_EQ(out.code, 2);
  EXPECT_THAT(out.text, HasSubstr("compare with one thing"));
}

TEST_F(CompareCommand, SumsInAFixedOrderAreTheSerialProgramsToo) {
  folder.write("fixed.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.1}\nreproducible: 4\n");
  const Outcome out = compared(bundle("one", "--ranks 1", "mlp.onnx", "fixed.yaml") + " " +
                               bundle("two", "--ranks 2", "mlp.onnx", "fixed.yaml"));
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_THAT(out.text, HasSubstr("no difference beyond rounding in 2 steps"));
}

// A bias far below its sum's roundoff is lost in every sum, and the sums are off along it: no chance, and no fault.
TEST_F(CompareCommand, BiasesThatRoundingLosesAreNoFault) {
  ASSERT_EQ(run_partita("model gpt --layers 2 --hidden 64 --heads 4 --seq 32 --vocab 64 --with-weights --quiet -o " +
                        (folder / "gpt.onnx"))
                .code,
            0);
  folder.write("bf16.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 16}\n"
               "bind: {batch: 4}\nprecision: bf16\nseed: 2\n");
  const Outcome out = compared(bundle("bf16", "--ranks 1", "gpt.onnx", "bf16.yaml") + " --reference");
  EXPECT_EQ(out.code, 0) << out.text;
}

TEST_F(CompareCommand, HoldsDumpedTensorsAgainstTheirNodes) {
  const std::string a = bundle("a", "--ranks 2");
  Outcome out = compared(a + " --dump " + a + "/initial.safetensors");
  EXPECT_EQ(out.code, 0) << out.text;
  const auto dumped = [&](const std::string& name) {
    const std::string path = folder / "dump.safetensors";
    auto writer = runtime::SafetensorsWriter::create(path, {{name, DType::kF32, {8, 2}}});
    EXPECT_TRUE(writer.ok() && (*writer)->write(name, std::vector<std::byte>(64)).ok() && (*writer)->finish().ok());
    return path;
  };
  out = compared(a + " --dump " + dumped("logits"));
  EXPECT_EQ(out.code, 4) << out.text;
  EXPECT_THAT(out.text, HasSubstr("'logits' f32[8,2], run 0 of the graph, in"));
  out = compared(a + " --dump " + dumped("logit"));
  EXPECT_EQ(out.code, 2) << out.text;
  EXPECT_THAT(out.text, HasSubstr("the model has no value of this name; is it 'logits'?"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Faults,
                         testing::Values(Case{"ddp", {.ranks = 2}}, Case{"tp2", {.ranks = 2, .pins = {"tensor=2"}}},
                                         Case{"pipeline", {.ranks = 2, .pins = {"pipeline=2"}}},
                                         Case{"bf16", {.ranks = 2, .precision = Precision::kBf16}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace partita
