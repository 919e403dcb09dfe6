// The keys of each record are listed once, in fields(), which the writer and the reader go through alike:
//
//   void fields(auto& io, Is<Plan::Nodes> auto& n) { io("nodes", n.nodes, {.low = 1}), io("device", n.device); }
#include "partitioner/planner/report/plan_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <span>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostPlanBytes = int64_t{64} << 20;
constexpr int kDeepest = 64;
constexpr int64_t kLargestCount = int64_t{1} << 40;
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr double kAnyNumber = -std::numeric_limits<double>::max();
constexpr std::array<const char*, 4> kStageAxes = {"data", "tensor", "context", "expert"};

enum class When {
  kAlways,  // the schema requires it
  kLate,    // plans of before it was added lack it
  kSaid,    // left out where it is empty, false or 0
};

struct Rule {
  When when = When::kAlways;
  double low = 0;                                      // of numbers
  int64_t high = std::numeric_limits<int64_t>::max();  // of integers
  size_t least = 0;                                    // entries of a list
};
constexpr Rule kLate{.when = When::kLate}, kSaid{.when = When::kSaid};

template <typename T, typename Record>
concept Is = std::same_as<std::remove_const_t<T>, Record>;

void fields(auto& io, Is<Plan::Inputs> auto& in) {
  io("model", in.model, kLate), io("train", in.train, kLate), io("cluster", in.cluster, kLate);
  io("cluster_path", in.cluster_path, kLate), io("profiles", in.profiles, kSaid), io("precision", in.precision);
  io("like", in.like, kSaid), io("pins", in.pins, kSaid), io("sets", in.sets, kSaid), io("refined", in.refined, kSaid);
}

void fields(auto& io, Is<std::map<std::string, int64_t>> auto& axes) {
  for (const char* axis : kStageAxes) io.entry(axis, axes, {.low = 1, .high = kLargestCount});
}

void fields(auto& io, Is<BucketSize> auto& b) {
  io("ranks", b.ranks, {.low = 0, .high = kLargestCount}), io("bytes", b.bytes, {.low = 1, .high = kLargestCount});
}

void fields(auto& io, Is<PinRecipe> auto& p) {
  const Rule count{.low = 1, .high = kLargestCount};
  fields(io, p.axes), io.entry("pipeline", p.axes, count);
  io("zero", p.zero, {.high = 3}), io("zero_group", p.zero_group, count);
  io("reshard_after_forward", p.reshard_after_forward), io("micro_batch", p.micro_batch, count);
  io("prefetch_blocks", p.prefetch_blocks, {.high = PinRecipe::kMostPrefetched});
  io("overlap_micro_batches", p.overlap_micro_batches, {.low = 1, .high = PinRecipe::kMostOverlapped});
  io("overlap_products", p.overlap_products, {.low = 1, .high = PinRecipe::kMostRowParts});
  io("hierarchical_group", p.hierarchical_group, count), io("bucket_bytes", p.bucket_bytes.sizes, kSaid);
  io("sequence_parallel", p.sequence_parallel), io("recompute", p.recompute);
  io("recompute_blocks", p.recompute_blocks, kSaid), io("offload", p.offload);
  io("offload_fraction", p.offload_fraction);
  io("schedule", p.schedule), io("interleave", p.interleave, count), io("cuts", p.cuts, kSaid);
  io("stages", p.stages, {.when = When::kSaid, .low = 1, .high = kLargestCount, .least = 1});
}

void fields(auto& io, Is<Breakdown> auto& b) {
  for (const auto& [name, seconds] : kBreakdownNames) io(name.data(), b.*seconds, kLate);
}

void fields(auto& io, Is<PassTimes> auto& p) {
  for (size_t k = 0; k < kTimeKinds; ++k) io(kTimeKindNames[k].data(), p.seconds[k], kSaid);
  io("hidden_gathers", p.hidden_gathers, kSaid), io("hidden_reduce", p.hidden_reduce, kSaid);
  io("hidden_sums", p.hidden_sums, kSaid), io("hidden_to_host", p.hidden_to_host, kSaid);
  io("hidden_from_host", p.hidden_from_host, kSaid);
}

void fields(auto& io, Is<ChunkTimes> auto& c) {
  io("forward", c.forward), io("backward", c.backward), io("weight", c.weight);
}

void fields(auto& io, Is<MemoryUse> auto& m) {
  for (const auto& [name, bytes] : kMemoryUses)
    io(name.data(), m.*bytes, name == "stash" || name == "communicators_assumed" ? kLate : Rule{});
  double total = m.total();  // follows from the rest
  io("total", total);
}

