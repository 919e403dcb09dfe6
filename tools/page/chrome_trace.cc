#include "tools/page/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

constexpr std::string_view kPassNames[] = {"forward", "backward", "weight gradients"};
constexpr int64_t kPasses = 0, kFirstStream = 1, kFirstPeer = kFirstStream + static_cast<int64_t>(kStreams);

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

class Writer {
 public:
  Writer(const PlannedStep& step, const StepTimeline& timeline, const std::vector<int64_t>& ranks)
      : step_(step), timeline_(timeline), ranks_(ranks), shown_(ranks.begin(), ranks.end()) {
    for (size_t k = 0; k < timeline.passes.events.size(); ++k)
      passes_[static_cast<size_t>(timeline.passes.events[k].stage)].push_back(k);
  }

  std::string write() {
    const bool some = static_cast<int64_t>(ranks_.size()) < step_.ranks();
    text_ =
        cat("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"step_seconds\":", nlohmann::json(timeline_.seconds).dump(),
            ",\"predicted_step_seconds\":", nlohmann::json(step_.predicted_seconds).dump(),
            ",\"ranks\":", step_.ranks(), ",\"ranks_shown\":", some ? nlohmann::json(ranks_).dump() : "\"all\"",
            ",\"note\":\"All ranks of a stage do the same at the same time. Within a pass each stream has the sum "
            "of its work over the pass's layers, one stream after the other; layers take turns.\"},\n"
            "\"traceEvents\":[");
    for (int64_t rank : ranks_) rank_events(rank);
    send_events();
    return std::move(text_) + "\n]}\n";
  }

 private:
  template <typename... Args>
  void event(fmt::format_string<Args...> form, Args&&... args) {
    text_ += first_ ? "\n{" : ",\n{";
    first_ = false;
    fmt::format_to(std::back_inserter(text_), form, std::forward<Args>(args)...);
    text_ += '}';
  }

  // Both ends are whole nanoseconds, so that what follows at once does not overlap.
  void slice(int64_t rank, int64_t thread, std::string_view name, std::string_view category, double start, double end,
             const std::string& args = "") {
    const int64_t from = nanoseconds(start), took = nanoseconds(end) - from;
    event(R"("ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{}.{:03},"dur":{}.{:03}{})", name, category, rank,
          thread, from / 1000, from % 1000, took / 1000, took % 1000,
          args.empty() ? "" : cat(",\"args\":{", args, "}"));
  }

  void name_thread(int64_t rank, int64_t thread, std::string_view name) {
    event(R"("ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}})", rank, thread, name);
    event(R"("ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}})", rank, thread, thread);
  }

  static std::string numbered(const Event& e) { return cat("\"micro_batch\":", e.micro_batch, ",\"chunk\":", e.chunk); }

  void rank_events(int64_t rank) {
    const size_t stage = static_cast<size_t>(step_.stage_of(rank));
    event(R"("ph":"M","name":"process_name","pid":{},"args":{{"name":{}}})", rank,
          nlohmann::json(cat("rank ", rank, ": ", rank_name(step_, rank))).dump());
    event(R"("ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}})", rank, rank);
    name_thread(rank, kPasses, "passes");
    for (size_t k : passes_[stage]) {
      const Event& e = timeline_.passes.events[k];
      slice(rank, kPasses, pass_name(e), kPassNames[static_cast<size_t>(e.kind)], e.start, e.end, numbered(e));
    }
    std::set<Stream> used;
    for (const Slice& s : timeline_.slices[stage]) {
      const Stream stream = stream_of(s.part);
      const int64_t thread = kFirstStream + static_cast<int64_t>(stream);
      if (used.insert(stream).second) name_thread(rank, thread, stream_name(stream));
      const std::string_view part = kTimeKindNames[static_cast<size_t>(s.part)];
      if (s.pass < 0) {
        slice(rank, thread, part, part, s.start, s.end);
      } else {
        const Event& e = timeline_.passes.events[static_cast<size_t>(s.pass)];
        slice(rank, thread, cat(part, ", ", pass_name(e)), part, s.start, s.end, numbered(e));
      }
    }
    memory(rank, stage);
  }

  static std::string pass_name(const Event& e) {
    return cat(kPassNames[static_cast<size_t>(e.kind)], " ", e.micro_batch, e.chunk ? cat(" chunk ", e.chunk) : "");
  }

  void memory(int64_t rank, size_t stage) {
    const double other = step_.stages[stage].memory - step_.stages[stage].activations;
    for (auto [at, kept] : kept_activations(step_, timeline_.passes, stage)) {
      const int64_t ns = nanoseconds(at);
      event(R"("ph":"C","name":"memory","pid":{},"ts":{}.{:03},"args":{{"other":{:.0f},"activations":{:.0f}}})", rank,
            ns / 1000, ns % 1000, other, kept);
    }
  }

  // Ranks of a stage that is beside another send to, and receive from, those that have the same samples. A thread for
  // each peer and way.
  int64_t peer_thread(int64_t rank, int64_t peer, bool sends) {
    std::map<std::pair<int64_t, bool>, int64_t>& known = peers_[rank];
    auto [at, fresh] = known.try_emplace({peer, sends}, kFirstPeer + static_cast<int64_t>(known.size()));
    if (fresh) name_thread(rank, at->second, cat(sends ? "send to rank " : "receive from rank ", peer));
    return at->second;
  }

  void send_events() {
    int64_t arrow = 0;
    for (const SendEvent& s : timeline_.passes.sends) {
      const PlannedStep::Stage &a = step_.stages[static_cast<size_t>(s.from)],
                               &b = step_.stages[static_cast<size_t>(s.to)];
      const std::string_view what = s.kind == StageWork::kForward ? "activations" : "gradients";
      const std::string name = cat(what, " ", s.micro_batch, s.chunk ? cat(" chunk ", s.chunk) : "");
      for (auto [x, y] : stage_pairs(a.axes.ranks(), b.axes.ranks())) {
        const int64_t from = a.first_rank + x, to = b.first_rank + y;
        const bool sends = shown_.count(from) > 0, receives = shown_.count(to) > 0;
        if (sends) slice(from, peer_thread(from, to, true), name, "send", s.start, s.end, cat("\"to\":", to));
        if (receives) slice(to, peer_thread(to, from, false), name, "receive", s.start, s.end, cat("\"from\":", from));
        if (!sends || !receives) continue;
        const int64_t at = nanoseconds(s.start);
        for (auto [phase, rank, thread] : {std::tuple{R"("s")", from, peer_thread(from, to, true)},
                                           std::tuple{R"("f","bp":"e")", to, peer_thread(to, from, false)}})
          event(R"("ph":{},"name":"{}","cat":"message","id":{},"pid":{},"tid":{},"ts":{}.{:03})", phase, what, arrow,
                rank, thread, at / 1000, at % 1000);
        ++arrow;
      }
    }
  }

  const PlannedStep& step_;
  const StepTimeline& timeline_;
  const std::vector<int64_t>& ranks_;
  std::set<int64_t> shown_;
  std::map<size_t, std::vector<size_t>> passes_;  // of each stage, as they run
  std::map<int64_t, std::map<std::pair<int64_t, bool>, int64_t>> peers_;
  std::string text_;
  bool first_ = true;
};

}  // namespace

