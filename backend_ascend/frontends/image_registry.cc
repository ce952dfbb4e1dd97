#include "backend_ascend/frontends/image_registry.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace hpmoe {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const LoadedImage>, std::less<>>
      entries;
};

// Never destroyed: threads of the framework may outlive static objects.
Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

Status RegisterImage(const std::string& digest, const void* data, size_t size) {
  Registry& registry = TheRegistry();
  if (FindImage(digest) != nullptr) return {};
  auto image = std::make_unique<LoadedImage>();
  const Status status = image->Load(data, size);
  if (status.code != 0) return status;
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.entries.emplace(digest, std::move(image));
  return status;
}

const ImageView* FindImage(std::string_view digest) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.entries.find(digest);
  return found == registry.entries.end() ? nullptr : &found->second->view();
}

}  // namespace hpmoe
