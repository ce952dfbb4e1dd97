// What device source includes, in place of the header of that name.

#ifndef BACKEND_ASCEND_TWIN_INCLUDE_KERNEL_OPERATOR_H_
#define BACKEND_ASCEND_TWIN_INCLUDE_KERNEL_OPERATOR_H_

#include "backend_ascend/twin/api/allocator.h"
#include "backend_ascend/twin/api/flags_and_barriers.h"
#include "backend_ascend/twin/api/queue.h"
#include "backend_ascend/twin/api/system.h"
#include "backend_ascend/twin/api/tensor.h"
#include "backend_ascend/twin/api/types.h"
#include "backend_ascend/twin/instructions/instructions.h"

#endif  // BACKEND_ASCEND_TWIN_INCLUDE_KERNEL_OPERATOR_H_
