# A stand-in for CANN's file of this name, for tests: its rules say what they
# were asked for, and leave a file where the kernel would be.
function(ascendc_fatbin_library name)
  message(STATUS "ascendc_fatbin_library: ${name} ${SOC_VERSION} ${ARGN}")
  install(FILES ${ARGN} DESTINATION fatbin/${name} RENAME ${name}.o)
endfunction()
foreach(rule IN ITEMS include_directories compile_options)
  function(ascendc_${rule})
    message(STATUS "${CMAKE_CURRENT_FUNCTION}: ${ARGN}")
  endfunction()
endforeach()
