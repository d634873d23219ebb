// SPDX-License-Identifier: Apache-2.0
// As before hide_macros.hpp. Not #pragma once.
#pragma pop_macro("min")
#pragma pop_macro("max")
#pragma pop_macro("near")
#pragma pop_macro("far")
#pragma pop_macro("small")
#pragma pop_macro("check")
#pragma pop_macro("verify")
