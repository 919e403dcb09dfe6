// What training leaves, to the bit.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {

// All states after a run, and each step's line of metrics.
struct TrainingBits {
  std::map<std::string, uint64_t> states;
  std::map<int64_t, std::string> metrics;
  bool operator==(const TrainingBits&) const = default;
};

// `command`: "partita train …", which gets its steps, checkpoints and metrics here. It goes on from what is in `out`.
inline TrainingBits train_on(const std::string& command, const TempFolder& out, int steps) {
  const Outcome o = run_command(command + " --quiet --steps " + std::to_string(steps) + " --checkpoint " +
                                (out / "checkpoints") + " --metrics " + (out / "metrics.jsonl"));
  EXPECT_EQ(o.code, 0) << command << "\n" << o.text;
  TrainingBits bits;
  auto manifest = runtime::read_manifest(out / ("checkpoints/" + runtime::checkpoint_name(steps)));
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  if (manifest.ok()) {
    for (const auto& t : manifest->tensors) bits.states[t.name] = t.checksum;
  }
  std::istringstream lines(TempFolder::read(out / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json j = nlohmann::json::parse(line);
    bits.metrics[j["step"].get<int64_t>()] = j["loss"].dump() + " " + j["grad_norm"].dump();
  }
  return bits;
}

inline TrainingBits train_afresh(const std::string& command, const TempFolder& out, int steps) {
  std::filesystem::remove_all(out / "checkpoints");
  std::filesystem::remove(out / "metrics.jsonl");
  return train_on(command, out, steps);
}

}  // namespace partita
