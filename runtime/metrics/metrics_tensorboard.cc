// TensorBoard's event files without protobuf or TensorFlow. A record (TensorFlow's record_writer.cc) is
//   u64 length, masked crc32c of it, the bytes, masked crc32c of them
// and holds one Event (event.proto): wall_time = 1 double, step = 2 int64, file_version = 3 string, summary = 5
// message, which repeats value = 1 {tag = 1 string, simple_value = 2 float} (summary.proto).
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/metrics/metrics.h"

namespace partita::runtime {
namespace {

template <typename T>
std::string raw(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

std::string key(int field, int wire_type) { return varint(static_cast<uint64_t>(field << 3 | wire_type)); }
std::string text_field(int field, std::string_view text) { return cat(key(field, 2), varint(text.size()), text); }

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(as_byte_span(bytes));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

std::string record(std::string_view event) {
  const std::string length = raw<uint64_t>(event.size());
  return cat(length, raw(masked_crc(length)), event, raw(masked_crc(event)));
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

class TensorBoardSink : public MetricsSink {
 public:
  TensorBoardSink(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  absl::Status write_event(const std::string& fields) {
    const std::string bytes = record(cat(key(1, 1), raw(wall_time()), fields));
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() && std::fflush(file_.get()) == 0)
      return absl::OkStatus();
    return file_error("write metrics to", path_, errno);
  }

  absl::Status write(const StepMetrics& metrics) override {
    std::string summary;
    for (const auto& [name, value] : metric_values(metrics)) {
      if (name == "step") continue;
      constexpr std::string_view kEvaluation = "evaluation_";
      const std::string tag =
          name.starts_with(kEvaluation) ? cat("evaluation/", name.substr(kEvaluation.size())) : cat("train/", name);
      const std::string scalar = cat(text_field(1, tag), key(2, 5), raw(static_cast<float>(value)));
      append(summary, text_field(1, scalar));
    }
    return write_event(cat(key(2, 0), varint(static_cast<uint64_t>(metrics.step)), text_field(5, summary)));
  }

 private:
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// Like mkdir -p.
absl::Status make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (!folder.empty() && ::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
      return file_error("make the folder", folder, errno);
    if (end == std::string::npos) return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsSink>> make_tensorboard_sink(const std::string& folder) {
  PARTITA_RETURN_IF_ERROR(make_folders(folder));
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  // TensorBoard orders the files of a folder by name; a process id keeps two runs of one second apart.
  const std::string name = fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<int64_t>(wall_time()),
                                       host[0] ? host.data() : "host", ::getpid());
  std::FILE* file = nullptr;
  std::string path;
  for (int attempt = 0; file == nullptr; ++attempt) {
    path = cat(folder, folder.ends_with("/") ? "" : "/", name, ".", attempt);
    file = std::fopen(path.c_str(), "wxe");
    if (file == nullptr && (errno != EEXIST || attempt == 1000)) return file_error("write metrics to", path, errno);
  }
  auto sink = std::make_unique<TensorBoardSink>(path, file);
  PARTITA_RETURN_IF_ERROR(sink->write_event(text_field(3, "brain.Event:2")));
  return sink;
}

}  // namespace partita::runtime
