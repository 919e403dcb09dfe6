// Positions split over more ranks than there are key heads, through the command line.
#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

struct Case {
  int heads, key_heads, context, tensor;
  std::vector<std::string> axes;  // of the mesh that have to do with positions
};

TEST(Context, HeadsThatItDoesNotDivideAreDividedByTwoAxesOrKeysAreGathered) {
  const Case kCases[] = {{4, 2, 4, 1, {"context0", "context1"}},
                         {8, 4, 4, 2, {"context0", "context1"}},
                         {2, 1, 4, 1, {"context"}},
                         {4, 4, 4, 2, {"context"}}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(cat("heads ", c.heads, " over ", c.key_heads, ", context ", c.context, ", tensor ", c.tensor));
    TempFolder out;
    Outcome made = run_command(cat(partita_program(), " model gpt --layers 1 --hidden 32 --heads ", c.heads,
                                   " --kv-heads ", c.key_heads, " --vocab 32 --seq 16 --norm rmsnorm --no-bias",
                                   " --positions rotary --with-weights --quiet -o ", out / "m.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    std::string tokens;
    for (int k = 0; k < 4000; ++k) tokens += static_cast<char>(k * k % 23 + k % 7);
    out.write("tokens.bin", tokens);
    const std::string recipe = out.write("train.yaml",
                                         "loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.1}\n"
                                         "batch: {global: 1}\nbind: {batch: 1}\ndata: {kind: tokens, dtype: u8}\n");
    const std::string pins = cat(" --ranks ", c.context * c.tensor, " --pin context=", c.context,
                                 " --pin tensor=", c.tensor, " --train ", recipe);
    Outcome compiled =
        run_command(cat(partita_program(), " compile ", out / "m.onnx", pins, " --quiet -o ", out / "bundle"));
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    const auto mesh = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"))["mesh"];
    std::vector<std::string> axes;
    for (const auto& [name, size] : mesh.items()) {
      if (name.starts_with("context")) axes.push_back(name);
    }
    EXPECT_EQ(axes, c.axes);
    Outcome verified = run_command(cat(partita_program(), " verify ", out / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    auto losses = [&](const std::string& flags) {
      Outcome run = run_command(cat(partita_program(), " train ", out / "m.onnx", flags, " --data ", out / "tokens.bin",
                                    " --steps 5 --quiet --threads 1 --metrics ", out / "metrics.jsonl"));
      EXPECT_EQ(run.code, 0) << run.text;
      return read_losses(out / "metrics.jsonl");
    };
    const std::vector<double> alone = losses(cat(" --train ", recipe)), split = losses(pins);
    ASSERT_EQ(split.size(), alone.size());
    for (size_t k = 0; k < alone.size(); ++k) EXPECT_NEAR(split[k], alone[k], 1e-5 * alone[k]);
  }
}

// Without a causal mask keys can be gathered: over two ranks in as many bytes as heads are exchanged, over four in
// twice as many.
TEST(Context, HeadsAreExchangedWhereThatSendsLessThanKeysGathered) {
  TempFolder out;
  ASSERT_EQ(
      run_partita(cat("model bert --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 16 --with-weights --quiet -o ",
                      out / "m.onnx"))
          .code,
      0);
  const std::string recipe = out.write("train.yaml",
                                       "loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.1}\n"
                                       "batch: {global: 1}\ndata: {kind: synthetic}\n");
  std::vector<double> alone;
  for (int context : {1, 2, 4}) {
    const std::string pins = cat(" --train ", recipe, " --ranks ", context, " --pin context=", context);
    const Outcome compiled = run_partita(cat("compile ", out / "m.onnx", pins, " --quiet -o ", out / "bundle"));
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    EXPECT_EQ(run_partita("verify " + (out / "bundle")).code, 0);
    const std::string steps = run_partita("disassemble " + (out / "bundle")).text;
    EXPECT_EQ(steps.find("all_to_all") != std::string::npos, context == 4) << context;
    const Outcome run =
        run_partita(cat("run ", out / "bundle", " --steps 3 --quiet --threads 1 --metrics ", out / "metrics.jsonl"));
    ASSERT_EQ(run.code, 0) << run.text;
    const std::vector<double> losses = read_losses(out / "metrics.jsonl");
    if (context == 1) alone = losses;
    ASSERT_EQ(losses.size(), 3u);
    for (size_t k = 0; k < losses.size(); ++k) EXPECT_NEAR(losses[k], alone[k], 1e-5 * alone[k]) << context;
  }
}

}  // namespace
}  // namespace partita
