// Models that the command line trained, against PyTorch's references in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "runtime/files/npz.h"
#include "runtime/files/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

namespace partita {

inline std::vector<double> numbers(DType dtype, std::span<const std::byte> bytes) {
  size_t size = static_cast<size_t>(dtype_size(dtype));
  std::vector<double> out(bytes.size() / size);
  for (size_t k = 0; k < out.size(); ++k) {
    if (dtype == DType::kF64) {
      std::memcpy(&out[k], bytes.data() + 8 * k, 8);
    } else {
      float f;
      std::memcpy(&f, bytes.data() + 4 * k, 4);
      out[k] = f;
    }
  }
  return out;
}

inline std::vector<double> array(const runtime::NpzFile& file, const std::string& name) {
  auto a = file.read(name);
  EXPECT_TRUE(a.ok()) << a.status();
  return a.ok() ? numbers(a->dtype, a->bytes) : std::vector<double>();
}

inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    difference += (a[k] - b[k]) * (a[k] - b[k]);
    norm += b[k] * b[k];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

struct Training {
  std::vector<double> losses;
  std::string parameters, gradients, metrics;  // files
};

// `program`: the command that is `partita`.
inline Training train(const std::string& folder, size_t steps, const std::string& flags, const TempFolder& out,
                      const std::string& name, const std::string& program = partita_program()) {
  namespace fs = std::filesystem;
  std::string model = fs::exists(folder + "/model.onnx") ? folder + "/model.onnx" : folder + "/training_model.onnx";
  Training run{{}, out / (name + ".safetensors"), out / (name + ".grad.safetensors"), out / (name + ".jsonl")};
  Outcome done = run_command(program + " train " + model + " --train " + folder + "/train.yaml --data " + folder +
                             "/data.npz --quiet --steps " + std::to_string(steps) + " --metrics " + run.metrics +
                             " --save " + run.parameters + " --save-gradients " + run.gradients + " " + flags);
  EXPECT_EQ(done.code, 0) << folder << ": " << done.text;
  run.losses = read_losses(run.metrics);
  return run;
}

// Elements whose gradient is next to nothing beside its tensor's: of float32's sums it is rounding, in an order that
// processors differ in, and AdamW makes a share of a whole step of it. One element of 25,000 is left out of both. (One
// of ViT's, 1.5e-6 of its tensor's, and one of Llama's, 1.5e-5, were nearly all of their tensors' error without
// AVX-512.)
inline void leave_out_rounding(const std::vector<double>& gradient, std::vector<double>& found,
                               std::vector<double>& expected) {
  if (gradient.size() != found.size() || found.size() != expected.size()) return;
  double squares = 0;
  for (double g : gradient) squares += g * g;
  const double least = 4e-5 * std::sqrt(squares / static_cast<double>(gradient.size()));
  for (size_t k = 0; k < gradient.size(); ++k)
    if (gradient[k] != 0 && std::abs(gradient[k]) < least) found[k] = expected[k] = 0;
}

// `slack`: times the limit. Sums in another order round otherwise. Of fewer steps than the reference has, losses and
// gradients are compared alone.
inline void expect_holds(const std::string& folder, const runtime::NpzFile& expected, const Training& run,
                         double slack = 1, size_t steps = std::numeric_limits<size_t>::max()) {
  using runtime::SafetensorsFile;
  std::vector<double> loss = array(expected, "loss_f64"), loss32 = array(expected, "loss_f32");
  const bool whole = steps >= loss.size();
  if (!whole) loss.resize(steps), loss32.resize(steps);
  EXPECT_LE(relative_error(run.losses, loss), std::max(2e-6, 4 * relative_error(loss32, loss))) << folder << ": loss";
  auto gradients = SafetensorsFile::open(run.gradients), parameters = SafetensorsFile::open(run.parameters);
  ASSERT_TRUE(gradients.ok() && parameters.ok()) << folder << gradients.status() << parameters.status();
  int compared = 0;
  for (const std::string& key : expected.names()) {
    bool gradient = key.rfind("grad/", 0) == 0, parameter = key.rfind("paramN/", 0) == 0;
    if (!gradient && (!parameter || !whole)) continue;
    std::string name = key.substr(key.find('/') + 1);
    double own = expected.contains("err_f32/" + key) ? array(expected, "err_f32/" + key)[0] : 0;
    if (own > 1e-3) continue;  // an exact zero in which PyTorch too has only rounding noise
    const SafetensorsFile& file = gradient ? *gradients : *parameters;
    const runtime::SafetensorsEntry* entry = file.find(name);
    ASSERT_NE(entry, nullptr) << folder << ": " << key;
    std::vector<double> found = numbers(entry->dtype, file.data(*entry)), right = array(expected, key);
    if (parameter && expected.contains("grad/" + name))
      leave_out_rounding(array(expected, "grad/" + name), found, right);
    EXPECT_LE(relative_error(found, right), slack * std::max(2e-6, 4 * own)) << folder << ": " << key;
    ++compared;
  }
  EXPECT_GE(compared, 4) << folder;
}

}  // namespace partita
