// A short campaign: what tools/mutate does in thousands.
#include "tools/mutation/campaign.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/test_options.h"
#include "tests/tools/support/verify_samples.h"
#include "tools/mutation/trial_run.h"

namespace partita {
namespace {

TEST(BlindMutator, UndoneIsAsBefore) {
  const auto json = nlohmann::ordered_json::parse(
      R"({"programs": [{"slots": 3, "names": ["a", "b"], "kernels": "AA==", "initial": {"a": 0.5}}]})");
  const nlohmann::ordered_json::json_pointer kernels("/programs/0/kernels");
  BlindMutator blind(json);
  std::mt19937 rng(1);
  int changed = 0;
  for (int k = 0; k < 200; ++k) {
    EXPECT_NE(blind.mutate(rng), "");
    changed += blind.json() != json;
    EXPECT_TRUE(!blind.json().contains(kernels) || blind.json()[kernels] == "AA==");
    blind.undo();
    ASSERT_EQ(blind.json(), json);
  }
  EXPECT_GT(changed, 100);
}

TEST(TrialRun, SaysHowItEnded) {
  runtime::Program nothing;
  EXPECT_EQ(trial_run({{nothing}, {}, ""}, 1, 20).status().code(), absl::StatusCode::kAborted);
}

class MutationCampaign : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(MutationCampaign, FindsNoHole) {
  TempFolder folder;
  const auto [model, flags] = GetParam();
  ASSERT_EQ(run_partita(std::string("model ") + model +
                        " --layers 2 --hidden 16 --heads 2 --seq 8 --vocab 32 --with-weights --quiet -o " +
                        (folder / "model.onnx"))
                .code,
            0);
  folder.write("train.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 8}\n"
               "bind: {batch: 2}\nclip_grad_norm: 1.0\nevaluate: {data: {kind: synthetic}, batches: 1}\n");
  const std::string bundle = folder / "bundle";
  const Outcome made = run_partita("compile " + (folder / "model.onnx") + " --train " + (folder / "train.yaml") + " " +
                                   flags + " --quiet -o " + bundle);
  ASSERT_EQ(made.code, 0) << made.text;
  const auto report = run_campaign(bundle, {.mutations = sample_or_all(34, 1000)});
  ASSERT_TRUE(report.ok()) << report.status();
  for (const Hole& h : report->holes)
    ADD_FAILURE() << "hole " << h.mutation << ": " << h.kind << ": " << h.what << ": " << h.outcome;
  EXPECT_GT(report->rejected, report->mutations() / 4);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MutationCampaign,
                         testing::Values(std::pair("gpt", "--ranks 2"), std::pair("gpt", "--ranks 2 --like zero3"),
                                         std::pair("gpt", "--ranks 2 --like megatron:tp2"),
                                         std::pair("gpt", "--ranks 2 --pin pipeline=2"),
                                         std::pair("moe --experts 2", "--ranks 2 --pin expert=2"),
                                         std::pair("gpt", "--ranks 2 --pin compress=int8")));

}  // namespace
}  // namespace partita
