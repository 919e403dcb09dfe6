// Bundles taken apart and put together by the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Assembly : public testing::Test {
 protected:
  void SetUp() override {
    const std::string data = std::string(PARTITA_TEST_DATA) + "/gpt2";
    const Outcome made = run_partita("compile " + data + "/model.onnx --train " + data +
                                     "/train.yaml --ranks 2 --pin tensor=2 -o " + bundle() + " --quiet");
    ASSERT_EQ(made.code, 0) << made.text;
    const Outcome apart = run_partita("disassemble " + bundle() + " -o " + file());
    ASSERT_EQ(apart.code, 0) << apart.text;
  }
  std::string bundle() const { return folder_ / "bundle"; }
  std::string file() const { return folder_ / "bundle.json"; }
  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(TempFolder::read(file())); }

  TempFolder folder_;
};

TEST_F(Assembly, RoundTrip_IsTheBundleWithoutItsCertificate) {
  ASSERT_EQ(run_partita("verify " + bundle() + " --quiet").code, 0);
  const std::string again = folder_ / "again";
  const Outcome made = run_partita("assemble " + file() + " -o " + again);
  ASSERT_EQ(made.code, 0) << made.text;
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(bundle())) {
    const fs::path name = fs::relative(entry.path(), bundle());
    if (!entry.is_regular_file() || name == "certificate.json") continue;
    EXPECT_EQ(TempFolder::read((again / name).string()), TempFolder::read(entry.path().string())) << name;
    ++files;
  }
  EXPECT_GE(files, 7u);
  EXPECT_FALSE(fs::exists(again + "/certificate.json"));
  EXPECT_EQ(run_partita("verify " + again + " --quiet").code, 0);
}

// What makes no sense is written as it is, and refused by who reads it.
TEST_F(Assembly, Changed_IsWrittenAndRefusedByVerifyAndRun) {
  auto changed = json();
  changed["programs"][0]["segments"][0]["steps"][0]["id"] = 77;
  const std::string other = folder_ / "other";
  ASSERT_EQ(run_partita("assemble " + folder_.write("changed.json", changed.dump()) + " -o " + other).code, 0);
  for (const char* verb : {"verify ", "run --data synthetic --steps 1 "}) {
    const Outcome refused = run_partita(verb + other);
    EXPECT_EQ(refused.code, 2) << refused.text;
    EXPECT_THAT(refused.text, HasSubstr("stands at position 0"));
  }
  // The certificate of the bundle that it was is no longer its own.
  changed = json();
  changed["programs"][0]["outputs"][0]["operand"]["address"]["offset"] = 0;
  ASSERT_EQ(run_partita("assemble " + folder_.write("changed.json", changed.dump()) + " -o " + other).code, 0);
  EXPECT_EQ(run_partita("verify " + other).code, 4);
}

TEST_F(Assembly, MistakesAreSaid) {
  auto changed = json();
  changed["programs"][0].erase("slots");
  Outcome refused =
      run_partita("assemble " + folder_.write("changed.json", changed.dump()) + " -o " + (folder_ / "other"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("programs[0]: expected a key 'slots', found none"));
  refused = run_partita("assemble " + folder_.write("empty.json", "{}") + " -o " + (folder_ / "other"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("expected version 1"));
  const std::string moved = folder_ / "moved";
  fs::rename(bundle(), moved);
  refused = run_partita("assemble " + file() + " -o " + (folder_ / "other"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("say where it is with --like"));
  EXPECT_EQ(run_partita("assemble " + file() + " --like " + moved + " -o " + (folder_ / "other")).code, 0);
}

TEST_F(Assembly, Listing_HasStepsWithTheNamesOfTheModel) {
  const Outcome listed = run_partita("disassemble " + bundle());
  ASSERT_EQ(listed.code, 0) << listed.text;
  EXPECT_THAT(listed.text, HasSubstr("training\nmodel.onnx for cpu:"));
  EXPECT_THAT(listed.text, HasSubstr("group 0: ranks along tensor (2)"));
  EXPECT_THAT(listed.text, HasSubstr("\nforward\n"));
  EXPECT_THAT(listed.text, HasSubstr("transformer.h.0.attn.c_attn.weight"));
}

}  // namespace
}  // namespace partita
