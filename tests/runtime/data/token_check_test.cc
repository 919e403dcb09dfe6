// Token files that are not what they are read as, and what the start of a run says of its tokens.
#include "runtime/data/token_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/data/data_source.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Ids of all of a vocabulary, as T has them.
template <typename T>
std::string ids(int64_t vocabulary, int64_t count) {
  std::vector<T> values;
  for (int64_t k = 0; k < count; ++k) values.push_back(static_cast<T>((k * 7919 + k / 3) % vocabulary));
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class TokenCheck : public testing::Test {
 protected:
  // The error of opening the file for a model of so many ids, else what the start says.
  std::string open(const std::string& path, int64_t vocabulary, DataConfig config = {}) {
    config.kind = DataKind::kTokens, config.path = path;
    std::vector<InputSpec> inputs = {{"input_ids", DType::kI64, {4}, true, {0, vocabulary}},
                                     {"labels", DType::kI64, {4}, true, {0, vocabulary, -100}}};
    auto source = DataSource::open(config, inputs, 1);
    if (!source.ok()) return std::string(source.status().message());
    return (*source)->told().at(0);
  }
  TempFolder out_;
};

TEST_F(TokenCheck, WiderIdsAreTold_AndWithTheirTypeTaken) {
  struct Case {
    std::string bytes, read_as, holds;
    DType said;
  };
  for (const Case& c : {Case{ids<int32_t>(1024, 5000), "uint16", "int32", DType::kInvalid},
                        Case{ids<int64_t>(1024, 5000), "uint16", "int64", DType::kInvalid},
                        Case{ids<int64_t>(1024, 5000), "int32", "int64", DType::kI32},
                        Case{ids<uint16_t>(200, 5000), "uint8", "uint16", DType::kU8},
                        Case{ids<int32_t>(40000, 5000), "uint8", "int32", DType::kU8}}) {
    const std::string path = out_.write("ids.bin", c.bytes);
    EXPECT_THAT(open(path, 50257, {.dtype = c.said}), AllOf(HasSubstr("read as " + c.read_as + ", every other id is 0"),
                                                            HasSubstr("say --data " + path + ":" + c.holds)));
    EXPECT_THAT(open(path, 50257, {.dtype = parse_element_type(c.holds), .check_ids = false}),
                HasSubstr(" tokens of "));
  }
  const std::string path = out_.write("ids.bin", ids<int32_t>(1024, 5000));
  EXPECT_THAT(open(path, 1024, {.dtype = DType::kI32}), HasSubstr("5000 tokens of i32; "));
  EXPECT_THAT(open(path, 1024, {.check_ids = false}), HasSubstr("10000 tokens of u16"));
}

TEST_F(TokenCheck, TextIsNoFoodForAModelOfManyIds) {
  const std::string text = "To be, or not to be, that is the question.\n";
  for (const char* name : {"text.txt", "text.bin"}) {
    const std::string path = out_.write(name, text + text + text);
    EXPECT_THAT(open(path, 1024),
                AllOf(HasSubstr("ids below 256"), HasSubstr("1024 ids"), HasSubstr("--data " + path + ":uint8")));
    EXPECT_THAT(open(path, 1024, {.dtype = DType::kU8}), HasSubstr("tokens of u8; "));
    EXPECT_THAT(open(path, 300), HasSubstr("tokens of u8 (guessed; --data FILE:uint8 says so"));
  }
}

TEST_F(TokenCheck, AnotherTokenizersIdsAreTold) {
  EXPECT_THAT(open(out_.write("few.bin", ids<uint16_t>(256, 8192)), 50257), HasSubstr("ids below 256"));
  const std::string small = out_.write("small.bin", ids<uint16_t>(8000, 200000));
  EXPECT_THAT(open(small, 50257), AllOf(HasSubstr("the largest of 65536 ids is 7999"), HasSubstr("check_ids: false")));
  EXPECT_THAT(open(small, 50257, {.check_ids = false}), HasSubstr("200000 tokens of u16"));
  EXPECT_THAT(open(small, 8192), HasSubstr("200000 tokens of u16"));
  EXPECT_THAT(open(small, 7000), HasSubstr("the vocabulary has 7000 ids"));
}

TEST_F(TokenCheck, AVocabularyBeyond16BitsIsOfWiderIds) {
  EXPECT_THAT(open(out_.write("ids.bin", ids<uint32_t>(128000, 70000)), 128256),
              HasSubstr("70000 tokens of u32 (guessed; --data FILE:uint32"));
}

// Whatever it is called: a target is the next token, unless the graph compares it with the next one itself.
TEST_F(TokenCheck, LabelsAreTheNextToken_ByTheGraphAndNotByTheirName) {
  const std::string path = out_.write("ids.bin", ids<uint16_t>(300, 41));
  DataConfig config{.kind = DataKind::kTokens, .path = path};
  for (const char* name : {"labels", "target", "y"}) {
    const std::vector<InputSpec> inputs = {{"input_ids", DType::kI64, {4}}, {name, DType::kI64, {4}}};
    auto first = [&](const DataConfig& c, int input) {
      auto source = DataSource::open(c, inputs, 1);
      std::vector<int64_t> out(4);
      EXPECT_TRUE((*source)->fetch(0, 0, 1, input, std::as_writable_bytes(std::span(out))).ok());
      return std::pair(out, (*source)->told().at(0));
    };
    const std::vector<int64_t> tokens = first(config, 0).first, next = first(config, 1).first;
    EXPECT_EQ(std::vector(tokens.begin() + 1, tokens.end()), std::vector(next.begin(), next.end() - 1));
    EXPECT_THAT(first(config, 1).second,
                HasSubstr("'input_ids': the tokens; '" + std::string(name) + "': the next token"));
    DataConfig inside = config;
    inside.shifted_inside = {name};
    EXPECT_EQ(first(inside, 1).first, tokens);
    EXPECT_THAT(first(inside, 1).second, HasSubstr("the tokens; the model compares them with the next ones"));
    inside.shift = true;
    EXPECT_EQ(first(inside, 1).first, next);
  }
}

}  // namespace
}  // namespace partita::runtime
