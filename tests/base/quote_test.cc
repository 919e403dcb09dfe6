#include "base/quote.h"

#include "gtest/gtest.h"

namespace partita {
namespace {

TEST(Quote, EscapesControlCharactersAndBadUtf8) {
  EXPECT_EQ(quote("wte.weight"), "'wte.weight'");
  EXPECT_EQ(quote("Maß/µ"), "'Maß/µ'");
  EXPECT_EQ(quote("a\x1b[2J\n"), "'a\\x1b[2J\\n'");
  EXPECT_EQ(quote("\xff\xfe"), "'\\xff\\xfe'");
  EXPECT_EQ(quote("\xc2\x9b"
                  "2J"),
            "'\\xc2\\x9b\\x32J'");
}

TEST(Quote, CutsLongText) {
  const std::string shown = quote(std::string(1000, 'x'), 10);
  EXPECT_EQ(shown, "'xxxxxxxxxx…'");
  EXPECT_EQ(quote("aaßß", 3), "'aa…'");
}

TEST(QuoteList, CountsTheRest) {
  EXPECT_EQ(quote_list({}), "none");
  EXPECT_EQ(quote_list({"a", "b", "c"}, 2), "'a', 'b' and 1 more");
}

TEST(NearestName, FindsTypingErrorsOnly) {
  EXPECT_EQ(nearest_name("inputs_ids", {"labels", "input_ids", "mask"}), "input_ids");
  EXPECT_EQ(nearest_name("Labels", {"labels"}), "labels");
  EXPECT_EQ(nearest_name("h100", {"H200", "H100-80GB", "H100-96GB-HBM2e"}), "H100-80GB");
  EXPECT_EQ(nearest_name("", {"labels"}), "");
  EXPECT_EQ(nearest_name("zzzzzz", {"labels", "input_ids"}), "");
}

TEST(IsUtf8, RefusesOverlongSurrogatesAndCuts) {
  for (const char* good : {"", "a", "ß", "€", "😀"}) EXPECT_TRUE(is_utf8(good)) << good;
  for (const char* bad :
       {"\x80", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xf0\x9f\x98"})
    EXPECT_FALSE(is_utf8(bad));
}

}  // namespace
}  // namespace partita
