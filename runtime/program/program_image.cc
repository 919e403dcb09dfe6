// The body is an array of the program's fields in the order of program.h, each struct an array in turn. One list of
// fields per struct serves both directions:  [model, target, [[axis, size, [absent, …]], …], …, kernel bytes, PTX
// bytes, constant bytes]; the blob is the kernels, PTX, then the constants.
#include "runtime/program/program_image.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/message_pack.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"

namespace partita::runtime {
namespace {

constexpr char kMagic[9] = "PARTITA\1";
constexpr size_t kHeaderBytes = 40;

#define PARTITA_FIELDS(Type, ...)                       \
  template <typename A, typename X>                     \
  requires std::is_same_v<std::remove_const_t<X>, Type> \
  void list(A& a, X& x) { a.structure(__VA_ARGS__); }
PARTITA_FIELDS(Address, x.region, x.offset, x.slot_stride)
PARTITA_FIELDS(Operand, x.address, x.dtype, x.shape)
PARTITA_FIELDS(Step, x.id, x.kind, x.device, x.name, x.operands, x.inputs, x.params, x.units, x.bytes, x.flops,
               x.origin, x.block)
PARTITA_FIELDS(ProgramSegment, x.kind, x.chunk, x.steps)
PARTITA_FIELDS(ScheduleEntry, x.segment, x.micro_batch, x.slot)
PARTITA_FIELDS(MeshAxis, x.name, x.size, x.absent)
PARTITA_FIELDS(AxisStride, x.axis, x.stride)
PARTITA_FIELDS(Placement, x.logical, x.shape, x.local, x.axes)
PARTITA_FIELDS(InitialValue, x.kind, x.a, x.b)
PARTITA_FIELDS(ProgramState, x.name, x.kind, x.parameter, x.operand, x.placement, x.initial)
PARTITA_FIELDS(IndexBounds, x.low, x.high, x.mark)
PARTITA_FIELDS(ProgramInput, x.name, x.kind, x.operand, x.placement, x.slice_samples, x.bounds)
PARTITA_FIELDS(ProgramOutput, x.name, x.operand, x.placement)
PARTITA_FIELDS(CollectiveGroup, x.axes)
PARTITA_FIELDS(Program, x.model, x.target, x.mesh, x.groups, x.micro_batches, x.micro_slices, x.samples_per_step,
               x.slots, x.region_bytes[0], x.region_bytes[1], x.region_bytes[2], x.region_bytes[3], x.region_bytes[4],
               x.region_bytes[5], x.segments, x.schedule, x.evaluation, x.states, x.inputs, x.outputs, x.origins)
#undef PARTITA_FIELDS

// These stand in the file by their names, all others by their numbers.
template <typename T>
constexpr bool kByName = std::is_same_v<T, StateKind> || std::is_same_v<T, InputKind> || std::is_same_v<T, InitialKind>;

template <typename T>
constexpr int64_t kLast = -1;
template <>
constexpr int64_t kLast<DType> = static_cast<int64_t>(DType::kF64);
template <>
constexpr int64_t kLast<Region> = kRegions - 1;
template <>
constexpr int64_t kLast<DeviceTag> = static_cast<int64_t>(DeviceTag::kHost);
template <>
constexpr int64_t kLast<StepKind> = static_cast<int64_t>(StepKind::kCollectiveWait);
template <>
constexpr int64_t kLast<Segment> = static_cast<int64_t>(Segment::kEvaluation);

class Encoder {
 public:
  template <typename... Fields>
  void structure(const Fields&... fields) {
    pack.array(sizeof...(fields));
    (put(fields), ...);
  }
  void put(const std::string& x) { pack.text(x); }
  void put(double x) { pack.real(x); }
  template <typename T>
  void put(const std::vector<T>& xs) {
    pack.array(xs.size());
    for (const T& x : xs) put(x);
  }
  void put(const Params& params) {
    pack.array(2 * params.size());
    for (const auto& [name, value] : params) {
      pack.text(name);
      std::visit([&](const auto& x) { tagged(x); }, value);
    }
  }
  template <typename T>
  void put(const T& x) {
    if constexpr (kByName<T>) {
      pack.text(enum_name(x));
    } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      pack.integer(static_cast<int64_t>(x));
    } else {
      list(*this, x);
    }
  }

