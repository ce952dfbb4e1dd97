#include "backend_ascend/frontends/image_registry.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hpmoe {
namespace {

struct Registry {
  struct Entry {
    std::vector<uint64_t> blob;  // the loader reads tables in place, aligned
    ImageView view;
  };
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Entry>, std::less<>> entries;
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
  auto entry = std::make_unique<Registry::Entry>();
  entry->blob.resize((size + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  std::memcpy(entry->blob.data(), data, size);
  const Status status = LoadImage(entry->blob.data(), size, &entry->view);
  if (status.code != 0) return status;
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.entries.emplace(digest, std::move(entry));
  return status;
}

const ImageView* FindImage(std::string_view digest) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.entries.find(digest);
  return found == registry.entries.end() ? nullptr : &found->second->view;
}

}  // namespace hpmoe
