// Layouts share everything but ZeRO stage, offload, schedule and interleaving in groups; a group's lower bound is its
// compute and tensor communication without bubbles, gathers and updates. Groups are looked at by ascending bound, so
// the search ends where the bound passes the best time found. The best few are replayed by the simulator.
#include "partitioner/search.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <queue>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/pinned_cuts.h"
#include "partitioner/stage_space.h"

namespace partita {
namespace {

constexpr size_t kReplayed = 8;
// Where stages differ: chunks of each, and cuts that are balanced and layouts that are priced.
constexpr int64_t kMostInterleaveApart = 4, kMostEffort = 300000;

struct Group {
  double bound;
  Layout layout;
};

using Family = std::tuple<int64_t, int64_t, int64_t, int64_t, int, std::vector<Layout::StageAxes>>;
Family family(const Layout& l) { return {l.tensor, l.pipeline, l.context, l.expert, l.zero, l.stages}; }

// A total order, so that equal times give the same plan everywhere: simpler layouts first.
auto order(const Candidate& c) {
  const Layout& l = c.layout;
  return std::make_tuple(c.prediction.step_seconds, l.pipeline, l.tensor, l.context, l.expert, l.zero,
                         static_cast<int>(l.offload), static_cast<int>(l.recompute), static_cast<int>(l.schedule),
                         l.interleave, -l.micro_batch, l.sequence_parallel, l.cuts.size(), l.stages, l.cuts);
}

class Search {
 public:
  Search(CostModel& model, const SearchOptions& options)
      : model_(model), problem_(model.problem()), options_(options) {}

  absl::StatusOr<SearchResult> run() {
    auto start = std::chrono::steady_clock::now();
    auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    PARTITA_ASSIGN_OR_RETURN(space_, layout_space(problem_, options_.pin, options_.recompute, options_.micro));
    out_of_time_ = [this, elapsed] { return options_.time_limit > 0 && elapsed() > options_.time_limit && out_.best; };
    make_groups();
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.bound < b.bound; });
    for (size_t k = 0; k < groups_.size() && !passed(groups_[k].bound, groups_.size() - k); ++k) look_at(groups_[k]);
    look_at_stages_that_differ();
    if (out_.considered == 0) return contradiction();
    replay();
    name_cuts();
    out_.seconds = elapsed();
    return std::move(out_);
  }

 private:
  // Groups beyond this bound cannot enter what is kept.
  double kept_time() const { return out_.best ? out_.best->prediction.step_seconds : 1e300; }

  // Whether nothing of `left` groups with this bound or larger ones is looked at any more.
  bool passed(double bound, size_t left) {
    if (bound >= kept_time()) {
      out_.bounded += static_cast<int64_t>(left);
      return true;
    }
    if (!out_of_time_()) return false;
    leave_out(bound);
    return true;
  }

  // Something with this bound is not looked at.
  void leave_out(double bound) {
    if (out_.best) out_.gap = std::max(out_.gap, 1 - bound / out_.best->prediction.step_seconds);
  }

  // Best bound first: a combination's own is worked out when it is its turn, which it may then have to wait for again.
  void look_at_stages_that_differ() {
    if (space_.splits.empty()) return;
    StageSpace stages(model_, space_);
    const std::vector<StageChoice> choices = stages.below(kept_time());
    using Turn = std::tuple<double, size_t, bool>;  // bound, choice, whether the bound is its own
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (size_t k = 0; k < choices.size(); ++k) turns.emplace(choices[k].bound, k, false);
    effort_ = 0;
    while (!turns.empty()) {
      const auto [bound, k, own] = turns.top();
      if (passed(bound, turns.size())) break;
      if (effort_ >= kMostEffort && out_.best) {
        leave_out(bound);
        break;
      }
      turns.pop();
      Layout l = stages.layout(choices[k]);
      l.cut_names = space_.cut_names;
      if (own) {
        look_at({bound, std::move(l)});
      } else if (std::string why = invalid(problem_, l); !why.empty()) {
        refuse(std::move(why));
      } else {
        turns.emplace(std::max(bound, model_.lower_bound(l)), k, true);
      }
    }
    leave_out(stages.dropped_bound());
  }

  void refuse(std::string why) {
    if (out_.contradictions.size() < 16 && reasons_.insert(why).second) out_.contradictions.push_back(std::move(why));
  }

  void make_groups() {
    int64_t devices = problem_.devices();
    for (int64_t tensor : space_.tensor)
      for (int64_t pipeline : space_.pipeline)
        for (int64_t context : space_.context)
          for (int64_t expert : space_.expert) {
            int64_t inner = tensor * pipeline * context * expert;
            const bool differ = !space_.stages.empty();  // how many devices they take is checked where they are pinned
            if (!differ &&
                (inner > devices || devices % inner != 0 || (space_.data && *space_.data != devices / inner))) {
              refuse(cat("tensor ", tensor, " x pipeline ", pipeline, " x context ", context, " x expert ", expert,
                         space_.data ? cat(" x data ", *space_.data) : "", " does not make ", devices, " devices"));
              continue;
            }
            Layout l;
            l.tensor = tensor, l.pipeline = pipeline, l.context = context, l.expert = expert;
            l.data = differ ? space_.data.value_or(1) : devices / inner;
            l.stages = space_.stages, l.cut_names = space_.cut_names;
            add_groups(l);
          }
  }

