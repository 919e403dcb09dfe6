// Layouts share everything but ZeRO stage, offload, schedule and interleaving in groups; a group's lower bound is its
// compute and tensor communication without bubbles, gathers and updates. Groups are looked at by ascending bound, so
// the search ends where the bound passes the best time found. The best few are replayed by the simulator.
#include "partitioner/search.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>
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
constexpr double kNever = 1e300;
constexpr size_t kRefusals = 3;  // of layouts that divide work alike, before others are judged by them
// A program of so many times what is counted, and what the device has, is not what was counted: the graph spells
// something out that the cost model takes for one op (a copy of an expert's weights for each token). Other layouts
// would not mend that.
constexpr double kAnotherProgram = 32;

struct Group {
  double bound;
  Layout layout;
};

using Family = std::tuple<int64_t, int64_t, int64_t, int64_t, int, std::vector<Layout::StageAxes>>;
Family family(const Layout& l) { return {l.tensor, l.pipeline, l.context, l.expert, l.zero, l.stages}; }

// A total order, so that equal times give the same plan everywhere: simpler layouts first.
auto order(double seconds, const Layout& l) {
  return std::make_tuple(seconds, l.pipeline, l.tensor, l.context, l.expert, l.zero, static_cast<int>(l.offload),
                         static_cast<int>(l.recompute), static_cast<int>(l.schedule), l.interleave, -l.micro_batch,
                         l.sequence_parallel, l.cuts.size(), l.stages, l.cuts);
}

auto order(const Candidate& c) { return order(c.prediction.step_seconds, c.layout); }

// A layout whose program takes at least the memory of `of`'s: it stores as much or more, or keeps more for backward.
bool needs_as_much(const Layout& l, const Layout& of) {
  Layout same = l;
  if (l.schedule == PipelineSchedule::kZeroBubble && of.schedule == PipelineSchedule::k1f1b)
    same.schedule = of.schedule;
  same.zero = of.zero, same.offload = of.offload, same.recompute = of.recompute, same.micro_batch = of.micro_batch;
  return same == of && l.zero <= of.zero && l.offload <= of.offload && l.recompute <= of.recompute &&
         l.micro_batch >= of.micro_batch;
}

// What a program takes beyond the cost model's count is alike for layouts of one kind, whatever they store where.
auto activations_kind(const Layout& l) {
  return std::make_tuple(l.tensor, l.pipeline, l.context, l.expert, l.micro_batch, l.recompute, l.schedule,
                         l.interleave, l.sequence_parallel, l.stages);
}

// And likely is so for layouts that divide the work in the same ways.
auto division_kind(const Layout& l) {
  return std::make_tuple(l.tensor > 1, l.pipeline > 1, l.context > 1, l.expert > 1, l.recompute);
}

// Bytes that a stage has beside the reserve, and the cost model's count of what it takes of them.
double room(const Prediction& p, size_t stage) { return p.capacity[stage] - p.memory[stage].reserve; }
double counted(const Prediction& p, size_t stage) { return p.memory[stage].total() - p.memory[stage].reserve; }

// Holds what its programs were laid out to take against the devices: where it is more, the layout does not fit.
void hold_program(Prediction& p, std::vector<double> bytes) {
  p.program_bytes = std::move(bytes);
  for (size_t s = 0; s < p.program_bytes.size(); ++s) {
    const double over = p.program_bytes[s] - room(p, s);
    if (over <= p.missing_bytes) continue;
    p.missing_bytes = over, p.worst_stage = static_cast<int64_t>(s), p.fits = false;
  }
}

bool is_another(const Prediction& p, const std::vector<double>& bytes) {
  for (size_t s = 0; s < bytes.size(); ++s) {
    if (bytes[s] > kAnotherProgram * std::max(room(p, s), counted(p, s))) return true;
  }
  return false;
}

class Search {
 public:
  Search(CostModel& model, const SearchOptions& options)
      : model_(model), problem_(model.problem()), options_(options) {}

