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
constexpr int64_t kNoticed = 2 * kSecond, kBeats = 300'000'000;

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds / 100'000'000) / 10; }

std::string signal_text(int signal) { return cat("signal ", signal, " (", ::strsignal(signal), ")"); }

// The moments that a rank's last sign of life is held against.
struct Moments {
  int64_t noticed = 0;  // when the first rank said that it ended; 0 where none did
  int64_t last = 0;     // the last sign of life of all
  int64_t now = 0;
  bool over = false;  // no rank is left
};

Moments moments_of(std::span<const FlightView> ranks, int64_t now, bool over) {
  Moments m{.now = now, .over = over};
  for (const FlightView& v : ranks) {
    if (v.end != FlightEnd::kRunning && v.end != FlightEnd::kClean && (m.noticed == 0 || v.end_time < m.noticed))
      m.noticed = v.end_time;
    m.last = std::max({m.last, v.heartbeat, v.end_time});
  }
  return m;
}

bool is_wordless(const FlightView& v) { return v.end == FlightEnd::kRunning; }

// The letter of its process's state, as in /proc; 0 where it has ended, or is not to be seen from here.
char state_here(const FlightView& v) {
  return v.host_key == host_key() ? process_state(v.process, v.process_start) : '\0';
}

// Of a rank that has not said how it ended.
void judge_wordless(const FlightView& v, const KnownEnd* known, const Moments& m, RankFate& fate) {
  const bool here = v.host_key == host_key();
  const char state = state_here(v);
  const bool alive = known == nullptr && state != '\0';
  const int64_t until = m.noticed != 0 ? m.noticed : m.over ? m.last : m.now, quiet = until - v.heartbeat;
  fate.time = v.heartbeat;
  if (alive && state != 'T' && state != 't' && quiet < kNoticed) return;  // it runs
  if (m.over && m.noticed != 0 && quiet < -kBeats) {
    fate.kind = FateKind::kFollowed;
    fate.cause = "was ended after others had given up";
    return;
  }
  const bool stopped = alive || (known != nullptr && known->by_supervisor);
  const bool before_others = m.noticed != 0 || m.over;
  if (stopped || (before_others && quiet > kNoticed)) {
    if (stopped && quiet < kNoticed && state != 'T' && state != 't') {  // it was ended with the others
      fate.kind = FateKind::kFollowed;
      fate.time = until;
      return;
    }
    fate.kind = FateKind::kSilent;
    fate.cause = cat(stopped ? "is stopped or hangs" : "was stopped, hung or was lost", ": silent for ", seconds(quiet),
                     before_others ? " s before the others ended" : " s");
    return;
  }
  if (!here && known == nullptr && !m.over && quiet < kNoticed) return;
  fate.kind = FateKind::kKilled;
  fate.cause = known != nullptr && known->signal != 0 ? cat("was killed by ", signal_text(known->signal))
               : known != nullptr                     ? cat("ended with code ", known->code, " without a word")
                                                      : "ended without a word (killed, out of memory, or its host)";
}

