#include "ir/recipe/glob.h"

#include <chrono>

#include "gtest/gtest.h"

namespace partita {
namespace {

TEST(GlobMatch_Patterns, Table) {
  const struct {
    const char* pattern;
    const char* name;
    bool expected;
  } kCases[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "a.b.c", true},
      {"*.bias", "encoder.layer.0.bias", true},
      {"*.bias", "bias", false},
      {"*.bias", "a.bias.x", false},
      {"*ln_*", "h.0.ln_1.weight", true},
      {"layers.*.mlp.up", "layers.3.mlp.up", true},
      {"layers.?.mlp", "layers.3.mlp", true},
      {"layers.?.mlp", "layers.13.mlp", false},
      {"layers.[0-3].w", "layers.2.w", true},
      {"layers.[0-3].w", "layers.4.w", false},
      {"layers.[!0-3].w", "layers.4.w", true},
      {"layers.[^0-3].w", "layers.1.w", false},
      {"[]a]", "]", true},
      {"[!]a]", "]", false},
      {"[!]a]", "b", true},
      {"[a-]", "-", true},
      {"[abc", "[abc", true},
      {"x[abc*", "x[abcd", true},
      {"[", "[", true},
      {"[!", "[!", true},
      {"layers[0].w", "layers[0].w", true},
      {"layers[0].w", "layers0.w", true},
      {"onnx::MatMul_*", "onnx::MatMul_123", true},
      {"*ab*c", "xabyabc", true},
      {"*ab*c", "xabya", false},
      {"a*a*a", "aa", false},
      {"a**a", "aa", true},
      {"?", "\xC3\xA9", true},
      {"??", "\xC3\xA9", false},
      {"*\xC3\xA9", "caf\xC3\xA9", true},
      {"?", "\xFF", true},
      {"?", "\xE2\x82", true},
      {"A", "a", false},
  };
  for (const auto& c : kCases) EXPECT_EQ(glob_match(c.pattern, c.name), c.expected) << c.pattern << " on " << c.name;
}

TEST(GlobMatch_ManyStars, DoesNotBlowUp) {
  std::string pattern, name(20000, 'a');
  for (int i = 0; i < 500; ++i) pattern += "a*";
  auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(glob_match(pattern + "b", name));
  EXPECT_FALSE(glob_match("*" + std::string(1000, 'a') + "b", name));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(MatchesAny_Lists, AnyOfThem) {
  EXPECT_TRUE(matches_any({"*.weight", "*.bias"}, "fc.bias"));
  EXPECT_FALSE(matches_any({"*.weight", "*.bias"}, "fc.scale"));
  EXPECT_FALSE(matches_any({}, "fc.scale"));
}

}  // namespace
}  // namespace partita
