// Images of this process by the digest of their bytes.
//
// A framework's graph names an image by digest, so that it stays small and a
// graph from another process finds the very same image or none, never another.

#ifndef BACKEND_ASCEND_FRONTENDS_IMAGE_REGISTRY_H_
#define BACKEND_ASCEND_FRONTENDS_IMAGE_REGISTRY_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "backend_ascend/host/launch/launch.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

// Checks and keeps a copy of the image until the process ends: a compiled graph
// may be run at any time.  Does nothing if the digest is known.  Thread-safe,
// as is FindLaunch.
Status RegisterImage(const std::string& digest, const void* data, size_t size);

// Null if it is not known.
Launch* FindLaunch(std::string_view digest);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_IMAGE_REGISTRY_H_
