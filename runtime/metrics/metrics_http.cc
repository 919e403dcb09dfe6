#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "prometheus/client_metric.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"
#include "runtime/metrics/metrics.h"

namespace partita::runtime {
namespace {

// The newest step, as whoever asks sees it. Asked on the server's thread while training goes on.
class NewestStep : public prometheus::Collectable {
 public:
  void set(const StepMetrics& metrics) {
    auto values = metric_values(metrics);
    const std::lock_guard<std::mutex> lock(mutex_);
    values_ = std::move(values);
    if (!metrics.rank_seconds.empty()) rank_seconds_ = metrics.rank_seconds;
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<prometheus::MetricFamily> all;
    for (const auto& [name, value] : values_) {
      prometheus::MetricFamily family{prometheus_name(name), "", prometheus::MetricType::Gauge, {}};
      family.metric.emplace_back();
      family.metric.back().gauge.value = value;
      all.push_back(std::move(family));
    }
    if (rank_seconds_.empty()) return all;
    prometheus::MetricFamily ranks{prometheus_name("rank_seconds"), "", prometheus::MetricType::Gauge, {}};
    for (size_t r = 0; r < rank_seconds_.size(); ++r) {
      ranks.metric.emplace_back();
      ranks.metric.back().label.push_back({"rank", cat(r)});
      ranks.metric.back().gauge.value = rank_seconds_[r];
    }
    all.push_back(std::move(ranks));
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<std::string, double>> values_;
  std::vector<double> rank_seconds_;
};

class HttpSink : public MetricsSink {
 public:
  explicit HttpSink(std::unique_ptr<prometheus::Exposer> server) : server_(std::move(server)) {
    server_->RegisterCollectable(newest_);
  }
  absl::Status write(const StepMetrics& metrics) override {
    newest_->set(metrics);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<NewestStep> newest_ = std::make_shared<NewestStep>();
  std::unique_ptr<prometheus::Exposer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsSink>> make_http_sink(const std::string& address) {
  const bool port_alone = address.find_first_not_of("0123456789") == std::string::npos;
  const std::string place = port_alone ? cat("127.0.0.1:", address) : address;
  const size_t colon = place.rfind(':');
  if (colon == place.npos || colon == 0 || colon + 1 == place.size() ||
      place.find_first_not_of("0123456789", colon + 1) != place.npos || place.find_first_of(",+ ") != place.npos)
    return absl::InvalidArgumentError(
        cat("--listen-metrics ", quote(address, 200), ": expected a port, or HOST:PORT of an address of this host"));
  try {
    // One thread: a scrape takes less than a millisecond. Whoever connects and says nothing is cut off.
    const std::vector<std::string> options = {"listening_ports",    place, "num_threads", "1",
                                              "request_timeout_ms", "2000"};
    return std::make_unique<HttpSink>(std::make_unique<prometheus::Exposer>(options));
  } catch (const std::exception& e) {
    return absl::FailedPreconditionError(
        cat("cannot serve metrics at ", place, " (", e.what(), "); is the port taken, or the address another host's?"));
  }
}

}  // namespace partita::runtime
