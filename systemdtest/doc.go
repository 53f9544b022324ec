// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package systemdtest holds the tests that need a real user manager: the units,
// the fd store, and what outlives what. run.sh starts the manager and runs them
// in it, as its user.
package systemdtest