RankFate judge(const FlightView& v, const KnownEnd* known, const Moments& m) {
  RankFate fate{.rank = v.rank, .host = v.host, .time = v.end_time, .where = v.where(), .waits_for = v.waits_for()};
  switch (v.end) {
    case FlightEnd::kRunning:
      judge_wordless(v, known, m, fate);
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

// The ranks of the root's host beside it, where they are all that it has and fell silent with it, and other hosts did
// not: it is the host, or what is the same for all that run there.
std::vector<int> lost_with(const std::vector<RankFate>& fates, const RankFate& root) {
  if (root.kind != FateKind::kSilent && root.kind != FateKind::kKilled) return {};
  std::vector<int> with;
  bool others = false;
  for (const RankFate& f : fates) {
    const bool shares = (f.kind == FateKind::kSilent || f.kind == FateKind::kKilled) && f.time - root.time < kNoticed;
    if (f.host != root.host) {
      others = others || !shares;
    } else if (!shares) {
      return {};
    } else if (f.rank != root.rank) {
      with.push_back(f.rank);
    }
  }
  return others ? with : std::vector<int>();
}

// The hosts that are a side of every pair of hosts whose ranks waited for each other: the one that was cut off, or the
// two between which there was no network. Where no two did, of every pair of which one waited for the other.
std::set<std::string> cut_off_hosts(const std::vector<RankFate>& fates) {
  std::map<int, std::string> host;
  for (const RankFate& f : fates) host[f.rank] = f.host;
  std::set<std::pair<std::string, std::string>> waits, mutual;
  for (const RankFate& f : fates) {
    for (const int peer : f.waits_for) {
      if (const auto at = host.find(peer); at != host.end() && at->second != f.host) waits.emplace(f.host, at->second);
    }
  }
  for (const auto& [from, to] : waits) {
    if (waits.contains({to, from})) mutual.emplace(from, to);
  }
  std::optional<std::set<std::string>> sides;
  for (const auto& [from, to] : mutual.empty() ? waits : mutual) {
    if (!sides) sides = std::set<std::string>{from, to};
    std::erase_if(*sides, [&](const std::string& h) { return h != from && h != to; });
  }
  return sides.value_or(std::set<std::string>());
}

std::vector<int> ranks_on(const std::vector<RankFate>& fates, const std::string& host) {
  std::vector<int> ranks;
  for (const RankFate& f : fates) {
    if (f.host == host) ranks.push_back(f.rank);
  }
  return ranks;
}

std::optional<size_t> first_cause(const std::vector<RankFate>& fates) {
  std::optional<size_t> root;
  for (size_t k = 0; k < fates.size(); ++k) {
    if (is_cause(fates[k]) && (!root || fates[k].time < fates[*root].time)) root = k;
  }
  for (size_t k = 0; k < fates.size() && !root; ++k) {
    if (fates[k].kind == FateKind::kTold) root = k;
  }
  return root;
}

// Where nobody is a cause by itself: who held up the others.
void find_holder(std::vector<RankFate>& fates, std::optional<size_t>& root, Diagnosis& d) {
  root = most_awaited(fates);
  if (root) {
    fates[*root].kind = FateKind::kHangs;
    fates[*root].cause = "did not come: the others waited for it";
    return;
  }
  d.awaited = awaited_elsewhere(fates);
  const std::set<std::string> hosts = d.awaited.empty() ? cut_off_hosts(fates) : std::set<std::string>();
  if (hosts.empty()) return;
  d.with = ranks_on(fates, *hosts.begin());
  const int first = d.with.front();
  d.with.erase(d.with.begin());
  root = static_cast<size_t>(
      std::find_if(fates.begin(), fates.end(), [&](const RankFate& f) { return f.rank == first; }) - fates.begin());
  fates[*root].kind = FateKind::kCutOff;
  fates[*root].cause = hosts.size() == 1
                           ? "and the other hosts waited for each other: it was cut off"
                           : cat("and ", name_ranks(ranks_on(fates, *hosts.rbegin())), " on host ",
                                 quote(*hosts.rbegin()), " waited for each other: one of them was cut off");
}

}  // namespace

Diagnosis diagnose(std::span<const FlightView> ranks, std::span<const KnownEnd> known, int64_t now, RunState state) {
  std::vector<RankFate> fates;
  const bool gone = known.empty() && std::all_of(ranks.begin(), ranks.end(), [](const FlightView& v) {
                      return !is_wordless(v) || (v.host_key == host_key() && state_here(v) == '\0');
                    });
  const Moments m = moments_of(ranks, now, state == RunState::kIsOver || gone);
  for (const FlightView& v : ranks) {
    const auto end = std::find_if(known.begin(), known.end(), [&](const KnownEnd& k) { return k.rank == v.rank; });
    fates.push_back(judge(v, end == known.end() ? nullptr : &*end, m));
  }
  Diagnosis d;
  d.together = m.over && fates.size() > 1 &&
               std::all_of(fates.begin(), fates.end(), [](const RankFate& f) { return f.kind == FateKind::kKilled; });
  std::optional<size_t> root = d.together ? std::nullopt : first_cause(fates);
  const bool some_followed =
      std::any_of(fates.begin(), fates.end(), [](const RankFate& f) { return f.kind == FateKind::kFollowed; });
  if (root && known.empty()) d.with = lost_with(fates, fates[*root]);
  if (!d.with.empty())
    fates[*root].cause =
        fates[*root].kind == FateKind::kKilled
            ? "ended at once without a word: the host was lost, or all that ran there was killed"
            : cat("fell silent at once, ", seconds((m.noticed != 0 ? m.noticed : m.last) - fates[*root].time),
                  " s before the others ended: the host was lost, stopped or cut off");
  if (!root && some_followed) find_holder(fates, root, d);
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
  if (root) {
    std::vector<int> ranks = {root->rank};
    ranks.insert(ranks.end(), with.begin(), with.end());
    std::sort(ranks.begin(), ranks.end());
    return cat(name_ranks(ranks), " on host ", quote(root->host), " ", root->cause, "; ", root->where);
  }
  if (together)
    return cat("all ", others.size(), " ranks ended at once without a word: who started them was ended, or all was; ",
               others.front().where);
  if (awaited.empty()) return "no rank failed";
  return cat(name_ranks(awaited), " did not come, of which there is no record here: the others waited for ",
             awaited.size() == 1 ? "it" : "them");
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
  const bool shared = std::find(with.begin(), with.end(), fate.rank) != with.end();
  const bool follows = root && !shared && fate.kind != FateKind::kTold && fate.time >= root->time;
  append(text, follows ? cat("followed: lost rank ", root->rank) : fate.cause);
  if (follows && fate.kind == FateKind::kFailed) append(text, "; it ", fate.cause);
  return cat(text, "; ", fate.where);
}

}  // namespace partita::runtime