void fields(auto& io, Is<Transfer> auto& t) {
  const Rule count{.low = 1, .high = kMostRanks, .least = 1};
  io("kind", t.kind), io("collective", t.collective), io("algorithm", t.algorithm);
  io("members", t.members, count), io("levels", t.levels, count), io("bytes", t.bytes);
}

void fields(auto& io, Is<PlanTraffic::Shared> auto& s) {
  const Rule stage{.high = kMostRanks};
  io("owner", s.owner, stage), io("reader", s.reader, stage);
  io("parameters", s.parameters), io("gradients", s.gradients);
}

void fields(auto& io, Is<Plan::Chunk> auto& c) {
  io("first_unit", c.first_unit), io("units", c.units), io("forward_seconds", c.times.forward);
  io("backward_seconds", c.times.backward), io("weight_seconds", c.times.weight), io("parts", c.by_kind);
}

void fields(auto& io, Is<RecomputedBlocks> auto& r) {
  io("mode", r.mode), io("blocks", r.blocks, {.least = 1}), io("bytes", r.bytes), io("seconds", r.seconds);
  io("host_bytes", r.host_bytes, kSaid);
}

void fields(auto& io, Is<Plan::Stage> auto& s) {
  io("first_rank", s.first_rank, kLate), io("ranks", s.ranks, kLate), io("device", s.device, kLate);
  io("chunks", s.chunks, {.least = 1}), io("memory", s.memory), io("capacity_bytes", s.capacity);
  io("update", s.update), io("traffic", s.traffic), io("recompute", s.recompute, kSaid);
}

void fields(auto& io, Is<Plan::Nodes> auto& n) {
  const Rule count{.low = 1, .high = kMostRanks};
  io("nodes", n.nodes, count), io("devices_per_node", n.devices_per_node, count), io("device", n.device);
}

void fields(auto& io, Is<Plan::Unit> auto& u) {
  io("name", u.name), io("count", u.count), io("forward_flops", u.forward_flops);
  io("backward_flops", u.backward_flops), io("parameters", u.parameters), io("saved_elements", u.saved_elements);
  io("tensor_split", u.tensor_split, kLate), io("grouped_matrices", u.grouped_matrices, kSaid);
}

void fields(auto& io, Is<LengthTime> auto& l) {
  io("length", l.length, {.low = 1, .high = kLargestCount}), io("step_seconds", l.step_seconds);
}

void fields(auto& io, Is<Plan::Predicted> auto& p) {
  io("step_seconds", p.step_seconds), io("fits", p.fits), io("memory_bytes", p.memory_bytes);
  io("program_bytes", p.program_bytes, kSaid), io("missing_bytes", p.missing_bytes, kLate);
  io("breakdown", p.breakdown), io("bubble_share", p.bubble_share, {.when = When::kLate, .low = kAnyNumber});
  io("tokens_per_second", p.tokens_per_second, kLate), io("model_flops", p.model_flops, kLate);
  io("mfu", p.mfu, kLate), io("price_per_hour", p.price_per_hour, kLate);
  io("gradient_collective", p.gradient_collective, kLate), io("lengths", p.lengths, kSaid);
}

void fields(auto& io, Is<Plan::Search> auto& s) {
  io("considered", s.considered, kLate), io("bounded", s.bounded, kLate), io("unfit", s.unfit, kLate);
  io("laid_out", s.allocated, kLate), io("gap", s.gap, {.when = When::kLate, .low = kAnyNumber});
}

void fields(auto& io, Is<Plan::Other> auto& o) {
  io("layout", o.layout), io("pin", o.pin), io("step_seconds", o.step_seconds), io("fits", o.fits);
  io("memory_bytes", o.memory_bytes), io("breakdown", o.breakdown), io("reason", o.reason, kSaid);
}

void fields(auto& io, Is<Plan::Compared> auto& c) {
  io("like", c.like), io("error", c.error, kSaid), io.inlined(c.found, "layout");
}

void fields(auto& io, Is<Plan> auto& p) {
  io("inputs", p.inputs, kLate), io("devices", p.devices, {.low = 1}), io("hardware", p.hardware, kLate);
  io("links", p.links, kLate), io("global_batch", p.global_batch, {.low = 1}), io("layout", p.layout);
  io("pin", p.pin), io("compress", p.compress), io("batch_statistics", p.batch_statistics);
  io("micro_batches", p.micro_batches, {.low = 1}), io("send_seconds", p.send_seconds, kLate);
  io("send_waited_seconds", p.send_waited_seconds, kLate), io("stages", p.stages, {.least = 1});
  io("units", p.units, kLate), io("predicted", p.predicted), io("search", p.search);
  io("candidates", p.candidates), io("compared", p.compared, kSaid), io("boundary_bytes", p.boundary_bytes);
  io("shared", p.shared, kSaid);
  io("after_update", p.after_update), io("nodes", p.nodes);
}