  // Whether a stage has more than one rank along the tensor axis, or more than one that could share states.
  static bool any_stage(const Layout& l, bool (*holds)(const Layout&)) {
    if (l.stages.empty()) return holds(l);
    for (int64_t s = 0; s < l.pipeline; ++s) {
      if (holds(l.of_stage(s))) return true;
    }
    return false;
  }

  void add_groups(Layout l) {
    const Workload& w = *problem_.workload;
    const bool tensor = any_stage(l, [](const Layout& s) { return s.tensor > 1; });
    for (int64_t micro : space_.micro_batch) {
      l.micro_batch = micro;
      if (std::string why = invalid(problem_, l); !why.empty()) {
        refuse(std::move(why));
        continue;
      }
      if (w.samples < static_cast<double>(micro) && w.whole_batches) continue;
      for (bool sequence : space_.sequence_parallel) {
        if (!tensor && sequence && space_.sequence_parallel.size() > 1) continue;
        for (RecomputeMode recompute : space_.recompute) {
          l.sequence_parallel = sequence && tensor, l.recompute = recompute;
          groups_.push_back({model_.lower_bound(l), l});
        }
      }
    }
  }

  // Why pinned cuts are none of the layout's; empty where they are, or none are pinned.
  std::string other_parts(const Layout& l) const {
    const int64_t parts = static_cast<int64_t>(space_.cuts.size()), wanted = l.pipeline * l.interleave;
    if (parts == 0 || parts == wanted) return "";
    return cat("pin cuts: ", parts - 1, " cuts make ", parts, " parts, and pipeline ", l.pipeline, " x interleave ",
               l.interleave, " asks for ", wanted);
  }

  void look_at(const Group& group) {
    Layout l = group.layout;
    const bool shares = any_stage(l, [](const Layout& s) { return s.data * s.expert * s.context > 1; });
    if (searched(l) && !may_fit(l)) {
      ++out_.unfit;
      return;
    }
    for (PipelineSchedule schedule : space_.schedule) {
      bool interleaved = schedule == PipelineSchedule::kInterleaved;
      if (l.pipeline == 1 && schedule != space_.schedule.front()) continue;
      // As fast as 1f1b, with more in memory.
      if (searched(l) && schedule == PipelineSchedule::kGpipe && space_.schedule.size() > 1) continue;
      std::vector<int64_t> depths = interleaved && l.pipeline > 1 ? space_.interleave : std::vector<int64_t>{1};
      for (int64_t depth : depths) {
        l.schedule = schedule, l.interleave = depth;
        if (searched(l) && depth > kMostInterleaveApart && depths.size() > 1) break;
        if (searched(l) && space_.cuts.empty() && (++effort_, model_.balanced_bound(l) >= kept_time())) continue;
        std::string why = invalid(problem_, l);
        if (why.empty()) why = other_parts(l);
        if (!why.empty()) {
          refuse(std::move(why));
          continue;
        }
        for (int zero : space_.zero) {
          if (zero > 0 && !shares && space_.zero.size() > 1) continue;
          if (zero >= 2 && l.pipeline > 1 && space_.zero.size() > 1) continue;  // gathers of every micro-batch
          bool fits = false;  // then nothing is gained by offloading more
          for (size_t k = 0; k < space_.offload.size() && !fits; ++k) {
            l.zero = zero, l.zero_group = space_.zero_group, l.offload = space_.offload[k];
            l.reshard_after_forward = space_.reshard_after_forward;
            fits = consider(l);
          }
        }
      }
    }
  }

  // Whether stages fit, wherever they are cut, with the choices that leave least in memory.
  bool may_fit(Layout l) {
    l.zero = std::min(1, space_.zero.back()), l.zero_group = space_.zero_group;
    if (space_.zero.size() == 1) l.zero = space_.zero[0];
    return std::any_of(space_.offload.begin(), space_.offload.end(), [&](OffloadMode offload) {
      l.offload = offload;
      return ++effort_, model_.can_fit(l);
    });
  }

  // Whether the stages differ without a pin.
  bool searched(const Layout& l) const { return !l.stages.empty() && space_.stages.empty(); }

  // Blocks evenly, and balanced by time where cuts are open. On devices that differ, where what is balanced does not
  // fit, also balanced among what fits. Whether any of them fits.
  bool consider(Layout l) {
    const bool mixed = problem_.cluster->groups.size() > 1 || searched(l);
    bool fits = false;
    l.cuts = space_.cuts;
    if (searched(l) && l.interleave == 1 && l.cuts.empty() && !model_.can_fit(l)) {
      ++out_.unfit, ++effort_;
      return false;
    }
    if (!searched(l) || !l.cuts.empty()) {
      if (!l.cuts.empty() && l.cuts == model_.even_cuts(l)) l.cuts.clear();
      fits = take(l);
    }
    const bool open = l.pipeline > 1 && space_.cuts.empty() &&
                      (searched(l) || (l.interleave == 1 && (mixed || !space_.ranges.pipeline.pinned)));
    if (!open) return fits;
    const std::vector<int>& cuts = model_.balanced_cuts(l);
    if (!searched(l) && cuts == model_.even_cuts(l)) return fits;
    l.cuts = cuts;
    if (take(l)) return true;
    if (l.interleave > 1 || !mixed) return fits;
    l.cuts = model_.fitting_cuts(l);
    return (!l.cuts.empty() && model_.bound(l, l.cuts) < kept_time() && take(l)) || fits;
  }

