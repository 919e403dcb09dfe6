// train.yaml's reproducible: the same bits on any number of ranks, and a proof of the order of sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "ir/recipe/read_recipe.h"
#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/model_folders.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_options.h"
#include "tests/support/training_bits.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

using testing::HasSubstr;

constexpr const char* kLayouts[] = {"--ranks 2 --like ddp",
                                    "--ranks 4 --like ddp",
                                    "--ranks 4 --like zero1",
                                    "--ranks 2 --like zero2",
                                    "--ranks 4 --like zero3 --pin zero_group=2",
                                    "--ranks 2 --pin pipeline=2",
                                    "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=1 --pin schedule=zero_bubble"};

constexpr const char* kMoreLayouts[] = {"--ranks 2 --like ddp",
                                        "--ranks 4 --like zero1",
                                        "--ranks 2 --like zero2",
                                        "--ranks 4 --like zero3",
                                        "--ranks 4 --like zero3 --pin zero_group=2",
                                        "--ranks 8 --pin pipeline=2 --pin data=4 --pin zero=3",
                                        "--ranks 3 --pin pipeline=3",
                                        "--ranks 2 --pin pipeline=2 --pin schedule=gpipe",
                                        "--ranks 2 --pin pipeline=2 --pin schedule=zero_bubble",
                                        "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=3",
                                        "--ranks 4 --pin pipeline=2 --pin data=2"};

// Beside those by data and stages.
constexpr const char* kTensorLayouts[] = {"--ranks 2 --pin tensor=2", "--ranks 4 --pin tensor=4",
                                          "--ranks 4 --pin tensor=2 --pin data=2 --pin zero=1",
                                          "--ranks 4 --pin tensor=2 --pin pipeline=2"};

constexpr const char* kMoreTensorLayouts[] = {"--ranks 2 --pin tensor=2",
                                              "--ranks 4 --pin tensor=4",
                                              "--ranks 4 --like zero3",
                                              "--ranks 8 --pin tensor=4 --pin data=2",
                                              "--ranks 4 --pin tensor=2 --pin data=2 --pin zero=2",
                                              "--ranks 4 --pin tensor=2 --pin data=2 --pin zero=3",
                                              "--ranks 8 --pin tensor=2 --pin data=2 --pin pipeline=2 --pin zero=1",
                                              "--ranks 8 --pin tensor=4 --pin pipeline=2 --pin schedule=zero_bubble"};

class Reproducible : public testing::Test {
 protected:
  struct Source {
    std::string folder, data, keys;
  };
  std::string model() const { return std::string(PARTITA_TEST_DATA) + "/gpt2"; }
  Source gpt2() const { return {model(), std::string(PARTITA_TEST_DATA) + "/../../docs/verify.md", "reproducible: 4"}; }
  std::string recipe(const Source& of) const {
    return out_.write("train.yaml", TempFolder::read(of.folder + "/train.yaml") + "\n" + of.keys + "\n");
  }
  std::string recipe(const std::string& keys) const { return recipe({model(), "", keys}); }

  std::string command(const Source& of, const std::string& flags) const {
    return partita_program() + " train " + model_file(of.folder) + " --train " + recipe(of) + " --data " + of.data +
           " " + flags;
  }
  TrainingBits afresh(const Source& of, const std::string& flags, int steps) const {
    return train_afresh(command(of, flags), out_, steps);
  }

  verifier::Bundle compile(const std::string& key, const std::string& flags) const {
    const Outcome o = run_partita("compile " + model() + "/model.onnx --train " + recipe(key) + " -o " +
                                  (out_ / "bundle") + " --quiet " + flags);
    EXPECT_EQ(o.code, 0) << flags << "\n" << o.text;
    auto bundle = read_bundle(out_ / "bundle");
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    return bundle.ok() ? *std::move(bundle) : verifier::Bundle{};
  }

  TempFolder out_;
};

TEST_F(Reproducible, LayoutsLeaveNoTrace) {
  const TrainingBits one = afresh(gpt2(), "--ranks 1", 2);
  EXPECT_EQ(one.metrics.size(), 2U);
  for (const char* layout : kLayouts) EXPECT_EQ(afresh(gpt2(), layout, 2), one) << layout;
  // Nor does a change of the ranks in the middle of a run.
  afresh(gpt2(), "--ranks 4 --like zero3", 1);
  EXPECT_EQ(train_on(command(gpt2(), "--ranks 2 --pin pipeline=2 --resume"), out_, 2), one);
}

TEST_F(Reproducible, TensorLayoutsLeaveNoTrace) {
  Source of = gpt2();
  of.keys = "reproducible: {samples: 4, tensor: 4}";
  const TrainingBits one = afresh(of, "--ranks 1", 2);
  EXPECT_EQ(one.metrics.size(), 2U);
  for (const char* layout : kTensorLayouts) EXPECT_EQ(afresh(of, layout, 2), one) << layout;
}

