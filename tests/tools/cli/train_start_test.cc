// What `train` says before the first step, and keys that are said over the recipe's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ir/recipe/read_recipe.h"
#include "tests/support/carried_model.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TrainStart : public testing::Test {
 protected:
  Outcome train(const std::string& flags) {
    return run_partita("train " + kCarriedModel + "--threads 1 --data " + text_ + " " + flags);
  }
  TempFolder out_;
  std::string text_ = write_text(out_);
};

TEST_F(TrainStart, SaysWhatIsTrained_OnWhat_AndFromWhere) {
  const std::string keep = " --checkpoint " + (out_ / "ckpt");
  Outcome o = train("--ranks 2 --steps 2" + keep);
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("model.onnx: "), HasSubstr("all trained, fp32; adamw, lr 0.003 (cosine, warm-up 20)"),
                    HasSubstr("2 ranks: data 2"), HasSubstr("MB of working memory each"),
                    HasSubstr("2 steps of 8 samples (384 tokens)\n"), HasSubstr("tokens of u8; ")));
  o = train("--ranks 2 --steps 3 --resume" + keep);
  EXPECT_THAT(o.text, HasSubstr("1 step of 8 samples (384 tokens); resumed at step 2 from '" + (out_ / "ckpt")));
  o = train("--steps 1 --quiet");
  EXPECT_EQ(o.text, "");
}

TEST_F(TrainStart, KeysOverTheRecipe) {
  const Outcome o =
      train("--lr 0.5 --batch-size 16 --seed 4 --set optimizer.weight_decay=0 --pin tensor=2 --print-config");
  ASSERT_EQ(o.code, 0) << o.text;
  const auto recipe = parse_recipe(o.text, "printed");
  ASSERT_TRUE(recipe.ok()) << recipe.status() << o.text;
  EXPECT_EQ(recipe->optimizer->lr, 0.5);
  EXPECT_EQ(recipe->optimizer->weight_decay, 0);
  EXPECT_EQ(recipe->batch.global, 16);
  EXPECT_EQ(recipe->seed, 4);
  EXPECT_EQ(recipe->pin.axis("tensor"), 2);
  EXPECT_EQ(train("--lr fast --print-config").code, 2);
  EXPECT_THAT(train("--lr 0.01 --steps 4 --log-every 2").text, AllOf(HasSubstr("step 2/4"), HasSubstr("step 4/4")));
}

TEST_F(TrainStart, AMetricsFolderNeedsNoSlash) {
  ASSERT_EQ(train("--steps 1 --quiet --metrics " + (out_ / "tb")).code, 0);
  EXPECT_TRUE(std::filesystem::is_directory(out_ / "tb"));
}

// A module in evaluation mode has no dropout to export; its configuration tells.
TEST_F(TrainStart, DropoutThatTheExportLostIsWarnedOf) {
  std::filesystem::copy_file(kCarriedFolder + "/model.onnx", out_ / "model.onnx");
  out_.write("config.json", R"({"attn_pdrop": 0.1, "resid_pdrop": 0.0, "n_layer": 3})");
  const Outcome o = run_partita("train " + (out_ / "model.onnx") + " --train " + kCarriedFolder +
                                "/train.yaml --steps 1 --threads 1 --quiet --data " + text_);
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.text, AllOf(HasSubstr("the graph has no dropout"), HasSubstr("attn_pdrop: 0.1")));
}

}  // namespace
}  // namespace partita
