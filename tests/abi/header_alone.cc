// SPDX-License-Identifier: Apache-2.0
//
// The same checks in strict C++17: a public header compiled first and alone, and its initialisers used.
#include "header_alone.c"
