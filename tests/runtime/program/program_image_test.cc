#include "runtime/program/program_image.h"

#include <cstring>

#include "base/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/program/program_check.h"
#include "tests/runtime/support/program_samples.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes(const std::string& text) { return as_byte_span(text); }
std::string message(const absl::Status& status) { return std::string(status.message()); }

Program sample() {
  Program p = least_squares(2, 8, 2);
  p.segments[0].steps[0].params = {{"a", int64_t{-5000000000}},
                                   {"b", 0.25},
                                   {"c", std::string("text")},
                                   {"d", std::vector<int64_t>{1, -200, 70000}},
                                   {"e", std::vector<double>{1.5}}};
  p.kernels = {1, 2, 3};
  return p;
}

// The header's checksum made right again, so that what lies behind it is reached.
void fix_checksum(std::string& image) {
  const uint64_t sum = checksum64(bytes(image).subspan(40));
  std::memcpy(image.data() + 32, &sum, 8);
}

TEST(ProgramImage, RoundTrip_KeepsEverything) {
  const Program p = sample();
  const std::string image = serialize_program(p);
  EXPECT_EQ(image, serialize_program(p));
  absl::StatusOr<Program> q = parse_program(bytes(image));
  ASSERT_TRUE(q.ok()) << q.status();
  EXPECT_EQ(serialize_program(*q), image);
  EXPECT_EQ(q->kernels, p.kernels);
  EXPECT_EQ(q->constants, p.constants);
  EXPECT_EQ(q->segments[0].steps[0].params, p.segments[0].steps[0].params);
  EXPECT_EQ(q->segments[1].steps[0].operands[0].address, p.segments[1].steps[0].operands[0].address);
  EXPECT_EQ(q->states[0].initial.a, -1);
}

TEST(ProgramImage, Damaged_UnknownKindIsRefused) {
  std::string image = serialize_program(sample());
  const size_t at = image.find(
      "\xA2xt\xA4"
      "data");  // the input's name and kind
  ASSERT_NE(at, std::string::npos);
  image.replace(at + 4, 4, "dato");
  fix_checksum(image);
  EXPECT_THAT(message(parse_program(bytes(image)).status()), HasSubstr("an unknown kind 'dato'"));
}

TEST(ProgramImage, Damaged_EveryFlippedByteIsRefused) {
  const std::string image = serialize_program(sample());
  for (size_t i = 0; i < image.size(); ++i) {
    std::string bad = image;
    bad[i] = static_cast<char>(bad[i] ^ 0x5A);
    EXPECT_FALSE(parse_program(bytes(bad)).ok()) << "byte " << i;
  }
}

TEST(ProgramImage, Forged_NeverCrashes) {
  const std::string image = serialize_program(sample());
  for (size_t i = 16; i < image.size(); ++i) {
    for (int value : {0x00, 0x7F, 0xC1, 0xD3, 0xDD, 0xDB, 0xFF, static_cast<uint8_t>(image[i]) ^ 1}) {
      std::string bad = image;
      bad[i] = static_cast<char>(value);
      fix_checksum(bad);
      const absl::StatusOr<Program> p = parse_program(bytes(bad));
      if (p.ok()) {
        EXPECT_TRUE(check_program(*p).ok());
      }
    }
  }
}

TEST(ProgramImage, CutShort_IsRefused) {
  const std::string image = serialize_program(sample());
  for (size_t size = 0; size < image.size(); size += 7)
    EXPECT_FALSE(parse_program(bytes(image).first(size)).ok()) << size;
}

TEST(ProgramImage, OtherVersion_SaysSo) {
  std::string image = serialize_program(sample());
  image[8] = 9;
  const absl::Status status = parse_program(bytes(image)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message(status), HasSubstr("version 9, this runtime reads version 7"));
}

struct Mistake {
  const char* expected;
  void (*make)(Program&);
};

TEST(ProgramCheck, Inconsistent_NamesTheStep) {
  const Mistake mistakes[] = {
      {"step 2 'matmul' ('MatMul \\'forward\\''): the program is not consistent: an operand at offset 7",
       [](Program& p) { p.segments[1].steps[0].operands[0].address.offset = 7; }},
      {"reaches outside its region", [](Program& p) { p.segments[1].steps[0].operands[0].address.offset = 1 << 20; }},
      {"reaches outside its region",
       [](Program& p) { p.segments[1].steps[0].operands[0].address.slot_stride = int64_t{1} << 40; }},
      {"slots have -1 places of", [](Program& p) { p.segments[1].steps[0].operands[0].address.places = -1; }},
      {"an operand of shape",
       [](Program& p) {
         p.segments[1].steps[0].operands[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
       }},
      {"an operand of shape", [](Program& p) { p.segments[1].steps[0].operands[0].shape = {-1}; }},
      {"a constant is written",
       [](Program& p) { std::swap(p.segments[0].steps[0].operands[0], p.segments[0].steps[0].operands[1]); }},
      {"inputs of 3 operands", [](Program& p) { p.segments[1].steps[0].inputs = 4; }},
      {"origin 2 of 2", [](Program& p) { p.segments[1].steps[0].origin = 2; }},
      {"stands at position", [](Program& p) { p.segments[1].steps[0].id = 9; }},
      {"collective group 1 of 1", [](Program& p) { p.segments[3].steps[0].params["group"] = int64_t{1}; }},
      {"waits for step 3", [](Program& p) { p.segments[3].steps[1].params["of"] = int64_t{3}; }},
      {"unknown collective 'gossip'", [](Program& p) { p.segments[3].steps[0].name = "gossip"; }},
      {"the schedule runs segment 5", [](Program& p) { p.schedule[0].segment = 5; }},
      {"the schedule runs segment 0 for micro-batch 0 in slot 2", [](Program& p) { p.schedule[0].slot = 2; }},
      {"state 'v' is there twice", [](Program& p) { p.states[1].name = "v"; }},
      {"does not lie in a state region",
       [](Program& p) {
         p.states[0].operand = p.outputs[0].operand;
         p.states[0].placement = p.outputs[0].placement;
       }},
      {"its placement names mesh axis 3", [](Program& p) { p.inputs[0].placement.axes[0][0].axis = 3; }},
      {"reaches outside", [](Program& p) { p.inputs[0].placement.axes[0][0].stride = 4; }},
      {"does not match the buffer",
       [](Program& p) {
         p.states[0].placement.local = {2, 1};
       }},
      {"mesh axis 'data' has size 0", [](Program& p) { p.mesh[0].size = 0; }},
      {"all_reduce over 2 ranks whose operand 1 goes from [4, 1] to [2, 1]",
       [](Program& p) {
         p.segments[3].steps[0].operands[3].shape = {2, 1};
       }},
      {"reduce_scatter over 2 ranks whose operand 0 goes from",
       [](Program& p) { p.segments[3].steps[0].name = "reduce_scatter"; }},
  };
  for (const Mistake& mistake : mistakes) {
    Program p = least_squares(2, 8, 2);
    mistake.make(p);
    const absl::Status status = check_program(p);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << mistake.expected;
    EXPECT_THAT(message(status), HasSubstr(mistake.expected));
    EXPECT_FALSE(parse_program(bytes(serialize_program(p))).ok());
  }
}

}  // namespace
}  // namespace partita::runtime
