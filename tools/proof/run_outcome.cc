#include "tools/proof/run_outcome.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/cat.h"
#include "base/host/processors.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr size_t kPiece = 4096;             // numbers that are read at once
constexpr size_t kShare = size_t{1} << 20;  // numbers that are worth a thread

// The sum of the squares of a, or of a - b, from one index to another.
double squares(const Numbers& a, const Numbers* b, size_t from, size_t to) {
  std::array<double, kPiece> x, y;
  double sum = 0;
  for (; from < to; from += kPiece) {
    const size_t n = std::min(kPiece, to - from);
    a.read(from, {x.data(), n});
    if (b != nullptr) {
      b->read(from, {y.data(), n});
      for (size_t k = 0; k < n; ++k) x[k] -= y[k];
    }
    for (size_t k = 0; k < n; ++k) sum += x[k] * x[k];
  }
  return sum;
}

double length_of(const Numbers& a, const Numbers* b) {
  const auto processors = static_cast<size_t>(usable_processors());
  const size_t share = std::max(kShare, a.size() / processors + 1);
  std::vector<double> sums((a.size() + share - 1) / share);
  std::vector<std::thread> team;
  for (size_t k = 1; k < sums.size(); ++k)
    team.emplace_back([&, k] { sums[k] = squares(a, b, k * share, std::min(a.size(), (k + 1) * share)); });
  if (!sums.empty()) sums[0] = squares(a, b, 0, std::min(a.size(), share));
  for (std::thread& t : team) t.join();
  double sum = 0;
  for (double s : sums) sum += s;
  return std::sqrt(sum);
}

}  // namespace

void Numbers::read(size_t first, std::span<double> out) const {
  if (in_file_.data == nullptr) {
    std::copy_n(known_.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
  } else if (in_file_.type.dtype == DType::kF32) {  // most of what there is
    const std::byte* from = in_file_.data + first * sizeof(float);
    for (size_t k = 0; k < out.size(); ++k) {
      float x;
      std::memcpy(&x, from + k * sizeof x, sizeof x);
      out[k] = x;
    }
  } else {
    for (size_t k = 0; k < out.size(); ++k) out[k] = element_f(in_file_, static_cast<int64_t>(first + k));
  }
}

std::vector<double> Numbers::all() const {
  std::vector<double> values(size_);
  read(0, values);
  return values;
}

double length(const Numbers& a) { return length_of(a, nullptr); }
double distance(const Numbers& a, const Numbers& b) { return a.size() == b.size() ? length_of(a, &b) : INFINITY; }

absl::Status RunOutcome::add(const std::string& path, const std::string& prefix) {
  PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile file, runtime::SafetensorsFile::open(path));
  for (const runtime::SafetensorsEntry& entry : file.entries())
    places_[prefix + entry.name] = {files_.size(), entry.name};
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

std::vector<std::string> RunOutcome::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) all.push_back(name);
  return all;
}

DType RunOutcome::dtype(const std::string& name) const {
  const auto& [file, key] = places_.at(name);
  return files_[file].find(key)->dtype;
}

Numbers RunOutcome::numbers(const std::string& name) const {
  if (const auto known = values.find(name); known != values.end()) return Numbers(known->second);
  const auto& [file, key] = places_.at(name);
  const runtime::SafetensorsEntry& entry = *files_[file].find(key);
  return Numbers(Literal{{entry.dtype, entry.shape}, nullptr, files_[file].data(entry).data()});
}

std::string gradient_of(std::string_view name) { return cat("gradient of ", name); }

}  // namespace partita
