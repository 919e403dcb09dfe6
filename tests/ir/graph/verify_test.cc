// Each rule of the table on a graph that breaks it and nothing before it; the graphs are written as text or damaged by
// hand.
#include "ir/graph/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/text/parse.h"

namespace partita {
namespace {

constexpr const char* kTraining = R"(graph "g"
origin "Mul 'scale'"
input %0 f32[2] data "x"
state %1 f32[2] parameter "w" initial f32[2] [1, 2] next %5
state %2 f32[2] optimizer "w/m" of "w" next %5
constant %3 f32[] = [0.5]
%4 f32[2] = mul(%0, %1) @forward origin 0
%5 f32[2] = mul(%4, %3) @update
%6 f32[2] = mul(%4, %4) @backward weight_gradient
output "y" %4
)";

Graph parsed(const std::string& text) {
  auto g = parse_graph(text);
  EXPECT_TRUE(g.ok()) << g.status().message();
  return g.ok() ? *std::move(g) : Graph{};
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), with);
}

std::string complaint(const Graph& g, Phase phase = Phase::kTraining) {
  return std::string(verify(g, phase).message());
}

TEST(Verify, AcceptsSoundGraphs) {
  EXPECT_EQ(complaint(parsed(kTraining)), "");
  EXPECT_EQ(complaint(parsed(kTraining), Phase::kRank), "");
  EXPECT_EQ(complaint(Graph{}, Phase::kImported), "");
}

TEST(Verify, IsInternal) { EXPECT_TRUE(absl::IsInternal(verify(parsed(kTraining), Phase::kImported))); }

TEST(Verify, TextRules) {
  struct Case {
    const char *what, *with, *error;
    Phase phase = Phase::kTraining;
  };
  const Case kCases[] = {
      {"\"w/m\"", "\"w\"", "names: state 'w': expected a name of its own"},
      {"\"w/m\"", "\"\"", "names: state '': expected a name of its own"},
      {"output", "output \"y\" %0 output", "names: output 'y': expected a name of its own"},
      {"data \"x\"", "data \"\"", "names: input '': expected a name of its own"},
      {"data", "micro_batch", "types: input 'x': expected i64[], found f32[2]"},
      {"parameter", "frozen", "states: state 'w': is frozen, yet written"},
      {"of \"w\"", "of \"v\"", "states: state 'w/m': belongs to 'v', which is no parameter"},
      {"optimizer", "running", "states: state 'w/m': a state of its kind belongs to no other"},
      {"optimizer \"w/m\" of \"w\"", "step \"t\"", "states: state 't': expected a step of type i64[], found f32[2]"},
      {"next %5", "next %3", "states: state 'w': is f32[2] and becomes f32[]"},
      {"initial f32[2] [1, 2]", "initial f32[] [1]", "initial values: state 'w': is f32[2], starts as f32[]"},
      {"initial f32[2] [1, 2]", "initial file \"f\" 0 4", "initial values: state 'w': is 8 bytes, starts from 4 at 0"},
      {"mul(%0, %1) @forward", "mul(%0, %1) @update",
       "segments: node 2 (mul): is in backward, yet reads value 4 of update"},
      {"mul(%0, %1) @forward", "mul(%0, %1) @evaluation",
       "segments: node 1 (mul): is in update, yet reads value 4 of evaluation"},
      {"mul(%4, %4) @backward weight_gradient", "mul(%4, %4) @evaluation",
       "segments: node 2 (mul): is in evaluation, yet reads value 4 of forward"},
      {"mul(%4, %3) @update", "mul(%4, %3) @backward", "writers: state 'w': is written in backward, not in update"},
      {"optimizer \"w/m\" of \"w\" next %5", "running \"mean\" next %6",
       "writers: state 'mean': is written in backward, not in forward or update"},
      {"optimizer", "accumulator", "writers: state 'w/m': is written in update, after the micro-batches"},
      {"@backward weight_gradient", "@forward weight_gradient",
       "weight gradients: node 2 (mul): computes a weight's gradient in forward"},
      {"output", "output", "forward only: node 1 (mul): is in update before there is a backward part",
       Phase::kImported},
      {"origin \"Mul", "input %7 i64[] coordinate \"tensor\" origin \"Mul",
       "one device: input 'tensor' is a coordinate before there is a mesh"},
      {"origin \"Mul", "input %7 i64[] coordinate \"tensor\" origin \"Mul", "", Phase::kRank},
  };
  for (const Case& c : kCases)
    EXPECT_EQ(complaint(parsed(replaced(kTraining, c.what, c.with)), c.phase), c.error) << c.what << " -> " << c.with;
}

