// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import "github.com/wcache/wcache/release"

// FieldNames are the fields of a release's key, in its class's order; false for an
// unknown release. The caller must not change them.
func FieldNames(version string) ([]string, bool) {
	r, ok := release.Like(version)
	return r.Key, ok
}
