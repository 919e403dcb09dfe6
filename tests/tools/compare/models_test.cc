// Models as people export them, in the layouts that people use: no false alarm.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string>

#include "base/cat.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

constexpr const char* kLayouts[] = {"--ranks 2 --pin data=2",
                                    "--ranks 2 --pin tensor=2 --precision bf16",
                                    "--ranks 2 --pin zero=1",
                                    "--ranks 2 --pin zero=3",
                                    "--ranks 2 --pin tensor=2",
                                    "--ranks 2 --pin pipeline=2",
                                    "--ranks 4 --pin pipeline=2 --pin data=2",
                                    "--ranks 4 --pin tensor=2 --pin data=2",
                                    "--ranks 2 --pin context=2",
                                    "--ranks 2 --pin expert=2",
                                    "--ranks 2 --pin data=2 --precision bf16"};

constexpr const char* kModels[] = {"mlp",
                                   "gpt2_legacy",
                                   "training_info_adam",
                                   "training_info_adagrad",
                                   "training_info_momentum",
                                   "ort_mlp",
                                   "llama",
                                   "llama_opset23",
                                   "gpt2",
                                   "bert",
                                   "moe",
                                   "mixtral",
                                   "vit",
                                   "resnet",
                                   "ort_transformer"};

// Prints a line for each layout: seconds of a step of both, and what was found.
void agrees_with_one_rank(const std::string& model, size_t layouts) {
  const std::string folder = cat(PARTITA_MODELS, "/", model);
  const std::string file = std::filesystem::exists(folder + "/model.onnx") ? folder + "/model.onnx" : folder;
  const TempFolder out;
  auto compiled = [&](const std::string& name, const std::string& flags) {
    return run_partita(cat("compile ", file, " --train ", folder, "/train.yaml ", flags, " --quiet -o ", out / name));
  };
  const Outcome alone = compiled("alone", "");
  ASSERT_EQ(alone.code, 0) << alone.text;
  for (size_t k = 0; k < layouts; ++k) {
    const Outcome made = compiled("bundle", kLayouts[k]);
    ASSERT_EQ(made.code, 0) << kLayouts[k] << ": " << made.text;
    const auto begin = std::chrono::steady_clock::now();
    const Outcome compared = run_partita(cat("compare ", out / "alone", " ", out / "bundle", " --steps 1"));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_EQ(compared.code, 0) << model << " " << kLayouts[k] << ": " << compared.text;
    std::printf("%-24s %-44s %5.1f s  %s", model.c_str(), kLayouts[k], seconds,
                compared.text.substr(0, compared.text.find('\n') + 1).c_str());
    std::filesystem::remove_all(out / "bundle");
  }
}

TEST(ComparedModels, AgreeWithOneRankInEveryLayout) {
  if (!std::filesystem::exists(PARTITA_MODELS)) GTEST_SKIP() << "no models in " << PARTITA_MODELS;
  for (size_t k = 0; k < sample_or_all(size_t{2}, std::size(kModels)); ++k)
    agrees_with_one_rank(kModels[k], sample_or_all(size_t{2}, std::size(kLayouts)));
}

}  // namespace
}  // namespace partita