  PackWriter pack;

 private:
  // Scalars tell their type by their tag; a list states its own in front.
  template <typename T>
  void tagged(const T& x) {
    put(x);
  }
  void tagged(const std::vector<int64_t>& x) { list_of("i", x); }
  void tagged(const std::vector<double>& x) { list_of("f", x); }
  template <typename T>
  void list_of(std::string_view type, const std::vector<T>& xs) {
    pack.array(2);
    pack.text(type);
    put(xs);
  }
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : pack(bytes) {}

  template <typename... Fields>
  void structure(Fields&... fields) {
    if (pack.array() != sizeof...(fields)) pack.fail("a record has another number of fields");
    (get(fields), ...);
  }
  void get(std::string& x) { x = pack.text(); }
  void get(double& x) { x = pack.real(); }
  template <typename T>
  void get(std::vector<T>& xs) {
    const size_t size = pack.array();
    for (size_t i = 0; i < size && pack.ok(); ++i) get(xs.emplace_back());
  }
  void get(Params& params) {
    const size_t size = pack.array();
    if (size % 2 != 0) pack.fail("params without a value");
    for (size_t i = 0; i + 1 < size && pack.ok(); i += 2) {
      std::string name = pack.text();
      if (!params.emplace(std::move(name), param()).second) pack.fail("a param is there twice");
    }
  }
  template <typename T>
  void get(T& x) {
    if constexpr (kByName<T>) {
      const std::string name = pack.text();
      const std::optional<T> value = parse_enum<T>(name);
      if (!value) return pack.fail(cat("an unknown kind ", quote(name)));
      x = *value;
    } else if constexpr (std::is_enum_v<T>) {
      const int64_t value = pack.integer();
      if (value < 0 || value > kLast<T>) return pack.fail("a value outside its enumeration");
      x = static_cast<T>(value);
    } else if constexpr (std::is_integral_v<T>) {
      const int64_t value = pack.integer();
      if (!std::in_range<T>(value)) return pack.fail("an integer does not fit its field");
      x = static_cast<T>(value);
    } else {
      list(*this, x);
    }
  }

  PackReader pack;