// The scale of the loss is a state, too: some of these steps overflow, the others do not.
TEST_F(Reproducible, LossScaleLeavesNoTrace) {
  Source of = gpt2();
  of.keys += "\nprecision: fp16\nloss_scale: {initial: 1048576, window: 2, hysteresis: 1}";
  const TrainingBits one = afresh(of, "--ranks 1", 4);
  for (const char* layout : {"--ranks 2 --like ddp", "--ranks 4 --like zero3", "--ranks 2 --pin pipeline=2"})
    EXPECT_EQ(afresh(of, layout, 4), one) << layout;
}

// Each given model, as large a tree as its batch has leaves for; in short, one of them in one pipeline.
TEST_F(Reproducible, GivenModelsInAllLayouts) {
  std::vector<std::string> folders = model_folders(), layouts(std::begin(kMoreLayouts), std::end(kMoreLayouts));
  if (folders.empty()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const std::string& folder : folders) {
    const std::string name = std::filesystem::path(folder).filename().string();
    if (name == "moe" || (!test_options().all && name != "bert")) continue;  // its experts' capacity is of all samples
    const auto asked = load_recipe(folder + "/train.yaml");
    ASSERT_TRUE(asked.ok()) << asked.status();
    const int64_t parts = std::min<int64_t>(8, asked->batch.global.value_or(8));
    const Source of{folder, folder + "/data.npz",
                    "reproducible: " + std::to_string(parts) + "\nsemantics: {batch_norm: replica}"};
    const TrainingBits one = afresh(of, "--ranks 1", 2);
    for (const std::string& layout : layouts) {
      if (!test_options().all && layout != layouts.back()) continue;
      EXPECT_EQ(afresh(of, layout, 2), one) << name << " " << layout;
    }
  }
}

TEST_F(Reproducible, GivenModelsInTensorLayouts) {
  const std::vector<std::string> folders = model_folders();
  if (folders.empty()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const std::string& folder : folders) {
    const std::string name = std::filesystem::path(folder).filename().string();
    if (name == "moe" || name == "mixtral" || (!test_options().all && name != "llama")) continue;
    const auto asked = load_recipe(folder + "/train.yaml");
    ASSERT_TRUE(asked.ok()) << asked.status();
    if (asked->precision != Precision::kFp32) continue;
    const std::string parts = std::to_string(std::min<int64_t>(4, asked->batch.global.value_or(4)));
    const Source of{folder, folder + "/data.npz",
                    "reproducible: {samples: " + parts + ", tensor: 4}\nsemantics: {batch_norm: replica}"};
    const TrainingBits one = afresh(of, "--ranks 1", 2);
    for (const char* layout : kMoreTensorLayouts) {
      if (!test_options().all && layout != kMoreTensorLayouts[0]) continue;
      EXPECT_EQ(afresh(of, layout, 2), one) << name << " " << layout;
    }
  }
}

TEST_F(Reproducible, OrderIsProved) {
  for (const char* layout : kLayouts) {
    const verifier::Bundle bundle = compile("reproducible: 4", layout);
    const auto verdict = verifier::check_bundle(bundle);
    ASSERT_TRUE(verdict.ok()) << layout << ": " << verdict.status();
    EXPECT_EQ(verdict->fixed.samples, 4);
  }
  for (const char* layout : kTensorLayouts) {
    const verifier::Bundle bundle = compile("reproducible: {samples: 4, tensor: 4}", layout);
    const auto tensor = verifier::check_bundle(bundle);
    ASSERT_TRUE(tensor.ok()) << layout << ": " << tensor.status();
    EXPECT_EQ(tensor->fixed.tensor, 4);
    const runtime::Program& p = bundle.programs[0].program;
    auto axis = std::find_if(p.mesh.begin(), p.mesh.end(), [](const auto& a) { return a.name == "tensor"; });
    ASSERT_NE(axis, p.mesh.end());
    bool divides = false;
    for (const runtime::ProgramState& s : p.states) {
      for (const auto& dim : s.placement.axes) {
        for (const runtime::AxisStride& a : dim) divides |= a.axis == axis - p.mesh.begin();
      }
    }
    EXPECT_TRUE(divides) << layout << ": the axis divides no weight";
  }
  const verifier::Bundle narrow = compile("reproducible: 4\nprecision: fp16", "--ranks 4 --like zero3");
  const auto verdict = verifier::check_bundle(narrow);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(verdict->fixed.samples, 4);
}

