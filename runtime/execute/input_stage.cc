#include "runtime/execute/input_stage.h"

#include <algorithm>
#include <cstring>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/program_check.h"

namespace partita::runtime {
namespace {

// Small batches are read further ahead, so that their reader seldom has to be woken.
constexpr int64_t kMostAhead = 16, kSmallBytes = 1 << 20;

bool is_read(const Program& program, const Operand& input) {
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      for (size_t k = 0; k < static_cast<size_t>(step.inputs); ++k) {
        if (begins_in(step.operands[k], input)) return true;
      }
    }
  }
  return false;
}

// What is an input as it is, or its elements in another shape, is read where the input lies.
bool is_handed_out(const Program& program, const Operand& input) {
  return std::any_of(program.outputs.begin(), program.outputs.end(),
                     [&](const ProgramOutput& o) { return begins_in(o.operand, input); });
}

}  // namespace

std::vector<InputSpec> input_specs(const Program& program) {
  std::vector<InputSpec> specs;
  for (const ProgramInput& in : program.inputs) {
    if (in.kind != InputKind::kData) continue;
    InputSpec s{in.name, in.operand.dtype, in.placement.logical, !in.placement.logical.empty(), in.bounds};
    if (s.batched) s.sample_shape.erase(s.sample_shape.begin());
    specs.push_back(std::move(s));
  }
  return specs;
}

absl::StatusOr<std::unique_ptr<InputStage>> InputStage::open(const DataConfig& config, Executor& executor) {
  std::unique_ptr<InputStage> stage(new InputStage(executor, config));
  const Program& program = executor.program();
  PARTITA_ASSIGN_OR_RETURN(stage->source_, DataSource::open(config, input_specs(program), program.samples_per_step));
  int source = 0;
  for (const ProgramInput& in : program.inputs) {
    if (in.kind != InputKind::kData) continue;
    const bool handed_out = is_handed_out(program, in.operand);
    if (handed_out || is_read(program, in.operand)) {
      PARTITA_RETURN_IF_ERROR(stage->add_column(in, source));
      stage->columns_.back().copied |= handed_out;
    }
    ++source;
  }
  const auto& schedule = program.schedule;
  const auto begins =
      std::find_if(schedule.begin(), schedule.end(), [&](const ScheduleEntry& e) { return executor.takes_samples(e); });
  if (begins != schedule.end()) stage->first_staged_ = begins->micro_batch;
  return stage;
}

absl::Status InputStage::start(int64_t first, int64_t end) {
  first_ = first;
  uploaded_ = {};
  if (Device* device = executor_.device(); device != nullptr && !columns_.empty()) {
    std::vector<int64_t> bytes;
    for (const Column& c : columns_) bytes.push_back(operand_bytes(c.input->operand));
    PARTITA_ASSIGN_OR_RETURN(uploads_, device->reserve_uploads(bytes));
  }
  if (feed_ != nullptr) {
    for (const Column& c : columns_) {
      if (feed_->column(c.input->name) < 0)
        return absl::InvalidArgumentError(cat("the batch has nothing for the graph's input ", quote(c.input->name)));
    }
    return absl::OkStatus();
  }
  PARTITA_RETURN_IF_ERROR(source_->check_steps(first, std::max<int64_t>(end - first, 0)));
  std::vector<SampleRange> ranges;
  for (int64_t m = 0; m < executor_.program().micro_batches; ++m) {
    for (const Column& c : columns_) ranges.push_back({c.source, first_sample(c, m), c.count});
  }
  int64_t bytes = 1;
  for (const SampleRange& r : ranges) {
    const InputSpec& spec = source_->inputs()[static_cast<size_t>(r.input)];
    bytes += (spec.batched ? r.count : 1) * sample_bytes(spec);
  }
  prefetcher_.emplace(source_, std::move(ranges), first, end,
                      std::max(ahead_, std::min(kMostAhead, kSmallBytes / bytes)));
  return absl::OkStatus();
}

int64_t InputStage::first_sample(const Column& c, int64_t m) const {
  const Program& program = executor_.program();
  const int64_t run = program.samples_per_step / (program.micro_batches / program.micro_slices);
  return m / program.micro_slices * run + m % program.micro_slices * c.input->slice_samples + c.first;
}

absl::StatusOr<Batch> InputStage::take(int64_t step) {
  if (feed_ == nullptr) return prefetcher_->take(step);
  if (!has(step)) return absl::OutOfRangeError(cat("no batch comes for step ", step));
  PARTITA_RETURN_IF_ERROR(check_fed(step));
  return Batch{.step = step, .valid_samples = source_->global_batch(), .data = {}};
}

void InputStage::give_back(Batch batch) {
  if (feed_ == nullptr) return prefetcher_->give_back(std::move(batch));
  feed_->give_back();
}

// The size of what was handed over, and this rank's samples of it.
absl::Status InputStage::check_fed(int64_t step) const {
  for (size_t k = 0; k < columns_.size(); ++k) {
    const Column& c = columns_[k];
    const InputSpec& spec = source_->inputs()[static_cast<size_t>(c.source)];
    const int64_t samples = spec.batched ? source_->global_batch() : 1;
    const size_t found = feed_->columns(feed_->column(spec.name)).size();
    if (found != static_cast<size_t>(samples * sample_bytes(spec)))
      return absl::InvalidArgumentError(cat("the batch of step ", step, " has ", found, " bytes for the graph's input ",
                                            quote(spec.name), ", expected ", samples * sample_bytes(spec)));
    for (int64_t m = 0; m < executor_.program().micro_batches; ++m)
      PARTITA_RETURN_IF_ERROR(source_->check_values(first_sample(c, m), c.source, this->samples({}, m, k)));
  }
  return absl::OkStatus();
}

