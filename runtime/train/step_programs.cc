#include "runtime/train/step_programs.h"

#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {

DataConfig data_of_length(DataConfig data, const std::vector<LengthPart>& lengths, size_t k) {
  data.length = {.own = lengths[k].length,
                 .shorter = k > 0 ? lengths[k - 1].length : 0,
                 .largest = lengths.back().length,
                 .turn = static_cast<int64_t>(k),
                 .turns = static_cast<int64_t>(lengths.size())};
  data.sample_offset = 0;  // the schedule knows the place
  return data;
}

LengthSchedule length_schedule(const std::vector<const DataSource*>& sources) {
  std::vector<LengthSchedule::Share> shares;
  for (const DataSource* s : sources) {
    const bool own = s->has_lengths();  // else lengths take turns
    shares.push_back({own ? s->samples_per_epoch() : 1, own ? s->global_batch() : 1});
  }
  return LengthSchedule(std::move(shares));
}

StepPrograms::StepPrograms(const std::vector<BatchPhase>& phases, const std::vector<LengthPart>& lengths, Executor& own,
                           Communicator* communicator, int threads)
    : lengths_(lengths), own_(own), communicator_(communicator), threads_(threads) {
  for (const BatchPhase& p : phases) phases_.push_back({p.from, p.samples, &p.programs});
  if (phases_.empty()) phases_.push_back({0, own.program().samples_per_step, nullptr});
}

size_t StepPrograms::phase(int64_t step) const {
  size_t k = 0;
  while (k + 1 < phases_.size() && phases_[k + 1].from <= step) ++k;
  return k;
}

int64_t StepPrograms::end(int64_t step) const {
  const size_t k = phase(step);
  return k + 1 < phases_.size() ? phases_[k + 1].from : std::numeric_limits<int64_t>::max();
}

std::string StepPrograms::changes(int64_t step) const {
  std::string text;
  for (size_t k = phase(step) + 1; k < phases_.size(); ++k)
    append(text, "; ", phases_[k].samples, " samples from step ", phases_[k].from, " on");
  for (size_t k = lengths_.size(); k-- > 0;)
    append(text, k + 1 < lengths_.size() ? ", " : "; ", lengths_[k].samples, " of length ", lengths_[k].length);
  return text;
}

std::string StepPrograms::fingerprint() const {
  std::string all;
  for (const auto& input : inputs_) {
    if (input->source().fingerprint().empty()) return "";
    append(all, all.empty() ? "" : "; ", input->source().fingerprint());
  }
  return all;
}

std::vector<std::string> StepPrograms::told() const {
  std::vector<std::string> lines = inputs_.back()->source().told();
  for (size_t k = 0; k < lengths_.size() && inputs_[k]->source().has_lengths(); ++k)
    lines.push_back(cat("length ", lengths_[k].length, ": ", inputs_[k]->source().samples_per_epoch(), " samples of ",
                        k == 0 ? 1 : lengths_[k - 1].length + 1, " to ", lengths_[k].length, " tokens"));
  return lines;
}

absl::StatusOr<std::unique_ptr<Executor>> StepPrograms::create(const LoadedPrograms& programs) const {
  return Executor::create(
      programs.of(own_.rank()), communicator_,
      {.threads = threads_, .states_of = &own_, .shares_memory = true, .recorder = own_.recorder()});
}

absl::Status StepPrograms::enter(int64_t step) {
  const size_t k = phase(step);
  if (k == now_) return absl::OkStatus();
  others_.clear(), executors_.clear();
  std::vector<const LoadedPrograms*> all;  // null, or empty: the run's own
  for (const LengthPart& part : lengths_) all.push_back(&part.programs);
  if (all.empty()) all.push_back(phases_[k].programs);
  for (const LoadedPrograms* programs : all) {
    executors_.push_back(&own_);
    if (programs == nullptr || programs->empty()) continue;
    PARTITA_ASSIGN_OR_RETURN(auto other, create(*programs));
    executors_.back() = other.get();
    others_.push_back(std::move(other));
  }
  now_ = k;
  return absl::OkStatus();
}

