// partita data: the samples of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

// Wherever a run ends, and in whichever epoch the step is.
TEST(DataCommand, FindsTheSamplesOfLaterEpochs) {
  TempFolder out;
  const std::string model = out / "model.onnx", bundle = out / "bundle";
  const std::string text = out.write("text.bin", std::string(3 * 8 + 1, 'a'));
  const std::string recipe =
      out.write("train.yaml", "batch: {global: 1}\ndata: {path: " + text + ", dtype: uint8, shuffle: true}\n");
  Outcome o =
      run_partita("model gpt --layers 1 --hidden 8 --heads 1 --vocab 256 --seq 8 --with-weights --quiet -o " + model);
  ASSERT_EQ(o.code, 0) << o.text;
  o = run_partita("compile " + model + " --train " + recipe + " --ranks 1 --quiet -o " + bundle);
  ASSERT_EQ(o.code, 0) << o.text;
  o = run_partita("data " + bundle + " --step 7");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("0: epoch 2, token file"));
}

}  // namespace
}  // namespace partita
