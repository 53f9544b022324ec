// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fd

// TakeLost empties the list of lost descriptors, for the test that loses one.
func TakeLost() []string {
	owned.mu.Lock()
	defer owned.mu.Unlock()
	lost := owned.lost
	owned.lost = nil
	return lost
}
