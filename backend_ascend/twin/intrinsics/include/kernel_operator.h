// The basic API of the headers that the user has; the advanced one needs files
// that only a build of CANN makes.

#include <kernel_basic_intf.h>