absl::Status StepPrograms::open(int64_t step, const DataConfig& data) {
  inputs_.clear();
  PARTITA_RETURN_IF_ERROR(enter(step));
  std::vector<const DataSource*> sources;
  for (size_t k = 0; k < executors_.size(); ++k) {
    PARTITA_ASSIGN_OR_RETURN(
        inputs_.emplace_back(),
        InputStage::open(lengths_.empty() ? data : data_of_length(data, lengths_, k), *executors_[k]));
    sources.push_back(&inputs_.back()->source());
  }
  chosen_ = 0;
  if (lengths_.empty()) return absl::OkStatus();
  const auto samples = [](const DataSource* s) { return s->samples_per_epoch(); };
  if (std::all_of(sources.begin(), sources.end(), [&](const DataSource* s) { return samples(s) == 0; }))
    return absl::InvalidArgumentError("the data hold no sample");
  schedule_ = length_schedule(sources);
  const int64_t each = this->samples(step);
  base_ = data.sample_offset / each - (data.sample_offset % each < 0 ? 1 : 0);
  return absl::OkStatus();
}

StepPrograms::Place StepPrograms::place(int64_t batch) const {
  if (lengths_.empty()) return {0, batch};
  const LengthSchedule::Turn turn = schedule_.at(base_ + batch);
  return {turn.length, turn.batch};
}

void StepPrograms::choose(int64_t batch) { chosen_ = place(batch).length; }

absl::StatusOr<Batch> StepPrograms::take(int64_t batch) { return inputs().take(place(batch).batch); }

bool StepPrograms::read_ahead(int64_t batch) const {
  const Place at = place(batch);
  return inputs_[at.length]->read_ahead(at.batch);
}

absl::Status StepPrograms::upload_ahead(int64_t batch) {
  const Place at = place(batch);
  return inputs_[at.length]->upload_ahead(at.batch);
}

std::string StepPrograms::describe_lengths() const {
  std::string text = lengths_.empty() ? "" : " lengths";
  for (const LengthPart& part : lengths_) append(text, " ", part.length);
  return text;
}

int64_t StepPrograms::epoch_samples() const {
  int64_t samples = 0;
  for (const auto& input : inputs_) {
    if (input->source().samples_per_epoch() == kUnlimited) return 0;
    samples += input->source().samples_per_epoch();
  }
  return samples;
}

bool StepPrograms::holds(int64_t batch) const {
  const Place at = place(batch);
  return inputs_[at.length]->source().check_steps(at.batch, 1).ok();
}

absl::Status StepPrograms::start(int64_t first, int64_t end) {
  for (size_t k = 0; k < inputs_.size(); ++k) {
    const auto own = [&](int64_t batch) { return lengths_.empty() ? batch : schedule_.before(k, base_ + batch); };
    PARTITA_RETURN_IF_ERROR(inputs_[k]->start(own(first), own(end)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StepPrograms::end_of_data(int64_t first, const DataConfig& data) const {
  const DataSource& source = inputs_.back()->source();
  const int64_t epochs = std::max<int64_t>(data.epochs, 1);
  if (source.samples_per_epoch() == kUnlimited) return absl::InvalidArgumentError("the data have no end; say --steps");
  if (!lengths_.empty()) {
    const int64_t all =
        source.has_lengths() ? schedule_.batches(epochs) : source.samples_per_epoch() * epochs / source.global_batch();
    if (all == 0)
      return absl::InvalidArgumentError(cat("too few samples: no length has enough of them for a step", changes(first),
                                            "; give more, or make "
                                            "batch.global smaller"));
    return first + std::max<int64_t>(0, all - base_ - first);
  }
  const int64_t all = source.samples_per_epoch() * epochs;
  if (all < samples(first)) PARTITA_RETURN_IF_ERROR(source.check_steps(0, 1));
  int64_t left = std::max<int64_t>(0, all - data.sample_offset - first * samples(first));
  for (; left / samples(first) > end(first) - first; first = end(first)) left -= (end(first) - first) * samples(first);
  return first + left / samples(first);
}

}  // namespace partita::runtime
