// Raw: binary records of one size, each holding a field per graph input. CIFAR-10: {target: u8@0, x: u8@1} for records
// of 3073 bytes.
#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/sample_reader.h"

namespace partita::runtime {
namespace {

struct Field {
  std::string input;
  DType from = DType::kInvalid, to = DType::kInvalid;
  int64_t offset = 0, elements = 0;
  ConvertFunction convert = nullptr;
};

class RawReader : public SampleReader {
 public:
  RawReader(MappedFile file, std::vector<Field> fields, int64_t header, int64_t record)
      : file_(std::move(file)), fields_(std::move(fields)), header_(header), record_(record) {}

  int64_t samples() const override { return (file_.size() - header_) / record_; }
  std::string describe() const override { return cat("raw file ", quote(file_.path(), 1000)); }
  std::string fingerprint() const override { return fingerprint_of(file_.bytes()); }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const int64_t first = run.first, count = run.count;
    const Field& f = fields_[static_cast<size_t>(input)];
    const int64_t step = f.elements * dtype_size(f.to);
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* from = file_.bytes().data() + header_ + (first + i) * record_ + f.offset;
      const int64_t bad = f.convert(from, out.data() + i * step, f.elements);
      if (bad >= 0) {
        return absl::InvalidArgumentError(
            cat(describe(), ": record ", first + i, " holds ", element_text(f.from, from + bad * dtype_size(f.from)),
                " for graph input ", quote(f.input), ", which ", dtype_name(f.to), " cannot hold"));
      }
    }
    return absl::OkStatus();
  }

 private:
  MappedFile file_;
  std::vector<Field> fields_;
  int64_t header_, record_;
};

// "dtype@byte", "dtype" or "@byte"; what is left out is the input's dtype, or `next`.
absl::StatusOr<Field> parse_field(const std::string& text, const InputSpec& spec, int64_t next) {
  Field field{
      .input = spec.name, .from = spec.dtype, .to = spec.dtype, .offset = next, .elements = sample_elements(spec)};
  const size_t at = text.find('@');
  const std::string dtype = text.substr(0, at);
  if (!dtype.empty()) field.from = parse_dtype(dtype);
  const bool good_offset =
      at == std::string::npos || (absl::SimpleAtoi(text.substr(at + 1), &field.offset) && field.offset >= 0);
  if (field.from == DType::kInvalid || !good_offset) {
    return absl::InvalidArgumentError(
        cat("columns: input ", quote(spec.name), " is given ", quote(text), "; expected dtype@byte, as in u8@0"));
  }
  absl::StatusOr<ConvertFunction> convert = find_conversion(field.from, spec.dtype);
  if (!convert.ok())
    return absl::InvalidArgumentError(
        cat("raw field for graph input ", quote(spec.name), " ", convert.status().message()));
  field.convert = *convert;
  return field;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_raw_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(config.path));
  const std::string who = cat("raw file ", quote(config.path, 1000));
  std::vector<Field> fields;
  int64_t next = 0, end = 0;
  for (const InputSpec& spec : inputs) {
    if (!spec.batched)
      return absl::InvalidArgumentError(
          cat(who, " cannot feed graph input ", quote(spec.name), ", which has no batch axis"));
    auto it = config.columns.find(spec.name);
    PARTITA_ASSIGN_OR_RETURN(Field field, parse_field(it == config.columns.end() ? "" : it->second, spec, next));
    int64_t bytes = 0;
    if (__builtin_mul_overflow(field.elements, dtype_size(field.from), &bytes) ||
        __builtin_add_overflow(field.offset, bytes, &next)) {
      return absl::InvalidArgumentError(
          cat(who, ": the field of graph input ", quote(spec.name), " ends beyond 2^63 bytes"));
    }
    end = std::max(end, next);
    fields.push_back(std::move(field));
  }
  const int64_t record = config.record_bytes == 0 ? end : config.record_bytes;
  if (record < end || record <= 0)
    return absl::InvalidArgumentError(
        cat(who, ": records of ", record, " bytes are too short for fields that end at byte ", end));
  const int64_t data = file.size() - config.header_bytes;
  if (config.header_bytes < 0 || data < 0)
    return absl::InvalidArgumentError(
        cat(who, " has ", file.size(), " bytes, fewer than its header of ", config.header_bytes));
  if (data % record != 0) {
    return absl::InvalidArgumentError(cat(who, " holds ", data,
                                          " bytes of records, which is no multiple of the record size ", record, " (",
                                          data % record, " bytes are left over)"));
  }
  if (config.shuffle) file.expect_random_access();
  return std::make_unique<RawReader>(std::move(file), std::move(fields), config.header_bytes, record);
}

}  // namespace partita::runtime
