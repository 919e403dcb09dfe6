// The GPT that the project carries, as command lines name it, and a text to train it on.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

namespace partita {

inline const std::string kCarriedFolder = std::string(PARTITA_TEST_DATA) + "/gpt2";
// "MODEL --train RECIPE "
inline const std::string kCarriedModel = kCarriedFolder + "/model.onnx --train " + kCarriedFolder + "/train.yaml ";

// Lines that repeat, so that a few steps lower the loss; the file's path.
inline std::string write_text(const TempFolder& folder) {
  std::string text;
  for (int k = 0; k < 4000; ++k) text += "line " + std::to_string(k * k % 977) + " of a text that repeats\n";
  return folder.write("text.bin", text);
}

// Trains it for three steps of write_text(): the losses.
inline std::vector<double> train_carried(const TempFolder& folder, const std::string& flags) {
  const std::string metrics = folder / "metrics.jsonl";
  const Outcome o = run_partita("train " + kCarriedModel + "--quiet --steps 3 --data " + write_text(folder) +
                                " --metrics " + metrics + " " + flags);
  EXPECT_EQ(o.code, 0) << o.text;
  return read_losses(metrics);
}

}  // namespace partita