 private:
  Param param() {
    if (pack.next_is_integer()) return pack.integer();
    if (pack.next_is_real()) return pack.real();
    if (pack.next_is_text()) return pack.text();
    if (pack.array() != 2) pack.fail("expected a param");
    const std::string type = pack.text();
    if (type == "i") {
      std::vector<int64_t> values;
      get(values);
      return values;
    }
    if (type != "f") pack.fail("a param of unknown type");
    std::vector<double> values;
    get(values);
    return values;
  }
};

template <typename T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T read_raw(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename Text>
absl::Status damaged(const Text& why) {
  return absl::DataLossError(cat("the program image is damaged: ", why));
}

}  // namespace

absl::StatusOr<std::string> serialize_program(const Program& program) {
  PARTITA_RETURN_IF_ERROR(check_program(program));
  Encoder encoder;
  encoder.put(program);
  encoder.put(static_cast<int64_t>(program.kernels.size()));
  encoder.put(static_cast<int64_t>(program.portable_kernels.size()));
  encoder.put(static_cast<int64_t>(program.host_kernels.size()));
  encoder.put(static_cast<int64_t>(program.constants.size()));
  std::string payload = encoder.pack.take();
  const uint64_t body = payload.size();
  for (const std::vector<uint8_t>* part :
       {&program.kernels, &program.portable_kernels, &program.host_kernels, &program.constants})
    payload.append(reinterpret_cast<const char*>(part->data()), part->size());
  const uint64_t blob = payload.size() - body;

  std::string image(kMagic, 8);
  append_raw<uint32_t>(image, kProgramVersion);
  append_raw<uint32_t>(image, 0);
  append_raw<uint64_t>(image, body);
  append_raw<uint64_t>(image, blob);
  append_raw<uint64_t>(image, checksum64(as_byte_span(payload)));
  return image + payload;
}

absl::StatusOr<Program> parse_program(std::span<const std::byte> image) {
  if (image.size() < kHeaderBytes || std::memcmp(image.data(), kMagic, 8) != 0)
    return damaged("it does not begin with a program header");
  const uint32_t version = read_raw<uint32_t>(image.data() + 8);
  if (version != kProgramVersion) {
    return absl::FailedPreconditionError(cat("the program image has version ", version, ", this runtime reads version ",
                                             kProgramVersion, "; compile again with the same release"));
  }
  if (read_raw<uint32_t>(image.data() + 12) != 0) return damaged("unknown flags");
  const uint64_t body = read_raw<uint64_t>(image.data() + 16), blob = read_raw<uint64_t>(image.data() + 24);
  std::span<const std::byte> payload = image.subspan(kHeaderBytes);
  if (body > payload.size() || blob != payload.size() - body) {
    return damaged(cat("it has ", payload.size(), " bytes after the header, expected ", body, " + ", blob));
  }
  if (checksum64(payload) != read_raw<uint64_t>(image.data() + 32)) return damaged("its checksum does not match");

  Program program;
  Decoder decoder(payload.first(body));
  int64_t kernels = 0, portable = 0, host = 0, constants = 0;
  decoder.get(program);
  decoder.get(kernels);
  decoder.get(portable);
  decoder.get(host);
  decoder.get(constants);
  if (!decoder.pack.ok()) return damaged(decoder.pack.status().message());
  if (!decoder.pack.at_end()) return damaged("bytes are left after the last field");
  uint64_t left = blob;
  for (int64_t part : {kernels, portable, host, constants}) {
    if (part < 0 || static_cast<uint64_t>(part) > left)
      return damaged("its kernels and constants do not fill the blob");
    left -= static_cast<uint64_t>(part);
  }
  if (left != 0) return damaged("its kernels and constants do not fill the blob");
  const uint8_t* at = reinterpret_cast<const uint8_t*>(payload.data() + body);
  auto take = [&](std::vector<uint8_t>& part, int64_t bytes) {
    part.assign(at, at + bytes);
    at += bytes;
  };
  take(program.kernels, kernels);
  take(program.portable_kernels, portable);
  take(program.host_kernels, host);
  take(program.constants, constants);
  PARTITA_RETURN_IF_ERROR(check_program(program));
  return program;
}

namespace {

// The programs of a pipeline's stages: as many as its mesh has.
absl::Status check_stages(const std::vector<Program>& programs) {
  const Program& first = programs.front();
  const int axis = stage_axis(first.mesh);
  const int64_t stages = axis < 0 ? 1 : first.mesh[static_cast<size_t>(axis)].size;
  if (static_cast<int64_t>(programs.size()) != stages)
    return damaged(cat("it has programs of ", programs.size(), " stages, expected ", stages));
  for (size_t k = 0; k < programs.size(); ++k) {
    const Program& p = programs[k];
    const bool same =
        p.mesh == first.mesh && p.samples_per_step == first.samples_per_step && p.micro_batches == first.micro_batches;
    if (!same) return damaged(cat("its program ", k, " is of another run than the first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> serialize_programs(const std::vector<Program>& programs) {
  PARTITA_RETURN_IF_ERROR(check_stages(programs));
  std::string images;
  for (const Program& p : programs) {
    PARTITA_ASSIGN_OR_RETURN(std::string image, serialize_program(p));
    images += image;
  }
  return images;
}

absl::StatusOr<std::vector<Program>> parse_programs(std::span<const std::byte> images) {
  std::vector<Program> programs;
  do {
    // The header says how long the image is; what is wrong with it parse_program() tells.
    size_t bytes = images.size();
    if (bytes >= kHeaderBytes) {
      const uint64_t body = read_raw<uint64_t>(images.data() + 16), blob = read_raw<uint64_t>(images.data() + 24);
      const uint64_t left = bytes - kHeaderBytes;
      if (body <= left && blob <= left - body) bytes = static_cast<size_t>(kHeaderBytes + body + blob);
    }
    PARTITA_ASSIGN_OR_RETURN(Program program, parse_program(images.first(bytes)));
    programs.push_back(std::move(program));
    images = images.subspan(bytes);
  } while (!images.empty());
  PARTITA_RETURN_IF_ERROR(check_stages(programs));
  return programs;
}

}  // namespace partita::runtime
