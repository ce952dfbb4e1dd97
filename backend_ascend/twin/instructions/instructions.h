// Every call of moves, of the cube and of the vector unit that the twin knows.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_INSTRUCTIONS_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_INSTRUCTIONS_H_

#include "backend_ascend/twin/instructions/cube.h"
#include "backend_ascend/twin/instructions/load_data.h"
#include "backend_ascend/twin/instructions/moves.h"
#include "backend_ascend/twin/instructions/rearrange.h"
#include "backend_ascend/twin/instructions/reduce.h"
#include "backend_ascend/twin/instructions/vector.h"

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_INSTRUCTIONS_H_
