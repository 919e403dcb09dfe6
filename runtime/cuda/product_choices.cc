#include "runtime/cuda/product_choices.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "runtime/launch/trusted_path.h"

namespace partita::runtime {
namespace {

constexpr int kVersion = 1;

std::string to_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

bool from_text(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr size_t kDigits = 16;
  if (text.size() != kDigits * std::size(algorithm.data) ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  for (size_t k = 0; k < std::size(algorithm.data); ++k)
    algorithm.data[k] = std::stoull(text.substr(kDigits * k, kDigits), nullptr, 16);
  return true;
}

// Held while it lives: one process at a time changes the file.
class Lock {
 public:
  static absl::StatusOr<Lock> take(const std::string& path) {
    const int file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (file < 0 || ::flock(file, LOCK_EX) != 0) {
      const absl::Status failed = absl::FailedPreconditionError(
          cat("cannot lock ", quote(path), ": ", std::strerror(errno), "; --tune needs a folder that can be written"));
      if (file >= 0) ::close(file);
      return failed;
    }
    return Lock(file);
  }
  Lock(Lock&& o) noexcept : file_(std::exchange(o.file_, -1)) {}
  ~Lock() {
    if (file_ >= 0) ::close(file_);
  }

 private:
  explicit Lock(int file) : file_(file) {}
  int file_;
};

}  // namespace

absl::StatusOr<ProductChoices> ProductChoices::open(const std::string& file) {
  ProductChoices choices(file);
  PARTITA_RETURN_IF_ERROR(choices.read());
  return choices;
}

absl::Status ProductChoices::read() {
  std::error_code ignored;
  if (!std::filesystem::exists(file_, ignored)) return absl::OkStatus();
  PARTITA_RETURN_IF_ERROR(check_trusted_path(file_));
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(file_));
  const nlohmann::json all = nlohmann::json::parse(file.text(), nullptr, false);
  const absl::Status damaged = absl::DataLossError(
      cat(quote(file_), " holds no tuned products of this version; remove it, and --tune makes it anew"));
  if (!all.is_object() || all.value("version", 0) != kVersion || !all.contains("products")) return damaged;
  choices_.clear();
  for (const auto& [product, entry] : all["products"].items()) {
    Choice choice;
    if (!entry.is_object() || !entry.contains("algorithm") || !entry["algorithm"].is_string() ||
        !from_text(entry["algorithm"].get<std::string>(), choice.algorithm))
      return damaged;
    choice.seconds = entry.value("seconds", 0.0);
    choice.first_seconds = entry.value("first_seconds", 0.0);
    choices_[product] = choice;
  }
  return absl::OkStatus();
}

std::optional<ProductChoices::Choice> ProductChoices::find(const std::string& product) const {
  const auto at = choices_.find(product);
  return at == choices_.end() ? std::nullopt : std::optional(at->second);
}

absl::StatusOr<ProductChoices::Choice> ProductChoices::add(const std::string& product, const Choice& choice) {
  PARTITA_ASSIGN_OR_RETURN(const Lock lock, Lock::take(cat(file_, ".lock")));
  PARTITA_RETURN_IF_ERROR(read());
  const auto [at, fresh] = choices_.try_emplace(product, choice);
  if (!fresh) return at->second;
  nlohmann::json all = {{"version", kVersion}, {"products", nlohmann::json::object()}};
  for (const auto& [name, c] : choices_) {
    all["products"][name] = {
        {"algorithm", to_text(c.algorithm)}, {"seconds", c.seconds}, {"first_seconds", c.first_seconds}};
  }
  PARTITA_RETURN_IF_ERROR(write_file_atomically(file_, all.dump(1) + "\n", Durable::kNo));
  return at->second;
}

uint64_t ProductChoices::digest() const {
  std::string all;
  for (const auto& [product, choice] : choices_) append(all, product, " ", to_text(choice.algorithm), "\n");
  return checksum64(as_byte_span(all));
}

}  // namespace partita::runtime
