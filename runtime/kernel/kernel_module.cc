#include "runtime/kernel/kernel_module.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {
namespace {

absl::Status write_all(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return absl::ResourceExhaustedError(
          cat("no memory for ", bytes.size(), " bytes of generated kernels: ", std::strerror(errno)));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelModule>> KernelModule::load(std::span<const uint8_t> object) {
  if (object.size() < 64 || std::memcmp(object.data(), "\177ELF", 4) != 0)
    return absl::DataLossError("the generated kernels are no ELF object");
  const int fd = ::memfd_create("partita-kernels", MFD_CLOEXEC);
  if (fd < 0)
    return absl::ResourceExhaustedError(
        cat("cannot make a memory file for the generated kernels: ", std::strerror(errno)));
  const absl::Status written = write_all(fd, object);
  void* handle = nullptr;
  const char* error = nullptr;
  if (written.ok()) {
    handle = ::dlopen(cat("/proc/self/fd/", fd).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) error = ::dlerror();
  }
  // The loader knows modules by their path: the descriptor stays open, so that no other module gets the same one.
  if (handle == nullptr) ::close(fd);
  if (!written.ok()) return written;
  if (handle == nullptr)
    return absl::DataLossError(
        cat("cannot load the generated kernels: ", quote(error != nullptr ? error : "unknown error", 400)));
  return std::unique_ptr<KernelModule>(new KernelModule(handle, fd));
}

KernelModule::~KernelModule() {
  ::dlclose(handle_);
  ::close(file_);
}

absl::StatusOr<KernelFunction> KernelModule::find(const std::string& symbol) const {
  void* address = ::dlsym(handle_, symbol.c_str());
  if (address == nullptr) return absl::NotFoundError(cat("the generated kernels have no function ", quote(symbol)));
  return reinterpret_cast<KernelFunction>(address);
}

}  // namespace partita::runtime