template <typename T>
constexpr bool is_vector = false;
template <typename T>
constexpr bool is_vector<std::vector<T>> = true;
template <typename T>
constexpr bool is_optional = false;
template <typename T>
constexpr bool is_optional<std::optional<T>> = true;
template <typename T>
constexpr bool is_text = std::is_same_v<T, std::string>;

// Whether a record is written as an object.
template <typename T>
constexpr bool is_record =
    !std::is_arithmetic_v<T> && !std::is_enum_v<T> && !is_vector<T> && !is_optional<T> && !is_text<T>;

template <typename Enum>
std::span<const std::string_view> names() {
  if constexpr (std::is_same_v<Enum, TrafficKind>) {
    return kTrafficNames;
  } else {
    return enum_names<Enum>();
  }
}

class Writer {
 public:
  template <typename T>
  void operator()(const char* key, const T& value, const Rule& rule = {}) {
    if constexpr (is_optional<T>) {
      if (value) (*this)(key, *value, rule);
    } else if (rule.when != When::kSaid || is_said(value)) {
      json_[key] = json(value);
    }
  }

  void entry(const char* key, const std::map<std::string, int64_t>& map, const Rule&) {
    if (const auto at = map.find(key); at != map.end()) json_[key] = at->second;
  }

  // A record whose keys are among those of the one around it, where it is there: it has `key`.
  template <typename T>
  void inlined(const std::optional<T>& value, const char*) {
    if (value) fields(*this, *value);
  }

  template <typename T>
  static Json json(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return names<T>()[static_cast<size_t>(value)];
    } else if constexpr (is_vector<T>) {
      Json list = Json::array();
      for (const auto& x : value) list.push_back(json(x));
      return list;
    } else if constexpr (std::is_same_v<T, std::array<RankAxis, 2>>) {
      Json list = Json::array();
      for (const RankAxis& axis : value) {
        if (axis.size > 1 || list.empty()) list.push_back({axis.size, axis.stride});
      }
      return list;
    } else if constexpr (is_record<T>) {
      Writer record;
      fields(record, value);
      return std::move(record.json_);
    } else {
      return value;
    }
  }

 private:
  template <typename T>
  static bool is_said(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return value > 0;
    } else if constexpr (is_text<T> || is_vector<T>) {
      return !value.empty();
    } else {
      return true;
    }
  }

  Json json_ = Json::object();
};

// Reads what the writer wrote; the first thing that is none of it ends the reading.
class Reader {
 public:
  Reader(const Json& json, std::string path, absl::Status& status)
      : json_(json), path_(std::move(path)), status_(status) {}

  template <typename T>
  void operator()(const char* key, T& value, const Rule& rule = {}) {
    if (!status_.ok()) return;
    const auto at = json_.find(key);
    if constexpr (is_optional<T>) {
      if (at != json_.end()) read(*at, cat(path_, key), rule, value.emplace());
    } else if (at != json_.end()) {
      read(*at, cat(path_, key), rule, value);
    } else if (rule.when == When::kAlways) {
      fail(cat("expected ", what<T>(rule), " under ", quote(cat(path_, key)), ", found none"));
    }
  }

  void entry(const char* key, std::map<std::string, int64_t>& map, const Rule& rule) {
    std::optional<int64_t> size;
    (*this)(key, size, rule);
    if (size) map[key] = *size;
  }

  template <typename T>
  void inlined(std::optional<T>& value, const char* key) {
    if (status_.ok() && json_.contains(key)) fields(*this, value.emplace());
  }

