// Ranks that were given other data, flags or first weights than the others do not train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Agreement : public testing::Test {
 protected:
  static constexpr int kRecords = 64, kFloats = 32 + 8;

  // Records of one value, of as many bytes whatever it is.
  std::string records(const std::string& name, char fill) {
    return out_.write(name, std::string(static_cast<size_t>(kRecords * kFloats) * 4, fill));
  }
  Outcome two_ranks(const std::string& first, const std::string& second) {
    const std::string rank = out_ / "bundle/rank --steps 2 --threads 1 --quiet ";
    return run_command("mpirun --allow-run-as-root --oversubscribe -n 1 " + rank + first + " : -n 1 " + rank + second);
  }

  TempFolder out_;
};

TEST_F(Agreement, OtherDataFlagsAndWeightsAreRefused) {
  if (run_command("command -v mpirun").code != 0) GTEST_SKIP() << "no mpirun here";
  const Outcome model =
      run_partita("model mlp --layers 32,64,8 --batch 8 --with-weights --quiet -o " + (out_ / "mlp.onnx"));
  const std::string recipe = out_.write(
      "train.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.001}\ndata: {kind: raw}\n");
  const Outcome done = run_partita("compile " + (out_ / "mlp.onnx") + " --train " + recipe +
                                   " --quiet --pin data=2 -o " + (out_ / "bundle"));
  ASSERT_EQ(model.code + done.code, 0) << model.text << done.text;
  const std::string zeros = " --data " + records("zeros.bin", '\0'), copy = " --data " + records("copy.bin", '\0');
  const std::string others = " --data " + records("others.bin", '\1');
  const Outcome same = two_ranks(zeros, copy);
  EXPECT_EQ(same.code, 0) << same.text;
  for (const std::string& second : {others, zeros + " --shuffle"}) {
    const Outcome o = two_ranks(zeros, second);
    EXPECT_THAT(o.text, AllOf(HasSubstr("the ranks disagree on 'the data"), HasSubstr("rank 1 differs from rank 0")));
    EXPECT_EQ(o.code, 2) << second << o.text;
  }
  const Outcome flags = two_ranks(zeros, zeros + " --loss-spike 2,10,warn");
  EXPECT_THAT(flags.text, HasSubstr("the ranks disagree on 'the flags"));
  const std::string one = out_ / "one.safetensors", other = out_ / "other.safetensors";
  for (const auto& [data, weights] : {std::pair{zeros, one}, std::pair{others, other}}) {
    const Outcome saved = two_ranks(data + " --save " + weights, data + " --save " + weights);
    ASSERT_EQ(saved.code, 0) << saved.text;
  }
  EXPECT_THAT(two_ranks(zeros + " --init " + one, zeros + " --init " + other).text,
              HasSubstr("the ranks disagree on 'the weights of --init'"));
}

}  // namespace
}  // namespace partita
