// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package wcache is the module of the command wcache, which keeps a model's
// weights in memory between runs of an inference engine. It holds no code, only
// the tests of rules that hold for all packages; docs/design.md has the
// architecture and cmd/wcache the program.
package wcache
