// What CANN's host libraries bring that its public sources only include: bounds
// checking copies, logs, reports of errors, and the platform's description.

#ifndef BACKEND_ASCEND_TWIN_TILING_HOST_LIBRARY_H_
#define BACKEND_ASCEND_TWIN_TILING_HOST_LIBRARY_H_

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

typedef int errno_t;
#define EOK 0
#define SECUREC_MEM_MAX_LEN 0x7fffffffUL
#define SECUREC_STRING_MAX_LEN 0x7fffffffUL

inline errno_t memcpy_s(void* destination, size_t room, const void* source,
                        size_t count) {
  if (count > room) return ERANGE;
  if (count) std::memcpy(destination, source, count);
  return EOK;
}
inline errno_t memmove_s(void* destination, size_t room, const void* source,
                         size_t count) {
  if (count > room) return ERANGE;
  if (count) std::memmove(destination, source, count);
  return EOK;
}
inline errno_t memset_s(void* destination, size_t room, int value,
                        size_t count) {
  if (count > room) return ERANGE;
  std::memset(destination, value, count);
  return EOK;
}
inline errno_t strncpy_s(char* destination, size_t room, const char* source,
                         size_t count) {
  const size_t length = strnlen(source, count);
  if (length + 1 > room) return ERANGE;
  std::memcpy(destination, source, length);
  destination[length] = 0;
  return EOK;
}
inline errno_t strcpy_s(char* destination, size_t room, const char* source) {
  return strncpy_s(destination, room, source, std::strlen(source));
}
inline errno_t strcat_s(char* destination, size_t room, const char* source) {
  const size_t length = strnlen(destination, room);
  return strcpy_s(destination + length, room - length, source);
}
inline int vsnprintf_s(char* destination, size_t room, size_t,
                       const char* format, va_list arguments) {
  const int length = std::vsnprintf(destination, room, format, arguments);
  return length < 0 || static_cast<size_t>(length) >= room ? -1 : length;
}
inline int snprintf_s(char* destination, size_t room, size_t count,
                      const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf_s(destination, room, count, format, arguments);
  va_end(arguments);
  return length;
}
inline int sprintf_s(char* destination, size_t room, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf_s(destination, room, room, format, arguments);
  va_end(arguments);
  return length;
}

// Logs: errors go to stderr.
enum {
  DLOG_DEBUG,
  DLOG_INFO,
  DLOG_WARN,
  DLOG_ERROR,
  DLOG_EVENT = 16,
  DLOG_TRACE,
  DLOG_OPLOG
};
enum { GE = 45, TEFUSION = 50, OP = 63, ASCENDCKERNEL = 79, METADEF = 85 };
#define RUN_LOG_MASK 0x01000000
#define DEBUG_LOG_MASK 0x00010000
extern "C" {
int32_t CheckLogLevel(int32_t module, int32_t level);
void DlogRecord(int32_t module, int32_t level, const char* format, ...);
int dlog_getlevel(int module, int* event);
}
#define HPMOE_LOG(...) \
  (std::fprintf(stderr, __VA_ARGS__), std::fputs("\n", stderr))
#define dlog_debug(module, ...) ((void)0)
#define dlog_info(module, ...) ((void)0)
#define dlog_warn(module, ...) ((void)0)
#define dlog_event(module, ...) ((void)0)
#define dlog_error(module, ...) ((void)HPMOE_LOG(__VA_ARGS__))
#define DlogSub(module, submodule, level, ...) \
  ((void)((level) == DLOG_ERROR ? HPMOE_LOG(__VA_ARGS__) : 0))
#define Dlog(module, level, ...) \
  ((void)((level) == DLOG_ERROR ? HPMOE_LOG(__VA_ARGS__) : 0))
