#include "tools/assembly/program_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/program/program_image.h"

namespace partita {
namespace {

using runtime::Program;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Every field, and what JSON has no notation for.
Program sample() {
  Program p;
  p.model = "mödel";
  p.target = "cpu:x86-64-v4";
  p.mesh = {{"data", 2, {}}};
  p.groups = {{{0}}};
  p.region_bytes[2] = 4096;
  runtime::Step step{.kind = runtime::StepKind::kLibrary, .name = "matmul", .inputs = 1, .origin = 0};
  step.operands = {{{runtime::Region::kArena, 64, 128}, DType::kF32, {2, 3}}, {}};
  step.params = {{"integer", int64_t{3}},
                 {"real", 3.0},
                 {"small", 0.1},
                 {"infinite", -std::numeric_limits<double>::infinity()},
                 {"text", std::string("a")},
                 {"integers", std::vector<int64_t>{1, 2}},
                 {"reals", std::vector<double>{1, 2.5, std::numeric_limits<double>::infinity()}},
                 {"no_integers", std::vector<int64_t>{}},
                 {"no_reals", std::vector<double>{}}};
  p.segments = {{Segment::kBackward, 1, {step}}};
  p.schedule = {{0, 1, 2}};
  p.states = {{.name = "w", .operand = step.operands[0], .placement = {{4, 3}, {4, 3}, {2, 3}, {{{0, 2}}, {}}}}};
  p.states[0].initial = {runtime::InitialKind::kNormal, 1e-300, std::nextafter(1.0, 2.0)};
  p.inputs = {{.name = "x", .bounds = {0, 7, -100}}, {.name = "y"}};
  p.outputs = {{.name = "loss"}};
  p.origins = {"MatMul 'a\"b'"};
  p.kernels = {0, 255, 127};
  p.constants = std::vector<uint8_t>(100, 9);
  return p;
}

TEST(ProgramJson, RoundTrip_IsTheSameBytes) {
  const auto json = program_json(sample());
  ASSERT_TRUE(json.ok()) << json.status();
  const Json read = Json::parse(indented(*json), nullptr, false);
  const auto program = parse_program_json(read, "program");
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(runtime::serialize_program(*program), runtime::serialize_program(sample()));
  EXPECT_EQ(program->segments[0].steps[0].params, sample().segments[0].steps[0].params);
}

TEST(ProgramJson, Step_IsALineWithTheNamesOfProgramH) {
  EXPECT_THAT(
      indented({{"programs", Json::array({*program_json(sample())})}}),
      HasSubstr(
          "\n      {\"id\":0,\"kind\":\"library\",\"device\":\"device\",\"name\":\"matmul\",\"operands\":[{\"address\":"
          "{\"region\":\"arena\",\"offset\":64,\"slot_stride\":128,\"places\":0},\"dtype\":\"f32\",\"shape\":[2,3]},"));
}

TEST(ProgramJson, Wrong_NamesThePlace) {
  const std::pair<std::string, std::string> mistakes[] = {
      {R"([{"op": "replace", "path": "/segments/0/steps/0/inputs", "value": 2147483648}])",
       "p.segments[0].steps[0].inputs: expected an integer from -2147483648 to 2147483647, found '2147483648'"},
      {R"([{"op": "replace", "path": "/slots", "value": 1.0}])", "p.slots: expected an integer from"},
      {R"([{"op": "remove", "path": "/states/0/initial/b"}])", "p.states[0].initial: expected a key 'b', found none"},
      {R"([{"op": "add", "path": "/mesh/0/width", "value": 1}])", "p.mesh[0]: expected no key 'width', found it"},
      {R"([{"op": "replace", "path": "/segments/0/kind", "value": "sideways"}])",
       "p.segments[0].kind: expected one of 'prologue', 'forward'"},
      {R"([{"op": "replace", "path": "/states/0/operand/dtype", "value": "f31"}])",
       "p.states[0].operand.dtype: expected a type of elements, found "},
      {R"([{"op": "replace", "path": "/kernels", "value": "?"}])", "p.kernels: expected bytes in base64"},
      {R"([{"op": "replace", "path": "/region_bytes", "value": [1]}])", "p.region_bytes: expected a list of 6"},
      {R"([{"op": "replace", "path": "/segments/0/steps/0/params/reals/reals", "value": ["x"]}])",
       "p.segments[0].steps[0].params.reals.reals[0]: expected a number"},
      {R"([{"op": "replace", "path": "", "value": []}])", "p: expected an object, found '[]'"},
  };
  for (const auto& [patch, expected] : mistakes) {
    const auto program = parse_program_json(program_json(sample())->patch(Json::parse(patch)), "p");
    EXPECT_EQ(program.status().code(), absl::StatusCode::kInvalidArgument) << patch;
    EXPECT_THAT(std::string(program.status().message()), HasSubstr(expected));
  }
}

TEST(ProgramJson, NameThatIsNoUtf8_IsRefused) {
  Program p = sample();
  p.outputs[0].name = "\xff";
  EXPECT_THAT(std::string(program_json(p).status().message()), HasSubstr("is no UTF-8"));
}

}  // namespace
}  // namespace partita