 private:
  template <typename T>
  void read(const Json& j, const std::string& path, const Rule& rule, T& value) {
    auto expect = [&](bool found) {
      if (!found) fail(cat(path, ": expected ", what<T>(rule), ", found ", quote(j.dump())));
      return found;
    };
    if constexpr (is_text<T>) {
      if (expect(j.is_string())) value = j.get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (expect(j.is_boolean())) value = j.get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      const int64_t n = j.is_number_integer() ? j.get<int64_t>() : -1;
      if (expect(n >= static_cast<int64_t>(rule.low) && n <= rule.high)) value = static_cast<T>(n);
    } else if constexpr (std::is_floating_point_v<T>) {
      const double x = j.is_number() ? j.get<double>() : std::numeric_limits<double>::quiet_NaN();
      if (expect(std::isfinite(x) && x >= rule.low)) value = x;
    } else if constexpr (std::is_enum_v<T>) {
      const auto all = names<T>();
      const auto at = std::find(all.begin(), all.end(), j.is_string() ? j.get<std::string>() : "");
      if (expect(at != all.end())) value = static_cast<T>(at - all.begin());
    } else if constexpr (is_vector<T>) {
      if (!expect(j.is_array() && j.size() >= rule.least)) return;
      for (size_t k = 0; k < j.size() && status_.ok(); ++k)
        read(j[k], cat(path, "[", k, "]"), rule, value.emplace_back());
    } else if constexpr (std::is_same_v<T, std::array<RankAxis, 2>>) {
      if (!expect(j.is_array() && !j.empty() && j.size() <= value.size())) return;
      for (size_t k = 0; k < j.size() && status_.ok(); ++k) {
        if (!expect(j[k].is_array() && j[k].size() == 2)) return;
        read(j[k][0], cat(path, "[", k, "][0]"), rule, value[k].size);
        read(j[k][1], cat(path, "[", k, "][1]"), rule, value[k].stride);
      }
    } else {
      if (!expect(j.is_object())) return;
      Reader record(j, cat(path, "."), status_);
      fields(record, value);
    }
  }

  template <typename T>
  static std::string what(const Rule& rule) {
    if constexpr (is_text<T>) {
      return "a text";
    } else if constexpr (std::is_same_v<T, bool>) {
      return "true or false";
    } else if constexpr (std::is_integral_v<T>) {
      const std::string low = cat("an integer of at least ", static_cast<int64_t>(rule.low));
      return rule.high == Rule{}.high ? low : cat(low, " and at most ", rule.high);
    } else if constexpr (std::is_floating_point_v<T>) {
      return rule.low == kAnyNumber ? "a number" : cat("a number of at least ", rule.low);
    } else if constexpr (std::is_enum_v<T>) {
      const auto all = names<T>();
      return cat("one of ", quote_list({all.begin(), all.end()}, all.size()));
    } else if constexpr (is_vector<T>) {
      return rule.least > 0 ? cat("a list of at least ", rule.least) : "a list";
    } else if constexpr (std::is_same_v<T, std::array<RankAxis, 2>>) {
      return "one or two axes as [size, stride]";
    } else if constexpr (std::is_same_v<T, Breakdown> || std::is_same_v<T, PassTimes>) {
      return "seconds by part";
    } else {
      return "an object";
    }
  }

  void fail(const std::string& fault) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(cat("plan: ", fault, "; make the plan again"));
  }

  const Json& json_;
  std::string path_;  // of json_, with a dot behind
  absl::Status& status_;
};

// The parser takes a stack frame for each level.
bool is_deep(const std::string& text) {
  int depth = 0, deepest = 0;
  for (char c : text) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    deepest = std::max(deepest, depth);
  }
  return deepest > kDeepest;
}

}  // namespace

Json plan_json(const Plan& plan) {
  Json j = Writer::json(plan);
  j["version"] = Plan::kVersion;
  return j;
}

std::string plan_text(const Plan& plan) { return plan_json(plan).dump(1) + "\n"; }

absl::StatusOr<Plan> parse_plan(const std::string& text) {
  const Json j = is_deep(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object())
    return absl::InvalidArgumentError("expected a plan in JSON, found something else");
  if (!j.contains("version") || j["version"] != Plan::kVersion) {
    return absl::InvalidArgumentError(cat("expected version ", Plan::kVersion, ", found ",
                                          j.contains("version") ? quote(j["version"].dump()) : "none"));
  }
  Plan plan;
  absl::Status status;
  Reader reader(j, "", status);
  fields(reader, plan);
  PARTITA_RETURN_IF_ERROR(status);
  return plan;
}

absl::StatusOr<Plan> read_plan(const std::string& path) {
  auto text = read_text_file(path, kMostPlanBytes);
  if (!text.ok()) return with_context(text.status(), "a plan, as partita plan -o writes it");
  if (static_cast<int64_t>(text->size()) > kMostPlanBytes)
    return absl::InvalidArgumentError(cat(quote(path), ": no plan: more than ", kMostPlanBytes, " bytes"));
  auto plan = parse_plan(*text);
  if (!plan.ok()) return with_context(plan.status(), quote(path));
  return plan;
}

}  // namespace partita
