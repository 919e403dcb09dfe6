// One model trained with pins of the plan that change no bit.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training_bits.h"

namespace partita {

class PinnedTraining : public testing::Test {
 protected:
  void make(const std::string& model, const std::string& recipe) {
    const Outcome made = run_partita("model " + model + " --with-weights --quiet -o " + (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml", recipe);
  }
  std::string command(const char* verb, int ranks, const std::string& pins) const {
    return std::string(verb) + " " + (out_ / "model.onnx") + " --train " + (out_ / "train.yaml") + " --ranks " +
           std::to_string(ranks) + " " + pins;
  }
  // After two steps.
  TrainingBits bits(int ranks, const std::string& pins) const {
    TrainingBits found = train_afresh(partita_program() + " " + command("train", ranks, pins), out_, 2);
    EXPECT_EQ(found.metrics.size(), 2u);
    return found;
  }
  // What compiling said.
  std::string expect_proved(int ranks, const std::string& pins) const {
    const Outcome made = run_partita(command("compile", ranks, pins) + " -o " + (out_ / "bundle"));
    EXPECT_EQ(made.code, 0) << made.text;
    const Outcome verified = run_partita("verify " + (out_ / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    return made.text;
  }
  TempFolder out_;
};

}  // namespace partita
