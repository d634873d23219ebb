# SPDX-License-Identifier: Apache-2.0
# Compiles several test files as one. What a dozen files instantiate alike (rows, verifiers, policies) is then compiled
# once. Each file stands in a namespace of its own, after what all of them include, so two files may use one name:
#
#   #include <vector>                // every directive of a.test.cpp and of b.test.cpp up to its last #include
#   namespace unit_draft_a {
#   #include "draft/a.test.cpp"      // its own #includes have been read: #pragma once
#   }
#   namespace unit_draft_b {
#   #include "draft/b.test.cpp"
#   }
#
# A file that defines a macro, or undefines one, or has its own flags, is compiled alone and linked first.
# One that begins with a header of tests/, which may define macros (cuda/agree.hpp), is compiled with those that begin
# with the same. A path in an #include is seen from tests/.
function(specagg_together program number result)  # the sources follow
  set(files)
  set(heads)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} defines REGEX "^#(define|undef)")
    file(STRINGS ${source} head REGEX "^#include" LIMIT_COUNT 1)
    get_source_file_property(flags ${source} COMPILE_OPTIONS)
    if(defines OR flags OR number LESS 2)
      list(APPEND files ${source})
      continue()
    endif()
    if(head MATCHES "<")
      set(head "")
    endif()
    string(MAKE_C_IDENTIFIER "${head}" head)
    list(APPEND heads "${head}.")
    list(APPEND of_${head} ${source})
  endforeach()
  list(REMOVE_DUPLICATES heads)
  set(groups 0)
  foreach(head IN LISTS heads)
    string(REPLACE "." "" head "${head}")
    list(LENGTH of_${head} count)
    math(EXPR parts "(${count} + ${number} - 1) / ${number}")
    math(EXPR each "(${count} + ${parts} - 1) / ${parts}")  # parts of one size
    foreach(begin RANGE 0 ${count} ${each})
      if(begin LESS count)
        list(SUBLIST of_${head} ${begin} ${each} group)
        specagg_one_of_them(${program}-${groups} "${group}" file)
        list(APPEND files ${file})
        math(EXPR groups "${groups} + 1")
      endif()
    endforeach()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

function(specagg_one_of_them name group result)
  set(includes)
  set(units)
  foreach(source IN LISTS group)
    file(STRINGS ${source} lines REGEX "^#")
    string(REGEX MATCH ".*#include [<\"][^>\"]*[>\"]" directives "${lines}")  # up to the last of them
    string(REGEX MATCHALL "#if" opened "${directives}")
    string(REGEX MATCHALL "#endif" closed "${directives}")
    list(LENGTH opened open)
    list(LENGTH closed close)
    foreach(rest RANGE ${close} ${open})
      if(NOT rest EQUAL close)
        string(APPEND directives ";#endif")
      endif()
    endforeach()
    string(REPLACE ";" "\n" directives "${directives}")
    string(APPEND includes "${directives}\n")
    string(MAKE_C_IDENTIFIER ${source} unit)
    string(APPEND units "namespace unit_${unit} {\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n}\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
  set(file ${CMAKE_CURRENT_BINARY_DIR}/together/${name}.cpp)
  file(CONFIGURE OUTPUT ${file} CONTENT "@includes@@units@" @ONLY)
  set(${result} ${file} PARENT_SCOPE)
endfunction()
