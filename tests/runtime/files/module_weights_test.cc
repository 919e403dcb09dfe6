#include "runtime/files/module_weights.h"

#include <filesystem>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModuleWeightsTest : public testing::Test {
 protected:
  // A file of vectors that count up from their own number.
  void shard(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<TensorInfo> infos;
    for (const std::string& t : tensors) infos.push_back({t, DType::kF32, {4}});
    auto writer = SafetensorsWriter::create(folder_ / name, infos);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t k = 0; k < tensors.size(); ++k) {
      std::vector<float> values(4);
      std::iota(values.begin(), values.end(), static_cast<float>(10 * k));
      ASSERT_TRUE((*writer)->write(tensors[k], std::as_bytes(std::span(values))).ok());
    }
    ASSERT_TRUE((*writer)->finish().ok());
  }
  void index(const std::string& map) {
    folder_.write("model.safetensors.index.json", R"({"metadata": {"total_size": 48}, "weight_map": )" + map + "}");
  }
  std::string error() {
    const auto weights = ModuleWeights::open(folder_.path());
    return weights.ok() ? "" : std::string(weights.status().message());
  }
  TempFolder folder_;
};

TEST_F(ModuleWeightsTest, ShardsAreOneModule) {
  shard("model-00001-of-00002.safetensors", {"a", "b"});
  shard("model-00002-of-00002.safetensors", {"c"});
  index(R"({"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
            "c": "model-00002-of-00002.safetensors"})");
  EXPECT_TRUE(is_module_folder(folder_.path()));
  const auto weights = ModuleWeights::open(folder_.path());
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<std::string> names;
  for (const SafetensorsEntry& e : weights->entries()) names.push_back(e.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  EXPECT_EQ(weights->shard_of(*weights->find("c")), 1u);
  EXPECT_EQ(weights->find("d"), nullptr);
  std::vector<float> middle(2);
  for (int again = 0; again < 2; ++again) {  // its pages are let go in between
    ASSERT_TRUE(weights
                    ->read(*weights->find("b"), std::vector<int64_t>{1}, std::vector<int64_t>{2},
                           std::as_writable_bytes(std::span(middle)))
                    .ok());
    EXPECT_THAT(middle, ElementsAre(11.f, 12.f));
  }
}

TEST_F(ModuleWeightsTest, OneFileNeedsNoIndex) {
  EXPECT_FALSE(is_module_folder(folder_.path()));
  shard("adapter_model.safetensors", {"lora_A"});
  EXPECT_TRUE(is_module_folder(folder_.path()));
  EXPECT_NE(ModuleWeights::open(folder_.path())->find("lora_A"), nullptr);
  EXPECT_NE(ModuleWeights::open(folder_ / "adapter_model.safetensors")->find("lora_A"), nullptr);
}

TEST_F(ModuleWeightsTest, WhatDoesNotBelongTogetherIsRefused) {
  EXPECT_THAT(error(), HasSubstr("expected model.safetensors or model.safetensors.index.json, found neither"));
  folder_.write("pytorch_model.bin", "pickle");
  EXPECT_THAT(error(), HasSubstr("save_pretrained"));
  index(R"({"a": "../model.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("'a': expected the name of a file in this folder"));
  index(R"(["a"])");
  EXPECT_THAT(error(), HasSubstr("expected JSON with `weight_map`"));
  index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("'model.safetensors.index.json' names it"));
  shard("one.safetensors", {"a", "b"});
  shard("two.safetensors", {"c"});
  EXPECT_THAT(error(), HasSubstr("1 tensors are not in the files that it names: 'b in two.safetensors'"));
  shard("two.safetensors", {"b"});
  EXPECT_THAT(error(), HasSubstr("tensor 'b' is in two files, 'one.safetensors' and 'two.safetensors'"));
}

}  // namespace
}  // namespace partita::runtime
