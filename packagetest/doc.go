// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package packagetest tests the packages: it installs, upgrades and removes them on
// booted systems while users have models loaded. run.sh boots the systems and runs the
// tests in each, as root.
package packagetest
