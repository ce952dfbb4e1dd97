#include "backend_ascend/frontends/image_registry.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace hpmoe {
namespace {

struct Entry {
  LoadedImage image;
  std::unique_ptr<Launch> launch;
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Entry>, std::less<>> entries;
};

// Never destroyed: threads of the framework may outlive static objects.
Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

const Entry* Find(std::string_view digest) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.entries.find(digest);
  return found == registry.entries.end() ? nullptr : found->second.get();
}

}  // namespace

Status RegisterImage(const std::string& digest, const void* data, size_t size) {
  Registry& registry = TheRegistry();
  if (Find(digest) != nullptr) return {};
  auto entry = std::make_unique<Entry>();
  const Status status = entry->image.Load(data, size);
  if (status.code != 0) return status;
  entry->launch = std::make_unique<Launch>(entry->image.view());
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.entries.emplace(digest, std::move(entry));
  return status;
}

Launch* FindLaunch(std::string_view digest) {
  const Entry* const entry = Find(digest);
  return entry == nullptr ? nullptr : entry->launch.get();
}

}  // namespace hpmoe
