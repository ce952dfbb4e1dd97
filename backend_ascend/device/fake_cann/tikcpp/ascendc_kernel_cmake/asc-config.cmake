# A stand-in for CANN's file of this name, for tests: its rules say what they
# were asked for.  Libraries are built for real, against fake_cann's headers.
get_filename_component(FAKE_CANN "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
foreach(rule IN ITEMS package code_gen kernel_options kernel_sources
                      kernel_library package_add)
  function(npu_op_${rule})
    string(REPLACE ";" " " given "${ARGN}")
    message(STATUS "${CMAKE_CURRENT_FUNCTION}: ${given}")
  endfunction()
endforeach()
function(npu_op_library name type)
  message(STATUS "npu_op_library: ${name} ${type} ${ARGN}")
  if(ARGN)
    add_library(${name} SHARED ${ARGN})
    target_include_directories(${name} PRIVATE ${FAKE_CANN})
  endif()
endfunction()