  // Prices it and keeps it where it is good; whether it fits.
  bool take(const Layout& l) {
    Candidate c{l, model_.predict(l, false)};
    const bool fits = c.prediction.fits;
    ++out_.considered, ++effort_;
    if (!fits) {
      ++out_.unfit;
      if (!out_.nearest || c.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = c;
    } else if (!out_.best || order(c) < order(*out_.best)) {
      out_.best = c;
    }
    auto [at, fresh] = families_.try_emplace(family(c.layout), c);
    if (fresh) return fits;
    const Candidate& old = at->second;
    bool better = c.prediction.fits != old.prediction.fits ? c.prediction.fits
                  : c.prediction.fits                      ? order(c) < order(old)
                                                           : c.prediction.missing_bytes < old.prediction.missing_bytes;
    if (better) at->second = std::move(c);
    return fits;
  }

  void replay() {
    for (auto& [key, c] : families_) out_.others.push_back(std::move(c));
    std::sort(out_.others.begin(), out_.others.end(), [](const Candidate& a, const Candidate& b) {
      if (a.prediction.fits != b.prediction.fits) return a.prediction.fits;
      return order(a) < order(b);
    });
    if (out_.others.size() > options_.keep) out_.others.resize(options_.keep);
    for (size_t k = 0; k < out_.others.size() && k < kReplayed; ++k)
      out_.others[k].prediction = model_.predict(out_.others[k].layout, true);
    if (out_.nearest) out_.nearest->prediction = model_.predict(out_.nearest->layout, true);
    if (!out_.best) return;
    out_.best->prediction = model_.predict(out_.best->layout, true);
    for (const Candidate& c : out_.others) {
      if (c.prediction.fits && order(c) < order(*out_.best)) out_.best = c;
    }
    std::erase_if(out_.others, [&](const Candidate& c) { return c.layout == out_.best->layout; });
  }

  // So that what is compiled from a plan has the stages that were priced.
  void name_cuts() {
    std::map<std::vector<int>, std::vector<std::string>> known;
    auto name = [&](Layout& l) {
      if (l.pipeline == 1 || !l.cut_names.empty()) return;
      const std::vector<int> parts = l.cuts.empty() ? model_.even_cuts(l) : l.cuts;
      auto [at, fresh] = known.try_emplace(parts);
      if (fresh) at->second = names_of_cuts(*problem_.workload, parts);
      l.cut_names = at->second;
    };
    if (out_.best) name(out_.best->layout);
    if (out_.nearest) name(out_.nearest->layout);
    for (Candidate& c : out_.others) name(c.layout);
  }

  absl::Status contradiction() const {
    std::string all;
    for (size_t k = 0; k < out_.contradictions.size() && k < 4; ++k) append(all, k ? "; " : "", out_.contradictions[k]);
    return absl::InvalidArgumentError(cat("no layout is possible on ", problem_.devices(),
                                          " devices with a global batch of ", problem_.global_batch, ": ", all));
  }

  CostModel& model_;
  const Problem& problem_;
  const SearchOptions& options_;
  Space space_;
  std::vector<Group> groups_;
  std::map<Family, Candidate> families_;
  std::set<std::string> reasons_;
  std::function<bool()> out_of_time_;
  int64_t effort_ = 0;
  SearchResult out_;
};

}  // namespace

absl::StatusOr<SearchResult> search(CostModel& model, const SearchOptions& options) {
  return Search(model, options).run();
}

std::string gigabytes(double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); }

std::string explain_missing(const Candidate& c) {
  const Prediction& p = c.prediction;
  const MemoryParts& m = p.memory[static_cast<size_t>(p.worst_stage)];
  std::string text =
      cat("needs ", gigabytes(m.total()), " of ", gigabytes(p.capacity[static_cast<size_t>(p.worst_stage)]),
          " (parameters ", gigabytes(m.parameters), ", gradients ", gigabytes(m.gradients), ", optimizer ",
          gigabytes(m.optimizer), ", activations ", gigabytes(m.activations), ", transient ", gigabytes(m.transient),
          ", reserve ", gigabytes(m.reserve),
          m.communicators > 0 ? cat(", more communicators ", gigabytes(m.communicators)) : "", ")");
  if (p.missing_bytes <= 0) return text;
  int64_t rank = c.layout.first_device(p.worst_stage);
  return cat(gigabytes(p.missing_bytes), " (", static_cast<int64_t>(p.missing_bytes), " bytes) too much on rank ", rank,
             " (stage ", p.worst_stage, " of ", c.layout.pipeline, "): ", text);
}

}  // namespace partita