absl::StatusOr<std::vector<int64_t>> traced_ranks(const PlannedStep& step, const std::string& asked) {
  std::set<int64_t> out;
  if (asked.empty()) {
    for (const PlannedStep::Stage& s : step.stages) out.insert(s.first_rank);
    return std::vector<int64_t>(out.begin(), out.end());
  }
  auto bad = [&](std::string_view found) {
    return absl::InvalidArgumentError(
        cat("--ranks: expected all, or ranks from 0 to ", step.ranks() - 1, " as 0,8,16..19, found ", quote(found)));
  };
  if (asked == "all") {
    for (int64_t r = 0; r < step.ranks(); ++r) out.insert(r);
    return std::vector<int64_t>(out.begin(), out.end());
  }
  for (size_t at = 0; at <= asked.size();) {
    const size_t comma = std::min(asked.find(',', at), asked.size());
    const std::string word = asked.substr(at, comma - at);
    const size_t dots = word.find("..");
    auto rank = [&](const std::string& text) -> int64_t {
      if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) return -1;
      return std::stoll(text);
    };
    const int64_t low = rank(word.substr(0, dots)), high = dots == word.npos ? low : rank(word.substr(dots + 2));
    if (low < 0 || high < low || high >= step.ranks()) return bad(word);
    for (int64_t r = low; r <= high; ++r) out.insert(r);
    at = comma + 1;
  }
  return std::vector<int64_t>(out.begin(), out.end());
}

absl::StatusOr<std::string> chrome_trace(const PlannedStep& step, const StepTimeline& timeline,
                                         const std::vector<int64_t>& ranks, int64_t most_events) {
  std::vector<double> of_stage(step.stages.size(), 0);
  for (const Event& e : timeline.passes.events) of_stage[static_cast<size_t>(e.stage)] += 2;
  for (const SendEvent& e : timeline.passes.sends) of_stage[static_cast<size_t>(e.from)] += 4;
  double events = 0;
  for (int64_t rank : ranks) {
    const size_t stage = static_cast<size_t>(step.stage_of(rank));
    events += of_stage[stage] + static_cast<double>(timeline.slices[stage].size());
  }
  if (events > static_cast<double>(most_events))
    return absl::InvalidArgumentError(
        fmt::format("--trace: {} ranks have about {:.3g} million events, more than viewers open ({:.3g} million): "
                    "choose fewer with "
                    "--ranks, as --ranks {}",
                    ranks.size(), events / 1e6, static_cast<double>(most_events) / 1e6, ranks.empty() ? 0 : ranks[0]));
  return Writer(step, timeline, ranks).write();
}

}  // namespace partita
