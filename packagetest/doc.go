// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package packagetest holds the tests of the packages: installed, upgraded and
// removed under the feet of users with models loaded, on booted systems. run.sh
// boots them and runs the tests in each, as root.
package packagetest
