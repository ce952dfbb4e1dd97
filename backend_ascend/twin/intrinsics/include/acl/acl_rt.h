// CANN has the runtime's part of acl.h in a header of its own.

#include "backend_ascend/twin/intrinsics/include/acl/acl.h"
