#include "runtime/execute/input_stage.h"

#include <algorithm>
#include <cstring>

#include "base/box.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

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

bool is_read(const Program& program, const Operand& input) {
  const int64_t begin = input.address.offset, end = begin + *element_count(input.shape) * dtype_size(input.dtype);
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      for (size_t k = 0; k < static_cast<size_t>(step.inputs); ++k) {
        const Operand& o = step.operands[k];
        if (o.dtype != DType::kInvalid && o.address.region == Region::kInput && o.address.offset >= begin &&
            o.address.offset < end)
          return true;
      }
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputStage>> InputStage::open(const DataConfig& config, const Executor& executor) {
  std::unique_ptr<InputStage> stage(new InputStage(executor, config.prefetch));
  const Program& program = executor.program();
  PARTITA_ASSIGN_OR_RETURN(stage->source_, DataSource::open(config, input_specs(program), program.samples_per_step));
  int source = 0;
  for (const ProgramInput& in : program.inputs) {
    if (in.kind != InputKind::kData) continue;
    if (is_read(program, in.operand)) PARTITA_RETURN_IF_ERROR(stage->add_column(in, source));
    ++source;
  }
  return stage;
}

absl::Status InputStage::start(int64_t first, int64_t end) {
  PARTITA_RETURN_IF_ERROR(source_->check_steps(first, std::max<int64_t>(end - first, 0)));
  const Program& program = executor_.program();
  std::vector<SampleRange> ranges;
  const int64_t run = program.samples_per_step / (program.micro_batches / program.micro_slices);
  for (int64_t m = 0; m < program.micro_batches; ++m) {
    for (size_t k = 0; k < columns_.size(); ++k)
      ranges.push_back({columns_[k].source,
                        m / program.micro_slices * run + m % program.micro_slices * columns_[k].input->slice_samples +
                            columns_[k].first,
                        columns_[k].count});
  }
  prefetcher_.emplace(source_, std::move(ranges), first, end, ahead_);
  return absl::OkStatus();
}

absl::Status InputStage::add_column(const ProgramInput& in, int source) {
  Column c{.input = &in, .source = source, .first = 0, .count = 0, .pieces = {}, .direct = false};
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

absl::Status InputStage::stage(const Batch& batch, int64_t micro_batch, int64_t slot) const {
  for (size_t k = 0; k < columns_.size(); ++k) {
    const Column& c = columns_[k];
    const std::vector<std::byte>& data = batch.data[static_cast<size_t>(micro_batch) * columns_.size() + k];
    std::span<std::byte> own = executor_.memory(c.input->operand, slot);
    if (c.direct) {
      PARTITA_CHECK(own.size() == data.size(), "size of a staged input");
      std::memcpy(own.data(), data.data(), data.size());
    } else {
      scatter(c, data, own);
    }
    PARTITA_RETURN_IF_ERROR(executor_.put(c.input->operand, slot));
  }
  return absl::OkStatus();
}

// Copies the rank's pieces out of whole samples.
void InputStage::scatter(const Column& c, const std::vector<std::byte>& data, std::span<std::byte> own) {
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
