#include "partitioner/planner/search/shortlist.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr size_t kReplayed = 8, kMostContradictions = 16;

}  // namespace

bool Shortlist::take(Candidate c) {
  const Layout& l = c.layout;
  ++out_.considered;
  const bool fits = c.prediction.fits;
  if (fits || is_doubtful(c.prediction)) {
    PricedLayout p = priced(c.prediction.step_seconds, c.prediction, l);
    if (!refusals_.covers(p)) {
      if (fits) fastest_ = std::min(fastest_, p.seconds);
      (fits ? fit_ : doubtful_).push_back(std::move(p));
    }
  }
  if (fits) return true;
  ++out_.unfit;
  if (!out_.nearest || c.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = c;
  auto [at, fresh] = unfit_.try_emplace(family(c.layout), c);
  if (!fresh && c.prediction.missing_bytes < at->second.prediction.missing_bytes) at->second = std::move(c);
  return false;
}

const Layout* Shortlist::fastest_layout() const {
  const auto at = std::ranges::min_element(fit_, before);
  return at == fit_.end() ? nullptr : &at->layout;
}

void Shortlist::contradict(std::string why, bool first) {
  if (!reasons_.insert(why).second) return;
  std::vector<std::string>& all = out_.contradictions;
  if (first) {
    all.insert(all.begin(), std::move(why));
  } else if (all.size() < kMostContradictions) {
    all.push_back(std::move(why));
  }
}

bool Shortlist::is_doubtful(const Prediction& p) const {
  return options_.allocate && p.missing_bytes <= kCountError * p.room(static_cast<size_t>(p.worst_stage));
}

void Shortlist::choose() {
  const auto families = best_of_families(fit_);
  std::vector<const PricedLayout*> fit;
  for (const auto& [key, p] : families) fit.push_back(p);
  std::sort(fit.begin(), fit.end(), [](const PricedLayout* a, const PricedLayout* b) { return before(*a, *b); });
  const PricedLayout* first = fit.empty() ? nullptr : fit[0];
  if (fit.size() > options_.keep) fit.resize(options_.keep);
  out_.others.clear();
  for (const PricedLayout* p : fit)
    out_.others.push_back({p->layout, model_.predict(p->layout, out_.others.size() < kReplayed)});
  std::vector<Candidate> unfit;
  for (const auto& [key, c] : unfit_) {
    if (!families.contains(key)) unfit.push_back(c);
  }
  std::ranges::sort(unfit, {}, [](const Candidate& c) { return order(c); });
  for (size_t k = 0; k < unfit.size() && out_.others.size() < options_.keep; ++k) out_.others.push_back(unfit[k]);
  for (size_t k = fit.size(); k < out_.others.size() && k < kReplayed; ++k)
    out_.others[k].prediction = model_.predict(out_.others[k].layout, true);
  if (out_.nearest && out_.nearest->prediction.program_bytes.empty())
    out_.nearest->prediction = model_.predict(out_.nearest->layout, true);
  out_.best.reset();
  for (const PricedLayout& p : doubtful_) {
    if (first == nullptr || before(p, *first)) first = &p;
  }
  if (first == nullptr) return;
  out_.best = {first->layout, model_.predict(first->layout, true)};
  for (size_t k = 0; k < out_.others.size(); ++k) {
    Candidate& c = out_.others[k];
    if (!c.prediction.fits || !(order(c) < order(*out_.best))) continue;
    if (k >= kReplayed) c.prediction = model_.predict(c.layout, true);  // so far by the closed form
    if (order(c) < order(*out_.best)) out_.best = c;
  }
  std::erase_if(out_.others, [&](const Candidate& c) { return c.layout == out_.best->layout; });
}

std::vector<Layout> Shortlist::drop_refused() {
  std::vector<Layout> dropped;
  for (auto* all : {&fit_, &doubtful_}) {
    std::erase_if(*all, [&](const PricedLayout& x) {
      const bool covered = refusals_.covers(x);
      if (covered) dropped.push_back(x.layout);
      return covered;
    });
  }
  fastest_ = kNever;
  for (const PricedLayout& p : fit_) fastest_ = std::min(fastest_, p.seconds);
  return dropped;
}

absl::StatusOr<bool> Shortlist::allocate_best() {
  if (!options_.allocate || !out_.best) return true;
  if (options_.most_allocated > 0 && out_.allocated >= options_.most_allocated) {
    out_.best.reset();
    return true;
  }
  Candidate& best = *out_.best;
  ++out_.allocated;
  auto bytes = options_.allocate(names_.named(best.layout));
  if (bytes.ok()) {
    if (best.prediction.fits && is_another_program(best.prediction, *bytes)) {
      best.prediction.program_bytes = *std::move(bytes);
      return true;
    }
    hold_program(best.prediction, *std::move(bytes));
    if (best.prediction.fits) return true;
    if (!out_.nearest || best.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = best;
    refused_.push_back(best);
    refusals_.add(best.layout, best.prediction);
  } else if (bytes.status().code() == absl::StatusCode::kInternal) {
    return bytes.status();
  } else {
    contradict(cat(describe(best.layout), ": ", bytes.status().message()), true);
    refusals_.add(best.layout);
  }
  return false;
}

SearchResult Shortlist::finish() {
  out_.others.insert(out_.others.end(), refused_.begin(), refused_.end());
  if (out_.best) out_.best->layout = names_.named(std::move(out_.best->layout));
  if (out_.nearest) out_.nearest->layout = names_.named(std::move(out_.nearest->layout));
  for (Candidate& c : out_.others) c.layout = names_.named(std::move(c.layout));
  return std::move(out_);
}

}  // namespace partita
