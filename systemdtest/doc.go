// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package systemdtest holds the tests that need a real user manager: the units,
// the fd store, and what outlives which event. run.sh starts the manager and runs
// the tests in it, as its user.
package systemdtest
