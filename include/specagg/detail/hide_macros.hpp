// SPDX-License-Identifier: Apache-2.0
// Some platforms' headers define macros of common words (windows.h: min, max, near, far, small;
// macOS's AssertMacros.h: check, verify). In the headers between this and restore_macros.hpp these
// words are not macros; afterwards they are as before. Not #pragma once: included each time.
#pragma push_macro("min")
#pragma push_macro("max")
#pragma push_macro("near")
#pragma push_macro("far")
#pragma push_macro("small")
#pragma push_macro("check")
#pragma push_macro("verify")
#undef min
#undef max
#undef near
#undef far
#undef small
#undef check
#undef verify