std::span<const std::byte> InputStage::samples(const Batch& batch, int64_t micro_batch, size_t k) const {
  if (feed_ == nullptr) return batch.data[static_cast<size_t>(micro_batch) * columns_.size() + k];
  const Column& c = columns_[k];
  const InputSpec& spec = source_->inputs()[static_cast<size_t>(c.source)];
  const std::span<const std::byte> all = feed_->columns(feed_->column(spec.name));
  if (!spec.batched) return all;
  const int64_t bytes = sample_bytes(spec);
  return all.subspan(static_cast<size_t>(first_sample(c, micro_batch) * bytes), static_cast<size_t>(c.count * bytes));
}

absl::Status InputStage::add_column(const ProgramInput& in, int source) {
  Column c{.input = &in, .source = source, .pieces = {}, .copied = feed_ != nullptr};
  if (in.placement.logical.empty()) {
    c.direct = true;
  } else {
    int64_t first = in.placement.logical[0], last = 0;
    PARTITA_RETURN_IF_ERROR(for_each_piece(in.placement, executor_.coordinates(), [&](const LogicalPiece& piece) {
      first = std::min(first, piece.offset[0]);
      last = std::max(last, piece.offset[0] + piece.extent[0]);
      c.pieces.push_back(piece);
      return absl::OkStatus();
    }));
    c.first = first;
    c.count = last - first;
    c.direct = c.pieces.size() == 1 &&
               std::equal(c.pieces[0].extent.begin() + 1, c.pieces[0].extent.end(), in.placement.logical.begin() + 1);
  }
  columns_.push_back(std::move(c));
  return absl::OkStatus();
}

absl::Status InputStage::stage(const Batch& batch, int64_t micro_batch, int64_t slot) {
  if (uploads_) {
    PARTITA_RETURN_IF_ERROR(upload(batch, micro_batch));
    std::vector<std::byte*> to;
    for (const Column& c : columns_) to.push_back(executor_.address(c.input->operand, slot));
    return executor_.device()->copy_uploaded(to);
  }
  const std::vector<std::span<const std::byte>> all = parts(batch, micro_batch, slot);
  for (size_t k = 0; k < columns_.size(); ++k) {
    const Operand& operand = columns_[k].input->operand;
    const absl::Status status = !columns_[k].direct  ? executor_.put(operand, slot)
                                : columns_[k].copied ? executor_.put(operand, slot, all[k])
                                                     : executor_.lend(operand, slot, all[k]);
    PARTITA_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status InputStage::upload_ahead(int64_t step) {
  const Batch* batch = uploads_ && first_staged_ && prefetcher_ ? prefetcher_->peek(step) : nullptr;
  return batch != nullptr ? upload(*batch, *first_staged_) : absl::OkStatus();
}

absl::Status InputStage::upload(const Batch& batch, int64_t micro_batch) {
  Device& device = *executor_.device();
  const bool there =
      uploaded_.number == device.uploaded() && uploaded_.step == batch.step && uploaded_.micro_batch == micro_batch;
  if (there) return absl::OkStatus();
  uploaded_ = {};
  PARTITA_ASSIGN_OR_RETURN(const int64_t number, device.upload(parts(batch, micro_batch, 0)));
  uploaded_ = {number, batch.step, micro_batch};
  return absl::OkStatus();
}

std::vector<std::span<const std::byte>> InputStage::parts(const Batch& batch, int64_t micro_batch, int64_t slot) const {
  std::vector<std::span<const std::byte>> all;
  for (size_t k = 0; k < columns_.size(); ++k) {
    const Column& c = columns_[k];
    all.push_back(samples(batch, micro_batch, k));
    if (c.direct) continue;
    const std::span<std::byte> own = executor_.memory(c.input->operand, slot);
    scatter(c, all.back(), own);
    all.back() = own;
  }
  return all;
}

// Copies the rank's pieces out of whole samples.
void InputStage::scatter(const Column& c, std::span<const std::byte> data, std::span<std::byte> own) {
  const int64_t size = dtype_size(c.input->operand.dtype);
  std::vector<int64_t> shape = c.input->placement.logical;
  shape[0] = c.count;
  for (const LogicalPiece& piece : c.pieces) {
    std::vector<int64_t> offset = piece.offset;
    offset[0] -= c.first;
    std::vector<std::byte> dense(static_cast<size_t>(*element_count(piece.extent) * size));
    absl::Status copied = for_each_run(shape, offset, piece.extent, [&](int64_t from, int64_t to, int64_t n) {
      std::memcpy(dense.data() + to * size, data.data() + from * size, static_cast<size_t>(n * size));
      return absl::OkStatus();
    });
    PARTITA_CHECK(copied.ok(), "pieces lie inside their samples");
    unpack_piece(piece, size, dense.data(), own.data());
  }
}

}  // namespace partita::runtime
