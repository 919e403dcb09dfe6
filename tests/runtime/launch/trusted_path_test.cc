#include "runtime/launch/trusted_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

TEST(TrustedPath, WhereOthersMayWrite_IsRefused) {
  const TempFolder folder;
  const std::string file = folder.write("module.so", "x");
  EXPECT_TRUE(check_trusted_path(file).ok()) << check_trusted_path(file);
  EXPECT_TRUE(check_trusted_path(folder.path()).ok());
  ::chmod(file.c_str(), 0666);
  EXPECT_THAT(check_trusted_path(file).message(), HasSubstr("others may write to '" + file));
  ::chmod(file.c_str(), 0644);
  ::chmod(folder.path().c_str(), 0757);
  EXPECT_THAT(check_trusted_path(file).message(), HasSubstr("others may write to '" + folder.path() + "'"));
  ::chmod(folder.path().c_str(), 01777);  // as /tmp
  EXPECT_TRUE(check_trusted_path(file).ok());
  EXPECT_FALSE(check_trusted_path(folder.path()).ok());
}

TEST(TrustedPath, OfAnotherUser_IsRefused) {
  const TempFolder folder;
  const std::string file = folder.write("module.so", "x");
  if (::chown(file.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root gives files away";
  EXPECT_THAT(check_trusted_path(file).message(), HasSubstr("belongs to user 12345"));
}

TEST(TrustedPath, Links_AreFollowed) {
  const TempFolder mine, open;
  open.write("module.so", "x");
  ASSERT_EQ(::symlink((open / "module.so").c_str(), (mine / "link.so").c_str()), 0);
  EXPECT_TRUE(check_trusted_path(mine / "link.so").ok());
  ::chmod(open.path().c_str(), 0777);
  EXPECT_THAT(check_trusted_path(mine / "link.so").message(), HasSubstr(open.path()));
  EXPECT_FALSE(check_trusted_path(mine / "absent").ok());
}

TEST(TrustedPath, PrivateFile_IsForOneReader) {
  const TempFolder folder;
  const std::string file = folder.write("secret", "x");
  EXPECT_THAT(check_private_file(file).message(), HasSubstr("chmod 600"));
  ::chmod(file.c_str(), 0600);
  EXPECT_TRUE(check_private_file(file).ok());
}

}  // namespace
}  // namespace partita::runtime