#define REPORT_INNER_ERR_MSG(...) ((void)0)
#define REPORT_PREDEFINED_ERR_MSG(...) ((void)0)
#define REPORT_USER_ERR_MSG(...) ((void)0)
#define REPORT_INNER_ERROR(...) ((void)0)
#define REPORT_CALL_ERROR(...) ((void)0)
#define REPORT_INPUT_ERROR(...) ((void)0)
#define REPORT_ENV_ERROR(...) ((void)0)

enum class NpuArch : uint32_t {
  DAV_1001 = 1001,
  DAV_2002 = 2002,
  DAV_2201 = 2201,
  DAV_3002 = 3002,
  DAV_3003 = 3003,
  DAV_3102 = 3102,
  DAV_3113 = 3113,
  DAV_3510 = 3510,
  DAV_5102 = 5102,
  DAV_RESV = 0xFFFFFFFF
};

namespace ge {
class Operator {};
}  // namespace ge

namespace fe {

enum class LocalMemType {
  L0_A = 0,
  L0_B = 1,
  L0_C = 2,
  L1 = 3,
  L2 = 4,
  UB = 5,
  HBM = 6,
  RESERVED
};

// A chip: values by section and name, as CANN's platform files have them.
class PlatFormInfos {
 public:
  bool Init();
  bool GetPlatformRes(const std::string& section, const std::string& name,
                      std::string& value);
  bool GetPlatformResWithLock(const std::string& section,
                              const std::string& name, std::string& value) {
    return GetPlatformRes(section, name, value);
  }
  bool GetPlatformRes(const std::string& section,
                      std::map<std::string, std::string>& values);
  bool GetPlatformResWithLock(const std::string& section,
                              std::map<std::string, std::string>& values) {
    return GetPlatformRes(section, values);
  }
  void SetPlatformRes(const std::string& section,
                      std::map<std::string, std::string>& values);
  void SetCoreNumByCoreType(const std::string& type);
  uint32_t GetCoreNum() const;
  uint32_t GetCoreNumByType(const std::string& type) const;
  void GetLocalMemSize(const LocalMemType& type, uint64_t& bytes);
  void GetLocalMemBw(const LocalMemType& type, uint64_t& bandwidth);
  std::string GetSocVersion() const;

 private:
  std::map<std::string, std::map<std::string, std::string>> sections_;
  bool vector_ = false;
};

class OptionalInfos {
 public:
  bool Init() { return true; }
  void SetSocVersion(const std::string&) {}
  void SetCoreType(const std::string&) {}
  std::string GetSocVersion() const;
};

class OptionalInfo {
 public:
  std::string soc_version;
};
struct SoCInfo {
  uint32_t ai_core_cnt, vector_core_cnt;
};
struct StrInfo {
  std::string short_soc_version;
};
struct AiCoreSpec {
  uint64_t ub_size, l1_size, l0_c_size;
};
class PlatformInfo {
 public:
  StrInfo str_info;
  SoCInfo soc_info;
  AiCoreSpec ai_core_spec;
};

class PlatformInfoManager {
 public:
  static PlatformInfoManager& Instance();
  static PlatformInfoManager& GeInstance() { return Instance(); }
  uint32_t InitializePlatformInfo() { return 0; }
  uint32_t InitRuntimePlatformInfos(const std::string&) { return 0; }
  uint32_t GetPlatformInfos(const std::string&, PlatFormInfos& platform,
                            OptionalInfos&);
  uint32_t GetPlatformInfoWithOutSocVersion(PlatFormInfos& platform,
                                            OptionalInfos&);
  uint32_t GetPlatformInfoWithOutSocVersion(PlatformInfo& platform,
                                            OptionalInfo& optional);
  uint32_t GetRuntimePlatformInfosByDevice(const uint32_t&,
                                           PlatFormInfos& platform,
                                           bool = false);
  void SetOptionalCompilationInfo(OptionalInfo&) {}
};

}  // namespace fe

#endif  // BACKEND_ASCEND_TWIN_TILING_HOST_LIBRARY_H_
