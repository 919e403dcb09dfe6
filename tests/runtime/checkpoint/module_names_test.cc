#include "runtime/checkpoint/module_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using testing::ElementsAre;

CheckpointTensor trained(const std::string& name, std::vector<int64_t> shape) {
  return {
      .name = name, .kind = StateKind::kParameter, .parameter = {}, .dtype = DType::kF32, .shape = std::move(shape)};
}

class ModuleNames : public testing::Test {
 protected:
  // A file of tensors whose elements count up, or are all 0.
  ModuleWeights file(const std::vector<TensorInfo>& tensors, bool zeros = false) {
    auto writer = SafetensorsWriter::create(out_ / "module.safetensors", tensors);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const TensorInfo& t : tensors) {
      std::vector<float> values;
      int64_t count = 1;
      for (int64_t d : t.shape) count *= d;
      for (int64_t k = 0; k < count; ++k) values.push_back(zeros ? 0 : static_cast<float>(k));
      EXPECT_TRUE((*writer)->write(t.name, std::as_bytes(std::span(values))).ok());
    }
    EXPECT_TRUE((*writer)->finish().ok());
    return *ModuleWeights::open(out_ / "module.safetensors");
  }
  // For each entry of the file, the tensor that it gets.
  std::vector<std::string> placed(const ModulePlaces& places) {
    std::vector<std::string> names;
    for (const CheckpointTensor* t : places.sources) names.push_back(t == nullptr ? "-" : t->name);
    return names;
  }
  TempFolder out_;
};

TEST_F(ModuleNames, AWrappersPrefixIsOffered_AndTaken) {
  const std::vector<CheckpointTensor> tensors = {trained("m.fc.weight", {4, 2}), trained("m.fc.bias", {4}),
                                                 trained("m.out.weight", {3, 4})};
  const ModuleWeights module =
      file({{"fc.bias", DType::kF32, {4}}, {"fc.weight", DType::kF32, {4, 2}}, {"out.weight", DType::kF32, {3, 4}}});
  const ModulePlaces none = place_in_module(tensors, module, {});
  EXPECT_EQ(none.unplaced.size(), 3u);
  EXPECT_EQ(suggest_renaming(tensors, module, none), "--strip-prefix m. (3 of 3 would have one)");
  const ModulePlaces all = place_in_module(tensors, module, {.strip = "m.", .add = ""});
  EXPECT_TRUE(all.unplaced.empty());
  EXPECT_THAT(placed(all), ElementsAre("m.fc.bias", "m.fc.weight", "m.out.weight"));
}

TEST_F(ModuleNames, AnotherPrefixIsOfferedInItsPlace) {
  const std::vector<CheckpointTensor> tensors = {trained("m.h.0.w", {4, 2}), trained("m.h.1.w", {4, 2})};
  const ModuleWeights module =
      file({{"transformer.h.0.w", DType::kF32, {4, 2}}, {"transformer.h.1.w", DType::kF32, {4, 2}}});
  EXPECT_EQ(suggest_renaming(tensors, module, place_in_module(tensors, module, {})),
            "--strip-prefix m. --add-prefix transformer. (2 of 2 would have one)");
  EXPECT_THAT(placed(place_in_module(tensors, module, {.strip = "m.", .add = "transformer."})),
              ElementsAre("m.h.0.w", "m.h.1.w"));
}

// As peft.get_peft_model_state_dict writes them, and as the module's own state_dict has them.
TEST_F(ModuleNames, AdaptersAreKnownWithAndWithoutTheirName) {
  EXPECT_EQ(adapter_file_name("base_model.model.q.lora_A.default.weight"), "base_model.model.q.lora_A.weight");
  EXPECT_EQ(adapter_file_name("base_model.model.q.lora_A.weight"), "base_model.model.q.lora_A.weight");
  EXPECT_EQ(adapter_file_name("base_model.model.e.lora_embedding_B.mine"), "base_model.model.e.lora_embedding_B");
  EXPECT_EQ(adapter_file_name("base_model.model.head.modules_to_save.default.weight"), "base_model.model.head.weight");
  EXPECT_EQ(adapter_file_name("default.fc.weight"), "default.fc.weight");
  const std::vector<CheckpointTensor> tensors = {trained("base_model.model.q.lora_A.default.weight", {2, 4}),
                                                 trained("base_model.model.q.lora_B.default.weight", {4, 2}),
                                                 trained("base_model.model.v.lora_B.default.weight", {4, 2})};
  const std::vector<std::string> all = {tensors[0].name, tensors[1].name, tensors[2].name};
  for (const char* adapter : {"", ".default"}) {
    const std::string name = adapter;
    const ModuleWeights module = file({{"base_model.model.q.lora_A" + name + ".weight", DType::kF32, {2, 4}},
                                       {"base_model.model.q.lora_B" + name + ".weight", DType::kF32, {4, 2}},
                                       {"base_model.model.v.lora_B" + name + ".weight", DType::kF32, {4, 2}}});
    EXPECT_EQ(placed(place_in_module(tensors, module, {})), all) << adapter;
  }
}

// Hugging Face keeps one name of tied weights, the exporter perhaps the other; a state_dict has both.
TEST_F(ModuleNames, TiedWeightsAreWrittenUnderEveryNameOfTheirs) {
  const std::vector<CheckpointTensor> tensors = {trained("lm_head.weight", {6, 4}), trained("fc.weight", {4, 4})};
  ModulePlaces one =
      place_in_module(tensors, file({{"embed.weight", DType::kF32, {6, 4}}, {"fc.weight", DType::kF32, {4, 4}}}), {});
  EXPECT_THAT(placed(one), ElementsAre("lm_head.weight", "fc.weight"));
  EXPECT_THAT(one.tied, ElementsAre("'lm_head.weight' as 'embed.weight'"));
  const ModulePlaces both = place_in_module(tensors,
                                            file({{"embed.weight", DType::kF32, {6, 4}},
                                                  {"fc.weight", DType::kF32, {4, 4}},
                                                  {"lm_head.weight", DType::kF32, {6, 4}}}),
                                            {});
  EXPECT_THAT(placed(both), ElementsAre("lm_head.weight", "fc.weight", "lm_head.weight"));
  EXPECT_TRUE(both.tied.empty());
}

// Adapters begin as zeros: that two are equal says nothing.
TEST_F(ModuleNames, EqualFirstValuesAreNoTie) {
  const std::vector<CheckpointTensor> tensors = {trained("q.lora_B.weight", {4, 2})};
  const ModulePlaces places = place_in_module(
      tensors, file({{"q.lora_B.weight", DType::kF32, {4, 2}}, {"v.lora_B.weight", DType::kF32, {4, 2}}}, true), {});
  EXPECT_THAT(placed(places), ElementsAre("q.lora_B.weight", "-"));
}

TEST_F(ModuleNames, WhatNothingIsLikeHasNoOffer) {
  const std::vector<CheckpointTensor> tensors = {trained("fc.weight", {4, 2}), trained("fc.bias", {4})};
  const ModuleWeights module = file({{"fc.weight", DType::kF32, {2, 4}}, {"other.bias", DType::kF32, {5}}});
  const ModulePlaces places = place_in_module(tensors, module, {});
  EXPECT_EQ(places.unplaced.size(), 2u);
  EXPECT_EQ(suggest_renaming(tensors, module, places), "");
}

}  // namespace
}  // namespace partita::runtime
