// A bucket of an object store that speaks S3's protocol (https://docs.aws.amazon.com/AmazonS3/latest/API).
//
// Every request is signed, and the signature covers the SHA-256 of what is sent: the server refuses bytes that were
// damaged on the way. What the server asks to be tried again (500, 503, 429), and what broke off, is tried five times,
// 0.2 to 1.6 s apart. Objects of more than a part (16 MB, or a 9,000th) go in parts, four at once.
#pragma once

#include "runtime/objects/object_store.h"

namespace partita::runtime {

absl::StatusOr<std::unique_ptr<ObjectStore>> open_s3_store(const std::string& place, const EnvironmentMap& environment,
                                                           Transfers* transfers);

}  // namespace partita::runtime
