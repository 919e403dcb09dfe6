// Several sources in fixed proportions. Positions go in blocks of 1024: a pattern, the same for each block, says whose
// turn each position is, spread as evenly as the weights allow; the k-th turn of a source is its sample k modulo its
// size. So any position is found at once and nothing is remembered. An epoch is as many positions as the sources have
// samples; the next one goes through the same pattern, with each source's turns counted on.
//   weights 3 and 1, block of 4: a a b a | a a b a | …
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/cat.h"
#include "base/mix64.h"
#include "base/status.h"
#include "runtime/data/sample_reader.h"

namespace partita::runtime {
namespace {

constexpr int64_t kBlock = 1024;

struct Turn {
  size_t source;
  int64_t index;  // of the source's turns within the block
};

// Each source's positions of a block, at least one; the largest remainders get what rounding leaves.
std::vector<int64_t> shares(const std::vector<double>& weights) {
  double total = 0;
  for (double w : weights) total += w;
  std::vector<int64_t> share;
  std::vector<std::pair<double, size_t>> rest;
  int64_t given = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    const double exact = weights[s] / total * kBlock;
    share.push_back(std::max<int64_t>(1, static_cast<int64_t>(exact)));
    rest.emplace_back(exact - static_cast<double>(share.back()), s);
    given += share.back();
  }
  std::sort(rest.begin(), rest.end(), [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  });
  for (size_t k = 0; given < kBlock; k = (k + 1) % rest.size(), ++given) ++share[rest[k].second];
  while (given > kBlock) {  // many sources of hardly any weight
    --*std::max_element(share.begin(), share.end());
    --given;
  }
  return share;
}

// At each position the source that is furthest behind its share.
std::vector<Turn> pattern(const std::vector<int64_t>& share) {
  std::vector<Turn> turns;
  std::vector<int64_t> taken(share.size(), 0);
  for (int64_t at = 0; at < kBlock; ++at) {
    size_t next = 0;
    int64_t behind = INT64_MIN;
    for (size_t s = 0; s < share.size(); ++s) {
      const int64_t deficit = share[s] * (at + 1) - taken[s] * kBlock;
      if (deficit > behind && taken[s] < share[s]) behind = deficit, next = s;
    }
    turns.push_back({next, taken[next]++});
  }
  return turns;
}

class MixReader : public SampleReader {
 public:
  MixReader(std::vector<std::unique_ptr<SampleReader>> sources, const std::vector<double>& weights,
            std::string description)
      : sources_(std::move(sources)),
        weights_(weights),
        share_(shares(weights)),
        turns_(pattern(share_)),
        description_(std::move(description)) {
    const int64_t epoch = MixReader::samples(), rest = epoch % kBlock;
    for (const int64_t share : share_) of_epoch_.push_back(epoch / kBlock * share);
    for (int64_t at = 0; at < rest; ++at) ++of_epoch_[turns_[static_cast<size_t>(at)].source];
  }

  // As many as the sources have together; a source of great weight repeats meanwhile, one of little is used up in
  // several epochs.
  int64_t samples() const override {
    int64_t total = 0;
    for (const auto& s : sources_) {
      if (s->samples() == kUnlimited || __builtin_add_overflow(total, s->samples(), &total)) return kUnlimited;
    }
    return total;
  }
  // The widest of its sources' windows.
  int64_t shuffle_window() const override {
    int64_t window = 0;
    for (const auto& s : sources_) window = std::max(window, s->shuffle_window());
    return window;
  }
  void give_up() const override {
    for (const auto& s : sources_) s->give_up();
  }
  bool has_lengths() const override {
    return std::any_of(sources_.begin(), sources_.end(), [](const auto& s) { return s->has_lengths(); });
  }
  int64_t length_of(int64_t position, uint64_t epoch) const override {
    const Turned turn = turn_of(position, epoch);
    return turn.source.length_of(turn.sample, turn.turns);
  }
  std::string describe() const override { return description_; }
  std::string fingerprint() const override {
    std::string all;
    for (const auto& s : sources_) {
      const std::string of_source = s->fingerprint();
      if (of_source.empty()) return "";
      append(all, of_source, "; ");
    }
    return all;
  }
  std::vector<std::string> told() const override {
    std::vector<std::string> all;
    for (const auto& s : sources_) {
      for (std::string& line : s->told()) all.push_back(std::move(line));
    }
    const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    for (size_t s = 0; s < sources_.size(); ++s) {
      const double asked = weights_[s] / total * kBlock;
      if (std::abs(static_cast<double>(share_[s]) - asked) > 0.1 * asked)
        all.push_back(cat(sources_[s]->describe(), ": ", share_[s], " of ", kBlock, " samples; by its weight ", asked));
    }
    return all;
  }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const int64_t first = run.first, count = run.count;
    const size_t bytes = out.size() / static_cast<size_t>(std::max<int64_t>(count, 1));
    for (int64_t k = 0; k < count; ++k) {
      const auto [source, sample, turns] = turn_of(first + k, run.epoch);
      PARTITA_RETURN_IF_ERROR(
          source.read({sample, 1, mix64(run.epoch, turns)}, input, out.subspan(static_cast<size_t>(k) * bytes, bytes)));
    }
    return absl::OkStatus();
  }

  std::string locate(int64_t position, uint64_t epoch) const override {
    const Turned turn = turn_of(position, epoch);
    return turn.source.locate(turn.sample, turn.turns);
  }

 private:
  struct Turned {
    const SampleReader& source;
    int64_t sample;
    uint64_t turns;  // times that all of the source's samples were taken before
  };
  Turned turn_of(int64_t position, uint64_t epoch) const {
    const Turn& turn = turns_[static_cast<size_t>(position % kBlock)];
    const SampleReader& source = *sources_[turn.source];
    const int64_t in_epoch = position / kBlock * share_[turn.source] + turn.index;
    if (source.samples() == kUnlimited) return {source, in_epoch, 0};
    const uint64_t size = static_cast<uint64_t>(source.samples());
    const uint64_t taken = epoch * static_cast<uint64_t>(of_epoch_[turn.source]) + static_cast<uint64_t>(in_epoch);
    return {source, static_cast<int64_t>(taken % size), taken / size};
  }

  std::vector<std::unique_ptr<SampleReader>> sources_;
  std::vector<double> weights_;
  std::vector<int64_t> share_;
  std::vector<Turn> turns_;
  std::vector<int64_t> of_epoch_;  // turns of each source
  std::string description_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_mix_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs) {
  std::vector<std::unique_ptr<SampleReader>> sources;
  std::vector<double> weights;
  for (const WeightedSource& s : config.sources) {
    DataConfig own = s.config;
    own.cache = config.cache, own.length = config.length;
    PARTITA_ASSIGN_OR_RETURN(auto source, open_reader(own, inputs));
    if (config.length.own > 0 && source->has_lengths())
      return absl::InvalidArgumentError(
          cat("data: sources: ", source->describe(),
              ": its samples have lengths of their own, and the model takes "
              "several lengths (bind); then expected one file, or tokens with documents: join or separate"));
    const int64_t samples = source->samples();
    if (samples == 0) {
      return absl::InvalidArgumentError(
          cat("data: sources: ", source->describe(), " holds no whole sample; leave it out"));
    }
    weights.push_back(s.weight > 0 ? s.weight : static_cast<double>(samples));
    sources.push_back(std::move(source));
  }
  const std::string first = sources[0]->describe();
  return std::make_unique<MixReader>(std::move(sources), weights,
                                     cat(config.sources.size(), " sources, the first of them ", first));
}

}  // namespace partita::runtime
