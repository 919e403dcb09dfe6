// What a run left, and how far two of them are apart.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ir/type/literal.h"
#include "runtime/files/safetensors.h"

namespace partita {

// A tensor's numbers, where they lie.
class Numbers {
 public:
  explicit Numbers(Literal in_file)
      : in_file_(std::move(in_file)), size_(static_cast<size_t>(elements(in_file_.type.shape))) {}
  explicit Numbers(std::span<const double> known) : known_(known), size_(known.size()) {}

  size_t size() const { return size_; }
  // Those from `first` on, as many as there is room for.
  void read(size_t first, std::span<double> out) const;
  std::vector<double> all() const;

 private:
  Literal in_file_;  // no data: they are known
  std::span<const double> known_;
  size_t size_;
};

// The length of a tensor, and of the difference of two; infinity where their sizes differ. By all processors.
double length(const Numbers& a);
double distance(const Numbers& a, const Numbers& b);

// Numbers of each step.
struct StepNumbers {
  std::vector<double> losses, evaluations, rates, norms;
  std::vector<bool> skipped;  // whether its gradients overflowed
};

// Its tensors stay in their files, as those of several runs would not fit into memory.
class RunOutcome {
 public:
  // The tensors of a file, their names after `prefix`.
  absl::Status add(const std::string& path, const std::string& prefix);
  std::vector<std::string> names() const;  // of what is in files
  bool has(const std::string& name) const { return values.count(name) > 0 || places_.count(name) > 0; }
  DType dtype(const std::string& name) const;
  // As long as this lives and keeps what it has.
  Numbers numbers(const std::string& name) const;
  std::vector<double> tensor(const std::string& name) const { return numbers(name).all(); }

  StepNumbers scalars;
  std::map<std::string, std::vector<double>> values;  // tensors that are in no file

 private:
  std::vector<runtime::SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, std::string>> places_;
};

// The name that an outcome has the first step's gradient under.
std::string gradient_of(std::string_view name);

}  // namespace partita
