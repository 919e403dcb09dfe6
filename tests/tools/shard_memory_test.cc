// What ZeRO is for: gradients that are summed over ranks and micro-batches are never all there as a whole.
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"
#include "tests/tools/command.h"

namespace partita {
namespace {

TEST(ShardMemory, AGradientIsShardedBeforeTheNextOnesAreThere) {
  TempFolder out;
  ASSERT_EQ(run_command(partita_program() +
                        " model gpt --layers 12 --hidden 1024 --heads 8 --vocab 1000 --seq 32 --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  out.write("train.yaml",
            "batch: {global: 8}\noptimizer: {kind: adamw, lr: 0.001}\ninit: [{match: '*', normal: {std: 0.02}}]\n");
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* micro_batch : {"1", "2"}) {  // two micro-batches, and one
      SCOPED_TRACE(std::string(precision) + ", micro-batch " + micro_batch);
      const Outcome made =
          run_command(partita_program() + " compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                      " --ranks 4 --pin data=4 --pin zero=3 --pin micro_batch=" + micro_batch + " --precision " +
                      precision + " -o " + (out / "bundle"));
      ASSERT_EQ(made.code, 0) << made.text;
      const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
      constexpr double kParameterBytes = 152213504 * 4.0;
      EXPECT_LT(manifest["memory_bytes"]["arena"].get<double>(), 0.5 * kParameterBytes);
    }
  }
}

}  // namespace
}  // namespace partita