TEST(Verify, DamagedGraphs) {
  struct Case {
    const char* error;
    std::function<void(Graph&)> damage;
  };
  const Case kCases[] = {
      {"ids: input 'x': no value -1", [](Graph& g) { g.inputs[0].value = -1; }},
      {"ids: a constant: no value 99", [](Graph& g) { g.constants[0].value = 99; }},
      {"ids: output 'y': no value 7", [](Graph& g) { g.outputs[0].value = 7; }},
      {"ids: state 'w': no value -1", [](Graph& g) { g.states[0].value = kNoValue; }},
      {"ids: state 'w': no value 7 to become", [](Graph& g) { g.states[0].next = 7; }},
      {"ids: node 0 (no op for Mul 'scale'): no op", [](Graph& g) { g.nodes[0].op = nullptr; }},
      {"ids: node 1 (mul): no origin 5", [](Graph& g) { g.nodes[1].origin = 5; }},
      {"ids: node 1 (mul): reads value -2, which there is not", [](Graph& g) { g.nodes[1].inputs[0] = -2; }},
      {"ids: node 1 (mul): writes value 7, which there is not", [](Graph& g) { g.nodes[1].outputs[0] = 7; }},
      {"definitions: value 0 is defined 2 times",
       [](Graph& g) {
         g.inputs.push_back({0, "z"});
       }},
      {"definitions: value 7 is defined 0 times",
       [](Graph& g) {
         g.values.push_back({.type = {DType::kF32, {}}, .name = {}});
       }},
      {"definitions: value 0 is no output of node 1", [](Graph& g) { g.values[0].producer = 1; }},
      {"definitions: node 1 (mul): value 5 is its output 0, but says to be output 0 of node 0",
       [](Graph& g) { g.values[5].producer = 0; }},
      {"definitions: node 1 (mul): value 5 is its output 0, but says to be output 3 of node 1",
       [](Graph& g) { g.values[5].output = 3; }},
      {"order: node 1 (mul): reads value 6 of node 2, which runs later", [](Graph& g) { g.nodes[1].inputs[0] = 6; }},
      {"order: node 1 (mul): reads value 5 of node 1, which runs later", [](Graph& g) { g.nodes[1].inputs[0] = 5; }},
      {"types: value 0 has no sound type: f32[-1]", [](Graph& g) { g.values[0].type.shape = {-1}; }},
      {"types: value 0 has no sound type: invalid[2]", [](Graph& g) { g.values[0].type.dtype = DType::kInvalid; }},
      {"types: constant 3: expected f32[], found f32[1]", [](Graph& g) { g.constants[0].literal.type.shape = {1}; }},
      {"types: constant 3 has no bytes", [](Graph& g) { g.constants[0].literal.data = nullptr; }},
      {"types: node 0 (mul for Mul 'scale'): output 0: expected f32[2], found f32[3]",
       [](Graph& g) { g.values[4].type.shape = {3}; }},
      {"types: node 0 (mul for Mul 'scale'): expected 2 inputs, found 1",
       [](Graph& g) { g.nodes[0].inputs.pop_back(); }},
      {"types: node 0 (mul for Mul 'scale'): input 1 is required", [](Graph& g) { g.nodes[0].inputs[1] = kNoValue; }},
  };
  for (const Case& c : kCases) {
    Graph g = parsed(kTraining);
    c.damage(g);
    EXPECT_EQ(complaint(g), c.error);
  }
}

TEST(Evaluate, RunsWhatIsWanted) {
  Graph g = parsed(kTraining);
  Tensor x{{DType::kF32, {2}}, {3, 5}, {}};
  EXPECT_EQ(evaluate_graph(g, {{0, x}})[0].f, (std::vector<double>{3, 10}));  // w has a literal initial value
  EXPECT_EQ(evaluate_graph(g, {{0, x}, {1, x}}, {4, 0})[0].f, (std::vector<double>{9, 25}));
  EXPECT_EQ(evaluate_graph(g, {}, {3})[0].f, (std::vector<double>{0.5}));  // x is not needed for it
}

}  // namespace
}  // namespace partita
