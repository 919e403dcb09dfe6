// The body is an array of the program's fields (program_fields.h), each record an array in turn. Of code and constants
// it has the bytes' number; they are the blob, one behind the other.
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
#include "runtime/program/program_fields.h"

namespace partita::runtime {
namespace {

constexpr char kMagic[9] = "PARTITA\1";
constexpr size_t kHeaderBytes = 40;

// These stand in the file by their names, all others by their numbers.
template <typename T>
constexpr bool kByName = std::is_same_v<T, StateKind> || std::is_same_v<T, InputKind> || std::is_same_v<T, InitialKind>;

template <typename T>
constexpr int64_t kLast = static_cast<int64_t>(kEnumNames<T>.size()) - 1;
template <>
constexpr int64_t kLast<DType> = static_cast<int64_t>(DType::kF64);

class Encoder {
 public:
  template <typename... Fields>
  void operator()(const Fields&... fields) {
    pack.array(sizeof...(fields));
    (put(fields.value), ...);
  }
  void put(const std::string& x) { pack.text(x); }
  void put(double x) { pack.real(x); }
  void put(const std::vector<uint8_t>& bytes) {
    put(static_cast<int64_t>(bytes.size()));
    blob.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <typename T>
  void put(const std::vector<T>& xs) {
    pack.array(xs.size());
    for (const T& x : xs) put(x);
  }
  template <size_t size>
  void put(const int64_t (&xs)[size]) {
    pack.array(size);
    for (int64_t x : xs) put(x);
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
      fields(*this, x);
    }
  }

  PackWriter pack;
  std::string blob;

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
  Decoder(std::span<const std::byte> body, std::span<const std::byte> blob) : pack(body), blob_(blob) {}

  template <typename... Fields>
  void operator()(const Fields&... fields) {
    if (pack.array() != sizeof...(fields)) pack.fail("a record has another number of fields");
    (get(fields.value), ...);
  }
  void get(std::string& x) { x = pack.text(); }
  void get(double& x) { x = pack.real(); }
  void get(std::vector<uint8_t>& bytes) {
    const int64_t size = pack.integer();
    if (size < 0 || static_cast<uint64_t>(size) > blob_.size())
      return pack.fail("its kernels and constants do not fill the blob");
    const uint8_t* at = reinterpret_cast<const uint8_t*>(blob_.data());
    bytes.assign(at, at + size);
    blob_ = blob_.subspan(static_cast<size_t>(size));
  }
  template <typename T>
  void get(std::vector<T>& xs) {
    const size_t size = pack.array();
    for (size_t i = 0; i < size && pack.ok(); ++i) get(xs.emplace_back());
  }
  template <size_t size>
  void get(int64_t (&xs)[size]) {
    if (pack.array() != size) pack.fail("a list has another length");
    for (int64_t& x : xs) get(x);
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
      fields(*this, x);
    }
  }
  // All of body and blob has been read.
  absl::Status end() {
    if (pack.ok() && !pack.at_end()) pack.fail("bytes are left after the last field");
    if (pack.ok() && !blob_.empty()) pack.fail("its kernels and constants do not fill the blob");
    return pack.status();
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

  std::span<const std::byte> blob_;
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

std::string serialize_program(const Program& program) {
  Encoder encoder;
  encoder.put(program);
  const std::string body = encoder.pack.take(), payload = body + encoder.blob;
  std::string image(kMagic, 8);
  append_raw<uint32_t>(image, kProgramVersion);
  append_raw<uint32_t>(image, 0);
  append_raw<uint64_t>(image, body.size());
  append_raw<uint64_t>(image, encoder.blob.size());
  append_raw<uint64_t>(image, checksum64(as_byte_span(payload)));
  return image + payload;
}

namespace {

absl::StatusOr<Program> decode_program(std::span<const std::byte> image) {
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
  Decoder decoder(payload.first(body), payload.subspan(body));
  decoder.get(program);
  if (const absl::Status status = decoder.end(); !status.ok()) return damaged(status.message());
  return program;
}

}  // namespace

absl::StatusOr<Program> parse_program(std::span<const std::byte> image) {
  PARTITA_ASSIGN_OR_RETURN(Program program, decode_program(image));
  PARTITA_RETURN_IF_ERROR(check_program(program));
  return program;
}

std::string serialize_programs(const std::vector<Program>& programs) {
  std::string images;
  for (const Program& p : programs) images += serialize_program(p);
  return images;
}

absl::StatusOr<std::vector<Program>> parse_programs(std::span<const std::byte> images) {
  std::vector<Program> programs;
  do {
    // The header says how long the image is; what is wrong with it decode_program() tells.
    size_t bytes = images.size();
    if (bytes >= kHeaderBytes) {
      const uint64_t body = read_raw<uint64_t>(images.data() + 16), blob = read_raw<uint64_t>(images.data() + 24);
      const uint64_t left = bytes - kHeaderBytes;
      if (body <= left && blob <= left - body) bytes = static_cast<size_t>(kHeaderBytes + body + blob);
    }
    PARTITA_ASSIGN_OR_RETURN(Program program, decode_program(images.first(bytes)));
    programs.push_back(std::move(program));
    images = images.subspan(bytes);
  } while (!images.empty());
  PARTITA_RETURN_IF_ERROR(check_programs(programs));
  return programs;
}

}  // namespace partita::runtime
