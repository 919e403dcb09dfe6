#include "base/checksum.h"

#include <string>

#include "gtest/gtest.h"

namespace partita {
namespace {

std::string counting(size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += static_cast<char>(i * 7 + 3);
  return out;
}

// Values of the reference xxhash (0.8) and of Python's hashlib.
TEST(Checksum64, KnownAnswers) {
  EXPECT_EQ(checksum64(as_byte_span("")), 0xEF46DB3751D8E999u);
  EXPECT_EQ(checksum64(as_byte_span("a")), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(checksum64(as_byte_span("abc")), 0x44BC2CF5AD770999u);
  EXPECT_EQ(checksum64(as_byte_span("Nobody inspects the spammish repetition")), 0xFBCEA83C8A378BF1u);
}

TEST(Checksum64, EveryByteCounts) {
  std::string text = counting(100);
  const uint64_t whole = checksum64(as_byte_span(text));
  EXPECT_NE(whole, checksum64(as_byte_span(text), 1));
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] ^= 1;
    EXPECT_NE(checksum64(as_byte_span(text)), whole) << i;
    text[i] ^= 1;
  }
}

TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(crc32c(as_byte_span("")), 0u);
  EXPECT_EQ(crc32c(as_byte_span("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(as_byte_span(std::string(32, '\0'))), 0x8A9136AAu);
}

TEST(Crc32c, ContinuesAnywhere) {
  const std::string text = counting(61);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(as_byte_span(text.substr(cut)), crc32c(as_byte_span(text.substr(0, cut)))),
              crc32c(as_byte_span(text)));
  }
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(as_byte_span("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(as_byte_span("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(as_byte_span("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(as_byte_span(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, HexAndBack) {
  const Sha256 hash = sha256(as_byte_span(counting(77)));
  EXPECT_EQ(sha256_from_hex(to_hex(hash)), hash);
  const std::string digits = to_hex(hash);
  EXPECT_FALSE(sha256_from_hex(digits.substr(1)).has_value());
  EXPECT_FALSE(sha256_from_hex("g" + digits.substr(1)).has_value());
  EXPECT_FALSE(sha256_from_hex("A" + digits.substr(1)).has_value());
}

}  // namespace
}  // namespace partita
