// What a device build puts before its functions and its pointers into global
// memory, so that it compiles the same lines as a host.

#ifndef BACKEND_ASCEND_IMAGE_QUALIFIERS_H_
#define BACKEND_ASCEND_IMAGE_QUALIFIERS_H_

#ifndef HPMOE_FUNCTION
#define HPMOE_FUNCTION inline
#endif

#ifndef HPMOE_GM
#define HPMOE_GM
#endif

#endif  // BACKEND_ASCEND_IMAGE_QUALIFIERS_H_