  absl::StatusOr<SearchResult> run() {
    auto start = std::chrono::steady_clock::now();
    auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    PARTITA_ASSIGN_OR_RETURN(space_, layout_space(problem_, options_.pin, options_.recompute, options_.micro));
    out_of_time_ = [this, elapsed] {
      return options_.time_limit > 0 && elapsed() > options_.time_limit && fastest_ < kNever;
    };
    make_groups();
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.bound < b.bound; });
    for (bool found = false; !found;) {
      explore();
      if (out_.considered == 0) return contradiction();
      choose();
      PARTITA_ASSIGN_OR_RETURN(found, lay_out_best());
    }
    if (!out_.best && !out_.nearest) return contradiction();
    out_.others.insert(out_.others.end(), refused_.begin(), refused_.end());
    name_cuts();
    out_.seconds = elapsed();
    return std::move(out_);
  }

 private:
  struct Priced {
    double seconds;
    double left;   // bytes on the fullest stage, by the cost model
    double share;  // that are taken there
    Layout layout;
  };

  Priced priced(double seconds, const Prediction& p, Layout layout) const {
    const size_t worst = static_cast<size_t>(p.worst_stage);
    return {seconds, room(p, worst) - counted(p, worst), counted(p, worst) / room(p, worst), std::move(layout)};
  }

  // Looks at groups until their bound passes the fastest layout that is not refused.
  void explore() {
    out_.bounded = 0, out_.gap = 0;
    while (next_ < groups_.size() && !passed(groups_[next_].bound, groups_.size() - next_)) look_at(groups_[next_++]);
    look_at_stages_that_differ();
  }

  // Whether nothing of `left` groups with this bound or larger ones is looked at any more.
  bool passed(double bound, size_t left) {
    if (bound >= fastest_) {
      out_.bounded += static_cast<int64_t>(left);
      return true;
    }
    if (!out_of_time_()) return false;
    leave_out(bound);
    return true;
  }

  // Something with this bound is not looked at.
  void leave_out(double bound) {
    if (fastest_ < kNever) out_.gap = std::max(out_.gap, 1 - bound / fastest_);
  }

  // Best bound first: a combination's own is worked out when it is its turn, which it may then have to wait for again.
  void look_at_stages_that_differ() {
    if (space_.splits.empty()) return;
    StageSpace stages(model_, space_);
    const std::vector<StageChoice> choices = stages.below(fastest_);
    using Turn = std::tuple<double, size_t, bool>;  // bound, choice, whether the bound is its own
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (size_t k = 0; k < choices.size(); ++k) turns.emplace(choices[k].bound, k, false);
    effort_ = 0;
    while (!turns.empty()) {
      const auto [bound, k, own] = turns.top();
      if (passed(bound, turns.size())) break;
      if (effort_ >= kMostEffort && fastest_ < kNever) {
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
        if (searched(l) && space_.cuts.empty() && (++effort_, model_.balanced_bound(l) >= fastest_)) continue;
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
            l.zero = zero, l.zero_group = zero_group(l), l.offload = space_.offload[k];
            l.reshard_after_forward = space_.reshard_after_forward;
            if (zero > 0 && l.zero_group > 0 && !(why = invalid(problem_, l)).empty()) {  // all else was valid before
              if (reasons_.insert(why).second) out_.contradictions.insert(out_.contradictions.begin(), std::move(why));
              break;
            }
            fits = consider(l);
          }
        }
      }
    }
  }

  int64_t zero_group(const Layout& l) const {
    return space_.zero_group_of_node ? std::gcd(l.data * l.expert, space_.zero_group) : space_.zero_group;
  }

  // Whether stages fit, wherever they are cut, with the choices that leave least in memory.
  bool may_fit(Layout l) {
    l.zero = std::min(1, space_.zero.back()), l.zero_group = zero_group(l);
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
    return (!l.cuts.empty() && model_.bound(l, l.cuts) < fastest_ && take(l)) || fits;
  }

  // Prices it and keeps it where it is good; whether it fits.
  bool take(const Layout& l) {
    Candidate c{l, model_.predict(l, false)};
    ++out_.considered, ++effort_;
    if (c.prediction.fits) {
      Priced p = priced(c.prediction.step_seconds, c.prediction, std::move(c.layout));
      if (std::any_of(dropped_.begin(), dropped_.end(), [&](const auto& refused) { return refused(p); })) return true;
      fastest_ = std::min(fastest_, p.seconds);
      fit_.push_back(std::move(p));
      return true;
    }
    ++out_.unfit;
    if (!out_.nearest || c.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = c;
    auto [at, fresh] = unfit_.try_emplace(family(c.layout), c);
    if (!fresh && c.prediction.missing_bytes < at->second.prediction.missing_bytes) at->second = std::move(c);
    return false;
  }

  // The fastest layout that fits, and the best of each family, of which the first few are replayed.
  void choose() {
    std::map<Family, const Priced*> families;
    const Priced* first = nullptr;
    auto before = [](const Priced& a, const Priced& b) {
      return order(a.seconds, a.layout) < order(b.seconds, b.layout);
    };
    for (const Priced& p : fit_) {
      const Priced*& at = families[family(p.layout)];
      if (at == nullptr || before(p, *at)) at = &p;
      if (first == nullptr || before(p, *first)) first = &p;
    }
    std::vector<const Priced*> fit;
    for (const auto& [key, p] : families) fit.push_back(p);
    std::sort(fit.begin(), fit.end(), [&](const Priced* a, const Priced* b) { return before(*a, *b); });
    if (fit.size() > options_.keep) fit.resize(options_.keep);
    out_.others.clear();
    for (const Priced* p : fit)
      out_.others.push_back({p->layout, model_.predict(p->layout, out_.others.size() < kReplayed)});
    std::vector<Candidate> unfit;
    for (const auto& [key, c] : unfit_) {
      if (!families.contains(key)) unfit.push_back(c);
    }
    std::sort(unfit.begin(), unfit.end(), [](const Candidate& a, const Candidate& b) { return order(a) < order(b); });
    for (size_t k = 0; k < unfit.size() && out_.others.size() < options_.keep; ++k) out_.others.push_back(unfit[k]);
    for (size_t k = fit.size(); k < out_.others.size() && k < kReplayed; ++k)
      out_.others[k].prediction = model_.predict(out_.others[k].layout, true);
    if (out_.nearest && out_.nearest->prediction.program_bytes.empty())
      out_.nearest->prediction = model_.predict(out_.nearest->layout, true);
    out_.best.reset();
    if (first == nullptr) return;
    out_.best = {first->layout, model_.predict(first->layout, true)};
    for (const Candidate& c : out_.others) {
      if (c.prediction.fits && order(c) < order(*out_.best)) out_.best = c;
    }
    std::erase_if(out_.others, [&](const Candidate& c) { return c.layout == out_.best->layout; });
  }

  // Drops a layout whose program does not fit, and those whose programs would not either, judged by it. Laying out
  // takes seconds for large models, so that what is unlikely to fit is not tried.
  void drop_likes_of(const Candidate& refused) {
    const Prediction& p = refused.prediction;
    const Layout& l = refused.layout;
    const size_t worst = static_cast<size_t>(p.worst_stage);
    const double beyond = p.program_bytes[worst] - counted(p, worst);
    auto& ratios = beyond_count_[division_kind(l)];
    ratios.push_back(p.program_bytes[worst] / counted(p, worst));
    const int64_t parts = micro_batches(problem_, l);
    drop([this, l, beyond, parts, &ratios](const Priced& x) {
      const bool accumulates = micro_batches(problem_, x.layout) > 1 || parts == 1;  // else it keeps no f32 gradients
      if (x.layout == l || (accumulates && needs_as_much(x.layout, l))) return true;
      if (activations_kind(x.layout) == activations_kind(l) && x.left < beyond) return true;
      return ratios.size() >= kRefusals && division_kind(x.layout) == division_kind(l) &&
             x.share * *std::min_element(ratios.begin(), ratios.end()) > 1;
    });
  }

  // Such layouts are refused, those too that are found later.
  void drop(std::function<bool(const Priced&)> refused) {
    std::erase_if(fit_, refused);
    dropped_.push_back(std::move(refused));
    fastest_ = kNever;
    for (const Priced& p : fit_) fastest_ = std::min(fastest_, p.seconds);
  }

  // Whether the best layout is one whose program fits, or none is left. Else it is refused, and those with it that need
  // as much.
  absl::StatusOr<bool> lay_out_best() {
    if (!options_.lay_out || !out_.best) return true;
    if (options_.most_laid_out > 0 && out_.laid_out >= options_.most_laid_out) {
      out_.best.reset();
      return true;
    }
    Candidate& best = *out_.best;
    ++out_.laid_out;
    auto bytes = options_.lay_out(named(best.layout));
    if (bytes.ok()) {
      if (is_another(best.prediction, *bytes)) {
        best.prediction.program_bytes = *std::move(bytes);
        return true;
      }
      hold_program(best.prediction, *std::move(bytes));
      if (best.prediction.fits) return true;
      if (!out_.nearest || best.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = best;
      refused_.push_back(best);
    } else if (bytes.status().code() == absl::StatusCode::kInternal) {
      return bytes.status();
    } else {
      out_.contradictions.insert(out_.contradictions.begin(),
                                 cat(describe(best.layout), ": ", bytes.status().message()));
    }
    if (bytes.ok()) {
      drop_likes_of(best);
    } else {
      drop([l = best.layout](const Priced& p) { return p.layout == l; });
    }
    return false;
  }

  // So that what is compiled from a plan has the stages that were priced.
  Layout named(Layout l) {
    if (l.pipeline == 1 || !l.cut_names.empty()) return l;
    const std::vector<int> parts = l.cuts.empty() ? model_.even_cuts(l) : l.cuts;
    auto [at, fresh] = names_.try_emplace(parts);
    if (fresh) at->second = names_of_cuts(*problem_.workload, parts);
    l.cut_names = at->second;
    return l;
  }

  void name_cuts() {
    if (out_.best) out_.best->layout = named(std::move(out_.best->layout));
    if (out_.nearest) out_.nearest->layout = named(std::move(out_.nearest->layout));
    for (Candidate& c : out_.others) c.layout = named(std::move(c.layout));
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
  size_t next_ = 0;  // group to look at
  std::vector<Priced> fit_;
  double fastest_ = kNever;  // of fit_
  std::map<Family, Candidate> unfit_;
  std::vector<Candidate> refused_;  // whose programs do not fit
  std::vector<std::function<bool(const Priced&)>> dropped_;
  // Of refused programs: bytes over the cost model's count.
  std::map<decltype(division_kind(Layout())), std::vector<double>> beyond_count_;
  std::map<std::vector<int>, std::vector<std::string>> names_;  // of cuts
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

namespace {

std::string on_rank(const Candidate& c) {
  const Prediction& p = c.prediction;
  return cat(gigabytes(p.missing_bytes), " (", static_cast<int64_t>(p.missing_bytes), " bytes) too much on rank ",
             c.layout.first_device(p.worst_stage), " (stage ", p.worst_stage, " of ", c.layout.pipeline, "): ");
}

}  // namespace

std::string explain_missing(const Candidate& c) {
  const Prediction& p = c.prediction;
  const size_t worst = static_cast<size_t>(p.worst_stage);
  if (!p.program_bytes.empty() && !p.fits)
    return cat(on_rank(c), "its program needs ", gigabytes(p.program_bytes[worst]), " of the ",
               gigabytes(p.capacity[worst] - p.memory[worst].reserve), " beside the reserve");
  const MemoryParts& m = p.memory[static_cast<size_t>(p.worst_stage)];
  std::string text =
      cat("needs ", gigabytes(m.total()), " of ", gigabytes(p.capacity[static_cast<size_t>(p.worst_stage)]),
          " (parameters ", gigabytes(m.parameters), ", gradients ", gigabytes(m.gradients), ", optimizer ",
          gigabytes(m.optimizer), ", activations ", gigabytes(m.activations), ", transient ", gigabytes(m.transient),
          ", reserve ", gigabytes(m.reserve),
          m.communicators > 0 ? cat(", more communicators ", gigabytes(m.communicators)) : "", ")");
  if (p.missing_bytes <= 0) return text;
  return cat(on_rank(c), text);
}

}  // namespace partita