// A rank of four micro-batches beside the serial program, which takes all samples of a step at once: trees of different
// heights.
TEST_F(Reproducible, ARunIsTheSerialPrograms) {
  const std::string model = out_ / "mlp.onnx", bundle = out_ / "bundle",
                    recipe = out_.write("mlp.yaml",
                                        "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.1}\n"
                                        "batch: {global: 8}\nreproducible: 4\n");
  for (const std::string& arguments : {"model mlp --layers 16,8,6 --with-weights --quiet -o " + model,
                                       "compile " + model + " --train " + recipe + " --quiet -o " + bundle,
                                       "verify " + bundle + " --numeric --threads 1"}) {
    const Outcome o = run_partita(arguments);
    ASSERT_EQ(o.code, 0) << arguments << "\n" << o.text;
  }
}

// A bundle that sums up in another order, and says that it is the one asked for.
TEST_F(Reproducible, OtherOrdersAreRefused) {
  auto message = [](const verifier::Bundle& b) { return std::string(verifier::check_bundle(b).status().message()); };
  verifier::Bundle plain = compile("pin: {micro_batch: 2}", "--ranks 2 --like ddp");
  EXPECT_EQ(message(plain), "");
  plain.run["reproducible"] = 4;
  EXPECT_THAT(message(plain), HasSubstr("in the order of ranks and micro-batches"));

  verifier::Bundle bundle = compile("reproducible: 4", "--ranks 2 --like ddp");
  ASSERT_EQ(message(bundle), "");
  bundle.run["reproducible"] = 8;
  EXPECT_THAT(message(bundle), HasSubstr("expected one of 8 parts"));
  bundle.run["reproducible"] = 6;
  EXPECT_THAT(message(bundle), HasSubstr("expected a power of two"));
  bundle.run["reproducible"] = 4;

  // Samples dealt out in turn: the ranks' are nearer to each other than a rank's own.
  verifier::Bundle dealt = bundle;
  for (runtime::ProgramInput& in : dealt.programs[0].program.inputs) {
    if (in.slice_samples == 0) continue;
    for (auto& dim : in.placement.axes) {
      for (runtime::AxisStride& a : dim) std::swap(a.stride, in.slice_samples);
    }
  }
  EXPECT_NE(message(dealt), "");

  const size_t backward = [&] {
    const auto& segments = bundle.programs[0].program.segments;
    return static_cast<size_t>(
        std::find_if(segments.begin(), segments.end(), [](const auto& s) { return s.kind == Segment::kBackward; }) -
        segments.begin());
  }();
  for (runtime::Step& step : bundle.programs[0].program.segments[backward].steps) {
    if (step.name != "accumulate_tree") continue;
    step.params["micro_batches"] = int64_t{4};
    EXPECT_NE(message(bundle), "") << step.id;
    step.params["micro_batches"] = int64_t{2};
  }
  EXPECT_EQ(message(bundle), "");
}

TEST_F(Reproducible, WhatHasAnotherOrderIsRefused) {
  auto refused = [&](const std::string& key, const std::string& flags, const std::string& told) {
    const Outcome o = run_partita("compile " + model() + "/model.onnx --train " + recipe(key) + " -o " +
                                  (out_ / "bundle") + " --quiet " + flags);
    EXPECT_EQ(o.code, 2) << key << " " << flags;
    EXPECT_THAT(o.text, HasSubstr(told));
  };
  refused("reproducible: 4", "--ranks 2 --pin tensor=2", "have other blocks: reproducible: {samples: 4, tensor: 2}");
  refused("reproducible: {samples: 4, tensor: 2}", "--ranks 4 --pin tensor=4", "is no divisor of the 2 blocks");
  refused("reproducible: {samples: 4, tensor: 6}", "", "tensor: expected a power of two, found '6'");
  refused("reproducible: {samples: 4, tensor: 2}\nprecision: bf16", "--ranks 2", "use fp32");
  refused("reproducible: {samples: 4, tensor: 2}", "--ranks 2 --pin tensor=2 --pin sequence_parallel=true",
          "pin sequence_parallel: false");
  refused("reproducible: {samples: 4, tensor: 2}", "--ranks 2 --target cuda:sm_80", "compile for CPUs");
  refused("reproducible: {samples: 4, tensor: 2}", "--ranks 2 --pin context=2",
          "use the data, tensor and pipeline axes");
  refused("reproducible: 1", "--ranks 2 --pin pipeline=2", "which no stages share");
  refused("reproducible: 4", "--ranks 8", "expected a divisor of 4");
  refused("reproducible: 16", "", "are no 16 equal parts");
  refused("reproducible: 6", "", "expected a power of two");
  refused("reproducible: 4\ncompress: int8", "--ranks 2", "leave one of the two out");
  refused("reproducible: 4", "--ranks 2 --pin micro_batch=4", "expected pin micro_batch 2 or none, found 4");
}

}  // namespace
}  // namespace partita
