// A rank that ended by itself or without a word is a cause; one that ended because of another is not. Of several causes
// the earliest counts. Where nobody is a cause, the first that was told to stop is, or the others gave up on someone
// who is still there: the one who is silent, else the one who is waited for and waits for nobody.
#include "runtime/record/diagnosis.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "runtime/record/process.h"

namespace partita::runtime {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// A death is noticed sooner than this, and heartbeats come every tenth of a second.
constexpr int64_t kNoticed = 2 * kSecond;

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds / 100'000'000) / 10; }

std::string signal_text(int signal) { return cat("signal ", signal, " (", ::strsignal(signal), ")"); }

// When the first rank said that it ended, 0 where none did.
int64_t first_end(std::span<const FlightView> ranks) {
  int64_t first = 0;
  for (const FlightView& v : ranks) {
    if (v.end != FlightEnd::kRunning && v.end != FlightEnd::kClean && (first == 0 || v.end_time < first))
      first = v.end_time;
  }
  return first;
}

// Of a rank that has not said how it ended.
void judge_wordless(const FlightView& v, const KnownEnd* known, int64_t noticed, int64_t now, RankFate& fate) {
  const bool here = v.host_key == host_key();
  const char state = here ? process_state(v.process, v.process_start) : '\0';
  const bool alive = known == nullptr && here && state != '\0';
  const int64_t until = noticed != 0 ? noticed : now, quiet = until - v.heartbeat;
  fate.time = v.heartbeat;
  if (alive && state != 'T' && state != 't' && quiet < kNoticed) return;  // it runs
  const bool stopped = alive || (known != nullptr && known->by_supervisor);
  if (stopped || (noticed != 0 && quiet > kNoticed)) {
    if (stopped && quiet < kNoticed && state != 'T' && state != 't') {  // it was ended with the others
      fate.kind = FateKind::kFollowed;
      fate.time = until;
      return;
    }
    fate.kind = FateKind::kSilent;
    fate.cause = cat(stopped ? "is stopped or hangs" : "was stopped, hung or was lost", ": silent for ", seconds(quiet),
                     noticed != 0 ? " s before the others ended" : " s");
    return;
  }
  if (!here && known == nullptr && quiet < kNoticed) return;
  fate.kind = FateKind::kKilled;
  fate.cause = known != nullptr && known->signal != 0 ? cat("was killed by ", signal_text(known->signal))
               : known != nullptr                     ? cat("ended with code ", known->code, " without a word")
                                                      : "ended without a word (killed, out of memory, or its host)";
}

RankFate judge(const FlightView& v, const KnownEnd* known, int64_t noticed, int64_t now) {
  RankFate fate{.rank = v.rank, .host = v.host, .time = v.end_time, .where = v.where(), .waits_for = v.waits_for()};
  switch (v.end) {
    case FlightEnd::kRunning:
      judge_wordless(v, known, noticed, now, fate);
      break;
    case FlightEnd::kClean:
      fate.kind = FateKind::kEndedWell;
      break;
    case FlightEnd::kFailed:
      fate.kind = FateKind::kFailed;
      fate.cause = cat("failed with code ", v.end_code, ": ", v.message);
      break;
    case FlightEnd::kFollowed:
      fate.kind = FateKind::kFollowed;
      fate.cause = v.message;
      break;
    case FlightEnd::kSignal:
      fate.kind = FateKind::kCrashed;
      fate.cause = cat("crashed with ", signal_text(v.end_code));
      break;
    case FlightEnd::kTold:
      fate.kind = FateKind::kTold;
      fate.cause = cat("was told to stop by ", signal_text(v.end_code));
      break;
  }
  return fate;
}

bool is_cause(const RankFate& f) {
  return f.kind == FateKind::kFailed || f.kind == FateKind::kCrashed || f.kind == FateKind::kKilled ||
         f.kind == FateKind::kSilent;
}

// The rank that most others wait for, of those that wait for nobody.
std::optional<size_t> most_awaited(const std::vector<RankFate>& fates) {
  std::map<int, int> waiting;
  for (const RankFate& f : fates) {
    for (int peer : f.waits_for) ++waiting[peer];
  }
  std::optional<size_t> best;
  int most = 0;
  for (size_t k = 0; k < fates.size(); ++k) {
    const auto at = waiting.find(fates[k].rank);
    if (at != waiting.end() && at->second > most && fates[k].waits_for.empty()) best = k, most = at->second;
  }
  return best;
}

// Whoever waits for a rank of this host may be held up by what that one waits for.
std::vector<int> awaited_elsewhere(const std::vector<RankFate>& fates) {
  std::set<int> awaited;
  for (const RankFate& f : fates) awaited.insert(f.waits_for.begin(), f.waits_for.end());
  for (const RankFate& f : fates) awaited.erase(f.rank);
  return {awaited.begin(), awaited.end()};
}

}  // namespace

Diagnosis diagnose(std::span<const FlightView> ranks, std::span<const KnownEnd> known, int64_t now) {
  std::vector<RankFate> fates;
  const int64_t noticed = first_end(ranks);
  for (const FlightView& v : ranks) {
    const auto end = std::find_if(known.begin(), known.end(), [&](const KnownEnd& k) { return k.rank == v.rank; });
    fates.push_back(judge(v, end == known.end() ? nullptr : &*end, noticed, now));
  }
  std::optional<size_t> root;
  for (size_t k = 0; k < fates.size(); ++k) {
    if (is_cause(fates[k]) && (!root || fates[k].time < fates[*root].time)) root = k;
  }
  for (size_t k = 0; k < fates.size() && !root; ++k) {
    if (fates[k].kind == FateKind::kTold) root = k;
  }
  const bool some_followed =
      std::any_of(fates.begin(), fates.end(), [](const RankFate& f) { return f.kind == FateKind::kFollowed; });
  if (!root && some_followed) {
    root = most_awaited(fates);
    if (root) {
      fates[*root].kind = FateKind::kHangs;
      fates[*root].cause = "did not come: the others waited for it";
    }
  }
  Diagnosis d;
  if (!root && some_followed) d.awaited = awaited_elsewhere(fates);
  for (size_t k = 0; k < fates.size(); ++k) {
    if (k == root) {
      d.root = fates[k];
    } else {
      d.others.push_back(fates[k]);
    }
  }
  return d;
}

std::string Diagnosis::root_text() const {
  if (!root && awaited.empty()) return "no rank failed";
  if (!root)
    return cat(name_ranks(awaited), " did not come, of which there is no record here: the others waited for ",
               awaited.size() == 1 ? "it" : "them");
  return cat("rank ", root->rank, " on host ", quote(root->host), " ", root->cause, "; ", root->where);
}

std::string Diagnosis::other_text(const RankFate& fate) const {
  std::string text = cat("rank ", fate.rank, ": ");
  switch (fate.kind) {
    case FateKind::kRuns:
      return cat(text, "runs; ", fate.where);
    case FateKind::kEndedWell:
      return cat(text, "ended well");
    default:
      break;
  }
  const bool follows = root && fate.kind != FateKind::kTold && fate.time >= root->time;
  append(text, follows ? cat("followed: lost rank ", root->rank) : fate.cause);
  if (follows && fate.kind == FateKind::kFailed) append(text, "; it ", fate.cause);
  return cat(text, "; ", fate.where);
}

}  // namespace partita::runtime
